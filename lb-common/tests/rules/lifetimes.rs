//! The states of a connection over time.

use lb_common::abi::{Flow, TCP, UDP, flow_flags, flow_state};
use lb_common::limits::TCP_OPEN_TIMEOUT_S;
use lb_common::state::{after_forward, after_reply, counted_after, expired, opens, tcp_flag};

fn flow(state: u8, seen_s: u32) -> Flow<4> {
    Flow {
        tag: 0,
        backend: 1,
        seen_s,
        since_s: 0,
        isn: 0,
        address: [0; 4],
        client: [0; 4],
        port: 0,
        client_port: 0,
        generation: 0,
        state,
        flags: 0,
        link: 0,
    }
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
    assert!(!expired(&open, TCP_OPEN_TIMEOUT_S, 1_000 + TCP_OPEN_TIMEOUT_S));
    assert!(expired(&open, TCP_OPEN_TIMEOUT_S, 1_001 + TCP_OPEN_TIMEOUT_S));
    assert!(!expired(&open, TCP_OPEN_TIMEOUT_S, 999), "another CPU may have written a later second");
}

#[test]
fn a_closing_flow_stays_closing() {
    let closing = after_forward(flow_state::OPEN, TCP, tcp_flag::FIN | tcp_flag::ACK);
    assert_eq!(closing, flow_state::CLOSING);
    assert_eq!(after_forward(closing, TCP, tcp_flag::ACK), flow_state::CLOSING);
    assert_eq!(after_reply(closing, TCP, tcp_flag::ACK), flow_state::CLOSING);
    assert_eq!(after_reply(flow_state::EVICTED, TCP, tcp_flag::RST), flow_state::EVICTED);
}

#[test]
fn a_datagram_after_an_answer_makes_a_stream_and_no_answer_unmakes_it() {
    let stream = after_forward(flow_state::OPEN, UDP, 0);
    assert_eq!(stream, flow_state::STREAM);
    assert_eq!(after_reply(stream, UDP, 0), flow_state::STREAM);
    assert_eq!(after_reply(flow_state::OPEN, UDP, 0), flow_state::OPEN, "it was not asked again");
}

#[test]
fn what_is_over_is_not_counted() {
    let open = flow_flags::COUNTED | flow_flags::CLIENT_ENDED;
    assert_eq!(counted_after(open), open);
    assert_eq!(counted_after(open | flow_flags::BACKEND_ENDED), flow_flags::ENDED);
}
