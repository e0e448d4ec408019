//! The source `kube`: Services and `EndpointSlices` of a Kubernetes API, by watches with bookmarks.

mod follower;
mod held;
mod reader;

use std::{path::PathBuf, pin::pin, time::Duration};

use futures::{Stream, StreamExt};
use k8s_openapi::api::{core::v1 as core, discovery::v1 as discovery};
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use self::held::{Held, Message};
use super::{
    Source, SourceError, SourceStatus,
    convert::{HEADLESS_LABEL, PROXY_NAME_LABEL},
};

/// Where a pod finds its own credentials.
const POD_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// How long a connection to the API may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Defaults of [`KubeSettings`].
pub const SILENCE: Duration = Duration::from_secs(30);
pub const COMPARE_INTERVAL: Duration = Duration::from_mins(5);
/// How much news at most goes into one snapshot.
const MESSAGES_MAX: usize = 4096;

/// Where the API is, and who we are there.
#[derive(Clone, Debug)]
pub struct KubeSettings {
    /// A kubeconfig file; without one, the credentials of the pod that we run in.
    pub kubeconfig: Option<PathBuf>,
    /// URL of the API, instead of the one in the kubeconfig or the pod's environment: Ballast serves the latter's address, so
    /// it must not depend on it.
    pub api_server: Option<String>,
    /// The Node that we are; without it, the snapshots hold none.
    pub node_name: Option<String>,
    /// How long a watch may be silent before a probe, on average: each round is up to a quarter shorter or longer, so that not all
    /// nodes ask at once.
    pub silence: Duration,
    /// Mean time from one comparison with a complete list to the next, a fifth less or more; `None`: never.
    pub compare_interval: Option<Duration>,
    /// Tables exist already: an API without any object is then not believed at once.
    pub expects_objects: bool,
}

impl Default for KubeSettings {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            api_server: None,
            node_name: None,
            silence: SILENCE,
            compare_interval: Some(COMPARE_INTERVAL),
            expects_objects: false,
        }
    }
}

/// Follows the API until `stop` is cancelled. An API that cannot be reached is no error here but a status: it is tried again.
pub async fn spawn(settings: KubeSettings, stop: CancellationToken) -> Result<Source, SourceError> {
    let config = config(&settings).await?;
    let origin = config.cluster_url.to_string();
    let client = Client::try_from(config).map_err(access)?;
    Ok(follow(origin, messages(&client), stop))
}

/// News of both resources.
fn messages(client: &Client) -> impl Stream<Item = Message> + Send + 'static {
    // The API server leaves out what no proxy or another one serves, as for kube-proxy.
    let selector = format!("!{HEADLESS_LABEL},!{PROXY_NAME_LABEL}");
    let services = reader::read(Api::<core::Service>::all(client.clone()), selector.clone());
    let slices = reader::read(Api::<discovery::EndpointSlice>::all(client.clone()), selector);
    futures::stream::select(
        services.map(|news| Message::Service(Box::new(news))),
        slices.map(|news| Message::Slice(Box::new(news))),
    )
}

async fn config(settings: &KubeSettings) -> Result<Config, SourceError> {
    let mut config = if let Some(path) = &settings.kubeconfig {
        let read = Kubeconfig::read_from(path).map_err(access)?;
        Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.map_err(access)?
    } else if std::path::Path::new(POD_TOKEN).exists() {
        // The address comes from the flag below, else from the environment.
        if settings.api_server.is_some() { Config::incluster_dns() } else { Config::incluster() }.map_err(access)?
    } else if let Some(url) = &settings.api_server {
        Config::new(parse_url(url)?)
    } else {
        let reason = format!("no kubeconfig is given, and there is no {POD_TOKEN}");
        return Err(SourceError::ApiAccess { reason });
    };
    if let Some(url) = &settings.api_server {
        config.cluster_url = parse_url(url)?;
    }
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    Ok(config)
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

/// An error with its causes.
fn reason(error: &dyn std::error::Error) -> String {
    let mut reason = error.to_string();
    let mut cause = error.source();
    while let Some(deeper) = cause {
        let text = deeper.to_string();
        // Many errors already print their cause.
        if !reason.contains(&text) {
            reason = format!("{reason}: {text}");
        }
        cause = deeper.source();
    }
    reason
}

/// Turns news of both resources into snapshots and a status, until `stop`.
fn follow(origin: String, messages: impl Stream<Item = Message> + Send + 'static, stop: CancellationToken) -> Source {
    let (snapshots_to, snapshots) = watch::channel(None);
    let (status_to, status) = watch::channel(SourceStatus { kind: "kube", origin, ..SourceStatus::default() });
    let task = tokio::spawn(async move {
        let mut chunks = pin!(messages.ready_chunks(MESSAGES_MAX));
        let mut held = Held::new();
        loop {
            let chunk = tokio::select! {
                () = stop.cancelled() => return,
                chunk = chunks.next() => chunk,
            };
            let Some(chunk) = chunk else { return };
            for message in chunk {
                held.take(message, Instant::now());
            }
            held.publish(&snapshots_to, &status_to);
        }
    });
    Source { snapshots, status, task }
}

#[cfg(test)]
#[path = "kube_tests.rs"]
mod tests;
