//! The HTTP server of health, metrics, health-check node ports and the fleet: one request for each connection, everything bounded in time and number.
//!
//! A client that sends nothing, sends half a header or does not read its answer takes one of a bounded number of places, for a bounded time. It makes
//! room for the next one when all places are taken.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tower::ServiceExt as _;

mod admission;

pub use admission::Admission;

/// Connections of one server at a time; a quarter of them for one source.
pub const CONNECTIONS_MAX: usize = 128;
/// Bytes of a request's header.
const HEADER_BYTES_MAX: usize = 16 * 1024;
/// After an `accept` that failed: out of descriptors, most likely. Others give some back meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a connection may take.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// From its beginning to the end of the request's header.
    pub header: Duration,
    /// From its beginning to the end of the answer.
    pub answer: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { header: Duration::from_secs(5), answer: Duration::from_secs(20) }
    }
}

/// Serves until dropped; its connections end with it. Handlers find the client's address as [`ConnectInfo`].
pub async fn serve(listener: TcpListener, router: Router, admission: Admission, patience: Patience) {
    serve_by(listener, router, admission, patience, |stream| std::future::ready(Some(stream))).await;
}

/// [`serve`] over TLS, by the certificate of the moment; without one, connections are closed. The handshake must end before the header must.
pub async fn serve_tls(
    listener: TcpListener,
    router: Router,
    admission: Admission,
    patience: Patience,
    tls: watch::Receiver<Option<Arc<ServerConfig>>>,
) {
    let secure = move |stream| {
        let config = tls.borrow().clone();
        async move {
            let handshake = TlsAcceptor::from(config?).accept(stream);
            tokio::time::timeout(patience.header, handshake).await.ok()?.ok()
        }
    };
    serve_by(listener, router, admission, patience, secure).await;
}

/// `secure`: makes of a connection what is read and written; `None`: it is closed.
async fn serve_by<S, F>(
    listener: TcpListener,
    router: Router,
    admission: Admission,
    patience: Patience,
    secure: impl Fn(TcpStream) -> F,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Option<S>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let Ok((stream, peer)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let permit = Arc::new(admission.admit(peer.ip()));
        let (router, secured) = (router.clone(), secure(stream));
        connections.spawn(async move {
            let conversation = async {
                if let Some(stream) = secured.await {
                    converse(stream, peer, router, permit.clone(), patience.header).await;
                }
            };
            tokio::select! {
                _ = tokio::time::timeout(patience.answer, conversation) => {}
                () = permit.closed() => {}
            }
        });
    }
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: SocketAddr,
    router: Router,
    permit: Arc<admission::Permit>,
    header_limit: Duration,
) {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        permit.asked();
        let mut request: Request = request.map(axum::body::Body::new);
        request.extensions_mut().insert(ConnectInfo(peer));
        let router = router.clone();
        async move { Ok::<_, Infallible>(router.oneshot(request).await.unwrap_or_else(|never| match never {})) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(header_limit).keep_alive(false).max_buf_size(HEADER_BYTES_MAX);
    // A client that goes away, is too slow or speaks no HTTP is its own problem.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
