//! How many slots each set of a service port may have, so that its service and its namespace stay within their shares.
//!
//! A service's demand depends only on what the API says of it, so every node, and every agent on it, comes to the same limits. Each set counts with
//! all endpoints that are listed. Within a share the largest give first: all that ask for less than the limit get what they ask for.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use super::{DesiredService, PlanSettings, Set, layout};
use lb_model::{Family, ObjectName, PortKey, Refusal, Scheduler, Service};

/// Slots that each set of a service asks for, the fewest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Demand(Vec<u32>);

impl Demand {
    pub fn of(ports: &[(PortKey, DesiredService)]) -> Self {
        let mut sizes: Vec<u32> = ports.iter().flat_map(|(_, port)| sizes(port)).collect();
        sizes.sort_unstable();
        Self(sizes)
    }

    fn total(&self) -> u64 {
        self.0.iter().copied().map(u64::from).sum()
    }
}

/// Slots of each set of each family that frontends of the port use.
fn sizes(port: &DesiredService) -> Vec<u32> {
    let of_family = |family| {
        let frontends = port.frontends.iter().filter(move |(frontend, _)| Family::of(frontend.address) == family);
        let sets: Vec<Set> = frontends.flat_map(|(_, used)| [used.inside, used.outside]).collect();
        let count = usize::from(sets.contains(&Set::Cluster)) + usize::from(sets.contains(&Set::Local));
        let endpoints = port.endpoints.iter().filter(move |(address, _)| Family::of(address.ip()) == family);
        let weights: Vec<u16> = endpoints.map(|(_, endpoint)| endpoint.weight).collect();
        std::iter::repeat_n(layout::size(port.scheduler, port.maglev_size, &weights), count)
    };
    Family::ALL.into_iter().flat_map(of_family).collect()
}

/// The limit that keeps the sum of these within `room`, where the largest give first; `None`: it is without one. `sizes` ascend.
fn limit(sizes: impl ExactSizeIterator<Item = u64>, room: u64) -> Option<u64> {
    let (mut room, mut left) = (room, sizes.len() as u64);
    for size in sizes {
        if size * left > room {
            return Some(room / left);
        }
        room -= size;
        left -= 1;
    }
    None
}

/// What all services ask for.
#[derive(Debug, Default)]
pub(super) struct Shares {
    of_service: u64,
    of_namespace: u64,
    namespaces: BTreeMap<Arc<str>, Namespace>,
    /// Namespaces whose demand has changed.
    touched: BTreeSet<Arc<str>>,
}

#[derive(Debug, Default)]
struct Namespace {
    demands: BTreeMap<Arc<str>, Demand>,
    /// Of all demands, each cut to a service's share.
    total: u64,
    /// Slots that each of its services may have; `None`: the namespace is within its share.
    limit: Option<u64>,
}

impl Shares {
    pub fn new(settings: &PlanSettings) -> Self {
        let PlanSettings { slots, slot_shares, .. } = settings;
        Self {
            of_service: slot_shares.of_service(*slots).into(),
            of_namespace: slot_shares.of_namespace(*slots).into(),
            ..Self::default()
        }
    }

    /// Notes what a service asks for now.
    pub fn put(&mut self, name: &ObjectName, demand: Demand) {
        let namespace = self.namespaces.entry(name.namespace.clone()).or_default();
        let before = namespace.demands.get(&name.name);
        if before.unwrap_or(&Demand::default()) == &demand {
            return;
        }
        let charged = |demand: &Demand| demand.total().min(self.of_service);
        namespace.total -= before.map_or(0, charged);
        namespace.total += charged(&demand);
        if demand.0.is_empty() {
            namespace.demands.remove(&name.name);
        } else {
            namespace.demands.insert(name.name.clone(), demand);
        }
        self.touched.insert(name.namespace.clone());
    }

    /// Services whose limit is another one than before, since what others of their namespace ask for has changed.
    pub fn settle(&mut self) -> Vec<ObjectName> {
        let mut changed = Vec::new();
        for name in std::mem::take(&mut self.touched) {
            let Some(namespace) = self.namespaces.get_mut(&name) else { continue };
            let before = namespace.limit;
            namespace.limit = (namespace.total > self.of_namespace).then(|| {
                let asked = namespace.demands.values().map(|demand| demand.total().min(self.of_service));
                let mut asked: Vec<u64> = asked.collect();
                asked.sort_unstable();
                limit(asked.into_iter(), self.of_namespace).unwrap_or(self.of_namespace)
            });
            if namespace.limit != before {
                let least = [before, namespace.limit].into_iter().flatten().min().unwrap_or(0);
                let beyond = namespace.demands.iter().filter(|(_, demand)| demand.total() > least);
                changed.extend(beyond.map(|(service, _)| ObjectName::new(name.clone(), service.clone())));
            }
            if namespace.demands.is_empty() {
                self.namespaces.remove(&name);
            }
        }
        changed
    }

    /// Notes what a service asks for, and bounds it to its shares.
    pub fn bound(&mut self, name: &ObjectName, ports: &mut [(PortKey, DesiredService)]) -> Option<Refusal> {
        self.put(name, Demand::of(ports));
        let limit = self.limit_of(name)?;
        for (_, port) in ports {
            port.slots_max = Some(limit.each);
        }
        Some(limit.refusal(name))
    }

    /// Slots that each set of the service may have; `None`: as many as it asks for.
    pub fn limit_of(&self, name: &ObjectName) -> Option<Limit> {
        let namespace = self.namespaces.get(&name.namespace)?;
        let demand = namespace.demands.get(&name.name)?;
        let (room, whose) = match namespace.limit {
            Some(limit) if limit < self.of_service => (limit, Whose::Namespace { share: self.of_namespace }),
            _ => (self.of_service, Whose::Service),
        };
        let sizes = demand.0.iter().copied().map(u64::from);
        let each = limit(sizes, room)?;
        Some(Limit { asked: demand.total(), room, each: u32::try_from(each).unwrap_or(u32::MAX), whose })
    }
}

/// What a service may have, where it is less than it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    asked: u64,
    room: u64,
    /// Slots of each of its sets at most.
    pub each: u32,
    whose: Whose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Service,
    Namespace { share: u64 },
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, room, each, whose } = self;
        write!(f, "its sets ask for {asked} slots, and ")?;
        match whose {
            Whose::Service => write!(f, "a service may take {room}")?,
            Whose::Namespace { share } => {
                write!(f, "{room} are its part of the {share} that its namespace may take")?;
            }
        }
        write!(f, ": each set has at most {each}")
    }
}

impl Limit {
    pub fn refusal(self, service: &ObjectName) -> Refusal {
        Refusal::new(
            format!("Service {service}"),
            self.to_string(),
            "ask for smaller Maglev tables or have fewer endpoints, or raise --slot-shares or the slots of --map-sizes",
        )
    }
}

/// A Maglev table much larger than its endpoints need, and the size that they have instead.
pub(super) fn oversized(service: &Service, ports: &[(PortKey, DesiredService)]) -> Option<Refusal> {
    let asked = service.options.as_ref()?.maglev_size?;
    let of_maglev = ports.iter().filter(|(_, port)| port.scheduler == Scheduler::Maglev && !port.endpoints.is_empty());
    let most = of_maglev.filter_map(|(_, port)| port.maglev_size).max().filter(|most| *most < asked)?;
    Some(Refusal::new(
        format!("Service {}", service.name),
        format!("its endpoints need no Maglev table of {asked} slots: {most} will do, and it has that many"),
        "set the annotation ballast.dev/maglev-size to that, or remove it",
    ))
}
