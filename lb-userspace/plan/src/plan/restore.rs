//! The programmed state of a restarted agent, read from the tables: ids, generations, ranges, states and deadlines go on.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use ipnet::IpNet;
use lb_common::abi::{self, backend_state};
use lb_common::map::MapId;

use super::{BackendId, BackendRecord, Capacities, Frontend, FrontendKind, ProgrammedState, Range, Set, Use};
use lb_model::{Family, ObjectName, PortKey, Protocol, shared};
use lb_tables::from_chars;

/// What was read from the tables.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    pub names: Vec<(u32, abi::ServiceName)>,
    pub frontends: Vec<(Frontend, abi::Service)>,
    /// Every record that was ever used; free ones have a generation.
    pub backends: Vec<(BackendId, BackendRecord)>,
    /// The slots of every range that a frontend leads to.
    pub slots: Vec<(Range, Vec<abi::Slot>)>,
    /// Networks that service ports admit.
    pub sources: Vec<(u32, IpNet, abi::Source)>,
    pub vips: Vec<(IpAddr, abi::Vip)>,
    /// Backends of this node as other nodes name them: by address and service port id.
    pub endpoints: Vec<((IpAddr, u32), abi::Endpoint)>,
    /// Bits of addresses that the VIP filter rules out, in words ([`lb_common::vip_filter`]); empty: none.
    pub vip_filter: Vec<u64>,
    pub config: Option<abi::Config>,
    /// Elements that nothing of ours can be.
    pub strays: Vec<Stray>,
}

/// An element that nothing of ours can be: not even its key makes sense.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stray {
    /// Its map.
    pub table: MapId,
    pub key: Vec<u8>,
}

impl Loaded {
    /// The addresses by which services are reached, some more than once.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let frontends = self.frontends.iter().map(|(frontend, _)| frontend.address);
        frontends.chain(self.vips.iter().map(|(address, _)| *address))
    }

    /// The ranges that entries lead to and that `capacity` slots have, each once.
    pub fn ranges(&self, capacity: u32) -> Vec<Range> {
        let both = self.frontends.iter().flat_map(|(_, entry)| ranges_of(entry));
        let found: BTreeSet<Range> = both.filter(|range| range.count > 0 && range.count <= capacity).collect();
        found.into_iter().filter(|range| range.base <= capacity - range.count).collect()
    }
}

/// Where an entry leads clients inside and outside.
pub(super) fn ranges_of(entry: &abi::Service) -> [Range; 2] {
    [
        Range { base: entry.slot_base, count: entry.slot_count },
        Range { base: entry.external_base, count: entry.external_count },
    ]
}

/// How an entry uses its service port, as far as it shows: an agent that ended while another service was taking the frontend
/// over has to go by it.
fn use_of(entry: &abi::Service) -> Use {
    let set = |flag: u8| if entry.flags & flag == 0 { Set::Cluster } else { Set::Local };
    // A kind that this version does not know counts as a cluster IP.
    let kind = FrontendKind::from_number(entry.kind).unwrap_or(FrontendKind::ClusterIp);
    let inside = set(abi::service_flags::INSIDE_LOCAL);
    // A cluster IP has one policy for all.
    let outside = if kind == FrontendKind::ClusterIp { inside } else { set(abi::service_flags::OUTSIDE_LOCAL) };
    Use { kind, inside, outside, flags: entry.flags }
}

/// The programmed state of tables with this content. Ranges that no frontend leads to are free: a restart takes longer than any program
/// that may still read one.
pub fn restore(capacities: Capacities, loaded: Loaded) -> ProgrammedState {
    let led_to = led_to(&loaded);
    let mut programmed = ProgrammedState::new(capacities);
    for (id, name) in loaded.names {
        // One that is there twice was not written by us twice: the second belongs to no service.
        let key =
            key_of(&name).filter(|key| programmed.services().id_of(key).is_none()).unwrap_or_else(|| nameless(id));
        programmed.put_name(id, &key, name);
    }
    for (range, slots) in loaded.slots {
        // One that overlaps another is no range of ours: it stays out, so that its frontend gets a new one.
        if range.count > 0 && range.count as usize == slots.len() {
            programmed.restore_slots(range.base, slots);
        }
    }
    for (frontend, entry) in loaded.frontends {
        programmed.put_frontend(frontend, entry, use_of(&entry), &nameless(entry.id));
    }
    // Of two records of one address, new flows go to the one that slots lead to: an agent that was killed may have left both. It comes
    // last, so that it is the one that counts; else the one with the higher id does.
    let (led, others): (Vec<_>, Vec<_>) = loaded.backends.into_iter().partition(|(id, _)| led_to.contains(id));
    for (id, record) in others.into_iter().chain(led) {
        if record.state == backend_state::FREE {
            programmed.put_free_generation(id, record.generation);
        } else {
            programmed.put_backend(id, record, &nameless(record.service));
        }
    }
    for (key, endpoint) in loaded.endpoints {
        programmed.restore_endpoint(key, endpoint);
    }
    for (id, network, _) in loaded.sources {
        programmed.put_source(id, network, &nameless(id));
    }
    for (address, vip) in loaded.vips {
        programmed.put_vip(address, vip);
    }
    programmed.put_config(loaded.config);
    programmed
}

/// The backends that slots lead to which frontends lead to.
fn led_to(loaded: &Loaded) -> BTreeSet<BackendId> {
    let slots: BTreeMap<Range, &Vec<abi::Slot>> = loaded.slots.iter().map(|(range, slots)| (*range, slots)).collect();
    let ranges = loaded.frontends.iter().flat_map(|(frontend, entry)| {
        let family = Family::of(frontend.address);
        ranges_of(entry).into_iter().map(move |range| (family, range, entry))
    });
    let led = ranges.filter_map(|(family, range, entry)| Some((family, slots.get(&range)?, entry)));
    led.flat_map(|(family, slots, entry)| {
        let own = slots.iter().filter(|slot| (slot.service, slot.generation) == (entry.id, entry.generation));
        own.map(move |slot| BackendId { family, id: slot.backend })
    })
    .collect()
}

fn key_of(name: &abi::ServiceName) -> Option<PortKey> {
    let protocol = Protocol::from_number(name.protocol)?;
    let service = ObjectName::new(shared(&from_chars(&name.namespace)), from_chars(&name.name));
    Some(PortKey { service, port: name.port, protocol })
}

/// A service port whose name was lost: nobody wants it, so it is removed and its backends drain.
pub(super) fn nameless(id: u32) -> PortKey {
    PortKey { service: ObjectName::new("", format!("#{id}")), port: 0, protocol: Protocol::Tcp }
}
