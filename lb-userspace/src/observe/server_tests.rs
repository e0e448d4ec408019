//! Clients that hold connections and say nothing, or half of something, do not keep others from being answered.

use axum::routing::get;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

const LONG: Patience = Patience { header: Duration::from_hours(1), answer: Duration::from_hours(1) };
/// Far more than an answer takes on a busy machine, and far less than [`LONG`].
const BOUND: Duration = Duration::from_secs(20);
const HALF: &[u8] = b"GET / HTTP/1.1\r\nHost: no";
const WHOLE: &[u8] = b"GET / HTTP/1.1\r\nHost: node\r\n\r\n";

struct Served {
    address: SocketAddr,
    admission: Admission,
    _task: tokio_util::task::AbortOnDropHandle<()>,
}

async fn served(router: Router, most: usize, patience: Patience) -> Served {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let admission = Admission::new(most);
    let task = tokio::spawn(serve(listener, router, admission.clone(), patience));
    Served { address, admission, _task: tokio_util::task::AbortOnDropHandle::new(task) }
}

fn well() -> Router {
    Router::new().route("/", get(async || "well"))
}

async fn send(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("listening");
    stream.write_all(bytes).await.expect("open");
    stream
}

/// All that comes until the connection ends, by an end or a reset.
async fn rest(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    let read = tokio::time::timeout(BOUND, stream.read_to_end(&mut text)).await.expect("the connection ends");
    match read {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
    String::from_utf8(text).expect("text")
}

async fn is_answered(address: SocketAddr) {
    let text = rest(send(address, WHOLE).await).await;
    assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("well"), "{text:?}");
}

#[tokio::test]
async fn half_sent_requests_hold_up_no_probe_and_no_more_than_their_share() {
    let served = served(well(), 16, LONG).await;
    let mut loris = Vec::new();
    for _ in 0..40 {
        loris.push(send(served.address, HALF).await);
        is_answered(served.address).await;
        assert!(served.admission.count() <= 4, "a quarter is one source's share");
    }
    // The oldest ones were closed, the last ones may go on.
    assert_eq!(rest(loris.remove(0)).await, "");
    let mut last = loris.pop().expect("many");
    last.write_all(b"de\r\n\r\n").await.expect("still open");
    assert!(rest(last).await.ends_with("well"));
}

#[tokio::test]
async fn a_header_that_does_not_end_ends_the_connection() {
    let patience = Patience { header: Duration::from_millis(500), ..LONG };
    let served = served(well(), 16, patience).await;
    for begun in [&b""[..], HALF] {
        let text = rest(send(served.address, begun).await).await;
        assert!(!text.contains("200"), "{text}");
    }
    let endless = [HALF, &vec![b'x'; 2 * HEADER_BYTES_MAX]].concat();
    let mut stream = TcpStream::connect(served.address).await.expect("listening");
    // It may be refused before all of it is sent.
    let _ = stream.write_all(&endless).await;
    assert!(!rest(stream).await.contains("200"));
    is_answered(served.address).await;
}

#[tokio::test]
async fn an_answer_that_is_not_read_ends_the_connection() {
    let page = "x".repeat(64 << 20);
    let router = well().route("/page", get(async move || page.clone()));
    let patience = Patience { answer: Duration::from_secs(1), ..LONG };
    let served = served(router, 16, patience).await;
    let mut stalled = send(served.address, b"GET /page HTTP/1.1\r\nHost: node\r\n\r\n").await;
    stalled.read_u8().await.expect("the answer begins");
    let gone = async {
        while served.admission.count() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(BOUND, gone).await.expect("its place is free");
    assert!(rest(stalled).await.len() < 64 << 20, "all of it came");
    is_answered(served.address).await;
}

#[tokio::test]
async fn a_connection_serves_one_request() {
    let served = served(well(), 16, LONG).await;
    let text = rest(send(served.address, &[WHOLE, WHOLE].concat()).await).await.to_lowercase();
    assert_eq!(text.matches("http/1.1 200").count(), 1, "{text}");
    assert!(text.contains("connection: close"), "{text}");
}

#[tokio::test]
async fn connections_end_with_their_server() {
    let served = served(well(), 16, LONG).await;
    let waiting = send(served.address, HALF).await;
    while served.admission.count() == 0 {
        tokio::task::yield_now().await;
    }
    drop(served);
    assert_eq!(rest(waiting).await, "");
}
