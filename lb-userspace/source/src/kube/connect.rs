//! Clients of the API: whose credentials, which addresses, and connections that nothing else uses.
//!
//! The files that credentials come from are read again for each question: when one changed (a rotated CA, certificate, key or token,
//! another address), the question goes the new way. An open watch goes on as it is.

use std::{
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, ConfigExt as _},
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::time::Instant;
use tower::ServiceExt as _;

use super::{
    bounds::{ANSWER_LIMIT, KEEPALIVE, KEEPALIVE_INTERVAL, KEEPALIVE_RETRIES, UNACKNOWLEDGED_LIMIT},
    counted::Counted,
    reason::reason,
    settings::KubeSettings,
};
use crate::{SourceError, api_requests::ApiRequests};

/// Where a pod finds its own credentials.
const POD_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
const POD_CA: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";

/// Clients of all addresses of one API.
#[derive(Debug)]
pub struct ApiClients {
    settings: KubeSettings,
    requests: ApiRequests,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    prepared: Arc<Prepared>,
    /// Of the files, when they were read last.
    fingerprint: u64,
    /// The address that is asked, by its place in the list.
    at: usize,
}

/// What was made of the files.
struct Prepared {
    /// The files that were read.
    files: Vec<PathBuf>,
    /// The address, and what makes a client for it that keeps so many idle connections.
    addresses: Vec<(http::Uri, MakeClient)>,
}

type MakeClient = Box<dyn Fn(usize) -> Client + Send + Sync>;

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("files", &self.files).finish_non_exhaustive()
    }
}

/// A client of one address.
#[derive(Clone)]
pub struct ApiClient {
    pub client: Client,
    at: usize,
}

/// A question that is under way. Dropped without an answer after a long time, it counts as failed.
#[derive(Debug)]
pub struct Pending {
    clients: Arc<ApiClients>,
    at: usize,
    since: Instant,
    is_answered: bool,
}

impl ApiClients {
    pub async fn find(settings: &KubeSettings) -> Result<Arc<Self>, SourceError> {
        let (_, files) = config(settings).await?;
        // First the fingerprint: what changes meanwhile is read again for the first question.
        let fingerprint = fingerprint(files).await;
        let (config, files) = config(settings).await?;
        let requests = ApiRequests::default();
        let prepared = Arc::new(prepare(&config, files, settings, &requests)?);
        let state = Mutex::new(State { prepared, fingerprint, at: 0 });
        Ok(Arc::new(Self { settings: settings.clone(), requests, state }))
    }

    /// Always this client.
    #[cfg(test)]
    pub fn fixed(client: Client) -> Arc<Self> {
        let make: MakeClient = Box::new(move |_| client.clone());
        let prepared = Prepared { files: Vec::new(), addresses: vec![(http::Uri::from_static("http://test"), make)] };
        let state = State { prepared: Arc::new(prepared), fingerprint: 0, at: 0 };
        let requests = ApiRequests::default();
        Arc::new(Self { settings: KubeSettings::default(), requests, state: Mutex::new(state) })
    }

    /// The addresses, without the user and the password that may stand in them.
    pub fn origin(&self) -> String {
        let shown: Vec<String> = self.state().prepared.addresses.iter().map(|(url, _)| shown(url)).collect();
        shown.join(", ")
    }

    /// All requests by any of the clients.
    pub fn requests(&self) -> &ApiRequests {
        &self.requests
    }

    /// A client by the files as they are now. `idle`: so many connections are kept from one question to the next.
    pub async fn choose(&self, idle: usize) -> ApiClient {
        self.refresh().await;
        let state = self.state();
        let (at, addresses) = (state.at, &state.prepared.addresses);
        ApiClient { client: addresses[at].1(idle), at }
    }

    /// A client that chooses the address anew for each request.
    pub fn client(self: &Arc<Self>) -> Client {
        let clients = Arc::clone(self);
        let ask = move |request: http::Request<Body>| {
            let clients = Arc::clone(&clients);
            async move {
                let client = clients.choose(0).await;
                let pending = clients.pending(&client);
                let answer = client.client.send(request).await;
                pending.answered(answer.is_ok());
                answer
            }
        };
        Client::new(tower::service_fn(ask), "default")
    }

