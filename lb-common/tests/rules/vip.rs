//! Addresses of services at ports that no frontend has, over plain tables.

use lb_common::abi::{
    FlowKey, SCTP, ServiceKey, TCP, UDP, Vip, VipKey, frontend_kind, network_flags, service_flags, vip_flags,
};
use lb_common::decide::{Action, Hook, Packet, Work, echoes, foreign, is_vip};
use lb_common::outcome::Outcome;
use lb_common::plain::{Memory, tuple};
use lb_common::state::tcp_flag::{ACK, FIN, RST, SYN};

const CLIENT: [u8; 4] = [10, 0, 1, 2];
const VIP: [u8; 4] = [192, 0, 2, 10];
const REQUESTS: [Hook; 5] = [Hook::POD_IN, Hook::BRIDGE_IN, Hook::NODE_IN, Hook::NODE_OUT, Hook::XDP];
const GRE: u8 = 47;
const FROM_THE_WIRE: [Hook; 2] = [Hook::NODE_IN, Hook::XDP];
/// A cluster IP or a load balancer's address; an external IP.
const OURS: u32 = vip_flags::REFUSE_UNSERVED | vip_flags::ECHO;
const EXTERNAL: u32 = vip_flags::ECHO;

fn to(protocol: u8, port: u16) -> FlowKey<4> {
    tuple(protocol, (CLIENT, 4000), (VIP, port))
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
        tables.edit(key, |service| {
            (service.kind, service.external_count, service.flags) = (frontend_kind::LOAD_BALANCER, 0, flags);
        });
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

/// What becomes of a packet of a protocol that is not balanced.
fn unbalanced(flags: u32, hook: Hook) -> (Action, Outcome) {
    let mut work = Work::new(Packet::new(to(GRE, 81), 0));
    foreign(&mut vip(flags), &mut work, hook);
    (work.verdict.action, work.verdict.outcome)
}

#[test]
fn what_comes_from_the_wire_ends_here() {
    for hook in FROM_THE_WIRE {
        for flags in [OURS, EXTERNAL] {
            for (protocol, tcp_flags) in [(TCP, SYN), (TCP, ACK), (TCP, FIN | ACK), (UDP, 0)] {
                let verdict = vip(flags).ask(to(protocol, 81), tcp_flags, hook);
                assert_eq!((verdict.action, verdict.outcome), (Action::Refuse, Outcome::RefusedUnserved));
            }
            let verdict = vip(flags).ask(to(TCP, 81), RST, hook);
            assert_eq!((verdict.action, verdict.outcome), (Action::Drop, Outcome::RefusedUnserved), "no RST for a RST");
            assert_eq!(unbalanced(flags, hook), (Action::Drop, Outcome::RefusedUnserved));
        }
        assert_eq!(vip(0).ask(to(TCP, 81), ACK, hook).action, Action::Pass);
        assert_eq!(unbalanced(0, hook), (Action::Pass, Outcome::Passed));
    }
}

#[test]
fn what_would_leave_by_the_wire_ends_here_but_for_the_other_ports_of_an_external_ip() {
    let hook = Hook::NODE_OUT;
    for tcp_flags in [SYN, ACK] {
        assert_eq!(vip(OURS).ask(to(TCP, 81), tcp_flags, hook).outcome, Outcome::RefusedUnserved);
        assert_eq!(vip(EXTERNAL).ask(to(TCP, 81), tcp_flags, hook).outcome, Outcome::Passed);
    }
    assert_eq!(unbalanced(OURS, hook), (Action::Drop, Outcome::RefusedUnserved));
    assert_eq!(unbalanced(EXTERNAL, hook), (Action::Pass, Outcome::Passed));
}

#[test]
fn the_hook_of_replies_leaves_everything_alone() {
    assert_eq!(vip(OURS).ask(to(TCP, 81), ACK, Hook::POD_OUT).action, Action::Pass);
    assert_eq!(unbalanced(OURS, Hook::POD_OUT), (Action::Pass, Outcome::Passed));
}
