//! An attachment or an entry that somebody else took away or changed, and how the running data path is asked for these.

use tokio::sync::{mpsc, oneshot};

/// A program that is not where it was attached, or an entry that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// A map, or [`Fault::ATTACHMENTS`].
    pub table: &'static str,
    /// `node_in on eth0 (in, tcx)`, a socket program on the cgroup, or an entry's key.
    pub entry: String,
    /// Something else is there; otherwise nothing is.
    pub is_replaced: bool,
    /// It is attached again.
    pub is_repaired: bool,
}

impl Fault {
    pub const ATTACHMENTS: &'static str = "attachments";

    /// A program that does not hang where it should.
    pub(super) fn of_program(program: &str, place: &str, is_replaced: bool) -> Self {
        let entry = format!("{program} on {place}");
        Self { table: Self::ATTACHMENTS, entry, is_replaced, is_repaired: false }
    }
}

/// Asks a running data path for its faults.
#[derive(Clone, Debug)]
pub struct Auditor(pub(super) mpsc::Sender<Request>);

/// A question for faults.
#[derive(Debug)]
pub(super) struct Request {
    pub dry_run: bool,
    pub reply: oneshot::Sender<Vec<Fault>>,
}

impl Auditor {
    /// Has every attachment looked at now; the answer comes when that is done. Unless `dry_run`, what is missing is attached
    /// again, and faults that rounds have put right since the last question are reported, too. No answer: the data path is not
    /// followed any more, or busy with other questions.
    pub fn ask(&self, dry_run: bool) -> oneshot::Receiver<Vec<Fault>> {
        let (reply, answer) = oneshot::channel();
        // What cannot be asked has no answer: the receiver sees its end.
        let _ = self.0.try_send(Request { dry_run, reply });
        answer
    }
}
