//! Keeps what is wanted at the last snapshot: a new one is compared with it, and only what changed is planned again.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use imbl::ordmap::DiffItem;
use lb_common::abi::{self, vip_flags};

use super::{
    Desired, DesiredService, Frontend, FrontendKind, HealthCheck, PlanSettings,
    claim::Claim,
    claims::Claimed,
    cluster_ips::ClusterIps,
    endpoints::Listed,
    frontends, health_check,
    hold::Hold,
    node_context::{NodeContext, NodeFacts, slices_of},
    service,
    shares::{Demand, Shares},
};
use lb_model::{ObjectName, PortKey, Protocol, Refusal, Refused, Snapshot};

/// What is wanted otherwise than before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub services: BTreeSet<PortKey>,
    pub vips: BTreeSet<IpAddr>,
    /// Frontends that nobody wants any more. One may still be held by a service port that was to lose it to another.
    pub unwanted: BTreeSet<Frontend>,
    pub health_checks: bool,
    pub refusals: bool,
}

/// What is wanted for the last snapshot.
#[derive(Debug)]
pub struct Planner {
    settings: PlanSettings,
    context: NodeContext,
    snapshot: Snapshot,
    /// Of the last snapshot.
    cluster_ips: ClusterIps,
    claimed: Claimed,
    refusals: BTreeMap<ObjectName, Vec<Refusal>>,
    desired: Desired,
    /// Service ports whose endpoints are checked.
    checked: BTreeSet<PortKey>,
    /// Service ports with problems of their endpoints.
    troubled: BTreeSet<PortKey>,
    /// They are not those that were asked for last.
    has_new_problems: bool,
    shares: Shares,
    hold: Hold,
    /// Nothing was planned yet.
    is_fresh: bool,
}

impl Planner {
    pub fn new(settings: PlanSettings) -> Self {
        Self {
            context: NodeContext::new(&Snapshot::default(), &NodeFacts::default(), &ClusterIps::default(), &settings),
            shares: Shares::new(&settings),
            settings,
            snapshot: Snapshot::default(),
            cluster_ips: ClusterIps::default(),
            claimed: Claimed::default(),
            refusals: BTreeMap::new(),
            desired: Desired::default(),
            checked: BTreeSet::new(),
            troubled: BTreeSet::new(),
            has_new_problems: true,
            hold: Hold::default(),
            is_fresh: true,
        }
    }

    /// What an agent before this one wrote, and what stays until enough is known. To be set before the first snapshot.
    pub fn hold(&mut self, hold: Hold) {
        self.hold = hold;
    }

    /// What still stays as the tables held it.
    pub fn held(&self) -> &Hold {
        &self.hold
    }

    /// Whether the service is served as the tables held it.
    pub fn holds(&self, name: &ObjectName) -> bool {
        self.hold.get(name).is_some()
    }

    /// Plans the snapshot, and says what differs from the one before. What it costs grows with what changed, marks included;
    /// another place (the node's addresses, its zone, what is reserved on it) means to plan everything again.
    pub fn update(&mut self, snapshot: &Snapshot, facts: &NodeFacts) -> Changes {
        self.cluster_ips.follow(&self.snapshot, snapshot);
        let mut context = NodeContext::new(snapshot, facts, &self.cluster_ips, &self.settings);
        std::mem::swap(&mut context.marks, &mut self.context.marks);
        // From here on the marks are the new ones, and those in `context` the ones before.
        let mut marked = self.context.marks.differing(&context.marks, &self.snapshot);
        if self.context.marks.maintenance != context.marks.maintenance {
            marked.extend(self.hold.services().map(|(name, _)| name.clone()));
        }
        context.marks.clone_from(&self.context.marks);
        if context == self.context {
            return self.follow(snapshot, marked);
        }
        let (cluster_ips, hold) = (std::mem::take(&mut self.cluster_ips), std::mem::take(&mut self.hold));
        let fresh = Self { context, cluster_ips, hold, ..Self::new(self.settings.clone()) };
        let before = std::mem::replace(self, fresh).desired;
        self.follow(snapshot, BTreeSet::new());
        Changes {
            services: differing(&before.services, &self.desired.services),
            vips: differing(&before.vips, &self.desired.vips),
            unwanted: before.owners.into_keys().filter(|one| !self.desired.owners.contains_key(one)).collect(),
            health_checks: before.health_checks != self.desired.health_checks,
            refusals: before.refusals != self.desired.refusals,
        }
    }

