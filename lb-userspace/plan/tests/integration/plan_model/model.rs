//! The rules of Services, written down once more: as short as can be, from the rules alone, with no care for speed.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;
use lb_model::{
    Endpoint, Exposure, Family, ObjectName, PortKey, Protocol, Scheduler, Service, ServicePort, Snapshot,
    TrafficPolicy, Weighed,
};
use lb_plan::plan::{Frontend, FrontendKind, NodeFacts, NodePortAddresses, PlanSettings, Target};

/// What a client meets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Served {
    /// Each with its weight.
    By(BTreeMap<SocketAddr, u16>),
    Refused,
    Dropped,
}

/// Who may pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guarded {
    pub networks: BTreeSet<IpNet>,
    pub node: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub owner: PortKey,
    pub kind: FrontendKind,
    pub inside: Served,
    pub outside: Served,
    /// An external client keeps its address.
    pub keeps_client: bool,
    pub guarded: Option<Guarded>,
    pub affinity_timeout_s: u32,
    pub scheduler: Scheduler,
    pub retries: bool,
}

/// Everything that a user would notice of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    pub frontends: BTreeMap<Frontend, Shown>,
    /// Virtual addresses: whether ports that nobody serves are refused.
    pub vips: BTreeMap<IpAddr, bool>,
    /// Port, service, endpoints of this node that are ready.
    pub health: BTreeMap<u16, (ObjectName, usize)>,
}

pub struct PlanInput<'a> {
    pub snapshot: &'a Snapshot,
    pub facts: &'a NodeFacts,
    pub settings: &'a PlanSettings,
}

/// A port of a service that wants a frontend to be of a kind.
type Claim<'a> = (&'a Service, &'a ServicePort, FrontendKind);

