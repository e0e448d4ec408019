//! Marks over what the API says, as the running agent takes them in: quarantine from the active checks, maintenance from a hand.
//!
//! What is in maintenance stands in a file of the run folder, one target a line: it holds over restarts of the agent, and for
//! addresses that are not there at the moment.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use lb_common::abi::backend_flags;
use tokio::sync::{mpsc, oneshot, watch};

use crate::observe::maintenance::{Answer, Order, State};
use crate::plan::{Book, PortKey, Target};

/// Endpoints whose active checks fail, each of one service port.
pub type Quarantined = BTreeSet<(PortKey, SocketAddr)>;

/// Who makes the checks says here which endpoints fail: always all of them. The loop plans what differs.
pub type Quarantine = watch::Sender<Quarantined>;

/// How many orders may wait.
pub const ORDERS: usize = 4;

/// Somebody wants to know, or to change, what is in maintenance.
#[derive(Debug)]
pub struct Request {
    pub order: Order,
    pub reply: oneshot::Sender<Answer>,
}

/// A way to give orders.
pub type Requests = mpsc::Sender<Request>;

/// Name of the file in the run folder.
const FILE: &str = "maintenance";

/// What an agent before this one kept from new flows because of its checks: who makes the checks begins with it.
pub fn restored(book: &Book) -> Quarantined {
    let flagged = book.backends.values().filter(|record| record.flags & backend_flags::QUARANTINED != 0);
    flagged.filter_map(|record| Some((book.services.get(&record.service)?.key.clone(), record.address))).collect()
}

/// What is in maintenance, and where it is written down.
#[derive(Debug)]
pub(super) struct Maintenance {
    file: PathBuf,
    targets: BTreeSet<Target>,
}

impl Maintenance {
    /// What was in maintenance when the last agent ended; nothing, where that cannot be read.
    pub fn open(run_dir: &Path) -> Self {
        let targets = read(run_dir).unwrap_or_else(|error| {
            tracing::warn!("what is in maintenance cannot be read in {}, so nothing is: {error}", run_dir.display());
            BTreeSet::new()
        });
        Self { file: run_dir.join(FILE), targets }
    }

    pub fn targets(&self) -> &BTreeSet<Target> {
        &self.targets
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
            write(&self.file, &targets)?;
            self.targets = targets;
        }
        Ok(changed)
    }
}

/// What the file in this run folder holds; nothing, if there is none.
pub fn read(run_dir: &Path) -> io::Result<BTreeSet<Target>> {
    let text = match std::fs::read_to_string(run_dir.join(FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        read => read?,
    };
    let target = |line: &str| {
        line.parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("{line:?} is no address")))
    };
    text.lines().filter(|line| !line.is_empty()).map(target).collect()
}

/// In one step: whoever reads sees the old ones or the new ones.
fn write(file: &Path, targets: &BTreeSet<Target>) -> io::Result<()> {
    let new = file.with_extension("new");
    let lines = targets.iter().fold(String::new(), |lines, target| lines + &target.to_string() + "\n");
    std::fs::write(&new, lines)?;
    std::fs::rename(&new, file)
}

/// The state of what an order was about: all that is in maintenance, and how many endpoints each target holds now.
pub(super) fn answer(targets: &BTreeSet<Target>, book: &Book, changed: bool) -> Answer {
    let endpoints: BTreeSet<SocketAddr> =
        book.services.values().flat_map(|service| service.current.keys().copied()).collect();
    let state = |target: &Target| State {
        target: target.to_string(),
        endpoints: endpoints.iter().filter(|endpoint| target.holds(**endpoint)).count() as u64,
    };
    Answer { changed, targets: targets.iter().map(state).collect(), error: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_ordered_holds_over_a_restart() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let target = |text: &str| text.parse::<Target>().expect("an address");
        let mut first = Maintenance::open(dir.path());
        assert!(first.obey(Order::On(target("10.0.0.1"))).expect("written"));
        assert!(first.obey(Order::On(target("[2001:db8::1]:80"))).expect("written"));
        assert!(!first.obey(Order::On(target("10.0.0.1"))).expect("nothing to write"));
        let mut second = Maintenance::open(dir.path());
        assert_eq!(second.targets(), first.targets());
        assert!(second.obey(Order::Off(target("10.0.0.1"))).expect("written"));
        assert!(!second.obey(Order::Off(target("10.0.0.1"))).expect("nothing to write"));
        assert_eq!(read(dir.path()).expect("readable"), [target("[2001:db8::1]:80")].into());
    }

    #[test]
    fn a_broken_file_is_told_and_not_taken_for_an_empty_one() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(dir.path().join(FILE), "10.0.0.1\nweb\n").expect("writable");
        assert!(read(dir.path()).expect_err("no address").to_string().contains("web"));
        assert!(Maintenance::open(dir.path()).targets().is_empty(), "a folder that cannot be read stops no start");
    }
}
