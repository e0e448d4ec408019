//! Marks over what the API says, as the running agent takes them in: unhealthy endpoints from the active checks, maintenance from a hand.
//!
//! The targets in maintenance are in a file of the run folder, one a line. Maintenance holds over restarts of the agent, and for addresses that are
//! not there at the moment.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lb_common::abi::{backend_flags, backend_state};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::observe::maintenance::{Answer, Order, State};
use crate::observe::report_socket::ANSWER_TIMEOUT;
use lb_model::PortKey;
use lb_plan::apply::{Programmer, Store};
use lb_plan::plan::{ProgrammedState, Target};

/// Endpoints whose active checks fail, each of one service port.
pub type Unhealthy = BTreeSet<(PortKey, SocketAddr)>;

/// The active checks send all failing endpoints, each time some differ. The loop plans the difference.
pub type UnhealthySender = watch::Sender<Unhealthy>;

/// How many orders may wait.
pub const ORDERS: usize = 4;

/// Somebody wants to know, or to change, what is in maintenance.
#[derive(Debug)]
pub struct Request {
    pub order: Order,
    pub reply: oneshot::Sender<Answer>,
}

/// Somebody whose order is obeyed, and who is to be answered once the tables hold it, or do not in time.
#[derive(Debug)]
struct Obeyed {
    reply: oneshot::Sender<Answer>,
    /// `None`: all that is in maintenance.
    target: Option<Target>,
    changed: bool,
    /// Then the answer is that they do not.
    until: Instant,
}

/// How long an order waits for the tables: for a run or two, and for the first retry of a failed write.
const PATIENCE: Duration = Duration::from_secs(3);
const _: () = assert!(PATIENCE.as_secs() < ANSWER_TIMEOUT.as_secs(), "who asked is still there");

/// A way to give orders.
pub type Requests = mpsc::Sender<Request>;

/// Name of the file in the run folder.
pub(super) const FILE: &str = "maintenance";
/// What its name ends with where it could not be read before an order wrote it anew.
pub(super) const UNREAD: &str = "unread";
/// So many characters of a line that is no address are shown.
const LINE_SHOWN: usize = 100;

/// What an agent before this one kept from new flows because of its checks: who makes the checks begins with it.
pub fn restored(programmed: &ProgrammedState) -> Unhealthy {
    let flagged =
        programmed.backends().records().values().filter(|record| record.flags & backend_flags::UNHEALTHY != 0);
    flagged
        .filter_map(|record| Some((programmed.services().get(record.service)?.key.clone(), record.address)))
        .collect()
}

/// What is in maintenance, and where it is written down.
#[derive(Debug)]
pub(super) struct Maintenance {
    file: PathBuf,
    targets: BTreeSet<Target>,
    /// Why the file cannot be read, or not all of it: `targets` may lack something.
    problem: Option<String>,
    obeyed: Vec<Obeyed>,
}

impl Maintenance {
    /// What was in maintenance when the last agent ended. Where the file cannot be read, what the tables keep in maintenance stays so.
    pub fn open(run_dir: &Path, programmed: &ProgrammedState) -> Self {
        let file = run_dir.join(FILE);
        let (mut targets, problem) = parse(&file);
        if problem.is_some() {
            let kept =
                programmed.backends().records().values().filter(|record| record.state == backend_state::MAINTENANCE);
            let unnamed =
                kept.map(|record| record.address).filter(|at| !targets.iter().any(|target| target.holds(*at)));
            let unnamed: Vec<Target> = unnamed.map(Target::Endpoint).collect();
            targets.extend(unnamed);
        }
        let maintenance = Self { file, targets, problem, obeyed: Vec::new() };
        if let Some(problem) = maintenance.problem() {
            tracing::warn!("{problem}");
        }
        maintenance
    }

    pub fn targets(&self) -> &BTreeSet<Target> {
        &self.targets
    }

    /// What is wrong with the file, and what holds meanwhile.
    pub fn problem(&self) -> Option<String> {
        let (file, count) = (self.file.display(), self.targets.len());
        let reason = self.problem.as_ref()?;
        Some(format!(
            "{file} cannot be read: {reason}; {count} targets stay in maintenance: those of the tables, and those that can be read; \
             correct the file or delete it"
        ))
    }

    /// Reads a file again that could not be read. Returns whether it can be now: then it counts, whatever was kept.
    pub fn read_again(&mut self) -> bool {
        if self.problem.is_none() {
            return false;
        }
        let (targets, problem) = parse(&self.file);
        self.problem = problem;
        if self.problem.is_none() {
            tracing::info!("{} can be read again", self.file.display());
            self.targets = targets;
        }
        self.problem.is_none()
    }

