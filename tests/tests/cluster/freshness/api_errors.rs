//! An API that answers with errors: revoked rights, a version that is no more. It is reported everywhere, once, and costs no traffic.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
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

    for (kind, resource, code, reason) in [
        (ResourceKind::Service, "services", 403, "ApiAccessDenied"),
        (ResourceKind::Slice, "endpointslices", 404, "ApiVersionMissing"),
        (ResourceKind::ServiceCidr, "servicecidrs", 403, "ApiAccessDenied"),
    ] {
        let is_it = |event: &Value| {
            event["reason"] == reason && event["note"].as_str().is_some_and(|note| note.contains(resource))
        };
        let told = || about_node(&api, &name).into_iter().filter(is_it).collect::<Vec<_>>();
        api.refuse(kind, Some(code));
        api.forget();
        let event = eventually("an Event on the Node", TOLD_LIMIT, || {
            assert_eq!(agent.health("/healthz").ok()?.0, 200, "every node gets the same answer");
            told().into_iter().next()
        });
        assert_eq!((&event["metadata"]["namespace"], &event["type"]), (&json!("default"), &json!("Warning")));
        let (ready, body) = agent.health("/readyz")?;
        assert!(ready == 503 && body.contains(&code.to_string()), "{body}");
        let labels = format!("resource=\"{resource}\",code=\"{code}\"");
        assert!(agent.metric("ballast_source_errors_total", &labels) >= Some(1.0), "{}", agent.metrics()?);
        let status = String::from_utf8(agent.cli(&["status"])?.stdout)?;
        assert!(status.contains(&format!("the API answers {code} for")), "{status}");
        serves()?;
        api.refuse(kind, None);
        eventually("ready again", TOLD_LIMIT, || (agent.health("/readyz").ok()?.0 == 200).then_some(()));
        assert_eq!(told().len(), 1, "one for each cause");
    }

    api.put(node(&name, "300.1.1.1"));
    eventually("an Event on the Node that is refused in part", TOLD_LIMIT, || {
        about_node(&api, &name).into_iter().find(|event| event["reason"] == "Refused")
    });
    Ok(())
}
