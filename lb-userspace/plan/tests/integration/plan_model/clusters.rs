//! Random clusters, small enough that everything meets everything: few addresses, few ports, few names.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use lb_model::{
    Endpoint, Exposure, Family, Hints, Node, ObjectName, PortKey, Protocol, Scheduler, Service, ServiceOptions,
    ServicePort, Slice, SlicePort, TrafficPolicy, Weighed,
};
use lb_plan::plan::{Marks, NodeFacts, NodePortAddresses, PlanSettings, Target};
use proptest::{option, prelude::*, sample::subsequence};

/// What happens to a cluster.
#[derive(Clone, Debug)]
pub enum Event {
    Service(u8, Option<Box<Service>>),
    Slice(u8, Option<Box<Slice>>),
    Node(Option<Box<Node>>),
    Facts(NodeFacts),
    Marks(Marks),
}

pub fn events(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        6 => (0u8..4, option::weighted(0.9, service())).prop_map(|(index, service)| {
            let service = service.map(|service| Box::new(Service { name: service_name(index), ..service }));
            Event::Service(index, service)
        }),
        16 => (0u8..10, option::weighted(0.9, slice())).prop_map(|(index, slice)| {
            let name = ObjectName::new("ns", format!("slice{index}"));
            Event::Slice(index, slice.map(|slice| Box::new(Slice { name, ..slice })))
        }),
        2 => option::weighted(0.9, node()).prop_map(|node| Event::Node(node.map(Box::new))),
        2 => facts().prop_map(Event::Facts),
        4 => marks().prop_map(Event::Marks),
    ];
    prop::collection::vec(event, count)
}

pub fn service_name(index: u8) -> ObjectName {
    ObjectName::new("ns", format!("service{index}"))
}

pub fn settings() -> impl Strategy<Value = PlanSettings> {
    let node_ports = prop_oneof![
        3 => Just(NodePortAddresses::All),
        1 => Just(NodePortAddresses::Primary),
        1 => Just(NodePortAddresses::Cidrs(vec!["192.168.0.0/16".parse().expect("a network")])),
    ];
    let node_name = option::weighted(0.95, Just("n1".to_owned()));
    let proxy_name = option::weighted(0.2, Just("mine".to_owned()));
    (node_name, node_ports, prop::bool::weighted(0.7), proxy_name).prop_map(
        |(node_name, nodeport_addresses, external_ips, service_proxy_name)| PlanSettings {
            node_name,
            nodeport_addresses,
            external_ips,
            service_proxy_name,
            ..PlanSettings::default()
        },
    )
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn ips(texts: &'static [&'static str]) -> impl Strategy<Value = Vec<IpAddr>> {
    subsequence(texts.iter().map(|text| ip(text)).collect::<Vec<_>>(), 0..=2.min(texts.len()))
}

fn policy() -> impl Strategy<Value = TrafficPolicy> {
    prop_oneof![Just(TrafficPolicy::Cluster), Just(TrafficPolicy::Local)]
}

fn protocol() -> impl Strategy<Value = Protocol> {
    prop_oneof![10 => Just(Protocol::Tcp), 2 => Just(Protocol::Udp), 1 => Just(Protocol::Sctp)]
}

fn cluster_ips() -> impl Strategy<Value = Vec<IpAddr>> {
    (0u8..5, 0u8..8).prop_map(|(index, families)| {
        let both = [ip(&format!("10.96.0.{index}")), ip(&format!("fd00::{index}"))];
        match families {
            0..4 => both[..1].to_vec(),
            4 => both[1..].to_vec(),
            _ => both.to_vec(),
        }
    })
}

fn ports() -> impl Strategy<Value = Vec<ServicePort>> {
    let numbers = prop::sample::select(vec![80, 81, 30080]);
    let node_ports = option::of(prop::sample::select(vec![80, 30080, 30081]));
    let port = (numbers, protocol(), node_ports);
    prop::collection::vec(port, 1..4).prop_map(|raw| {
        let mut ports: Vec<ServicePort> = Vec::new();
        for (index, (port, protocol, node_port)) in raw.into_iter().enumerate() {
            if !ports.iter().any(|other| (other.port, other.protocol) == (port, protocol)) {
                ports.push(ServicePort { name: ["a", "b", "c"][index].to_owned(), port, protocol, node_port });
            }
        }
        ports
    })
}

