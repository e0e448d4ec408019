//! The times of active checks: round-robin, with jitter, limited per second and at the same time. Pure: the time is an argument.
//!
//! Namespaces alternate, and none has more than its share under way: endpoints of one that never answer delay no other's checks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::Instant;

use super::endpoint::{Answer, Effect, Endpoint, Event};
use super::wanted::{Wanted, target};
use crate::agent::marks::Unhealthy;
use crate::config::CheckLimits;
use lb_model::Check;
use lb_model::PortKey;

/// Timers are not finer than milliseconds: checks due within this time may begin together.
const BURST: Duration = Duration::from_millis(10);
/// A period is this much longer or shorter, at most, so that checks that fell together drift apart.
const JITTER: f64 = 0.1;

/// An endpoint of a service port.
pub type Subject = (PortKey, SocketAddr);

/// A check that is to be made now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    pub id: u64,
    pub target: SocketAddr,
    pub check: Check,
}

/// An endpoint is unhealthy, or no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthChange {
    pub subject: Subject,
    pub is_failing: bool,
}

#[derive(Debug)]
struct Entry {
    subject: Subject,
    check: Check,
    endpoint: Endpoint,
}

/// The checks of one namespace.
#[derive(Debug, Default)]
struct Tenant {
    /// Those that wait for their turn.
    queue: BTreeSet<(Instant, u64)>,
    /// How many are checked, waiting or not.
    endpoints: u32,
    under_way: u32,
    /// Number of its last turn.
    turn: u64,
}

impl Tenant {
    /// When its next check is due; `None`: it waits for none, or has its `share` under way.
    fn due(&self, share: u32) -> Option<Instant> {
        self.queue.first().filter(|_| self.under_way < share).map(|(due, _)| *due)
    }
}

/// All endpoints that are checked.
#[derive(Debug)]
pub struct Schedule {
    limits: CheckLimits,
    ids: BTreeMap<Subject, u64>,
    entries: HashMap<u64, Entry>,
    tenants: BTreeMap<Arc<str>, Tenant>,
    last_id: u64,
    last_turn: u64,
    /// Namespaces of the checks that have begun and not ended.
    under_way: HashMap<u64, Arc<str>>,
    /// When the next check may begin; at most [`BURST`] ago.
    free_at: Instant,
    /// Unhealthy by an agent before this one, and not known to be checked yet.
    restored: Unhealthy,
    random: Rng,
}

impl Schedule {
    /// `seed`: any number; schedules with different ones ask at different times.
    pub fn new(limits: CheckLimits, restored: Unhealthy, seed: u64, now: Instant) -> Self {
        Self {
            limits,
            ids: BTreeMap::new(),
            entries: HashMap::new(),
            tenants: BTreeMap::new(),
            last_id: 0,
            last_turn: 0,
            under_way: HashMap::new(),
            free_at: now,
            restored,
            random: Rng::with_seed(seed),
        }
    }

    /// What is to be checked from now on. An endpoint whose method changed begins anew; so does one that comes back.
    pub fn set(&mut self, wanted: &Wanted, now: Instant) {
        let is_wanted =
            |(key, address): &Subject| wanted.get(key).is_some_and(|service| service.endpoints.contains(address));
        let gone: Vec<Subject> = self.ids.keys().filter(|subject| !is_wanted(subject)).cloned().collect();
        for subject in gone {
            self.forget(&subject);
        }
        for (key, service) in wanted {
            for address in &service.endpoints {
                self.want((key.clone(), *address), &service.check, now);
            }
        }
        // A failure of a backend that is not checked any more keeps it out no longer.
        self.restored.clear();
    }

    fn want(&mut self, subject: Subject, check: &Check, now: Instant) {
        if let Some(entry) = self.ids.get(&subject).and_then(|id| self.entries.get_mut(id)) {
            if (&entry.check.method, entry.check.port) == (&check.method, check.port) {
                entry.check.clone_from(check);
                return;
            }
            self.forget(&subject);
        }
        self.last_id += 1;
        let due = now + check.interval.mul_f64(self.random.f64());
        let endpoint = Endpoint::new(due, self.restored.contains(&subject));
        let tenant = self.tenants.entry(subject.0.service.namespace.clone()).or_default();
        tenant.endpoints += 1;
        tenant.queue.insert((due, self.last_id));
        self.ids.insert(subject.clone(), self.last_id);
        self.entries.insert(self.last_id, Entry { subject, check: check.clone(), endpoint });
    }

