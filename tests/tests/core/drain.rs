//! A drain ends by its deadline: flows stay until then, both sides get a RST after it, UDP moves at once. Here all end with the drain period
//! (`--drain-max=0s`).

mod answered;
mod idle;

use std::net::SocketAddr;
use std::time::Duration;

use lb_tests::agent::{Endpoint, External, Manifest, Protocol, SOON, Service};
use lb_tests::fixture::{Ends, Fixture, Pods, held_until_the_deadline, is_broken as broken};
use lb_tests::peers::{Datagrams, Stream, eventually};
use lb_tests::topology::{Families, NodeOptions};

const DRAIN: &str = "6s";

/// How many drains ended like this.
fn ends(agent: &lb_tests::agent::Agent, end: &str) -> u64 {
    let status = agent.json(&["status"]).unwrap();
    status["agent"]["tables"]["drains"]["ends"][end].as_u64().unwrap_or_default()
}

/// A manifest whose Services have a drain period of their own.
fn with_period(manifest: &Manifest, period: &str) -> String {
    let head = "\"kind\": \"Service\",\n  \"metadata\": {";
    let yaml = manifest.yaml();
    assert!(yaml.contains(head), "{yaml}");
    yaml.replace(head, &format!("{head} \"annotations\": {{\"ballast.dev/drain-period\": \"{period}\"}},"))
}

