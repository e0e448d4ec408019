//! A Kubernetes API from memory: just what kube-proxy lists and watches, and nothing is stored or checked.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use axum::body::{Body, Bytes};
use axum::http::{Method, Request, Response, StatusCode};
use futures::Stream;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::selector::{Query, Selector};
use crate::topology::Place;

/// What is served, each in its only version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Resource {
    Nodes,
    Services,
    Slices,
    ServiceCidrs,
}

impl Resource {
    const ALL: [Self; 4] = [Self::Nodes, Self::Services, Self::Slices, Self::ServiceCidrs];

    fn path(self) -> &'static str {
        match self {
            Self::Nodes => "/api/v1/nodes",
            Self::Services => "/api/v1/services",
            Self::Slices => "/apis/discovery.k8s.io/v1/endpointslices",
            Self::ServiceCidrs => "/apis/networking.k8s.io/v1/servicecidrs",
        }
    }

    fn version_and_kind(self) -> (&'static str, &'static str) {
        match self {
            Self::Nodes => ("v1", "Node"),
            Self::Services => ("v1", "Service"),
            Self::Slices => ("discovery.k8s.io/v1", "EndpointSlice"),
            Self::ServiceCidrs => ("networking.k8s.io/v1", "ServiceCIDR"),
        }
    }
}

/// The running API; dropped, it is gone.
#[derive(Debug)]
pub struct StubApi {
    state: Arc<State>,
    at: SocketAddr,
    _runtime: Runtime,
}

#[derive(Debug, Default)]
struct State {
    tables: Mutex<Tables>,
    /// Length of the log.
    grown: watch::Sender<usize>,
}

#[derive(Debug, Default)]
struct Tables {
    objects: BTreeMap<(Resource, String), Arc<Value>>,
    /// Every change since the start; its place in the log, from 1, is its resource version.
    log: Vec<Change>,
}

#[derive(Clone, Debug)]
struct Change {
    resource: Resource,
    event: &'static str,
    object: Arc<Value>,
}

impl State {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StubApi {
    /// Listens on loopback of `place`.
    pub fn start(place: &Place) -> Result<Self> {
        let listener = place.run(|| TcpListener::bind("127.0.0.1:0")).context("the stub API server's port")?;
        listener.set_nonblocking(true)?;
        let at = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let state = Arc::new(State::default());
        let served = Arc::clone(&state);
        runtime.spawn(async move {
            let answer = move |request: Request<Body>| {
                let state = Arc::clone(&served);
                async move { answer(&state, request).await }
            };
            let router = axum::Router::new().fallback(answer);
            let listener = tokio::net::TcpListener::from_std(listener)?;
            axum::serve(listener, router).await
        });
        Ok(Self { state, at, _runtime: runtime })
    }

    /// Where it listens.
    pub fn url(&self) -> String {
        format!("http://{}", self.at)
    }

    /// Adds or replaces an object.
    pub fn put(&self, resource: Resource, object: &Value) {
        let (api_version, kind) = resource.version_and_kind();
        let mut object = object.clone();
        object["apiVersion"] = api_version.into();
        object["kind"] = kind.into();
        let key = (resource, key_of(&object));
        let mut tables = self.state.tables();
        let event = if tables.objects.contains_key(&key) { "MODIFIED" } else { "ADDED" };
        self.note(&mut tables, key, event, object);
    }

    /// Removes every object of this kind for which `chosen` says so.
    pub fn remove(&self, resource: Resource, chosen: impl Fn(&Value) -> bool) {
        let mut tables = self.state.tables();
        let gone: Vec<_> = tables
            .objects
            .iter()
            .filter(|((of, _), object)| *of == resource && chosen(object))
            .map(|(key, object)| (key.clone(), Value::clone(object)))
            .collect();
        for (key, object) in gone {
            self.note(&mut tables, key, "DELETED", object);
        }
    }

