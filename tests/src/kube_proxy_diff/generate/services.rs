//! Random Services.

use serde_json::{Value, json};

use super::{HEADLESS, Pool, weighted};
use crate::kube_proxy_diff::node::{ADDRESSES, address};
use crate::random::Random;

/// Source ranges to draw from: around the pods, the node and the external client, with the blanks that people leave.
const RANGES: [&str; 14] = [
    "10.244.0.0/16",
    "192.0.2.0/24",
    "203.0.113.0/24",
    "203.0.113.7/32",
    " 100.70.0.0/16 ",
    "198.51.100.128/25",
    "0.0.0.0/0",
    "fd00:244::/48",
    "2001:db8:1::/64",
    "2001:db8:f::/64",
    "2001:db8:f::7/128",
    "\t2001:db8:70::/48",
    "2001:db8:2::/64 ",
    "::/0",
];

/// What a Service is, roughly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    ClusterIp,
    NodePort,
    LoadBalancer,
    Headless,
    HeadlessLabel,
    ExternalName,
    Foreign,
}

const SHAPES: [(usize, Shape); 7] = [
    (30, Shape::ClusterIp),
    (22, Shape::NodePort),
    (36, Shape::LoadBalancer),
    (3, Shape::Headless),
    (3, Shape::HeadlessLabel),
    (3, Shape::ExternalName),
    (3, Shape::Foreign),
];

