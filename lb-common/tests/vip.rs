//! Addresses of services at ports that no frontend has, over plain tables.

// Tests may unwrap: a panic is a failed test.
#![allow(clippy::unwrap_used)]

mod memory;

use lb_common::abi::{
    FlowKey, SCTP, ServiceKey, TCP, UDP, Vip, VipKey, frontend_kind, network_flags, seal, service_flags, vip_flags,
};
use lb_common::decide::{Action, Hook, echoes, is_vip};
use lb_common::outcome::Outcome;
use lb_common::state::tcp_flag::{ACK, RST, SYN};
use memory::Memory;

const CLIENT: [u8; 4] = [10, 0, 1, 2];
const VIP: [u8; 4] = [192, 0, 2, 10];
const REQUESTS: [Hook; 5] = [Hook::POD_IN, Hook::BRIDGE_IN, Hook::NODE_IN, Hook::NODE_OUT, Hook::XDP];

fn to(protocol: u8, port: u16) -> FlowKey<4> {
    FlowKey { src: CLIENT, dst: VIP, src_port: 4000, dst_port: port, protocol, pad: [0; 3] }
}

/// TCP port 80 is served at the address, which has these flags.
fn vip(flags: u32) -> Memory {
    let mut tables = Memory { networks: vec![([10, 0, 1, 0], 24, network_flags::PODS)], ..Memory::default() };
    tables.serve(1, 0, ServiceKey { address: VIP, port: 80, protocol: TCP, pad: 0 }, &[[10, 0, 1, 11]], 8080);
    tables.vips.insert(VipKey { address: VIP }, Vip { flags });
    tables
}

#[test]
fn a_port_that_nobody_serves_is_refused() {
    let mut tables = vip(vip_flags::REFUSE_UNSERVED);
    for hook in REQUESTS {
        // The service's own port, but of another protocol, is another port.
        for (protocol, port, flags) in [(TCP, 81, SYN), (UDP, 80, 0), (SCTP, 80, SYN)] {
            let verdict = tables.ask(to(protocol, port), flags, hook);
            assert_eq!((verdict.action, verdict.outcome), (Action::Refuse, Outcome::RefusedUnserved));
        }
        let verdict = tables.ask(to(TCP, 80), SYN, hook);
        assert_eq!(verdict.action, Action::ToBackend, "the served port is served");
        // The next hook meets a flow that is over.
        tables.pass_seconds(100_000);
    }
    assert!(tables.flows.keys().all(|key| key.src_port == 80 || key.dst_port == 80 || key.src_port == 8080));
}

#[test]
fn what_begins_nothing_is_not_looked_up() {
    let mut tables = vip(vip_flags::REFUSE_UNSERVED);
    for flags in [ACK, RST, SYN | ACK] {
        assert_eq!(tables.ask(to(TCP, 81), flags, Hook::POD_IN).outcome, Outcome::Passed);
    }
}

#[test]
fn only_an_address_that_says_so_refuses() {
    for mut tables in [vip(vip_flags::ECHO), Memory::default()] {
        assert_eq!(tables.ask(to(TCP, 81), SYN, Hook::POD_IN).action, Action::Pass);
    }
}

#[test]
fn the_hook_of_replies_refuses_nothing() {
    let mut tables = vip(vip_flags::REFUSE_UNSERVED);
    assert_eq!(tables.ask(to(TCP, 81), SYN, Hook::POD_OUT).action, Action::Pass);
}

#[test]
fn a_frontend_says_itself_what_becomes_of_a_client_that_it_does_not_serve() {
    let key = ServiceKey { address: VIP, port: 80, protocol: TCP, pad: 0 };
    let outside = FlowKey { src: [198, 51, 100, 7], ..to(TCP, 80) };
    for (flags, outcome) in
        [(0, Outcome::RefusedNoEndpoint), (service_flags::DROP_OUTSIDE_IF_EMPTY, Outcome::DroppedNoLocalEndpoint)]
    {
        let mut tables = vip(vip_flags::REFUSE_UNSERVED);
        let service = tables.services.get_mut(&key).unwrap();
        (service.kind, service.outside_count, service.flags) = (frontend_kind::LOAD_BALANCER, 0, flags);
        service.seal = seal(&key, service);
        assert_eq!(tables.ask(outside, SYN, Hook::NODE_IN).outcome, outcome);
        assert_eq!(tables.ask(to(TCP, 80), SYN, Hook::POD_IN).action, Action::ToBackend);
    }
}

#[test]
fn echo_is_answered_where_the_address_says_so() {
    let mut tables = vip(vip_flags::ECHO);
    assert!(echoes(&mut tables, &VIP) && is_vip(&mut tables, &VIP));
    assert!(!echoes(&mut tables, &CLIENT) && !is_vip(&mut tables, &CLIENT));
    let mut tables = vip(vip_flags::REFUSE_UNSERVED);
    assert!(!echoes(&mut tables, &VIP) && is_vip(&mut tables, &VIP));
}