fn service() -> impl Strategy<Value = Service> {
    let exposure = prop_oneof![
        20 => Just(Exposure::Addresses), 1 => Just(Exposure::Headless), 1 => Just(Exposure::ExternalName)
    ];
    let proxy_name =
        prop_oneof![16 => Just(None), 1 => Just(Some("mine".to_owned())), 1 => Just(Some("other".to_owned()))];
    let external = ips(&["198.51.100.1", "192.0.2.1", "10.96.0.2", "192.168.0.1", "2001:db8::2"]);
    let balanced = ips(&["192.0.2.1", "192.168.0.1", "10.96.0.1", "2001:db8::1", "fd02::1"]);
    let ranges = option::weighted(
        0.3,
        subsequence(["10.0.0.0/8", "192.168.0.0/16", "0.0.0.0/0", "fd00::/8", "198.51.100.7/24"].to_vec(), 0..3),
    );
    let external = (external, balanced, ranges, option::weighted(0.2, 32000u16..32002));
    let rest = (prop_oneof![Just(0u32), Just(60u32)], option::of(0i64..3), option::weighted(0.3, options()));
    (exposure, proxy_name, cluster_ips(), ports(), external, policy(), policy(), rest).prop_map(
        |(exposure, proxy_name, cluster_ips, ports, external, internal_policy, external_policy, rest)| Service {
            name: ObjectName::new("", ""),
            exposure,
            proxy_name,
            cluster_ips,
            ports,
            external_ips: external.0,
            load_balancer_ips: external.1,
            internal_policy,
            external_policy,
            source_ranges: external.2.map(|all| all.iter().map(|range| range.parse().expect("a network")).collect()),
            health_check_node_port: external.3,
            affinity_timeout_s: rest.0,
            options: rest.2.map(Box::new),
            created_s: rest.1,
        },
    )
}

fn options() -> impl Strategy<Value = ServiceOptions> {
    let whose = prop::sample::select(vec![
        Weighed::Address(ip("10.0.0.1")),
        Weighed::Address(ip("10.0.0.2")),
        Weighed::Zone("a".to_owned()),
    ]);
    let weights = prop::collection::btree_map(whose, 1u16..5, 0..3);
    let scheduler = option::of(prop::sample::select(Scheduler::ALL.to_vec()));
    (scheduler, weights, option::of(any::<bool>())).prop_map(|(scheduler, weights, retry)| ServiceOptions {
        scheduler,
        weights: weights.into_iter().collect(),
        retry,
        ..ServiceOptions::default()
    })
}

fn endpoint() -> impl Strategy<Value = (u8, Endpoint)> {
    // As the slice controller has them, and a few odd ones.
    let conditions = prop::sample::select(vec![
        (true, true, false),
        (true, true, false),
        (true, true, false),
        (false, false, false),
        (false, true, true),
        (false, false, true),
        (true, true, true),
        (false, true, false),
    ]);
    let node = option::weighted(0.9, prop::sample::select(vec!["n1", "n2"]));
    let hints = prop_oneof![
        3 => Just((true, true)), 1 => Just((false, true)), 1 => Just((true, false)), 2 => Just((false, false))
    ];
    let zones = subsequence(vec!["a".to_owned(), "b".to_owned()], 1..=2);
    let nodes = subsequence(vec!["n1".to_owned(), "n2".to_owned()], 1..=1);
    let zone = option::of(prop::sample::select(vec!["a", "b"]));
    (1u8..7, conditions, node, hints, (zone, zones), nodes, 0u32..3).prop_map(
        |(address, (ready, serving, terminating), node, (hinted_zone, hinted_node), (zone, zones), nodes, uid_hash)| {
            let endpoint = Endpoint {
                address: [10, 0, 0, address].into(),
                ready,
                serving,
                terminating,
                node: node.map(Into::into),
                zone: zone.map(Into::into),
                hints: Hints::of(
                    if hinted_zone { zones } else { Vec::new() },
                    if hinted_node { nodes } else { Vec::new() },
                ),
                uid_hash,
            };
            (address, endpoint)
        },
    )
}

fn slice() -> impl Strategy<Value = Slice> {
    let ports = prop::collection::vec(
        (prop::sample::select(vec!["a", "a", "a", "b", "b", "c", "x"]), protocol(), 8080u16..8082),
        1..4,
    );
    let hints = prop_oneof![2 => Just((true, true)), 2 => Just((true, false)), 3 => Just((false, false))];
    let age = (0u8..5, prop::option::of(0i64..3));
    (0u8..5, prop::bool::weighted(0.3), ports, prop::collection::vec(endpoint(), 0..6), hints, age).prop_map(
        |(service, v6, ports, endpoints, (zones, nodes), (phase, created_s))| Slice {
            changed_at: None,
            created_s,
            refused: None,
            name: ObjectName::new("", ""),
            service: service_name(service).name,
            family: if v6 { Family::V6 } else { Family::V4 },
            ports: ports
                .into_iter()
                .map(|(name, protocol, port)| SlicePort { name: name.to_owned(), port, protocol })
                .collect(),
            endpoints: endpoints
                .into_iter()
                .map(|(index, endpoint)| Endpoint {
                    address: if v6 { ip(&format!("fd01::{index}")) } else { endpoint.address },
                    hints: Hints::of(
                        if zones { endpoint.hint_zones().to_vec() } else { Vec::new() },
                        if nodes { endpoint.hint_nodes().to_vec() } else { Vec::new() },
                    ),
                    // Now and then a whole slice ends.
                    ready: endpoint.ready && phase > 0,
                    terminating: endpoint.terminating || phase == 0,
                    ..endpoint
                })
                .collect(),
        },
    )
}