impl PlanInput<'_> {
    pub fn view(&self) -> View {
        let mut claims: BTreeMap<Frontend, Vec<Claim<'_>>> = BTreeMap::new();
        for service in self.ours() {
            for port in &service.ports {
                for (frontend, kind) in self.wanted(service, port) {
                    claims.entry(frontend).or_default().push((service, port, kind));
                }
            }
        }
        // What is a service's cluster IP is nobody else's load balancer, at any port.
        let cluster_ips: BTreeMap<IpAddr, &Service> = {
            let mut owned: Vec<(&Service, IpAddr)> =
                self.ours().flat_map(|service| service.cluster_ips.iter().map(move |ip| (service, *ip))).collect();
            owned.sort_by(|(a, _), (b, _)| age(b).cmp(&age(a)));
            owned.into_iter().map(|(service, ip)| (ip, service)).collect()
        };
        let mut view = View::default();
        for (frontend, mut claims) in claims {
            let owner = cluster_ips.get(&frontend.address);
            claims.retain(|(service, _, kind)| {
                *kind == FrontendKind::ClusterIp || owner.is_none_or(|owner| owner.name == service.name)
            });
            if claims.is_empty() {
                continue;
            }
            let (service, port, kind) = winner(&claims);
            view.frontends.insert(frontend, self.shown(service, port, kind, Family::of(frontend.address)));
            if !self.is_own(frontend.address) && kind != FrontendKind::HostSocket {
                let refuses = matches!(kind, FrontendKind::ClusterIp | FrontendKind::LoadBalancer);
                *view.vips.entry(frontend.address).or_default() |= refuses;
            }
        }
        // Something of somebody else's listens at an address that is reserved: only a cluster IP makes it a service's all the same.
        let is_free = |address: &IpAddr| self.facts.reserved.iter().all(|(reserved, ..)| reserved != address);
        let is_cluster_ip = |address: &IpAddr| {
            view.frontends
                .iter()
                .any(|(frontend, shown)| frontend.address == *address && shown.kind == FrontendKind::ClusterIp)
        };
        // A neighbour's address, or one beside this node's own, may be another node's.
        let is_far = |address: &IpAddr| !self.facts.networks.iter().any(|network| network.contains(address));
        let is_alone = |address: &IpAddr| {
            let owners = view.frontends.iter().filter(|(frontend, _)| frontend.address == *address);
            let mut published =
                owners.flat_map(|(_, shown)| self.published(&self.snapshot.services[&shown.owner.service]));
            !published.any(|one| self.is_own(one))
        };
        view.vips.retain(|at, _| is_free(at) && is_far(at) && is_alone(at) || is_cluster_ip(at));
        view.health = self.health();
        let listened = |port: u16| {
            let own = self
                .facts
                .reserved
                .iter()
                .filter(|(at, ..)| at.is_unspecified() || at.is_loopback() || self.is_own(*at));
            own.into_iter().any(|(_, reserved, protocol)| (*reserved, *protocol) == (port, Protocol::Tcp))
        };
        let served: BTreeSet<u16> = view
            .frontends
            .keys()
            .filter(|at| at.protocol == Protocol::Tcp && self.is_own(at.address))
            .map(|at| at.port)
            .collect();
        view.health.retain(|port, _| !served.contains(port) && !listened(*port));
        view
    }

    /// Where a service is reached beside its cluster IPs.
    fn published(&self, service: &Service) -> Vec<IpAddr> {
        let external = if self.settings.external_ips { service.external_ips.as_slice() } else { &[] };
        let mut published = [&service.load_balancer_ips, external].concat();
        published.retain(|at| service.cluster_ips.iter().any(|ip| Family::of(*ip) == Family::of(*at)));
        published
    }

    fn ours(&self) -> impl Iterator<Item = &Service> {
        let services = self.snapshot.services.values().map(AsRef::as_ref);
        services.filter(|s| s.exposure == Exposure::Addresses && s.proxy_name == self.settings.service_proxy_name)
    }

    fn is_own(&self, address: IpAddr) -> bool {
        let named = self.snapshot.node.iter().flat_map(|node| &node.addresses);
        self.facts.addresses.iter().chain(named).any(|own| *own == address)
    }

    fn is_reserved(&self, frontend: Frontend) -> bool {
        self.facts.reserved.iter().any(|(address, port, protocol)| {
            let is_nodes = address.is_unspecified() || address.is_loopback() || self.is_own(*address);
            let here = frontend.address.is_unspecified() && is_nodes
                || *address == frontend.address
                || address.is_unspecified() && self.is_own(frontend.address);
            here && *port == frontend.port && *protocol == frontend.protocol
        })
    }

    /// The frontends that a port wants, without those that are never given: addresses of a family without a cluster IP, disabled external IPs, and
    /// the node's own listening addresses.
    fn wanted(&self, service: &Service, port: &ServicePort) -> Vec<(Frontend, FrontendKind)> {
        let at =
            |address: &IpAddr, port_number| Frontend { address: *address, port: port_number, protocol: port.protocol };
        let mut wanted: Vec<(Frontend, FrontendKind)> = Vec::new();
        wanted.extend(service.cluster_ips.iter().map(|ip| (at(ip, port.port), FrontendKind::ClusterIp)));
        wanted.extend(service.load_balancer_ips.iter().map(|ip| (at(ip, port.port), FrontendKind::LoadBalancer)));
        if self.settings.external_ips {
            wanted.extend(service.external_ips.iter().map(|ip| (at(ip, port.port), FrontendKind::ExternalIp)));
        }
        if let Some(node_port) = port.node_port {
            let serving = self.facts.addresses.iter().filter(|ip| self.serves_node_ports(**ip));
            wanted.extend(serving.map(|ip| (at(ip, node_port), FrontendKind::NodePort)));
            // Sockets of the node meet it at loopback, and where they bind every address.
            for (any, loopback) in [("0.0.0.0", "127.0.0.1"), ("::", "::1")].map(|(a, b)| (ip(a), ip(b))) {
                let mut own = self.facts.addresses.iter().filter(|at| at.is_ipv4() == any.is_ipv4());
                let is_met = own.any(|at| self.serves_node_ports(*at)) || self.serves_node_ports(loopback);
                if is_met && port.protocol != Protocol::Sctp {
                    wanted.push((at(&any, node_port), FrontendKind::HostSocket));
                }
            }
        }
        let has_family = |ip: IpAddr| service.cluster_ips.iter().any(|own| own.is_ipv4() == ip.is_ipv4());
        wanted.retain(|(frontend, _)| has_family(frontend.address));
        wanted.retain(|(frontend, kind)| *kind == FrontendKind::ClusterIp || !self.is_reserved(*frontend));
        wanted
    }

    fn serves_node_ports(&self, address: IpAddr) -> bool {
        match &self.settings.nodeport_addresses {
            NodePortAddresses::All => true,
            NodePortAddresses::Cidrs(networks) => networks.iter().any(|network| network.contains(&address)),
            NodePortAddresses::Primary => {
                let named = self.snapshot.node.iter().flat_map(|node| node.addresses.clone());
                named.into_iter().find(|ip| ip.is_ipv4() == address.is_ipv4()) == Some(address)
            }
        }
    }

    fn shown(&self, service: &Service, port: &ServicePort, kind: FrontendKind, family: Family) -> Shown {
        let mut endpoints = self.endpoints(service, port, family);
        // What is in maintenance might as well not be there.
        endpoints.retain(|address, _| !self.is_maintained(*address));
        let usable = endpoints.values().any(|e| e.ready || e.serving && e.terminating);
        let key = PortKey { service: service.name.clone(), port: port.port, protocol: port.protocol };
        let is_healthy = |address: &SocketAddr| !self.facts.marks.unhealthy.contains(&(key.clone(), *address));
        let serve = |policy| {
            let set = match policy {
                TrafficPolicy::Cluster => self.cluster_set(&preferred(endpoints.clone(), is_healthy)),
                TrafficPolicy::Local => {
                    let mut local = endpoints.clone();
                    local.retain(|_, endpoint| self.is_local(endpoint));
                    fallback(preferred(local, is_healthy).iter())
                }
            };
            match (set.is_empty(), usable) {
                (false, _) => Served::By(set.into_iter().map(|at| (at, weight(service, endpoints[&at]))).collect()),
                (true, true) => Served::Dropped,
                (true, false) => Served::Refused,
            }
        };
        let is_external = kind != FrontendKind::ClusterIp;
        let guard = matches!(kind, FrontendKind::LoadBalancer | FrontendKind::ExternalIp)
            .then_some(service.source_ranges.as_ref());
        let guarded = guard.flatten().map(|ranges| {
            let of_family = ranges.iter().map(IpNet::trunc).filter(|range| Family::of(range.addr()) == family);
            let networks: BTreeSet<IpNet> = of_family.collect();
            let named = self.snapshot.node.iter().flat_map(|node| &node.addresses);
            let mut own = self.facts.addresses.iter().chain(named);
            Guarded { node: own.any(|ip| networks.iter().any(|network| network.contains(ip))), networks }
        });
        Shown {
            owner: key.clone(),
            kind,
            inside: serve(if is_external { TrafficPolicy::Cluster } else { service.internal_policy }),
            outside: serve(if is_external { service.external_policy } else { service.internal_policy }),
            keeps_client: is_external && service.external_policy == TrafficPolicy::Local,
            guarded,
            affinity_timeout_s: service.affinity_timeout_s,
            scheduler: service.options.as_ref().and_then(|o| o.scheduler).unwrap_or(self.settings.scheduler),
            retries: service.options.as_ref().and_then(|o| o.retry).unwrap_or(self.settings.retry),
        }
    }

    fn is_maintained(&self, endpoint: SocketAddr) -> bool {
        self.facts.marks.maintenance.iter().any(|target| match target {
            Target::Address(address) => *address == endpoint.ip(),
            Target::Endpoint(at) => *at == endpoint,
        })
    }

    fn is_local(&self, endpoint: &Endpoint) -> bool {
        self.settings.node_name.is_some() && endpoint.node.as_deref() == self.settings.node_name.as_deref()
    }

    /// The endpoints of a port, one for each address and number.
    fn endpoints(&self, service: &Service, port: &ServicePort, family: Family) -> BTreeMap<SocketAddr, &Endpoint> {
        let mut listed: BTreeMap<SocketAddr, Vec<(Option<i64>, &Endpoint)>> = BTreeMap::new();
        for slice in self.snapshot.slices.values() {
            let own = slice.name.namespace == service.name.namespace && slice.service == service.name.name;
            for at in slice.ports.iter().filter(|at| at.name == port.name && at.protocol == port.protocol) {
                for endpoint in slice.endpoints.iter().filter(|_| own && slice.family == family) {
                    let all = listed.entry(SocketAddr::new(endpoint.address, at.port)).or_default();
                    all.push((slice.created_s, endpoint));
                }
            }
        }
        listed.into_iter().map(|(address, all)| (address, self.best(&all))).collect()
    }

    /// Of several entries for one endpoint: the ready one, that of the newest slice, the local one, the one that does not end, then always the same.
    fn best<'e>(&self, listed: &[(Option<i64>, &'e Endpoint)]) -> &'e Endpoint {
        let rank = |one: &(Option<i64>, &Endpoint)| (one.1.ready, one.0);
        let best = listed.iter().map(rank).max();
        let mut all: Vec<&Endpoint> = listed.iter().filter(|one| Some(rank(one)) == best).map(|one| one.1).collect();
        let mut prefer = |is_better: &dyn Fn(&Endpoint) -> bool| {
            if all.iter().any(|endpoint| is_better(endpoint)) {
                all.retain(|endpoint| is_better(endpoint));
            }
        };
        prefer(&|endpoint| self.is_local(endpoint));
        prefer(&|endpoint| !endpoint.terminating);
        prefer(&|endpoint| endpoint.serving);
        let last = |e: &&Endpoint| {
            (std::cmp::Reverse(e.uid_hash), e.hint_nodes().to_vec(), e.hint_zones().to_vec(), e.zone.clone())
        };
        all.into_iter().min_by_key(last).expect("an address is there because an endpoint is")
    }

    /// The ready ones that hints choose; hints count only if all have one and one of them is for here.
    fn cluster_set(&self, endpoints: &BTreeMap<SocketAddr, &Endpoint>) -> BTreeSet<SocketAddr> {
        let zone = self.snapshot.node.as_ref().and_then(|node| node.zone.as_ref());
        let ready: Vec<_> = endpoints.iter().filter(|(_, endpoint)| endpoint.ready).collect();
        let by_node: Vec<&[String]> = ready.iter().map(|(_, e)| e.hint_nodes()).collect();
        let by_zone: Vec<&[String]> = ready.iter().map(|(_, e)| e.hint_zones()).collect();
        for (here, hints) in [(self.settings.node_name.as_ref(), by_node), (zone, by_zone)] {
            let Some(here) = here else { continue };
            let all_hinted = hints.iter().all(|hint| !hint.is_empty());
            if all_hinted && hints.iter().any(|hint| hint.contains(here)) {
                let chosen = ready.iter().zip(&hints).filter(|(_, hint)| hint.contains(here));
                return chosen.map(|((address, _), _)| **address).collect();
            }
        }
        fallback(endpoints.iter())
    }

    fn health(&self) -> BTreeMap<u16, (ObjectName, usize)> {
        let mut health: BTreeMap<u16, &Service> = BTreeMap::new();
        for service in self.ours() {
            let Some(port) = service.health_check_node_port else { continue };
            let first = health.entry(port).or_insert(service);
            if age(service) < age(first) {
                *first = service;
            }
        }
        let count = |service: &Service, family| {
            let slices = self.snapshot.slices.values().filter(|slice| {
                (&slice.name.namespace, &slice.service) == (&service.name.namespace, &service.name.name)
                    && !slice.ports.is_empty()
            });
            let endpoints = slices.flat_map(|slice| slice.endpoints.iter().map(move |endpoint| (slice, endpoint)));
            let open = endpoints.filter(|(slice, e)| {
                slice.ports.iter().any(|port| !self.is_maintained(SocketAddr::new(e.address, port.port)))
            });
            let here = open.map(|(_, e)| e);
            let here = here.filter(|e| e.ready && self.is_local(e) && Family::of(e.address) == family);
            here.map(|endpoint| endpoint.address).collect::<BTreeSet<IpAddr>>().len()
        };
        // Of the families that the service has; a pod of both families counts once.
        let counted = |service: &Service| {
            let families = service.cluster_ips.iter().map(|ip| Family::of(*ip));
            families.map(|family| count(service, family)).max().unwrap_or_default()
        };
        health.into_iter().map(|(port, service)| (port, (service.name.clone(), counted(service)))).collect()
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Without those whose checks fail, unless that leaves none that would do as well.
fn preferred(
    endpoints: BTreeMap<SocketAddr, &Endpoint>,
    is_healthy: impl Fn(&SocketAddr) -> bool,
) -> BTreeMap<SocketAddr, &Endpoint> {
    let mut left = endpoints.clone();
    left.retain(|address, _| is_healthy(address));
    let ready = |all: &BTreeMap<SocketAddr, &Endpoint>| all.values().any(|endpoint| endpoint.ready);
    let usable = |all: &BTreeMap<SocketAddr, &Endpoint>| !fallback(all.iter()).is_empty();
    if usable(&left) && ready(&left) == ready(&endpoints) { left } else { endpoints }
}

/// All that are ready; if none is, all that end but still serve.
fn fallback<'a>(endpoints: impl Iterator<Item = (&'a SocketAddr, &'a &'a Endpoint)> + Clone) -> BTreeSet<SocketAddr> {
    let ready: BTreeSet<SocketAddr> = endpoints.clone().filter(|(_, e)| e.ready).map(|(a, _)| *a).collect();
    if !ready.is_empty() {
        return ready;
    }
    endpoints.filter(|(_, e)| e.serving && e.terminating).map(|(a, _)| *a).collect()
}