    /// Carries an order out. It is written down first: what was answered holds.
    pub fn obey(&mut self, order: Order) -> io::Result<bool> {
        let mut targets = self.targets.clone();
        let changed = match order {
            Order::List => false,
            Order::On(target) => targets.insert(target),
            Order::Off(target) => targets.remove(&target),
        };
        if changed {
            if self.problem.is_some() {
                // What cannot be read stays beside the new file, under the first name only.
                let _ = std::fs::hard_link(&self.file, self.file.with_extension(UNREAD));
            }
            write(&self.file, &targets)?;
            (self.targets, self.problem) = (targets, None);
        }
        Ok(changed)
    }

    /// [`Self::answer`] answers the order that was obeyed.
    pub fn answer_later(&mut self, Request { order, reply }: Request, changed: bool, now: Instant) {
        let (target, until) = match order {
            Order::List => (None, now),
            Order::On(target) | Order::Off(target) => (Some(target), now + PATIENCE),
        };
        self.obeyed.push(Obeyed { reply, target, changed, until });
    }

    /// Answers the orders that the tables hold, and those that have waited long enough.
    pub fn answer<S: Store>(&mut self, programmer: &Programmer<S>, now: Instant) {
        for obeyed in std::mem::take(&mut self.obeyed) {
            let unwritten = |target: &Target| {
                let reason = programmer.unwritten_at(*target, &self.targets)?;
                Some(format!("{target}: {reason}"))
            };
            let pending = match &obeyed.target {
                Some(target) => unwritten(target),
                None => self.targets.iter().find_map(unwritten),
            };
            if pending.is_some() && now < obeyed.until {
                self.obeyed.push(obeyed);
                continue;
            }
            let answer = answer(&self.targets, programmer.programmed(), obeyed.changed);
            // Who asked may have gone away.
            let _ = obeyed.reply.send(Answer { pending, ..answer });
        }
    }

    /// When an order has waited long enough.
    pub fn due(&self) -> Option<Instant> {
        self.obeyed.iter().map(|obeyed| obeyed.until).min()
    }
}

/// What the file in this run folder holds; nothing, if there is none.
pub fn read(run_dir: &Path) -> io::Result<BTreeSet<Target>> {
    match parse(&run_dir.join(FILE)) {
        (targets, None) => Ok(targets),
        (_, Some(problem)) => Err(io::Error::new(io::ErrorKind::InvalidData, problem)),
    }
}

/// What can be read of the file, and why the rest cannot be. No file is an empty one.
fn parse(file: &Path) -> (BTreeSet<Target>, Option<String>) {
    let text = match std::fs::read(file) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return (BTreeSet::new(), Some(error.to_string())),
    };
    let mut problem = None;
    let mut target = |line: &str| {
        let read = line.trim().parse().ok();
        if read.is_none() {
            problem.get_or_insert_with(|| {
                format!("{:?} is no address", line.chars().take(LINE_SHOWN).collect::<String>())
            });
        }
        read
    };
    let targets = text.lines().filter(|line| !line.trim().is_empty()).filter_map(&mut target).collect();
    (targets, problem)
}

/// In one step: a reader sees the old ones or the new ones.
fn write(file: &Path, targets: &BTreeSet<Target>) -> io::Result<()> {
    let new = file.with_extension("new");
    let lines = targets.iter().fold(String::new(), |lines, target| lines + &target.to_string() + "\n");
    std::fs::write(&new, lines)?;
    std::fs::rename(&new, file)
}

