//! The listener over TLS on the loopback device, as a client of another node meets it.

use std::net::SocketAddr;

use rcgen::{CertificateParams, CertifiedIssuer, KeyPair};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::rustls::pki_types::ServerName;

use super::*;
use crate::fleet::answer::CommandOutput;
use crate::fleet::client::{ANSWER_BYTES_MAX, AskError, Asker};
use crate::fleet::test_api::{TestApi, token};
use crate::fleet::tls::CertificateFiles;
use crate::fleet::{AUDIENCE, SERVER_NAME};
use crate::observe::metrics::Metrics;
use lb_model::{Mark, ObjectName};
use lb_source::api_requests::ApiRequests;

const LIMIT: Duration = Duration::from_secs(10);

/// A CA, and a certificate of it for the agents.
pub struct TestCertificate {
    pub ca: String,
    pub files: CertificateFiles,
    _folder: TempDir,
}

impl TestCertificate {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a CA");
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        let certificate = params.signed_by(&key, &ca).expect("a certificate");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let files = CertificateFiles { certificate: folder.path().join("tls.crt"), key: folder.path().join("tls.key") };
        std::fs::write(&files.certificate, certificate.pem()).expect("writable");
        std::fs::write(&files.key, key.serialize_pem()).expect("writable");
        Self { ca: ca.pem(), files, _folder: folder }
    }

    pub fn server(&self) -> watch::Receiver<Option<Arc<ServerConfig>>> {
        watch::channel(Some(Arc::new(tls::server(&self.files).expect("good files")))).1
    }

    pub fn asker(&self, token: &str) -> Asker {
        let name = ServerName::try_from(SERVER_NAME).expect("a name");
        Asker::new(tls::client(self.ca.as_bytes()).expect("a CA"), name, token)
    }
}

fn view() -> View {
    let mut accepted = Accepted::default();
    for service in ["web", "db"] {
        let name = ObjectName::new("demo", service);
        accepted.services.add(&name, Mark::of("Service", &name, "u", "1"));
    }
    View { status: NodeStatus { node_name: "n1".to_owned(), synced: true, ..NodeStatus::default() }, accepted }
}

/// A listener whose commands are run by `sh`, which finds none of them.
async fn listener(
    api: &TestApi,
    certificate: &TestCertificate,
) -> (SocketAddr, tokio_util::task::AbortOnDropHandle<()>) {
    counted_listener(api, certificate, &FleetMetrics::default()).await
}

