//! Manifests as a test needs them: few words in, Kubernetes YAML out.

use std::net::{IpAddr, SocketAddr};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::topology::{Addresses, Families};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Udp,
    /// Needs a kernel that speaks it.
    Sctp,
}

impl Protocol {
    const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

/// A port of a service and the port of its endpoints.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    pub name: &'static str,
    pub protocol: Protocol,
    pub port: u16,
    pub target: u16,
}

/// An endpoint, with an address in each family.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub addresses: Addresses,
    pub node: Option<String>,
    pub uid: Option<String>,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
}

impl Endpoint {
    /// A ready endpoint without node and pod.
    pub fn ready(addresses: Addresses) -> Self {
        Self { addresses, node: None, uid: None, ready: true, serving: true, terminating: false }
    }

    /// Not ready, and serving nothing.
    pub fn unready(addresses: Addresses) -> Self {
        Self { ready: false, serving: false, ..Self::ready(addresses) }
    }

    /// Terminating, still serving.
    pub fn terminating(addresses: Addresses) -> Self {
        Self { ready: false, terminating: true, ..Self::ready(addresses) }
    }

    /// On this node.
    #[must_use]
    pub fn on(mut self, node: &str) -> Self {
        self.node = Some(node.to_owned());
        self
    }

    /// The pod that it is.
    #[must_use]
    pub fn pod(mut self, uid: &str) -> Self {
        self.uid = Some(uid.to_owned());
        self
    }

    fn state(&self) -> &'static str {
        match (self.ready, self.terminating) {
            (_, true) => "terminating",
            (true, false) => "active",
            (false, false) => "unready",
        }
    }

    fn document(&self, family: &str) -> Value {
        let address: IpAddr = if family == "IPv4" { self.addresses.v4.into() } else { self.addresses.v6.into() };
        let mut value = json!({
            "addresses": [address],
            "conditions": {"ready": self.ready, "serving": self.serving, "terminating": self.terminating},
        });
        if let Some(node) = &self.node {
            value["nodeName"] = json!(node);
        }
        if let Some(uid) = &self.uid {
            value["targetRef"] = json!({"kind": "Pod", "name": uid, "namespace": "test", "uid": uid});
        }
        value
    }
}

/// What a service is reached by besides its cluster IPs.
#[derive(Clone, Debug, Default)]
pub struct External {
    pub external_ips: Vec<IpAddr>,
    /// Ingress addresses of its load balancer.
    pub load_balancer_ips: Vec<IpAddr>,
    /// In the order of the service's ports; fewer: the rest has none.
    pub node_ports: Vec<u16>,
    /// `loadBalancerSourceRanges`.
    pub source_ranges: Vec<String>,
    /// externalTrafficPolicy Local; else Cluster.
    pub local: bool,
}

impl External {
    fn write(&self, service: &mut Value) {
        let spec = &mut service["spec"];
        for (index, port) in self.node_ports.iter().enumerate() {
            spec["ports"][index]["nodePort"] = json!(port);
        }
        if !self.external_ips.is_empty() {
            spec["externalIPs"] = json!(self.external_ips);
        }
        if !self.source_ranges.is_empty() {
            spec["loadBalancerSourceRanges"] = json!(self.source_ranges);
        }
        if !self.load_balancer_ips.is_empty() {
            spec["type"] = json!("LoadBalancer");
            let ingress: Vec<Value> = self.load_balancer_ips.iter().map(|ip| json!({"ip": ip})).collect();
            service["status"] = json!({"loadBalancer": {"ingress": ingress}});
        } else if !self.node_ports.is_empty() {
            spec["type"] = json!("NodePort");
        }
        if self.local {
            service["spec"]["externalTrafficPolicy"] = json!("Local");
        }
    }
}

/// A service with its cluster IPs, ports and endpoints.
#[derive(Clone, Debug)]
pub struct Service {
    pub name: &'static str,
    pub cluster_ips: Addresses,
    pub ports: Vec<Port>,
    pub endpoints: Vec<Endpoint>,
    pub external: External,
    /// Names without the prefix `ballast.dev/`, and values.
    pub annotations: Vec<(&'static str, String)>,
    /// Seconds of client affinity; 0: none.
    pub affinity_s: u32,
    /// Of its cluster IPs and endpoints.
    pub families: Families,
}

impl Service {
    /// `web`, 10.96.0.10 and fd00:96::10: TCP 80 → 8080 and UDP 53 → 5353.
    pub fn web(endpoints: Vec<Endpoint>) -> Self {
        Self::standard("web", 10, endpoints)
    }

