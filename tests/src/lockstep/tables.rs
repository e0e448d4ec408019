//! The random tables of a lockstep run, and the changes that the agent, the network and a full table make to them. Each change is
//! made on both sides.

use anyhow::Result;
use lb_common::abi::{
    Backend, Flow, FlowKey, Masquerade, Service, ServiceKey, Slot, TCP, UDP, Vip, VipKey, backend_flags, backend_state,
    fin, flow_flags, flow_state, network_flags, seal, service_flags, tag, vip_flags,
};
use lb_common::decide::pair_key;
use lb_common::limits::HAND_OVER;
use lb_common::service_cidrs::Cover;

use super::HostSide;
use crate::random::Random;

/// Backend ids go from 1 to this.
pub const BACKENDS: u32 = 48;
/// Port of all frontends.
pub const PORT: u16 = 80;
/// Backends of one service.
const EACH: u32 = 6;
/// Slots of a service begin at its id times this.
const RANGE: u32 = 64;

/// An address of this net: 1 clients, 2 backends, 3 frontends, 5 external clients, 6 this node. The last byte tells hosts apart.
pub fn address<const N: usize>(net: u8, host: u8) -> [u8; N] {
    let mut address = [0; N];
    (address[0], address[1], address[N - 1]) = (if N == 4 { 10 } else { 0xfd }, net, host);
    address
}

pub fn frontend<const N: usize>(number: usize) -> [u8; N] {
    address(3, u8::try_from(number).expect("few"))
}

/// A client; some are backends themselves, some cannot be out there.
pub fn client<const N: usize>(random: &mut Random) -> [u8; N] {
    let host = 1 + u8::try_from(random.below(3)).expect("few");
    match random.below(24) {
        0 | 1 => address(2, host),
        2 => address(3, host),
        3 => address(6, 1),
        4..=12 => address(5, host),
        _ => address(1, host),
    }
}

/// Whose addresses are, as the agent would say it; here and there as it would not.
fn set_networks<const N: usize>(random: &mut Random, host: &mut HostSide<N>) -> Result<()> {
    let whole = 8 * u32::try_from(N)?;
    let pool = [
        (address::<N>(1, 0), whole - 8, network_flags::PODS),
        (address(2, 0), whole - 8, network_flags::PODS),
        (address(1, 2), whole, network_flags::PEER),
        (address(2, 2), whole, network_flags::NODE),
        (address(6, 1), whole, network_flags::NODE),
        (
            address(3, 0),
            whole - 8,
            *random.of(&[network_flags::SERVICES, network_flags::SERVICES | network_flags::PODS]),
        ),
        (address(3, 2), whole, *random.of(&[network_flags::NODE, network_flags::SERVICES])),
    ];
    // The programs may get fewer CIDRs than there are; the host gets all.
    let bits = *random.of(&[whole - 8, whole - 8, 8, 0]);
    host.cover = Cover::of([(address::<N>(3, 0), bits)]);
    for (address, bits, flags) in pool {
        if !random.one_in(4) {
            host.memory.networks.push((address, bits, flags));
        }
    }
    set_own(random, host);
    Ok(())
}

/// The node gets other addresses to masquerade by, or loses those that it has.
fn set_own<const N: usize>(random: &mut Random, host: &mut HostSide<N>) {
    let own = if random.one_in(6) { None } else { Some(*random.of(&[address(6, 1), address(6, 2), frontend(4)])) };
    let others: &[[u8; N]] = if random.one_in(2) { &[address(6, 3), address(6, 4)] } else { &[] };
    let own = own.map(|first| Masquerade::new(first, others));
    host.memory.own = own;
}

/// Eight frontends, TCP and UDP, with backends in all states.
pub fn set<const N: usize>(random: &mut Random, host: &mut HostSide<N>) -> Result<()> {
    for id in 1..=BACKENDS {
        write_backend(random, host, id);
    }
    for service in 1..=8 {
        write_service(random, host, service)?;
    }
    set_networks(random, host)?;
    // Some worlds begin on a node that has just started for the first time.
    if random.one_in(3) {
        let until_s = u32::try_from(host.memory.now_ns / 1_000_000_000 + random.any() % 900)?;
        host.memory.adoption_until_s = if random.one_in(4) { HAND_OVER } else { until_s };
    }
    for number in 1..=4 {
        if random.one_in(3) {
            continue;
        }
        let (key, value) = (VipKey { address: frontend(number) }, Vip { flags: vip_flags::REFUSE_UNSERVED });
        host.memory.vips.insert(key, value);
    }
    Ok(())
}

