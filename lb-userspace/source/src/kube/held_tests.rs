//! What becomes of updates: snapshots, proofs, errors, refusals.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::{
    super::item::{Text, read_item},
    *,
};
use crate::{Difference, Proof, ProofKind};

const NODE_WAIT: Duration = Duration::from_secs(30);

struct Fixture {
    held: Held,
    want_peers: watch::Sender<bool>,
    now: Instant,
    snapshots: watch::Sender<Option<Arc<Snapshot>>>,
    status: watch::Sender<SourceStatus>,
}

impl Fixture {
    fn new() -> Self {
        let (snapshots, status) = (watch::channel(None).0, watch::channel(SourceStatus::default()).0);
        let want_peers = watch::Sender::new(false);
        let own_node = OwnNode::new(None, None, NODE_WAIT);
        let held = Held::new(want_peers.clone(), "mode=default".parse().unwrap(), own_node);
        Self { held, want_peers, now: Instant::now(), snapshots, status }
    }

    /// An agent on the Node `n1`, of which one before it knew this.
    fn on_node(known: Option<Node>) -> Self {
        let fixture = Self::new();
        let own_node = OwnNode::new(Some("n1".into()), known.map(Arc::new), NODE_WAIT);
        Self { held: Held::new(fixture.want_peers.clone(), AllowedAnnotations::default(), own_node), ..fixture }
    }

    fn apply(&mut self, message: Message) -> SourceStatus {
        self.held.take(message);
        self.publish()
    }

    fn publish(&mut self) -> SourceStatus {
        self.held.publish(self.now, &self.snapshots, &self.status);
        self.status.borrow().clone()
    }

    /// Services and slices are listed.
    fn list_others(&mut self) -> SourceStatus {
        self.slices(Vec::new());
        self.services(vec![web("web")])
    }

    fn list_nodes(&mut self, nodes: Vec<Item<lean::Node>>) -> SourceStatus {
        self.apply(Message::Node(self.updates(vec![Update::Page(nodes), Update::Complete])))
    }

    /// What the last snapshot holds of the Node; `None`: there is no snapshot, or no Node in it.
    fn node(&self) -> Option<Node> {
        self.snapshots.borrow().as_ref()?.node.as_deref().cloned()
    }

    fn updates<K>(&self, updates: Vec<Update<K>>) -> Box<WatcherOutput<K>> {
        let proof = Some(Proof { at: self.now, kind: ProofKind::List });
        let reach = Some(Reach { reachable: true, since: self.now });
        Box::new(WatcherOutput { updates, status: ResourceStatus { proof, ..ResourceStatus::default() }, reach })
    }

    fn failed<K>(&self, reason: &str) -> Box<WatcherOutput<K>> {
        let reach = Some(Reach { reachable: false, since: self.now });
        let status = ResourceStatus { last_error: Some(reason.into()), ..ResourceStatus::default() };
        Box::new(WatcherOutput { updates: Vec::new(), status, reach })
    }

    fn service(&mut self, updates: Update<lean::Service>) -> SourceStatus {
        self.apply(Message::Service(self.updates(vec![updates])))
    }

    fn services(&mut self, all: Vec<Item<lean::Service>>) -> SourceStatus {
        self.apply(Message::Service(self.updates(vec![Update::Page(all), Update::Complete])))
    }

    fn slice(&mut self, updates: Update<lean::EndpointSlice>) -> SourceStatus {
        self.apply(Message::Slice(self.updates(vec![updates])))
    }

    fn slices(&mut self, all: Vec<Item<lean::EndpointSlice>>) -> SourceStatus {
        self.apply(Message::Slice(self.updates(vec![Update::Page(all), Update::Complete])))
    }

    fn names(&self) -> Option<Vec<String>> {
        let snapshot = self.snapshots.borrow();
        let names = |snapshot: &Snapshot| {
            let services = snapshot.services.keys().map(|name| name.name.to_string());
            services.chain(snapshot.slices.keys().map(|key| key.name.to_string())).collect()
        };
        snapshot.as_deref().map(names)
    }
}

