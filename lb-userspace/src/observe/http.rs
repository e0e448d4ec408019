//! The agent's HTTP servers: health for load balancers and the kubelet, metrics for Prometheus. Read-only.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use jiff::Timestamp;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

use super::health::{self, Probe, Thresholds};
use super::report::Report;

/// Content type of Prometheus' text format.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error(
        "--{flag} {address}: the port is in use, perhaps by kube-proxy or another agent; stop that, or choose another port"
    )]
    InUse { flag: &'static str, address: SocketAddr },
    #[error("--{flag} {address}: this node does not have the address; choose one of its own, or [::]")]
    NotOurs { flag: &'static str, address: SocketAddr },
    #[error("--{flag} {address}: may not listen there; choose a port from 1024 on, or grant CAP_NET_BIND_SERVICE")]
    Denied { flag: &'static str, address: SocketAddr },
    #[error("--{flag} {address}: cannot listen there: {error}; choose another address")]
    Other { flag: &'static str, address: SocketAddr, error: io::Error },
}

/// Listens at once, so that an address that cannot be had is found before anything is attached.
///
/// `[::]` takes both families, whatever `net.ipv6.bindv6only` says; where the kernel has no IPv6, it is `0.0.0.0`.
pub fn listen(flag: &'static str, address: SocketAddr) -> Result<TcpListener, ListenError> {
    let is_any = address.is_ipv6() && address.ip().is_unspecified();
    let bound = match bind(address) {
        Err(error) if is_any && matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) => {
            bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())))
        }
        bound => bound,
    };
    bound.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse { flag, address },
        io::ErrorKind::AddrNotAvailable => ListenError::NotOurs { flag, address },
        io::ErrorKind::PermissionDenied => ListenError::Denied { flag, address },
        _ => ListenError::Other { flag, address, error },
    })
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Connections of the agent before this one may still be in TIME_WAIT.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// What a probe is judged by.
#[derive(Clone, Debug)]
pub struct Look {
    pub report: Arc<Report>,
    /// How long ago the runtime turned.
    pub since_beat: Duration,
    pub thresholds: Thresholds,
    pub now: Timestamp,
    /// When the tables were last in step with the source.
    pub last_in_step: Option<Timestamp>,
}

type Looker = Arc<dyn Fn() -> Look + Send + Sync>;
type Counter = Arc<dyn Fn(Probe, StatusCode) + Send + Sync>;

/// `/healthz`, `/livez` and `/readyz`. `look` is called for each request, `count` for each answer.
pub fn health_router(
    look: impl Fn() -> Look + Send + Sync + 'static,
    count: impl Fn(Probe, StatusCode) + Send + Sync + 'static,
) -> Router {
    let state: (Looker, Counter) = (Arc::new(look), Arc::new(count));
    let route =
        |probe| get(move |State((look, count)): State<(Looker, Counter)>| async move { answer(probe, &look, &count) });
    Router::new()
        .route("/healthz", route(Probe::Healthz))
        .route("/livez", route(Probe::Livez))
        .route("/readyz", route(Probe::Readyz))
        .with_state(state)
}

fn answer(probe: Probe, look: &Looker, count: &Counter) -> Response {
    let Look { report, since_beat, thresholds, now, last_in_step } = look();
    let (good, answer) = health::answer(probe, &report, since_beat, &thresholds, now, last_in_step);
    let code = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    count(probe, code);
    let body = serde_json::to_string(&answer).unwrap_or_default();
    (code, [(header::CONTENT_TYPE, "application/json"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")], body)
        .into_response()
}

/// `/metrics`. `encode` is called for each scrape, off the async threads: it reads the maps.
pub fn metrics_router(encode: impl Fn() -> String + Send + Sync + 'static) -> Router {
    let encode: Arc<dyn Fn() -> String + Send + Sync> = Arc::new(encode);
    Router::new().route(
        "/metrics",
        get(move || async move {
            match tokio::task::spawn_blocking(move || encode()).await {
                Ok(text) => ([(header::CONTENT_TYPE, PROMETHEUS)], text).into_response(),
                Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            }
        }),
    )
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn ask(router: Router, path: &str) -> String {
        let listener = listen("health-bind", "127.0.0.1:0".parse().expect("valid")).expect("a free port");
        let address = listener.local_addr().expect("bound");
        let server = tokio::spawn(async move { axum::serve(listener, router).await });
        let mut stream = tokio::net::TcpStream::connect(address).await.expect("listening");
        let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("open");
        let mut text = String::new();
        stream.read_to_string(&mut text).await.expect("an answer");
        server.abort();
        text
    }

    fn stale_look() -> Look {
        let mut report = Report::default();
        (report.tables.synced, report.datapath.synced) = (true, true);
        report.source.stale = Some("connection refused".into());
        Look {
            report: Arc::new(report),
            since_beat: Duration::ZERO,
            thresholds: Thresholds {
                stuck_after: Duration::from_mins(1),
                behind_after: Duration::from_secs(15),
                first_sync_grace: Duration::ZERO,
                fail_stale: None,
            },
            now: Timestamp::UNIX_EPOCH,
            last_in_step: None,
        }
    }

    #[tokio::test]
    async fn probes_are_answered_by_code_and_json() {
        let text = ask(health_router(stale_look, |_, _| {}), "/healthz").await;
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        assert!(text.contains("application/json") && text.contains("\"nodeEligible\":true"), "{text}");
        let text = ask(health_router(stale_look, |_, _| {}), "/readyz").await;
        assert!(text.starts_with("HTTP/1.1 503") && text.contains("connection refused"), "{text}");
        let text = ask(health_router(stale_look, |_, _| {}), "/other").await;
        assert!(text.starts_with("HTTP/1.1 404"), "{text}");
    }

    #[tokio::test]
    async fn metrics_are_prometheus_text() {
        let text = ask(metrics_router(|| "ballast_up 1\n".into()), "/metrics").await;
        assert!(text.contains("text/plain; version=0.0.4") && text.ends_with("ballast_up 1\n"), "{text}");
    }

    #[tokio::test]
    async fn the_unspecified_address_of_ipv6_takes_both_families() {
        let listener = listen("health-bind", "[::]:0".parse().expect("valid")).expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        for host in ["127.0.0.1", "::1"] {
            tokio::net::TcpStream::connect((host, port)).await.expect("listening");
        }
    }

    #[tokio::test]
    async fn a_port_in_use_is_named_with_its_flag() {
        let first = listen("health-bind", "127.0.0.1:0".parse().expect("valid")).expect("a free port");
        let address = first.local_addr().expect("bound");
        let error = listen("health-bind", address).expect_err("in use").to_string();
        assert!(error.contains("--health-bind") && error.contains(&address.to_string()), "{error}");
        assert!(error.contains("in use") && error.contains("choose another port"), "{error}");
    }
}
