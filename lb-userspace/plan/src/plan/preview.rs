//! Two snapshots planned by the same inputs, and what the second one would do to the tables that serve the first. Nothing is written.

mod settings;

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use lb_common::abi::backend_state;

use super::{
    BackendId, BackendRecord, Desired, DesiredEndpoint, DesiredService, Frontend, HealthCheck, Hold, MaglevTables,
    NodeFacts, Obstacle, PlanSettings, Planner, ProgrammedState, Set, diff_service,
    effect::{BackendEffect, BackendState, Change, Fate, FrontendEffect, PortEffect, fate},
    life::{self, DrainLimits, Step},
};
use lb_model::{Family, Monotonic, PortKey, Protocol, Refusal, Snapshot};

/// Looks at slots for the Maglev tables of one service port. Larger tables are not computed: whether there is room for their slots is not said.
const LOOKS: u64 = 1 << 13;

/// What a plan depends on besides the snapshot.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    pub facts: NodeFacts,
    pub settings: PlanSettings,
    /// What stays as a restart found it.
    pub hold: Hold,
}

/// The desired state before and after a change.
#[derive(Debug)]
pub struct Preview {
    settings: PlanSettings,
    before: Desired,
    after: Desired,
    /// Service ports that differ.
    ports: Vec<PortKey>,
}

/// What a health-check node port answers, before and after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheckEffect {
    pub port: u16,
    pub before: Option<HealthCheck>,
    pub after: Option<HealthCheck>,
}

impl Preview {
    /// Plans the snapshot that is served, then the one with the change. Costs as much as planning all of it.
    pub fn new(present: &Snapshot, changed: &Snapshot, inputs: Inputs) -> Self {
        let Inputs { facts, settings, hold } = inputs;
        let mut planner = Planner::new(settings.clone());
        planner.hold(hold);
        planner.update(present, &facts);
        let before = planner.desired().clone();
        let ports = planner.update(changed, &facts).services.into_iter().collect();
        let after = planner.into_desired();
        Self { settings, before, after, ports }
    }

    /// Service ports that differ, in their order.
    pub fn ports(&self) -> &[PortKey] {
        &self.ports
    }

    /// What would happen to a service port; `None`: nothing that shows.
    pub fn effect(&self, key: &PortKey, programmed: &ProgrammedState, now: Monotonic) -> Option<PortEffect> {
        let (before, after) = (self.before.services.get(key), self.after.services.get(key));
        let change = match (before, after) {
            (None, None) => return None,
            (None, Some(_)) => Change::Add,
            (Some(_), None) => Change::End,
            (Some(_), Some(_)) => Change::Change,
        };
        let settings = before.zip(after).map(|(before, after)| settings::of_port(before, after)).unwrap_or_default();
        let sides = Sides { key, before, after, programmed, settings: &self.settings, now };
        let (frontends, backends) = (self.frontends(&sides), sides.backends());
        let shows = change != Change::Change || !(settings.is_empty() && frontends.is_empty() && backends.is_empty());
        let taking = [before, after]
            .map(|port| port.map_or(0, |port| port.endpoints.values().filter(|one| takes_new(one)).count()));
        shows.then(|| PortEffect { key: key.clone(), change, settings, taking, frontends, backends })
    }

    /// Why the change of a service port alone would find no room in the tables as they are now; `None`: it would find room, as far as that is known.
    pub fn no_room(&self, key: &PortKey, programmed: &ProgrammedState, now: Monotonic) -> Option<Refusal> {
        let refused = |desired| match diff_service(
            key,
            desired,
            programmed,
            &mut MaglevTables::with_looks(LOOKS),
            &self.settings,
            now,
        ) {
            Err(Obstacle::NoRoom(refusal)) => Some(refusal),
            Err(Obstacle::Unfinished) | Ok(_) => None,
        };
        refused(&self.after).filter(|refusal| refused(&self.before).as_ref() != Some(refusal))
    }