fn item<K: lean::ApiKind>(object: &serde_json::Value) -> Item<K> {
    read_item(Text::Whole(object.to_string().as_bytes())).unwrap()
}

fn service(name: &str, cluster_ip: &str) -> Item<lean::Service> {
    let spec = json!({"clusterIP": cluster_ip, "ports": [{"port": 80}]});
    item(&json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec}))
}

fn web(name: &str) -> Item<lean::Service> {
    service(name, "10.96.0.1")
}

fn slice(name: &str) -> Item<lean::EndpointSlice> {
    let labels = json!({"kubernetes.io/service-name": "web"});
    item(&json!({
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "addressType": "IPv4", "ports": [], "endpoints": [],
    }))
}

#[tokio::test(start_paused = true)]
async fn there_is_no_snapshot_before_both_have_been_listed() {
    let mut fixture = Fixture::new();
    let status = fixture.services(vec![web("web")]);
    assert!(!status.synced && fixture.names().is_none());
    let status = fixture.apply(Message::Slice(fixture.failed("forbidden")));
    assert!(!status.synced && fixture.names().is_none());
    assert_eq!(status.last_proof.keys().copied().collect::<Vec<_>>(), [SERVICES]);
    let status = fixture.slices(Vec::new());
    assert_eq!(fixture.names().unwrap(), ["web"]);
    assert!(status.synced && status.revision == 1);
}

