//! Which address a request goes to, and with whose credentials.

use std::{
    collections::BTreeSet,
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use axum::{body::Body, extract::ConnectInfo, response::Response};
use futures::{StreamExt as _, channel::mpsc};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::kube::spawn;

/// What came to a server: the end of the connection, the query, the `Authorization`.
type ReceivedRequest = (SocketAddr, String, String);

/// A server that answers with this status, or else lists with two pages and watches without end.
fn server(status: Option<u16>) -> (String, mpsc::UnboundedReceiver<ReceivedRequest>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let (to, asked) = mpsc::unbounded();
    let handler = move |ConnectInfo(peer): ConnectInfo<SocketAddr>, request: axum::extract::Request| async move {
        // An API without service CIDRs, which are asked for beside what is counted.
        if request.uri().path().ends_with("/servicecidrs") {
            return Response::builder().status(404).body(Body::empty()).unwrap();
        }
        let query = request.uri().query().unwrap_or_default().to_owned();
        let header = request.headers().get(http::header::AUTHORIZATION);
        let authorization = header.map(|header| header.to_str().unwrap().to_owned()).unwrap_or_default();
        to.unbounded_send((peer, query.clone(), authorization)).ok();
        if let Some(status) = status {
            return Response::builder().status(status).body(Body::empty()).unwrap();
        }
        if query.contains("watch=true") {
            return Response::new(Body::from_stream(futures::stream::pending::<Result<String, std::io::Error>>()));
        }
        let more = if query.contains("continue=") { "" } else { "more" };
        let list = json!({"kind": "List", "metadata": {"resourceVersion": "1", "continue": more}, "items": []});
        Response::new(Body::from(list.to_string()))
    };
    let router = axum::Router::new().fallback(handler).into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, asked)
}

#[test]
fn no_password_is_shown() {
    let shown = |url: &str| shown(&url.parse().expect("a URL"));
    assert_eq!(shown("https://user:secret@192.0.2.1:6443/"), "https://192.0.2.1:6443/");
    assert_eq!(shown("https://[2001:db8::1]:6443/"), "https://[2001:db8::1]:6443/");
}

#[tokio::test]
async fn the_pages_of_a_list_share_a_connection_that_nothing_else_uses() {
    let (url, mut asked) = server(None);
    let stop = CancellationToken::new();
    let settings =
        KubeSettings { api_servers: vec![url], silence: Duration::from_millis(50), ..KubeSettings::default() };
    let _source = spawn(settings, stop.clone()).await.unwrap();
    let (mut lists, mut others) = (Vec::new(), Vec::new());
    // Two lists of two pages, two watches, two probes.
    for _ in 0..8 {
        let (peer, query, _) = asked.next().await.unwrap();
        if query.contains("watch=true") { others.push(peer) } else { lists.push(peer) }
    }
    assert_eq!((lists.len(), others.len()), (4, 4));
    let all: BTreeSet<_> = lists.iter().chain(&others).collect();
    assert_eq!(all.len(), 6, "one for each list, watch and probe: {lists:?} {others:?}");
    stop.cancel();
}

#[tokio::test]
async fn credentials_and_address_are_read_again_when_their_files_change() {
    let ((one, mut first), (two, mut second)) = (server(None), server(None));
    let folder = tempfile::tempdir().unwrap();
    let (kubeconfig, token) = (folder.path().join("config"), folder.path().join("token"));
    let write = |url: &str, text: &str| {
        fs::write(&token, text).unwrap();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "c", "user": {"tokenFile": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        });
        fs::write(&kubeconfig, config.to_string()).unwrap();
    };
    write(&one, "t1");
    let settings = KubeSettings { kubeconfig: Some(kubeconfig.clone()), ..KubeSettings::default() };
    let clients = ApiClients::find(&settings).await.unwrap();
    let ask = async || {
        let request = http::Request::get("/api").body(kube::client::Body::empty()).unwrap();
        clients.client().send(request).await.unwrap().status().as_u16()
    };
    assert_eq!((ask().await, first.next().await.unwrap().2), (200, "Bearer t1".to_owned()));
    write(&one, "t2");
    assert_eq!((ask().await, first.next().await.unwrap().2), (200, "Bearer t2".to_owned()));
    // Half a file changes nothing.
    fs::write(&kubeconfig, "{").unwrap();
    assert_eq!((ask().await, first.next().await.unwrap().2), (200, "Bearer t2".to_owned()));
    write(&two, "t3");
    assert_eq!((ask().await, second.next().await.unwrap().2), (200, "Bearer t3".to_owned()));
}

/// The files are being written while the agent starts.
#[tokio::test]
async fn a_source_and_its_client_read_the_kubeconfig_once() {
    let (url, mut asked) = server(None);
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("config");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}], "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    });
    fs::write(&kubeconfig, config.to_string()).unwrap();
    let settings = KubeSettings { kubeconfig: Some(kubeconfig.clone()), ..KubeSettings::default() };
    let stop = CancellationToken::new();
    let source = spawn(settings, stop.clone()).await.unwrap();
    fs::write(&kubeconfig, "").unwrap();
    let request = http::Request::get("/events").body(kube::client::Body::empty()).unwrap();
    source.api.expect("a client").send(request).await.unwrap();
    assert!(asked.next().await.is_some());
    stop.cancel();
}

