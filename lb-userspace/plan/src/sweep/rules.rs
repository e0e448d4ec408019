//! When an entry is over: pure functions of the entry, of related entries, and of the time.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lb_common::{
    abi::{
        Affinity, Flow, FlowKey, HalfOpen, affinity_tag, flow_flags, flow_state, half_open_flags, service_flags, tag,
    },
    decide::Now,
    state::{Timeouts, expired},
};

use crate::plan::Frontend;
use lb_model::Protocol;

/// A note of an unanswered segment outlasts any pause between two segments of a client: TCP sends again within 120 s (`TCP_RTO_MAX`), and probes
/// every 75 s (`net.ipv4.tcp_keepalive_intvl`).
const NOTE_TIMEOUT_S: u32 = 300;

/// Whether a flow's entry was silent for its timeout. One whose tag is another key's is being written at this moment.
pub fn is_silent<const N: usize>(key: &FlowKey<N>, flow: &Flow<N>, timeouts: &Timeouts, now: Now) -> bool {
    flow.tag == tag(key) && expired(flow, timeouts.of_flow(key.protocol, flow), now.s)
}

/// Whether a half-open entry was silent for its timeout.
pub fn is_half_open_silent<const N: usize>(
    key: &FlowKey<N>,
    entry: &HalfOpen<N>,
    timeouts: &Timeouts,
    now: Now,
) -> bool {
    let limit = if is_note(entry) { NOTE_TIMEOUT_S } else { timeouts.of(key.protocol, entry.flow.state) };
    entry.flow.tag == tag(key) && expired(&entry.flow, limit, now.s)
}

/// Whether the entry, under the tuple of an established connection, notes what its backend leaves unanswered.
pub fn is_note<const N: usize>(entry: &HalfOpen<N>) -> bool {
    entry.flags & half_open_flags::SECOND != 0
}

/// Whether a half-open entry stands for itself, with no other direction that could keep it alive.
pub fn is_alone<const N: usize>(entry: &HalfOpen<N>) -> bool {
    entry.flags & (half_open_flags::LOST | half_open_flags::SECOND) != 0
}

/// Whether a flow may still carry something: it is what a drain waits for.
pub fn is_alive<const N: usize>(flow: &Flow<N>) -> bool {
    flow.backend != 0 && !matches!(flow.state, flow_state::EVICTED | flow_state::CLOSING)
}

/// Whether a flow counts as a connection of its backend: once, by the client's direction.
pub fn is_connection<const N: usize>(flow: &Flow<N>) -> bool {
    is_alive(flow) && flow.flags & flow_flags::COUNTED != 0 && flow.flags & flow_flags::REPLY == 0
}

/// Whether a flow holds a source port of this node: by the client's direction, and but for hairpins, which bear the service's address.
pub fn is_masqueraded<const N: usize>(key: &FlowKey<N>, flow: &Flow<N>) -> bool {
    flow.flags & (flow_flags::MASQUERADED | flow_flags::REPLY) == flow_flags::MASQUERADED && flow.client != key.dst
}

/// The frontend that a flow came by, if it is a client's direction that leads to a backend and goes on.
pub fn frontend<const N: usize>(key: &FlowKey<N>, flow: &Flow<N>) -> Option<Frontend>
where
    IpAddr: From<[u8; N]>,
{
    if !is_alive(flow) || flow.flags & (flow_flags::REPLY | flow_flags::DIRECT) != 0 {
        return None;
    }
    Some(Frontend { address: key.dst.into(), port: key.dst_port, protocol: Protocol::from_number(key.protocol)? })
}

/// Whether a frontend is there still: by itself, or as a node port of another node's, which sends its clients here whole (direct server
/// return). `flags`: those of a frontend that is there.
pub fn is_served(frontend: Frontend, flags: impl Fn(&Frontend) -> Option<u8>) -> bool {
    let anywhere = match frontend.address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    flags(&frontend).is_some()
        || flags(&Frontend { address: anywhere, ..frontend }).is_some_and(|flags| flags & service_flags::DSR != 0)
}

