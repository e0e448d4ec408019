//! The one listener of the agent that other nodes may reach: TLS, a bearer token, and answers that only read.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::rustls::ServerConfig;

use super::answer::{BucketServices, NodeStatus};
use super::command::{CommandError, Commands, Reading};
use super::digest::{BUCKETS, bucket, hex};
use super::review::{Refused, Reviewer};
use super::{STATUS_PATH, tls};
use crate::observe::fleet_metrics::FleetMetrics;
use crate::observe::server::{self, Admission, CONNECTIONS_MAX, Patience};
use lb_model::Accepted;

/// A sysdump takes its time; a connection takes one of a bounded number of places.
const ANSWER_LIMIT: Duration = Duration::from_mins(2);

/// What the agent knows at a moment.
#[derive(Clone, Debug, Default)]
pub struct View {
    pub status: NodeStatus,
    /// The objects in the tables.
    pub accepted: Accepted,
}

type Look = Arc<dyn Fn() -> View + Send + Sync>;

/// What the listener answers from.
#[derive(Clone)]
pub struct Answers {
    look: Look,
    reviewer: Arc<Reviewer>,
    commands: Arc<Commands>,
    metrics: FleetMetrics,
}

impl Answers {
    /// `look` is called for each question about the digest; `metrics` count the answers.
    pub fn new(
        look: impl Fn() -> View + Send + Sync + 'static,
        reviewer: Reviewer,
        commands: Commands,
        metrics: FleetMetrics,
    ) -> Self {
        Self { look: Arc::new(look), reviewer: reviewer.into(), commands: commands.into(), metrics }
    }
}

/// Serves until dropped. `tls`: the certificate of the moment; without one, connections are closed.
pub async fn serve(listener: TcpListener, answers: Answers, tls: watch::Receiver<Option<Arc<ServerConfig>>>) {
    let patience = Patience { answer: ANSWER_LIMIT, ..Patience::default() };
    server::serve_tls(listener, router(answers), Admission::new(CONNECTIONS_MAX), patience, tls).await;
}

/// Serves with the certificate of these files, which are read again when they change.
pub async fn serve_files(listener: TcpListener, answers: Answers, files: tls::CertificateFiles) {
    let (config, current) = watch::channel(None);
    let (metrics, address) = (answers.metrics.clone(), listener.local_addr());
    let read = move |is_usable| {
        if let Ok(address) = address {
            metrics.certificate_read(address, is_usable);
        }
    };
    tokio::join!(tls::follow(files, config, read), serve(listener, answers, current));
}

fn router(answers: Answers) -> Router {
    let mut router = Router::new().route(STATUS_PATH, get(status));
    for reading in Reading::ALL {
        let handler = move |state: State<Answers>, headers: HeaderMap, query: RawQuery| async move {
            command(reading, state, headers, query).await
        };
        router = router.route(reading.path(), get(handler));
    }
    let metrics = answers.metrics.clone();
    let count = middleware::from_fn(move |request: Request, next: Next| {
        let metrics = metrics.clone();
        async move {
            let answer = next.run(request).await;
            metrics.answered(answer.status());
            answer
        }
    });
    router.with_state(answers).layer(count)
}

/// Refuses a client that has no right to the path.
async fn admit(answers: &Answers, headers: &HeaderMap, path: &str) -> Result<(), Response> {
    let header = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token =
        header.and_then(|value| value.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let admitted = answers.reviewer.admit(token.map(|(_, token)| token.trim()), path).await;
    admitted.map_err(|refused| {
        tracing::debug!(path, "--fleet-bind: refused: {refused}");
        if matches!(refused, Refused::NotReviewed(_)) {
            answers.metrics.review_failed();
        }
        (refused.status(), refused.to_string()).into_response()
    })
}

async fn status(State(answers): State<Answers>, headers: HeaderMap, RawQuery(query): RawQuery) -> Response {
    if let Err(refused) = admit(&answers, &headers, STATUS_PATH).await {
        return refused;
    }
    let view = (answers.look)();
    match buckets(query.as_deref()) {
        Ok(None) => json(&view.status),
        Ok(Some(buckets)) => json(&services(&view.accepted, &buckets)),
        Err(error) => (StatusCode::BAD_REQUEST, error).into_response(),
    }
}

/// Which buckets are asked for; `None`: the status is.
fn buckets(query: Option<&str>) -> Result<Option<BTreeSet<usize>>, String> {
    let Some(list) = query.and_then(|query| query.strip_prefix("buckets=")) else { return Ok(None) };
    let number = |text: &str| text.parse().ok().filter(|number| *number < BUCKETS);
    let all: Option<BTreeSet<usize>> = list.split(',').map(number).collect();
    all.map(Some).ok_or_else(|| format!("buckets: numbers below {BUCKETS}, with commas between"))
}

fn services(accepted: &Accepted, buckets: &BTreeSet<usize>) -> BucketServices {
    let of_buckets = accepted.hashes().filter(|(service, _)| buckets.contains(&bucket(service)));
    BucketServices { services: of_buckets.map(|(service, hash)| (service.to_string(), hex(hash))).collect() }
}

async fn command(
    reading: Reading,
    State(answers): State<Answers>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Response {
    if let Err(refused) = admit(&answers, &headers, reading.path()).await {
        return refused;
    }
    let arguments = form_urlencoded::parse(query.as_deref().unwrap_or_default().as_bytes());
    let arguments: Vec<String> = arguments.filter(|(name, _)| name == "arg").map(|(_, value)| value.into()).collect();
    match answers.commands.run(reading, &arguments).await {
        Ok((archive, output)) if reading == Reading::Sysdump && output.exit_code == 0 => {
            ([(header::CONTENT_TYPE, "application/gzip")], archive).into_response()
        }
        Ok((_, output)) if reading == Reading::Sysdump => {
            (StatusCode::INTERNAL_SERVER_ERROR, output.stderr).into_response()
        }
        Ok((stdout, mut output)) => {
            output.stdout = String::from_utf8_lossy(&stdout).into_owned();
            json(&output)
        }
        Err(error) => (status_of(&error), error.to_string()).into_response(),
    }
}

fn status_of(error: &CommandError) -> StatusCode {
    match error {
        CommandError::NotAllowed(_) => StatusCode::BAD_REQUEST,
        CommandError::Busy => StatusCode::SERVICE_UNAVAILABLE,
        CommandError::Late(_) => StatusCode::GATEWAY_TIMEOUT,
        CommandError::TooLong | CommandError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn json(answer: &impl serde::Serialize) -> Response {
    match serde_json::to_vec(answer) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
#[path = "listener_tests.rs"]
pub(in crate::fleet) mod tests;
