//! Backends are taken out by hand: no new flows, those that there are stay; the order holds until it is taken back.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;

use lb_tests::agent::{Agent, Manifest, Protocol, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Datagrams, Stream, eventually};
use lb_tests::topology::NodeOptions;

/// New connections that must show every backend: with two of them, all the same with a chance of 2⁻³⁰.
const MANY: usize = 30;

fn order(agent: &Agent, arguments: &[&str]) -> serde_json::Value {
    agent.json(&[&["maintenance"], arguments].concat()).unwrap()
}

/// The servers of new connections from a pod and from the host.
fn servers(fixture: &Fixture, to: SocketAddr) -> Vec<String> {
    let ask = |netns| Stream::connect(netns, to).unwrap().ask("who").unwrap().server;
    let mut all: Vec<String> =
        (0..MANY).flat_map(|_| [ask(fixture.client.netns()), ask(fixture.node.netns())]).collect();
    all.sort();
    all.dedup();
    all
}

#[test]
fn flows_stay_new_ones_go_elsewhere_and_it_holds_until_it_is_taken_back() {
    let fixture = Fixture::new("maint", Pods::Routed, 2, NodeOptions::default());
    let service = fixture.web();
    let mut agent = fixture.agent(&Manifest::of([service.clone()]), &["--flow-timeouts=udp-replied=10m"]);
    let out: Vec<String> = fixture.backends[1].addresses().both().map(|address| address.to_string()).into();
    let to = service.frontends(Protocol::Tcp);
    let mut held: Vec<Stream> = Vec::new();
    for frontend in &to {
        held.extend((0..8).map(|_| Stream::connect(fixture.client.netns(), *frontend).unwrap()));
    }
    let before: Vec<String> = held.iter_mut().map(|stream| stream.ask("one").unwrap().server).collect();
    let dns = service.frontends(Protocol::Udp)[0];
    let datagrams: Vec<Datagrams> =
        (0..8).map(|_| Datagrams::unconnected(fixture.client.netns(), 0, dns).unwrap()).collect();
    let asked: Vec<String> = datagrams.iter().map(|socket| socket.ask_at(dns, "one").unwrap().server).collect();

    for address in &out {
        let answer = order(&agent, &[address, "on"]);
        assert_eq!((answer["changed"].as_bool(), answer["error"].as_str()), (Some(true), None));
    }
    let listed = order(&agent, &["list"]);
    assert_eq!(listed["targets"][0], serde_json::json!({"target": out[0], "endpoints": 2}), "TCP and UDP: {listed}");
    assert_eq!(order(&agent, &[&out[0], "on"])["changed"], false, "it is already");
    for round in 0..2 {
        for frontend in &to {
            assert_eq!(servers(&fixture, *frontend), ["b0"], "round {round}");
        }
        for (stream, server) in held.iter_mut().zip(&before) {
            assert_eq!(&stream.ask("two").unwrap().server, server, "a connection stays where it is");
        }
        for (socket, server) in datagrams.iter().zip(&asked) {
            assert_eq!(&socket.ask_at(dns, "two").unwrap().server, server, "a UDP flow stays, too");
        }
        let states = agent.states().unwrap();
        let shown =
            |address: &str, state| states.iter().filter(|(_, at, is)| at.contains(address) && is == state).count();
        assert_eq!(shown(&out[0], "maintenance"), 2, "{states:?}");
        // Another agent knows it, too.
        agent.kill();
        assert_eq!(order(&agent, &["list"])["targets"].as_array().unwrap().len(), 2, "it can be read without an agent");
        agent.restart().unwrap();
    }
    for address in &out {
        assert_eq!(order(&agent, &[address, "off"])["changed"], true);
    }
    for frontend in &to {
        assert_eq!(servers(&fixture, *frontend), ["b0", "b1"]);
    }
}