/// A Service; `number` counts those of the cluster.
pub fn service(random: &mut Random, pool: &mut Pool, name: &str, number: usize) -> Value {
    let shape = weighted(random, &SHAPES);
    let created = format!("2026-01-0{}T00:00:00Z", 1 + random.below(3));
    let uid = format!("{}-{name}", pool.namespace);
    let mut service = json!({
        "metadata": {"namespace": pool.namespace, "name": name, "uid": uid, "creationTimestamp": created},
        "spec": {"ports": ports(random, pool, shape)},
    });
    match shape {
        Shape::ExternalName => {
            service["spec"]["type"] = "ExternalName".into();
            service["spec"]["externalName"] = "elsewhere.example".into();
            return service;
        }
        Shape::Headless => {
            service["spec"]["clusterIP"] = "None".into();
            service["spec"]["clusterIPs"] = json!(["None"]);
            return service;
        }
        Shape::HeadlessLabel => service["metadata"]["labels"] = json!({HEADLESS: ""}),
        Shape::Foreign => {
            service["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "another"});
        }
        Shape::NodePort => service["spec"]["type"] = "NodePort".into(),
        Shape::LoadBalancer => service["spec"]["type"] = "LoadBalancer".into(),
        Shape::ClusterIp => {}
    }
    addresses(random, pool, &mut service["spec"], number);
    policies(random, &mut service["spec"]);
    if random.one_in(5) {
        external_ips(random, pool, &mut service, number);
    }
    if shape == Shape::LoadBalancer {
        load_balancer(random, pool, &mut service, number);
    }
    service
}

fn ports(random: &mut Random, pool: &mut Pool, shape: Shape) -> Vec<Value> {
    let count = weighted(random, &[(5, 1), (4, 2), (1, 3)]);
    let with_node_ports = shape == Shape::NodePort || (shape == Shape::LoadBalancer && !random.one_in(4));
    // TCP and UDP on one port, as DNS has it.
    let shared_number = random.one_in(4);
    let port = |number: usize| {
        let base = 2000 + 10 * u16::from(pool.place);
        let at = if shared_number { base } else { base + u16::try_from(number).expect("few ports") };
        let mut port = json!({"port": at});
        if count > 1 || random.one_in(2) {
            port["name"] = format!("p{number}").into();
        }
        let protocols: &[&str] = if shared_number { &["TCP", "UDP", "SCTP"] } else { &["TCP", "TCP", "UDP", "SCTP"] };
        let protocol = if shared_number { protocols[number] } else { random.of(protocols) };
        if protocol != "TCP" || random.one_in(2) {
            port["protocol"] = protocol.into();
        }
        if with_node_ports {
            port["nodePort"] = pool.node_port().into();
        }
        port
    };
    (0..count).map(port).collect()
}

/// The families of the cluster IPs, and the addresses.
fn addresses(random: &mut Random, pool: &Pool, spec: &mut Value, number: usize) {
    let families = weighted(random, &[(3, &[true][..]), (2, &[false]), (4, &[true, false]), (1, &[false, true])]);
    let ip = |v4: &bool| cluster_ip(*v4, pool.place, number);
    spec["clusterIPs"] = families.iter().map(ip).collect::<Vec<_>>().into();
    spec["ipFamilies"] = families.iter().map(|v4| if *v4 { "IPv4" } else { "IPv6" }).collect::<Vec<_>>().into();
}

/// The cluster IP of a service of a cluster.
pub fn cluster_ip(v4: bool, place: u8, number: usize) -> String {
    if v4 { format!("10.96.{place}.{}", number + 1) } else { format!("fd00:96::{place:x}:{:x}", number + 1) }
}

fn policies(random: &mut Random, spec: &mut Value) {
    let policies = [(4, None), (2, Some("Cluster")), (5, Some("Local"))];
    if let Some(policy) = weighted(random, &policies) {
        spec["internalTrafficPolicy"] = policy.into();
    }
    if spec["type"].is_string()
        && let Some(policy) = weighted(random, &policies)
    {
        spec["externalTrafficPolicy"] = policy.into();
    }
    if random.one_in(5) {
        spec["sessionAffinity"] = "ClientIP".into();
        if random.one_in(2) {
            spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": 1 + random.below(86_400)}});
        }
    }
    if random.one_in(8) {
        spec["publishNotReadyAddresses"] = true.into();
    }
}

fn load_balancer(random: &mut Random, pool: &mut Pool, service: &mut Value, number: usize) {
    let mut ingress = Vec::new();
    for index in 0..weighted(random, &[(1, 0), (4, 1), (3, 2), (1, 3)]) {
        let v4 = random.one_in(2);
        let mut listed = json!({"ip": vip(random, pool, v4, number, index)});
        match random.below(8) {
            0 => listed["ipMode"] = "Proxy".into(),
            1 | 2 => listed["ipMode"] = "VIP".into(),
            3 if random.one_in(2) => listed = json!({"hostname": "balancer.example"}),
            _ => {}
        }
        ingress.push(listed);
    }
    service["status"] = json!({"loadBalancer": {"ingress": ingress}});
    if random.one_in(3) {
        let ranges: Vec<&str> = (0..=random.below(3)).map(|_| *random.of(&RANGES)).collect();
        service["spec"]["loadBalancerSourceRanges"] = ranges.into();
    }
    if service["spec"]["externalTrafficPolicy"] == "Local" {
        let own = if random.one_in(6) { 0 } else { u16::try_from(number).expect("few services") };
        // Below the ports that the kernel gives to sockets which ask for none: kube-proxy listens there.
        let port = 20_000 + u16::from(pool.place) * 4 + own;
        service["spec"]["healthCheckNodePort"] = port.into();
    }
}

fn external_ips(random: &mut Random, pool: &mut Pool, service: &mut Value, number: usize) {
    let count = 1 + random.below(2);
    let ips: Vec<String> = (0..count)
        .map(|index| {
            let v4 = random.one_in(2);
            vip(random, pool, v4, number, 8 + index)
        })
        .collect();
    service["spec"]["externalIPs"] = ips.into();
    if service["spec"]["externalTrafficPolicy"].is_null() && random.one_in(3) {
        service["spec"]["externalTrafficPolicy"] = "Local".into();
    }
}

/// An address that comes from outside the cluster: mostly one of its own, sometimes the node's, sometimes one that another
/// service has, too.
fn vip(random: &mut Random, pool: &mut Pool, v4: bool, number: usize, index: usize) -> String {
    if random.one_in(12) {
        return ADDRESSES[random.below(2)][usize::from(!v4)].to_owned();
    }
    if random.one_in(16) && number > 0 {
        return cluster_ip(v4, pool.place, random.below(number));
    }
    let taken: Vec<&String> = pool.vips.iter().filter(|ip| address(ip).is_ipv4() == v4).collect();
    if random.one_in(4) && !taken.is_empty() {
        return (*random.of(&taken)).clone();
    }
    let (place, last) = (pool.place, 16 * (number + 1) + index);
    let ip = if v4 { format!("100.64.{place}.{last}") } else { format!("fd00:64::{place:x}:{last:x}") };
    pool.vips.push(ip.clone());
    ip
}
