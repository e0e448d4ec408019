//! What depends on the Node object, while the object is late, goes, and is not there at a restart. Needs root and BPF.

use std::net::SocketAddr;

use lb_tests::agent::{Agent, External, Manifest};
use lb_tests::cluster::SETTLE_LIMIT;
use lb_tests::cluster::stub::{ResourceKind, StubApi};
use lb_tests::fixture::Fixture;
use lb_tests::peers::{Datagrams, Stream, eventually};
use lb_tests::topology::{Families, Outside};
use serde_json::{Value, json};

/// TCP and UDP.
const NODE_PORTS: [u16; 2] = [30_080, 30_053];

/// Two node ports at the Node's first address of each family. Fields in the order in which they must end.
struct Scenario {
    agent: Agent,
    api: StubApi,
    client: Outside,
    fixture: Fixture,
}

impl Scenario {
    fn new(subject: &str, families: Families, wait: &str) -> Self {
        let fixture = Fixture::of(families, subject, 1);
        let client = fixture.topology.outside("client", &fixture.node).unwrap();
        let api = StubApi::start(Some(fixture.node.namespace().netns()), fixture.node.ips()[0]).unwrap();
        let external = External { node_ports: NODE_PORTS.into(), ..External::default() };
        let web = fixture.web().with(external);
        Manifest::of([web]).documents().into_iter().for_each(|document| api.put(document));
        let url = format!("--api-server={}", api.url());
        // The kubelet asks the Node's address.
        let health = "--health-bind=[::]:10256";
        let flags = ["--source=kube", &url, "--nodeport-addresses=primary", wait, health];
        let mut agent = Agent::prepare(&fixture.node, &flags).unwrap();
        agent.launch().unwrap();
        Self { agent, api, client, fixture }
    }

    fn make_node(&self, taints: &serde_json::Value) {
        let node = &self.fixture.node;
        let addresses = node.ips().into_iter().map(|address| json!({"type": "InternalIP", "address": address}));
        let addresses: Value = addresses.collect();
        let spec = json!({"podCIDR": node.pod_nets()[0], "podCIDRs": node.pod_nets(), "taints": taints});
        self.api.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.node_name()},
            "spec": spec, "status": {"addresses": addresses}}));
    }

    /// What `status` says of the source.
    fn source(&self) -> Option<serde_json::Value> {
        Some(self.agent.json(&["status"]).ok()?["agent"]["source"].take())
    }

    fn says(&self, missing: &str) {
        eventually(missing, SETTLE_LIMIT, || {
            self.source()?["missingNode"].as_str().is_some_and(|said| said.contains(missing)).then_some(())
        });
    }

    fn asks(&self) -> std::io::Result<()> {
        for address in self.fixture.node.ips() {
            let [http, dns] = NODE_PORTS.map(|port| SocketAddr::new(address, port));
            Stream::connect(self.client.netns(), http)?.ask("hello")?;
            Datagrams::connected(self.client.netns(), 0, dns)?.ask("hello")?;
        }
        Ok(())
    }

    fn is_served(&self) {
        eventually("the node ports answer", SETTLE_LIMIT, || self.asks().ok());
    }

    /// As the kubelet probes: from the node, at its addresses.
    fn is_probed(&self) {
        for address in self.fixture.node.ips() {
            for path in ["/healthz", "/livez", "/readyz"] {
                let at = SocketAddr::new(address, 10_256);
                let is_good = || (self.agent.get_at(at, path).ok()?.0 == 200).then_some(());
                eventually(&format!("{at}{path}"), SETTLE_LIMIT, is_good);
            }
        }
        assert!(self.agent.metrics().unwrap().contains("ballast_"));
    }
}

#[test]
fn node_ports_stay_while_the_node_is_late_deleted_or_away_at_a_restart() {
    for families in Families::ALL {
        node_ports_stay(families);
    }
}

fn node_ports_stay(families: Families) {
    // Far longer than the test: only the Node itself ends it.
    let mut scenario = Scenario::new("node-late", families, "--node-wait=5m");
    scenario.says("the API has no Node");
    // The Node is asked for beside the lists, which may come later.
    eventually("the lists are there, and wait for the Node", SETTLE_LIMIT, || {
        let source = scenario.source()?;
        assert_eq!(source["revision"].as_u64(), Some(0), "{source}");
        (source["synced"] == true).then_some(())
    });
    scenario.make_node(&json!([]));
    scenario.is_served();
    scenario.is_probed();

    let name = scenario.fixture.node.node_name();
    let delete = |scenario: &Scenario| {
        scenario.api.delete(ResourceKind::Node, "", &name);
        scenario.says("its last known facts stay in force");
        scenario.asks().unwrap();
    };
    delete(&scenario);
    scenario.agent.restart().unwrap();
    scenario.says("its last known facts stay in force");
    scenario.asks().unwrap();

    // Made again, about to leave the cluster, and deleted while no agent runs.
    scenario.make_node(&json!([{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]));
    let is_leaving = |scenario: &Scenario| {
        let (code, body) = scenario.agent.health("/healthz").ok()?;
        (code == 503 && body.contains(r#""nodeEligible":false"#)).then_some(())
    };
    eventually("the taint is seen", SETTLE_LIMIT, || is_leaving(&scenario));
    assert!(scenario.source().unwrap()["missingNode"].is_null(), "nothing is missing");
    scenario.asks().unwrap();
    scenario.agent.stop().unwrap();
    scenario.api.delete(ResourceKind::Node, "", &name);
    scenario.agent.restart().unwrap();
    scenario.says("its last known facts stay in force");
    scenario.asks().unwrap();
    assert_eq!(is_leaving(&scenario), Some(()), "a restart makes no node eligible");
}

#[test]
fn without_the_node_the_rest_is_served_after_the_wait() {
    let scenario = Scenario::new("node-wrong", Families::Both, "--node-wait=1s");
    scenario.says("check --node-name");
    let web = SocketAddr::new("10.96.0.10".parse().unwrap(), 80);
    eventually("the cluster IP answers", SETTLE_LIMIT, || {
        Stream::connect(scenario.fixture.client.netns(), web).ok()?.ask("hello").ok()
    });
    let text = String::from_utf8(scenario.agent.cli(&["status"]).unwrap().stdout).unwrap();
    assert!(text.contains("Node:") && text.contains("check --node-name"), "{text}");
}