#[test]
fn it_holds_for_what_is_not_there_yet_for_one_port_and_for_all_of_a_service() {
    let fixture = Fixture::new("maintnew", Pods::Routed, 2, NodeOptions::default());
    let only = Service::web(fixture.endpoints()[..1].to_vec());
    let agent = fixture.agent(&Manifest::of([only.clone()]), &[]);
    let at = |index: usize, port| SocketAddr::new(fixture.backends[index].addresses().v4.into(), port).to_string();
    let [tcp, udp] = [Protocol::Tcp, Protocol::Udp].map(|protocol| only.frontends(protocol)[0]);
    let answer = order(&agent, &[&at(1, 8080), "on"]);
    assert_eq!(answer["targets"], serde_json::json!([{"target": at(1, 8080), "endpoints": 0}]));
    agent.write(&Manifest::of([fixture.web()])).unwrap();
    eventually("UDP finds both, its port is another one", SOON, || {
        let ask = || Datagrams::unconnected(fixture.client.netns(), 0, udp)?.ask_at(udp, "who");
        (0..MANY).any(|_| ask().is_ok_and(|answer| answer.server == "b1")).then_some(())
    });
    assert_eq!(servers(&fixture, tcp), ["b0"]);
    // All of them: refused, as without an endpoint. It is what was asked for.
    order(&agent, &[&at(0, 8080), "on"]);
    let error = Stream::connect(fixture.client.netns(), tcp).expect_err("nobody serves");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    order(&agent, &[&at(1, 8080), "off"]);
    assert_eq!(servers(&fixture, tcp), ["b1"]);
}

#[test]
fn only_root_gives_orders_and_nonsense_is_refused() {
    let fixture = Fixture::new("maintroot", Pods::Routed, 1, NodeOptions::default());
    let agent = fixture.agent(&Manifest::of([fixture.web()]), &[]);
    let socket = fixture.node.run_dir().join("agent.sock");
    assert_eq!(std::fs::metadata(socket).unwrap().permissions().mode() & 0o777, 0o600);
    for nonsense in [&["web", "on"][..], &["10.0.0.1"], &["list", "on"], &["10.0.0.1", "maybe"]] {
        let output = agent.cli(&[&["maintenance"], nonsense].concat()).unwrap();
        assert!(!output.status.success() && !output.stderr.is_empty(), "{nonsense:?}");
    }
    assert_eq!(order(&agent, &["list"])["targets"], serde_json::json!([]));
}

/// As without an API: what the agent before left serves on, and no order takes effect.
#[test]
fn an_order_succeeds_only_when_the_tables_hold_it() {
    let fixture = Fixture::new("maintmute", Pods::Routed, 2, NodeOptions::default());
    let service = fixture.web();
    let mut agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    let out = fixture.backends[1].addresses().v4.to_string();
    let to = service.frontends(Protocol::Tcp)[0];
    agent.kill();
    agent.write_text("kind: Service\n  name: [\n").unwrap();
    agent.launch().unwrap();
    let give = || agent.cli(&["maintenance", &out, "on"]).unwrap();
    let output = eventually("the agent answers", SOON, || {
        let output = give();
        // Without an agent that answers it is an error.
        (output.status.code() != Some(1)).then_some(output)
    });
    assert_eq!(servers(&fixture, to), ["b0", "b1"], "the tables do not hold it");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(3) && said.contains(&out) && said.contains("again"), "{output:?}");
    // It is written down, and takes effect with the next snapshot.
    agent.write(&Manifest::of([service.clone()])).unwrap();
    eventually("the order succeeds", SOON, || give().status.success().then_some(()));
    assert_eq!(servers(&fixture, to), ["b0"]);
}

/// By a restart over a file that somebody broke; the tables know what was in maintenance.
#[test]
fn a_file_that_cannot_be_read_brings_nothing_back_and_is_named() {
    let fixture = Fixture::new("maintfile", Pods::Routed, 2, NodeOptions::default());
    let service = fixture.web();
    let mut agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    for address in fixture.backends[1].addresses().both() {
        order(&agent, &[&address.to_string(), "on"]);
    }
    agent.kill();
    let file = fixture.node.run_dir().join("maintenance");
    std::fs::write(&file, "web").unwrap();
    agent.restart().unwrap();
    for frontend in service.frontends(Protocol::Tcp) {
        assert_eq!(servers(&fixture, frontend), ["b0"]);
    }
    let named = || agent.json(&["status"]).unwrap()["agent"]["tables"]["unreadMaintenance"].clone();
    let problem = eventually("status names it", SOON, || named().as_str().map(str::to_owned));
    assert!(problem.contains(&file.display().to_string()) && problem.contains("\"web\""), "{problem}");
    let shown = String::from_utf8(agent.cli(&["status"]).unwrap().stdout).unwrap();
    assert!(shown.contains(&problem), "{shown}");
    // Corrected, it counts again without a restart.
    let first = fixture.backends[0].addresses().both().map(|address| address.to_string());
    std::fs::write(&file, first.join("\n")).unwrap();
    eventually("the file is read", SOON, || named().is_null().then_some(()));
    for frontend in service.frontends(Protocol::Tcp) {
        assert_eq!(servers(&fixture, frontend), ["b1"]);
    }
}
