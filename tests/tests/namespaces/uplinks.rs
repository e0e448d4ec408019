//! The way outside: found by addresses and routes, whatever the link is called and however often it is renamed, replaced or given another address.
//! Where it is not known, the node says so, and external clients are served as such.

use std::net::SocketAddr;
use std::time::Duration;

use lb_tests::agent::{Agent, Manifest, Protocol, SOON, Service};
use lb_tests::external_client::far_client;
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{PATIENCE, Stream, eventually, fresh_port};
use lb_tests::topology::{Addresses, Checksums, Namespace, NetNs, NodeOptions, Topology, set_checksums};

use crate::node_ports::{PLAIN, node_ports, serves};

/// Node ports of a service with the external policy `Local`, whose only endpoint is said to be on another node.
const LOCAL: [u16; 2] = [30_081, 30_054];
/// How long an answer is waited for that must not come.
const SILENCE: Duration = Duration::from_millis(700);

fn services(fixture: &Fixture) -> Manifest {
    let elsewhere = fixture.endpoints().into_iter().map(|endpoint| endpoint.on("elsewhere")).collect();
    let local = lb_tests::agent::External { local: true, ..node_ports(LOCAL) };
    let local = Service { families: fixture.node.families(), ..Service::standard("local", 12, elsewhere).with(local) };
    Manifest::of([fixture.web().with(node_ports(PLAIN)), local])
}

/// Name and role of each link with programs.
fn roles(agent: &Agent) -> Vec<(String, String)> {
    let status = agent.json(&["status"]).unwrap();
    let links = status["agent"]["datapath"]["links"].as_array().unwrap().clone();
    let of = |field: &serde_json::Value| field.as_str().unwrap().to_owned();
    links.iter().map(|link| (of(&link["name"]), of(&link["role"]))).collect()
}

fn role(agent: &Agent, name: &str) -> Option<String> {
    roles(agent).into_iter().find(|(link, _)| link == name).map(|(_, role)| role)
}

fn becomes(agent: &Agent, name: &str, wanted: &str) {
    eventually(&format!("{name} is {wanted}"), SOON, || (role(agent, name).as_deref() == Some(wanted)).then_some(()));
}

/// Looks at everything, and takes off what is not wanted any more.
fn whole_round(agent: &Agent) {
    agent.cli(&["audit"]).unwrap();
}

/// Waits until the agent has taken up all notifications of before.
fn caught_up(fixture: &Fixture, agent: &Agent) {
    let pod = fixture.pod("last");
    becomes(agent, pod.link(), "pod");
    whole_round(agent);
}

/// An open connection by each address of the node.
fn open(fixture: &Fixture, from: &NetNs) -> Vec<Stream> {
    let to = fixture.node.ips().into_iter().map(|address| SocketAddr::new(address, PLAIN[0]));
    to.map(|to| Stream::connect_from(from, fresh_port(), to, PATIENCE).unwrap()).collect()
}

/// Waits until the node ports are those of the node's addresses.
fn answers(fixture: &Fixture, from: &NetNs) {
    eventually("node ports answer", SOON, || {
        let mut to = fixture.node.ips().into_iter().map(|address| SocketAddr::new(address, PLAIN[0]));
        to.all(|to| Stream::connect_from(from, 0, to, PATIENCE).is_ok()).then_some(())
    });
}

fn go_on(streams: &mut [Stream], when: &str) {
    for stream in streams {
        stream.ask("on").unwrap_or_else(|e| panic!("{when}: {:?}: {e}", stream.peer()));
    }
}

/// The node tells an external client from a pod: only a pod gets an answer.
fn local_serves(from: &NetNs, fixture: &Fixture) -> Vec<bool> {
    let to = fixture.node.ips().into_iter().map(|address| SocketAddr::new(address, LOCAL[0]));
    to.map(|to| Stream::connect_from(from, fresh_port(), to, SILENCE).is_ok()).collect()
}

fn is_degraded(agent: &Agent) -> Option<String> {
    let text = String::from_utf8(agent.cli(&["status"]).unwrap().stdout).unwrap();
    text.contains("degraded").then_some(text)
}

