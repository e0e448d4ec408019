//! The model as maps: written before a packet, compared after it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use aya::maps::lpm_trie::Key;
use lb_common::abi::{
    Backend, Masquerade, Network, NetworkKey, SOURCE_SERVICE_BITS, Service, ServiceKey, Slot, Source, SourceKey, TCP,
    UDP, Vip, VipKey, backend_flags, backend_state, flow_flags, frontend_kind, network_flags, seal, service_flags,
    vip_flags,
};

use lb_common::client_shares::Counters;
use lb_common::service_cidrs::Cover;

use super::client::Client;
use super::model::{self, AddressKind, BackendState, Drain, Model, Torn, Whose};
use super::wire::Protocol;
use crate::test_run::{FamilyMaps, LoadedPrograms};

/// Slots of a service begin at its id times this.
pub const SLOTS_PER_SERVICE: u32 = 16;

/// An address as bytes of one family.
pub trait Bytes<const N: usize> {
    fn bytes(self) -> [u8; N];
}

impl Bytes<4> for IpAddr {
    fn bytes(self) -> [u8; 4] {
        let Self::V4(address) = self else { panic!("{self} is not IPv4") };
        address.octets()
    }
}

impl Bytes<16> for IpAddr {
    fn bytes(self) -> [u8; 16] {
        let Self::V6(address) = self else { panic!("{self} is not IPv6") };
        address.octets()
    }
}

/// Writes services and backends into the maps.
pub fn write(programs: &mut LoadedPrograms, model: &Model) -> Result<()> {
    for (&id, backend) in &model.backends {
        write_backend(programs, id, backend, model.now_s)?;
    }
    for (&(address, protocol), service) in &model.services {
        write_service(programs, address, protocol, service)?;
    }
    programs.set_adoption(model.adoption_until_s)?;
    write_addresses(programs, model)
}

/// The counters of this client's connections.
fn counters_of(v6: bool, address: IpAddr, who: Client) -> Counters {
    let flags = if who == Client::Outside { flow_flags::EXTERNAL } else { 0 };
    if v6 { Counters::of::<16>(0, &address.bytes(), flags) } else { Counters::of::<4>(0, &address.bytes(), flags) }
}

/// Counts the clients as the agent would: what the programs forget when entries are taken from them is not this model's matter. `counters`: those
/// that may not be zero.
pub fn count_clients(programs: &LoadedPrograms, v6: bool, model: &Model, counters: &mut BTreeMap<u32, u32>) {
    for count in counters.values_mut() {
        *count = 0;
    }
    for (address, who) in model.clients() {
        let Counters { all, first, second } = counters_of(v6, address, who);
        for counter in [all, first, second] {
            *counters.entry(counter).or_default() += 1;
        }
    }
    *counters.entry(Counters::families()[usize::from(v6)]).or_default() +=
        u32::try_from(model.anonymous()).expect("few");
    for (counter, count) in counters {
        programs.client_shares.set(*counter, *count);
    }
}

/// Notes which counters the programs may have written, before entries are taken from them.
pub fn note_clients(v6: bool, model: &Model, counters: &mut BTreeMap<u32, u32>) {
    for it in &model.connections {
        let Counters { all, first, second } = counters_of(v6, it.client.ip(), it.who);
        for counter in [all, first, second] {
            counters.entry(counter).or_default();
        }
    }
}

/// Writes the addresses that the programs know.
fn write_addresses(programs: &mut LoadedPrograms, model: &Model) -> Result<()> {
    macro_rules! family {
        ($v6:literal, $n:literal, $life:ident) => {
            for (network, whose) in model.networks.iter().filter(|(network, _)| network.address.is_ipv6() == $v6) {
                let flags = match whose {
                    Whose::Pods => network_flags::PODS,
                    Whose::Node => network_flags::NODE,
                    Whose::Peer => network_flags::PEER,
                    Whose::Services => network_flags::SERVICES,
                };
                let key = Key::new(network.bits, NetworkKey { address: network.address.bytes() });
                programs.$life.networks.insert(&key, Network { flags }, 0).context("writing a network")?;
            }
            let cidrs = model
                .networks
                .iter()
                .filter(|(network, whose)| *whose == Whose::Services && network.address.is_ipv6() == $v6);
            programs
                .set_cover::<$n>(Cover::of::<$n>(cidrs.map(|(network, _)| (network.address.bytes(), network.bits))))?;
            for (address, refuses) in model.vips.iter().filter(|(address, _)| address.is_ipv6() == $v6) {
                let flags = vip_flags::ECHO | if *refuses { vip_flags::REFUSE_UNSERVED } else { 0 };
                programs.$life.vips.insert(VipKey { address: address.bytes() }, Vip { flags }, 0)?;
            }
            for (link, own) in &model.own_addresses {
                let own: Vec<_> =
                    own.iter().filter(|address| address.is_ipv6() == $v6).map(|own| own.bytes()).collect();
                let Some((first, others)) = own.split_first() else { continue };
                programs.$life.masquerade.insert(link, Masquerade::new(*first, others), 0)?;
            }
        };
    }
    family!(false, 4, state4);
    family!(true, 16, state6);
    Ok(())
}

/// Writes one backend's record.
pub fn write_backend(programs: &mut LoadedPrograms, id: u32, backend: &model::Backend, now_s: u32) -> Result<()> {
    if backend.address.is_ipv4() {
        programs.tables4.backends.set(id, backend_record::<4>(backend, now_s), 0)?;
    } else {
        programs.tables6.backends.set(id, backend_record::<16>(backend, now_s), 0)?;
    }
    Ok(())
}

