//! The flow entries that the host's NAT takes over, and the conntrack entry of each: pure functions.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use lb_common::{
    abi::{Flow, FlowKey, flow_flags, flow_state, tag},
    decide::{Now, pair_key},
    state::{Timeouts, expired},
};

use crate::conntrack::{NewEntry, Tuple};

/// The least that conntrack keeps a connection without a packet.
const LEAST_TIMEOUT: Duration = Duration::from_secs(30);

/// Whether this is the original entry of a connection that is given away. `FlowKey::src` of one with direct server return leads to another
/// node, which answers by itself: the host's NAT has no such connections.
pub fn is_given<const N: usize>(key: &FlowKey<N>, flow: &Flow<N>, timeouts: &Timeouts, now: Now) -> bool {
    // One that is held was left behind by an earlier run.
    let is_live = matches!(flow.state, flow_state::OPEN | flow_state::STREAM | flow_state::HELD);
    let is_whole = flow.tag == tag(key) && flow.flags & flow_flags::REPLY == 0 && flow.port != 0;
    is_live && is_whole && !expired(flow, timeouts.of_flow(key.protocol, flow), now.s)
}

/// The connection as conntrack is to know it.
pub fn translated<const N: usize>(key: &FlowKey<N>, flow: &Flow<N>, timeouts: &Timeouts, now: Now) -> NewEntry {
    let source = SocketAddr::new(address(&flow.client), flow.client_port);
    let original = original(key);
    NewEntry {
        original,
        backend: SocketAddr::new(address(&flow.address), flow.port),
        source: (source != original.src).then_some(source),
        is_answered: true,
        timeout: timeout(key, flow, timeouts, now),
    }
}

/// The connection as netfilter sees it while the programs translate its packets before and behind it. `None`: it does not take the fast path, or no
/// more, or netfilter has seen all of its packets.
pub fn of_fast_path<const N: usize>(
    key: &FlowKey<N>,
    flow: &Flow<N>,
    timeouts: &Timeouts,
    now: Now,
) -> Option<NewEntry> {
    // A claim and a second handshake have keys of their own.
    let is_clients = flow.tag == tag(key) && key.pad == [0; 3] && flow.flags & flow_flags::REPLY == 0;
    let is_live = matches!(flow.state, flow_state::HALF_OPEN | flow_state::OPEN | flow_state::STREAM);
    if flow.link == 0 || !is_clients || !is_live || expired(flow, timeouts.of_flow(key.protocol, flow), now.s) {
        return None;
    }
    let [_, original] = untranslated(key, flow);
    let is_answered = flow.state != flow_state::HALF_OPEN;
    let timeout = timeout(key, flow, timeouts, now);
    Some(NewEntry { original, backend: original.dst, source: None, is_answered, timeout })
}

/// How long the connection lasts without another packet.
fn timeout<const N: usize>(key: &FlowKey<N>, flow: &Flow<N>, timeouts: &Timeouts, now: Now) -> Duration {
    let silent_s = now.s.saturating_sub(flow.seen_s);
    let left_s = timeouts.of_flow(key.protocol, flow).saturating_sub(silent_s);
    Duration::from_secs(left_s.into()).max(LEAST_TIMEOUT)
}

/// Tuples under which conntrack may know the connection, but untranslated: before the programs translated its packets, and after.
pub fn untranslated<const N: usize>(key: &FlowKey<N>, flow: &Flow<N>) -> [Tuple; 2] {
    [original(key), original(&pair_key(key, flow)).reversed()]
}

fn original<const N: usize>(key: &FlowKey<N>) -> Tuple {
    Tuple {
        src: SocketAddr::new(address(&key.src), key.src_port),
        dst: SocketAddr::new(address(&key.dst), key.dst_port),
        protocol: key.protocol,
    }
}

fn address<const N: usize>(bytes: &[u8; N]) -> IpAddr {
    match <[u8; 4]>::try_from(bytes.as_slice()) {
        Ok(v4) => Ipv4Addr::from(v4).into(),
        Err(_) => Ipv6Addr::from(<[u8; 16]>::try_from(bytes.as_slice()).unwrap_or_default()).into(),
    }
}

#[cfg(test)]
mod tests {
    use lb_common::abi::TCP;

    use super::*;

