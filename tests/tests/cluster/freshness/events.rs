//! Events for faults of the API's content: a difference that no watch reported, an object that is refused.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use lb_tests::agent::Agent;
use lb_tests::cluster::SETTLE_LIMIT;
use lb_tests::cluster::stub::StubApi;
use lb_tests::peers::{Stream, eventually};
use lb_tests::topology::NodeOptions;
use serde_json::{Value, json};

use super::scenario::SILENCE;
use lb_tests::fixture::{Fixture, Pods};

const PERIOD: &str = "--resync-interval=3s";
const CLUSTER_IP: &str = "10.96.0.77";

fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default", "uid": "web"},
        "spec": {"clusterIP": CLUSTER_IP, "ports": [{"name": "http", "port": 80}]},
    })
}

fn slice(name: &str, kind: &str, address: &str) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": kind, "ports": [{"name": "http", "port": 8080}], "endpoints": [{"addresses": [address]}],
    })
}

/// A stub with `web` of one endpoint, on a host on the wire, and an agent that follows it. In the order in which they are made.
fn scenario(subject: &str) -> Result<(Fixture, StubApi, Agent, SocketAddr)> {
    let fixture = Fixture::new(subject, Pods::Routed, 2, NodeOptions::default());
    let host = fixture.topology.outside("api", &fixture.node)?;
    let api = StubApi::start(Some(host.netns()), host.addresses().v4.into())?;
    api.put(service());
    api.put(slice("web-1", "IPv4", &first(&fixture).to_string()));
    let url = format!("--api-server={}", api.url());
    let mut agent = Agent::prepare(&fixture.node, &["--source=kube", &url, SILENCE, PERIOD])?;
    agent.restart()?;
    let web = SocketAddr::new(CLUSTER_IP.parse()?, 80);
    answered(&fixture, web, "b0");
    Ok((fixture, api, agent, web))
}

fn first(fixture: &Fixture) -> IpAddr {
    fixture.backends[0].addresses().v4.into()
}

fn answered(fixture: &Fixture, web: SocketAddr, server: &str) {
    eventually(&format!("{server} answers"), SETTLE_LIMIT, || {
        let answer = Stream::connect(fixture.client.netns(), web).ok()?.ask("hello").ok()?;
        (answer.server == server).then_some(())
    });
}

/// The value of the metric's line that holds all these words.
fn metric(agent: &Agent, words: &[&str]) -> Option<f64> {
    let metrics = agent.metrics().ok()?;
    let line = metrics.lines().find(|line| !line.starts_with('#') && words.iter().all(|word| line.contains(word)))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[test]
fn a_change_that_no_watch_told_is_found_named_counted_and_served() -> Result<()> {
    let (fixture, api, agent, web) = scenario("untold")?;
    let second: IpAddr = fixture.backends[1].addresses().v4.into();
    api.put_untold(slice("web-1", "IPv4", &second.to_string()));
    answered(&fixture, web, "b1");
    let line = |log: &str| log.lines().any(|line| line.contains("WARN") && line.contains("default/web-1"));
    eventually("it is named", SETTLE_LIMIT, || line(&agent.log()).then_some(()));
    eventually("it is counted", SETTLE_LIMIT, || {
        (metric(&agent, &["difference", "endpointslices", "stale"])? >= 1.0).then_some(())
    });
    Ok(())
}

#[test]
fn a_refused_object_gets_an_event_and_not_a_flood_of_them() -> Result<()> {
    let (fixture, api, agent, web) = scenario("refused")?;
    api.put(slice("web-names", "FQDN", "example.com"));
    let about = |event: &Value| {
        let object = if event["regarding"].is_object() { &event["regarding"] } else { &event["involvedObject"] };
        object["name"] == "web-names" && object["kind"] == "EndpointSlice" && object["namespace"] == "default"
    };
    let event =
        eventually("an Event on the object", SETTLE_LIMIT, || api.events().into_iter().find(|event| about(event)));
    assert_eq!(event["type"], "Warning", "{event:#}");
    let text = event["note"].as_str().or(event["message"].as_str()).unwrap_or_default();
    assert!(text.contains("FQDN"), "{event:#}");
    assert_eq!(event["metadata"]["namespace"], "default", "{event:#}");

    // It changes, and is as bad as before.
    for round in 0..50 {
        api.put(slice("web-names", "FQDN", &format!("example{round}.com")));
        std::thread::sleep(Duration::from_millis(20));
    }
    // A node waits for up to 10 s before it posts.
    std::thread::sleep(Duration::from_secs(12));
    let events = api.events().len();
    assert!(events <= 5, "{events} Events for one object");
    // And the rest is served all along.
    answered(&fixture, web, "b0");
    assert!(agent.health("/healthz")?.0 == 200, "one bad object is no fault of the node");
    Ok(())
}