    /// What the change would have refused that is not refused now.
    pub fn refusals(&self) -> Vec<Refusal> {
        let known: BTreeSet<&Refusal> = self.before.refusals.iter().collect();
        self.after.refusals.iter().filter(|refusal| !known.contains(refusal)).cloned().collect()
    }

    /// Health-check node ports that would answer otherwise.
    pub fn health_checks(&self) -> Vec<HealthCheckEffect> {
        let (before, after) = (&self.before.health_checks, &self.after.health_checks);
        let ports: BTreeSet<u16> = before.keys().chain(after.keys()).copied().collect();
        let effect = |port: u16| {
            let (before, after) = (before.get(&port).cloned(), after.get(&port).cloned());
            (before != after).then_some(HealthCheckEffect { port, before, after })
        };
        ports.into_iter().filter_map(effect).collect()
    }

    fn frontends(&self, sides: &Sides<'_>) -> Vec<FrontendEffect> {
        let of = |port: Option<&DesiredService>| -> BTreeSet<Frontend> {
            port.into_iter().flat_map(|port| port.frontends.keys()).copied().collect()
        };
        let all = &of(sides.before) | &of(sides.after);
        all.into_iter().filter_map(|frontend| self.frontend(frontend, sides)).collect()
    }

    /// A frontend that moves shows where it comes to.
    fn frontend(&self, frontend: Frontend, sides: &Sides<'_>) -> Option<FrontendEffect> {
        let of = |port: Option<&DesiredService>| port.and_then(|port| port.frontends.get(&frontend)).copied();
        let (before, after) = (of(sides.before), of(sides.after));
        let owner = |desired: &Desired| desired.owners.get(&frontend).filter(|owner| *owner != sides.key).cloned();
        let (from, to) = (owner(&self.before), owner(&self.after));
        let settings = before.zip(after).map(|(before, after)| settings::of_frontend(before, after));
        let change = match (before, after) {
            (None, _) if from.is_some() => Change::Move,
            (None, _) => Change::Add,
            (Some(_), None) if to.is_some() => return None,
            (Some(_), None) => Change::End,
            (Some(_), Some(_)) if settings.as_ref().is_none_or(Vec::is_empty) => return None,
            (Some(_), Some(_)) => Change::Change,
        };
        // The sweep cuts off TCP connections after the longest drain, and UDP flows at once.
        let fate = match (change, frontend.protocol) {
            (Change::End, Protocol::Udp) => Fate::End,
            (Change::End, _) => Fate::Drain,
            _ => Fate::Stay,
        };
        let from = from.filter(|_| change == Change::Move);
        let kind = after.or(before)?.kind;
        Some(FrontendEffect { frontend, kind, change, from, settings: settings.unwrap_or_default(), fate })
    }
}

/// A service port before and after, and what the tables hold of it.
struct Sides<'a> {
    key: &'a PortKey,
    before: Option<&'a DesiredService>,
    after: Option<&'a DesiredService>,
    programmed: &'a ProgrammedState,
    settings: &'a PlanSettings,
    now: Monotonic,
}

