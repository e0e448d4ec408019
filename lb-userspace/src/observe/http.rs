//! The agent's HTTP servers: health for load balancers and the kubelet, metrics for Prometheus. Read-only.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use jiff::Timestamp;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::health::{Audience, Judgement, Probe};

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
#[allow(clippy::wildcard_enum_match_arm, reason = "errors of the operating system")]
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

/// What a probe is answered by.
#[derive(Clone, Debug)]
pub struct HealthView {
    pub judgement: Arc<Judgement>,
    pub now: Timestamp,
    /// When the tables were last in step with the source.
    pub last_in_step: Option<Timestamp>,
}

type Looker = Arc<dyn Fn() -> HealthView + Send + Sync>;
type Counter = Arc<dyn Fn(Probe, StatusCode) + Send + Sync>;

/// `/healthz`, `/livez` and `/readyz`, for [`super::server::serve`]. `look` is called for each request, `count` for each answer.
pub fn health_router(
    look: impl Fn() -> HealthView + Send + Sync + 'static,
    count: impl Fn(Probe, StatusCode) + Send + Sync + 'static,
) -> Router {
    let state: (Looker, Counter) = (Arc::new(look), Arc::new(count));
    let route = |probe| {
        get(
            move |ConnectInfo(peer): ConnectInfo<SocketAddr>, State((look, count)): State<(Looker, Counter)>| async move {
                answer(probe, peer, &look(), &count)
            },
        )
    };
    Router::new()
        .route("/healthz", route(Probe::Healthz))
        .route("/livez", route(Probe::Livez))
        .route("/readyz", route(Probe::Readyz))
        .with_state(state)
}

/// A client on the loopback device is a process of this node.
fn audience(peer: SocketAddr) -> Audience {
    if peer.ip().to_canonical().is_loopback() { Audience::Node } else { Audience::Everybody }
}