/// The entry of a flow that is cut off: programs send each side a RST, as if its backend were gone. They keep everything else of it.
pub fn cut<const N: usize>(flow: &Flow<N>) -> Flow<N> {
    // No generation that its backend will have soon.
    Flow { state: flow_state::EVICTED, generation: flow.generation ^ (1 << 15), ..*flow }
}

/// Whether an affinity is over. `timeout_s` is its service's; 0: that has none any more. `generation` is that of the backend's
/// record: with another one the entry is about a backend that is gone.
pub fn is_affinity_over<const N: usize>(
    key: &lb_common::abi::AffinityKey<N>,
    affinity: &Affinity,
    timeout_s: u32,
    generation: Option<u32>,
    now: Now,
) -> bool {
    if affinity.tag != affinity_tag(key) {
        return false;
    }
    let age_ds = now.ds.saturating_sub(affinity.seen_ds);
    timeout_s == 0 || generation != Some(affinity.generation) || age_ds > timeout_s.saturating_mul(10)
}

#[cfg(test)]
mod tests {
    use lb_common::abi::{AffinityKey, TCP, UDP, fin};
    use lb_common::decide::{is_pair, pair_key};
    use lb_common::limits::ADOPTED_TIMEOUT_S;

    use super::*;

    const TIMEOUTS: Timeouts = Timeouts::DEFAULT;

    fn now(seconds: u32) -> Now {
        Now { s: seconds, ds: seconds * 10 }
    }

    fn key(protocol: u8) -> FlowKey<4> {
        let (src, dst) = ([10, 0, 0, 9], [10, 96, 0, 1]);
        FlowKey { src, dst, src_port: 4000, dst_port: 80, protocol, pad: [0; 3] }
    }

    /// Both directions of a flow to 10.0.0.1:8080.
    fn flow(protocol: u8, state: u8, seen_s: u32) -> ((FlowKey<4>, Flow<4>), (FlowKey<4>, Flow<4>)) {
        let key = key(protocol);
        let forward = Flow {
            tag: tag(&key),
            backend: 7,
            seen_s,
            since_s: 1,
            address: [10, 0, 0, 1],
            client: [10, 0, 0, 9],
            port: 8080,
            client_port: 4000,
            generation: 1,
            state,
            flags: flow_flags::COUNTED,
            ..Flow::ZERO
        };
        let other = pair_key(&key, &forward);
        let (address, port, flags) = (key.dst, key.dst_port, forward.flags | flow_flags::REPLY);
        ((key, forward), (other, Flow { tag: tag(&other), address, port, flags, ..forward }))
    }

    #[test]
    fn silence_is_measured_by_the_state() {
        for (protocol, state, timeout) in [
            (TCP, flow_state::OPEN, TIMEOUTS.open_s),
            (TCP, flow_state::CLOSING, TIMEOUTS.closing_s),
            (TCP, flow_state::EVICTED, TIMEOUTS.closing_s),
            (UDP, flow_state::OPEN, TIMEOUTS.udp_replied_s),
            (UDP, flow_state::STREAM, TIMEOUTS.udp_stream_s),
        ] {
            let ((key, forward), (other, reply)) = flow(protocol, state, 100);
            for (key, flow) in [(key, forward), (other, reply)] {
                assert!(!is_silent(&key, &flow, &TIMEOUTS, now(100 + timeout)));
                assert!(is_silent(&key, &flow, &TIMEOUTS, now(101 + timeout)));
                assert!(!is_silent(&key, &Flow { tag: 0, ..flow }, &TIMEOUTS, now(101 + timeout)), "half a write");
            }
        }
    }

    #[test]
    fn an_adopted_connection_lasts_as_long_as_in_conntrack() {
        for protocol in [TCP, UDP] {
            let ((key, forward), _) = flow(protocol, flow_state::ADOPTED, 100);
            let forward = Flow { backend: 0, fin: fin::SENT, opposite_fin: fin::SENT, ..forward };
            assert!(!is_silent(&key, &forward, &TIMEOUTS, now(100 + ADOPTED_TIMEOUT_S)));
            assert!(is_silent(&key, &forward, &TIMEOUTS, now(101 + ADOPTED_TIMEOUT_S)), "no agent asks conntrack");
            assert!(!is_connection(&forward) && frontend(&key, &forward).is_none(), "no drain concerns it");
        }
    }

