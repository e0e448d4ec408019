//! What becomes of news: snapshots, proofs, errors, refusals.

use serde_json::json;

use super::*;

struct Stage {
    held: Held,
    now: Instant,
    snapshots: watch::Sender<Option<Arc<Snapshot>>>,
    status: watch::Sender<SourceStatus>,
}

impl Stage {
    fn new() -> Self {
        let (snapshots, status) = (watch::channel(None).0, watch::channel(SourceStatus::default()).0);
        Self { held: Held::new(), now: Instant::now(), snapshots, status }
    }

    fn tell(&mut self, message: Message) -> SourceStatus {
        self.held.take(message, self.now);
        self.held.publish(&self.snapshots, &self.status);
        self.status.borrow().clone()
    }

    fn service(&mut self, news: News<core::Service>) -> SourceStatus {
        self.tell(Message::Service(Box::new(news)))
    }

    fn slice(&mut self, news: News<discovery::EndpointSlice>) -> SourceStatus {
        self.tell(Message::Slice(Box::new(news)))
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

fn service(name: &str, cluster_ip: &str) -> core::Service {
    let spec = json!({"clusterIP": cluster_ip, "ports": [{"port": 80}]});
    serde_json::from_value(json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec})).unwrap()
}

fn web(name: &str) -> core::Service {
    service(name, "10.96.0.1")
}

fn slice(name: &str) -> discovery::EndpointSlice {
    let labels = json!({"kubernetes.io/service-name": "web"});
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "addressType": "IPv4", "ports": [], "endpoints": [],
    }))
    .unwrap()
}

#[tokio::test(start_paused = true)]
async fn there_is_no_snapshot_before_both_have_been_listed() {
    let mut stage = Stage::new();
    let status = stage.service(News::All(vec![web("web")]));
    assert!(!status.synced && stage.names().is_none());
    let status = stage.slice(News::Trouble("forbidden".into()));
    assert!(!status.synced && stage.names().is_none());
    assert_eq!(status.last_proof.keys().copied().collect::<Vec<_>>(), [SERVICES]);
    let status = stage.slice(News::All(Vec::new()));
    assert_eq!(stage.names().unwrap(), ["web"]);
    assert!(status.synced && status.revision == 1);
}

#[tokio::test(start_paused = true)]
async fn changes_follow_and_a_list_removes_what_it_does_not_hold() {
    let mut stage = Stage::new();
    stage.slice(News::All(Vec::new()));
    stage.service(News::All(vec![web("web")]));
    stage.service(News::Changed(web("api")));
    stage.service(News::Deleted(web("web")));
    stage.slice(News::Changed(slice("web-1")));
    assert_eq!(stage.names().unwrap(), ["api", "web-1"]);
    stage.service(News::All(vec![web("db")]));
    assert_eq!(stage.names().unwrap(), ["db", "web-1"]);
}

#[tokio::test(start_paused = true)]
async fn trouble_changes_and_proves_nothing_and_a_bookmark_ends_it() {
    let mut stage = Stage::new();
    stage.service(News::All(vec![web("web")]));
    let before = stage.slice(News::All(Vec::new()));
    stage.now += std::time::Duration::from_secs(10);
    let status = stage.service(News::Trouble("connection reset".into()));
    assert_eq!(status.last_error.as_deref(), Some("services: connection reset"));
    assert_eq!((status.last_proof.clone(), status.revision), (before.last_proof, 1));
    assert_eq!(stage.names().unwrap(), ["web"]);
    // The other resource says nothing about this one.
    let status = stage.slice(News::Bookmark);
    assert!(status.last_error.is_some() && status.last_proof[SERVICES] < stage.now);
    let status = stage.service(News::Bookmark);
    assert_eq!((status.last_error, status.last_proof[SERVICES], status.revision), (None, stage.now, 1));
}

#[tokio::test(start_paused = true)]
async fn a_bad_object_is_refused_by_name() {
    let mut stage = Stage::new();
    stage.slice(News::All(Vec::new()));
    let status = stage.service(News::All(vec![service("bad", "nowhere"), web("web")]));
    assert_eq!(stage.names().unwrap(), ["web"]);
    assert_eq!(status.refusals[0].object, "Service default/bad");
}
