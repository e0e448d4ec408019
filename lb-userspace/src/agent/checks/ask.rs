//! One check: a connection, and with HTTP one request and the first line of its answer. Bounded in time and in what is read.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::endpoint::Answer;
use lb_model::{Check, CheckMethod};

/// The longest first line of an answer that is read (RFC 9112 knows no bound; 32 bytes hold what is read).
const STATUS_LINE_MAX: usize = 512;

/// Statuses that are a success: what is there, or is elsewhere, as with Kubernetes' own probes.
const WELL: std::ops::RangeInclusive<u16> = 200..=399;

/// Why a check failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("no answer within {}", humantime::format_duration(*.0))]
    TimedOut(Duration),
    #[error("{0}")]
    Io(io::Error),
    #[error("status {found}, expected 200 to 399")]
    Status { found: u16 },
    #[error("its answer does not begin as HTTP/1 does")]
    NotHttp,
}

impl Failure {
    /// What it says of the endpoint.
    pub fn answer(&self) -> Answer {
        let Self::Io(error) = self else { return Answer::Failed };
        match error.raw_os_error() {
            // This node has run out of something.
            Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM | libc::EADDRNOTAVAIL | libc::EAGAIN) => {
                Answer::NotMade
            }
            _ => Answer::Failed,
        }
    }
}

/// Asks an endpoint.
pub async fn ask(target: SocketAddr, check: &Check) -> Result<(), Failure> {
    let asked = async {
        let stream = TcpStream::connect(target).await.map_err(Failure::Io)?;
        match &check.method {
            CheckMethod::Tcp => Ok(()),
            CheckMethod::Http { path } => get(stream, target, path).await,
        }
    };
    timeout(check.timeout, asked).await.unwrap_or(Err(Failure::TimedOut(check.timeout)))
}

async fn get(mut stream: TcpStream, target: SocketAddr, path: &str) -> Result<(), Failure> {
    let version = env!("CARGO_PKG_VERSION");
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {target}\r\nUser-Agent: ballast-check/{version}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.map_err(Failure::Io)?;
    let mut line = Vec::with_capacity(STATUS_LINE_MAX);
    let mut room = stream.take(STATUS_LINE_MAX as u64);
    while !line.contains(&b'\n') && room.read_buf(&mut line).await.map_err(Failure::Io)? > 0 {}
    match status(&line) {
        None => Err(Failure::NotHttp),
        Some(found) if WELL.contains(&found) => Ok(()),
        Some(found) => Err(Failure::Status { found }),
    }
}

/// The status of an answer's first line: `HTTP/1.1 204 No Content`.
fn status(line: &[u8]) -> Option<u16> {
    let rest = line.strip_prefix(b"HTTP/1.")?;
    let [b'0'..=b'9', b' ', code @ ..] = rest else { return None };
    let (digits, after) = code.split_at_checked(3)?;
    if !matches!(after.first(), None | Some(b' ' | b'\r' | b'\n')) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn check(method: CheckMethod) -> Check {
        let (interval, timeout) = (Duration::from_secs(5), Duration::from_secs(5));
        Check { method, port: None, interval, timeout, failures: 1, successes: 1 }
    }

    fn http() -> Check {
        check(CheckMethod::Http { path: "/ready?now".into() })
    }

    /// A server that gives this answer to its first client; what it was asked.
    async fn serve(answer: &'static [u8]) -> (SocketAddr, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") && stream.read_buf(&mut request).await.expect("readable") > 0 {}
            // Who asked may have gone away.
            let _ = stream.write_all(answer).await;
            String::from_utf8(request).expect("text")
        });
        (address, served)
    }

    #[tokio::test]
    async fn an_answer_with_a_good_status_is_a_success() {
        for answer in [&b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"[..], b"HTTP/1.0 302\r\n", b"HTTP/1.1 399 x\n"] {
            let (address, served) = serve(answer).await;
            ask(address, &http()).await.expect("well");
            let request = served.await.expect("served");
            assert!(request.starts_with("GET /ready?now HTTP/1.1\r\nHost: 127.0.0.1:"), "{request}");
        }
    }

    #[tokio::test]
    async fn other_answers_are_failures_that_say_why() {
        for (answer, expected) in [
            (&b"HTTP/1.1 500 Internal Server Error\r\n\r\n"[..], "status 500"),
            (b"HTTP/1.1 404 Not Found\r\n\r\n", "status 404"),
            (b"HTTP/1.1 199 x\r\n\r\n", "status 199"),
            (b"SSH-2.0-OpenSSH_9\r\n", "does not begin as HTTP"),
            (b"", "does not begin as HTTP"),
            (b"HTTP/1.1 2000\r\n", "does not begin as HTTP"),
            (b"HTTP/1.1 +20\r\n", "does not begin as HTTP"),
        ] {
            let (address, _served) = serve(answer).await;
            let error = ask(address, &http()).await.expect_err("bad");
            assert!(error.to_string().contains(expected), "{error}");
            assert_eq!(error.answer(), Answer::Failed);
        }
    }

    #[tokio::test]
    async fn no_more_than_a_line_is_read_however_much_comes() {
        static MUCH: [u8; 1 << 20] = [b'x'; 1 << 20];
        let (address, _served) = serve(&MUCH).await;
        assert!(matches!(ask(address, &http()).await, Err(Failure::NotHttp)));
    }

    #[tokio::test]
    async fn a_port_that_accepts_is_enough_for_tcp_and_one_that_refuses_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        ask(address, &check(CheckMethod::Tcp)).await.expect("accepted");
        // Bound, so that nobody else takes the port, and listening to nobody.
        let deaf = tokio::net::TcpSocket::new_v4().expect("a socket");
        deaf.bind("127.0.0.1:0".parse().expect("valid")).expect("a port");
        let address = deaf.local_addr().expect("bound");
        let error = ask(address, &check(CheckMethod::Tcp)).await.expect_err("nobody listens");
        assert!(matches!(&error, Failure::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused), "{error}");
    }

    #[tokio::test]
    async fn silence_fails_after_the_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let quick = Check { timeout: Duration::from_millis(50), ..http() };
        let error = ask(address, &quick).await.expect_err("silent");
        assert_eq!(error.to_string(), "no answer within 50ms");
    }

    #[test]
    fn want_of_something_on_this_node_says_nothing_of_the_endpoint() {
        let answer = |errno| Failure::Io(io::Error::from_raw_os_error(errno)).answer();
        assert_eq!([libc::EMFILE, libc::EADDRNOTAVAIL].map(answer), [Answer::NotMade; 2]);
        assert_eq!([libc::ECONNREFUSED, libc::EHOSTUNREACH, libc::ENETUNREACH].map(answer), [Answer::Failed; 3]);
    }
}
