//! The stub's answers over HTTP.

use std::fmt::{Display, Write as _};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use futures::Stream;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant as Clock;

use super::Shared;
use super::selector::{Query, Selector};
use super::state::{Request, ResourceKind, Verb};

/// How often a watch gets a bookmark.
const BOOKMARK_EVERY: Duration = Duration::from_mins(1);
/// A real server sends a last bookmark this long before it ends a watch.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// How long a watch lasts that does not say.
const WATCH_SECONDS: u64 = 300;

pub fn router(shared: Arc<Shared>) -> Router {
    let of = |kind: ResourceKind| {
        get(
            move |State(shared): State<Arc<Shared>>, ConnectInfo(peer): ConnectInfo<SocketAddr>, RawQuery(query)| async move {
                answer(&shared, kind, peer, query.unwrap_or_default())
            },
        )
    };
    Router::new()
        .route("/api/v1/services", of(ResourceKind::Service))
        .route("/apis/discovery.k8s.io/v1/endpointslices", of(ResourceKind::Slice))
        .route("/api/v1/nodes", of(ResourceKind::Node))
        .route("/apis/networking.k8s.io/v1/servicecidrs", of(ResourceKind::ServiceCidr))
        .route("/api/v1/namespaces/{namespace}/events", post(event))
        .route("/apis/events.k8s.io/v1/namespaces/{namespace}/events", post(event))
        .with_state(shared)
}

pub async fn serve(listener: StdListener, router: Router) {
    let listener = TcpListener::from_std(listener).expect("a runtime that does I/O");
    axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>()).await.ok();
}

async fn event(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    match serde_json::from_slice::<Value>(&body) {
        Ok(event) => {
            shared.state().note_event(event.clone());
            say(StatusCode::CREATED, &event)
        }
        Err(error) => {
            say(StatusCode::BAD_REQUEST, &json!({"kind": "Status", "message": error.to_string(), "code": 400}))
        }
    }
}

fn say(status: StatusCode, value: &Value) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

fn answer(shared: &Arc<Shared>, kind: ResourceKind, peer: SocketAddr, query: String) -> Response {
    let parameters = Query::parse(&query);
    let number = |name: &str| parameters.get(name).and_then(|text| text.parse::<u64>().ok());
    let (is_watch, selector) = (parameters.is("watch"), parameters.selector());
    let (version, seconds) = (number("resourceVersion"), number("timeoutSeconds").unwrap_or(WATCH_SECONDS));
    let verb = if is_watch { Verb::Watch } else { Verb::List };
    let mut state = shared.state();
    state.note(Request { at: Instant::now(), peer, kind, verb, query });
    if let Some(code) = state.refusal(kind) {
        let refusal = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "the test says no", "code": code});
        return say(StatusCode::from_u16(code).expect("a status"), &refusal);
    }
    if !is_watch {
        return say(StatusCode::OK, &state.list(kind, &selector));
    }
    let mut initial = None;
    let version = if parameters.is("sendInitialEvents") {
        let added = state.selected(kind, &selector).map(|object| json!({"type": "ADDED", "object": object}));
        initial = Some(lines(added.chain([state.initial_bookmark(kind)])));
        state.version()
    } else {
        version.unwrap_or_else(|| state.version())
    };
    if !state.remembers(version) {
        let gone = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Expired",
            "message": format!("too old resource version: {version}"), "code": 410});
        return say(StatusCode::GONE, &gone);
    }
    let number = state.open_watch();
    drop(state);
    let end = Clock::now() + Duration::from_secs(seconds);
    let shared = Arc::clone(shared);
    let watch = Watch { shared, kind, selector, number, initial, from: version, told: version, end, bookmarks: None };
    Body::from_stream(watch.lines()).into_response()
}

fn lines<E: Display>(events: impl Iterator<Item = E>) -> String {
    events.fold(String::new(), |mut lines, event| {
        writeln!(lines, "{event}").expect("a String grows");
        lines
    })
}

/// An open watch.
struct Watch {
    shared: Arc<Shared>,
    kind: ResourceKind,
    selector: Selector,
    number: usize,
    /// The events that it begins with, if it was asked to.
    initial: Option<String>,
    /// The version that it began at.
    from: u64,
    /// Everything up to this version was sent, or is hidden.
    told: u64,
    end: Clock,
    /// When the next one is due, once it is known.
    bookmarks: Option<Clock>,
}

impl Watch {
    fn lines(self) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> {
        let changes = self.shared.changes.subscribe();
        futures::stream::unfold((self, changes), |(mut watch, mut changes)| async move {
            let line = watch.next(&mut changes).await?;
            Some((Ok(Bytes::from(line)), (watch, changes)))
        })
    }

    /// What it says next; `None` at its end.
    async fn next(&mut self, changes: &mut watch::Receiver<()>) -> Option<String> {
        if let Some(initial) = self.initial.take() {
            return Some(initial);
        }
        loop {
            let silent = {
                changes.mark_unchanged();
                let state = self.shared.state();
                if state.is_ended(self.number) {
                    return None;
                }
                state.is_silent(self.number)
            };
            if silent {
                changes.changed().await.ok()?;
                continue;
            }
            if let Some(lines) = self.news() {
                return Some(lines);
            }
            let due =
                *self.bookmarks.get_or_insert_with(|| self.end.min(Clock::now() + BOOKMARK_EVERY) - LAST_BOOKMARK);
            tokio::select! {
                told = changes.changed() => told.ok()?,
                () = tokio::time::sleep_until(due.min(self.end)) => {
                    if Clock::now() >= self.end {
                        return None;
                    }
                    let next = due + BOOKMARK_EVERY;
                    self.bookmarks = Some(if next < self.end { next } else { self.end + BOOKMARK_EVERY });
                    if let Some(bookmark) = self.shared.state().bookmark(self.kind, self.from) {
                        return Some(format!("{bookmark}\n"));
                    }
                }
            }
        }
    }

    /// The changes that were not told yet.
    fn news(&mut self) -> Option<String> {
        let state = self.shared.state();
        let lines = lines(state.since(self.kind, self.told, &self.selector).map(|change| &change.event));
        self.told = state.version();
        (!lines.is_empty()).then_some(lines)
    }
}