/// A rotated client certificate or key, CA or token: another content makes another client.
#[tokio::test]
async fn every_file_that_a_kubeconfig_names_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let named = ["ca", "certificate", "key", "token"].map(path);
    for file in &named {
        fs::write(file, "before").unwrap();
    }
    let [ca, certificate, key, token] = &named;
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1", "certificate-authority": ca}}],
        "users": [{"name": "c", "user": {"client-certificate": certificate, "client-key": key, "tokenFile": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    });
    fs::write(path("config"), text.to_string()).unwrap();
    let settings = KubeSettings { kubeconfig: Some(path("config")), ..KubeSettings::default() };
    let (_, files) = config(&settings).await.unwrap();
    let mut last = fingerprint(files.clone()).await;
    for file in named.iter().chain([&path("config")]) {
        fs::write(file, "after").unwrap();
        let now = fingerprint(files.clone()).await;
        assert_ne!(now, last, "{} changed", file.display());
        last = now;
    }
}

#[tokio::test]
async fn an_address_that_fails_is_followed_by_the_next_one() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ((busy, mut refused), (good, mut asked)) = (server(Some(503)), server(None));
    let api_servers = vec![format!("http://{closed}"), busy, good];
    let settings = KubeSettings { api_servers, ..KubeSettings::default() };
    let clients = ApiClients::find(&settings).await.unwrap();
    assert_eq!(clients.origin().matches("http://127.0.0.1:").count(), 3, "{}", clients.origin());
    let ask = async || {
        let request = http::Request::get("/api").body(Vec::new()).unwrap();
        super::super::ask::ask(&clients, None, request).await.map(drop)
    };
    assert_eq!(ask().await.unwrap_err().status, None);
    assert_eq!(ask().await.unwrap_err().status, Some(503));
    ask().await.unwrap();
    ask().await.unwrap();
    assert!(refused.try_recv().is_ok() && refused.try_recv().is_err());
    assert!(asked.next().await.is_some() && asked.next().await.is_some());
}

/// As `/metrics` shows them, without the buckets of histograms.
fn counted(requests: &ApiRequests) -> BTreeSet<String> {
    let page = crate::api_requests::encode(requests);
    let is_counted = |line: &&str| {
        line.starts_with("rest_client_requests_total") || line.starts_with("rest_client_request_duration_seconds_count")
    };
    page.lines().filter(is_counted).map(str::to_owned).collect()
}

#[tokio::test]
async fn requests_are_counted_by_address_and_code_and_timed_until_they_are_read() {
    let ((busy, _refused), (good, _asked)) = (server(Some(503)), server(None));
    let hosts = [&busy, &good].map(|url| url.trim_start_matches("http://").to_owned());
    let settings = KubeSettings { api_servers: vec![busy, good], ..KubeSettings::default() };
    let clients = ApiClients::find(&settings).await.unwrap();
    let ask = async |path: &str| {
        let request = http::Request::get(path).body(Vec::new()).unwrap();
        super::super::ask::ask(&clients, None, request).await
    };
    ask("/api/v1/services").await.unwrap_err();
    let (list, watch) = (ask("/api/v1/services").await.unwrap(), ask("/api/v1/services?watch=true").await.unwrap());
    // A client of Events takes the same way.
    let event = http::Request::post("/events").body(kube::client::Body::empty()).unwrap();
    drop(clients.client().send(event).await.unwrap());
    let [busy, good] = hosts;
    let requests = |code: u16, method: &str, host: &str, count: u32| {
        format!("rest_client_requests_total{{code=\"{code}\",method=\"{method}\",host=\"{host}\"}} {count}")
    };
    let durations = |verb: &str, host: &str| {
        format!("rest_client_request_duration_seconds_count{{verb=\"{verb}\",host=\"{host}\"}} 1")
    };
    let before = [
        requests(503, "GET", &busy, 1),
        requests(200, "GET", &good, 2),
        requests(200, "POST", &good, 1),
        durations("GET", &busy),
        durations("POST", &good),
    ];
    assert_eq!(counted(clients.requests()), BTreeSet::from(before.clone()), "the list is not read yet");
    drop((list, watch));
    let after = before.into_iter().chain([durations("GET", &good)]).collect();
    assert_eq!(counted(clients.requests()), after);
}

#[tokio::test]
async fn a_request_without_an_answer_is_counted_as_an_error() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let settings = KubeSettings { api_servers: vec![format!("http://{closed}")], ..KubeSettings::default() };
    let source = spawn(settings, CancellationToken::new()).await.unwrap();
    let request = http::Request::get("/api").body(kube::client::Body::empty()).unwrap();
    source.api.unwrap().send(request).await.unwrap_err();
    let counted = counted(&source.requests);
    let error = format!("rest_client_requests_total{{code=\"<error>\",method=\"GET\",host=\"{closed}\"}}");
    assert!(counted.iter().any(|line| line.starts_with(&error)), "{counted:?}");
    source.task.abort();
}

/// Accepted by the kernel, and never answered.
#[tokio::test(start_paused = true)]
async fn an_address_that_gives_no_answer_is_followed_by_the_next_one() {
    let client = Client::new(tower::service_fn(|_| std::future::pending::<Result<Response, std::io::Error>>()), "x");
    let clients = ApiClients::fixed(client.clone());
    let other: MakeClient = Box::new(move |_| client.clone());
    let mut addresses: Vec<(http::Uri, MakeClient)> = vec![(http::Uri::from_static("http://b"), other)];
    let first = clients.choose(0).await.client;
    addresses.insert(0, (http::Uri::from_static("http://a"), Box::new(move |_| first.clone())));
    clients.state().prepared = Arc::new(Prepared { files: Vec::new(), addresses });
    let give_up = async |after: Duration| {
        let request = http::Request::get("/api").body(Vec::new()).unwrap();
        tokio::time::timeout(after, super::super::ask::ask(&clients, None, request)).await.unwrap_err();
        clients.state().at
    };
    assert_eq!(give_up(Duration::from_secs(1)).await, 0, "it was left alone early");
    assert_eq!(give_up(ANSWER_LIMIT).await, 1);
    assert_eq!(give_up(ANSWER_LIMIT).await, 0);
}
