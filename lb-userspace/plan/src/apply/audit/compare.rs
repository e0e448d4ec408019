//! The comparison itself, without effects: one part of the tables against the programmed state.

use std::{collections::BTreeMap, ops::Range as StdRange};

use lb_common::abi::{self, map_name};

use super::{
    Finding, FindingKind, endpoints,
    fields::{backend_fields, difference, name_fields, service_fields, slot_fields},
    found::{Found, Repair, TableEntry, owner},
};
use crate::{
    apply::records,
    plan::{BackendId, BackendRecord, Loaded, Op, Part, ProgrammedState},
};
use lb_model::Family;
use lb_tables::vip_filter::is_ruled_out;

/// How many entries a part should hold; of backends and slots, those with these ids or in these ranges.
pub(super) fn size(part: Part, programmed: &ProgrammedState, read: &StdRange<u32>) -> usize {
    match part {
        Part::Names => programmed.services().len(),
        Part::Backends(family) => programmed.backends().records().range(ids(family, read)).count(),
        Part::Endpoints(family) => endpoints::count(programmed, family),
        Part::Slots => programmed
            .slots()
            .live(read.start)
            .take_while(|(base, _)| *base < read.end)
            .map(|(_, slots)| slots.len())
            .sum(),
        Part::Sources(_) | Part::Services(_) | Part::Vips(_) => programmed.count(part).unwrap_or_default(),
        Part::VipFilter => programmed.addresses().count(),
        Part::Config => 1,
        Part::Plan => 0,
    }
}

fn ids(family: Family, read: &StdRange<u32>) -> StdRange<BackendId> {
    BackendId { family, id: read.start }..BackendId { family, id: read.end }
}