    /// Cluster IPs that a link of the node has: the node answers there by itself.
    pub fn local_cluster_ips(&self) -> &BTreeSet<IpAddr> {
        &self.context.local_cluster_ips
    }

    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    pub fn into_desired(self) -> Desired {
        self.desired
    }

    /// Service ports whose endpoints are checked: few among many.
    pub fn checked(&self) -> impl Iterator<Item = (&PortKey, &DesiredService)> {
        self.checked.iter().filter_map(|key| self.desired.services.get_key_value(key))
    }

    /// Service ports with [`DesiredService::problems`].
    pub fn troubled(&self) -> impl Iterator<Item = (&PortKey, &DesiredService)> {
        self.troubled.iter().filter_map(|key| self.desired.services.get_key_value(key))
    }

    /// Whether problems of endpoints came, went or changed since this was asked last.
    pub fn take_new_problems(&mut self) -> bool {
        std::mem::take(&mut self.has_new_problems)
    }

    /// Plans what differs between the last snapshot and this one, at the same place, and the services that are `dirty` besides.
    fn follow(&mut self, snapshot: &Snapshot, mut dirty: BTreeSet<ObjectName>) -> Changes {
        let before = std::mem::replace(&mut self.snapshot, snapshot.clone());
        let mut named = BTreeSet::new();
        self.review_hold(&before, &mut dirty, &mut named);
        for change in before.services.diff(&snapshot.services) {
            let (old, new) = match change {
                DiffItem::Add(_, new) => (None, Some(new)),
                DiffItem::Update { old, new } => (Some(old.1), Some(new.1)),
                DiffItem::Remove(_, old) => (Some(old), None),
            };
            let is_held = old.or(new).is_some_and(|service| self.hold.get(&service.name).is_some());
            if let Some(old) = old.filter(|_| !is_held) {
                self.claimed.remove_service(old, &self.context);
            }
            if let Some(new) = new.filter(|_| !is_held) {
                self.claimed.put_service(new, &self.context);
            }
            named.extend(old.into_iter().chain(new).flat_map(|service| frontends::published(service, &self.context)));
            dirty.extend(old.or(new).map(|service| service.name.clone()));
        }
        for change in before.slices.diff(&snapshot.slices) {
            let (DiffItem::Add(key, _) | DiffItem::Update { old: (key, _), .. } | DiffItem::Remove(key, _)) = change;
            dirty.insert(ObjectName { namespace: key.namespace.clone(), name: key.service.clone() });
        }
        let mut changes = Changes::default();
        self.settle_claims(&mut dirty, named, &mut changes);
        for name in &dirty {
            self.plan_service(name, &mut changes);
        }
        for name in self.shares.settle() {
            self.plan_service(&name, &mut changes);
        }
        if changes.refusals {
            self.desired.refusals = Refused::of(self.refusals.values().flatten());
        }
        changes
    }

    /// Gives up what this snapshot knows enough of, as if it had never been held: `before` knew it, too.
    fn review_hold(&mut self, before: &Snapshot, dirty: &mut BTreeSet<ObjectName>, named: &mut BTreeSet<IpAddr>) {
        let Self { context, claimed, .. } = self;
        for (name, held) in self.hold.review(&self.snapshot, |service| frontends::is_ours(service, context)) {
            claimed.remove_held(&name, held.claims());
            before.services.get(&name).into_iter().for_each(|service| claimed.put_service(service, context));
            named.extend(held.addresses());
            dirty.insert(name);
        }
        if std::mem::take(&mut self.is_fresh) {
            for (name, held) in self.hold.services() {
                claimed.put_held(name, held.claims());
                named.extend(held.addresses());
                dirty.insert(name.clone());
            }
        }
    }

