//! `ballast explain` says what becomes of a packet; then the packet is sent, and meets just that.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Endpoint, External, Manifest, Protocol, SOON, Service};
use lb_tests::external_client::{ExternalClient, HTTP, client_addresses, load_balancer};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Stream, eventually};
use lb_tests::topology::NodeOptions;
use serde_json::{Value, json};

/// Exit code and JSON.
fn explain(agent: &Agent, source: &str, destination: &str) -> (i32, Value) {
    let output = agent.cli(&["explain", source, destination, "-o", "json"]).unwrap();
    let code = output.status.code().expect("an exit code");
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (code, serde_json::from_slice(&output.stdout).unwrap())
}

fn text(agent: &Agent, source: &str, destination: &str) -> String {
    String::from_utf8(agent.cli(&["explain", source, destination]).unwrap().stdout).unwrap()
}

/// The address of a backend of the family.
fn backend(fixture: &Fixture, index: usize, like: SocketAddr) -> String {
    SocketAddr::new(fixture.backends[index].addresses().like(like.ip()), 8080).to_string()
}

/// The client pod's address of the family.
fn client(fixture: &Fixture, like: SocketAddr, port: u16) -> String {
    SocketAddr::new(fixture.client.addresses().like(like.ip()), port).to_string()
}

/// Reason and mark of the candidate.
fn candidate(explained: &Value, address: &str) -> (bool, bool, String) {
    let all = explained["candidates"].as_array().unwrap();
    let one = all.iter().find(|one| one["address"] == address).unwrap_or_else(|| panic!("{address} in {all:?}"));
    (one["eligible"] == true, one["chosen"] == true, one["reason"].as_str().unwrap().to_owned())
}

/// Which backend answers, by its name in the fixture.
fn named(fixture: &Fixture, explained: &Value, like: SocketAddr) -> String {
    let at = explained["result"]["backend"].as_str().unwrap_or_else(|| panic!("no backend in {explained:#}"));
    let found = (0..fixture.backends.len()).find(|index| backend(fixture, *index, like) == at);
    format!("b{}", found.unwrap_or_else(|| panic!("{at} is no backend")))
}

