//! What becomes of the API's events, by scripted watches; and of wrong ways to the API.

use futures::channel::mpsc::{UnboundedSender, unbounded};

use super::*;

fn service(name: &str) -> core::Service {
    serde_json::from_value(serde_json::json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]},
    }))
    .unwrap()
}

fn slice(name: &str) -> discovery::EndpointSlice {
    serde_json::from_value(serde_json::json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": [], "endpoints": [],
    }))
    .unwrap()
}

struct Scripted {
    services: UnboundedSender<Watched<core::Service>>,
    slices: UnboundedSender<Watched<discovery::EndpointSlice>>,
    source: Source,
}

fn scripted() -> Scripted {
    let (services, services_from) = unbounded();
    let (slices, slices_from) = unbounded();
    let source = follow("https://test".into(), services_from, slices_from, CancellationToken::new());
    Scripted { services, slices, source }
}

impl Scripted {
    fn service(&self, events: impl IntoIterator<Item = Event<core::Service>>) {
        for event in events {
            self.services.unbounded_send(Ok(event)).unwrap();
        }
    }

    fn slice(&self, events: impl IntoIterator<Item = Event<discovery::EndpointSlice>>) {
        for event in events {
            self.slices.unbounded_send(Ok(event)).unwrap();
        }
    }

    /// Lets everything that was sent arrive.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    fn held(&self) -> Option<Vec<String>> {
        let snapshot = self.source.snapshots.borrow();
        snapshot.as_ref().map(|s| s.services.keys().chain(s.slices.keys()).map(|name| name.name.clone()).collect())
    }
}

#[tokio::test(start_paused = true)]
async fn there_is_no_snapshot_before_both_have_been_listed() {
    let scripted = scripted();
    scripted.service([Event::Init, Event::InitApply(service("web")), Event::InitDone]);
    scripted.slice([Event::Init, Event::InitApply(slice("web-1"))]);
    scripted.settle().await;
    assert_eq!(scripted.held(), None);
    assert!(!scripted.source.status.borrow().synced);
    scripted.slice([Event::InitDone]);
    scripted.settle().await;
    assert_eq!(scripted.held().unwrap(), ["web", "web-1"]);
    let status = scripted.source.status.borrow().clone();
    assert!(status.synced && status.revision == 1);
    assert_eq!(status.last_proof.keys().copied().collect::<Vec<_>>(), [SLICES, SERVICES]);
}

#[tokio::test(start_paused = true)]
async fn events_change_the_snapshot_and_a_list_removes_what_it_does_not_hold() {
    let scripted = scripted();
    scripted.service([Event::Init, Event::InitApply(service("web")), Event::InitDone]);
    scripted.slice([Event::Init, Event::InitDone]);
    scripted.settle().await;
    scripted.service([Event::Apply(service("api")), Event::Delete(service("web"))]);
    scripted.settle().await;
    assert_eq!(scripted.held().unwrap(), ["api"]);
    // A new list: nothing goes before it is complete.
    scripted.service([Event::Init, Event::InitApply(service("db"))]);
    scripted.slice([Event::Apply(slice("web-1"))]);
    scripted.settle().await;
    assert_eq!(scripted.held().unwrap(), ["api", "db", "web-1"]);
    scripted.service([Event::InitDone]);
    scripted.settle().await;
    assert_eq!(scripted.held().unwrap(), ["db", "web-1"]);
}

#[tokio::test(start_paused = true)]
async fn an_error_is_told_changes_nothing_and_is_forgotten_at_the_next_event() {
    let scripted = scripted();
    scripted.service([Event::Init, Event::InitApply(service("web")), Event::InitDone]);
    scripted.slice([Event::Init, Event::InitDone]);
    scripted.settle().await;
    scripted.services.unbounded_send(Err(watcher::Error::NoResourceVersion)).unwrap();
    scripted.settle().await;
    let status = scripted.source.status.borrow().clone();
    assert!(status.last_error.is_some() && status.synced && status.revision == 1);
    assert_eq!(scripted.held().unwrap(), ["web"]);
    scripted.service([Event::Apply(service("web"))]);
    scripted.settle().await;
    assert_eq!(scripted.source.status.borrow().last_error, None);
}

#[tokio::test(start_paused = true)]
async fn a_bad_object_is_refused_by_name() {
    let scripted = scripted();
    let mut bad = service("bad");
    bad.spec.as_mut().unwrap().cluster_ip = Some("nowhere".into());
    scripted.service([Event::Init, Event::InitApply(bad), Event::InitApply(service("web")), Event::InitDone]);
    scripted.slice([Event::Init, Event::InitDone]);
    scripted.settle().await;
    assert_eq!(scripted.held().unwrap(), ["web"]);
    assert_eq!(scripted.source.status.borrow().refusals[0].object, "Service default/bad");
}

#[tokio::test]
async fn a_wrong_way_to_the_api_is_said_with_the_remedy() {
    let start = async |settings| spawn(settings, CancellationToken::new()).await.unwrap_err().to_string();
    let text = start(KubeSettings { kubeconfig: Some("/nowhere/config".into()), api_server: None }).await;
    assert!(text.contains("/nowhere/config") && text.contains("--kubeconfig FILE"), "{text}");
    let text = start(KubeSettings { kubeconfig: None, api_server: Some("10.0.0.1:6443".into()) }).await;
    assert!(text.contains("expected a URL as https://10.0.0.1:6443"), "{text}");
}
