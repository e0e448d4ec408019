//! What is sent to an address of services and served by nothing never goes round between the node and its router, over plain tables.

// Tests may unwrap: a panic is a failed test.
#![allow(clippy::unwrap_used)]

mod memory;

use lb_common::abi::{FlowKey, TCP, UDP, Vip, VipKey, vip_flags};
use lb_common::decide::{Action, Hook, Packet, Work, foreign};
use lb_common::outcome::Outcome;
use lb_common::state::tcp_flag::{ACK, FIN, RST, SYN};
use memory::Memory;

const CLIENT: [u8; 4] = [198, 51, 100, 7];
const VIP: [u8; 4] = [192, 0, 2, 10];
const GRE: u8 = 47;
const FROM_THE_WIRE: [Hook; 2] = [Hook::NODE_IN, Hook::XDP];
/// A cluster IP or a load balancer's address; an external IP.
const OURS: u32 = vip_flags::REFUSE_UNSERVED | vip_flags::ECHO;
const EXTERNAL: u32 = vip_flags::ECHO;

fn to(protocol: u8) -> FlowKey<4> {
    FlowKey { src: CLIENT, dst: VIP, src_port: 40_000, dst_port: 81, protocol, pad: [0; 3] }
}

fn tables(flags: u32) -> Memory {
    let mut tables = Memory::default();
    tables.vips.insert(VipKey { address: VIP }, Vip { flags });
    tables
}

/// What becomes of a packet of a protocol that is not balanced.
fn unbalanced(flags: u32, hook: Hook) -> (Action, Outcome) {
    let mut work = Work::new(Packet::new(to(GRE), 0));
    foreign(&mut tables(flags), &mut work, hook);
    (work.verdict.action, work.verdict.outcome)
}

#[test]
fn what_comes_from_the_wire_ends_here() {
    for hook in FROM_THE_WIRE {
        for flags in [OURS, EXTERNAL] {
            for (protocol, tcp_flags) in [(TCP, SYN), (TCP, ACK), (TCP, FIN | ACK), (UDP, 0)] {
                let verdict = tables(flags).ask(to(protocol), tcp_flags, hook);
                assert_eq!((verdict.action, verdict.outcome), (Action::Refuse, Outcome::RefusedUnserved));
            }
            let verdict = tables(flags).ask(to(TCP), RST, hook);
            assert_eq!((verdict.action, verdict.outcome), (Action::Drop, Outcome::RefusedUnserved), "no RST for a RST");
            assert_eq!(unbalanced(flags, hook), (Action::Drop, Outcome::RefusedUnserved));
        }
        assert_eq!(tables(0).ask(to(TCP), ACK, hook).action, Action::Pass);
        assert_eq!(unbalanced(0, hook), (Action::Pass, Outcome::Passed));
    }
}

#[test]
fn what_would_leave_by_the_wire_ends_here_but_for_the_other_ports_of_an_external_ip() {
    let hook = Hook::NODE_OUT;
    for tcp_flags in [SYN, ACK] {
        assert_eq!(tables(OURS).ask(to(TCP), tcp_flags, hook).outcome, Outcome::RefusedUnserved);
        assert_eq!(tables(EXTERNAL).ask(to(TCP), tcp_flags, hook).outcome, Outcome::Passed);
    }
    assert_eq!(unbalanced(OURS, hook), (Action::Drop, Outcome::RefusedUnserved));
    assert_eq!(unbalanced(EXTERNAL, hook), (Action::Pass, Outcome::Passed));
}

#[test]
fn the_hook_of_replies_leaves_everything_alone() {
    assert_eq!(tables(OURS).ask(to(TCP), ACK, Hook::POD_OUT).action, Action::Pass);
    assert_eq!(unbalanced(OURS, Hook::POD_OUT), (Action::Pass, Outcome::Passed));
}