fn port() -> u16 {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(21_000);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Connects from this port, and names who answers.
fn answers(fixture: &Fixture, from: u16, to: SocketAddr) -> String {
    let mut stream = Stream::connect_from(fixture.client.netns(), from, to, SOON).unwrap();
    stream.ask("who").unwrap().server
}

#[test]
fn each_backend_that_takes_nothing_has_its_reason_and_connections_their_backend() {
    let mut fixture = Fixture::new("explain", Pods::Routed, 4, NodeOptions::default());
    let with = |endpoints: Vec<Endpoint>| {
        let web = fixture.web_of(endpoints).annotated("check", "tcp").annotated("check-interval", "1s");
        web.annotated("check-timeout", "1s").annotated("check-failures", "2")
    };
    let (all, unready) = (fixture.endpoints(), Endpoint::unready(fixture.backends[3].addresses()));
    let before = with(all.clone());
    let after = with(vec![all[0].clone(), all[2].clone(), unready.on(&fixture.node.node_name())]);
    let to = before.frontends(Protocol::Tcp);
    let flags = ["--active-checks=pods,0.0.0.0/0,::/0", "--drain-period=10m"];
    let mut agent = fixture.agent(&Manifest::of([before]), &flags);
    let mut held: Vec<(SocketAddr, u16, Stream)> = to
        .iter()
        .map(|to| {
            loop {
                let from = port();
                let mut stream = Stream::connect_from(fixture.client.netns(), from, *to, SOON).unwrap();
                if stream.ask("who").unwrap().server == "b1" {
                    break (*to, from, stream);
                }
            }
        })
        .collect();
    agent.write(&Manifest::of([after])).unwrap();
    fixture.servers[2].clear();
    let mut expected = [
        (1, "draining: its endpoint is gone from every slice"),
        (2, "unhealthy: its active checks fail"),
        (3, "unready"),
    ];
    eventually("the tables hold all states", SOON, || {
        let is_there = |to: SocketAddr| {
            let (_, explained) = explain(&agent, &client(&fixture, to, 0).replace(":0", ""), &to.to_string());
            let all = explained["candidates"].as_array().unwrap().clone();
            let has = |(index, reason): &(usize, &str)| {
                all.iter().any(|one| one["address"] == backend(&fixture, *index, to) && one["reason"] == *reason)
            };
            expected.iter().all(has)
        };
        to.iter().all(|to| is_there(*to)).then_some(())
    });
    for is_alive in [true, false] {
        if !is_alive {
            agent.kill();
            // Without it nobody knows the slices.
            expected[0].1 = "draining: no endpoint of the service port any more";
        }
        for (to, from, stream) in &mut held {
            // Neighbours look for each other meanwhile, which passes.
            let outcomes = || {
                let mut outcomes = agent.json(&["status"]).unwrap()["outcomes"].clone();
                outcomes.as_object_mut().unwrap().remove("passed");
                outcomes
            };
            let counted = outcomes();
            let (code, explained) = explain(&agent, &client(&fixture, *to, port()), &to.to_string());
            assert_eq!(code, 0);
            for (index, reason) in expected {
                assert_eq!(candidate(&explained, &backend(&fixture, index, *to)), (false, false, reason.to_owned()));
            }
            assert!(candidate(&explained, &backend(&fixture, 0, *to)).1, "{explained:#}");
            assert_eq!(explained["result"]["deterministic"], true);
            assert_eq!(explained["hook"]["program"], "pod_in");
            assert_eq!(explained["frontend"]["name"], "web");
            assert_eq!(explained["tables"]["agentError"].is_null(), is_alive);
            // The connection of before is with the one that drains.
            let (code, known) = explain(&agent, &client(&fixture, *to, *from), &to.to_string());
            assert_eq!((code, known["result"]["outcome"].as_str()), (0, Some("forwarded")));
            assert_eq!(known["connection"]["backendState"], "draining");
            assert_eq!(named(&fixture, &known, *to), "b1");
            if !is_alive {
                assert_eq!(outcomes(), counted, "explain moved a counter");
            }
            assert_eq!(stream.ask("who").unwrap().server, "b1");
            assert_eq!(answers(&fixture, port(), *to), named(&fixture, &explained, *to));
        }
    }
    let shown = text(&agent, &client(&fixture, to[0], port()), "svc/test/web:http");
    println!("{shown}");
    for said in ["the agent does not answer", "test/web:80", "CHOSEN", "unhealthy", "CHANGES WITH"] {
        assert!(shown.contains(said), "{said}: {shown}");
    }
}

#[test]
fn the_next_backend_is_named_where_no_chance_decides() {
    let fixture = Fixture::new("explnext", Pods::Routed, 3, NodeOptions::default());
    let of = |name, last, scheduler: &str| {
        Service::standard(name, last, fixture.endpoints()).annotated("scheduler", scheduler)
    };
    let services = [
        of("turns", 11, "round-robin"),
        of("maglev", 12, "maglev"),
        of("hash", 13, "source-hash"),
        Service::standard("sticky", 14, fixture.endpoints()).remembering_long(),
    ];
    let agent = fixture.agent(&Manifest::of(services.clone()), &[]);
    for to in services.iter().flat_map(|service| service.frontends(Protocol::Tcp)) {
        for round in 0..5 {
            let from = port();
            let (code, explained) = explain(&agent, &client(&fixture, to, from), &to.to_string());
            assert_eq!((code, explained["result"]["deterministic"].as_bool()), (0, Some(true)), "{explained:#}");
            let said = named(&fixture, &explained, to);
            assert_eq!(answers(&fixture, from, to), said, "{to}, round {round}: {explained:#}");
        }
    }
    let sticky = services[3].frontends(Protocol::Tcp)[0];
    let (_, explained) = explain(&agent, &client(&fixture, sticky, port()), &sticky.to_string());
    assert_eq!(explained["affinity"]["used"], true, "{explained:#}");
    assert_eq!(explained["affinity"]["backend"], explained["result"]["backend"]);
    // Chance names one of several: all are listed with the same chance, and none is promised.
    agent.apply(&Manifest::of([fixture.web()])).unwrap();
    let to = fixture.web().frontends(Protocol::Tcp)[0];
    let (code, explained) = explain(&agent, &client(&fixture, to, port()), &to.to_string());
    assert_eq!((code, &explained["result"]["backend"]), (0, &Value::Null));
    assert_eq!(explained["result"]["deterministic"], false);
    let chances: Vec<f64> =
        explained["candidates"].as_array().unwrap().iter().map(|one| one["chance"].as_f64().unwrap()).collect();
    assert_eq!(chances.len(), 3);
    assert!(chances.iter().all(|chance| (chance - 1.0 / 3.0).abs() < 1e-9), "{chances:?}");
}

#[test]
fn refusals_are_named_as_they_happen() {
    let fixture = Fixture::new("explno", Pods::Routed, 1, NodeOptions::default());
    let external = External {
        load_balancer_ips: vec!["192.0.2.10".parse().unwrap()],
        source_ranges: vec!["203.0.113.0/24".to_owned()],
        ..External::default()
    };
    let agent = fixture.agent(&Manifest::of([fixture.web().with(external), fixture.empty()]), &[]);
    let empty = fixture.empty().frontends(Protocol::Tcp)[0];
    let unserved = SocketAddr::new(fixture.web().frontends(Protocol::Tcp)[0].ip(), 81);
    let ranged: SocketAddr = "192.0.2.10:80".parse().unwrap();
    let cases = [
        (empty, "refused_no_endpoint", "a ready endpoint of test/empty", Some(ErrorKind::ConnectionRefused)),
        (unserved, "refused_unserved", "a service port at 10.96.0.10:81", Some(ErrorKind::ConnectionRefused)),
        (ranged, "dropped_source_range", "a client inside loadBalancerSourceRanges of test/web", None),
    ];
    for (to, outcome, change, error) in cases {
        let from = port();
        let (code, explained) = explain(&agent, &client(&fixture, to, from), &to.to_string());
        assert_eq!((code, explained["result"]["outcome"].as_str()), (1, Some(outcome)), "{explained:#}");
        assert_eq!(explained["change"], change);
        let counted =
            |agent: &Agent| agent.json(&["status"]).unwrap()["outcomes"][outcome].as_u64().unwrap_or_default();
        let before = counted(&agent);
        let limit = Duration::from_secs(2);
        let failed = Stream::connect_from(fixture.client.netns(), from, to, limit).expect_err("nobody serves it");
        assert!(error.is_none_or(|kind| failed.kind() == kind), "{to}: {failed}");
        assert!(counted(&agent) > before, "{outcome} is what was counted");
    }
    let (_, explained) = explain(&agent, &client(&fixture, ranged, port()), &ranged.to_string());
    assert_eq!(explained["policy"]["sourceRangesAdmit"], json!(false));
    // A process of the node, and an address of nobody.
    let node = fixture.node.addresses().v4.to_string();
    let (code, explained) = explain(&agent, &node, "svc/test/web:80");
    assert_eq!((code, explained["result"]["outcome"].as_str()), (0, Some("socket_connected")), "{explained:#}");
    let (code, explained) = explain(&agent, &node, &empty.to_string());
    assert_eq!((code, explained["result"]["outcome"].as_str()), (1, Some("socket_refused")), "{explained:#}");
    let (code, explained) = explain(&agent, &client(&fixture, empty, port()), "198.51.100.1:443");
    assert_eq!((code, explained["result"]["outcome"].as_str()), (0, Some("passed")), "{explained:#}");
    for nonsense in
        [["10.0.0.1", "pod/test/b0"], ["10.0.0.1", "web"], ["10.0.0.1", "svc/test/nothing"], ["web", "10.0.0.1:80"]]
    {
        let output = agent.cli(&[&["explain"], &nonsense[..]].concat()).unwrap();
        assert_eq!(output.status.code(), Some(2), "{nonsense:?}");
        assert!(!output.stderr.is_empty());
    }
}

#[test]
fn a_port_that_no_slice_has_is_the_reason_in_every_command() {
    let fixture = Fixture::new("explport", Pods::Routed, 1, NodeOptions::default());
    let manifest = Manifest::of([fixture.web()]);
    let mut agent = fixture.agent(&manifest, &[]);
    let to = fixture.web().frontends(Protocol::Tcp)[0];
    let from = client(&fixture, to, port());
    let mut documents = manifest.documents();
    for slice in documents.iter_mut().filter(|document| document["kind"] == "EndpointSlice") {
        slice["ports"][0]["name"] = json!("htpp");
    }
    agent
        .write_text(&documents.iter().map(|document| format!("---\n{document:#}\n")).collect::<Vec<_>>().concat())
        .unwrap();
    let mismatch = eventually("no endpoint has the port", SOON, || {
        let (code, explained) = explain(&agent, &from, &to.to_string());
        let problem = explained["endpointProblems"][0].clone();
        (code == 1 && !problem.is_null()).then_some(problem)
    });
    assert_eq!((&mismatch["portName"], &mismatch["cause"]), (&json!("http"), &json!("other-port")));
    let said = |agent: &Agent, arguments: &[&str]| String::from_utf8(agent.cli(arguments).unwrap().stdout).unwrap();
    let commands: [&[&str]; 3] = [&["explain", &from, &to.to_string()], &["get", "services"], &["doctor"]];
    for command in commands {
        let shown = said(&agent, command);
        println!("{shown}");
        assert!(shown.contains("1 endpoint has port `htpp`; none has `http`"), "{command:?}: {shown}");
    }
    let (_, explained) = explain(&agent, &from, &to.to_string());
    let reason = |explained: &Value| candidate(explained, &backend(&fixture, 0, to)).2;
    assert_eq!(reason(&explained), "draining: no slice has its endpoint with port `http`");
    assert_eq!(explained["change"], "port `http` in the slices of test/web");
    let services = || agent.json(&["get", "services"]).unwrap();
    let of_port = |services: &Value, port: u16| {
        let all = services["items"].as_array().unwrap().clone();
        all.into_iter().find(|item| item["port"] == port).unwrap()["endpointProblems"].clone()
    };
    // One of each family.
    assert_eq!(of_port(&services(), 80).as_array().map(Vec::len), Some(2));
    assert!(of_port(&services(), 53).is_null());
    let examined: Value = serde_json::from_str(&said(&agent, &["doctor", "-o", "json"])).unwrap();
    let found = examined["findings"].clone();
    let found = found.as_array().unwrap().iter().filter(|finding| finding["check"] == "endpoints").count();
    assert_eq!(found, 2);
    // The maps alone say nothing of slices.
    agent.kill();
    for command in commands {
        let shown = said(&agent, command);
        assert!(!shown.contains("htpp") && !shown.contains("slice"), "{command:?}: {shown}");
    }
}

#[test]
fn an_external_client_is_masqueraded_as_said() {
    let beyond = ExternalClient::with("explfar", &["--xdp-mode=off"], |service| service);
    for to in beyond.frontends(HTTP) {
        let from = SocketAddr::new(client_addresses().like(to.ip()), port()).to_string();
        let (code, explained) = explain(&beyond.agent, &from, &to.to_string());
        assert_eq!((code, explained["result"]["outcome"].as_str()), (0, Some("masqueraded")), "{explained:#}");
        assert_eq!(explained["hook"]["program"], "node_in");
        assert_eq!(explained["policy"]["client"], "external");
        assert_eq!(explained["interface"], "eth0");
        let backend = SocketAddr::new(beyond.backend.addresses().like(to.ip()), 8080).to_string();
        assert_eq!(explained["result"]["backend"], backend);
        let before = beyond.counters();
        let netns = beyond.client.netns();
        let mut stream = Stream::connect(netns, to).unwrap();
        assert_eq!(stream.ask("who").unwrap().server, "far");
        assert!(beyond.counters().since(&before, Outcome::Masqueraded) >= 1);
        // The source that explain named is the one that the backend's node sees: an address of the tunnel.
        let source: SocketAddr = explained["result"]["sourceAfter"].as_str().unwrap().parse().unwrap();
        let tunnel = if to.is_ipv4() { "172.30.0.1" } else { "fd00:30::1" };
        assert_eq!(source.ip().to_string(), tunnel);
        // A source that cannot be out there.
        let (code, explained) = explain(
            &beyond.agent,
            &from.replace(&client_addresses().like(to.ip()).to_string(), &load_balancer().like(to.ip()).to_string()),
            &to.to_string(),
        );
        assert_eq!((code, explained["result"]["outcome"].as_str()), (1, Some("dropped_martian")), "{explained:#}");
    }
}

#[test]
fn pods_behind_a_bridge_are_explained_alike() {
    let fixture = Fixture::new("explbr", Pods::Bridged, 3, NodeOptions::default());
    let service = fixture.web().annotated("scheduler", "maglev");
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    for to in service.frontends(Protocol::Tcp) {
        for _ in 0..5 {
            let from = port();
            let (code, explained) = explain(&agent, &client(&fixture, to, from), &to.to_string());
            assert_eq!((code, explained["hook"]["program"].as_str()), (0, Some("pod_in")), "{explained:#}");
            assert_eq!(answers(&fixture, from, to), named(&fixture, &explained, to), "{explained:#}");
        }
    }
}
