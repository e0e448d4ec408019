//! From what is written back to what was wanted: a service port that a restart found, as if its objects had been read.

use std::collections::BTreeSet;

use lb_common::abi::{self, BackendState, backend_flags, backend_state};

use super::{
    BackendId, BackendRecord, DesiredEndpoint, DesiredService, EndpointState, Mark, ProgrammedState, Range, Set, Use,
    layout::table_size, restore::ranges_of,
};
use lb_model::{Family, RateLimit, Scheduler};
use lb_tables::from_chars;

/// The service port with this id, such that wanting it changes nothing; `None`: no frontend leads to it.
///
/// An agent that was killed during a change may have left frontends at two generations. The newest slots of each set count, and a
/// backend that they do not lead to is to take no new flows.
pub(super) fn written(programmed: &ProgrammedState, id: u32) -> Option<DesiredService> {
    let service = programmed.services().get(id)?;
    let frontends = programmed.frontends();
    let entries: Vec<(Family, &abi::Service, Use)> = service
        .frontends
        .iter()
        .filter_map(|one| Some((Family::of(one.address), frontends.get(one)?, frontends.uses(one)?)))
        .collect();
    let (_, newest, _) = entries.iter().max_by_key(|(_, entry, _)| entry.generation)?;
    let mut sets = Sets::default();
    for (family, set) in Family::ALL.into_iter().flat_map(|family| [Set::Cluster, Set::Local].map(|set| (family, set)))
    {
        let ranges = entries.iter().filter(|(of, ..)| *of == family).flat_map(|(_, entry, uses)| {
            let used = ranges_of(entry).into_iter().zip([uses.inside, uses.outside]);
            used.filter(|(_, of)| *of == set).map(|(range, _)| (entry.generation, range))
        });
        if let Some((_, range)) = ranges.max_by_key(|(generation, _)| *generation) {
            sets.add(programmed, family, range, set);
        }
    }
    let scheduler = Scheduler::from_number(newest.scheduler).unwrap_or_default();
    let current = service.current.values().filter_map(|id| Some((*id, programmed.backends().get(*id)?)));
    Some(DesiredService {
        port_name: service.name.as_ref().map(|name| from_chars(&name.port_name)).unwrap_or_default(),
        affinity_timeout_s: newest.affinity_timeout_s,
        scheduler,
        rate_limit: RateLimit { rate: newest.rate, burst: newest.burst },
        maglev_size: sets.maglev_size.filter(|_| scheduler == Scheduler::Maglev),
        frontends: service.frontends.iter().filter_map(|one| Some((*one, frontends.uses(one)?))).collect(),
        endpoints: current.filter_map(|(id, record)| Some((record.address, sets.endpoint(id, record)?))).collect(),
        sources: service.sources.clone(),
        ..DesiredService::default()
    })
}

/// The backends that slots lead to.
#[derive(Default)]
struct Sets {
    cluster: BTreeSet<BackendId>,
    local: BTreeSet<BackendId>,
    /// The largest table that is not the one which its number of backends asks for.
    maglev_size: Option<u32>,
}

impl Sets {
    fn add(&mut self, programmed: &ProgrammedState, family: Family, range: Range, set: Set) {
        let Some(slots) = programmed.slots().get(range.base).filter(|_| range.count > 0) else { return };
        let members: BTreeSet<BackendId> = slots.iter().map(|slot| BackendId { family, id: slot.backend }).collect();
        let count = u32::try_from(members.len()).unwrap_or(u32::MAX);
        if table_size(count, None, u32::MAX) != Some(range.count) {
            self.maglev_size = self.maglev_size.max(Some(range.count));
        }
        match set {
            Set::Cluster => self.cluster.extend(members),
            Set::Local => self.local.extend(members),
        }
    }

    /// `None`: it only drains, or is gone.
    fn endpoint(&self, id: BackendId, record: &BackendRecord) -> Option<DesiredEndpoint> {
        let has = |flag| record.flags & flag != 0;
        let state = match BackendState::from_number(record.state)? {
            BackendState::Active | BackendState::Maintenance => EndpointState::Ready,
            BackendState::Unready => EndpointState::NotReady,
            BackendState::Terminating => EndpointState::Terminating,
            BackendState::Free | BackendState::Draining | BackendState::Gone => return None,
        };
        let mark = match record.state {
            backend_state::MAINTENANCE => Mark::Maintenance,
            _ if has(backend_flags::UNHEALTHY) => Mark::Unhealthy,
            _ => Mark::None,
        };
        Some(DesiredEndpoint {
            state,
            in_cluster_set: self.cluster.contains(&id),
            in_local_set: self.local.contains(&id),
            local: has(backend_flags::LOCAL),
            own_address: false,
            serving: has(backend_flags::SERVING),
            uid_hash: record.uid_hash,
            weight: record.weight,
            mark,
        })
    }
}
