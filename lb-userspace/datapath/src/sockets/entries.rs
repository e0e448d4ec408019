//! Which entries of the tables belong to a backend that may no longer have their sockets.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};

use lb_common::abi::{Backend, SocketKey, SocketPeer, UDP, V4, V6, socket_direction};
use lb_common::map;
use lb_common::state;

use lb_tables::{Pinned, Table};

/// An entry whose backend is no longer the socket's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    pub cookie: u64,
    pub protocol: u8,
    /// Whom the socket talks to if it is connected; `None`: only what an unconnected one sends is kept in this entry.
    pub peer: Option<SocketAddr>,
    pub fate: Fate,
    pub entry: Entry,
}

/// The entry as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    V4(SocketKey<V4>, SocketPeer<V4>),
    V6(SocketKey<V6>, SocketPeer<V6>),
}

/// What becomes of a socket with this backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    Stays,
    /// TCP: the backend drains, and its period is not over.
    Drains,
    /// TCP: the drain period is over. The connection stays as long as the backend answers.
    Answered,
    /// UDP: it should leave the backend, which still answers others.
    Moves,
    Evicted,
}

/// The rule of the packet path (`state::lasts`, `state::keeps_flows`, `state::udp_moves`), for sockets.
fn fate<const N: usize>(protocol: u8, peer: &SocketPeer<N>, backend: Option<&Backend<N>>, now_ds: u32) -> Fate {
    let Some(backend) = backend.filter(|backend| backend.generation == peer.backend_generation) else {
        return Fate::Evicted;
    };
    let (keeps, lasts) = (state::keeps_flows(backend, now_ds), state::lasts(backend, now_ds));
    match protocol == UDP {
        true if keeps && state::udp_moves(backend) => Fate::Moves,
        false if keeps && backend.drain_ds != 0 => Fate::Drains,
        _ if keeps => Fate::Stays,
        false if lasts => Fate::Answered,
        _ => Fate::Evicted,
    }
}

/// What a look at the tables came to.
#[derive(Debug, Default)]
pub struct Found {
    pub stale: Vec<Stale>,
    /// Connections have a backend that drains: time alone may change their fate.
    pub drains: bool,
}

/// All stale entries of both families.
pub fn stale(maps: &Pinned, now_ds: u32) -> io::Result<Found> {
    let mut found = Found::default();
    of_family(&maps.of::<map::Sockets<4>>(), &maps.of::<map::Backends<4>>(), now_ds, Entry::V4, &mut found)?;
    of_family(&maps.of::<map::Sockets<16>>(), &maps.of::<map::Backends<16>>(), now_ds, Entry::V6, &mut found)?;
    Ok(found)
}

fn of_family<const N: usize>(
    sockets: &Table<SocketKey<N>, SocketPeer<N>>,
    backends: &Table<u32, Backend<N>>,
    now_ds: u32,
    entry: fn(SocketKey<N>, SocketPeer<N>) -> Entry,
    found: &mut Found,
) -> io::Result<()>
where
    IpAddr: From<[u8; N]>,
{
    let mut entries = Vec::new();
    // Half of a table will do: what is missed now is found by the next look.
    let _ = sockets.each(|key, peer| entries.push((*key, *peer)))?;
    let mut known: HashMap<u32, Option<Backend<N>>> = HashMap::new();
    for (key, peer) in entries {
        let backend = match known.get(&peer.backend) {
            Some(backend) => *backend,
            None => *known.entry(peer.backend).or_insert(backends.get(&peer.backend)?),
        };
        let fate = fate(key.protocol, &peer, backend.as_ref(), now_ds);
        let is_reply = key.direction == socket_direction::REPLY;
        found.drains |= matches!(fate, Fate::Drains | Fate::Answered);
        // A datagram that goes elsewhere next time needs no help, until the backend's id is to be used again.
        if fate == Fate::Evicted || matches!(fate, Fate::Moves | Fate::Answered) && is_reply {
            found.stale.push(Stale {
                cookie: u64::from(key.cookie_low) | u64::from(key.cookie_high) << 32,
                protocol: key.protocol,
                peer: is_reply.then(|| SocketAddr::new(key.address.into(), key.port)),
                fate,
                entry: entry(key, peer),
            });
        }
    }
    Ok(())
}

