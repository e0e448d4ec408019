//! The tables that a script of packets begins with, and what the agent, the clock and a full table do to them.

use std::collections::BTreeSet;

use super::bytes::Script;
use lb_common::abi::{
    Backend, Endpoint, EndpointKey, Flow, FlowKey, Masquerade, SCTP, Service, ServiceKey, TCP, UDP, Vip, VipKey,
    backend_flags, backend_state, fin, flow_flags, flow_state, frontend_kind, network_flags, seal, service_flags, tag,
    vip_flags,
};
use lb_common::decide::{FlowTables as _, pair_key};
use lb_common::limits::HAND_OVER;
use lb_common::outcome::Outcome;
use lb_common::plain::{Memory, frontend};

/// The port of all frontends but node ports.
pub(super) const PORT: u16 = 80;
pub(super) const NODE_PORT: u16 = 30_080;
pub(super) const BACKEND_PORT: u16 = 8080;
/// Of one service.
pub(super) const BACKENDS: u8 = 4;
/// Backend ids of a service begin at its id times this, plus one; so do its slots.
const EACH: u32 = 16;
/// TCP and UDP at either VIP; a wide scene has SCTP, too, and a node port of each protocol.
const PROTOCOLS: [u8; 3] = [TCP, UDP, SCTP];

/// The networks that addresses are of.
pub(super) mod net {
    pub const CLIENTS: u8 = 1;
    pub const BACKENDS: u8 = 2;
    pub const VIPS: u8 = 96;
    pub const OUTSIDE: u8 = 5;
    /// This node is the first host, another one the second.
    pub const NODES: u8 = 6;
}

/// What a script plays on.
#[derive(Debug)]
pub struct Scene<const N: usize> {
    /// The tables.
    pub tables: Memory<N>,
    /// Every kind of frontend, protocol, client and packet. A plain one has cluster IPs of TCP and UDP, and clients of this node.
    pub is_wide: bool,
    /// What became of the packets.
    pub outcomes: BTreeSet<Outcome>,
}

pub(super) const fn address<const N: usize>(network: u8, host: u8) -> [u8; N] {
    let mut address = [0; N];
    address[0] = if N == 4 { 10 } else { 0xfd };
    address[1] = network;
    address[N - 1] = host;
    address
}

/// Of an address.
const fn bits<const N: usize>() -> u32 {
    if N == 4 { 32 } else { 128 }
}

impl<const N: usize> Scene<N> {
    /// The tables at the begin of a script.
    #[must_use]
    pub fn new(is_wide: bool) -> Self {
        let mut this = Self { tables: Memory::empty(), is_wide, outcomes: BTreeSet::new() };
        for (id, host, protocol) in [(1, 1, TCP), (2, 1, UDP), (3, 2, TCP), (4, 2, UDP)] {
            this.serve(id, address(net::VIPS, host), PORT, protocol, frontend_kind::CLUSTER_IP);
        }
        if is_wide {
            this.widen();
        }
        this
    }

    fn widen(&mut self) {
        for (id, host) in [(5, 1), (6, 2)] {
            self.serve(id, address(net::VIPS, host), PORT, SCTP, frontend_kind::LOAD_BALANCER);
        }
        for (id, protocol) in (7..).zip(PROTOCOLS) {
            self.serve(id, address(net::NODES, 1), NODE_PORT, protocol, frontend_kind::NODE_PORT);
            // As a packet in an outer header meets it: at any node's address.
            self.serve(id, [0; N], NODE_PORT, protocol, frontend_kind::NODE_PORT);
        }
        let tables = &mut self.tables;
        let whole = bits::<N>();
        tables.networks = vec![
            (address(net::CLIENTS, 0), whole - 8, network_flags::PODS),
            (address(net::BACKENDS, 0), whole - 8, network_flags::PODS),
            (address(net::NODES, 1), whole, network_flags::NODE),
            (address(net::NODES, 2), whole, network_flags::PEER),
            (address(net::VIPS, 0), whole - 8, network_flags::SERVICES),
        ];
        tables.own = Some(Masquerade::new(address(net::NODES, 1), &[address(net::NODES, 3)]));
        for host in 1..=2 {
            let flags = vip_flags::ECHO | vip_flags::REFUSE_UNSERVED;
            tables.vips.insert(VipKey { address: address(net::VIPS, host) }, Vip { flags });
        }
        for (id, backend) in &mut tables.backends {
            if id % 2 == 0 {
                backend.flags &= !backend_flags::LOCAL;
            }
        }
        self.name_endpoints();
    }

