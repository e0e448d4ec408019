//! Odd objects, two nodes: neither leaves its load balancers, everything else is served, and every place that should show them does.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lb_seed::short_or_long;
use lb_tests::agent::Agent;
use lb_tests::cluster::SETTLE_LIMIT;
use lb_tests::cluster::odd_objects::{OddObject, odd_objects};
use lb_tests::cluster::stub::{ResourceKind, StubApi};
use lb_tests::fixture::health_check_port::manifest;
use lb_tests::peers::eventually;
use lb_tests::topology::{Node, NodeOptions, Topology};
use serde_json::{Value, json};

use super::scenario::SILENCE;

const CHECK_PORT: u16 = 32_100;
/// From an odd object to the next change in the tables, in the long form, which runs on a quiet machine.
const LIMIT: Duration = Duration::from_secs(5);

fn codes(agent: &Agent) -> Result<[u16; 2]> {
    Ok([agent.health("/healthz")?.0, agent.get(CHECK_PORT, "/")?.0])
}

fn has_service(agent: &Agent, name: &str) -> Option<()> {
    let services = agent.json(&["get", "services", "-A"]).ok()?;
    services["items"].as_array()?.iter().any(|item| item["name"] == name).then_some(())
}

fn service(name: &str, address: &str, ports: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"clusterIP": address, "ports": ports},
    })
}

#[test]
fn odd_objects_turn_neither_of_two_nodes_red_and_are_told_of() -> Result<()> {
    let topology = Topology::new("odd-object")?;
    let nodes = [topology.node_with(NodeOptions::default())?, topology.node_with(NodeOptions::default())?];
    let host = topology.outside("api", &nodes[0])?;
    let api = StubApi::start(Some(host.netns()), host.addresses().v4.into())?;
    let names = nodes.each_ref().map(Node::node_name);
    let endpoints = [("10.1.0.2", names[0].as_str(), true), ("10.2.0.2", names[1].as_str(), true)];
    for object in serde_saphyr::from_multiple::<Value>(&manifest(&nodes[0], CHECK_PORT, &endpoints, false))? {
        api.put(object);
    }
    api.put(service("kept", "10.96.0.20", &json!([{"port": 80}])));
    let url = format!("--api-server={}", api.url());
    let mut agents = Vec::new();
    for node in &nodes {
        let mut agent = Agent::prepare(node, &["--source=kube", &url, SILENCE])?;
        agent.restart()?;
        agents.push(agent);
    }
    for agent in &agents {
        eventually("healthy, and chosen by load balancers", SETTLE_LIMIT, || {
            (codes(agent).ok()? == [200, 200]).then_some(())
        });
        eventually("it is served", SETTLE_LIMIT, || has_service(agent, "kept"));
    }

    // One that was good, one that never was, and one that has no name.
    api.put(service("kept", "10.96.0.20", &json!("eighty")));
    api.put(service("never", "10.96.0.21", &json!([{"port": "eighty"}])));
    let nameless = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": 5}});
    api.put_odd(&OddObject { kind: ResourceKind::Service, what: "nameless".to_owned(), object: nameless });
    let begin = Instant::now();
    api.put(service("next", "10.96.0.22", &json!([{"port": 80}])));
    for agent in &agents {
        eventually("the next change", short_or_long(SETTLE_LIMIT, LIMIT), || has_service(agent, "next"));
    }
    println!("the next change is in the tables of both nodes {:.1?} after the odd objects", begin.elapsed());
    // Some rounds of probes.
    let watched = Duration::from_secs(short_or_long(4, 12));
    while begin.elapsed() < watched {
        for agent in &agents {
            assert_eq!(codes(agent)?, [200, 200], "after {:?}", begin.elapsed());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    for agent in &agents {
        has_service(agent, "kept").context("what was read of it before is served")?;
        assert!(has_service(agent, "never").is_none());
        assert!(agent.metric("ballast_refused_objects", "") >= Some(3.0), "{}", agent.metrics()?);
        let status = String::from_utf8(agent.cli(&["status"])?.stdout)?;
        for name in ["Service default/kept", "Service default/never"] {
            assert!(status.contains(name), "{status}");
            assert!(
                agent.log().lines().any(|line| line.contains(name) && line.contains("cannot be read")),
                "{}",
                agent.log()
            );
        }
        assert!(agent.log().contains("without a name"), "{}", agent.log());
        assert!(status.contains("Service (no name)"), "{status}");
    }
    let about = |event: &Value, name: &str| event["regarding"]["name"] == name && event["reason"] == "Refused";
    for name in ["kept", "never"] {
        eventually("an Event on it", SETTLE_LIMIT, || {
            api.events().iter().any(|event| about(event, name)).then_some(())
        });
    }
    Ok(())
}

fn resident_kib(agent: &Agent) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.pid().context("it runs")?))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

#[test]
fn odd_objects_that_come_again_and_again_leave_the_agents_memory_bounded() -> Result<()> {
    let topology = Topology::new("odd-memory")?;
    let node = topology.node_with(NodeOptions::default())?;
    let host = topology.outside("api", &node)?;
    let api = StubApi::start(Some(host.netns()), host.addresses().v4.into())?;
    let url = format!("--api-server={}", api.url());
    let mut agent = Agent::prepare(&node, &["--source=kube", &url, SILENCE])?;
    agent.restart()?;
    let all = odd_objects();
    let mut resident = Vec::new();
    let (rounds, growth_max_kib) = short_or_long((3, 16 * 1024), (8, 32 * 1024));
    for round in 0..rounds {
        for odd in &all {
            api.put_odd(odd);
        }
        let name = format!("next-{round}");
        api.put(service(&name, &format!("10.100.0.{}", round + 1), &json!([{"port": 80}])));
        eventually("the next change", SETTLE_LIMIT, || has_service(&agent, &name));
        resident.push(resident_kib(&agent)?);
    }
    println!("{} odd objects in each round, KiB after it: {resident:?}", all.len());
    let (first, last) = (resident[0], resident[resident.len() - 1]);
    assert!(last <= first + growth_max_kib, "{resident:?}");
    Ok(())
}
