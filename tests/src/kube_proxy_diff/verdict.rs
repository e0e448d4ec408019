//! The answer to a probe: which endpoints may get the packet, or why none does.

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
    /// It gets no answer.
    Dropped,
}

/// The whole answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub fate: Fate,
    /// Later flows of the client go to the same endpoint for so many seconds.
    pub affinity_s: Option<u32>,
    /// Those of the endpoints that see an address of this node in the place of an external client. Of other clients nothing is said.
    pub masqueraded: BTreeSet<SocketAddr>,
}

impl Answer {
    /// An answer without affinity.
    pub fn plain(fate: Fate) -> Self {
        Self { fate, affinity_s: None, masqueraded: BTreeSet::new() }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.fate {
            Fate::Passed => f.write_str("no service"),
            Fate::Rejected => f.write_str("rejected"),
            Fate::Dropped => f.write_str("dropped"),
            Fate::Served(endpoints) => {
                let texts = endpoints.iter().map(|endpoint| {
                    let masqueraded = if self.masqueraded.contains(endpoint) { " (masqueraded)" } else { "" };
                    format!("{endpoint}{masqueraded}")
                });
                write!(f, "served by {}", texts.collect::<Vec<_>>().join(", "))?;
                self.affinity_s.map_or(Ok(()), |seconds| write!(f, " (affinity {seconds} s)"))
            }
        }
    }
}