/// Gives the node's addresses and default routes to this link.
fn move_in(fixture: &Fixture, link: &str) {
    let Addresses { v4, v6 } = fixture.node.addresses();
    let lines = format!(
        "address add {v4}/24 dev {link}\naddress add {v6}/64 dev {link} nodad\n\
         route add default via 192.0.2.254 dev {link}\nroute add ::/0 via 2001:db8:1::fe dev {link}"
    );
    fixture.node.namespace().ip(&lines).unwrap();
}

/// A link between the node and the wire, which no bridge of the wire has as a port yet.
fn cable(topology: &Topology, fixture: &Fixture, link: &str) -> String {
    let (wire, node) = (topology.wire(), fixture.node.namespace());
    let port = format!("p-{link}");
    wire.ip(&format!("link add {port} type veth peer name {link} netns {}\nlink set {port} up", node.name())).unwrap();
    set_checksums(wire, &port, Checksums::Complete).unwrap();
    set_checksums(node, link, Checksums::Complete).unwrap();
    node.ip(&format!("link set {link} up")).unwrap();
    port
}

/// Egress gateways lead the traffic of some pods through a pod, by a default route in a table of its own.
#[test]
fn a_pod_with_a_default_route_of_another_table_stays_a_pod() {
    let fixture = Fixture::new("egress", Pods::Routed, 1, NodeOptions::default());
    let agent = fixture.agent(&services(&fixture), &[]);
    let (client, link) = (fixture.client.netns(), fixture.client.link());
    let Addresses { v4, v6 } = fixture.client.addresses();
    let lines =
        format!("route add default via {v4} dev {link} table 100\nroute add ::/0 via {v6} dev {link} table 100");
    fixture.node.namespace().ip(&lines).unwrap();
    caught_up(&fixture, &agent);
    assert_eq!(local_serves(client, &fixture), [true, true], "{:?}", role(&agent, link));
    serves(&fixture, client, PLAIN);
}

#[test]
fn a_link_that_is_renamed_outside_the_pattern_keeps_its_connections() {
    let fixture = Fixture::new("renamed", Pods::Routed, 1, NodeOptions::default());
    let far = far_client(&fixture.topology);
    let mut agent = fixture.agent(&services(&fixture), &["--external-interfaces=eth*"]);
    let mut streams = open(&fixture, far.netns());
    fixture.node.namespace().ip("link set eth0 name wan0").unwrap();
    caught_up(&fixture, &agent);
    go_on(&mut streams, "renamed");
    serves(&fixture, far.netns(), PLAIN);
    let warnings = agent.json(&["status"]).unwrap()["agent"]["datapath"]["warnings"].to_string();
    assert!(warnings.contains("wan0") && warnings.contains("--external-interfaces"), "{warnings}");
    // The next agent goes by the names of that time: none is external, and the way outside is guessed.
    agent.restart().unwrap();
    whole_round(&agent);
    go_on(&mut streams, "after a restart");
    assert!(is_degraded(&agent).is_some_and(|text| text.contains("no external link")), "{:?}", roles(&agent));
}

#[test]
fn a_link_that_is_replaced_keeps_its_connections() {
    let fixture = Fixture::new("replaced", Pods::Routed, 1, NodeOptions::default());
    let far = far_client(&fixture.topology);
    let agent = fixture.agent(&services(&fixture), &[]);
    let (wire, node) = (fixture.topology.wire(), fixture.node.namespace());
    let mut streams = open(&fixture, far.netns());
    let mut old = "eth0";
    for (new, waits) in [("eth0", false), ("wan0", true)] {
        node.ip(&format!("link delete {old}")).unwrap();
        if waits {
            whole_round(&agent);
        }
        let port = cable(&fixture.topology, &fixture, new);
        move_in(&fixture, new);
        becomes(&agent, new, "external");
        // The carrier comes last.
        wire.ip(&format!("link set {port} master br0")).unwrap();
        go_on(&mut streams, new);
        serves(&fixture, far.netns(), PLAIN);
        assert_eq!(local_serves(far.netns(), &fixture), [false, false], "{new}: an external client is one");
        old = new;
    }
}

