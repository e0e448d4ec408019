//! The whole source against a scripted API, with time that stands still; and wrong ways to the API.

use std::convert::Infallible;
use std::time::Duration;

use axum::{body::Body, extract::Request, response::Response};
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    bounds::{FOUND_LIMIT, PROBE_SECONDS},
    held::{SERVICES, SLICES},
    *,
};
use crate::Relist;
use kube::Client;
use lb_model::AllowedAnnotations;

/// A question to the API that waits for its answer.
struct PendingRequest {
    query: String,
    answer: oneshot::Sender<Response>,
}

impl PendingRequest {
    fn is_list(&self) -> bool {
        !self.query.contains("watch=true")
    }

    fn has(&self, parameter: &str) -> bool {
        self.query.split('&').any(|given| given == parameter)
    }

    fn list(self, version: &str, items: &[Value]) {
        assert!(self.is_list(), "{}", self.query);
        let list =
            json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": version}, "items": items});
        self.answer.send(Response::new(Body::from(list.to_string()))).unwrap();
    }

    fn is_probe(&self) -> bool {
        self.has(&format!("timeoutSeconds={PROBE_SECONDS}"))
    }

    fn watch(self, version: &str) -> Watch {
        assert!(!self.is_list(), "a list came instead of a watch from {version}");
        assert!(self.has(&format!("resourceVersion={version}")) && self.has("allowWatchBookmarks=true"));
        let (lines, body) = unbounded::<Result<String, std::io::Error>>();
        self.answer.send(Response::new(Body::from_stream(body))).unwrap();
        Watch(lines)
    }

    fn refuse(self, code: u16) {
        let status = json!({"kind": "Status", "status": "Failure", "code": code, "message": "refused", "reason": "No"});
        self.answer.send(Response::builder().status(code).body(Body::from(status.to_string())).unwrap()).unwrap();
    }

    fn reset(self) {
        let body = futures::stream::iter([Err::<String, _>(std::io::Error::from(std::io::ErrorKind::ConnectionReset))]);
        self.answer.send(Response::new(Body::from_stream(body))).unwrap();
    }
}

/// An open watch; dropped, it ends in order.
struct Watch(UnboundedSender<Result<String, std::io::Error>>);

impl Watch {
    fn event(&self, kind: &str, object: &Value) {
        self.0.unbounded_send(Ok(format!("{}\n", json!({"type": kind, "object": object})))).unwrap();
    }

    fn bookmark(&self, version: &str) {
        self.event("BOOKMARK", &json!({"apiVersion": "v1", "kind": "X", "metadata": {"resourceVersion": version}}));
    }

    fn reset(self) {
        self.0.unbounded_send(Err(std::io::ErrorKind::ConnectionReset.into())).unwrap();
    }
}

struct Api {
    services: UnboundedReceiver<PendingRequest>,
    slices: UnboundedReceiver<PendingRequest>,
    cidrs: UnboundedReceiver<PendingRequest>,
    source: Source,
}

impl Api {
    fn new() -> Self {
        let (services_to, services) = unbounded();
        let (slices_to, slices) = unbounded();
        let (cidrs_to, cidrs) = unbounded();
        let handler = axum::routing::any(move |request: Request| {
            let (answer, answered) = oneshot::channel();
            let query = request.uri().query().unwrap_or_default().to_owned();
            let path = request.uri().path();
            let to = match path.rsplit('/').next() {
                Some("services") => &services_to,
                Some("servicecidrs") => &cidrs_to,
                _ => &slices_to,
            };
            to.unbounded_send(PendingRequest { query, answer }).unwrap();
            // A dropped request gets no answer.
            async move {
                match answered.await {
                    Ok(response) => Ok::<_, Infallible>(response),
                    Err(_) => std::future::pending().await,
                }
            }
        });
        let client = Client::new(handler, "default");
        let settings = KubeSettings { compare_interval: None, ..KubeSettings::default() };
        let (want_peers, wanted) = watch::channel(false);
        let messages = messages(&ApiClients::fixed(client), &settings, wanted);
        let own_node = OwnNode::new(None, None, Duration::ZERO);
        let held = Held::new(want_peers, AllowedAnnotations::default(), own_node);
        let source = follow("https://test".into(), messages, held, CancellationToken::new());
        Self { services, slices, cidrs, source }
    }