    fn forget(&mut self, subject: &Subject) {
        let Some(id) = self.ids.remove(subject) else { return };
        let due = self.entries.remove(&id).and_then(|entry| entry.endpoint.due());
        let namespace = &subject.0.service.namespace;
        if let Some(tenant) = self.tenants.get_mut(namespace) {
            tenant.endpoints -= 1;
            if let Some(due) = due {
                tenant.queue.remove(&(due, id));
            }
        }
        self.forget_idle(namespace);
    }

    fn forget_idle(&mut self, namespace: &Arc<str>) {
        if self.tenants.get(namespace).is_some_and(|tenant| tenant.endpoints == 0 && tenant.under_way == 0) {
            self.tenants.remove(namespace);
        }
    }

    /// Checks of one namespace that may be under way: one share is always left for a namespace that comes.
    fn share(&self) -> u32 {
        let tenants = u32::try_from(self.tenants.len()).unwrap_or(u32::MAX);
        (self.limits.in_flight.get() / tenants.saturating_add(1)).max(1)
    }

    /// When [`Self::next`] may have something; `None`: not before an answer or a change.
    pub fn due(&self) -> Option<Instant> {
        let share = self.share();
        let due = self.tenants.values().filter_map(|tenant| tenant.due(share)).min()?;
        (self.under_way() < self.limits.in_flight.get()).then(|| self.free_at.max(due))
    }

    /// The next check that is to be made, if one is and may be. Each one is to be followed by [`Self::over`].
    pub fn next(&mut self, now: Instant) -> Option<Ask> {
        if self.due()? > now {
            return None;
        }
        let share = self.share();
        let waiting = self.tenants.iter_mut().filter(|(_, tenant)| tenant.due(share).is_some_and(|due| due <= now));
        let (namespace, tenant) = waiting.min_by_key(|(_, tenant)| tenant.turn)?;
        let (_, id) = tenant.queue.pop_first()?;
        let entry = self.entries.get_mut(&id)?;
        let (endpoint, effect) = entry.endpoint.step(Event::Turn, now, &entry.check);
        entry.endpoint = endpoint;
        debug_assert_eq!(effect, Some(Effect::Ask), "only those that wait are in the queue");
        self.last_turn += 1;
        tenant.turn = self.last_turn;
        tenant.under_way += 1;
        self.under_way.insert(id, namespace.clone());
        let spacing = Duration::from_secs(1) / self.limits.per_second.get();
        self.free_at = self.free_at.max(now.checked_sub(BURST).unwrap_or(now)) + spacing;
        Some(Ask { id, target: target(entry.subject.1, &entry.check), check: entry.check.clone() })
    }

    /// A check has ended.
    pub fn over(&mut self, id: u64, answer: Answer, now: Instant) -> Option<HealthChange> {
        if let Some(namespace) = self.under_way.remove(&id) {
            if let Some(tenant) = self.tenants.get_mut(&namespace) {
                tenant.under_way -= 1;
            }
            self.forget_idle(&namespace);
        }
        let jitter = 1.0 + JITTER * (2.0 * self.random.f64() - 1.0);
        // Nobody wants to know any more, if it is gone.
        let entry = self.entries.get_mut(&id)?;
        let pause = entry.check.interval.mul_f64(jitter);
        let (endpoint, effect) = entry.endpoint.step(Event::Over { answer, pause }, now, &entry.check);
        entry.endpoint = endpoint;
        if let Some(tenant) = self.tenants.get_mut(&entry.subject.0.service.namespace) {
            tenant.queue.extend(endpoint.due().map(|due| (due, id)));
        }
        let is_failing = match effect? {
            Effect::Fail => true,
            Effect::Clear => false,
            Effect::Ask => return None,
        };
        Some(HealthChange { subject: entry.subject.clone(), is_failing })
    }

    /// Those whose checks fail.
    pub fn failing(&self) -> Unhealthy {
        let failing = self.entries.values().filter(|entry| entry.endpoint.is_failing());
        failing.map(|entry| entry.subject.clone()).collect()
    }

    /// How many endpoints are checked.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Checks that have begun and not ended.
    pub fn under_way(&self) -> u32 {
        u32::try_from(self.under_way.len()).unwrap_or(u32::MAX)
    }

    /// How long the one that waits longest has waited beyond its turn.
    pub fn late(&self, now: Instant) -> Duration {
        let first = self.tenants.values().filter_map(|tenant| tenant.queue.first()).min();
        first.map_or(Duration::ZERO, |(due, _)| now.saturating_duration_since(*due))
    }
}

#[cfg(test)]
mod tests;