fn node() -> impl Strategy<Value = Node> {
    let zone = option::weighted(0.8, prop::sample::select(vec!["a".to_owned(), "b".to_owned()]));
    let addresses = ips(&["192.168.0.1", "192.168.0.2", "fd02::1"]);
    (zone, addresses, any::<bool>()).prop_map(|(zone, addresses, is_leaving)| Node {
        name: "n1".to_owned(),
        zone,
        addresses,
        pod_cidrs: Vec::new(),
        is_leaving,
    })
}

fn facts() -> impl Strategy<Value = NodeFacts> {
    let addresses = ips(&["192.168.0.1", "192.168.0.2", "172.16.0.1", "fd02::1", "198.51.100.1"]);
    let reserved = prop::collection::btree_set(
        (prop::sample::select(vec![ip("0.0.0.0"), ip("::"), ip("192.0.2.1"), ip("10.96.0.1")]), protocol()),
        0..2,
    );
    let networks = subsequence(["192.0.2.0/24", "198.51.100.0/28", "2001:db8::/64", "172.16.0.0/12"].to_vec(), 0..2);
    let port = prop::sample::select(vec![80u16, 30080]);
    (addresses, networks, reserved, port).prop_map(|(addresses, networks, reserved, port)| NodeFacts {
        marks: Marks::default(),
        addresses: addresses.into_iter().collect(),
        absent: BTreeSet::new(),
        networks: networks.into_iter().map(|network| network.parse().expect("a network")).collect(),
        reserved: reserved.into_iter().map(|(address, protocol)| (address, port, protocol)).collect(),
        mtu: [None; 2],
    })
}

fn marks() -> impl Strategy<Value = Marks> {
    let address = || {
        (1u8..7, prop::bool::weighted(0.3))
            .prop_map(|(index, v6)| if v6 { ip(&format!("fd01::{index}")) } else { [10, 0, 0, index].into() })
    };
    let endpoint = || (address(), 8080u16..8082).prop_map(|(address, port)| SocketAddr::new(address, port));
    let target = prop_oneof![address().prop_map(Target::Address), endpoint().prop_map(Target::Endpoint)];
    let port = (0u8..4, prop::sample::select(vec![80, 81, 30080]), Just(Protocol::Tcp))
        .prop_map(|(index, port, protocol)| PortKey { service: service_name(index), port, protocol });
    let maintenance = prop::collection::btree_set(target, 0..3);
    let unhealthy = prop::collection::btree_set((port, endpoint()), 0..24);
    (maintenance, unhealthy).prop_map(|(maintenance, unhealthy)| Marks { maintenance, unhealthy })
}

/// A snapshot and what the node knows, as events make them.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    pub snapshot: lb_model::Snapshot,
    pub facts: NodeFacts,
}

impl Cluster {
    pub fn take(&mut self, event: &Event) {
        self.snapshot.revision += 1;
        match event {
            Event::Service(index, None) => {
                self.snapshot.services.remove(&service_name(*index));
            }
            Event::Service(_, Some(service)) => {
                self.snapshot.services.insert(service.name.clone(), Arc::new(Service::clone(service)));
            }
            Event::Slice(index, slice) => {
                let name = format!("slice{index}");
                let old = self.snapshot.slices.keys().find(|key| *key.name == *name).cloned();
                if let Some(old) = old {
                    self.snapshot.slices.remove(&old);
                }
                if let Some(slice) = slice {
                    self.snapshot.slices.insert(slice.key(), Arc::new(Slice::clone(slice)));
                }
            }
            Event::Node(node) => self.snapshot.node = node.as_ref().map(|node| Arc::new(Node::clone(node))),
            Event::Facts(facts) => self.facts = NodeFacts { marks: self.facts.marks.clone(), ..facts.clone() },
            Event::Marks(marks) => self.facts.marks = marks.clone(),
        }
    }
}
