//! An API that answers with errors: revoked rights, a version that is no more. It is reported everywhere, once, and costs no traffic.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use lb_seed::short_or_long;
use lb_tests::agent::Agent;
use lb_tests::cluster::SETTLE_LIMIT;
use lb_tests::cluster::stub::{ResourceKind, StubApi};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Stream, eventually};
use lb_tests::topology::NodeOptions;
use serde_json::{Value, json};

use super::scenario::SILENCE;

const CLUSTER_IP: &str = "10.96.0.78";
/// An error must last, the next attempt comes, and a node waits a random time before it posts.
const TOLD_LIMIT: Duration = Duration::from_mins(3);
/// What the API answers for a kind, and the Event's reason.
const CAUSES: [(ResourceKind, &str, u16, &str); 3] = [
    (ResourceKind::Service, "services", 403, "ApiAccessDenied"),
    (ResourceKind::Slice, "endpointslices", 404, "ApiVersionMissing"),
    (ResourceKind::ServiceCidr, "servicecidrs", 403, "ApiAccessDenied"),
];

fn node(name: &str, address: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "uid": name},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]},
    })
}

fn about_node(api: &StubApi, name: &str) -> Vec<Value> {
    let is_about = |event: &Value| event["regarding"]["kind"] == "Node" && event["regarding"]["name"] == name;
    api.events().into_iter().filter(is_about).collect()
}

#[test]
fn revoked_rights_and_a_removed_version_are_told_once_and_cost_no_traffic() -> Result<()> {
    let fixture = Fixture::new("api-errors", Pods::Routed, 1, NodeOptions::default());
    let name = fixture.node.node_name();
    let host = fixture.topology.outside("api", &fixture.node)?;
    let api = StubApi::start(Some(host.netns()), host.addresses().v4.into())?;
    api.put(node(&name, &fixture.node.addresses().v4.to_string()));
    api.put(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default", "uid": "web"},
        "spec": {"clusterIP": CLUSTER_IP, "ports": [{"name": "http", "port": 80}]},
    }));
    api.put(json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "web-1", "namespace": "default", "uid": "s", "labels": {"kubernetes.io/service-name": "web"}},
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": [{"addresses": [fixture.backends[0].addresses().v4.to_string()]}],
    }));
    let url = format!("--api-server={}", api.url());
    let mut agent = Agent::prepare(&fixture.node, &["--source=kube", &url, SILENCE])?;
    agent.restart()?;
    let web = SocketAddr::new(CLUSTER_IP.parse()?, 80);
    let serves = || Stream::connect(fixture.client.netns(), web).and_then(|mut stream| stream.ask("hello"));
    eventually("web serves", SETTLE_LIMIT, || serves().ok());

    let told = |resource: &str, reason: &str| {
        let mut events = about_node(&api, &name);
        events.retain(|event| {
            event["reason"] == reason && event["note"].as_str().is_some_and(|note| note.contains(resource))
        });
        events
    };
    // At the same time, or one after the other: each must last, and its end be noticed.
    for causes in CAUSES.chunks(short_or_long(CAUSES.len(), 1)) {
        for (kind, _, code, _) in causes {
            api.refuse(*kind, Some(*code));
        }
        api.forget();
        for (_, resource, code, reason) in causes {
            let event = eventually("an Event on the Node", TOLD_LIMIT, || {
                assert_eq!(agent.health("/healthz").ok()?.0, 200, "every node gets the same answer");
                told(resource, reason).into_iter().next()
            });
            assert_eq!((&event["metadata"]["namespace"], &event["type"]), (&json!("default"), &json!("Warning")));
            let labels = format!("resource=\"{resource}\",code=\"{code}\"");
            assert!(agent.metric("ballast_source_errors_total", &labels) >= Some(1.0), "{}", agent.metrics()?);
        }
        // One of them is named.
        let (ready, body) = agent.health("/readyz")?;
        assert!(ready == 503 && causes.iter().any(|(_, _, code, _)| body.contains(&code.to_string())), "{body}");
        let status = String::from_utf8(agent.cli(&["status"])?.stdout)?;
        let is_named = |code| status.contains(&format!("the API answers {code} for"));
        assert!(causes.iter().any(|(_, _, code, _)| is_named(code)), "{status}");
        serves()?;
        for (kind, ..) in causes {
            api.refuse(*kind, None);
        }
        eventually("ready again", TOLD_LIMIT, || (agent.health("/readyz").ok()?.0 == 200).then_some(()));
        for (_, resource, _, reason) in causes {
            assert_eq!(told(resource, reason).len(), 1, "one for each cause");
        }
    }

    api.put(node(&name, "300.1.1.1"));
    eventually("an Event on the Node that is refused in part", TOLD_LIMIT, || {
        about_node(&api, &name).into_iter().find(|event| event["reason"] == "Refused")
    });
    Ok(())
}
