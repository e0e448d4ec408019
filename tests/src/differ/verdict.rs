//! An answer to a question: what becomes of the packet.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;

/// What becomes of a first packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// It is of no service: it goes where it was sent.
    Passed,
    /// It goes to one of these, each as likely.
    Served(BTreeSet<SocketAddr>),
    /// It is answered with an error.
    Rejected,
    /// Nobody hears of it again.
    Dropped,
}

/// The whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub fate: Fate,
    /// Later flows of the client go to the same endpoint for so many seconds.
    pub affinity_s: Option<u32>,
}

impl Answer {
    /// An answer without affinity.
    pub fn plain(fate: Fate) -> Self {
        Self { fate, affinity_s: None }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.fate {
            Fate::Passed => f.write_str("no service"),
            Fate::Rejected => f.write_str("rejected"),
            Fate::Dropped => f.write_str("dropped"),
            Fate::Served(endpoints) => {
                let texts: Vec<String> = endpoints.iter().map(SocketAddr::to_string).collect();
                write!(f, "served by {}", texts.join(", "))?;
                self.affinity_s.map_or(Ok(()), |seconds| write!(f, " (affinity {seconds} s)"))
            }
        }
    }
}
