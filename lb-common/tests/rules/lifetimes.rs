//! The states of a connection over time.

use lb_common::abi::{Flow, TCP, UDP, flow_state};
use lb_common::limits::TCP_IDLE_TIMEOUT_S;
use lb_common::state::{after_forward, expired, opens, tcp_flag};

fn flow(state: u8, seen_s: u32) -> Flow<4> {
    Flow { backend: 1, seen_s, state, ..Flow::ZERO }
}

#[test]
fn only_a_bare_syn_opens() {
    assert!(opens(tcp_flag::SYN));
    assert!(opens(tcp_flag::SYN | 0xc0), "ECN set-up bits do not matter");
    for other in [tcp_flag::ACK, tcp_flag::FIN, tcp_flag::RST] {
        assert!(!opens(tcp_flag::SYN | other));
    }
    assert!(!opens(0));
}

#[test]
fn expiry_is_exact_and_a_clock_behind_the_flow_expires_nothing() {
    let open = flow(flow_state::OPEN, 1_000);
    assert!(!expired(&open, TCP_IDLE_TIMEOUT_S, 1_000 + TCP_IDLE_TIMEOUT_S));
    assert!(expired(&open, TCP_IDLE_TIMEOUT_S, 1_001 + TCP_IDLE_TIMEOUT_S));
    assert!(!expired(&open, TCP_IDLE_TIMEOUT_S, 999), "another CPU may have written a later second");
}

#[test]
fn a_datagram_after_an_answer_makes_a_stream() {
    let stream = after_forward(flow_state::OPEN, UDP);
    assert_eq!((stream, after_forward(stream, UDP)), (flow_state::STREAM, flow_state::STREAM));
    assert_eq!(after_forward(flow_state::OPEN, TCP), flow_state::OPEN);
}
