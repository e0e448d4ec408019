//! Each client's share of the table of established connections: what a greedy client gets, and what the others notice.

use std::collections::HashMap;

use crate::decide::{BACKENDS, VIP, frontend, key};
use lb_common::abi::{
    FlowKey, ServiceKey, TCP, UDP, backend_state, flow_flags, frontend_kind, network_flags, service_flags,
};
use lb_common::client_shares::{COUNTERS, Counters};
use lb_common::decide::{Action, Hook, Verdict};
use lb_common::limits::CLIENT_SLOTS;
use lb_common::outcome::Outcome;
use lb_common::plain::{ISN, Memory, tuple};
use lb_common::state::tcp_flag::{ACK, FIN, RST, SYN};
use proptest::prelude::*;

/// Connections that fit.
const ROOM: u32 = 64;
const HOSTS: u8 = 64;
const GREEDY: [u8; 4] = [10, 0, 1, 66];

fn serving() -> Memory {
    let mut tables = Memory { flow_room: ROOM, capacity: 2 * ROOM as usize, ..Memory::default() };
    tables.serve(1, 0, frontend(TCP), &BACKENDS, 8080);
    tables
}

fn asks(client: [u8; 4], port: u16) -> FlowKey<4> {
    key(TCP, (client, port), (VIP, 80))
}

fn answers<const N: usize>(asks: FlowKey<N>, sent: &Verdict<N>) -> FlowKey<N> {
    FlowKey { src: sent.address, dst: asks.src, src_port: sent.port, dst_port: sent.client_port, ..asks }
}

/// What becomes of the SYN, or else of the segment that completes the handshake; and the answerer's tuple.
fn connect<const N: usize>(tables: &mut Memory<N>, asks: FlowKey<N>, hook: Hook) -> (Outcome, FlowKey<N>) {
    let sent = tables.ask(asks, SYN, hook);
    let answers = answers(asks, &sent);
    if sent.action != Action::ToBackend {
        return (sent.outcome, answers);
    }
    tables.ask(answers, SYN | ACK, Hook::POD_OUT);
    (tables.ask(asks, ACK, hook).outcome, answers)
}

fn is_made(tables: &mut Memory, client: [u8; 4], port: u16) -> bool {
    match connect(tables, asks(client, port), Hook::POD_IN).0 {
        Outcome::Forwarded => true,
        Outcome::RefusedClientShare => false,
        other => panic!("{other:?} of {client:?}:{port}"),
    }
}

#[test]
fn a_client_that_fills_the_table_is_refused_and_nobody_else_is() {
    let mut tables = serving();
    assert!(is_made(&mut tables, [10, 0, 1, 2], 40_000));
    let made =
        (1_000..1_000 + 10 * u16::try_from(ROOM).unwrap()).filter(|port| is_made(&mut tables, GREEDY, *port)).count();
    assert!(made * 4 >= 3 * ROOM as usize - 4, "up to three quarters are anybody's: {made}");
    let refused = tables.ask(asks(GREEDY, 30_000), SYN, Hook::POD_IN);
    assert_eq!((refused.action, refused.outcome), (Action::Refuse, Outcome::RefusedClientShare));
    assert_eq!(refused.service, 1, "the event names the service");
    assert_eq!(tables.ask(asks([10, 0, 1, 2], 40_000), ACK, Hook::POD_IN).outcome, Outcome::Forwarded, "an idle one");
    for host in 20..32 {
        assert!(is_made(&mut tables, [10, 0, 1, host], 40_000), "a new one of client {host}");
    }
    assert_eq!(tables.ask(asks(GREEDY, 1_000), ACK, Hook::POD_IN).outcome, Outcome::Forwarded, "what it has it keeps");
}

#[test]
fn greedy_clients_share_what_they_leave_to_others() {
    for greedy in 1..=6_u8 {
        let mut tables = serving();
        for port in 1_000..1_000 + u16::try_from(ROOM).unwrap() {
            for host in 0..greedy {
                is_made(&mut tables, [10, 0, 1, 60 + host], port);
            }
        }
        let free = ROOM - u32::try_from(tables.flows.len() / 2).unwrap();
        let least = ROOM / u32::from(greedy + 1).max(4) - 1;
        assert!(free >= least, "{greedy} greedy clients leave {free}, not {least}");
        assert!(is_made(&mut tables, [10, 0, 1, 2], 40_000));
    }
}