/// Something happens beside the packets.
pub fn change<const N: usize>(random: &mut Random, host: &mut HostSide<N>) -> Result<()> {
    match random.below(20) {
        17 | 18 => adopt(random, host)?,
        19 => end_adopted(random, host),
        16 => set_own(random, host),
        0..=8 => {
            let seconds = *random.of(&[0, 0, 1, 1, 2, 5, 11, 29, 31, 59, 61, 119, 121, 9_000]);
            host.memory.now_ns += seconds * 1_000_000_000 + random.any() % 900_000_000;
        }
        9 | 10 => {
            let id = 1 + u32::try_from(random.below(BACKENDS as usize)).expect("few");
            write_backend(random, host, id);
        }
        11 | 12 => {
            let service = 1 + u32::try_from(random.below(8)).expect("few");
            write_service(random, host, service)?;
        }
        13 => {
            let service = 1 + u32::try_from(random.below(8)).expect("few");
            let key = service_key(service);
            host.memory.services.remove(&key);
        }
        14 => {
            if let Some(key) = any_key(random, host.memory.flows.keys()) {
                host.memory.flows.remove(&key);
            }
        }
        _ => {
            if let Some(key) = any_key(random, host.memory.half_open.keys()) {
                host.memory.half_open.remove(&key);
            }
        }
    }
    Ok(())
}

/// A connection turns out to be one of another proxy, which the host's NAT translates.
fn adopt<const N: usize>(random: &mut Random, host: &mut HostSide<N>) -> Result<()> {
    let Some(key) = any_key(random, host.memory.flows.keys()) else { return Ok(()) };
    let flow = host.memory.flows[&key];
    // A connection that goes whole to another node has no reply tuple.
    if flow.port == 0 {
        return Ok(());
    }
    let now_s = u32::try_from(host.memory.now_ns / 1_000_000_000)?;
    let opposite_key = pair_key(&key, &flow);
    if random.one_in(4) {
        hold(host, [key, opposite_key], now_s);
        return Ok(());
    }
    let flags = flow.flags & flow_flags::REPLY;
    let own = Flow {
        tag: tag(&key),
        seen_s: now_s,
        since_s: now_s,
        address: flow.address,
        client: flow.client,
        port: flow.port,
        client_port: flow.client_port,
        state: flow_state::ADOPTED,
        flags,
        ..Flow::ZERO
    };
    let is_reply = flags != 0;
    let (address, port, client, client_port) = if is_reply {
        (key.src, key.src_port, key.dst, key.dst_port)
    } else {
        (key.dst, key.dst_port, key.src, key.src_port)
    };
    let flags = flags ^ flow_flags::REPLY;
    let opposite = Flow { tag: tag(&opposite_key), address, client, port, client_port, flags, ..own };
    for (key, flow) in [(key, own), (opposite_key, opposite)] {
        host.memory.flows.insert(key, flow);
    }
    Ok(())
}

/// Both entries of a connection of Ballast are held, as before it is given to another proxy.
fn hold<const N: usize>(host: &mut HostSide<N>, keys: [FlowKey<N>; 2], now_s: u32) {
    for key in keys {
        let flow = host.memory.flows.get_mut(&key);
        let Some(flow) = flow.filter(|flow| matches!(flow.state, flow_state::OPEN | flow_state::STREAM)) else {
            continue;
        };
        (flow.state, flow.seen_s) = (flow_state::HELD, now_s);
    }
}

/// The agent learns from conntrack that an adopted connection is over, or has been forgotten.
fn end_adopted<const N: usize>(random: &mut Random, host: &mut HostSide<N>) {
    let adopted = host.memory.flows.iter().filter(|(_, flow)| flow.is_given());
    let Some(key) = any_key(random, adopted.map(|(key, _)| key)) else { return };
    let flow = host.memory.flows[&key];
    if random.one_in(2) {
        let over = Flow { fin: fin::SENT, opposite_fin: fin::SENT, ..flow };
        host.memory.flows.insert(key, over);
        return;
    }
    let opposite = pair_key(&key, &flow);
    for key in [key, opposite] {
        if host.memory.flows.get(&key).is_some_and(Flow::is_given) {
            host.memory.flows.remove(&key);
        }
    }
}

/// One of them, equal for equal seeds: the plain maps have no order.
fn any_key<'a, const N: usize>(random: &mut Random, keys: impl Iterator<Item = &'a FlowKey<N>>) -> Option<FlowKey<N>> {
    let mut keys: Vec<FlowKey<N>> = keys.copied().collect();
    keys.sort_unstable();
    (!keys.is_empty()).then(|| *random.of(&keys))
}