/// A service's own period counts, also after the Service is deleted and with the agent dead; the log does not repeat itself.
#[test]
fn a_service_has_a_period_of_its_own_also_when_it_is_gone() {
    let fixture = Fixture::new("period", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let mut agent = fixture.agent(&Manifest::of([service.clone()]), &["--drain-period=1s", "--drain-max=0s"]);
    agent.write_text(&with_period(&Manifest::of([service.clone()]), "20s")).unwrap();
    let to = service.frontends(Protocol::Tcp)[0];
    let mut stream = Stream::connect(fixture.client.netns(), to).unwrap();
    stream.ask("one").unwrap();
    // The annotation is in the tables with the next revision, which writes nothing that shows.
    eventually("it is read", SOON, || {
        (agent.json(&["status"]).ok()?["agent"]["source"]["revision"].as_u64()? >= 2).then_some(())
    });
    let deleted = std::time::Instant::now();
    agent.apply(&Manifest::default()).unwrap();
    let draining = || agent.states().unwrap().iter().filter(|(_, _, state)| state == "draining").count();
    assert_eq!(draining(), 4);
    eventually("the deletion is logged", SOON, || (agent.log().matches("in the tables").count() == 2).then_some(()));
    let said = || agent.log().lines().filter(|line| line.contains("drain")).count();
    let before = said();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(stream.ask("two").unwrap().server, "b0", "the agent's second has passed, the service's twenty have not");
    assert_eq!(said(), before, "an agent that waits says nothing of it: {}", agent.log());
    agent.kill();
    let error = eventually("it is told", 2 * SOON, || {
        std::thread::sleep(Duration::from_millis(100));
        stream.ask("three").err()
    });
    assert!(broken(&error), "{error}");
    assert!(deleted.elapsed() >= Duration::from_secs(19), "not before its time: {:?}", deleted.elapsed());
    agent.restart().unwrap();
    eventually("the drains are over", SOON, || (ends(&agent, "deadline") + ends(&agent, "empty") >= 4).then_some(()));
}

/// Drains that end without a flow, that cut flows off, and that were called off count apart.
#[test]
fn drains_are_counted_by_their_ends() {
    let fixture = Fixture::new("ends", Pods::Routed, 2, NodeOptions::default());
    let mut both = fixture.web();
    both.ports.truncate(1);
    let service = |endpoints| Service { endpoints, ..both.clone() };
    let mut agent = fixture.agent(&Manifest::of([both.clone()]), &["--drain-period=1h", "--drain-max=0s"]);
    // b0 keeps a connection to its IPv4 address, b1 has none.
    let to = both.frontends(Protocol::Tcp)[0];
    let mut held = eventually("a connection to b0", SOON, || {
        let mut stream = Stream::connect(fixture.client.netns(), to).ok()?;
        (stream.ask("who").ok()?.server == "b0").then_some(stream)
    });
    agent.apply(&Manifest::of([service(vec![])])).unwrap();
    agent.apply(&Manifest::of([both.clone()])).unwrap();
    eventually("four were called off", SOON, || (ends(&agent, "returned") == 4).then_some(()));
    agent.restart_with(&fixture.node, &["--drain-period=20s", "--drain-max=0s"]).unwrap();
    agent.apply(&Manifest::of([service(vec![])])).unwrap();
    eventually("they end", 2 * SOON, || held.ask("still").err());
    eventually("three were empty, one was not", SOON, || {
        ((ends(&agent, "empty"), ends(&agent, "deadline")) == (3, 1)).then_some(())
    });
}

/// A node port is taken away while its Service stays: connections by it drain, those by the cluster IP do not.
#[test]
fn a_deleted_frontend_drains_the_connections_that_came_by_it() {
    const NODE_PORT: u16 = 30_080;
    let fixture = Fixture::new("frontend", Pods::Routed, 1, NodeOptions::default());
    let plain = fixture.web();
    let exposed = plain.clone().with(External { node_ports: vec![NODE_PORT], ..External::default() });
    let agent = fixture.agent(&Manifest::of([exposed]), &["--drain-period=10s", "--drain-max=0s"]);
    let cluster_ips = plain.frontends(Protocol::Tcp);
    let node_ports = fixture.node.addresses().both().map(|ip| SocketAddr::new(ip, NODE_PORT));
    let connect = |to: &SocketAddr| Stream::connect(fixture.client.netns(), *to).unwrap();
    let mut stay: Vec<Stream> = cluster_ips.iter().map(connect).collect();
    let mut go: Vec<Stream> = node_ports.iter().map(connect).collect();
    for stream in stay.iter_mut().chain(&mut go) {
        stream.ask("one").unwrap();
    }
    agent.write(&Manifest::of([plain])).unwrap();
    eventually("the node port is refused", SOON, || Stream::connect(fixture.client.netns(), node_ports[0]).err());
    for stream in &mut go {
        stream.ask("two").unwrap();
    }
    let broken_before: u32 = fixture.servers[0].iter().map(lb_tests::peers::Server::broken).sum();
    for stream in &mut go {
        let error = eventually("it is told", 2 * SOON, || {
            std::thread::sleep(Duration::from_millis(200));
            stream.ask("three").err()
        });
        assert!(broken(&error), "{error}");
    }
    eventually("the backend is told, too", SOON, || {
        fixture.servers[0].iter().for_each(|server| server.push("anybody?"));
        let now: u32 = fixture.servers[0].iter().map(lb_tests::peers::Server::broken).sum();
        (now >= broken_before + 2).then_some(())
    });
    for stream in &mut stay {
        // What the server said unasked comes first.
        let answer =
            eventually("the answer", SOON, || stream.read_line().ok().filter(|line| line.contains("anybody?")));
        assert!(!answer.is_empty(), "by the cluster IP it goes on");
    }
}

#[test]
fn a_vanished_backend_keeps_its_connections_until_the_deadline_and_not_longer() {
    for families in Families::ALL {
        let fixture = Fixture::of(families, "drain", 2);
        let mut agent = fixture.agent(&Manifest::of([fixture.web()]), &["--drain-period", DRAIN, "--drain-max=0s"]);
        for ends in [Ends::Idle, Ends::WithoutAgent] {
            held_until_the_deadline(&fixture, &mut agent, ends);
        }
    }
}

#[test]
fn a_backend_that_comes_back_in_time_keeps_its_connections() {
    let fixture = Fixture::new("back", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let agent = fixture.agent(&Manifest::of([service.clone()]), &["--drain-period=8s", "--drain-max=0s"]);
    let to = service.frontends(Protocol::Tcp)[0];
    let mut stream = Stream::connect(fixture.client.netns(), to).unwrap();
    stream.ask("one").unwrap();
    agent.apply(&Manifest::of([Service::web(vec![])])).unwrap();
    agent.apply(&Manifest::of([service])).unwrap();
    std::thread::sleep(Duration::from_secs(9));
    assert_eq!(stream.ask("two").unwrap().server, "b0");
}

#[test]
fn an_address_that_comes_back_as_another_pod_gets_none_of_the_old_flows() {
    let fixture = Fixture::new("reborn", Pods::Routed, 1, NodeOptions::default());
    let endpoint = fixture.endpoints().remove(0);
    let first = Service::web(vec![endpoint.clone().pod("aaaa")]);
    let agent = fixture.agent(&Manifest::of([first.clone()]), &[]);
    let to = first.frontends(Protocol::Tcp)[0];
    let mut old = Stream::connect(fixture.client.netns(), to).unwrap();
    old.ask("one").unwrap();
    let mut answered = 1;
    let second = Service::web(vec![endpoint.pod("bbbb")]);
    agent.write(&Manifest::of([second])).unwrap();
    let error = eventually("the old flow is told", SOON, || {
        std::thread::sleep(Duration::from_millis(100));
        answered += 1;
        old.ask("two").err()
    });
    answered -= 1;
    assert!(broken(&error), "{error}");
    fixture.servers[0].iter().for_each(|server| server.push("to the old one"));
    let mut new = Stream::connect(fixture.client.netns(), to).unwrap();
    assert_eq!(new.ask("three").unwrap().server, "b0");
    // Every question that the pod answered was one that its client heard answered: no other got there.
    let answers = || fixture.servers[0].iter().map(lb_tests::peers::Server::answers).sum::<u32>();
    eventually("the last answer is counted", SOON, || (answers() > answered).then_some(()));
    assert_eq!(answers(), answered + 1, "nothing of the old flow got through after its end");
    assert_eq!(ends(&agent, "replaced"), 0, "it did not drain: it ended at once");
}

#[test]
fn udp_moves_at_its_next_packet() {
    for families in Families::ALL {
        let fixture = Fixture::of(families, "udp", 2);
        let service = fixture.web();
        let agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
        for to in service.frontends(Protocol::Udp) {
            for netns in [fixture.client.netns(), fixture.node.netns()] {
                agent.apply(&Manifest::of([service.clone()])).unwrap();
                let socket = Datagrams::unconnected(netns, 0, to).unwrap();
                let first = socket.ask_at(to, "one").unwrap().server;
                let (gone, left) = if first == "b0" { (0, 1) } else { (1, 0) };
                let mut endpoints = fixture.endpoints();
                endpoints[gone] = Endpoint::unready(fixture.backends[gone].addresses());
                agent.apply(&Manifest::of([fixture.web_of(endpoints)])).unwrap();
                assert_eq!(socket.ask_at(to, "two").unwrap().server, format!("b{left}"));
                // To zero and back.
                agent.apply(&Manifest::of([fixture.web_of(vec![])])).unwrap();
                socket.ask_at(to, "three").unwrap_err();
                agent.apply(&Manifest::of([service.clone()])).unwrap();
                eventually("it is served again", SOON, || socket.ask_at(to, "four").ok());
            }
        }
    }
}

#[test]
fn a_deleted_service_drains_its_connections() {
    let fixture = Fixture::new("deleted", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let agent = fixture.agent(&Manifest::of([service.clone()]), &["--drain-period", DRAIN, "--drain-max=0s"]);
    let to = service.frontends(Protocol::Tcp)[0];
    let mut stream = Stream::connect(fixture.client.netns(), to).unwrap();
    stream.ask("one").unwrap();
    agent.apply(&Manifest::default()).unwrap();
    assert_eq!(stream.ask("two").unwrap().server, "b0", "established flows drain");
    let error = eventually("it is told", SOON, || {
        std::thread::sleep(Duration::from_millis(200));
        stream.ask("three").err()
    });
    assert!(broken(&error), "{error}");
}