/// The state of what an order was about: all that is in maintenance, and how many endpoints each target holds now.
fn answer(targets: &BTreeSet<Target>, programmed: &ProgrammedState, changed: bool) -> Answer {
    let endpoints: BTreeSet<SocketAddr> =
        programmed.services().iter().flat_map(|(_, service)| service.current.keys().copied()).collect();
    let state = |target: &Target| State {
        target: target.to_string(),
        endpoints: endpoints.iter().filter(|endpoint| target.holds(**endpoint)).count() as u64,
    };
    Answer { changed, targets: targets.iter().map(state).collect(), ..Answer::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_model::{Family, Monotonic};
    use lb_plan::apply::MemoryStore;
    use lb_plan::plan::{BackendId, BackendRecord, Capacities, Loaded, PlanSettings, restore};

    fn target(text: &str) -> Target {
        text.parse().expect("an address")
    }

    /// A backend in maintenance.
    fn record(address: SocketAddr) -> BackendRecord {
        BackendRecord {
            address,
            state: backend_state::MAINTENANCE,
            flags: 0,
            generation: 1,
            service: 1,
            deadline_ds: 0,
            drain_ds: 0,
            uid_hash: 0,
            weight: 1,
        }
    }

    /// Tables with these backends in maintenance.
    fn programmed(maintained: &[&str]) -> ProgrammedState {
        let mut loaded = Loaded::default();
        for (id, address) in (1..).zip(maintained) {
            let record = record(address.parse().expect("an address"));
            loaded.backends.push((BackendId { family: Family::of(record.address.ip()), id }, record));
        }
        restore(Capacities::all(7), loaded)
    }

    #[test]
    fn what_was_ordered_holds_over_a_restart() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let tables = programmed(&["10.0.0.7:80"]);
        let mut first = Maintenance::open(dir.path(), &tables);
        assert!(first.targets().is_empty(), "the file counts, and none is an empty one");
        assert!(first.obey(Order::On(target("10.0.0.1"))).expect("written"));
        assert!(first.obey(Order::On(target("[2001:db8::1]:80"))).expect("written"));
        assert!(!first.obey(Order::On(target("10.0.0.1"))).expect("nothing to write"));
        let mut second = Maintenance::open(dir.path(), &tables);
        assert_eq!((second.targets(), second.problem()), (first.targets(), None));
        assert!(second.obey(Order::Off(target("10.0.0.1"))).expect("written"));
        assert!(!second.obey(Order::Off(target("10.0.0.1"))).expect("nothing to write"));
        assert_eq!(read(dir.path()).expect("readable"), [target("[2001:db8::1]:80")].into());
    }

    /// Without a snapshot nothing is written: what an agent before this one left serves on.
    #[tokio::test(start_paused = true)]
    async fn an_order_that_the_tables_do_not_hold_in_time_is_answered_as_pending() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut store = MemoryStore::roomy();
        let (one, two) = (target("10.0.0.1"), target("10.0.0.2"));
        for (id, state, flags) in
            [(1, backend_state::ACTIVE, backend_flags::IN_CLUSTER_SET), (2, backend_state::MAINTENANCE, 0)]
        {
            let address = SocketAddr::from(([10, 0, 0, u8::try_from(id).expect("small")], 80));
            let record = BackendRecord { state, flags, ..record(address) };
            store.backends.insert(BackendId { family: Family::V4, id }, record);
        }
        let programmer = Programmer::restore(store, PlanSettings::default(), Monotonic::default()).expect("tables");
        let mut maintenance = Maintenance::open(dir.path(), programmer.programmed());
        let mut order = |order, now| {
            let (reply, mut answer) = oneshot::channel();
            let changed = maintenance.obey(order).expect("writable");
            maintenance.answer_later(Request { order, reply }, changed, now);
            maintenance.answer(&programmer, now);
            let early = answer.try_recv().ok();
            maintenance.answer(&programmer, now + PATIENCE);
            early.map(|answer| (true, answer)).or_else(|| answer.try_recv().ok().map(|answer| (false, answer)))
        };
        let now = Instant::now();
        let (at_once, answer) = order(Order::On(two), now).expect("answered");
        assert!(at_once && answer.pending.is_none() && answer.changed, "the tables hold it: {answer:?}");
        let (at_once, answer) = order(Order::On(one), now).expect("answered");
        assert!(!at_once && answer.changed && answer.error.is_none(), "it is written down: {answer:?}");
        let pending = answer.pending.expect("the tables do not hold it");
        assert!(pending.starts_with("10.0.0.1: ") && pending.contains("ballast status"), "{pending}");
        let (at_once, listed) = order(Order::List, now).expect("answered");
        assert!(at_once && listed.targets.len() == 2 && listed.pending == Some(pending), "{listed:?}");
        let (at_once, answer) = order(Order::On(one), now).expect("answered");
        assert!(!at_once && !answer.changed && answer.pending.is_some(), "asking again makes it no truer");
    }

    #[test]
    fn a_file_that_cannot_be_read_ends_no_maintenance_until_it_can_be_or_an_order_replaces_it() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let file = dir.path().join(FILE);
        let tables = programmed(&["10.0.0.1:80", "10.0.0.2:80"]);
        // A folder cannot be read as a file, not even by root.
        std::fs::create_dir(&file).expect("writable");
        let mut held = Maintenance::open(dir.path(), &tables);
        assert_eq!(*held.targets(), [target("10.0.0.1:80"), target("10.0.0.2:80")].into());
        let problem = held.problem().expect("it is named");
        assert!(problem.contains(&file.display().to_string()) && problem.contains("2 targets stay"), "{problem}");
        assert!(!held.read_again() && held.targets().len() == 2);
        std::fs::remove_dir(&file).expect("writable");
        std::fs::write(&file, "10.0.0.9\n").expect("writable");
        assert!(held.read_again() && held.problem().is_none());
        assert_eq!(*held.targets(), [target("10.0.0.9")].into());
        assert!(!held.read_again(), "a file that was read is the agent's own");
        // Of a broken one the good lines count, too.
        std::fs::write(&file, "10.0.0.1\nweb\n").expect("writable");
        let error = read(dir.path()).expect_err("no address").to_string();
        assert!(error.contains("\"web\""), "{error}");
        let mut held = Maintenance::open(dir.path(), &tables);
        assert_eq!(*held.targets(), [target("10.0.0.1"), target("10.0.0.2:80")].into());
        assert!(held.obey(Order::Off(target("10.0.0.2:80"))).expect("written"));
        assert_eq!((held.problem(), read(dir.path()).expect("readable")), (None, [target("10.0.0.1")].into()));
        let kept = std::fs::read_to_string(dir.path().join("maintenance.unread")).expect("kept");
        assert_eq!(kept, "10.0.0.1\nweb\n");
    }
}