#[test]
fn handshakes_that_were_begun_before_are_refused_to_both_ends() {
    let mut tables = serving();
    let ports = 1_000..1_000 + u16::try_from(ROOM).unwrap() - 4;
    let sent: Vec<_> = ports.map(|port| (port, tables.ask(asks(GREEDY, port), SYN, Hook::POD_IN))).collect();
    let mut refused = 0;
    for (port, sent) in &sent {
        let (asks, answers) = (asks(GREEDY, *port), answers(asks(GREEDY, *port), sent));
        assert_eq!(tables.ask(answers, SYN | ACK, Hook::POD_OUT).action, Action::ToClient);
        let completes = tables.ask(asks, ACK, Hook::POD_IN);
        if completes.outcome == Outcome::Forwarded {
            continue;
        }
        refused += 1;
        // XDP leaves the answer to tc, which decides again.
        for _ in 0..2 {
            let verdict = tables.ask(asks, ACK, Hook::POD_IN);
            assert_eq!((verdict.action, verdict.outcome), (Action::Refuse, Outcome::RefusedClientShare));
        }
        let again = tables.ask(answers, SYN | ACK, Hook::POD_OUT);
        assert_eq!((again.action, again.outcome), (Action::Refuse, Outcome::RefusedLate), "the backend is told");
    }
    assert!((8..=16).contains(&refused), "{refused} refused");
}

#[test]
fn a_client_that_closes_connections_may_make_others() {
    let mut tables = serving();
    for port in 1_000..1_000 + u16::try_from(ROOM).unwrap() {
        is_made(&mut tables, GREEDY, port);
    }
    assert!(!is_made(&mut tables, GREEDY, 30_000));
    for port in 1_000..1_000 + u16::try_from(ROOM).unwrap() {
        tables.ask(asks(GREEDY, port), RST, Hook::POD_IN);
    }
    assert!(tables.flows.is_empty());
    assert!(tables.client_shares.values().all(|count| *count == 0), "{:?}", tables.client_shares);
    assert!(is_made(&mut tables, GREEDY, 30_001));
}

#[test]
fn queries_and_syns_count_nowhere() {
    let mut tables = serving();
    tables.serve(2, 10, frontend(UDP), &BACKENDS, 5353);
    for port in 1_000..1_060 {
        tables.ask(asks(GREEDY, port), SYN, Hook::POD_IN);
    }
    tables.half_open.clear();
    for port in 1_000..1_060 {
        let asks = FlowKey { protocol: UDP, ..asks(GREEDY, port) };
        let sent = tables.ask(asks, 0, Hook::POD_IN);
        assert_eq!(tables.ask(answers(asks, &sent), 0, Hook::POD_OUT).action, Action::ToClient);
    }
    assert!(tables.client_shares.is_empty());
}

/// External clients ask for a node port.
fn external() -> Memory<16> {
    let mut tables = Memory::<16> { flow_room: ROOM, ..Memory::empty() };
    let at = ServiceKey { address: address(0xaa, 0, 1), port: 30_080, protocol: TCP, pad: 0 };
    tables.serve(1, 0, at, &[address(0xfd, 1, 11)], 8080);
    tables.edit(at, |service| {
        (service.kind, service.flags) = (frontend_kind::NODE_PORT, service.flags | service_flags::NO_RETRY);
    });
    tables.networks.push((address(0xfd, 0, 0), 8, network_flags::PODS));
    tables
}

/// Addresses of networks of 64 bits, by the network's last byte and the host's.
fn address(first: u8, network: u8, host: u8) -> [u8; 16] {
    let mut address = [0; 16];
    (address[0], address[7], address[15]) = (first, network, host);
    address
}