    fn serve(&mut self, id: u32, address: [u8; N], port: u16, protocol: u8, kind: u8) {
        let key = frontend(protocol, (address, port));
        let backends: Vec<[u8; N]> = (1..=BACKENDS).map(|host| self::address(net::BACKENDS, host)).collect();
        self.tables.serve(id, EACH * id, key, &backends, BACKEND_PORT);
        self.tables.edit(key, |service| service.kind = kind);
    }

    /// The backends of this node, as other nodes name them.
    fn name_endpoints(&mut self) {
        let local = |backend: &Backend<N>| backend.flags & backend_flags::LOCAL != 0;
        let tables = &mut self.tables;
        tables.endpoints = (tables.backends.iter())
            .filter(|(_, backend)| local(backend))
            .map(|(id, it)| {
                let key = EndpointKey { address: it.address, service: it.service };
                (key, Endpoint { backend: *id, generation: it.generation })
            })
            .collect();
    }

    pub(super) fn change_backend(&mut self, script: &mut Script<'_>) -> Option<()> {
        let services = if self.is_wide { 9 } else { 4 };
        let (service, nth) = (1 + u32::from(script.byte()? % services), u32::from(script.byte()? % BACKENDS));
        let now_ds = self.tables.now_ds();
        let is_wide = self.is_wide;
        let backend = self.tables.backends.get_mut(&(EACH * service + nth + 1))?;
        match script.byte()? % 5 {
            0 => {
                backend.state = script.byte()? % (backend_state::GONE + 1);
                // One that drains is past its period.
                backend.drain_ds = if backend.state == backend_state::DRAINING { now_ds } else { 0 };
            }
            1 => backend.deadline_ds = now_ds.saturating_add(u32::from(script.byte()?)).saturating_sub(20),
            2 => backend.generation += 1,
            3 => backend.flags = script.byte()? & if is_wide { 0x1f } else { 7 },
            _ => backend.deadline_ds = 0,
        }
        if is_wide {
            self.name_endpoints();
        }
        Some(())
    }

    pub(super) fn change_service(&mut self, script: &mut Script<'_>) -> Option<()> {
        let protocol = if self.is_wide { script.one_of(&PROTOCOLS)? } else { 0 };
        let key = if self.is_wide && script.byte()? % 3 == 0 {
            let address = script.one_of(&[address(net::NODES, 1), [0; N]])?;
            ServiceKey { address, port: NODE_PORT, protocol, pad: 0 }
        } else {
            let address = address(net::VIPS, script.one_of(&[1, 2])?);
            let protocol = if self.is_wide { protocol } else { script.one_of(&[TCP, UDP])? };
            ServiceKey { address, port: PORT, protocol, pad: 0 }
        };
        let before = *self.tables.services.get(&key)?;
        let slot_count = u32::from(script.byte()? % (BACKENDS + 1));
        let flags = script.byte()? & if self.is_wide { u8::MAX } else { 0x3f };
        let (scheduler, kind) = (script.byte()? % 8, script.byte()? % 4);
        let affinity_timeout_s = u32::from(script.byte()? / 16);
        let mut value = Service { slot_count, affinity_timeout_s, scheduler, flags, kind, ..before };
        if self.is_wide {
            // A node port stays one: its address is no service's.
            value.kind = if key.port == NODE_PORT { before.kind } else { kind };
            value.external_count = u32::from(script.byte()? % (BACKENDS + 1));
            (value.rate, value.burst) = (u32::from(script.byte()? / 64), 2);
            self.tables.sources.retain(|(id, ..)| *id != value.id);
            if value.flags & service_flags::SOURCE_RANGES != 0 {
                let network = script.one_of(&[net::CLIENTS, net::OUTSIDE])?;
                self.tables.sources.push((value.id, address(network, 0), bits::<N>() - 8));
            }
        }
        let torn = script.byte()? == 0;
        let right = seal(&key, &value);
        self.tables.services.insert(key, Service { seal: if torn { !right } else { right }, ..value });
        Some(())
    }

    /// Connections of a backend as the sweep counts them: by the entries of their requests.
    pub(super) fn counted(&self, backend: u32, generation: u32) -> u32 {
        let is_counted = |flow: &&Flow<N>| {
            flow.flags & (flow_flags::COUNTED | flow_flags::REPLY) == flow_flags::COUNTED
                && (flow.backend, u32::from(flow.generation)) == (backend, generation)
        };
        u32::try_from(self.tables.flows.values().filter(is_counted).count()).unwrap_or(u32::MAX)
    }