    /// Both resources listed, one service, and both watches open.
    async fn listed() -> (Self, Watch, Watch) {
        let mut api = Self::new();
        api.service().await.list("5", &[service("web")]);
        api.slice().await.list("5", &[slice("web-1")]);
        let (services, slices) = (api.service().await.watch("5"), api.slice().await.watch("5"));
        api.settle().await;
        assert_eq!(api.names().unwrap(), ["web", "web-1"]);
        (api, services, slices)
    }

    async fn service(&mut self) -> PendingRequest {
        self.services.next().await.unwrap()
    }

    async fn slice(&mut self) -> PendingRequest {
        self.slices.next().await.unwrap()
    }

    async fn cidr(&mut self) -> PendingRequest {
        self.cidrs.next().await.unwrap()
    }

    /// The service CIDRs of the last snapshot; `None`: not known.
    fn service_cidrs(&self) -> Option<Vec<String>> {
        let snapshot = self.source.snapshots.borrow().clone().unwrap();
        snapshot.service_cidrs.as_ref().map(|all| all.iter().map(ToString::to_string).collect())
    }

    /// Lets everything that was sent arrive.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    fn status(&self) -> SourceStatus {
        self.source.status.borrow().clone()
    }

    fn names(&self) -> Option<Vec<String>> {
        let snapshot = self.source.snapshots.borrow();
        snapshot.as_ref().map(|s| {
            let services = s.services.keys().map(|name| name.name.to_string());
            services.chain(s.slices.keys().map(|key| key.name.to_string())).collect()
        })
    }
}

fn service(name: &str) -> Value {
    let spec = json!({"clusterIP": "10.96.0.1", "ports": [{"port": 80}]});
    json!({"metadata": {"name": name, "namespace": "default", "resourceVersion": "4"}, "spec": spec})
}

fn slice(name: &str) -> Value {
    let labels = json!({"kubernetes.io/service-name": "web"});
    json!({"metadata": {"name": name, "namespace": "default", "labels": labels}, "addressType": "IPv4", "endpoints": []})
}

/// The object in a later version.
fn at(version: &str, mut object: Value) -> Value {
    object["metadata"]["resourceVersion"] = version.into();
    object
}

#[tokio::test(start_paused = true)]
async fn an_api_that_was_cut_off_for_a_while_is_proven_again_without_any_change() {
    let (mut api, services, _slices) = Api::listed().await;
    let before = Instant::now();
    services.reset();
    for _ in 0..4 {
        let asked = api.service().await;
        assert!(asked.has("resourceVersion=5"), "goes on from where it was");
        let status = api.status();
        assert!(status.last_error.unwrap().starts_with("services: "), "stale");
        assert!(status.last_proof[SERVICES] <= before);
        asked.refuse(503);
    }
    api.settle().await;
    assert!(!api.status().api.unwrap().reachable);
    let watch = api.service().await.watch("5");
    let asked = api.service().await;
    assert!(asked.is_probe() && api.status().last_error.is_some(), "an open connection proves nothing");
    asked.watch("5").bookmark("9");
    api.settle().await;
    let status = api.status();
    assert_eq!((&status.resources[SERVICES].last_error, status.revision), (&None, 1), "fresh, and nothing new");
    assert!(status.last_proof[SERVICES] > before && status.api.unwrap().reachable);
    assert_eq!(api.names().unwrap(), ["web", "web-1"]);
    // From here on as before.
    watch.event("ADDED", &at("10", service("api")));
    watch.event("DELETED", &at("11", service("web")));
    api.settle().await;
    assert_eq!(api.names().unwrap(), ["api", "web-1"]);
}