#[test]
fn an_external_client_counts_with_its_network_and_a_pod_by_itself() {
    let to = |src: [u8; 16], src_port| tuple(TCP, (src, src_port), (address(0xaa, 0, 1), 30_080));
    let is_made =
        |tables: &mut Memory<16>, from, port| connect(tables, to(from, port), Hook::NODE_IN).0 == Outcome::Forwarded;
    let mut tables = external();
    for host in 0..HOSTS {
        is_made(&mut tables, address(0x20, 7, host), 40_000);
    }
    assert!(!is_made(&mut tables, address(0x20, 7, 200), 40_000), "the same network");
    assert!(is_made(&mut tables, address(0x20, 8, 200), 40_000), "another one");
    let mut tables = external();
    for host in 0..HOSTS - 4 {
        assert!(is_made(&mut tables, address(0xfd, 7, host), 40_000), "pods have networks of 64 bits in common");
    }
}

/// Two clients rarely have both counters in common, whatever their addresses.
#[test]
fn clients_share_no_two_counters() {
    for client_key in [0, 1, 0x5eed_1e55, u32::MAX] {
        let mut seen = HashMap::new();
        let mut firsts = std::collections::HashSet::new();
        for number in 0..20_000_u32 {
            let [_, second, third, fourth] = number.to_be_bytes();
            let counters = Counters::of(client_key, &[10, second, third, fourth], 0);
            firsts.insert(counters.first);
            assert!(counters.first < counters.second && counters.second < COUNTERS && counters.all == 0);
            *seen.entry((counters.first, counters.second)).or_insert(0) += 1;
        }
        let alone = seen.values().filter(|count| **count == 1).count();
        assert!(alone > 19_900, "{alone} of 20,000 are alone, with key {client_key:x}");
        assert!(firsts.len() > CLIENT_SLOTS as usize * 4 / 5, "{} counters are used", firsts.len());
    }
    let six = Counters::of(1, &address(0x20, 7, 1), 0);
    assert_ne!(six, Counters::of(1, &address(0x20, 7, 2), 0));
    let external = |host| Counters::of(1, &address(0x20, 7, host), flow_flags::EXTERNAL);
    assert_eq!(external(1), external(2));
    assert_ne!(six.all, Counters::of(1, &[10, 0, 0, 1], 0).all, "each family has its own");
}

/// What the counters must be, by the entries.
fn recounted(tables: &Memory) -> HashMap<u32, i32> {
    let mut counts = HashMap::new();
    for (key, flow) in tables.flows.iter().filter(|(_, flow)| flow.flags & flow_flags::REPLY == 0) {
        let Counters { all, first, second } = Counters::of(tables.client_key, &key.src, flow.flags);
        for counter in [all, first, second] {
            *counts.entry(counter).or_default() += 1;
        }
    }
    counts
}

proptest! {
    /// Whatever happens to connections, each one counts once from its establishment to its end.
    #[test]
    fn the_counters_follow_the_table(steps in prop::collection::vec((0..10_u8, 0..3_u8, 0..4_u16), 1..200)) {
        let mut tables = serving();
        let mut sent = HashMap::new();
        for (what, host, port) in steps {
            let asks = asks([10, 0, 1, 60 + host], 1_000 + port);
            match what {
                0..=3 => {
                    sent.insert(asks, connect(&mut tables, asks, Hook::POD_IN).1);
                }
                4 => {
                    tables.ask(asks, FIN | ACK, Hook::POD_IN);
                }
                5 => {
                    tables.ask_numbered(asks, ACK, ISN + 2, ISN + 2, Hook::POD_IN);
                }
                6 => if let Some(answers) = sent.get(&asks) {
                    tables.ask_numbered(*answers, FIN | ACK, ISN + 1, ISN + 2, Hook::POD_OUT);
                },
                7 => {
                    tables.ask(asks, RST, Hook::POD_IN);
                }
                8 => tables.pass_seconds(if port == 0 { 9_000 } else { 2 }),
                _ => {
                    let backend = tables.backends.get_mut(&u32::from(1 + host)).unwrap();
                    let is_gone = backend.state == backend_state::GONE;
                    backend.state = if is_gone { backend_state::ACTIVE } else { backend_state::GONE };
                }
            }
            let counters: HashMap<u32, i32> =
                tables.client_shares.iter().filter(|(_, count)| **count != 0).map(|(at, count)| (*at, *count)).collect();
            prop_assert_eq!(counters, recounted(&tables));
        }
    }
}