impl Sides<'_> {
    fn backends(&self) -> Vec<BackendEffect> {
        let ports = self.before.into_iter().chain(self.after);
        let all: BTreeSet<SocketAddr> = ports.flat_map(|port| port.endpoints.keys()).copied().collect();
        all.into_iter().filter_map(|address| self.backend(address)).collect()
    }

    fn backend(&self, address: SocketAddr) -> Option<BackendEffect> {
        let of = |port: Option<&DesiredService>| port.and_then(|port| port.endpoints.get(&address)).copied();
        let (before, after) = (of(self.before), of(self.after));
        let record = self.record(address);
        let (was, is) = (self.step(record, before, self.before), self.step(record, after, self.after));
        if was == is && (before == after || is == Step::Nothing) {
            return None;
        }
        // One whose end has come is no backend any more.
        let known = record.filter(|(_, record)| record.state != backend_state::GONE);
        let written = self.written(known, is, address, after);
        let change = match is {
            Step::New => Change::Add,
            Step::Replace(_) => Change::Replace,
            Step::Write(record) if record.state == backend_state::DRAINING => Change::Drain,
            // Nothing: it was wanted, and never written.
            Step::Evict(_) | Step::Nothing => Change::End,
            Step::Write(_) | Step::Keep => Change::Change,
        };
        let shown = |record: BackendRecord, endpoint: Option<DesiredEndpoint>| {
            BackendState::of(&record, endpoint.is_some_and(|endpoint| takes_new(&endpoint)))
        };
        let present = known.map(|(_, record)| record).or_else(|| self.described(address, before));
        let (seen, then) = (present.map(|record| shown(record, before)), written.map(|record| shown(record, after)));
        if seen == then && change == Change::Change {
            return None;
        }
        let left = |tenths: u32| (tenths != 0).then(|| Monotonic::from_tenths(tenths).since(self.now));
        let limits = written.filter(|_| change != Change::Replace);
        let deadline = limits.and_then(|record| left(record.deadline_ds));
        let mut fate = fate(self.key.protocol, change, written.as_ref(), self.has_other(address));
        if fate == Fate::Drain && deadline.is_some_and(|left| left < Duration::from_millis(100)) {
            fate = Fate::End;
        }
        let record = known.map(|(id, record)| (id, record.generation));
        let drain = limits.and_then(|record| left(record.drain_ds));
        Some(BackendEffect { address, change, record, before: seen, after: then, drain, deadline, fate })
    }

    /// The record that counts for an address.
    fn record(&self, address: SocketAddr) -> Option<(BackendId, BackendRecord)> {
        let service = self.programmed.services().by_key(self.key)?;
        let id = *service.current.get(&address)?;
        Some((id, *self.programmed.backends().get(id)?))
    }

    fn step(
        &self,
        known: Option<(BackendId, BackendRecord)>,
        endpoint: Option<DesiredEndpoint>,
        port: Option<&DesiredService>,
    ) -> Step {
        let is_idle = known.is_some_and(|(id, _)| self.programmed.drains().is_idle(id));
        let current = known.as_ref().map(|(_, record)| record);
        life::step(current, is_idle, endpoint, self.limits(port), self.now, self.settings)
    }

    /// What the Service says of drains holds for one that is deleted, too.
    fn limits(&self, port: Option<&DesiredService>) -> DrainLimits {
        let services = self.programmed.services();
        let written = || services.id_of(self.key).map(|id| services.own_drain_limits(id));
        let own = port.map(|port| port.drain_limits).or_else(written).unwrap_or_default();
        own.or(self.settings.drain_limits)
    }

    /// The record of the backend once the step is done; `None`: there is none.
    fn written(
        &self,
        known: Option<(BackendId, BackendRecord)>,
        step: Step,
        address: SocketAddr,
        after: Option<DesiredEndpoint>,
    ) -> Option<BackendRecord> {
        match step {
            Step::Write(record) => Some(record),
            Step::Keep => known.map(|(_, record)| record),
            Step::New | Step::Replace(_) => self.described(address, after),
            Step::Evict(_) | Step::Nothing => None,
        }
    }

    /// The record that a backend begins with.
    fn described(&self, address: SocketAddr, endpoint: Option<DesiredEndpoint>) -> Option<BackendRecord> {
        let blank = BackendRecord {
            address,
            state: backend_state::FREE,
            flags: 0,
            generation: 0,
            service: 0,
            deadline_ds: 0,
            drain_ds: 0,
            uid_hash: 0,
            weight: 1,
        };
        endpoint.map(|endpoint| life::describe(&blank, endpoint, self.now, self.settings))
    }

    /// Whether any backend of the family takes new connections after the change.
    fn has_other(&self, address: SocketAddr) -> bool {
        let family = Family::of(address.ip());
        let endpoints = self.after.into_iter().flat_map(|port| port.endpoints.iter());
        endpoints.into_iter().any(|(at, endpoint)| Family::of(at.ip()) == family && takes_new(endpoint))
    }
}

fn takes_new(endpoint: &DesiredEndpoint) -> bool {
    endpoint.is_in(Set::Cluster) || endpoint.is_in(Set::Local)
}

#[cfg(test)]
mod tests;
