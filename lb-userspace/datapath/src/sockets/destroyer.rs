//! The thread that ends sockets: it searches on request, a few times more for sockets that it does not find, and counts.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lb_common::abi::{TCP, UDP};
use lb_common::limits::ANSWER_TIMEOUT_S;

use super::diag::{Connection, DiagError};
use super::entries::{self, Entry, Fate, Stale};
use super::kernel::{self, Ended};
use super::namespaces;
use lb_model::Monotonic;
use lb_tables::{MapError, Pinned};

/// Where sockets are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// In the agent's own network namespace: `--socket-lb host`.
    Own,
    /// In the namespaces of all processes: `--socket-lb all`.
    Everywhere,
}

/// What was done so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destroyed {
    pub tcp: u64,
    pub udp: u64,
    /// Attempts that failed.
    pub failures: u64,
    /// Why sockets of evicted backends are not ended; `None`: they are.
    pub problem: Option<String>,
}

/// How often a socket that is not found is looked for: its process may be about to connect it.
const CHECKS: u8 = 3;
/// Pause before another check of the same sockets.
const CHECK_AGAIN: Duration = Duration::from_secs(1);
/// Pause between checks at connections whose backend drains.
const CHECK_DRAINS: Duration = Duration::from_secs(5);
/// Changes may come in quick succession: checks are at least so far apart.
const REST: Duration = Duration::from_millis(100);

/// The handle of the thread. It ends when this is dropped.
#[derive(Debug)]
pub struct Destroyer {
    ask: SyncSender<()>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    tcp: AtomicU64,
    udp: AtomicU64,
    failures: AtomicU64,
    problem: Mutex<Option<String>>,
}

/// Reads what was done so far.
#[derive(Clone, Debug)]
pub struct Totals(Arc<Shared>);

impl Totals {
    pub fn read(&self) -> Destroyed {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let problem = self.0.problem.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Destroyed { tcp: count(&self.0.tcp), udp: count(&self.0.udp), failures: count(&self.0.failures), problem }
    }
}

impl Destroyer {
    /// Starts the thread, in the caller's network namespace. Minimum kernel: 4.5, with `CONFIG_INET_DIAG_DESTROY` and
    /// `CONFIG_INET_UDP_DIAG`; needs `CAP_NET_ADMIN`, and `CAP_SYS_ADMIN` for [`Reach::Everywhere`].
    pub fn start(maps_dir: &Path, reach: Reach, now: fn() -> Monotonic) -> io::Result<Self> {
        let (ask, asked) = sync_channel(1);
        let shared = Arc::new(Shared::default());
        let mut worker = Worker {
            maps_dir: maps_dir.to_owned(),
            maps: None,
            reach,
            now,
            shared: shared.clone(),
            checks: HashMap::new(),
            unanswered: Unanswered::default(),
        };
        std::thread::Builder::new().name("sockets".to_owned()).spawn(move || worker.run(&asked))?;
        Ok(Self { ask, shared })
    }

    /// Backends changed: sockets may have to go. Returns at once.
    pub fn check_soon(&self) {
        // Full: a check is about to begin, and will see this change as well.
        let _ = self.ask.try_send(());
    }

    pub fn totals(&self) -> Totals {
        Totals(self.shared.clone())
    }
}

struct Worker {
    maps_dir: PathBuf,
    maps: Option<Pinned>,
    reach: Reach,
    now: fn() -> Monotonic,
    shared: Arc<Shared>,
    /// How often each entry was looked for, by what was to become of its socket then.
    checks: HashMap<(Entry, Fate), u8>,
    unanswered: Unanswered,
}

/// Sockets, by cookie, that wait for an acknowledgement of what they have sent, and since which check.
#[derive(Debug, Default)]
struct Unanswered(HashMap<u64, Monotonic>);

impl Unanswered {
    /// Notes how the socket fares. `received`: when it last received anything, if something is not acknowledged. Whether it has been so for
    /// longer than a backend may take that drains: at two checks, and nothing came between them.
    fn note(&mut self, cookie: u64, received: Option<Monotonic>, now: Monotonic) -> bool {
        let Some(received) = received else {
            self.0.remove(&cookie);
            return false;
        };
        let since = self.0.entry(cookie).or_insert(now);
        if received > *since {
            *since = now;
        }
        now.since(*since) >= Duration::from_secs(ANSWER_TIMEOUT_S.into())
    }
}

impl Worker {
    fn run(&mut self, asked: &Receiver<()>) {
        let able = Connection::open().and_then(|mut kernel| [TCP, UDP].iter().try_for_each(|of| kernel.probe(*of)));
        if let Err(error) = able {
            self.trouble(&error.to_string());
        }
        let mut again = None;
        loop {
            let woken = again.map_or_else(|| asked.recv().map_err(Into::into), |pause| asked.recv_timeout(pause));
            if woken == Err(RecvTimeoutError::Disconnected) {
                return;
            }
            again = self.check().unwrap_or_else(|error| {
                self.failed(&error.to_string());
                Some(CHECK_AGAIN)
            });
            // A thread of its own, that nobody unparks.
            std::thread::park_timeout(REST);
        }
    }