fn write_backend<const N: usize>(random: &mut Random, host: &mut HostSide<N>, id: u32) {
    let now_ds = u32::try_from(host.memory.now_ns / 100_000_000).expect("years");
    let states = [
        backend_state::UNREADY,
        backend_state::TERMINATING,
        backend_state::DRAINING,
        backend_state::MAINTENANCE,
        backend_state::GONE,
        backend_state::FREE,
    ];
    let state = if random.one_in(4) { *random.of(&states) } else { backend_state::ACTIVE };
    let before = host.memory.backends.get(&id).map_or(1, |backend| backend.generation);
    let in_service = (id - 1) % EACH;
    let deadline_ds = match (state == backend_state::DRAINING, random.one_in(12)) {
        (_, true) => now_ds - 1,
        (true, _) => now_ds + 300 + 36_000 * u32::from(random.one_in(2)),
        _ => 0,
    };
    let value = Backend {
        // Services share addresses.
        address: address(2, 1 + u8::try_from(in_service / 2).expect("few")),
        port: 8080 + u16::try_from(in_service % 2).expect("few"),
        state,
        flags: if random.one_in(3) { 0 } else { backend_flags::LOCAL }
            | if random.one_in(2) { backend_flags::SERVING } else { 0 }
            | if random.one_in(5) { 0 } else { backend_flags::IN_CLUSTER_SET }
            | if random.one_in(2) { 0 } else { backend_flags::IN_LOCAL_SET }
            | if random.one_in(10) { backend_flags::UNHEALTHY } else { 0 },
        generation: before + u32::from(random.one_in(4)),
        service: 1 + (id - 1) / EACH,
        deadline_ds,
        drain_ds: match (state == backend_state::DRAINING, random.one_in(2)) {
            (true, true) => now_ds - 1,
            (true, _) => deadline_ds.min(now_ds + 300),
            _ => 0,
        },
        uid_hash: 7,
        weight: 1,
        pad: 0,
    };
    host.memory.backends.insert(id, value);
}

fn service_key<const N: usize>(service: u32) -> ServiceKey<N> {
    let protocol = if service.is_multiple_of(2) { TCP } else { UDP };
    ServiceKey { address: frontend(1 + (service as usize - 1) / 2), port: PORT, protocol, pad: 0 }
}

/// A range of slots with some of the service's backends; says how many.
fn write_slots<const N: usize>(
    random: &mut Random,
    host: &mut HostSide<N>,
    id: u32,
    generation: u32,
    base: u32,
) -> u32 {
    let mut count = 0;
    for backend in (id - 1) * EACH + 1..=id * EACH {
        if random.one_in(4) {
            continue;
        }
        let backend_generation = host.memory.backends[&backend].generation + u32::from(random.one_in(40));
        // Now and then a range that is written anew meanwhile.
        let slot_generation = generation + u32::from(random.one_in(60));
        let slot = Slot { backend, generation: slot_generation, service: id, backend_generation };
        host.memory.slots.insert(base + count, slot);
        count += 1;
    }
    if random.one_in(10) { 0 } else { count }
}

fn write_service<const N: usize>(random: &mut Random, host: &mut HostSide<N>, id: u32) -> Result<()> {
    let key = service_key::<N>(id);
    let generation = host.memory.services.get(&key).map_or(100, |service| service.generation) + 1;
    let (slot_base, external_base) = (RANGE * id, RANGE * id + RANGE / 2);
    let slot_count = write_slots(random, host, id, generation, slot_base);
    let external_count = write_slots(random, host, id, generation, external_base);
    let flag = |random: &mut Random, flag: u8, times: usize| if random.one_in(times) { flag } else { 0 };
    let mut flags = flag(random, service_flags::DROP_IF_EMPTY, 3)
        | flag(random, service_flags::NO_RETRY, 4)
        | flag(random, service_flags::DROP_OUTSIDE_IF_EMPTY, 3)
        | flag(random, service_flags::OUTSIDE_LOCAL, 4)
        | flag(random, service_flags::INSIDE_LOCAL, 4);
    let kind = if random.one_in(2) { 1 + random.byte() % 3 } else { 0 };
    if kind != 0 && random.one_in(3) {
        flags |= service_flags::DSR;
    }
    if kind != 0 && random.one_in(2) {
        flags |= service_flags::SOURCE_RANGES;
        let (range, bits) = (address::<N>(*random.of(&[1, 5]), 0), u32::try_from(8 * N - random.below(9))?);
        host.memory.sources.push((id, range, bits));
    }
    let value = Service {
        id,
        generation,
        slot_base,
        slot_count,
        external_base,
        external_count,
        seal: 0,
        affinity_timeout_s: *random.of(&[0, 0, 10, 10_800]),
        scheduler: u8::try_from(random.below(6)).expect("few"),
        flags,
        kind,
        pad: 0,
        // At most some new flows of each network in the time of a world, or one after the other.
        rate: *random.of(&[0, 0, 0, 1, 50]),
        burst: 1 + u32::try_from(random.below(20))?,
    };
    let right = seal(&key, &value);
    let value = Service { seal: if random.one_in(40) { !right } else { right }, ..value };
    host.memory.known.insert(key.address);
    host.memory.services.insert(key, value);
    Ok(())
}