/// Removes the entry, and the one of the other direction if it leads to the same backend.
pub fn remove(maps: &Pinned, entry: &Entry) -> io::Result<()> {
    match entry {
        Entry::V4(key, peer) => remove_from(&maps.of::<map::Sockets<4>>(), key, peer),
        Entry::V6(key, peer) => remove_from(&maps.of::<map::Sockets<16>>(), key, peer),
    }
}

fn remove_from<const N: usize>(
    sockets: &Table<SocketKey<N>, SocketPeer<N>>,
    key: &SocketKey<N>,
    peer: &SocketPeer<N>,
) -> io::Result<()> {
    let same =
        |found: &SocketPeer<N>| (found.backend, found.backend_generation) == (peer.backend, peer.backend_generation);
    let direction = match key.direction {
        socket_direction::REPLY => socket_direction::FORWARD,
        _ => socket_direction::REPLY,
    };
    let other = SocketKey { address: peer.address, port: peer.port, direction, ..*key };
    for key in [key, &other] {
        // The process may have asked anew meanwhile.
        if sockets.get(key)?.as_ref().is_some_and(same) {
            sockets.remove(key)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use lb_common::abi::{TCP, backend_flags, backend_state};

    use super::*;

    fn backend(state: u8, flags: u8, deadline_ds: u32) -> Backend<4> {
        Backend {
            address: [10, 0, 0, 1],
            port: 80,
            state,
            flags,
            generation: 7,
            service: 1,
            deadline_ds,
            drain_ds: 0,
            uid_hash: 0,
            weight: 1,
            pad: 0,
        }
    }

    const PEER: SocketPeer<4> =
        SocketPeer { address: [10, 96, 0, 1], port: 80, pad: 0, backend: 3, backend_generation: 7, service: 1 };

    #[test]
    fn sockets_share_the_fate_of_flows() {
        use backend_state::{ACTIVE, DRAINING, GONE, MAINTENANCE, TERMINATING, UNREADY};
        let serving = backend_flags::SERVING;
        let cases = [
            (backend(ACTIVE, serving, 0), Fate::Stays, Fate::Stays),
            (backend(MAINTENANCE, serving, 0), Fate::Stays, Fate::Stays),
            (backend(UNREADY, serving, 0), Fate::Stays, Fate::Stays),
            (backend(UNREADY, 0, 0), Fate::Stays, Fate::Moves),
            (backend(TERMINATING, serving, 900), Fate::Stays, Fate::Stays),
            (backend(TERMINATING, 0, 900), Fate::Stays, Fate::Moves),
            (backend(DRAINING, serving, 101), Fate::Stays, Fate::Moves),
            (backend(DRAINING, serving, 100), Fate::Evicted, Fate::Evicted),
            (backend(GONE, 0, 0), Fate::Evicted, Fate::Evicted),
            (Backend { drain_ds: 101, ..backend(DRAINING, serving, 200) }, Fate::Drains, Fate::Moves),
            (Backend { drain_ds: 100, ..backend(DRAINING, serving, 200) }, Fate::Answered, Fate::Evicted),
            (Backend { drain_ds: 90, ..backend(DRAINING, serving, 100) }, Fate::Evicted, Fate::Evicted),
            (Backend { generation: 8, ..backend(ACTIVE, serving, 0) }, Fate::Evicted, Fate::Evicted),
        ];
        for (backend, tcp, udp) in cases {
            assert_eq!(fate(TCP, &PEER, Some(&backend), 100), tcp, "TCP: {backend:?}");
            assert_eq!(fate(UDP, &PEER, Some(&backend), 100), udp, "UDP: {backend:?}");
        }
        assert_eq!(fate(TCP, &PEER, None, 100), Fate::Evicted);
    }
}
