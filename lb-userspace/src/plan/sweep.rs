//! What may be released: ranges that rested, ids that no flow refers to, services that have nothing left.

use std::collections::BTreeSet;

use super::{BackendId, Book, Desired, Op, PortKey, Range};
use crate::model::Monotonic;

/// Releases that need no look at the flows, each with the service port that it is for.
pub fn sweep(book: &Book, desired: &Desired, now: Monotonic) -> Vec<(PortKey, Op)> {
    let mut ops = Vec::new();
    for (_, base) in book.resting.iter().take_while(|(until, _)| *until <= now) {
        let Some(slots) = book.ranges.get(base) else { continue };
        let service = slots.first().map_or(0, |slot| slot.service);
        let count = u32::try_from(slots.len()).unwrap_or(u32::MAX);
        ops.push((key_of(book, service), Op::ReleaseSlots { range: Range { base: *base, count } }));
    }
    for (id, service) in book.empty.iter().filter_map(|id| Some((id, book.services.get(id)?))) {
        if !desired.services.contains_key(&service.key) {
            ops.push((service.key.clone(), Op::ForgetService { id: *id }));
        }
    }
    ops
}

/// Frees the ids of backends that are gone and that no flow refers to. `referred` holds those that some flow does.
pub fn free_unreferred(book: &Book, desired: &Desired, referred: &BTreeSet<BackendId>) -> Vec<(PortKey, Op)> {
    let mut ops = Vec::new();
    for id in book.gone.difference(referred) {
        let Some(record) = book.backends.get(id) else { continue };
        let key = key_of(book, record.service);
        // As long as the API lists one that has had its time, without its record it would be taken for a new one.
        let listed = desired.services.get(&key).is_some_and(|wanted| wanted.endpoints.contains_key(&record.address));
        let current = book.services.get(&record.service).and_then(|service| service.current.get(&record.address));
        if !(listed && current == Some(id)) {
            ops.push((key, Op::FreeBackend { id: *id, generation: record.generation }));
        }
    }
    ops
}

fn key_of(book: &Book, service: u32) -> PortKey {
    book.services.get(&service).map_or_else(|| super::restore::nameless(service), |service| service.key.clone())
}