/// The second uplink has a default route in a table of its own, for what leaves with its address.
#[test]
fn two_uplinks_with_different_routes_are_both_external() {
    let fixture = Fixture::new("two", Pods::Routed, 1, NodeOptions::default());
    let far = far_client(&fixture.topology);
    let isp = Namespace::new(&format!("{}-isp", fixture.topology.name())).unwrap();
    let node = fixture.node.namespace();
    node.ip(&format!("link add eth1 type veth peer name isp0 netns {}\nlink set eth1 up", isp.name())).unwrap();
    node.ip("address add 198.18.5.1/24 dev eth1\nroute add default via 198.18.5.254 dev eth1 table 100\n\
         rule add from 198.18.5.1 lookup 100")
        .unwrap();
    isp.ip("link set lo up\nlink set isp0 up\naddress add 198.18.5.254/24 dev isp0").unwrap();
    let agent = fixture.agent(&services(&fixture), &[]);
    serves(&fixture, far.netns(), PLAIN);
    let ask = |port, patience| {
        Stream::connect_from(isp.netns(), fresh_port(), SocketAddr::new([198, 18, 5, 1].into(), port), patience)
    };
    let answer = ask(PLAIN[0], PATIENCE).unwrap().ask("by the second").unwrap();
    assert_eq!(answer.peer.ip().to_string(), "198.18.5.254", "the backend sees the client");
    ask(LOCAL[0], SILENCE).expect_err("an external client, and no local endpoint");
    assert_eq!(role(&agent, "eth1").as_deref(), Some("external"));
}

/// The address comes after the agent, as from a lease. Then it goes and comes back.
#[test]
fn a_link_that_gets_its_address_later_is_found_and_keeps_its_connections() {
    let fixture = Fixture::new("late", Pods::Routed, 1, NodeOptions::default());
    let far = far_client(&fixture.topology);
    let gone = "address flush dev eth0 scope global\nroute delete ::/0 via 2001:db8:1::fe";
    fixture.node.namespace().ip(gone).unwrap();
    let agent = fixture.agent(&services(&fixture), &[]);
    whole_round(&agent);
    let text = is_degraded(&agent).expect("no external link is known");
    assert!(text.contains("no external link") && text.contains("--external-interfaces"), "{text}");
    assert_eq!(agent.metric("ballast_external_link_known", ""), Some(0.0));
    move_in(&fixture, "eth0");
    becomes(&agent, "eth0", "external");
    eventually("the node is not degraded", SOON, || is_degraded(&agent).is_none().then_some(()));
    assert_eq!(agent.metric("ballast_external_link_known", ""), Some(1.0));
    answers(&fixture, far.netns());
    assert_eq!(agent.log().matches("no external link is known").count(), 1, "{}", agent.log());
    let mut streams = open(&fixture, far.netns());
    fixture.node.namespace().ip(gone).unwrap();
    whole_round(&agent);
    move_in(&fixture, "eth0");
    go_on(&mut streams, "the lease is back");
    answers(&fixture, far.netns());
    serves(&fixture, far.netns(), PLAIN);
}

/// Two ways of not knowing: a pattern that nothing matches, and a pair without a default route.
#[test]
fn without_a_known_link_node_ports_answer_and_clients_are_external() {
    for (subject, flags) in [("pattern", &["--external-interfaces=wan*"][..]), ("routeless", &[])] {
        let fixture = Fixture::new(subject, Pods::Routed, 1, NodeOptions::default());
        let near = fixture.topology.outside("near", &fixture.node).unwrap();
        if flags.is_empty() {
            fixture.node.namespace().ip("route delete default\nroute delete ::/0 via 2001:db8:1::fe").unwrap();
        }
        let agent = fixture.agent(&services(&fixture), flags);
        whole_round(&agent);
        serves(&fixture, near.netns(), PLAIN);
        serves(&fixture, fixture.client.netns(), PLAIN);
        assert_eq!(local_serves(near.netns(), &fixture), [false, false], "{subject}: an external client is one");
        assert_eq!(local_serves(fixture.client.netns(), &fixture), [true, true], "{subject}: a pod is one");
        let text = is_degraded(&agent).unwrap_or_else(|| panic!("{subject}: not degraded: {:?}", roles(&agent)));
        assert!(text.contains("no external link"), "{subject}: {text}");
        for to in fixture.web().frontends(Protocol::Tcp) {
            Stream::connect(fixture.client.netns(), to).unwrap().ask("cluster IP").unwrap();
        }
    }
}
