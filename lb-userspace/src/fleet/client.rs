//! One question to one agent: a connection of its own, an answer that is bounded in size and time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HOST};
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_util::task::AbortOnDropHandle;

/// More than 100,000 services in the answer.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;
/// A sysdump of a large node.
pub const SYSDUMP_BYTES_MAX: usize = 64 << 20;
/// Of an error's text, so much is shown.
const ERROR_CHARS_MAX: usize = 300;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("cannot connect to {address}: {error}")]
    Connect { address: SocketAddr, error: std::io::Error },
    #[error("no secure connection to {address}: {error}")]
    Tls { address: SocketAddr, error: std::io::Error },
    #[error("{address} gives no answer: {error}")]
    Broken { address: SocketAddr, error: String },
    #[error("{address} gives no answer within {limit:?}")]
    Late { address: SocketAddr, limit: Duration },
    #[error("{address} answers {status}: {text}")]
    Refused { address: SocketAddr, status: StatusCode, text: String },
}

/// How agents are asked.
#[derive(Clone)]
pub struct Asker {
    tls: TlsConnector,
    server_name: ServerName<'static>,
    authorization: Arc<str>,
}

impl Asker {
    /// `server_name`: in the certificates of the agents. `token`: of the audience [`super::AUDIENCE`].
    pub fn new(tls: ClientConfig, server_name: ServerName<'static>, token: &str) -> Self {
        Self { tls: Arc::new(tls).into(), server_name, authorization: format!("Bearer {token}").into() }
    }

    /// Asks the agent at `address` for `path`; the answer has at most `most` bytes.
    pub async fn ask(&self, address: SocketAddr, path: &str, limit: Duration, most: usize) -> Result<Bytes, AskError> {
        let asked = timeout(limit, self.converse(address, path, most)).await;
        asked.unwrap_or(Err(AskError::Late { address, limit }))
    }

    async fn converse(&self, address: SocketAddr, path: &str, most: usize) -> Result<Bytes, AskError> {
        let broken = |error: String| AskError::Broken { address, error };
        let stream = TcpStream::connect(address).await.map_err(|error| AskError::Connect { address, error })?;
        let stream = self.tls.connect(self.server_name.clone(), stream).await;
        let stream = stream.map_err(|error| AskError::Tls { address, error })?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(error.to_string()))?;
        let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
        let request = Request::get(path)
            .header(HOST, super::SERVER_NAME)
            .header(AUTHORIZATION, &*self.authorization)
            .body(Empty::<Bytes>::new())
            .map_err(|error| broken(error.to_string()))?;
        let answer = sender.send_request(request).await.map_err(|error| broken(error.to_string()))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), most).collect().await;
        let body = body.map_err(|error| broken(error.to_string()))?.to_bytes();
        if status.is_success() {
            return Ok(body);
        }
        let text = String::from_utf8_lossy(&body).trim().chars().take(ERROR_CHARS_MAX).collect();
        Err(AskError::Refused { address, status, text })
    }
}