    fn connection() -> (FlowKey<4>, Flow<4>) {
        let key = FlowKey {
            src: [10, 1, 0, 2],
            dst: [10, 96, 0, 1],
            src_port: 40_000,
            dst_port: 80,
            protocol: TCP,
            pad: [0; 3],
        };
        let flow = Flow {
            tag: tag(&key),
            backend: 1,
            seen_s: 100,
            state: flow_state::OPEN,
            address: [10, 1, 0, 3],
            port: 8080,
            client: key.src,
            client_port: key.src_port,
            ..Flow::ZERO
        };
        (key, flow)
    }

    fn now(s: u32) -> Now {
        Now::from_ns(u64::from(s) * 1_000_000_000)
    }

    fn socket(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn open_connections_of_clients_are_given() {
        let (key, flow) = connection();
        let is_given = |flow: Flow<4>, s| is_given(&key, &flow, &Timeouts::DEFAULT, now(s));
        assert!(is_given(flow, 110) && is_given(Flow { state: flow_state::HELD, ..flow }, 110));
        for state in [flow_state::HALF_OPEN, flow_state::CLOSING, flow_state::EVICTED, flow_state::ADOPTED] {
            assert!(!is_given(Flow { state, ..flow }, 110), "{state}");
        }
        assert!(!is_given(Flow { flags: flow_flags::REPLY, ..flow }, 110));
        assert!(!is_given(Flow { port: 0, ..flow }, 110), "direct server return");
        assert!(!is_given(flow, 100 + Timeouts::DEFAULT.open_s + 1), "it is over");
    }

    #[test]
    fn conntrack_is_told_of_both_translations() {
        let (key, flow) = connection();
        let entry = translated(&key, &flow, &Timeouts::DEFAULT, now(160));
        assert_eq!((entry.original.src, entry.original.dst), (socket("10.1.0.2:40000"), socket("10.96.0.1:80")));
        assert_eq!((entry.backend, entry.source), (socket("10.1.0.3:8080"), None));
        assert_eq!(entry.timeout, Duration::from_secs(u64::from(Timeouts::DEFAULT.open_s) - 60));
        let masqueraded = Flow { client: [192, 0, 2, 1], client_port: 61_000, ..flow };
        let entry = translated(&key, &masqueraded, &Timeouts::DEFAULT, now(160));
        assert_eq!(entry.source, Some(socket("192.0.2.1:61000")));
    }

    #[test]
    fn of_the_fast_path_conntrack_is_told_what_netfilter_sees() {
        let (key, flow) = connection();
        let of = |flow: Flow<4>| of_fast_path(&key, &flow, &Timeouts::DEFAULT, now(160));
        let fast = Flow { link: 7, client_port: 61_000, ..flow };
        let entry = of(fast).expect("on the fast path");
        assert_eq!((entry.original.src, entry.original.dst), (socket("10.1.0.2:61000"), socket("10.1.0.3:8080")));
        assert_eq!((entry.backend, entry.source, entry.is_answered), (entry.original.dst, None, true));
        let asked = of(Flow { state: flow_state::HALF_OPEN, seen_s: 159, ..fast }).expect("it may be answered");
        assert!(!asked.is_answered);
        assert_eq!(of(flow), None, "by the stack");
        for state in [flow_state::CLOSING, flow_state::EVICTED, flow_state::ADOPTED, flow_state::HELD] {
            assert_eq!(of(Flow { state, ..fast }), None, "{state}");
        }
        assert_eq!(of(Flow { flags: flow_flags::REPLY, ..fast }), None);
        let claim = FlowKey { pad: [1, 0, 0], ..key };
        assert_eq!(of_fast_path(&claim, &fast, &Timeouts::DEFAULT, now(160)), None);
    }

    #[test]
    fn both_untranslated_tuples_are_those_of_the_clients_packets() {
        let (key, flow) = connection();
        let masqueraded = Flow { client: [192, 0, 2, 1], client_port: 61_000, ..flow };
        let [before, after] = untranslated(&key, &masqueraded);
        assert_eq!((before.src, before.dst), (socket("10.1.0.2:40000"), socket("10.96.0.1:80")));
        assert_eq!((after.src, after.dst), (socket("192.0.2.1:61000"), socket("10.1.0.3:8080")));
    }
}
