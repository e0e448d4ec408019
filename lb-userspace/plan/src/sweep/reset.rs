//! The RST that a round owes the sender of a direction whose connection has ended because its backend is gone: pure functions of the entry, which
//! names the sender and the numbers that it expects.

use std::net::{IpAddr, SocketAddr};

use lb_common::{
    abi::{Flow, FlowKey, TCP, backend_state, flow_state},
    state::{ends_with_drain_period, lasts_as},
};

use super::rules::cut;
use crate::plan::BackendRecord;
use lb_model::Monotonic;

/// A RST to one end of a connection, from the other end as that one knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reset {
    pub from: SocketAddr,
    pub to: SocketAddr,
    /// What the receiver has acknowledged. That is in its window. If it has received more since, it answers, and that answer is refused.
    pub seq: u32,
    pub ack: u32,
}

/// Sends it. `false`: it may be sent later.
pub type SendReset<'a> = &'a dyn Fn(&Reset) -> bool;

/// Whether the sender of this direction is owed a RST: its connection is established, nothing of it is forwarded any more, and no round has sent the
/// RST. `backend` is the flow's.
pub fn is_owed<const N: usize>(
    key: &FlowKey<N>,
    flow: &Flow<N>,
    backend: Option<&BackendRecord>,
    now: Monotonic,
) -> bool {
    let has_ended = match lasts_as(flow) {
        flow_state::EVICTED => true,
        flow_state::OPEN => !is_taken(key.protocol, flow, backend, now),
        _ => false,
    };
    key.protocol == TCP && flow.backend != 0 && (flow.next, flow.ack) != (0, 0) && has_ended
}

/// Whether the backend takes the flow's packets, as the programs decide it.
fn is_taken<const N: usize>(protocol: u8, flow: &Flow<N>, backend: Option<&BackendRecord>, now: Monotonic) -> bool {
    backend.is_some_and(|backend| {
        // Entries keep the low bits.
        backend.generation & u32::from(u16::MAX) == u32::from(flow.generation)
            && backend.state != backend_state::GONE
            && !backend.is_evictable(now)
            && !(ends_with_drain_period(protocol, flow) && backend.is_drained(now))
    })
}

/// The RST for the sender of this direction.
pub fn reset<const N: usize>(key: &FlowKey<N>, flow: &Flow<N>) -> Reset
where
    IpAddr: From<[u8; N]>,
{
    Reset {
        from: SocketAddr::new(key.dst.into(), key.dst_port),
        to: SocketAddr::new(key.src.into(), key.src_port),
        seq: flow.ack,
        ack: flow.next,
    }
}

/// The entry once its sender has the RST: evicted, and without numbers. It stays for a while, as the sender may answer.
pub fn after<const N: usize>(flow: &Flow<N>, now_s: u32) -> Flow<N> {
    let evicted = if flow.state == flow_state::EVICTED { *flow } else { cut(flow) };
    Flow { seen_s: now_s, next: 0, ack: 0, ..evicted }
}

#[cfg(test)]
mod tests {
    use lb_common::abi::{SCTP, fin, flow_flags};

    use super::*;

    const KEY: FlowKey<4> =
        FlowKey { src: [10, 0, 0, 9], dst: [10, 96, 0, 1], src_port: 4000, dst_port: 80, protocol: TCP, pad: [0; 3] };

    fn flow(state: u8) -> Flow<4> {
        Flow { backend: 7, generation: 3, state, next: 100, ack: 200, port: 8080, seen_s: 5, ..Flow::ZERO }
    }

    fn record(state: u8, drain_s: u32, deadline_s: u32) -> BackendRecord {
        BackendRecord {
            address: ([10, 0, 0, 1], 8080).into(),
            state,
            flags: 0,
            generation: 0x1_0003,
            service: 1,
            deadline_ds: deadline_s * 10,
            drain_ds: drain_s * 10,
            uid_hash: 0,
            weight: 1,
        }
    }

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_duration(std::time::Duration::from_secs(seconds))
    }

    #[test]
    fn a_rst_is_owed_from_the_eviction_deadline_on() {
        let (open, draining) = (flow(flow_state::OPEN), record(backend_state::DRAINING, 10, 30));
        let owed = |flow: &Flow<4>, seconds| is_owed(&KEY, flow, Some(&draining), at(seconds));
        assert!(!owed(&open, 29) && owed(&open, 30));
        let encapsulated = Flow { flags: flow_flags::ENCAPSULATED, ..open };
        assert!(!owed(&encapsulated, 9) && owed(&encapsulated, 10), "its drain period ends it");
        assert!(owed(&flow(flow_state::EVICTED), 1), "a program, or the end of its frontend, has evicted it");
    }

    #[test]
    fn a_rst_is_owed_for_a_backend_that_is_gone_and_for_no_other() {
        let open = flow(flow_state::OPEN);
        let owed = |backend: Option<&BackendRecord>| is_owed(&KEY, &open, backend, at(1));
        assert!(!owed(Some(&record(backend_state::ACTIVE, 0, 0))));
        assert!(owed(Some(&record(backend_state::GONE, 0, 0))) && owed(None));
        let of_another_pod = BackendRecord { generation: 4, ..record(backend_state::ACTIVE, 0, 0) };
        assert!(owed(Some(&of_another_pod)));
    }

    #[test]
    fn a_rst_is_owed_for_established_connections_of_tcp_alone() {
        let owed = |key: &FlowKey<4>, flow: Flow<4>| is_owed(key, &flow, None, at(1));
        let open = flow(flow_state::OPEN);
        assert!(owed(&KEY, open));
        assert!(!owed(&FlowKey { protocol: SCTP, ..KEY }, open));
        assert!(!owed(&KEY, Flow { backend: 0, ..open }), "direct");
        for state in [flow_state::HALF_OPEN, flow_state::CLOSING, flow_state::ADOPTED, flow_state::HELD] {
            assert!(!owed(&KEY, flow(state)), "{state}");
        }
        assert!(!owed(&KEY, Flow { fin: fin::ALL, ..open }), "both ends have closed it");
    }

    #[test]
    fn a_rst_comes_from_whom_the_sender_talks_to_and_is_sent_once() {
        let open = flow(flow_state::OPEN);
        let reset = reset(&KEY, &open);
        let [from, to] = ["10.96.0.1:80", "10.0.0.9:4000"].map(|text| text.parse().unwrap());
        assert_eq!(reset, Reset { from, to, seq: 200, ack: 100 });
        let after = after(&open, 50);
        assert_eq!((after.state, after.seen_s), (flow_state::EVICTED, 50));
        assert!(!is_owed(&KEY, &after, None, at(60)));
        assert_eq!(super::after(&after, 50), after, "the generation changes once");
    }
}
