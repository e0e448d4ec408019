//! Marks over what the API says, as the running agent takes them in: unhealthy endpoints from the active checks, maintenance from a hand.
//!
//! The targets in maintenance are in a file of the run folder, one a line. Maintenance holds over restarts of the agent, and for addresses that are
//! not there at the moment.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use lb_common::abi::{backend_flags, backend_state};
use tokio::sync::{mpsc, oneshot, watch};

use crate::observe::maintenance::{Answer, Order, State};
use crate::plan::{PortKey, ProgrammedState, Target};

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

/// Somebody whose order is obeyed, and who is to be answered once the tables hold it.
#[derive(Debug)]
struct Obeyed {
    reply: oneshot::Sender<Answer>,
    changed: bool,
    error: Option<String>,
}

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

    /// The next [`Self::answer`] answers the order. `error`: why it was not obeyed.
    pub fn answer_later(&mut self, reply: oneshot::Sender<Answer>, changed: bool, error: Option<String>) {
        self.obeyed.push(Obeyed { reply, changed, error });
    }

    /// The tables hold what was ordered so far.
    pub fn answer(&mut self, programmed: &ProgrammedState) {
        for Obeyed { reply, changed, error } in std::mem::take(&mut self.obeyed) {
            // Who asked may have gone away.
            let _ = reply.send(Answer { error, ..answer(&self.targets, programmed, changed) });
        }
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
    Answer { changed, targets: targets.iter().map(state).collect(), error: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Family;
    use crate::plan::{BackendId, BackendRecord, Capacities, Loaded, restore};

    fn target(text: &str) -> Target {
        text.parse().expect("an address")
    }

    /// Tables with these backends in maintenance.
    fn programmed(maintained: &[&str]) -> ProgrammedState {
        let mut loaded = Loaded::default();
        for (id, address) in (1..).zip(maintained) {
            let record = BackendRecord {
                address: address.parse().expect("an address"),
                state: backend_state::MAINTENANCE,
                flags: 0,
                generation: 1,
                service: 1,
                deadline_ds: 0,
                drain_ds: 0,
                uid_hash: 0,
                weight: 1,
            };
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
