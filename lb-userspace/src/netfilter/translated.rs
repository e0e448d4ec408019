//! How many connections netfilter translates in this network namespace.

use super::nf_tables::Family;
use crate::conntrack::{self, Conntrack, ConntrackError, status};

/// Entries of connection tracking whose source or destination is translated. A kernel without connection tracking has none.
pub fn count(family: Family) -> Result<usize, ConntrackError> {
    let family = match family {
        Family::Ip => conntrack::Family::V4,
        Family::Ip6 => conntrack::Family::V6,
    };
    let counted = Conntrack::open().and_then(|mut conntrack| {
        let entries = conntrack.list(family, 0)?;
        Ok(entries.iter().filter(|entry| entry.status & (status::SRC_NAT | status::DST_NAT) != 0).count())
    });
    match counted {
        Err(ConntrackError::Missing) => Ok(0),
        counted => counted,
    }
}
