//! A cluster without IPv4: every kind of client reaches services, and the kubelet's probes reach the agent. Needs root and BPF.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use lb_tests::agent::{Agent, SOON};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Datagrams, Stream, eventually};
use lb_tests::topology::{NodeOptions, Place, Pod};
use serde_json::json;

const NODE_PORT: u16 = 30_080;
const HEALTH_PORT: u16 = 10_256;

/// The status line of a probe.
fn probe(from: &Place, at: SocketAddr) -> std::io::Result<String> {
    from.run(|| {
        let mut stream = TcpStream::connect_timeout(&at, Duration::from_secs(1))?;
        write!(stream, "GET /livez HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text.lines().next().unwrap_or_default().to_owned())
    })
}

#[test]
fn a_cluster_without_ipv4_is_served_and_probed() {
    let fixture = Fixture::new("ipv6-only", Pods::Routed, 2, NodeOptions::default());
    let outside = fixture.topology.outside("client", &fixture.node).unwrap();
    let node = &fixture.node;
    let pods = fixture.backends.iter().chain([&fixture.client]).map(Pod::namespace);
    for namespace in pods.chain([node.namespace(), outside.namespace()]) {
        namespace.ip_show(&["-4", "address", "flush", "scope", "global"]).unwrap();
    }
    let endpoints: Vec<_> = fixture
        .backends
        .iter()
        .map(|pod| json!({"addresses": [pod.addresses().v6], "nodeName": node.node_name(), "conditions": {"ready": true}}))
        .collect();
    let ports = json!([{"name": "http", "port": 80, "targetPort": 8080, "nodePort": NODE_PORT},
        {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 5353}]);
    let manifest = [
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "test"},
            "spec": {"type": "NodePort", "clusterIP": "fd00:96::10", "clusterIPs": ["fd00:96::10"],
                "ipFamilies": ["IPv6"], "ports": ports}}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv6",
            "metadata": {"name": "web-6", "namespace": "test", "labels": {"kubernetes.io/service-name": "web"}},
            "ports": [{"name": "http", "port": 8080}, {"name": "dns", "port": 5353, "protocol": "UDP"}],
            "endpoints": endpoints}),
    ];
    let text = manifest.map(|document| document.to_string()).join("\n---\n");

    let mut agent = Agent::prepare(node, &["--health-bind=[::]:10256"]).unwrap();
    agent.write_text(&text).unwrap();
    for _start in 0..2 {
        agent.restart().unwrap();
        let cluster_ip = "fd00:96::10".parse().unwrap();
        for from in [fixture.client.place(), node.place()] {
            let asked = eventually("TCP", SOON, || {
                Stream::connect(from, SocketAddr::new(cluster_ip, 80)).ok()?.ask("hello").ok()
            });
            assert!(asked.server.starts_with('b'), "{}", asked.server);
            Datagrams::connected(from, 0, SocketAddr::new(cluster_ip, 53)).unwrap().ask("hello").unwrap();
        }
        let own = node.addresses().v6.into();
        eventually("a client outside", SOON, || {
            Stream::connect(outside.place(), SocketAddr::new(own, NODE_PORT)).ok()?.ask("hello").ok()
        });
        for at in [own, "::1".parse().unwrap(), "127.0.0.1".parse().unwrap()] {
            assert_eq!(probe(node.place(), SocketAddr::new(at, HEALTH_PORT)).unwrap(), "HTTP/1.1 200 OK", "{at}");
        }
    }
}
