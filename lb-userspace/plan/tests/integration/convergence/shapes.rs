//! Services and slices of a run, few enough that they meet.

use std::net::IpAddr;

use lb_model::{
    Endpoint, Exposure, Family, Hints, ObjectName, Protocol, Service, ServicePort, Slice, SlicePort, TrafficPolicy,
};

#[derive(Clone, Debug)]
pub struct ServiceShape {
    /// Several services may claim one address.
    pub address: u8,
    pub dual: bool,
    pub ports: u8,
    pub affinity: bool,
    /// Which external frontends it has: bit 0 a node port, 1 a load balancer, 2 an external IP, 3 source ranges.
    pub external: u8,
    /// Bit 0: internal policy Local; 1: external policy Local.
    pub policies: u8,
}

#[derive(Clone, Debug)]
pub struct SliceShape {
    pub service: u8,
    pub v6: bool,
    /// Address, condition, pod.
    pub endpoints: Vec<(u8, u8, u8)>,
}

pub fn service(index: u8, shape: &ServiceShape) -> Service {
    let mut cluster_ips: Vec<IpAddr> = vec![[10, 96, 0, shape.address].into()];
    if shape.dual {
        cluster_ips.push(format!("fd00::{}", shape.address).parse().expect("an address"));
    }
    let ports = [("a", 80, Protocol::Tcp), ("b", 80, Protocol::Udp), ("c", 81, Protocol::Tcp)];
    let has = |bit: u8| shape.external & (1 << bit) != 0;
    let port = |(name, port, protocol): &(&str, u16, Protocol)| ServicePort {
        name: (*name).to_owned(),
        port: *port,
        protocol: *protocol,
        node_port: has(0).then_some(30_000 + port),
    };
    let policy = |bit: u8| {
        let is_local = shape.policies & (1 << bit) != 0;
        if is_local { TrafficPolicy::Local } else { TrafficPolicy::Cluster }
    };
    // The node's own address, and a cluster IP of another service.
    let balanced: [IpAddr; 2] = [[192, 0, 2, 1].into(), [192, 168, 0, 1].into()];
    let taken: IpAddr = [10, 96, 0, 1].into();
    let networks = ["10.0.0.0/8", "192.168.0.0/16", "fd00::/8"].map(|network| network.parse().expect("a network"));
    Service {
        name: name("s", index),
        exposure: Exposure::Addresses,
        proxy_name: None,
        cluster_ips,
        ports: ports.iter().take(shape.ports.into()).map(port).collect(),
        external_ips: if has(2) { vec![taken] } else { Vec::new() },
        load_balancer_ips: if has(1) { balanced.to_vec() } else { Vec::new() },
        internal_policy: policy(0),
        external_policy: policy(1),
        source_ranges: has(3).then(|| networks[usize::from(shape.affinity)..].to_vec()),
        health_check_node_port: None,
        affinity_timeout_s: if shape.affinity { 60 } else { 0 },
        options: None,
        created_s: None,
    }
}

pub fn slice(index: u8, shape: &SliceShape) -> Slice {
    let family = if shape.v6 { Family::V6 } else { Family::V4 };
    let endpoint = |(address, condition, pod): &(u8, u8, u8)| Endpoint {
        address: match family {
            Family::V4 => [10, 0, 0, *address].into(),
            Family::V6 => format!("fd01::{address}").parse().expect("an address"),
        },
        ready: *condition < 2,
        serving: *condition < 4,
        terminating: *condition == 3 || *condition == 4,
        node: Some(format!("n{}", address % 2).into()),
        zone: None,
        hints: Hints::of(vec![format!("z{}", pod % 2)], Vec::new()),
        uid_hash: u32::from(*pod),
    };
    let port = |(name, port, protocol): (&str, u16, Protocol)| SlicePort { name: name.to_owned(), port, protocol };
    Slice {
        changed_at: None,
        created_s: None,
        refused: None,
        name: name("slice", index),
        service: name("s", shape.service).name,
        family,
        ports: [("a", 8080, Protocol::Tcp), ("b", 8080, Protocol::Udp), ("c", 8081, Protocol::Tcp)].map(port).into(),
        endpoints: shape.endpoints.iter().map(endpoint).collect(),
    }
}

pub fn name(kind: &str, index: u8) -> ObjectName {
    ObjectName::new("default", format!("{kind}{index}"))
}
