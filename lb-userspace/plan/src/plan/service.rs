//! One service planned: its ports with the frontends that it has, their endpoints and source ranges; and what it is refused.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use lb_common::abi::service_flags;

use super::{
    DesiredEndpoint, DesiredService, Frontend, FrontendKind, Marks, OwnDrainLimits, Set, SortedMap, Use, checks,
    claim::Claim,
    claims::Claimed,
    endpoints::{self, Filled, Listed, Needs, filled},
    frontends::{self, Guard},
    mode,
    node_context::NodeContext,
    shares,
};
use lb_model::{Family, PortKey, Protocol, Refusal, Scheduler, Service, ServiceOptions, ServicePort};

/// What is wanted of one service.
#[derive(Debug, Default)]
pub(super) struct Planned {
    /// In the order of the keys.
    pub ports: Vec<(PortKey, DesiredService)>,
    pub refusals: Vec<Refusal>,
}

/// Plans a service that is ours.
pub(super) fn plan(service: &Service, listed: &Listed<'_>, claimed: &Claimed, context: &NodeContext) -> Planned {
    let mut refusals = frontends::unclaimed(service, context);
    let mut won: BTreeMap<(u16, Protocol), BTreeMap<Frontend, FrontendKind>> = BTreeMap::new();
    for (frontend, claim) in frontends::claims(service, context) {
        match (claimed.shadowed(&frontend, &claim), claimed.owner(&frontend)) {
            (Some(owner), _) => {
                refusals.push(belongs(service, &frontend, &format!("Service {owner}, whose cluster IP it is")));
            }
            (None, Some(first)) if *first == claim => {
                won.entry((claim.port, claim.protocol)).or_default().insert(frontend, claim.kind);
            }
            // The refusals of the addresses that it is derived from say so.
            (None, Some(_)) if claim.kind == FrontendKind::HostSocket => {}
            (None, Some(first)) => refusals.push(taken(service, &frontend, &claim, first)),
            // Every claim is put before anything is planned.
            (None, None) => {}
        }
    }
    let mut draft = Draft { service, listed, context, guard: Guard::of(service, context) };
    let by_key: BTreeMap<(u16, Protocol), &ServicePort> =
        service.ports.iter().map(|port| ((port.port, port.protocol), port)).collect();
    let ports = won.into_iter().filter_map(|((port, protocol), won)| {
        let key = PortKey { service: service.name.clone(), port, protocol };
        Some((key, draft.port(by_key.get(&(port, protocol))?, won)))
    });
    let ports: Vec<_> = ports.collect();
    refusals.extend(draft.unguarded(&ports));
    refusals.extend(unweighed(service, &ports));
    refusals.extend(mode::unscheduled(service, &ports, context));
    refusals.extend(mode::too_narrow(service, &ports, context));
    refusals.extend(shares::oversized(service, &ports));
    refusals.extend(checks::refusal(service, &ports, context));
    Planned { ports, refusals }
}

/// How new flows of the service are spread.
fn scheduler(service: &Service, context: &NodeContext) -> Scheduler {
    service.options.as_ref().and_then(|options| options.scheduler).unwrap_or(context.scheduler)
}

/// Slots of a Maglev table: those that are asked for, unless they are far more than the endpoints need.
fn maglev_size(
    options: Option<&ServiceOptions>,
    direct: bool,
    endpoints: &SortedMap<SocketAddr, DesiredEndpoint>,
) -> Option<u32> {
    let asked = options.and_then(|options| options.maglev_size);
    (direct || asked.is_some()).then(|| {
        let most = mode::table_size(&endpoints.keys());
        asked.map_or(most, |asked| asked.min(most))
    })
}

/// Weights under a scheduler that knows none.
fn unweighed(service: &Service, ports: &[(PortKey, DesiredService)]) -> Option<Refusal> {
    let is_weighed = service.options.as_ref().is_some_and(|options| !options.weights.is_empty());
    let deaf = ports.iter().map(|(_, port)| port.scheduler).find(|scheduler| !scheduler.is_weighed());
    deaf.filter(|_| is_weighed).map(|scheduler| {
        Refusal::new(
            format!("Service {}", service.name),
            format!("its weights have no say: the scheduler is {scheduler}"),
            "set the annotation ballast.dev/scheduler to weighted, least-connections or maglev",
        )
    })
}

fn taken(service: &Service, frontend: &Frontend, claim: &Claim, first: &Claim) -> Refusal {
    let by_cluster_ip = first.kind == FrontendKind::ClusterIp && claim.kind != FrontendKind::ClusterIp;
    let why = match () {
        () if first.service == claim.service => format!("port {}/{} of the same service", first.port, first.protocol),
        () if by_cluster_ip => format!("Service {}, whose cluster IP it is", first.service),
        () => format!("Service {}, which is older", first.service),
    };
    belongs(service, frontend, &why)
}

fn belongs(service: &Service, frontend: &Frontend, whose: &str) -> Refusal {
    Refusal::new(
        format!("Service {}", service.name),
        format!("{frontend} belongs to {whose}"),
        "give one of them another address or port",
    )
}