/// Everything in which `loaded`, one part of the tables, differs from the programmed state; `read`: which ids of backends.
pub(super) fn compare(part: Part, programmed: &ProgrammedState, loaded: &Loaded, read: &StdRange<u32>) -> Vec<Found> {
    let mut found = match part {
        Part::Names => names(programmed, loaded),
        Part::Backends(family) => backends(programmed, loaded, family, &ids(family, read)),
        Part::Endpoints(family) => endpoints::compare(programmed, loaded, family),
        Part::Slots => slots(programmed, loaded),
        Part::Sources(family) => sources(programmed, loaded, family),
        Part::Services(family) => services(programmed, loaded, family),
        Part::Vips(family) => vips(programmed, loaded, family),
        Part::VipFilter => vip_filter(programmed, loaded),
        Part::Config => config(programmed, loaded),
        Part::Plan => Vec::new(),
    };
    found.extend(loaded.strays.iter().map(|stray| Found {
        finding: Finding {
            kind: FindingKind::Foreign,
            table: stray.table.name().to_owned(),
            entry: format!("key {}", stray.key.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ")),
            service: None,
            difference: String::new(),
            repaired: false,
        },
        repair: Repair::Stray(stray.clone()),
    }));
    found
}

fn names(programmed: &ProgrammedState, loaded: &Loaded) -> Vec<Found> {
    let there: BTreeMap<u32, abi::ServiceName> = loaded.names.iter().copied().collect();
    let entry =
        |id: u32| TableEntry { table: map_name::NAMES, name: format!("id {id}"), service: owner(programmed, id) };
    let expected =
        programmed.services().iter().filter_map(|(id, service)| Some((id, service.name.as_deref().copied()?)));
    let mut found: Vec<Found> = expected
        .filter_map(|(id, name)| {
            let write = Op::WriteName { id, name };
            match there.get(&id) {
                None => Some(entry(id).found(FindingKind::Missing, String::new(), write)),
                Some(other) if *other != name => Some(entry(id).found(
                    FindingKind::Edited,
                    difference(&name_fields(&name), &name_fields(other)),
                    write,
                )),
                Some(_) => None,
            }
        })
        .collect();
    let foreign =
        there.keys().filter(|id| programmed.services().get(**id).is_none_or(|service| service.name.is_none()));
    found
        .extend(foreign.map(|id| entry(*id).found(FindingKind::Foreign, String::new(), Op::ForgetService { id: *id })));
    found
}

fn backends(programmed: &ProgrammedState, loaded: &Loaded, family: Family, ids: &StdRange<BackendId>) -> Vec<Found> {
    let there: BTreeMap<BackendId, BackendRecord> = loaded.backends.iter().copied().collect();
    let table = Part::Backends(family).name();
    let entry = |id: BackendId, record: Option<&BackendRecord>| TableEntry {
        table,
        name: record.map_or_else(|| format!("id {}", id.id), |record| format!("id {} ({})", id.id, record.address)),
        service: record.and_then(|record| owner(programmed, record.service)),
    };
    let kind = |other: Option<&BackendRecord>| other.map_or(FindingKind::Missing, |_| FindingKind::Edited);
    let differs = |wanted: &BackendRecord, other: Option<&BackendRecord>| {
        other.map_or_else(String::new, |other| difference(&backend_fields(wanted), &backend_fields(other)))
    };
    let mut found = Vec::new();
    for (id, record) in programmed.backends().records().range(ids.clone()) {
        let other = there.get(id);
        if other != Some(record) {
            let write = Op::WriteBackend { id: *id, record: *record };
            found.push(entry(*id, Some(record)).found(kind(other), differs(record, other), write));
        }
    }
    for (id, generation) in programmed.backends().generations().range(ids.clone()) {
        let (free, other) = (records::free(family, *generation), there.get(id));
        if other != Some(&free) {
            let write = Op::FreeBackend { id: *id, generation: *generation };
            found.push(entry(*id, None).found(kind(other), differs(&free, other), write));
        }
    }
    let expected = |id: &BackendId| {
        programmed.backends().records().contains_key(id) || programmed.backends().generations().contains_key(id)
    };
    for (id, record) in there.iter().filter(|(id, _)| !expected(id)) {
        let free = Op::FreeBackend { id: *id, generation: record.generation };
        let Found { finding, .. } = entry(*id, Some(record)).found(FindingKind::Foreign, String::new(), free.clone());
        found.push(Found { finding, repair: Repair::Free(free) });
    }
    found
}

fn slots(programmed: &ProgrammedState, loaded: &Loaded) -> Vec<Found> {
    let mut found = Vec::new();
    for (range, there) in &loaded.slots {
        let Some(wanted) = programmed.slots().get(range.base) else { continue };
        for ((index, wanted), other) in
            (range.base..).zip(wanted).zip(there).filter(|((_, wanted), other)| wanted != other)
        {
            let kind = match other {
                empty if *empty == abi::Slot::default() => FindingKind::Missing,
                // Another range's slot: a reader takes it for half an update.
                other if (other.service, other.generation) != (wanted.service, wanted.generation) => FindingKind::Torn,
                _ => FindingKind::Edited,
            };
            let entry = TableEntry {
                table: map_name::SLOTS,
                name: format!("index {index}"),
                service: owner(programmed, wanted.service),
            };
            let differs = difference(&slot_fields(wanted), &slot_fields(other));
            found.push(entry.found(kind, differs, Op::WriteSlots { base: index, slots: vec![*wanted] }));
        }
    }
    found
}

fn sources(programmed: &ProgrammedState, loaded: &Loaded, family: Family) -> Vec<Found> {
    let there: BTreeMap<_, _> = loaded.sources.iter().map(|(id, network, source)| ((*id, *network), *source)).collect();
    let table = Part::Sources(family).name();
    let entry = |id: u32, network| TableEntry { table, name: format!("{network}"), service: owner(programmed, id) };
    let expected = programmed
        .services()
        .iter()
        .flat_map(|(id, service)| service.sources.iter().map(move |network| (id, *network)));
    let mut found = Vec::new();
    for (id, network) in expected.filter(|(_, network)| Family::of(network.addr()) == family) {
        let write = Op::WriteSource { id, network };
        match there.get(&(id, network)) {
            None => found.push(entry(id, network).found(FindingKind::Missing, String::new(), write)),
            Some(source) if source.service != id => {
                let differs = format!("service {}, expected {id}", source.service);
                found.push(entry(id, network).found(FindingKind::Torn, differs, write));
            }
            Some(_) => {}
        }
    }
    for (id, network) in there.keys() {
        if !programmed.services().get(*id).is_some_and(|service| service.sources.contains(network)) {
            let remove = Op::RemoveSource { id: *id, network: *network };
            found.push(entry(*id, *network).found(FindingKind::Foreign, String::new(), remove));
        }
    }
    found
}

fn services(programmed: &ProgrammedState, loaded: &Loaded, family: Family) -> Vec<Found> {
    let there: BTreeMap<_, _> = loaded.frontends.iter().copied().collect();
    let table = Part::Services(family).name();
    let mut found = Vec::new();
    let all = programmed.frontends().iter();
    for (frontend, wanted, uses) in all.filter(|(frontend, ..)| Family::of(frontend.address) == family) {
        let entry = TableEntry { table, name: frontend.to_string(), service: owner(programmed, wanted.id) };
        let write = Op::WriteFrontend { frontend, entry: *wanted, uses };
        match there.get(&frontend) {
            None => found.push(entry.found(FindingKind::Missing, String::new(), write)),
            Some(other) if other != wanted => {
                let sealed = frontend.seal(other) == other.seal;
                let kind = if sealed { FindingKind::Edited } else { FindingKind::Torn };
                found.push(entry.found(kind, difference(&service_fields(wanted), &service_fields(other)), write));
            }
            Some(_) => {}
        }
    }
    for (frontend, other) in there.iter().filter(|(frontend, _)| !programmed.frontends().contains(frontend)) {
        let entry = TableEntry { table, name: frontend.to_string(), service: owner(programmed, other.id) };
        found.push(entry.found(FindingKind::Foreign, String::new(), Op::RemoveFrontend { frontend: *frontend }));
    }
    found
}

fn vips(programmed: &ProgrammedState, loaded: &Loaded, family: Family) -> Vec<Found> {
    let there: BTreeMap<_, _> = loaded.vips.iter().copied().collect();
    let table = Part::Vips(family).name();
    let entry = |address| TableEntry { table, name: format!("{address}"), service: None };
    let mut found = Vec::new();
    for (address, vip) in programmed.vips().iter().filter(|(address, _)| Family::of(*address) == family) {
        let write = Op::WriteVip { address, vip: *vip };
        match there.get(&address) {
            None => found.push(entry(address).found(FindingKind::Missing, String::new(), write)),
            Some(other) if other != vip => {
                let differs = format!("flags {}, expected {}", other.flags, vip.flags);
                found.push(entry(address).found(FindingKind::Edited, differs, write));
            }
            Some(_) => {}
        }
    }
    for address in there.keys().filter(|address| programmed.vips().get(**address).is_none()) {
        found.push(entry(*address).found(FindingKind::Foreign, String::new(), Op::RemoveVip { address: *address }));
    }
    found
}

/// Addresses of services that packets are not looked up for. An address that is not ruled out costs no more than a look-up.
fn vip_filter(programmed: &ProgrammedState, loaded: &Loaded) -> Vec<Found> {
    let is_lost = |address| is_ruled_out(&loaded.vip_filter, address);
    let entry = |name, service| TableEntry { table: map_name::VIP_FILTER, name, service };
    let found = |entry: TableEntry<'_>, write| {
        entry.found(FindingKind::Edited, "ruled out by the VIP filter".to_owned(), write)
    };
    let frontends = programmed.frontends().iter().filter(|(frontend, ..)| is_lost(frontend.address));
    let frontends = frontends.map(|(frontend, wanted, uses)| {
        // Written again, it is made known first.
        let write = Op::WriteFrontend { frontend, entry: *wanted, uses };
        found(entry(frontend.to_string(), owner(programmed, wanted.id)), write)
    });
    let vips = programmed
        .vips()
        .iter()
        .filter(|(address, _)| is_lost(*address))
        .map(|(address, vip)| found(entry(address.to_string(), None), Op::WriteVip { address, vip: *vip }));
    frontends.chain(vips).collect()
}

fn config(programmed: &ProgrammedState, loaded: &Loaded) -> Vec<Found> {
    let (Some(wanted), Some(other)) = (programmed.config(), loaded.config) else { return Vec::new() };
    if wanted == other {
        return Vec::new();
    }
    let empty = other.abi_version == 0 && other.programmed_ds == 0;
    let kind = if empty { FindingKind::Missing } else { FindingKind::Edited };
    let fields = |config: &abi::Config| {
        vec![
            ("abi_version", config.abi_version.to_string()),
            ("programmed_ds", config.programmed_ds.to_string()),
            ("revision", (u64::from(config.revision_high) << 32 | u64::from(config.revision_low)).to_string()),
        ]
    };
    let revision = u64::from(wanted.revision_high) << 32 | u64::from(wanted.revision_low);
    let entry = TableEntry { table: map_name::CONFIG, name: "index 0".to_owned(), service: None };
    let write = Op::WriteConfig { revision, programmed_ds: wanted.programmed_ds };
    vec![entry.found(kind, difference(&fields(&wanted), &fields(&other)), write)]
}