    /// Gives what came to another claim to its new owner. All that claim it are to be planned again. `addresses`: published by the
    /// services that changed.
    fn settle_claims(
        &mut self,
        dirty: &mut BTreeSet<ObjectName>,
        mut addresses: BTreeSet<IpAddr>,
        changes: &mut Changes,
    ) {
        let mut touched = self.claimed.frontends.take_changed();
        for address in self.claimed.cluster_ips.take_changed() {
            touched.extend(self.claimed.at(address).map(|(frontend, _)| *frontend));
        }
        for frontend in touched {
            if let Some(owner) = self.claimed.owner(&frontend) {
                self.desired.owners.insert(frontend, owner.key());
            } else {
                self.desired.owners.remove(&frontend);
                changes.unwanted.insert(frontend);
            }
            dirty.extend(self.claimed.frontends.all(&frontend).map(|claim| claim.service.clone()));
            // A health check on this port has to give way, or may come back.
            dirty.extend(self.claimed.health.all(&frontend.port).map(|(_, name)| name.clone()));
            addresses.insert(frontend.address);
        }
        for address in addresses {
            let vip = self.vip(address);
            if self.desired.vips.get(&address) != vip.as_ref() {
                changes.vips.insert(address);
                match vip {
                    Some(vip) => self.desired.vips.insert(address, vip),
                    None => self.desired.vips.remove(&address),
                };
            }
        }
        for port in self.claimed.health.take_changed() {
            dirty.extend(self.claimed.health.all(&port).map(|(_, name)| name.clone()));
            self.desired.health_checks.remove(&port);
            changes.health_checks = true;
        }
    }

    /// What becomes of packets to this address that no frontend serves. Neither applies to a node's own address, nor to that of the API server where
    /// some load balancer names it: its port is no frontend's, and must not be refused.
    ///
    /// A load balancer may also publish the addresses of other nodes (ADR 0013).
    fn vip(&mut self, address: IpAddr) -> Option<abi::Vip> {
        let here = [&self.context.addresses, &self.context.local_cluster_ips];
        if address.is_unspecified() || here.iter().any(|own| own.contains(&address)) {
            return None;
        }
        let claims: Vec<&Claim> = self.claimed.at(address).map(|(_, claim)| claim).collect();
        if claims.iter().any(|claim| self.hold.get(&claim.service).is_some()) {
            return self.hold.vip(address);
        }
        let has = |kind| claims.iter().any(|claim| claim.kind == kind);
        if !has(FrontendKind::ClusterIp) {
            let may_be_a_nodes = claims.is_empty()
                || self.context.reserved.iter().any(|(at, ..)| *at == address)
                || self.context.networks.iter().any(|network| network.contains(&address))
                || claims.iter().any(|claim| self.publishes_node(&claim.service));
            if may_be_a_nodes {
                return None;
            }
        }
        let is_refused = has(FrontendKind::ClusterIp) || has(FrontendKind::LoadBalancer);
        Some(abi::Vip { flags: vip_flags::ECHO | if is_refused { vip_flags::REFUSE_UNSERVED } else { 0 } })
    }

    /// Whether a service is published at an address of this node: its others may be those of other nodes.
    fn publishes_node(&self, name: &ObjectName) -> bool {
        let service = self.snapshot.services.get(name);
        let mut published = service.into_iter().flat_map(|service| frontends::published(service, &self.context));
        published.any(|address| self.context.addresses.contains(&address))
    }

