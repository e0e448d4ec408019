//! A node of a cluster with direct server return, in the programs' tables; and packets for it, those in outer headers made from scratch
//! by a packet library.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use etherparse::{IpNumber, Ipv4Header, Ipv6Header};
use lb_common::abi::{
    Backend, Endpoint, EndpointKey, Health, Masquerade, Service, Slot, TCP, UDP, backend_flags, frontend_kind,
    network_flags, scheduler, service_flags,
};
use lb_common::outcome::Outcome;
use lb_common::plain::{Memory, active, frontend};
use lb_tests::lockstep::Maps;
use lb_tests::oracle::{Frame, Protocol, Route, Routes};
use lb_tests::test_run::{Hook, LoadedPrograms, Ran};
use lb_tests::topology::Topology;

/// Verdicts: `TCX_NEXT`, `TC_ACT_SHOT`, `TC_ACT_REDIRECT`; `XDP_PASS`, `XDP_DROP`, `XDP_TX`.
pub const TC: [i32; 3] = [-1, 2, 7];
pub const XDP: [i32; 3] = [2, 1, 3];

pub const PORT: u16 = 80;
pub const NODE_PORT: u16 = 30_080;
pub const TARGET: u16 = 8080;
/// Where a connection's numbers begin.
pub const ISN: u32 = 1_000;
/// A multiple of the number of backends, so that each has as many.
const SLOTS: u32 = 60;
/// Ids of the service port of TCP; that of UDP is the next one.
const SERVICE: u32 = 1;

/// Addresses by their role. The network is one of the examination's ([`Routes`]): a way leads to the first two backends, and frames that
/// XDP redirects to the second one are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Client,
    Vip,
    /// Of this node.
    Own,
    /// Another node.
    Peer,
    NoPeer,
    /// A pod on another node.
    Away,
    /// A pod on another node, by a link that XDP cannot send to.
    AwayByTc,
    /// A pod on this node.
    Here,
}

pub fn ip(v6: bool, who: Who) -> IpAddr {
    let (net, host) = match who {
        Who::Client => (5, 9),
        Who::Vip => (3, 1),
        Who::Own => (6, 1),
        Who::Peer => (6, 2),
        Who::NoPeer => (6, 3),
        Who::Away => (2, 1),
        Who::AwayByTc => (2, 2),
        Who::Here => (2, 4),
    };
    lb_tests::oracle::address(v6, net, host)
}

/// Addresses as tables have them.
pub trait Octets<const N: usize> {
    fn octets(self) -> [u8; N];
}

macro_rules! octets {
    ($n:literal, $kind:ident) => {
        impl Octets<$n> for IpAddr {
            fn octets(self) -> [u8; $n] {
                let IpAddr::$kind(address) = self else { panic!("of the other family") };
                address.octets()
            }
        }
    };
}

octets!(4, V4);
octets!(16, V6);

/// The programs, and the namespace that they look for ways in.
pub struct Scenario {
    pub programs: LoadedPrograms,
    pub routes: Routes,
    tables4: Memory<4>,
    tables6: Memory<16>,
    pub v6: bool,
}

impl Scenario {
    /// Calls `ask` in the node's network.
    pub fn with(subject: &str, ask: impl FnOnce(&mut Self) + Send) {
        let topology = Topology::new(subject).unwrap();
        let node = topology.node().unwrap();
        let routes = Routes::make(node.namespace()).unwrap();
        node.netns().run(|| {
            stay_on_this_cpu();
            let mut programs = LoadedPrograms::load().unwrap();
            routes.tell(&mut programs).unwrap();
            ask(&mut Self { programs, routes, tables4: Memory::empty(), tables6: Memory::empty(), v6: false });
        });
    }

    /// The tables anew; the slots name these backends in turn.
    pub fn reset(&mut self, backends: &[Who]) {
        self.programs.clear().unwrap();
        if self.v6 {
            self.tables6 = served(backends);
            self.programs.fill(&self.tables6).unwrap();
        } else {
            self.tables4 = served(backends);
            self.programs.fill(&self.tables4).unwrap();
        }
    }

    /// Changes state, deadline and generation of the backend of both services at this place in their slots.
    pub fn change(&mut self, at: u32, life: (u8, u32, u32)) {
        if self.v6 {
            change(&mut self.programs, &mut self.tables6, at, life);
        } else {
            change(&mut self.programs, &mut self.tables4, at, life);
        }
    }

    /// This node has seen the backend leave others without an answer.
    pub fn ejected(&mut self, at: u32) {
        let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
        let since_s = u32::try_from(now.tv_sec()).unwrap();
        let health = Health { generation: 1, ejected_s: since_s, probe_s: since_s, ..Health::default() };
        let (id, programs) = (backend_id(SERVICE, at), &mut self.programs);
        let table = if self.v6 { &mut programs.state6.health } else { &mut programs.state4.health };
        table.set(id, health, 0).unwrap();
    }

    /// How many entries flows have, and half-open ones.
    pub fn entries(&self) -> (usize, usize) {
        if self.v6 {
            (self.programs.tables6.all_flows().unwrap().len(), self.programs.state6.all_half_open().unwrap().len())
        } else {
            (self.programs.tables4.all_flows().unwrap().len(), self.programs.state4.all_half_open().unwrap().len())
        }
    }

    /// Runs a packet: what came of it, and what was counted.
    pub fn run(&mut self, hook: Hook, bytes: &[u8]) -> (Ran, BTreeMap<&'static str, u64>) {
        let before = self.programs.outcomes().unwrap();
        let ran = self.programs.run(hook, bytes).unwrap().expect("the kernel runs it");
        let after = self.programs.outcomes().unwrap();
        self.programs.take_events();
        let more = Outcome::ALL
            .into_iter()
            .map(|outcome| (outcome.name(), after[outcome as usize] - before[outcome as usize]));
        (ran, more.filter(|(_, count)| *count != 0).collect())
    }