    fn note(&self, tables: &mut Tables, key: (Resource, String), event: &'static str, mut object: Value) {
        let version = tables.log.len() + 1;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        let object = Arc::new(object);
        tables.log.push(Change { resource: key.0, event, object: Arc::clone(&object) });
        if event == "DELETED" {
            tables.objects.remove(&key);
        } else {
            tables.objects.insert(key, object);
        }
        self.state.grown.send_replace(version);
    }
}

fn key_of(object: &Value) -> String {
    let part = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
    format!("{}/{}", part("namespace"), part("name"))
}

async fn answer(state: &Arc<State>, request: Request<Body>) -> Response<Body> {
    if request.method() == Method::POST {
        // Events: accepted and forgotten.
        let body = axum::body::to_bytes(request.into_body(), usize::MAX).await.unwrap_or_default();
        return respond(StatusCode::CREATED, Body::from(body));
    }
    let path = request.uri().path();
    let Some(resource) = Resource::ALL.into_iter().find(|resource| resource.path() == path) else {
        let status =
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404});
        return respond(StatusCode::NOT_FOUND, Body::from(status.to_string()));
    };
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let selector = query.selector();
    if !query.is("watch") {
        return respond(StatusCode::OK, Body::from(list(state, resource, &selector).to_string()));
    }
    let watch = Watch::new(state, resource, selector, &query);
    respond(StatusCode::OK, Body::from_stream(watch.stream()))
}

fn respond(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    response
}

fn list(state: &State, resource: Resource, selector: &Selector) -> Value {
    let tables = state.tables();
    let (api_version, kind) = resource.version_and_kind();
    let items: Vec<&Value> = held(&tables, resource, selector).map(AsRef::as_ref).collect();
    json!({
        "apiVersion": api_version,
        "kind": format!("{kind}List"),
        "metadata": {"resourceVersion": tables.log.len().to_string()},
        "items": items,
    })
}

fn held<'a>(
    tables: &'a Tables,
    resource: Resource,
    selector: &'a Selector,
) -> impl Iterator<Item = &'a Arc<Value>> + use<'a> {
    let chosen =
        move |((of, _), object): &(&(Resource, String), &Arc<Value>)| *of == resource && selector.admits(object);
    tables.objects.iter().filter(chosen).map(|(_, object)| object)
}

/// One watch: where it is in the log, and what it still has to say.
struct Watch {
    state: Arc<State>,
    resource: Resource,
    selector: Selector,
    grown: watch::Receiver<usize>,
    read: usize,
    first: String,
}

impl Watch {
    fn new(state: &Arc<State>, resource: Resource, selector: Selector, query: &Query) -> Self {
        let grown = state.grown.subscribe();
        let mut first = String::new();
        let tables = state.tables();
        let read = if query.is("sendInitialEvents") {
            for object in held(&tables, resource, &selector) {
                push_event(&mut first, "ADDED", object);
            }
            let (api_version, kind) = resource.version_and_kind();
            let bookmark = json!({"apiVersion": api_version, "kind": kind, "metadata": {
                "resourceVersion": tables.log.len().to_string(),
                "annotations": {"k8s.io/initial-events-end": "true"},
            }});
            push_event(&mut first, "BOOKMARK", &bookmark);
            tables.log.len()
        } else {
            query.get("resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(tables.log.len())
        };
        drop(tables);
        Self { state: Arc::clone(state), resource, selector, grown, read, first }
    }

    fn stream(self) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> {
        futures::stream::unfold(self, |mut watch| async move {
            loop {
                let said = watch.next();
                if !said.is_empty() {
                    return Some((Ok(Bytes::from(said)), watch));
                }
                watch.grown.changed().await.ok()?;
            }
        })
    }

    /// What is new, as lines of JSON.
    fn next(&mut self) -> String {
        let mut said = std::mem::take(&mut self.first);
        let tables = self.state.tables();
        let from = self.read.min(tables.log.len());
        for change in &tables.log[from..] {
            if change.resource == self.resource && self.selector.admits(&change.object) {
                push_event(&mut said, change.event, &change.object);
            }
        }
        self.read = tables.log.len();
        said
    }
}

fn push_event(lines: &mut String, event: &str, object: &Value) {
    lines.push_str(&json!({"type": event, "object": object}).to_string());
    lines.push('\n');
}
