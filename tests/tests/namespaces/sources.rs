//! External clients and the address that masquerades them. The agent follows the node's links and addresses, repairs edits, keeps everything over its
//! own end, and reports what keeps clients out.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use lb_common::abi::{Masquerade, Network, NetworkKey, network_flags};
use lb_common::limits;
use lb_common::map::{self, Prefix};
use lb_tables::{Calls, TableOf, open_table};
use lb_tests::agent::{Agent, External, Manifest, Protocol, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Stream, eventually};
use lb_tests::topology::{Node, NodeOptions, Pod, Topology};

const FLAGS: [&str; 2] = ["--cluster-cidr=10.244.0.0/16,fd00:10::/56", "--audit-interval=off"];

fn masquerade(node: &Node) -> BTreeMap<u32, IpAddr> {
    let dir = node.bpffs().join("ballast/tables");
    let table = open_table::<map::Masquerade<4>>(&dir, &Calls::default()).unwrap();
    table.read().unwrap().into_iter().map(|(ifindex, value)| (ifindex, (*value.address(0)).into())).collect()
}

fn masquerade6(node: &Node) -> BTreeMap<u32, IpAddr> {
    let dir = node.bpffs().join("ballast/tables");
    let table = open_table::<map::Masquerade<16>>(&dir, &Calls::default()).unwrap();
    table.read().unwrap().into_iter().map(|(ifindex, value)| (ifindex, (*value.address(0)).into())).collect()
}

fn networks_table(node: &Node) -> TableOf<map::Networks<4>> {
    open_table::<map::Networks<4>>(&node.bpffs().join("ballast/tables"), &Calls::default()).unwrap()
}

fn networks(node: &Node) -> BTreeMap<String, u32> {
    let all = networks_table(node).read().unwrap();
    all.iter().map(|(key, value)| (text(key.data.address, key.bits), value.flags)).collect()
}

fn text(address: [u8; 4], length: u32) -> String {
    format!("{}/{length}", IpAddr::from(address))
}

fn index_of(node: &Node, link: &str) -> u32 {
    node.netns().run(|| nix::net::if_::if_nametoindex(link)).unwrap()
}

fn service() -> Service {
    let external = External { node_ports: vec![30080, 30053], ..External::default() };
    Service::standard("web", 10, vec![]).with(external)
}

fn finds(agent: &Agent) -> Vec<String> {
    let output = agent.cli(&["audit", "-o", "json"]).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    findings.iter().map(|finding| format!("{} {}", finding["table"].as_str().unwrap(), finding["repaired"])).collect()
}

#[test]
fn links_and_addresses_are_followed_and_what_was_known_stays() {
    let topology = Topology::new("sources").unwrap();
    let node = topology.node_with(NodeOptions::default()).unwrap();
    let mut agent = Agent::start_with(&node, &Manifest::of([service()]), &FLAGS).unwrap();
    let (eth0, own) = (index_of(&node, "eth0"), node.addresses());
    let own_key = format!("{}/32", own.v4);
    eventually("the tables say who is who", SOON, || {
        let told = networks(&node);
        let pods = told.get("10.244.0.0/16") == Some(&network_flags::PODS);
        let by_link = masquerade(&node);
        let ours = told.get(&own_key) == Some(&network_flags::NODE) && by_link.get(&eth0) == Some(&own.v4.into());
        let both = by_link.get(&0) == Some(&own.v4.into()) && masquerade6(&node).get(&0) == Some(&own.v6.into());
        (pods && ours && both).then_some(())
    });

    node.namespace()
        .ip("link add d0 type veth peer name d1\naddress add 203.0.113.9/24 dev d0\nlink set d0 up")
        .unwrap();
    let d0 = index_of(&node, "d0");
    eventually("a new link has its own", SOON, || {
        let is_there = masquerade(&node).get(&d0) == Some(&"203.0.113.9".parse().unwrap());
        (is_there && networks(&node).contains_key("203.0.113.9/32")).then_some(())
    });
    agent.kill();
    assert!(masquerade(&node).contains_key(&eth0) && networks(&node).contains_key("10.244.0.0/16"), "they outlive it");
    node.namespace().ip("link delete d0").unwrap();
    agent.restart().unwrap();
    eventually("what is gone is taken out", SOON, || {
        (!masquerade(&node).contains_key(&d0) && !networks(&node).contains_key("203.0.113.9/32")).then_some(())
    });
}

