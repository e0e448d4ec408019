//! Addresses of service CIDRs that no service has, over plain tables.

use lb_common::abi::{FlowKey, SCTP, ServiceKey, TCP, UDP, Vip, VipKey, network_flags, vip_flags};
use lb_common::decide::{Action, Hook, Packet, Verdict, Work, foreign, malformed, stray_fragment};
use lb_common::outcome::Outcome;
use lb_common::plain::{Memory, tuple};
use lb_common::state::tcp_flag::{ACK, FIN, RST, SYN};

const CLIENT: [u8; 4] = [10, 0, 1, 2];
const BACKEND: [u8; 4] = [10, 0, 1, 11];
const SERVED: [u8; 4] = [10, 96, 0, 10];
const NOBODYS: [u8; 4] = [10, 96, 0, 99];
/// Of this node, as that of kube-dns is with NodeLocal DNSCache.
const OWN: [u8; 4] = [10, 96, 0, 53];
const REQUESTS: [Hook; 5] = [Hook::POD_IN, Hook::BRIDGE_IN, Hook::NODE_IN, Hook::NODE_OUT, Hook::XDP];
const ICMP: u8 = 1;
const DROPPED: (Action, Outcome) = (Action::Drop, Outcome::DroppedNoService);
const PASSED: (Action, Outcome) = (Action::Pass, Outcome::Passed);

/// TCP port 80 is served at one address of 10.96.0.0/16, and one is the node's own.
fn tables() -> Memory {
    let networks = vec![
        ([10, 96, 0, 0], 16, network_flags::SERVICES),
        (OWN, 32, network_flags::NODE),
        ([10, 0, 1, 0], 24, network_flags::PODS),
    ];
    let mut tables = Memory { networks, ..Memory::default() };
    tables.serve(1, 0, ServiceKey { address: SERVED, port: 80, protocol: TCP, pad: 0 }, &[BACKEND], 8080);
    tables.vips.insert(VipKey { address: SERVED }, Vip { flags: vip_flags::REFUSE_UNSERVED | vip_flags::ECHO });
    tables
}

fn to(dst: [u8; 4], protocol: u8) -> FlowKey<4> {
    tuple(protocol, (CLIENT, 4000), (dst, 80))
}

fn said(verdict: &Verdict<4>) -> (Action, Outcome) {
    (verdict.action, verdict.outcome)
}

#[test]
fn whatever_is_sent_to_an_address_that_no_service_has_is_dropped_without_an_answer() {
    for hook in REQUESTS {
        let mut tables = tables();
        for (protocol, flags) in [(TCP, SYN), (TCP, ACK), (TCP, FIN | ACK), (TCP, RST), (UDP, 0), (SCTP, SYN)] {
            assert_eq!(said(&tables.ask(to(NOBODYS, protocol), flags, hook)), DROPPED, "{protocol} {flags} {hook:?}");
        }
        assert!(tables.flows.is_empty() && tables.half_open.is_empty());
        let mut work = Work::new(Packet::new(to(NOBODYS, ICMP), 0));
        foreign(&mut tables, &mut work, hook);
        assert_eq!(said(&work.verdict), DROPPED, "{hook:?}");
    }
}

#[test]
fn fragments_and_broken_headers_to_such_an_address_are_dropped_too() {
    let mut work = Work::new(Packet::new(to(NOBODYS, UDP), 0));
    stray_fragment(&mut tables(), &mut work);
    assert_eq!(said(&work.verdict), DROPPED);
    malformed(&mut tables(), &mut work);
    assert_eq!(said(&work.verdict), DROPPED);
    work.packet.key.dst = OWN;
    stray_fragment(&mut tables(), &mut work);
    assert_eq!(said(&work.verdict), (Action::Pass, Outcome::Fragment));
    malformed(&mut tables(), &mut work);
    assert_eq!(said(&work.verdict), PASSED);
}

#[test]
fn other_addresses_are_left_alone_and_unserved_ports_refused() {
    for hook in REQUESTS {
        let mut tables = tables();
        for dst in [OWN, BACKEND, [10, 97, 0, 99]] {
            for flags in [SYN, ACK] {
                assert_eq!(said(&tables.ask(to(dst, TCP), flags, hook)), PASSED, "{dst:?} {hook:?}");
            }
            let mut work = Work::new(Packet::new(to(dst, ICMP), 0));
            foreign(&mut tables, &mut work, hook);
            assert_eq!(said(&work.verdict), PASSED, "{dst:?} {hook:?}");
        }
        let verdict = tables.ask(to(SERVED, UDP), 0, hook);
        assert_eq!(said(&verdict), (Action::Refuse, Outcome::RefusedUnserved), "{hook:?}");
        assert_eq!(tables.ask(to(SERVED, TCP), SYN, hook).action, Action::ToBackend, "{hook:?}");
    }
}

#[test]
fn what_pods_receive_is_not_looked_at() {
    assert_eq!(said(&tables().ask(to(NOBODYS, TCP), SYN, Hook::POD_OUT)), PASSED);
    let mut work = Work::new(Packet::new(to(NOBODYS, ICMP), 0));
    foreign(&mut tables(), &mut work, Hook::POD_OUT);
    assert_eq!(said(&work.verdict), PASSED);
}

/// A service is deleted; its connections drain.
#[test]
fn connections_outlive_the_service_that_had_the_address() {
    let mut tables = tables();
    let key = to(SERVED, TCP);
    assert_eq!(tables.ask(key, SYN, Hook::POD_IN).action, Action::ToBackend);
    let answer = tuple(TCP, (BACKEND, 8080), (CLIENT, 4000));
    assert_eq!(tables.ask(answer, SYN | ACK, Hook::POD_OUT).action, Action::ToClient);
    assert_eq!(tables.ask(key, ACK, Hook::POD_IN).outcome, Outcome::Forwarded);
    tables.services.clear();
    tables.vips.clear();
    assert_eq!(tables.ask(key, ACK, Hook::POD_IN).outcome, Outcome::Forwarded);
    assert_eq!(tables.ask(answer, ACK, Hook::POD_OUT).outcome, Outcome::Replied);
    let other = FlowKey { src_port: 4001, ..key };
    assert_eq!(said(&tables.ask(other, SYN, Hook::POD_IN)), DROPPED, "a new connection");
}