/// That of its address before that of its zone.
fn weight(service: &Service, endpoint: &Endpoint) -> u16 {
    let weights = service.options.iter().flat_map(|options| &options.weights);
    let (mut of_address, mut of_zone) = (None, None);
    for (whose, weight) in weights {
        match whose {
            Weighed::Address(address) if *address == endpoint.address => of_address = Some(*weight),
            Weighed::Zone(zone) if endpoint.zone.as_deref() == Some(zone) => of_zone = Some(*weight),
            _ => {}
        }
    }
    of_address.or(of_zone).unwrap_or(1)
}

fn age(service: &Service) -> (i64, &ObjectName) {
    (service.created_s.unwrap_or(i64::MIN), &service.name)
}

/// A cluster IP before all else; then the oldest service; within it by kind, then by port.
fn winner<'a>(claims: &[Claim<'a>]) -> Claim<'a> {
    let kinds = [
        FrontendKind::ClusterIp,
        FrontendKind::LoadBalancer,
        FrontendKind::ExternalIp,
        FrontendKind::NodePort,
        FrontendKind::HostSocket,
    ];
    let rank = |kind: FrontendKind| kinds.iter().position(|other| *other == kind);
    let order = |(service, port, kind): &Claim<'a>| {
        (*kind != FrontendKind::ClusterIp, age(service), rank(*kind), port.port, number(port.protocol))
    };
    *claims.iter().min_by(|a, b| order(a).cmp(&order(b))).expect("a frontend is there because it is claimed")
}

fn number(protocol: Protocol) -> u8 {
    protocol.number()
}