    /// A packet of the client's.
    pub fn asks(&self, protocol: Protocol, port: u16, tcp_flags: u8) -> Frame {
        let syn = tcp_flags & lb_tests::oracle::SYN != 0;
        Frame {
            tcp_flags,
            sequence: if syn { ISN } else { ISN + 1 },
            acknowledgement: 7,
            payload: b"something to carry".to_vec(),
            hops: 57,
            ..Frame::between(
                protocol,
                SocketAddr::new(ip(self.v6, Who::Client), port),
                SocketAddr::new(ip(self.v6, Who::Vip), PORT),
            )
        }
    }

    /// The frame in an outer header between these two.
    pub fn wrapped(&self, inner: &Frame, from: Who, to: Who, hops: u8) -> Vec<u8> {
        outer(inner, ip(self.v6, from), ip(self.v6, to), hops)
    }

    /// What the first node sends: to this backend, by this hook.
    pub fn sent(&self, hook: Hook, asked: &Frame, to: Who) -> (i32, Vec<u8>) {
        let mut inner = Frame { hops: asked.hops - 1, ..asked.clone() };
        if hook != Hook::Xdp {
            // The kernel writes the frame's new addresses after the program; the stack's own hop is counted in both headers.
            return (TC[2], self.wrapped(&inner, Who::Own, to, 63));
        }
        let Route::Known(link) = self.routes.to(ip(self.v6, to)) else { panic!("a way leads there") };
        inner.macs = (link.own_mac, link.neighbour_mac);
        (XDP[2], self.wrapped(&inner, Who::Own, to, 64))
    }
}

fn backend_id(service: u32, at: u32) -> u32 {
    10 * service + at
}

fn served<const N: usize>(backends: &[Who]) -> Memory<N>
where
    IpAddr: Octets<N>,
{
    let at = |who| ip(N == 16, who).octets();
    let whole = u32::try_from(8 * N).unwrap();
    let networks = vec![(at(Who::Peer), whole, network_flags::PEER), (at(Who::Own), whole, network_flags::NODE)];
    let mut tables = Memory { networks, own: Some(Masquerade::new(at(Who::Own), &[])), ..Memory::empty() };
    let count = u32::try_from(backends.len()).unwrap();
    for (service, protocol) in [(SERVICE, TCP), (SERVICE + 1, UDP)] {
        for (id, who) in (backend_id(service, 0)..).zip(backends) {
            let mut backend = active(service, (at(*who), TARGET));
            if *who == Who::Here {
                backend.flags |= backend_flags::IN_LOCAL_SET;
                let key = EndpointKey { address: at(*who), service };
                tables.endpoints.insert(key, Endpoint { backend: id, generation: 1 });
            } else {
                backend.flags &= !backend_flags::LOCAL;
            }
            tables.backends.insert(id, backend);
        }
        let slot =
            |slot| Slot { backend: backend_id(service, slot % count), generation: 9, service, backend_generation: 1 };
        tables.slots.extend((0..SLOTS).map(|at| (service * SLOTS + at, slot(at))));
        let frontends = [
            ((at(Who::Vip), PORT), frontend_kind::LOAD_BALANCER, service_flags::DSR),
            (([0; N], NODE_PORT), frontend_kind::NODE_PORT, service_flags::DSR),
            ((at(Who::Vip), PORT + 1), frontend_kind::LOAD_BALANCER, 0),
        ];
        for (end, kind, flags) in frontends {
            let key = frontend(protocol, end);
            let (slot_base, external_base) = (service * SLOTS, service * SLOTS);
            let (slot_count, external_count) = (SLOTS, SLOTS);
            tables.services.insert(key, Service { id: service, generation: 9, kind, flags, ..Service::NONE });
            tables.edit(key, |service| {
                let ranges = Service { slot_base, slot_count, external_base, external_count, ..*service };
                *service = Service { scheduler: scheduler::MAGLEV, ..ranges };
            });
        }
    }
    tables
}

fn change<const N: usize>(
    programs: &mut LoadedPrograms,
    tables: &mut Memory<N>,
    at: u32,
    (state, deadline_ds, generation): (u8, u32, u32),
) where
    LoadedPrograms: Maps<N>,
{
    let before = tables.clone();
    for service in [SERVICE, SERVICE + 1] {
        let backend = tables.backends.get_mut(&backend_id(service, at)).unwrap();
        *backend = Backend { state, deadline_ds, generation, ..*backend };
    }
    programs.write(&before, tables).unwrap();
}

/// The frame in an outer header of its family (RFC 2003, RFC 2473).
fn outer(inner: &Frame, from: IpAddr, to: IpAddr, hops: u8) -> Vec<u8> {
    let bytes = inner.bytes();
    let (link, packet) = bytes.split_at(14);
    let length = u16::try_from(packet.len()).unwrap();
    let header = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut header = Ipv4Header::new(length, hops, IpNumber::IPV4, from.octets(), to.octets()).unwrap();
            header.dont_fragment = true;
            header.header_checksum = header.calc_header_checksum();
            header.to_bytes().to_vec()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => Ipv6Header {
            payload_length: length,
            next_header: IpNumber::IPV6,
            hop_limit: hops,
            source: from.octets(),
            destination: to.octets(),
            ..Ipv6Header::default()
        }
        .to_bytes()
        .to_vec(),
        _ => panic!("of one family"),
    };
    [link, &header, packet].concat()
}

/// What one packet leaves behind in the programs must not be another CPU's.
fn stay_on_this_cpu() {
    let mut only = nix::sched::CpuSet::new();
    only.set(0).unwrap();
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &only).unwrap();
}
