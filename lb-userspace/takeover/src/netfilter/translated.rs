//! The connections that netfilter translates in this network namespace.

use crate::conntrack::{Conntrack, ConntrackError, Entry, Family, status};

/// Entries of connection tracking whose source or destination is translated. A kernel without connection tracking has none.
pub fn list() -> Result<Vec<Entry>, ConntrackError> {
    let listed = Conntrack::open().and_then(|mut conntrack| {
        let mut entries = Vec::new();
        for family in Family::ALL {
            entries.extend(conntrack.list(family, 0)?);
        }
        entries.retain(|entry| entry.status & (status::SRC_NAT | status::DST_NAT) != 0);
        Ok(entries)
    });
    match listed {
        Err(ConntrackError::Missing) => Ok(Vec::new()),
        listed => listed,
    }
}