    /// The ports of [`Self::web`] under another name and cluster IP.
    pub fn standard(name: &'static str, last: u8, endpoints: Vec<Endpoint>) -> Self {
        Self {
            name,
            cluster_ips: Addresses {
                v4: [10, 96, 0, last].into(),
                v6: format!("fd00:96::{last}").parse().expect("an address written here"),
            },
            ports: vec![
                Port { name: "http", protocol: Protocol::Tcp, port: 80, target: 8080 },
                Port { name: "dns", protocol: Protocol::Udp, port: 53, target: 5353 },
            ],
            endpoints,
            external: External::default(),
            annotations: Vec::new(),
            affinity_s: 0,
            families: Families::Both,
        }
    }

    /// With one more annotation.
    #[must_use]
    pub fn annotated(mut self, name: &'static str, value: &str) -> Self {
        self.annotations.push((name, value.to_owned()));
        self
    }

    /// With client affinity.
    #[must_use]
    pub fn remembering(self, affinity_s: u32) -> Self {
        Self { affinity_s, ..self }
    }

    /// With client affinity for most of a day. What a client's hash names stays the same for an hour: no period of the timeout
    /// ends before.
    #[must_use]
    pub fn remembering_long(self) -> Self {
        let now_s = u32::try_from(clock_gettime(ClockId::Monotonic).tv_sec).expect("a machine is no century old");
        let longest = (60_000..=86_400).rev().find(|timeout_s| timeout_s - now_s % timeout_s > 3_600);
        self.remembering(longest.expect("periods of different lengths end at different times"))
    }

    /// Reached by these addresses and ports, too.
    #[must_use]
    pub fn with(self, external: External) -> Self {
        Self { external, ..self }
    }

    /// The frontends of one protocol, one of each family.
    pub fn frontends(&self, protocol: Protocol) -> Vec<SocketAddr> {
        let ports = self.ports.iter().filter(|port| port.protocol == protocol);
        let at = |port: u16| {
            self.families.of(self.cluster_ips).into_iter().map(move |address| SocketAddr::new(address, port))
        };
        ports.flat_map(|port| at(port.port)).collect()
    }

    fn documents(&self) -> Vec<Value> {
        let ports: Vec<Value> = self
            .ports
            .iter()
            .map(|port| json!({"name": port.name, "protocol": port.protocol.name(), "port": port.port, "targetPort": port.target}))
            .collect();
        let cluster_ips = self.families.of(self.cluster_ips);
        let families = self.families.names();
        let policy = if families.len() > 1 { "RequireDualStack" } else { "SingleStack" };
        let mut documents = vec![json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": self.name, "namespace": "test"},
            "spec": {"clusterIP": cluster_ips[0], "clusterIPs": cluster_ips, "ipFamilyPolicy": policy, "ipFamilies": families, "ports": ports},
        })];
        for (name, value) in &self.annotations {
            documents[0]["metadata"]["annotations"][format!("ballast.dev/{name}")] = json!(value);
        }
        if self.affinity_s != 0 {
            documents[0]["spec"]["sessionAffinity"] = json!("ClientIP");
            documents[0]["spec"]["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": self.affinity_s}});
        }
        self.external.write(&mut documents[0]);
        for family in families {
            let ports: Vec<Value> = self
                .ports
                .iter()
                .map(|port| json!({"name": port.name, "protocol": port.protocol.name(), "port": port.target}))
                .collect();
            let endpoints: Vec<Value> = self.endpoints.iter().map(|endpoint| endpoint.document(family)).collect();
            documents.push(json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"name": format!("{}-{}", self.name, family.trim_start_matches("IPv")), "namespace": "test",
                    "labels": {"kubernetes.io/service-name": self.name}},
                "addressType": family, "ports": ports, "endpoints": endpoints,
            }));
        }
        documents
    }
}

/// Everything that the agent reads.
#[derive(Clone, Debug, Default)]
pub struct Manifest {
    pub services: Vec<Service>,
}

impl Manifest {
    pub fn of(services: impl Into<Vec<Service>>) -> Self {
        Self { services: services.into() }
    }

    /// The objects, as an API holds them.
    pub fn documents(&self) -> Vec<Value> {
        self.services.iter().flat_map(Service::documents).collect()
    }

    /// Several documents; JSON is YAML.
    pub fn yaml(&self) -> String {
        self.documents().iter().map(|document| format!("---\n{document:#}\n")).collect::<Vec<_>>().concat()
    }

    /// Service, address:port and state of each backend, sorted, as `get backends` shows them.
    pub fn states(&self) -> Vec<(String, String, String)> {
        let mut states = Vec::new();
        for service in &self.services {
            for (port, endpoint) in
                service.ports.iter().flat_map(|port| service.endpoints.iter().map(move |e| (port, e)))
            {
                for address in service.families.of(endpoint.addresses) {
                    let target = SocketAddr::new(address, port.target).to_string();
                    states.push((service.name.to_owned(), target, endpoint.state().to_owned()));
                }
            }
        }
        states.sort();
        states
    }
}
