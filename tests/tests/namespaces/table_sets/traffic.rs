//! Clients whose connections must notice nothing: some are held, others come and go all the time, from a pod and from the node itself.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lb_tests::agent::{Protocol, Service};
use lb_tests::peers::{Datagrams, PATIENCE, Stream, eventually};
use lb_tests::topology::NetNs;

/// A round over the held connections begins at most so often.
const ROUND: Duration = Duration::from_millis(50);
/// Threads of each place that make new connections.
const MAKERS: usize = 2;
/// How long everything may take to be asked once more.
const LONG: Duration = Duration::from_mins(2);

/// How many clients.
#[derive(Clone, Copy)]
pub struct Amount {
    /// Held connections.
    pub held: usize,
    /// New connections a second, at most.
    pub new: u64,
}

/// Where they ask.
#[derive(Clone)]
pub struct Frontends {
    pub tcp: Vec<SocketAddr>,
    pub udp: Vec<SocketAddr>,
}

impl Frontends {
    pub fn of(service: &Service) -> Self {
        Self { tcp: service.frontends(Protocol::Tcp), udp: service.frontends(Protocol::Udp) }
    }
}

#[derive(Default)]
struct Seen {
    stop: AtomicBool,
    /// Answers to held connections, and new connections.
    held: AtomicU64,
    new: AtomicU64,
    /// Rounds over all held connections of each place.
    rounds: [AtomicU64; 2],
    findings: Mutex<Vec<String>>,
}

impl Seen {
    fn find(&self, finding: String) {
        self.findings.lock().unwrap_or_else(PoisonError::into_inner).push(finding);
    }

    fn found(&self) -> Vec<String> {
        self.findings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

/// They ask until they are dropped.
pub struct Traffic {
    seen: Arc<Seen>,
    workers: Vec<JoinHandle<()>>,
}

/// A held connection of either protocol.
enum Held {
    Tcp(Stream),
    Udp(Datagrams),
}

impl Held {
    fn ask(&mut self) -> std::io::Result<String> {
        Ok(match self {
            Self::Tcp(stream) => stream.ask("held")?.server,
            Self::Udp(socket) => socket.ask("held")?.server,
        })
    }
}

impl Traffic {
    /// Connects all that are held, then returns.
    pub fn start(places: &[NetNs; 2], frontends: &Frontends, amount: Amount) -> Self {
        let seen = Arc::new(Seen::default());
        let mut workers = Vec::new();
        for (index, netns) in places.iter().enumerate() {
            let held = hold(netns, frontends, amount.held / places.len());
            let of_holder = Arc::clone(&seen);
            workers.push(netns.spawn(move || keep(held, &of_holder, index)));
            let pause = Duration::from_micros(1_000_000 * (places.len() * MAKERS) as u64 / amount.new.max(1));
            for maker in 0..MAKERS {
                let (of_maker, inside) = (Arc::clone(&seen), netns.clone());
                let to = frontends.tcp.clone();
                workers.push(netns.spawn(move || make(&inside, &to, maker, pause, &of_maker)));
            }
        }
        Self { seen, workers }
    }

    /// Waits until every held connection was asked after this moment, and fails if any was lost or moved, or a new one refused.
    pub fn check(&self, at: &str) {
        let rounds = |seen: &Seen| [0, 1].map(|index| seen.rounds[index].load(Ordering::Relaxed));
        let (before, new) = (rounds(&self.seen), self.seen.new.load(Ordering::Relaxed));
        eventually(&format!("{at}: every connection is asked again, and new ones are made"), LONG, || {
            let asked = rounds(&self.seen).iter().zip(before).all(|(now, before)| *now >= before + 2);
            let is_done = asked && self.seen.new.load(Ordering::Relaxed) > new + 20;
            (is_done || !self.seen.found().is_empty()).then_some(())
        });
        let found = self.seen.found();
        assert!(found.is_empty(), "{at}: {} findings: {:#?}", found.len(), &found[..found.len().min(20)]);
    }

    /// Answers so far: to held connections, and to new ones.
    pub fn answers(&self) -> (u64, u64) {
        (self.seen.held.load(Ordering::Relaxed), self.seen.new.load(Ordering::Relaxed))
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.seen.stop.store(true, Ordering::Relaxed);
        for worker in self.workers.drain(..) {
            worker.join().ok();
        }
    }
}

/// Connections to all frontends in turn: one of UDP for three of TCP.
fn hold(netns: &NetNs, Frontends { tcp, udp }: &Frontends, count: usize) -> Vec<(Held, String, SocketAddr)> {
    let one = |index: usize| {
        let (mut held, to) = if index % 4 == 3 {
            let to = udp[index / 4 % udp.len()];
            (Held::Udp(Datagrams::connected(netns, 0, to).unwrap()), to)
        } else {
            let to = tcp[index % tcp.len()];
            (Held::Tcp(Stream::connect(netns, to).unwrap()), to)
        };
        let server = held.ask().unwrap();
        (held, server, to)
    };
    (0..count).map(one).collect()
}

fn keep(mut held: Vec<(Held, String, SocketAddr)>, seen: &Seen, index: usize) {
    while seen.goes_on() {
        let start = Instant::now();
        held.retain_mut(|(held, server, to)| {
            if !seen.goes_on() {
                return true;
            }
            let kind = if matches!(held, Held::Tcp(_)) { "tcp" } else { "udp" };
            let what = match held.ask() {
                Ok(answer) if answer == *server => {
                    seen.held.fetch_add(1, Ordering::Relaxed);
                    return true;
                }
                Ok(answer) => format!("moved to {answer}"),
                Err(error) => format!("is lost: {error}"),
            };
            seen.find(format!("a {kind} connection of client {index} to {to} at {server} {what}"));
            false
        });
        seen.rounds[index].fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(ROUND.saturating_sub(start.elapsed()));
    }
}

/// Connections that are asked twice, and then reset.
fn make(netns: &NetNs, to: &[SocketAddr], first: usize, pause: Duration, seen: &Seen) {
    let mut next = Instant::now();
    for turn in first.. {
        if !seen.goes_on() {
            return;
        }
        let to = to[turn % to.len()];
        let asked = Stream::connect_from(netns, 0, to, PATIENCE).and_then(|mut stream| {
            let servers = [stream.ask("new")?.server, stream.ask("again")?.server];
            stream.reset()?;
            Ok(servers)
        });
        match asked {
            Ok([one, other]) if one == other => {
                seen.new.fetch_add(1, Ordering::Relaxed);
            }
            Ok(servers) => seen.find(format!("a new connection to {to} moved: {servers:?}")),
            Err(error) => seen.find(format!("a new connection to {to} failed: {error}")),
        }
        // What was missed is not made up for.
        next = (next + pause).max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}
