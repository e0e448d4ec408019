//! NodeLocal DNSCache in its iptables mode: the cluster IP of kube-dns is on a link of the node, where the cache listens.
//! Needs root and BPF.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use lb_tests::agent::{Agent, External, Manifest, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Datagrams, Server, Stream, eventually};
use lb_tests::topology::{NetNs, NodeOptions, SERVICE_NET4, SERVICE_NET6};

const NODE_PORT: u16 = 30_080;
/// How long pods may be without DNS when the cache goes: less than the data path's rounds (10 s).
const AGAIN: Duration = Duration::from_secs(9);

/// Who answers at this service, over both protocols and families.
fn answers(from: &NetNs, service: &Service) -> std::io::Result<Vec<String>> {
    let mut servers = Vec::new();
    for address in service.cluster_ips.both() {
        servers.push(Stream::connect(from, SocketAddr::new(address, 80))?.ask("who")?.server);
        servers.push(Datagrams::connected(from, 0, SocketAddr::new(address, 53))?.ask("who")?.server);
    }
    servers.dedup();
    Ok(servers)
}

#[test]
fn pods_ask_the_cache_on_their_node_and_the_cache_asks_kube_dns() {
    let fixture = Fixture::new("node-local-dns", Pods::Routed, 1, NodeOptions::default());
    let node = &fixture.node;
    let kube_dns = Service::standard("kube-dns", 10, fixture.endpoints());
    let upstream = Service::standard("kube-dns-upstream", 11, fixture.endpoints());
    let external = External { node_ports: vec![NODE_PORT], ..External::default() };
    let web = Service::standard("web", 12, fixture.endpoints()).with(external);
    let manifest = Manifest::of([kube_dns.clone(), upstream.clone(), web]);
    // The address is in a service CIDR, and then no service's but the node's.
    let service_cidrs = format!("{SERVICE_NET4},{SERVICE_NET6}");
    let agent = Agent::start_with(node, &manifest, &["--service-cidr", &service_cidrs]).unwrap();
    let client = fixture.client.netns();
    let answered_by_within = |from: &NetNs, name: &str, limit: Duration| {
        eventually(&format!("{name} answers"), limit, || {
            answers(from, &kube_dns).ok().filter(|servers| servers == &[name]).map(drop)
        });
    };
    let answered_by = |from: &NetNs, name: &str| answered_by_within(from, name, SOON);
    answered_by(client, "b0");

    // As node-cache does it: the address on a link, rules that keep connection tracking away, and a listener.
    for (family, address) in ["ip", "ip6"].into_iter().zip(kube_dns.cluster_ips.both()) {
        node.namespace().ip(&format!("address add {address} dev lo")).unwrap();
        let rules = format!(
            "add table {family} cache; add chain {family} cache raw {{ type filter hook prerouting priority raw; }}; \
             add rule {family} cache raw {family} daddr {address} notrack"
        );
        let mut command = Command::new("nft");
        command.arg(rules);
        let mut ran = node.netns().start(&mut command).unwrap();
        assert!(ran.wait().unwrap().success());
    }
    let servers: Vec<Server> = kube_dns
        .cluster_ips
        .both()
        .into_iter()
        .flat_map(|address| {
            [
                Server::tcp(node.netns(), "cache", SocketAddr::new(address, 80)).unwrap(),
                Server::udp(node.netns(), "cache", SocketAddr::new(address, 53)).unwrap(),
            ]
        })
        .collect();
    answered_by(client, "cache");
    answered_by(node.netns(), "cache");
    assert_eq!(answers(node.netns(), &upstream).unwrap(), ["b0"], "the cache's own question");
    assert_eq!(answers(client, &upstream).unwrap(), ["b0"]);

    // The address is no node address: it has no node port, and nobody is refused one there.
    let frontends = agent.json(&["get", "services", "-A"]).unwrap().to_string();
    for address in kube_dns.cluster_ips.both() {
        assert!(!frontends.contains(&SocketAddr::new(address, NODE_PORT).to_string()), "{frontends}");
    }
    let status = agent.json(&["status"]).unwrap();
    assert_eq!(status["agent"]["tables"]["refusals"], serde_json::json!([]), "{status:#}");
    let said = agent.cli(&["doctor", "-o", "json"]).unwrap().stdout;
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("local-cluster-ips") && said.contains("NodeLocal DNSCache"), "{said}");

    // The cache goes, and takes its addresses with it.
    drop(servers);
    for address in kube_dns.cluster_ips.both() {
        node.namespace().ip(&format!("address del {address} dev lo")).unwrap();
    }
    answered_by_within(client, "b0", AGAIN);
}