fn answer(probe: Probe, peer: SocketAddr, look: &HealthView, count: &Counter) -> Response {
    let (good, answer) = look.judgement.answer(probe, audience(peer), look.now, look.last_in_step);
    let code = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    count(probe, code);
    let body = serde_json::to_string(&answer).unwrap_or_default();
    (code, [(header::CONTENT_TYPE, "application/json"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")], body)
        .into_response()
}

type Encode = Arc<dyn Fn() -> String + Send + Sync>;
/// A page of metrics, and when it was begun.
type Page = Arc<Mutex<Option<(Instant, Bytes)>>>;

/// `/metrics`. `encode` reads the maps off the async threads, once at a time: those who ask meanwhile share the next page.
pub fn metrics_router(encode: impl Fn() -> String + Send + Sync + 'static) -> Router {
    let (encode, last): (Encode, Page) = (Arc::new(encode), Arc::default());
    let scrape = async move || {
        // A client that goes away does not end it: otherwise the next one would begin another beside it.
        let Ok(Some(page)) = tokio::spawn(page(encode, last)).await else {
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        };
        ([(header::CONTENT_TYPE, PROMETHEUS)], page).into_response()
    };
    Router::new().route("/metrics", get(scrape))
}

/// A page that was begun after it was asked for.
async fn page(encode: Encode, last: Page) -> Option<Bytes> {
    let asked = Instant::now();
    let mut last = last.lock().await;
    if let Some((_, page)) = last.as_ref().filter(|(begun, _)| *begun >= asked) {
        return Some(page.clone());
    }
    let begun = Instant::now();
    let text = tokio::task::spawn_blocking(move || encode()).await.ok()?;
    Some(last.insert((begun, text.into())).1.clone())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Body;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tower::ServiceExt as _;

    use super::*;
    use crate::observe::health::Thresholds;
    use crate::observe::report::Report;
    use crate::observe::server::{Admission, CONNECTIONS_MAX, Patience, serve};

    async fn ask(router: Router, path: &str) -> String {
        let listener = listen("health-bind", "127.0.0.1:0".parse().expect("valid")).expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let server = tokio::spawn(serve(listener, router, Admission::new(4), Patience::default()));
        let text = get_page(port, path).await;
        server.abort();
        text
    }

    async fn get_page(port: u16, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.expect("listening");
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: node\r\n\r\n").as_bytes()).await.expect("open");
        let mut text = String::new();
        stream.read_to_string(&mut text).await.expect("an answer");
        text
    }

    fn stale_look() -> HealthView {
        let mut report = Report::default();
        (report.tables.synced, report.datapath.synced) = (true, true);
        report.source.stale = Some("services: 10.0.0.1 refused the connection".into());
        let thresholds = Thresholds {
            stuck_after: Duration::from_mins(1),
            behind_after: Duration::from_secs(15),
            first_sync_grace: Duration::ZERO,
            fail_stale: None,
        };
        let judgement = Arc::new(Judgement::of(&report, Duration::ZERO, &thresholds));
        HealthView { judgement, now: Timestamp::UNIX_EPOCH, last_in_step: None }
    }

    #[tokio::test]
    async fn probes_are_answered_by_code_and_json() {
        let text = ask(health_router(stale_look, |_, _| {}), "/healthz").await;
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        assert!(text.contains("application/json") && text.contains("\"nodeEligible\":true"), "{text}");
        let text = ask(health_router(stale_look, |_, _| {}), "/readyz").await;
        assert!(text.starts_with("HTTP/1.1 503") && text.contains("refused the connection"), "{text}");
        let text = ask(health_router(stale_look, |_, _| {}), "/other").await;
        assert!(text.starts_with("HTTP/1.1 404"), "{text}");
    }

    #[tokio::test]
    async fn a_client_of_another_host_hears_no_internals() {
        for (peer, hears) in [
            ("127.0.0.1:40000", true),
            ("[::1]:40000", true),
            ("[::ffff:127.0.0.1]:40000", true),
            ("192.0.2.7:40000", false),
            ("[2001:db8::7]:40000", false),
        ] {
            let mut request = axum::extract::Request::get("/readyz").body(Body::empty()).expect("a request");
            request.extensions_mut().insert(ConnectInfo::<SocketAddr>(peer.parse().expect("an address")));
            let answer = health_router(stale_look, |_, _| {}).oneshot(request).await.expect("infallible");
            assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
            let body = axum::body::to_bytes(answer.into_body(), 4096).await.expect("a body");
            let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
            let fault = body["faults"][0].as_str().expect("a fault");
            assert_eq!(fault.contains("10.0.0.1"), hears, "{peer}: {fault}");
            assert!(fault.starts_with("the source is stale"), "{peer}: {fault}");
        }
    }

    #[tokio::test]
    async fn clients_that_never_finish_a_request_hold_up_neither_probes_nor_scrapes() {
        for (router, path) in [
            (health_router(stale_look, |_, _| {}), "/healthz"),
            (metrics_router(|| "ballast_up 1\n".into()), "/metrics"),
        ] {
            let listener = listen("health-bind", "[::]:0".parse().expect("valid")).expect("a free port");
            let port = listener.local_addr().expect("bound").port();
            let server = tokio::spawn(serve(listener, router, Admission::new(CONNECTIONS_MAX), Patience::default()));
            let mut slow = Vec::new();
            for host in ["127.0.0.1", "::1"].into_iter().cycle().take(2 * CONNECTIONS_MAX) {
                let mut stream = tokio::net::TcpStream::connect((host, port)).await.expect("listening");
                stream.write_all(b"GET /healthz HTTP/1.1\r\nHost").await.expect("open");
                slow.push(stream);
            }
            let text = tokio::time::timeout(Duration::from_secs(20), get_page(port, path)).await.expect("in time");
            assert!(text.starts_with("HTTP/1.1 200"), "{path}: {text}");
            server.abort();
        }
    }

    #[tokio::test]
    async fn scrapes_that_wait_share_a_page_that_began_after_them() {
        let (enter, entered) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let (released, count) = (std::sync::Mutex::new(released), std::sync::atomic::AtomicUsize::new(0));
        let encode: Encode = Arc::new(move || {
            enter.send(()).expect("the test listens");
            released.lock().expect("not poisoned").recv().expect("the test releases");
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed).to_string()
        });
        let last = Page::default();
        let first = tokio::spawn(page(encode.clone(), last.clone()));
        let (_entered, first_entered) = tokio::task::spawn_blocking(move || {
            let first = entered.recv();
            (entered, first)
        })
        .await
        .expect("no panic");
        first_entered.expect("it is being encoded");
        let others: Vec<_> = (0..10).map(|_| tokio::spawn(page(encode.clone(), last.clone()))).collect();
        // All have asked before the first page is done.
        tokio::task::yield_now().await;
        for _ in 0..2 {
            release.send(()).expect("it waits");
        }
        drop(release);
        assert_eq!(first.await.expect("no panic").as_deref(), Some(&b"0"[..]));
        for other in others {
            assert_eq!(other.await.expect("no panic").as_deref(), Some(&b"1"[..]), "one page for all");
        }
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
