//! Finds sockets in the kernel's list by cookie and peer, and destroys them.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use super::diag::{self, Connection, DiagError, Listed, SocketFamily};
use super::entries::Stale;

/// What was done in one network namespace.
#[derive(Debug, Default)]
pub struct Ended<'a> {
    pub destroyed: Vec<&'a Stale>,
    pub failures: Vec<DiagError>,
}

/// Destroys those of these sockets that are connected in the thread's network namespace, and due: each comes with the time for which its
/// peer has left it unanswered.
pub fn destroy<'a>(stale: &[&'a Stale], is_due: &mut dyn FnMut(&Stale, Option<Duration>) -> bool) -> Ended<'a> {
    let mut ended = Ended::default();
    // An address alone, or a cookie alone, is not enough: the process may talk to somebody else by now.
    let wanted: HashMap<(u64, u8, SocketAddr), &'a Stale> =
        stale.iter().filter_map(|stale| Some(((stale.cookie, stale.protocol, stale.peer?), *stale))).collect();
    if wanted.is_empty() {
        return ended;
    }
    let mut connection = match Connection::open() {
        Ok(connection) => connection,
        Err(error) => {
            ended.failures.push(error);
            return ended;
        }
    };
    let kinds: BTreeSet<SocketFamily> =
        wanted.keys().flat_map(|(_, protocol, peer)| diag::kinds(*protocol, peer.is_ipv4())).collect();
    for kind in kinds {
        let mut found: Vec<(Listed, &'a Stale)> = Vec::new();
        let listed = connection.list(kind, |socket| {
            if let Some(stale) = wanted.get(&(socket.cookie, socket.kind.protocol, socket.peer))
                && is_due(stale, socket.unanswered)
            {
                found.push((socket, stale));
            }
        });
        if let Err(error) = listed {
            ended.failures.push(error);
        }
        for (socket, stale) in found {
            match connection.destroy(&socket) {
                Ok(true) => ended.destroyed.push(stale),
                Ok(false) => {}
                Err(error) => ended.failures.push(error),
            }
        }
    }
    ended
}