#[tokio::test(start_paused = true)]
async fn changes_follow_and_a_list_removes_what_it_does_not_hold() {
    let mut fixture = Fixture::new();
    fixture.slices(Vec::new());
    fixture.services(vec![web("web")]);
    fixture.service(Update::Changed(Box::new(web("api"))));
    fixture.service(Update::Deleted(ObjectName::new("default", "web")));
    fixture.slice(Update::Changed(Box::new(slice("web-1"))));
    assert_eq!(fixture.names().unwrap(), ["api", "web-1"]);
    fixture.services(vec![web("db")]);
    assert_eq!(fixture.names().unwrap(), ["db", "web-1"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_counts_when_it_is_complete_and_what_did_not_change_keeps_its_place() {
    let mut fixture = Fixture::new();
    fixture.slices(Vec::new());
    fixture.services(vec![web("a"), web("b")]);
    let place = |fixture: &Fixture| {
        let snapshot = fixture.snapshots.borrow().clone().unwrap();
        Arc::as_ptr(&snapshot.services[&ObjectName::new("default", "b")])
    };
    let before = place(&fixture);
    fixture.service(Update::Page(vec![web("b")]));
    assert_eq!(fixture.names().unwrap(), ["a", "b"]);
    fixture.service(Update::Abandoned);
    assert_eq!(fixture.status.borrow().revision, 1);
    fixture.service(Update::Page(vec![web("c")]));
    fixture.service(Update::Page(vec![web("b")]));
    assert_eq!(fixture.names().unwrap(), ["a", "b"]);
    fixture.service(Update::Complete);
    assert_eq!(fixture.names().unwrap(), ["b", "c"]);
    assert_eq!(place(&fixture), before);
}

#[tokio::test(start_paused = true)]
async fn trouble_changes_and_proves_nothing() {
    let mut fixture = Fixture::new();
    fixture.services(vec![web("web")]);
    let before = fixture.slices(Vec::new());
    assert_eq!(before.api.map(|api| (api.reachable, api.since)), Some((true, fixture.now)));
    fixture.now += Duration::from_secs(10);
    let status = fixture.apply(Message::Service(fixture.failed("connection reset")));
    assert_eq!(status.last_error.as_deref(), Some("services: connection reset"));
    assert_eq!((status.last_proof.clone(), status.revision), (before.last_proof, 1));
    assert_eq!(fixture.names().unwrap(), ["web"]);
    let lost = status.api.unwrap();
    assert!(!lost.reachable && lost.since == fixture.now);
    // Another failure is no new loss.
    fixture.now += Duration::from_secs(10);
    let status = fixture.apply(Message::Slice(fixture.failed("connection reset")));
    assert_eq!(status.api, Some(lost));
    let status = fixture.apply(Message::Service(fixture.updates(Vec::new())));
    assert_eq!(
        (status.last_error.unwrap().as_str(), status.last_proof[SERVICES]),
        ("endpointslices: connection reset", fixture.now)
    );
    assert!(status.api.unwrap().reachable);
}

#[tokio::test(start_paused = true)]
async fn the_own_node_comes_with_the_snapshot_and_its_lack_only_degrades() {
    let mut fixture = Fixture::new();
    fixture.slices(Vec::new());
    fixture.services(vec![web("web")]);
    let status = fixture.apply(Message::Node(fixture.failed("forbidden")));
    assert!(status.synced && status.last_error.is_none());
    assert_eq!(status.notes, ["nodes: forbidden"]);
    assert_eq!(status.resources[NODES].last_error.as_deref(), Some("forbidden"));
    let node = json!({"metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "a"}}});
    let page = Update::Page(vec![item(&node)]);
    let status = fixture.apply(Message::Node(fixture.updates(vec![page, Update::Complete])));
    assert!(status.notes.is_empty());
    let snapshot = fixture.snapshots.borrow().clone().unwrap();
    assert_eq!(snapshot.node.as_ref().unwrap().zone.as_deref(), Some("a"));
}

fn node(name: &str, address: &str) -> Item<lean::Node> {
    let status = json!({"addresses": [{"type": "InternalIP", "address": address}]});
    item(&json!({"metadata": {"name": name}, "status": status}))
}

/// Facts that no Node of this test's API has.
fn remembered() -> Node {
    let addresses = vec!["192.0.2.9".parse().unwrap()];
    Node { name: "n1".into(), zone: Some("b".into()), addresses, is_leaving: true, ..Node::default() }
}

#[tokio::test(start_paused = true)]
async fn the_first_snapshot_waits_for_the_node_so_long_and_no_longer() {
    let mut fixture = Fixture::on_node(None);
    let begun = fixture.now;
    let status = fixture.list_others();
    assert_eq!((fixture.names(), status.revision), (None, 0), "the Node is still to come");
    assert_eq!(fixture.held.due(), Some(begun + NODE_WAIT));
    fixture.now = begun + NODE_WAIT;
    let status = fixture.publish();
    assert_eq!((fixture.names(), fixture.node()), (Some(vec!["web".to_owned()]), None), "the rest is served");
    assert!(status.missing_node.unwrap().starts_with("Node n1 is not listed yet, and its zone"));
    assert_eq!(fixture.held.due(), None);
    let status = fixture.list_nodes(vec![node("n1", "192.0.2.1")]);
    assert_eq!((fixture.node().unwrap().addresses, status.missing_node), (vec!["192.0.2.1".parse().unwrap()], None));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_listed_last_ends_the_wait() {
    let mut fixture = Fixture::on_node(None);
    fixture.list_others();
    fixture.list_nodes(vec![node("n1", "192.0.2.1")]);
    assert_eq!(fixture.node().unwrap().addresses, ["192.0.2.1".parse::<IpAddr>().unwrap()]);
    let status = fixture.list_nodes(vec![node("n1", "192.0.2.2")]);
    assert_eq!(fixture.node().unwrap().addresses, ["192.0.2.2".parse::<IpAddr>().unwrap()]);
    assert_eq!(status.missing_node, None);
}

#[tokio::test(start_paused = true)]
async fn a_wrong_node_name_is_said() {
    let mut fixture = Fixture::on_node(None);
    fixture.list_others();
    let status = fixture.list_nodes(Vec::new());
    assert_eq!(fixture.names(), None, "the kubelet may be about to make it");
    let missing =
        "the API has no Node n1, and its zone, addresses, pod networks and taints are unknown: check --node-name";
    assert_eq!(status.missing_node.as_deref(), Some(missing));
    fixture.now += NODE_WAIT;
    fixture.publish();
    assert_eq!(fixture.names().unwrap(), ["web"]);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_node_keeps_its_last_known_facts_until_it_is_made_again() {
    let mut fixture = Fixture::on_node(None);
    fixture.list_others();
    fixture.list_nodes(vec![node("n1", "192.0.2.1")]);
    let before = fixture.node();
    let deleted = Update::Deleted(ObjectName::new("default", "n1"));
    let status = fixture.apply(Message::Node(fixture.updates(vec![deleted])));
    assert_eq!(fixture.node(), before);
    assert_eq!(status.missing_node.unwrap(), "the API has no Node n1: its last known facts stay in force");
    // A list that does not have it, and one that fails, take nothing either.
    fixture.list_nodes(Vec::new());
    assert_eq!(fixture.node(), before);
    fixture.apply(Message::Node(fixture.failed("forbidden")));
    assert_eq!(fixture.node(), before);
    let status =
        fixture.apply(Message::Node(fixture.updates(vec![Update::Changed(Box::new(node("n1", "192.0.2.2")))])));
    assert_eq!(fixture.node().unwrap().addresses, ["192.0.2.2".parse::<IpAddr>().unwrap()]);
    assert_eq!(status.missing_node, None);
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_the_facts_of_before_hold_until_the_api_has_the_node() {
    let mut fixture = Fixture::on_node(Some(remembered()));
    fixture.apply(Message::Node(fixture.failed("forbidden")));
    let status = fixture.list_others();
    assert_eq!((fixture.node(), status.missing_node), (Some(remembered()), None), "nothing waits");
    let status = fixture.list_nodes(Vec::new());
    assert_eq!(fixture.node(), Some(remembered()), "deleted before the restart or since");
    assert!(status.missing_node.is_some());
    fixture.list_nodes(vec![node("n1", "192.0.2.1")]);
    let made_again = fixture.node().unwrap();
    assert_eq!((made_again.zone, made_again.is_leaving), (None, false), "all facts are the new ones");
}

#[tokio::test(start_paused = true)]
async fn the_other_nodes_are_asked_for_while_a_service_has_direct_server_return() {
    let mut fixture = Fixture::new();
    let peers = |fixture: &Fixture| {
        let snapshot = fixture.snapshots.borrow().clone().unwrap();
        snapshot.peers.as_ref().map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let asked = fixture.want_peers.clone();
    fixture.slices(Vec::new());
    fixture.services(vec![web("web")]);
    assert!(!*asked.borrow());
    assert_eq!(peers(&fixture), Some(Vec::new()), "nobody asks");
    let mut direct = web("web");
    direct.object.as_mut().unwrap().metadata.annotations =
        [("ballast.dev/mode".to_owned(), "hybrid".to_owned())].into();
    fixture.service(Update::Changed(Box::new(direct)));
    assert!(*asked.borrow());
    assert_eq!(peers(&fixture), None, "not known yet");

    let page = |all: &[(&str, &str)]| Update::Page(all.iter().map(|(name, address)| node(name, address)).collect());
    let all = [("n2", "192.0.2.2"), ("n3", "192.0.2.3")];
    let status = fixture.apply(Message::Peer(fixture.updates(vec![page(&all), Update::Complete])));
    assert_eq!(peers(&fixture).unwrap(), ["192.0.2.2", "192.0.2.3"]);
    assert_eq!(status.last_proof[PEERS], fixture.now);
    // A report without anything new makes no snapshot.
    let again = fixture.apply(Message::Peer(fixture.updates(vec![Update::Changed(Box::new(node("n2", "192.0.2.2")))])));
    assert_eq!(again.revision, status.revision);
    fixture.apply(Message::Peer(fixture.updates(vec![Update::Changed(Box::new(node("n2", "192.0.2.22")))])));
    fixture.apply(Message::Peer(fixture.updates(vec![Update::Deleted(ObjectName::new("default", "n3"))])));
    assert_eq!(peers(&fixture).unwrap(), ["192.0.2.22"]);
    let status = fixture.apply(Message::Peer(fixture.failed("forbidden")));
    assert_eq!((status.notes.as_slice(), status.last_error), (&["peers: forbidden".to_owned()][..], None));
    assert_eq!(peers(&fixture).unwrap(), ["192.0.2.22"], "what is known stays");

    fixture.service(Update::Changed(Box::new(web("web"))));
    assert!(!*asked.borrow());
    let status = fixture.apply(Message::NoPeers);
    assert!(!status.resources.contains_key(PEERS) && !status.last_proof.contains_key(PEERS));
    assert_eq!(peers(&fixture), Some(Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn a_bad_object_is_refused_by_name_and_a_difference_alone_changes_nothing() {
    let mut fixture = Fixture::new();
    fixture.slices(Vec::new());
    let status = fixture.services(vec![service("bad", "nowhere"), web("web")]);
    assert_eq!(fixture.names().unwrap(), ["web"]);
    assert_eq!(status.refusals[0].object, "Service default/bad");
    let revision = status.revision;
    let status = fixture.service(Update::Difference(Difference::Extra, ObjectName::new("default", "web")));
    assert_eq!(status.revision, revision);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_and_is_not_known_is_named_in_the_snapshot() {
    let mut fixture = Fixture::new();
    let bad = |uid: &str| item(&json!({"metadata": {"name": "bad", "namespace": "default", "uid": uid}, "spec": 5}));
    let labels = json!({"kubernetes.io/service-name": "web"});
    let slice = json!({"metadata": {"name": "web-1", "namespace": "default", "labels": labels}, "endpoints": 5});
    fixture.slices(vec![item(&slice)]);
    let status = fixture.services(vec![bad("a"), web("web")]);
    let unread = |fixture: &Fixture| -> Vec<String> {
        let snapshot = fixture.snapshots.borrow().clone().unwrap();
        snapshot.unread.iter().map(ToString::to_string).collect()
    };
    assert_eq!(unread(&fixture), ["Service default/bad", "EndpointSlice default/web-1"]);
    assert!(status.refusals[0].remedy.contains("what the tables held"), "{:?}", status.refusals);
    fixture.service(Update::Changed(Box::new(web("bad"))));
    fixture.service(Update::Changed(Box::new(bad("a"))));
    assert_eq!(unread(&fixture), ["EndpointSlice default/web-1"], "what was read before is known");
    fixture.slice(Update::Deleted(ObjectName::new("default", "web-1")));
    assert_eq!(unread(&fixture), [""; 0]);
}

/// A tenant without leave for direct server return makes no agent watch all nodes.
#[tokio::test(start_paused = true)]
async fn an_annotation_that_is_not_allowed_is_refused_by_name_and_the_service_is_served_without_it() {
    let mut fixture = Fixture::new();
    fixture.slices(Vec::new());
    let annotations = json!({
        "ballast.dev/mode": "dsr", "ballast.dev/check": "http", "ballast.dev/maglev-size": "131071",
        "ballast.dev/retry": "off",
    });
    let metadata = json!({"name": "web", "namespace": "tenant", "annotations": annotations});
    let greedy = item(&json!({"metadata": metadata, "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}}));
    let status = fixture.services(vec![greedy]);
    assert!(!*fixture.want_peers.borrow());
    let snapshot = fixture.snapshots.borrow().clone().unwrap();
    let service = &snapshot.services[&ObjectName::new("tenant", "web")];
    assert_eq!(service.options, None, "retry is not allowed here either");
    let refused: Vec<&str> = status.refusals.iter().map(|refusal| refusal.reason.as_str()).collect();
    let expected = ["maglev-size", "mode", "retry", "check"]
        .map(|name| format!("annotation ballast.dev/{name} is not allowed in namespace tenant"));
    assert_eq!(refused, expected);
    assert!(status.refusals.iter().all(|refusal| refusal.object == "Service tenant/web"));
}

#[path = "nameless_tests.rs"]
mod nameless;