    #[test]
    fn the_other_direction_is_known_by_leading_back() {
        let ((key, forward), (other, reply)) = flow(TCP, flow_state::OPEN, 100);
        assert!(is_pair(&key, &forward, &reply) && is_pair(&other, &reply, &forward));
        let of_another_client = Flow { client_port: 4001, ..reply };
        assert!(!is_pair(&key, &forward, &of_another_client), "another client's");
        assert!(!is_pair(&key, &forward, &forward), "the same direction");
    }

    #[test]
    fn a_connection_counts_once_and_not_after_its_end() {
        let ((_, forward), (_, reply)) = flow(TCP, flow_state::OPEN, 100);
        assert!(is_connection(&forward) && !is_connection(&reply));
        assert!(!is_connection(&Flow { state: flow_state::CLOSING, ..forward }));
        assert!(is_connection(&Flow { fin: fin::SENT, ..forward }), "one side is open");
        let over = Flow { fin: fin::ALL, ..forward };
        assert!(!is_silent(&key(TCP), &over, &TIMEOUTS, now(over.seen_s + TIMEOUTS.closing_s)));
        assert!(is_silent(&key(TCP), &over, &TIMEOUTS, now(over.seen_s + TIMEOUTS.closing_s + 1)), "ACKs may be lost");
        assert!(!is_connection(&Flow { state: flow_state::EVICTED, ..forward }));
        assert!(!is_connection(&Flow { flags: 0, ..forward }), "its service does not count");
    }

    #[test]
    fn a_flow_is_known_by_its_frontend_until_it_is_cut() {
        let ((key, forward), (other, reply)) = flow(TCP, flow_state::OPEN, 100);
        let at = frontend(&key, &forward).unwrap();
        assert_eq!(at.to_string(), "10.96.0.1:80/TCP");
        assert_eq!(frontend(&other, &reply), None);
        let direct = Flow { flags: flow_flags::DIRECT, backend: 0, ..forward };
        assert_eq!((frontend(&key, &direct), frontend(&key, &cut(&forward))), (None, None));
        assert!(is_pair(&key, &cut(&forward), &reply), "the other direction is found as before");
        assert_ne!(cut(&forward).generation, forward.generation);
    }

    #[test]
    fn a_node_port_of_another_node_is_served_wherever_it_is() {
        let at = |text: &str| Frontend { address: text.parse().unwrap(), port: 30_080, protocol: Protocol::Tcp };
        let one = |there: Frontend, flags: u8| move |asked: &Frontend| (*asked == there).then_some(flags);
        for (asked, anywhere) in [("192.0.2.2", "0.0.0.0"), ("2001:db8::2", "::")] {
            assert!(is_served(at(asked), one(at(anywhere), service_flags::DSR)));
            assert!(is_served(at(asked), one(at(asked), 0)));
            assert!(!is_served(at(asked), one(at(anywhere), 0)), "there for the node's own sockets");
            assert!(!is_served(at(asked), |_| None));
        }
        assert!(!is_served(at("192.0.2.2"), one(at("::"), service_flags::DSR)), "the other family's");
    }

    #[test]
    fn an_affinity_ends_by_time_with_its_service_and_with_its_backend() {
        let key = AffinityKey { client: [10, 0, 0, 9], service: 3, netns: 0 };
        let affinity = Affinity { tag: affinity_tag(&key), backend: 7, generation: 2, seen_ds: 1000 };
        let over =
            |timeout_s, generation, seconds| is_affinity_over(&key, &affinity, timeout_s, generation, now(seconds));
        assert!(!over(60, Some(2), 160) && over(60, Some(2), 161));
        assert!(over(0, Some(2), 101), "the service has none any more");
        assert!(over(60, Some(3), 101) && over(60, None, 101), "the backend is gone");
        assert!(!over(60, Some(2), 50), "another CPU may have written a later time");
        let torn = Affinity { tag: 1, ..affinity };
        assert!(!is_affinity_over(&key, &torn, 0, None, now(999)));
    }
}