fn backend_record<const N: usize>(backend: &model::Backend, now_s: u32) -> Backend<N>
where
    IpAddr: Bytes<N>,
{
    Backend {
        address: backend.address.ip().bytes(),
        port: backend.address.port(),
        state: match backend.life {
            BackendState::Active => backend_state::ACTIVE,
            BackendState::Unready => backend_state::UNREADY,
            BackendState::Terminating => backend_state::TERMINATING,
            BackendState::Draining => backend_state::DRAINING,
            BackendState::Maintenance => backend_state::MAINTENANCE,
            BackendState::Gone => backend_state::GONE,
        },
        flags: if backend.local { backend_flags::LOCAL } else { 0 }
            | if backend.serving { backend_flags::SERVING } else { 0 }
            | if backend.is_in_a_set() { backend_flags::IN_CLUSTER_SET } else { 0 },
        generation: backend.generation,
        service: backend.service,
        deadline_ds: match (backend.is_evictable, backend.drain) {
            (true, _) => now_s * 10 - 5,
            (false, Drain::None) => 0,
            (false, _) => now_s * 10 + 36_000,
        },
        drain_ds: match backend.drain {
            Drain::None => 0,
            Drain::Goes => now_s * 10 + 18_000,
            Drain::Over => now_s * 10 - 5,
        },
        uid_hash: 7,
        weight: 1,
        pad: 0,
    }
}

/// Writes one frontend and its slots.
pub fn write_service(
    programs: &mut LoadedPrograms,
    address: SocketAddr,
    protocol: Protocol,
    service: &model::Service,
) -> Result<()> {
    if address.is_ipv4() {
        write_frontend::<4>(&mut programs.tables4, address, protocol, service)
    } else {
        write_frontend::<16>(&mut programs.tables6, address, protocol, service)
    }
}

fn write_frontend<const N: usize>(
    tables: &mut FamilyMaps<N>,
    address: SocketAddr,
    protocol: Protocol,
    service: &model::Service,
) -> Result<()>
where
    IpAddr: Bytes<N>,
{
    let (id, generation, slot_base) = (service.id, service.id + 100, service.id * SLOTS_PER_SERVICE);
    let external_base = slot_base + SLOTS_PER_SERVICE / 2;
    let (said_id, said_generation) = match service.torn {
        Torn::Whole | Torn::Entry => (id, generation),
        Torn::Generation => (id, generation + 1),
        Torn::Service => (id + 1, generation),
    };
    for (base, members) in [(slot_base, &service.members), (external_base, &service.members_outside)] {
        for (slot, &(backend, backend_generation)) in (base..).zip(members) {
            let value = Slot { backend, backend_generation, service: said_id, generation: said_generation };
            tables.slots.set(slot, value, 0)?;
        }
    }
    write_ranges(tables, service)?;
    let key = ServiceKey { address: address.ip().bytes(), port: address.port(), protocol: number(protocol), pad: 0 };
    let value = Service {
        id,
        generation,
        slot_base,
        slot_count: u32::try_from(service.members.len())?,
        external_base,
        external_count: u32::try_from(service.members_outside.len())?,
        seal: 0,
        affinity_timeout_s: 0,
        scheduler: 0,
        flags: service.other_flags
            | if service.retries { 0 } else { service_flags::NO_RETRY }
            | if service.drop_if_empty { service_flags::DROP_IF_EMPTY } else { 0 }
            | if service.drop_outside_if_empty { service_flags::DROP_OUTSIDE_IF_EMPTY } else { 0 }
            | if service.ranges.is_some() { service_flags::SOURCE_RANGES } else { 0 },
        kind: match service.kind {
            AddressKind::ClusterIp => frontend_kind::CLUSTER_IP,
            AddressKind::ExternalIp => frontend_kind::EXTERNAL_IP,
            AddressKind::LoadBalancer => frontend_kind::LOAD_BALANCER,
            AddressKind::NodePort => frontend_kind::NODE_PORT,
        },
        pad: 0,
        rate: 0,
        burst: 0,
    };
    let right = seal(&key, &value);
    let value = Service { seal: if service.torn == Torn::Entry { !right } else { right }, ..value };
    tables.services.insert(key, value, 0).context("writing a frontend")
}

/// Writes the networks that the service admits in place of those that it admitted before.
fn write_ranges<const N: usize>(tables: &mut FamilyMaps<N>, service: &model::Service) -> Result<()>
where
    IpAddr: Bytes<N>,
{
    tables.clear_sources(service.id)?;
    for range in service.ranges.iter().flatten() {
        let key = SourceKey { service: service.id, address: range.address.bytes() };
        let key = Key::new(SOURCE_SERVICE_BITS + range.bits, key);
        tables.sources.insert(&key, Source { service: service.id }, 0).context("writing a source range")?;
    }
    Ok(())
}

/// Removes a frontend.
pub fn remove_service(programs: &mut LoadedPrograms, address: SocketAddr, protocol: Protocol) -> Result<()> {
    let (port, protocol) = (address.port(), number(protocol));
    if address.is_ipv4() {
        programs.tables4.services.remove(&ServiceKey { address: address.ip().bytes(), port, protocol, pad: 0 })?;
    } else {
        programs.tables6.services.remove(&ServiceKey { address: address.ip().bytes(), port, protocol, pad: 0 })?;
    }
    Ok(())
}

/// The protocol's number in headers and keys.
pub fn number(protocol: Protocol) -> u8 {
    if protocol == Protocol::Tcp { TCP } else { UDP }
}