    /// When the next check is due, if nothing asks for one: something was not found that may be there soon, or time may change something.
    fn check(&mut self) -> Result<Option<Duration>, CheckError> {
        let maps = match self.maps.take() {
            Some(maps) => maps,
            None => Pinned::open(&self.maps_dir)?,
        };
        let maps = &*self.maps.insert(maps);
        let now = (self.now)();
        let found = entries::stale(maps, now.to_tenths()).map_err(CheckError::Table)?;
        let (draining, stale): (Vec<_>, Vec<_>) =
            found.stale.into_iter().partition(|stale| stale.fate == Fate::Answered);
        self.unanswered.0.retain(|cookie, _| draining.iter().any(|stale| stale.cookie == *cookie));
        let mut before = std::mem::take(&mut self.checks);
        self.checks = stale.iter().map(key).map(|key| (key, before.remove(&key).unwrap_or(0))).collect();
        let open: Vec<&Stale> = stale.iter().filter(|stale| self.checks.get(&key(stale)) < Some(&CHECKS)).collect();
        let due = found.drains.then_some(CHECK_DRAINS);
        let all: Vec<&Stale> = open.iter().copied().chain(&draining).collect();
        if all.is_empty() {
            return Ok(due);
        }
        let unanswered = &mut self.unanswered;
        let ended = destroy(self.reach, &all, &mut |stale, silent| {
            stale.fate != Fate::Answered || unanswered.note(stale.cookie, silent.map(|silent| now.before(silent)), now)
        });
        for stale in &ended.destroyed {
            entries::remove(maps, &stale.entry).map_err(CheckError::Table)?;
            self.checks.remove(&key(stale));
        }
        for stale in open {
            let Some(checks) = self.checks.get_mut(&key(stale)) else { continue };
            *checks += 1;
            // Nobody is connected to it, and what it would name is gone: its id may be used again.
            if *checks == CHECKS && stale.fate == Fate::Evicted && ended.failures.is_empty() {
                entries::remove(maps, &stale.entry).map_err(CheckError::Table)?;
            }
        }
        self.note(&ended);
        Ok(if self.checks.values().any(|checks| *checks < CHECKS) { Some(CHECK_AGAIN) } else { due })
    }

    fn note(&self, ended: &Ended<'_>) {
        let of = |protocol| ended.destroyed.iter().filter(|stale| stale.protocol == protocol).count() as u64;
        let (tcp, udp) = (of(TCP), of(UDP));
        if tcp + udp > 0 {
            tracing::info!(tcp, udp, "sockets of evicted backends destroyed");
        }
        self.shared.tcp.fetch_add(tcp, Ordering::Relaxed);
        self.shared.udp.fetch_add(udp, Ordering::Relaxed);
        for failure in &ended.failures {
            self.failed(&failure.to_string());
        }
        if ended.failures.is_empty() && tcp + udp > 0 {
            *self.shared.problem.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    fn failed(&self, reason: &str) {
        self.shared.failures.fetch_add(1, Ordering::Relaxed);
        self.trouble(reason);
    }

    /// Told when it is new.
    fn trouble(&self, reason: &str) {
        let mut problem = self.shared.problem.lock().unwrap_or_else(PoisonError::into_inner);
        if problem.as_deref() != Some(reason) {
            tracing::warn!("host sockets may keep a backend that is gone: {reason}");
            *problem = Some(reason.to_owned());
        }
    }
}

fn destroy<'a>(
    reach: Reach,
    stale: &[&'a Stale],
    is_due: &mut dyn FnMut(&Stale, Option<Duration>) -> bool,
) -> Ended<'a> {
    if reach == Reach::Own {
        return kernel::destroy(stale, is_due);
    }
    let mut all = Ended::default();
    for namespace in namespaces::all(Path::new("/proc")) {
        let ended = enter(&namespace).map_or_else(
            |error| Ended { failures: vec![error], ..Ended::default() },
            |()| kernel::destroy(stale, is_due),
        );
        all.destroyed.extend(ended.destroyed);
        all.failures.extend(ended.failures);
    }
    all
}

fn key(stale: &Stale) -> (Entry, Fate) {
    (stale.entry, stale.fate)
}

fn enter(namespace: &File) -> Result<(), DiagError> {
    let action = "enter a pod's network namespace (needs CAP_SYS_ADMIN)";
    namespaces::enter(namespace).map_err(|source| DiagError { action, source })
}

/// Why a check could not be carried out.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error(transparent)]
    Maps(#[from] MapError),
    #[error("the socket tables cannot be read or changed: {0}")]
    Table(io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Monotonic {
        Monotonic::from_duration(Duration::from_secs(seconds))
    }

    #[test]
    fn a_socket_is_unanswered_if_nothing_came_between_two_checks() {
        let mut unanswered = Unanswered::default();
        assert!(!unanswered.note(1, Some(at(10)), at(100)), "it was idle before, and has just sent");
        assert!(!unanswered.note(1, Some(at(10)), at(114)));
        assert!(unanswered.note(1, Some(at(10)), at(115)));
        assert!(!unanswered.note(1, Some(at(116)), at(120)), "an answer came");
        assert!(!unanswered.note(1, Some(at(116)), at(134)));
        assert!(!unanswered.note(1, None, at(136)), "all is acknowledged");
        assert!(!unanswered.note(1, Some(at(135)), at(140)));
        assert!(unanswered.note(1, Some(at(135)), at(155)));
    }
}
