//! What may be released: slot ranges whose grace period is over, ids that no flow refers to, services that have nothing left.

use std::collections::BTreeSet;

use super::{BackendId, Desired, Op, ProgrammedState, Range};
use lb_model::{Monotonic, PortKey};

/// Releases that need no look at the flows, each with the service port that it is for, one after the other.
pub fn sweep<'a>(
    programmed: &'a ProgrammedState,
    desired: &'a Desired,
    now: Monotonic,
) -> impl Iterator<Item = (PortKey, Op)> + 'a {
    let reusable =
        programmed.slots().unused().iter().take_while(move |(until, _)| *until <= now).filter_map(|(_, base)| {
            let slots = programmed.slots().get(*base)?;
            let service = slots.first().map_or(0, |slot| slot.service);
            let count = u32::try_from(slots.len()).unwrap_or(u32::MAX);
            Some((key_of(programmed, service), Op::ReleaseSlots { range: Range { base: *base, count } }))
        });
    let empty = programmed.services().empty().iter().filter_map(|id| Some((id, programmed.services().get(*id)?)));
    let over = empty.filter(|(_, service)| !desired.services.contains_key(&service.key));
    reusable.chain(over.map(|(id, service)| (service.key.clone(), Op::ForgetService { id: *id })))
}

/// Frees the ids of backends that are gone and that no flow refers to, one after the other. `referred` holds those that some flow does.
pub fn free_unreferred<'a>(
    programmed: &'a ProgrammedState,
    desired: &'a Desired,
    referred: &'a BTreeSet<BackendId>,
) -> impl Iterator<Item = (PortKey, Op)> + 'a {
    programmed.backends().gone().difference(referred).filter_map(|id| {
        let record = programmed.backends().get(*id)?;
        let key = key_of(programmed, record.service);
        // As long as the API lists one that has had its time, without its record it would be taken for a new one.
        let listed = desired.services.get(&key).is_some_and(|wanted| wanted.endpoints.contains_key(&record.address));
        let current =
            programmed.services().get(record.service).and_then(|service| service.current.get(&record.address));
        let is_free = !(listed && current == Some(id));
        is_free.then_some((key, Op::FreeBackend { id: *id, generation: record.generation }))
    })
}

fn key_of(programmed: &ProgrammedState, service: u32) -> PortKey {
    programmed.services().get(service).map_or_else(|| super::restore::nameless(service), |service| service.key.clone())
}
