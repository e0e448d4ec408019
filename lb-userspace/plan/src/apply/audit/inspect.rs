//! The tables compared with themselves: the findings that need no agent, from seals, generations and who refers to whom.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use lb_common::abi::{self, map_name};

use super::{Finding, FindingKind};
use crate::{
    apply::{Store, StoreError},
    plan::{BackendId, BackendRecord, Frontend, Loaded, Part, Range},
};
use lb_model::{Family, Protocol};
use lb_tables::{from_chars, vip_filter::is_ruled_out};

/// All that a store holds, and how many entries that is.
pub fn read_all(store: &impl Store) -> Result<(Loaded, usize), StoreError> {
    let mut loaded = store.load()?;
    let ranges = loaded.ranges(store.capacities().of(Part::Slots));
    let slots = store.slots(&ranges)?;
    let checked = loaded.names.len()
        + loaded.frontends.len()
        + loaded.backends.len()
        + loaded.sources.len()
        + loaded.vips.len()
        + loaded.endpoints.len()
        + slots.iter().map(Vec::len).sum::<usize>();
    loaded.slots = ranges.into_iter().zip(slots).collect();
    Ok((loaded, checked))
}

/// Everything that cannot have been written as it stands.
pub fn inspect(loaded: &Loaded) -> Vec<Finding> {
    let tables = Inspected {
        names: loaded.names.iter().copied().collect(),
        backends: loaded.backends.iter().copied().collect(),
        slots: loaded.slots.iter().map(|(range, slots)| (*range, slots.as_slice())).collect(),
    };
    let mut findings: Vec<Finding> =
        loaded.frontends.iter().flat_map(|(frontend, entry)| tables.frontend(*frontend, entry)).collect();
    for (id, network, source) in &loaded.sources {
        let table = Part::Sources(Family::of(network.addr())).name();
        if source.service != *id {
            let differs = format!("service {}, expected {id}", source.service);
            findings.push(tables.finding(FindingKind::Torn, table, network.to_string(), *id, differs));
        } else if !tables.names.contains_key(id) {
            findings.push(tables.finding(FindingKind::Foreign, table, network.to_string(), *id, String::new()));
        }
    }
    let passed_by: BTreeSet<IpAddr> =
        loaded.addresses().filter(|address| is_ruled_out(&loaded.vip_filter, *address)).collect();
    findings.extend(passed_by.into_iter().map(|address| {
        let differs = "ruled out by the VIP filter".to_owned();
        tables.finding(FindingKind::Edited, map_name::VIP_FILTER, address.to_string(), 0, differs)
    }));
    findings.extend(loaded.strays.iter().map(|stray| {
        tables.finding(FindingKind::Foreign, stray.table.name(), format!("key {:02x?}", stray.key), 0, String::new())
    }));
    // A range serves several frontends: what is wrong with it is one thing.
    let findings: BTreeSet<Finding> = findings.into_iter().collect();
    findings.into_iter().collect()
}

/// What entries of `services4` and `services6` refer to.
struct Inspected<'a> {
    names: BTreeMap<u32, abi::ServiceName>,
    backends: BTreeMap<BackendId, BackendRecord>,
    slots: BTreeMap<Range, &'a [abi::Slot]>,
}

impl Inspected<'_> {
    fn finding(&self, kind: FindingKind, table: &str, entry: String, service: u32, difference: String) -> Finding {
        Finding { kind, table: table.to_owned(), entry, service: self.owner(service), difference, repaired: false }
    }

    fn owner(&self, id: u32) -> Option<String> {
        let name = self.names.get(&id)?;
        let protocol = Protocol::from_number(name.protocol)?;
        Some(format!("{}/{}:{}/{protocol}", from_chars(&name.namespace), from_chars(&name.name), name.port))
    }

    fn frontend(&self, frontend: Frontend, entry: &abi::Service) -> Vec<Finding> {
        let family = Family::of(frontend.address);
        let table = Part::Services(family).name();
        if entry.seal != frontend.seal(entry) {
            let differs = format!("seal {}, expected {}", entry.seal, frontend.seal(entry));
            // Nothing in it can be trusted, so nothing that it leads to is compared.
            return vec![self.finding(FindingKind::Torn, table, frontend.to_string(), entry.id, differs)];
        }
        let mut findings = Vec::new();
        if !self.names.contains_key(&entry.id) {
            let id = format!("id {}", entry.id);
            findings.push(self.finding(FindingKind::Missing, map_name::NAMES, id, entry.id, String::new()));
        }
        let inside = Range { base: entry.slot_base, count: entry.slot_count };
        let outside = Range { base: entry.external_base, count: entry.external_count };
        for range in BTreeSet::from([inside, outside]).into_iter().filter(|range| range.count > 0) {
            match self.slots.get(&range) {
                Some(slots) => findings.extend(self.range(family, range, slots, entry)),
                None => findings.push(self.finding(
                    FindingKind::Edited,
                    table,
                    frontend.to_string(),
                    entry.id,
                    format!("there are no {} slots from {}", range.count, range.base),
                )),
            }
        }
        findings
    }

    fn range(&self, family: Family, range: Range, slots: &[abi::Slot], entry: &abi::Service) -> Vec<Finding> {
        let look = |(index, slot): (u32, &abi::Slot)| {
            let of_slot =
                |kind, differs| self.finding(kind, map_name::SLOTS, format!("index {index}"), entry.id, differs);
            if *slot == abi::Slot::default() {
                return Some(of_slot(FindingKind::Missing, String::new()));
            }
            if (slot.service, slot.generation) != (entry.id, entry.generation) {
                let differs = format!(
                    "service {} generation {}, expected service {} generation {}",
                    slot.service, slot.generation, entry.id, entry.generation
                );
                return Some(of_slot(FindingKind::Torn, differs));
            }
            let record = self.backends.get(&BackendId { family, id: slot.backend });
            let fits =
                |record: &BackendRecord| record.generation == slot.backend_generation && record.service == entry.id;
            let differs = || format!("leads to backend id {}, which is not this service port's", slot.backend);
            record.is_none_or(|record| !fits(record)).then(|| of_slot(FindingKind::Edited, differs()))
        };
        (range.base..).zip(slots).filter_map(look).collect()
    }
}