#[tokio::test(start_paused = true)]
async fn an_api_that_is_out_of_reach_from_the_start_proves_nothing() {
    let mut api = Api::new();
    for _ in 0..3 {
        api.service().await.reset();
        api.slice().await.refuse(503);
    }
    api.settle().await;
    let status = api.status();
    assert!(status.last_proof.is_empty() && !status.synced && status.last_error.is_some());
    assert_eq!(api.names(), None);
    api.service().await.list("5", &[]);
    api.settle().await;
    let status = api.status();
    assert_eq!(status.last_proof.keys().collect::<Vec<_>>(), [&SERVICES]);
    assert!(status.last_error.unwrap().starts_with("endpointslices: "));
    assert_eq!(api.names(), None, "half of the truth is none");
    api.slice().await.list("5", &[]);
    api.settle().await;
    let status = api.status();
    assert!(status.resources[SLICES].last_error.is_none() && status.last_proof.contains_key(SLICES));
    assert!(api.names().unwrap().is_empty(), "two lists say so");
}

#[tokio::test(start_paused = true)]
async fn what_was_missed_for_too_long_comes_by_a_new_list_and_nothing_goes_before_it() {
    let (mut api, services, _slices) = Api::listed().await;
    services.reset();
    api.service().await.refuse(410);
    let list = api.service().await;
    assert_eq!(api.names().unwrap(), ["web", "web-1"]);
    list.refuse(500);
    let list = api.service().await;
    assert_eq!(api.names().unwrap(), ["web", "web-1"]);
    list.list("90", &[service("db")]);
    let _services = api.service().await.watch("90");
    assert_eq!(api.names().unwrap(), ["db", "web-1"]);
    assert_eq!(api.status().last_error, None);
}

#[tokio::test(start_paused = true)]
async fn an_api_that_hangs_is_found_out() {
    let (mut api, _services, slices) = Api::listed().await;
    let begin = Instant::now();
    let asked = api.slice().await;
    assert!(asked.is_probe());
    assert_eq!(api.status().resources[SLICES].last_error, None, "silence alone is no trouble");
    // No answer at all.
    drop(asked);
    let again = api.slice().await;
    let status = api.status();
    assert!(status.resources[SLICES].last_error.as_ref().unwrap().contains("no answer within 6s"));
    let lost = status.api.unwrap();
    assert!(!lost.reachable && lost.since - begin <= FOUND_LIMIT);
    again.watch("5").bookmark("5");
    api.settle().await;
    assert!(!api.status().last_error.is_some_and(|error| error.starts_with("endpointslices")));
    assert!(!slices.0.is_closed(), "the API was to blame");
}

#[tokio::test(start_paused = true)]
async fn a_dead_watch_is_left_for_one_on_a_new_connection() {
    let (mut api, _services, slices) = Api::listed().await;
    let probe = api.slice().await.watch("5");
    probe.event("DELETED", &at("6", slice("web-1")));
    api.settle().await;
    assert_eq!(api.names().unwrap(), ["web"]);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(slices.0.is_closed());
    assert!(api.status().wedged_since().is_some());
    drop(probe);
    let slices = api.slice().await.watch("6");
    api.settle().await;
    assert_eq!(api.status().wedged_since(), None);
    slices.event("ADDED", &at("7", slice("web-2")));
    api.settle().await;
    assert_eq!(api.names().unwrap(), ["web", "web-2"]);
}