    /// The LRU map has dropped an entry, which runs no code of the programs: the sweep counts anew.
    pub(super) fn evict(&mut self, script: &mut Script<'_>) -> Option<()> {
        let half_open = script.byte()? % 2 == 0;
        let tables = &mut self.tables;
        let key = if half_open { any(tables.half_open.keys(), script)? } else { any(tables.flows.keys(), script)? };
        if let Some(key) = key {
            if half_open { tables.remove_half_open(&key) } else { tables.remove_flow(&key) }
        }
        self.recount();
        Some(())
    }

    fn recount(&mut self) {
        let ids: Vec<(u32, u32)> = self.tables.health.iter().map(|(id, health)| (*id, health.generation)).collect();
        for (id, generation) in ids {
            let counted = self.counted(id, generation);
            let health = self.tables.health.entry(id).or_default();
            health.connections = health.connections.min(counted);
        }
    }

    /// The table gets full, or a flood begins.
    pub(super) fn press(&mut self, script: &mut Script<'_>) -> Option<()> {
        let byte = script.byte()?;
        self.tables.capacity = if byte < 64 { 6 } else { usize::MAX };
        if self.is_wide {
            self.tables.most_half_open = u32::from(byte % 4) * 2;
            let own = Masquerade::new(address(net::NODES, 1), &[address(net::NODES, 3)]);
            self.tables.own = Some(own).filter(|_| byte % 16 != 0);
        }
        Some(())
    }

    /// A connection is another proxy's, turns out to be over, or is held before another proxy gets it; or the time of adoption changes.
    pub(super) fn hand_over(&mut self, script: &mut Script<'_>) -> Option<()> {
        let what = script.byte()? % 8;
        let tables = &mut self.tables;
        let now_s = tables.now_s();
        if what < 2 {
            tables.adoption_until_s = script.one_of(&[0, now_s + 60, now_s + 600, HAND_OVER])?;
            return Some(());
        }
        let Some(key) = any(tables.flows.keys(), script)? else { return Some(()) };
        let flow = tables.flows[&key];
        let opposite = pair_key(&key, &flow);
        match what {
            // A connection that goes whole to another node has no reply tuple.
            2..=4 if flow.port != 0 => tables.flows.extend(adopted(key, &flow, now_s)),
            5 if flow.is_given() => {
                tables.flows.insert(key, Flow { fin: fin::SENT, opposite_fin: fin::SENT, ..flow });
            }
            6 => tables.flows.retain(|at, flow| ![key, opposite].contains(at) || !flow.is_given()),
            _ => {
                for key in [key, opposite] {
                    let open = tables.flows.get_mut(&key);
                    if let Some(flow) = open.filter(|it| matches!(it.state, flow_state::OPEN | flow_state::STREAM)) {
                        (flow.state, flow.seen_s) = (flow_state::HELD, now_s);
                    }
                }
            }
        }
        self.recount();
        Some(())
    }
}

/// One of them, equal for equal scripts: the plain maps have no order. The outer `None`: the script is over.
#[allow(clippy::option_option)]
fn any<'a, const N: usize>(
    keys: impl Iterator<Item = &'a FlowKey<N>>,
    script: &mut Script<'_>,
) -> Option<Option<FlowKey<N>>> {
    let mut keys: Vec<FlowKey<N>> = keys.copied().collect();
    keys.sort_unstable();
    Some(keys.get(usize::from(script.byte()?) % keys.len().max(1)).copied())
}

/// Both entries of the connection, as one of another proxy.
fn adopted<const N: usize>(key: FlowKey<N>, flow: &Flow<N>, now_s: u32) -> [(FlowKey<N>, Flow<N>); 2] {
    let opposite_key = pair_key(&key, flow);
    let flags = flow.flags & flow_flags::REPLY;
    let Flow { address, client, port, client_port, .. } = *flow;
    let (tag, state) = (self::tag(&key), flow_state::ADOPTED);
    let (seen_s, since_s) = (now_s, now_s);
    let own = Flow { tag, seen_s, since_s, address, client, port, client_port, state, flags, ..Flow::ZERO };
    let (asked, asker) = ((key.dst, key.dst_port), (key.src, key.src_port));
    let ((address, port), (client, client_port)) = if flags == 0 { (asked, asker) } else { (asker, asked) };
    let flags = flags ^ flow_flags::REPLY;
    let opposite = Flow { tag: self::tag(&opposite_key), address, client, port, client_port, flags, ..own };
    [(key, own), (opposite_key, opposite)]
}