async fn counted_listener(
    api: &TestApi,
    certificate: &TestCertificate,
    metrics: &FleetMetrics,
) -> (SocketAddr, tokio_util::task::AbortOnDropHandle<()>) {
    let commands = Commands::new("/bin/sh".into(), Vec::new(), Vec::new());
    let answers = Answers::new(view, Reviewer::new(api.client()), commands, metrics.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let served = tokio::spawn(serve(listener, answers, certificate.server()));
    (address, tokio_util::task::AbortOnDropHandle::new(served))
}

fn status_of(error: &AskError) -> u16 {
    match error {
        AskError::Refused { status, .. } => status.as_u16(),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn the_owner_of_a_right_gets_the_status_and_the_services_of_a_bucket() {
    let (api, certificate) = (TestApi::default(), TestCertificate::new(SERVER_NAME));
    let (address, _served) = listener(&api, &certificate).await;
    let asker = certificate.asker(&token("viewer", AUDIENCE));
    let body = asker.ask(address, STATUS_PATH, LIMIT, ANSWER_BYTES_MAX).await.expect("an answer");
    let status: NodeStatus = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(status.node_name, "n1");
    let web = ObjectName::new("demo", "web");
    let path = format!("{STATUS_PATH}?buckets={}", bucket(&web));
    let body = asker.ask(address, &path, LIMIT, ANSWER_BYTES_MAX).await.expect("an answer");
    let services: BucketServices = serde_json::from_slice(&body).expect("JSON");
    let hash = view().accepted.hash_of(&web).map(hex);
    assert_eq!(services.services.get("demo/web"), hash.as_ref());
    let bad = asker.ask(address, "/fleet/status?buckets=64", LIMIT, ANSWER_BYTES_MAX).await.expect_err("no bucket");
    assert_eq!(status_of(&bad), 400);
    assert_eq!((api.token_reviews(), api.access_reviews()), (1, 1), "one review for all");
}

#[tokio::test]
async fn nobody_else_gets_an_answer() {
    let (api, certificate) = (TestApi::default(), TestCertificate::new(SERVER_NAME));
    let (address, _served) = listener(&api, &certificate).await;
    let ask = async |user: &str, audience: &str, path: &str| {
        let asker = certificate.asker(&token(user, audience));
        let error = asker.ask(address, path, LIMIT, ANSWER_BYTES_MAX).await.expect_err("refused");
        status_of(&error)
    };
    assert_eq!(ask("unknown-user", AUDIENCE, STATUS_PATH).await, 401);
    assert_eq!(ask("operator", "other", STATUS_PATH).await, 401);
    for reading in Reading::ALL {
        assert_eq!(ask("viewer", AUDIENCE, reading.path()).await, 403);
    }
    assert_eq!(ask("operator", AUDIENCE, "/metrics").await, 404, "there is nothing else");
    assert_eq!(ask("operator", AUDIENCE, "/fleet/sysdump?arg=/etc/passwd").await, 400);
    assert_eq!(ask("operator", AUDIENCE, "/fleet/get?arg=services&arg=--bpffs%3D/x").await, 400);
    api.fail(true);
    assert_eq!(ask("operator", AUDIENCE, "/fleet/explain").await, 503, "no review, no answer");
}

#[tokio::test]
async fn every_answer_is_counted() {
    let (api, certificate) = (TestApi::default(), TestCertificate::new(SERVER_NAME));
    let metrics = Metrics::new(&ApiRequests::default(), Vec::new);
    let (address, _served) = counted_listener(&api, &certificate, metrics.fleet()).await;
    let ask = async |user: &str, path: &str| {
        let asker = certificate.asker(&token(user, AUDIENCE));
        asker.ask(address, path, LIMIT, ANSWER_BYTES_MAX).await.is_ok()
    };
    assert!(!metrics.encode().contains("ballast_fleet_requests_total{"), "no series without a request");
    assert!(ask("viewer", STATUS_PATH).await && ask("viewer", STATUS_PATH).await);
    assert!(!ask("unknown-user", STATUS_PATH).await && !ask("viewer", "/fleet/sysdump").await);
    assert!(!ask("operator", "/fleet/status?buckets=64").await && !ask("operator", "/metrics").await);
    api.fail(true);
    assert!(!ask("operator", "/fleet/explain").await);
    let text = metrics.encode();
    for line in [
        "ballast_fleet_requests_total{answer=\"accepted\"} 2",
        "ballast_fleet_requests_total{answer=\"unauthenticated\"} 1",
        "ballast_fleet_requests_total{answer=\"forbidden\"} 1",
        "ballast_fleet_requests_total{answer=\"refused\"} 2",
        "ballast_fleet_requests_total{answer=\"failed\"} 1",
        "ballast_fleet_review_failures_total 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn a_command_is_run_with_its_arguments() {
    let (api, certificate) = (TestApi::default(), TestCertificate::new(SERVER_NAME));
    let (address, _served) = listener(&api, &certificate).await;
    let asker = certificate.asker(&token("operator", AUDIENCE));
    let body = asker.ask(address, "/fleet/get?arg=services&arg=-A", LIMIT, ANSWER_BYTES_MAX).await.expect("an answer");
    let output: CommandOutput = serde_json::from_slice(&body).expect("JSON");
    // The shell finds no script of this name.
    assert!(output.exit_code != 0 && output.stderr.contains("get"), "{output:?}");
}

#[tokio::test]
async fn a_client_talks_only_to_a_server_with_the_name_and_a_certificate_of_the_ca() {
    let (api, certificate) = (TestApi::default(), TestCertificate::new(SERVER_NAME));
    let (address, _served) = listener(&api, &certificate).await;
    let wrong_name = TestCertificate::new("other-name");
    let (named, _served_too) = listener(&api, &wrong_name).await;
    for (trusted, target) in [(TestCertificate::new(SERVER_NAME), address), (wrong_name, named)] {
        let asker = trusted.asker(&token("viewer", AUDIENCE));
        let error = asker.ask(target, STATUS_PATH, LIMIT, ANSWER_BYTES_MAX).await.expect_err("not trusted");
        assert!(matches!(error, AskError::Tls { .. }), "{error}");
    }
    assert_eq!(api.requests(), 0, "no token is shown to such a server");
}

/// A client that speaks no TLS, or nothing, takes no place for long, and others are answered.
#[tokio::test]
async fn clients_that_do_not_finish_hold_up_nobody() {
    let (api, certificate) = (TestApi::default(), TestCertificate::new(SERVER_NAME));
    let (address, _served) = listener(&api, &certificate).await;
    let mut silent = Vec::new();
    for _ in 0..2 * CONNECTIONS_MAX {
        silent.push(tokio::net::TcpStream::connect(address).await.expect("listening"));
    }
    let mut plain = tokio::net::TcpStream::connect(address).await.expect("listening");
    plain.write_all(b"GET /fleet/status HTTP/1.1\r\nHost: n\r\n\r\n").await.expect("open");
    let mut text = Vec::new();
    // A TLS alert, or a reset.
    let _ = tokio::time::timeout(LIMIT, plain.read_to_end(&mut text)).await.expect("it is closed");
    assert!(!text.starts_with(b"HTTP"), "{text:?}");
    let asker = certificate.asker(&token("viewer", AUDIENCE));
    asker.ask(address, STATUS_PATH, LIMIT, ANSWER_BYTES_MAX).await.expect("an answer");
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_appears_later_is_used() {
    let (metrics, at) = (Metrics::new(&ApiRequests::default(), Vec::new), SocketAddr::from(([192, 0, 2, 1], 10246)));
    let counted = metrics.fleet().clone();
    let read = move || {
        metrics.encode().lines().find_map(|line| {
            line.strip_prefix("ballast_fleet_certificate_read{address=\"192.0.2.1:10246\"} ").map(str::to_owned)
        })
    };
    let certificate = TestCertificate::new(SERVER_NAME);
    let hidden = certificate.files.key.with_extension("hidden");
    std::fs::rename(&certificate.files.key, &hidden).expect("renamed");
    let (config, mut current) = watch::channel(None);
    let following = tokio::spawn(tls::follow(certificate.files.clone(), config, move |is_usable| {
        counted.certificate_read(at, is_usable);
    }));
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(current.borrow().is_none());
    assert_eq!(read().as_deref(), Some("0"));
    std::fs::rename(&hidden, &certificate.files.key).expect("renamed");
    current.changed().await.expect("it follows the files");
    assert!(current.borrow().is_some());
    assert_eq!(read().as_deref(), Some("1"));
    following.abort();
}