/// The e2e specification "should complete a service status lifecycle" of Kubernetes makes such a Service with one patch.
#[tokio::test(start_paused = true)]
async fn a_service_whose_condition_has_a_null_time_is_served_and_stops_no_watch() {
    let (mut api, services, _slices) = Api::listed().await;
    let mut odd = at("6", service("odd"));
    odd["status"] = json!({"conditions": [{"type": "Odd", "status": "True", "reason": "R", "message": "m", "lastTransitionTime": null}]});
    services.event("ADDED", &odd);
    services.event("ADDED", &at("7", service("other")));
    api.settle().await;
    assert_eq!(api.names().unwrap(), ["odd", "other", "web", "web-1"]);
    assert!(api.services.try_recv().is_err(), "nothing is asked again");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_cannot_be_read_is_refused_by_name_and_what_was_read_of_it_is_served() {
    let (mut api, services, _slices) = Api::listed().await;
    let odd = |version: &str, name: &str, uid: &str| {
        let mut odd = at(version, service(name));
        (odd["spec"]["ports"], odd["metadata"]["uid"]) = (json!("eighty"), json!(uid));
        odd
    };
    let mut good = at("6", service("api"));
    good["metadata"]["uid"] = json!("u1");
    services.event("ADDED", &good);
    services.event("MODIFIED", &odd("7", "api", "u1"));
    services.event("ADDED", &odd("8", "never", "u2"));
    services.event("ADDED", &at("9", service("other")));
    api.settle().await;
    assert_eq!(api.names().unwrap(), ["api", "other", "web", "web-1"]);
    let refused = |api: &Api| {
        let refusals = api.status().refusals;
        refusals.iter().map(|refusal| (refusal.object.clone(), refusal.reason.clone())).collect::<Vec<_>>()
    };
    let refusals = refused(&api);
    assert_eq!(
        refusals.iter().map(|(object, _)| object.as_str()).collect::<Vec<_>>(),
        ["Service default/api", "Service default/never"]
    );
    assert!(refusals[0].1.contains("cannot be read") && refusals[0].1.contains("eighty"), "{refusals:?}");
    // Another object of the same name.
    services.event("MODIFIED", &odd("10", "api", "u3"));
    api.settle().await;
    assert_eq!(api.names().unwrap(), ["other", "web", "web-1"]);
    services.event("DELETED", &odd("11", "api", "u3"));
    services.event("DELETED", &odd("12", "never", "u2"));
    api.settle().await;
    assert_eq!(refused(&api), []);
    // The version went on with each of them.
    services.reset();
    let again = api.service().await;
    assert!(again.has("resourceVersion=12"), "{}", again.query);
    // A list is read by the same rules.
    again.refuse(410);
    api.service()
        .await
        .list("20", &[service("web"), odd("19", "other", "u9"), odd("19", "never", "u2"), service("new")]);
    api.settle().await;
    assert_eq!(api.names().unwrap(), ["new", "other", "web", "web-1"]);
    assert_eq!(refused(&api).len(), 2);
    assert_eq!(api.status().last_error, None);
}

#[tokio::test(start_paused = true)]
async fn a_list_in_pages_is_put_together() {
    let mut api = Api::new();
    api.slice().await.list("5", &[]);
    let asked = api.service().await;
    assert!(asked.has("limit=500"));
    let meta = json!({"resourceVersion": "5", "continue": "more"});
    let list = json!({"apiVersion": "v1", "kind": "List", "metadata": meta, "items": [service("a")]});
    asked.answer.send(Response::new(Body::from(list.to_string()))).unwrap();
    let asked = api.service().await;
    assert!(asked.has("continue=more") && api.names().is_none());
    asked.list("5", &[service("b")]);
    api.settle().await;
    assert_eq!(api.names().unwrap(), ["a", "b"]);
    assert_eq!(api.status().resources[SERVICES].relists, [(Relist::First, 1)].into());
}

#[tokio::test]
async fn a_wrong_way_to_the_api_is_said_with_the_remedy() {
    let start = async |settings| spawn(settings, CancellationToken::new()).await.err().unwrap().to_string();
    let text = start(KubeSettings { kubeconfig: Some("/nowhere/config".into()), ..KubeSettings::default() }).await;
    assert!(text.contains("/nowhere/config") && text.contains("--kubeconfig FILE"), "{text}");
    let text = start(KubeSettings { api_servers: vec!["10.0.0.1:6443".into()], ..KubeSettings::default() }).await;
    assert!(text.contains("expected a URL as https://10.0.0.1:6443"), "{text}");
}

#[path = "kube/service_cidr_tests.rs"]
mod service_cidrs;