#[test]
fn what_somebody_edits_is_put_right_and_told() {
    let topology = Topology::new("edits").unwrap();
    let node = topology.node_with(NodeOptions::default()).unwrap();
    let agent = Agent::start_with(&node, &Manifest::of([service()]), &FLAGS).unwrap();
    eventually("everything is attached", SOON, || {
        (masquerade(&node).contains_key(&0) && finds(&agent).is_empty()).then_some(())
    });
    let (links, told) = (masquerade(&node), networks(&node));
    let table = networks_table(&node);
    for (key, _) in table.read().unwrap() {
        table.remove(&key).unwrap();
    }
    let other_network = Prefix::new(24, NetworkKey { address: [198, 18, 0, 0] });
    table.put(&other_network, &Network { flags: network_flags::PODS }).unwrap();
    let dir = node.bpffs().join("ballast/tables");
    let addresses = open_table::<map::Masquerade<4>>(&dir, &Calls::default()).unwrap();
    addresses.put(&0, &Masquerade::new([198, 18, 0, 1], &[])).unwrap();
    // A round of the agent's own may have come in between: it tells what it repaired, too.
    let found = finds(&agent);
    assert!(
        found.contains(&"networks4 true".to_owned()) && found.contains(&"masquerade4 true".to_owned()),
        "{found:?}"
    );
    assert_eq!((masquerade(&node), networks(&node)), (links, told));
    eventually("it is counted", SOON, || agent.metrics().unwrap().contains("table=\"networks4\"").then_some(()));
}

/// Whether this pod's link has programs.
fn is_attached(agent: &Agent, pod: &Pod) -> bool {
    let status = agent.json(&["status"]).unwrap();
    let links = status["agent"]["datapath"]["links"].as_array().unwrap();
    links.iter().any(|link| link["name"] == pod.link() && !link["programs"].as_array().unwrap().is_empty())
}

#[test]
fn a_full_table_of_networks_keeps_no_new_pod_from_being_served() {
    let fixture = Fixture::new("fullnets", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    // A node with more addresses than the table holds.
    let first = u32::from(Ipv4Addr::new(100, 64, 0, 0));
    let adds = (1..=limits::NETWORKS).map(|nth| format!("address add {}/32 dev many", Ipv4Addr::from(first + nth)));
    let lines = ["link add many type veth peer name many1".to_owned()].into_iter().chain(adds);
    fixture.node.namespace().ip(&lines.collect::<Vec<_>>().join("\n")).unwrap();
    eventually("the log names it", SOON, || agent.log().contains("map networks4").then_some(()));
    let late = fixture.pod("late");
    eventually("the new pod is attached", SOON, || is_attached(&agent, &late).then_some(()));
    for to in service.frontends(Protocol::Tcp) {
        Stream::connect(late.netns(), to).unwrap().ask("served").unwrap();
    }
}

#[test]
fn what_keeps_clients_out_is_told() {
    let topology = Topology::new("warned").unwrap();
    let node = topology.node_with(NodeOptions::default()).unwrap();
    let agent = Agent::start_with(&node, &Manifest::of([service()]), &FLAGS).unwrap();
    let report = || agent.json(&["status"]).unwrap()["agent"]["datapath"].clone();
    eventually("nothing is wrong", SOON, || {
        let report = report();
        (report["warnings"] == serde_json::json!([])
            && report["links"].as_array()?.iter().any(|link| link["servedBy"] == "tc"))
        .then_some(())
    });
    let text = String::from_utf8(agent.cli(&["status"]).unwrap().stdout).unwrap();
    assert!(text.contains("eth0 by tc: its other end is on this host"), "{text}");
    node.namespace().sysctl("net/ipv4/conf/eth0/forwarding", "0").unwrap();
    eventually("forwarding is missed", SOON, || {
        report()["warnings"].to_string().contains("net.ipv4.conf.eth0.forwarding=1").then_some(())
    });
    assert!(agent.metrics().unwrap().contains("ballast_warnings 1"));
}
