//! The comparison of how other nodes name the backends of this one.

use std::{collections::BTreeMap, net::IpAddr};

use lb_common::{abi, map::MapId};

use super::{
    Finding, FindingKind,
    fields::{difference, endpoint_fields},
    found::{Found, Repair, TableEntry, owner},
};
use crate::plan::{self, BackendId, Loaded, Op, Part, ProgrammedState, Stray};
use lb_model::Family;

pub(super) fn count(programmed: &ProgrammedState, family: Family) -> usize {
    wanted(programmed, family).len()
}

/// What other nodes are to find: each backend of this node whose deadline is not over, and what leads to it. Several ports of one address have one
/// name: either of them will do, but one that drains only where nobody follows.
fn wanted(programmed: &ProgrammedState, family: Family) -> BTreeMap<(IpAddr, u32), Vec<(BackendId, abi::Endpoint)>> {
    let mut named: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (id, record) in programmed.backends().records().iter().filter(|(id, _)| id.family == family) {
        if let Some(of) = plan::named(*id, record) {
            named.entry(of.key).or_default().push((*id, of));
        }
    }
    let either = named.into_iter().map(|(key, mut all)| {
        if all.iter().any(|(_, named)| !named.yields) {
            all.retain(|(_, named)| !named.yields);
        }
        (key, all.into_iter().map(|(id, named)| (id, named.endpoint)).collect())
    });
    either.collect()
}

pub(super) fn compare(programmed: &ProgrammedState, loaded: &Loaded, family: Family) -> Vec<Found> {
    let there: BTreeMap<_, _> = loaded.endpoints.iter().copied().collect();
    let table = Part::Endpoints(family).name();
    let entry =
        |(address, id): (IpAddr, u32)| TableEntry { table, name: address.to_string(), service: owner(programmed, id) };
    let wanted = wanted(programmed, family);
    let mut found = Vec::new();
    for (key, either) in &wanted {
        let Some((id, endpoint)) = either.first() else { continue };
        let Some(record) = programmed.backends().get(*id).copied() else { continue };
        let write = Op::WriteBackend { id: *id, record };
        match there.get(key) {
            None => found.push(entry(*key).found(FindingKind::Missing, String::new(), write)),
            Some(other) if either.iter().all(|(_, endpoint)| other != endpoint) => {
                let differs = difference(&endpoint_fields(*endpoint), &endpoint_fields(*other));
                found.push(entry(*key).found(FindingKind::Edited, differs, write));
            }
            Some(_) => {}
        }
    }
    // What leads to a backend that is gone stays until its id is given up.
    let is_left = |(address, service): &(IpAddr, u32), endpoint: &abi::Endpoint| {
        let record = programmed.backends().get(BackendId { family, id: endpoint.backend });
        record.is_some_and(|record| (record.address.ip(), record.service) == (*address, *service))
    };
    for (key, endpoint) in there.iter().filter(|(key, value)| !wanted.contains_key(key) && !is_left(key, value)) {
        let differs = format!("leads to backend id {}", endpoint.backend);
        let entry = entry(*key);
        let finding = Finding {
            kind: FindingKind::Foreign,
            table: table.to_owned(),
            entry: entry.name,
            service: entry.service,
            difference: differs,
            repaired: false,
        };
        let service = key.1.to_ne_bytes();
        let (table, key) = match key.0 {
            IpAddr::V4(v4) => (MapId::ENDPOINTS4, [v4.octets().as_slice(), &service].concat()),
            IpAddr::V6(v6) => (MapId::ENDPOINTS6, [v6.octets().as_slice(), &service].concat()),
        };
        found.push(Found { finding, repair: Repair::Stray(Stray { table, key }) });
    }
    found
}