struct Draft<'a, 's> {
    service: &'a Service,
    listed: &'a Listed<'s>,
    context: &'a NodeContext,
    guard: Guard<'a>,
}

impl Draft<'_, '_> {
    fn port(&mut self, port: &ServicePort, won: BTreeMap<Frontend, FrontendKind>) -> DesiredService {
        let options = self.service.options.as_deref();
        let direct = mode::is_direct(self.service, port.protocol, self.context) && mode::has_outside(won.values());
        let scheduler = if direct { Scheduler::Maglev } else { scheduler(self.service, self.context) };
        let retry = options.and_then(|options| options.retry).unwrap_or(self.context.retry);
        let mut needs = [Needs::default(); 2];
        let mut uses: SortedMap<Frontend, Use> = SortedMap::default();
        for (frontend, kind) in won {
            let plain = frontends::use_of(self.service, kind);
            let needs = &mut needs[index(Family::of(frontend.address))];
            needs.add(plain.inside);
            needs.add(plain.outside);
            uses.insert(frontend, plain);
        }
        let key = PortKey { service: self.service.name.clone(), port: port.port, protocol: port.protocol };
        let marks = self.context.marks.of_port(&key);
        let (endpoints, pairs) = self.listed.of_port(port, needs, options, self.context, &marks);
        let filled = Family::ALL.map(|family| filled(&endpoints, family));
        let sets = [0, 1].map(|family| (needs[family], filled[family]));
        let mut problems = self.listed.problems(port, self.service, sets, &endpoints, self.context);
        problems.extend(pairs);
        let mut guarded = [false; 2];
        for (frontend, used) in &mut uses {
            let family = Family::of(frontend.address);
            let guard = self.guard.flags(used.kind, family);
            guarded[index(family)] |= guard != 0;
            used.flags |= mode::flags(frontend, *used, direct, self.context);
            used.flags |= guard | drops(*used, filled[index(family)]) | if retry { 0 } else { service_flags::NO_RETRY };
        }
        let guarded = Family::ALL.into_iter().filter(|family| guarded[index(*family)]);
        let check = options.and_then(|options| options.check.clone()).map(Box::new);
        let (check, unchecked) = checks::admitted(check, endpoints.keys(), self.context);
        DesiredService {
            port_name: port.name.clone(),
            affinity_timeout_s: self.service.affinity_timeout_s,
            scheduler,
            rate_limit: options.and_then(|options| options.rate_limit).unwrap_or_default(),
            maglev_size: maglev_size(options, direct, &endpoints),
            slots_max: None,
            drain_limits: options.map_or_else(OwnDrainLimits::default, |options| OwnDrainLimits {
                period: options.drain_period,
                max: options.drain_max,
            }),
            check,
            unchecked,
            frontends: uses,
            endpoints,
            sources: guarded.flat_map(|family| self.guard.ranges(family)).collect(),
            problems,
        }
    }

    /// Families in which ranges were given for another family only: nobody passes.
    fn unguarded(&mut self, ports: &[(PortKey, DesiredService)]) -> Vec<Refusal> {
        let uses = ports.iter().flat_map(|(_, port)| &port.frontends);
        let guarded = uses.filter(|(_, used)| used.flags & service_flags::SOURCE_RANGES != 0);
        let families: BTreeSet<Family> = guarded.map(|(frontend, _)| Family::of(frontend.address)).collect();
        let empty = families.into_iter().filter(|family| self.guard.ranges(*family).next().is_none());
        let empty: Vec<Family> = empty.collect();
        let refusal = |family: Family| {
            Refusal::new(
                format!("Service {}", self.service.name),
                format!(
                    "nobody passes its external {family} addresses: loadBalancerSourceRanges has no {family} range"
                ),
                format!("add an {family} range"),
            )
        };
        empty.into_iter().map(refusal).collect()
    }
}

/// Maintenance of a port whose objects cannot be read; see [`endpoints::maintain`].
pub(super) fn maintain(port: &mut DesiredService, marks: &Marks) {
    let before = port.endpoints.clone();
    endpoints::maintain(&mut port.endpoints, marks);
    if port.endpoints == before {
        return;
    }
    let filled = Family::ALL.map(|family| filled(&port.endpoints, family));
    for (frontend, used) in &mut port.frontends {
        used.flags &= !(service_flags::DROP_IF_EMPTY | service_flags::DROP_OUTSIDE_IF_EMPTY);
        used.flags |= drops(*used, filled[index(Family::of(frontend.address))]);
    }
}

/// Endpoints could serve, but none of those that the policy allows: drop, as kube-proxy does, since a refusal would be a lie.
fn drops(used: Use, filled: Filled) -> u8 {
    let is_dropped = |set| set == Set::Local && filled.usable && !filled.local;
    let inside = if is_dropped(used.inside) { service_flags::DROP_IF_EMPTY } else { 0 };
    let outside = if is_dropped(used.outside) { service_flags::DROP_OUTSIDE_IF_EMPTY } else { 0 };
    inside | outside
}

fn index(family: Family) -> usize {
    usize::from(family == Family::V6)
}