    fn plan_service(&mut self, name: &ObjectName, changes: &mut Changes) {
        if let Some(held) = self.hold.get(name) {
            let (mut ports, mut refusals) = (held.owned(&self.claimed, &self.context.marks), vec![held.refusal(name)]);
            refusals.extend(self.shares.bound(name, &mut ports));
            self.put_ports(name, ports, changes);
            self.put_refusals(name, refusals, changes);
            return;
        }
        let Self { context, snapshot, claimed, shares, .. } = self;
        let service = snapshot.services.get(name).map(AsRef::as_ref);
        let service = service.filter(|service| frontends::is_ours(service, context));
        let Some(service) = service else {
            self.shares.put(name, Demand::default());
            self.put_ports(name, Vec::new(), changes);
            self.put_refusals(name, Vec::new(), changes);
            return;
        };
        let listed = Listed::new(slices_of(snapshot, name));
        let mut planned = service::plan(service, &listed, claimed, context);
        planned.refusals.extend(shares.bound(name, &mut planned.ports));
        if let Some(port) = service.health_check_node_port {
            let checks = &mut self.desired.health_checks;
            if let Some(refusal) = health_check::refused(service, port, claimed, context) {
                planned.refusals.push(refusal);
                // If it had the port until now, nobody has it.
                let had = checks.get(&port).is_some_and(|check| check.service == *name);
                changes.health_checks |= had && checks.remove(&port).is_some();
            } else {
                let local_ready = health_check::local_ready(service, &listed, context);
                let check = HealthCheck { service: name.clone(), local_ready };
                let before = checks.insert(port, check.clone());
                changes.health_checks |= before != Some(check);
            }
        }
        self.put_ports(name, planned.ports, changes);
        self.put_refusals(name, planned.refusals, changes);
    }

    fn put_ports(&mut self, name: &ObjectName, ports: Vec<(PortKey, DesiredService)>, changes: &mut Changes) {
        let services = &mut self.desired.services;
        let first = PortKey { service: name.clone(), port: 0, protocol: Protocol::Tcp };
        let held = services.range(first..).take_while(|(key, _)| key.service == *name).map(|(key, _)| key);
        let gone: Vec<PortKey> =
            held.filter(|key| ports.binary_search_by(|(port, _)| port.cmp(key)).is_err()).cloned().collect();
        for key in gone {
            services.remove(&key);
            self.checked.remove(&key);
            self.has_new_problems |= self.troubled.remove(&key);
            changes.services.insert(key);
        }
        for (key, port) in ports {
            if services.get(&key) != Some(&port) {
                changes.services.insert(key.clone());
                let known = services.get(&key).map_or(&[][..], |port| &port.problems);
                self.has_new_problems |= known != port.problems;
                let lists = [&mut self.checked, &mut self.troubled];
                for (list, is_in) in lists.into_iter().zip([port.check.is_some(), !port.problems.is_empty()]) {
                    let _ = if is_in { list.insert(key.clone()) } else { list.remove(&key) };
                }
                services.insert(key, port);
            }
        }
    }

    fn put_refusals(&mut self, name: &ObjectName, refusals: Vec<Refusal>, changes: &mut Changes) {
        if self.refusals.get(name).map_or(&[][..], Vec::as_slice) == refusals {
            return;
        }
        changes.refusals = true;
        if refusals.is_empty() {
            self.refusals.remove(name);
        } else {
            self.refusals.insert(name.clone(), refusals);
        }
    }
}

/// Plans the whole snapshot.
pub fn plan(snapshot: &Snapshot, facts: &NodeFacts, settings: &PlanSettings) -> Desired {
    let mut planner = Planner::new(settings.clone());
    planner.update(snapshot, facts);
    planner.desired
}

fn differing<K: Ord + Clone, V: PartialEq>(before: &BTreeMap<K, V>, after: &BTreeMap<K, V>) -> BTreeSet<K> {
    before.keys().chain(after.keys()).filter(|key| before.get(key) != after.get(key)).cloned().collect()
}