    pub fn pending(self: &Arc<Self>, client: &ApiClient) -> Pending {
        Pending { clients: Arc::clone(self), at: client.at, since: Instant::now(), is_answered: false }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn refresh(&self) {
        let files = self.state().prepared.files.clone();
        if files.is_empty() {
            return;
        }
        let now = fingerprint(files).await;
        if self.state().fingerprint == now {
            return;
        }
        let prepared = match config(&self.settings).await {
            Ok((config, files)) => prepare(&config, files, &self.settings, &self.requests),
            Err(error) => Err(error),
        };
        let mut state = self.state();
        // What cannot be read now is read again when it changes again.
        state.fingerprint = now;
        match prepared {
            Ok(prepared) => {
                tracing::info!(source = "kube", "the credentials or the address of the API changed");
                state.at = state.at.min(prepared.addresses.len() - 1);
                state.prepared = Arc::new(prepared);
            }
            Err(error) => {
                tracing::warn!(
                    source = "kube",
                    "credentials changed and cannot be read; the old ones are used: {error}"
                );
            }
        }
    }

    /// An address gave no answer, or that of a server that cannot: the next one is asked from now on.
    fn failed(&self, at: usize) {
        let mut state = self.state();
        let count = state.prepared.addresses.len();
        if state.at == at && count > 1 {
            state.at = (at + 1) % count;
            let next = shown(&state.prepared.addresses[state.at].0);
            tracing::info!(source = "kube", next, "the API server gives no answer; the next address is asked");
        }
    }
}

impl Pending {
    pub fn answered(mut self, is_good: bool) {
        self.is_answered = true;
        if !is_good {
            self.clients.failed(self.at);
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.is_answered && self.since.elapsed() >= ANSWER_LIMIT {
            self.clients.failed(self.at);
        }
    }
}

/// Where the API is and who we are there, and the files that say so.
async fn config(settings: &KubeSettings) -> Result<(Config, Vec<PathBuf>), SourceError> {
    if let Some(path) = &settings.kubeconfig {
        let read = Kubeconfig::read_from(path).map_err(access)?;
        let mut files = vec![path.clone()];
        let clusters = read.clusters.iter().filter_map(|named| named.cluster.as_ref());
        files.extend(clusters.filter_map(|cluster| cluster.certificate_authority.as_ref()).map(PathBuf::from));
        for user in read.auth_infos.iter().filter_map(|named| named.auth_info.as_ref()) {
            let named = [&user.client_certificate, &user.client_key, &user.token_file];
            files.extend(named.into_iter().flatten().map(PathBuf::from));
        }
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.map_err(access)?;
        return Ok((config, files));
    }
    if Path::new(POD_TOKEN).exists() {
        // The address comes from the flag, else from the environment.
        let config = if settings.api_servers.is_empty() { Config::incluster() } else { Config::incluster_dns() };
        return Ok((config.map_err(access)?, vec![POD_TOKEN.into(), POD_CA.into()]));
    }
    if let Some(url) = settings.api_servers.first() {
        return Ok((Config::new(parse_url(url)?), Vec::new()));
    }
    let reason = format!("no kubeconfig is given, and there is no {POD_TOKEN}");
    Err(SourceError::ApiAccess { reason })
}

/// A URL without the user and the password that may stand in it.
fn shown(url: &http::Uri) -> String {
    let host = url.authority().map_or("", |authority| authority.as_str().rsplit('@').next().unwrap_or_default());
    format!("{}://{host}{}", url.scheme_str().unwrap_or_default(), url.path())
}

/// Clients that open a TCP connection for each request (HTTP/1.1), so that no two calls ever share one that died. TLS sessions are
/// resumed where the server allows it.
fn prepare(
    config: &Config,
    files: Vec<PathBuf>,
    settings: &KubeSettings,
    requests: &ApiRequests,
) -> Result<Prepared, SourceError> {
    if let Some(proxy) = &config.proxy_url {
        let reason = format!("proxy {}: proxies are not supported", shown(proxy));
        return Err(SourceError::ApiAccess { reason });
    }
    let mut config = config.clone();
    config.tls_server_name = settings.tls_server_name.clone().or(config.tls_server_name);
    let mut urls: Vec<http::Uri> = settings.api_servers.iter().map(|url| parse_url(url)).collect::<Result<_, _>>()?;
    if urls.is_empty() {
        urls.push(config.cluster_url.clone());
    }
    let addresses: Result<_, SourceError> = urls.into_iter().map(|url| make_client(&config, url, requests)).collect();
    Ok(Prepared { files, addresses: addresses? })
}

fn make_client(
    config: &Config,
    url: http::Uri,
    requests: &ApiRequests,
) -> Result<(http::Uri, MakeClient), SourceError> {
    let mut config = config.clone();
    config.cluster_url.clone_from(&url);
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(ANSWER_LIMIT));
    connector.set_keepalive(Some(KEEPALIVE));
    connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    connector.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    connector.set_tcp_user_timeout(Some(UNACKNOWLEDGED_LIMIT));
    let connector = config.rustls_https_connector_with_connector(connector).map_err(access)?;
    let (headers, auth) = (config.extra_headers_layer().map_err(access)?, config.auth_layer().map_err(access)?);
    let (base, namespace) = (config.base_uri_layer(), config.default_namespace);
    let counted = Counted::new(requests.clone(), &url);
    let make = move |idle: usize| {
        let http = HttpClient::builder(TokioExecutor::new()).pool_max_idle_per_host(idle).build(connector.clone());
        let http = http.map_err(tower::BoxError::from);
        let builder = ClientBuilder::new(http, namespace.clone()).with_layer(&headers);
        match &auth {
            Some(auth) => builder.with_layer(auth).with_layer(&base).with_layer(&counted).build(),
            None => builder.with_layer(&base).with_layer(&counted).build(),
        }
    };
    Ok((url, Box::new(make)))
}

/// Of what is in the files; one that cannot be read has a content of its own.
async fn fingerprint(files: Vec<PathBuf>) -> u64 {
    let read = move || {
        let mut hash = DefaultHasher::new();
        for path in &files {
            (path, fs::read(path).ok()).hash(&mut hash);
        }
        hash.finish()
    };
    // It is a runtime that ends that runs no more of these.
    tokio::task::spawn_blocking(read).await.unwrap_or_default()
}

fn parse_url(url: &str) -> Result<http::Uri, SourceError> {
    let parsed: http::Uri =
        url.parse().map_err(|error| SourceError::ApiAccess { reason: format!("--api-server {url}: {error}") })?;
    if parsed.scheme().is_none() || parsed.authority().is_none() {
        let reason = format!("--api-server {url}: expected a URL as https://10.0.0.1:6443");
        return Err(SourceError::ApiAccess { reason });
    }
    Ok(parsed)
}

fn access(error: impl std::error::Error) -> SourceError {
    SourceError::ApiAccess { reason: reason(&error) }
}

#[cfg(test)]
#[path = "connect_tests.rs"]
mod tests;
