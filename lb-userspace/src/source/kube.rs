//! The source `kube`: Services and `EndpointSlices` of a Kubernetes API, by watches with bookmarks.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc, time::Duration};

use futures::{Stream, StreamExt};
use k8s_openapi::api::{core::v1 as core, discovery::v1 as discovery};
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
    runtime::{
        WatchStreamExt,
        watcher::{self, DefaultBackoff, Event, watcher},
    },
};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Source, SourceError, SourceStatus,
    convert::{HEADLESS_LABEL, PROXY_NAME_LABEL, object_name},
    objects::{self, Objects},
};
use crate::model::{ObjectName, Service, Slice, Snapshot};

/// Where a pod finds its own credentials.
const POD_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// How long a connection to the API may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How many events at most go into one snapshot.
const EVENTS_MAX: usize = 4096;
/// What this source proves fresh, as named in its status.
const SERVICES: &str = "services";
const SLICES: &str = "endpointslices";

/// Where the API is, and who we are there.
#[derive(Clone, Debug, Default)]
pub struct KubeSettings {
    /// A kubeconfig file; without one, the credentials of the pod that we run in.
    pub kubeconfig: Option<PathBuf>,
    /// URL of the API, instead of the one in the kubeconfig or the pod's environment: Ballast serves the latter's address, so
    /// it must not depend on it.
    pub api_server: Option<String>,
}

/// Follows the API until `stop` is cancelled. An API that cannot be reached is no error here but a status: it is tried again.
pub async fn spawn(settings: KubeSettings, stop: CancellationToken) -> Result<Source, SourceError> {
    let config = config(&settings).await?;
    let origin = config.cluster_url.to_string();
    let client = Client::try_from(config).map_err(access)?;
    // The API server leaves out what no proxy or another one serves, as for kube-proxy.
    let selector = format!("!{HEADLESS_LABEL},!{PROXY_NAME_LABEL}");
    let watched = watcher::Config::default().labels(&selector);
    let services =
        watcher(Api::<core::Service>::all(client.clone()), watched.clone()).backoff(DefaultBackoff::default());
    let slices = watcher(Api::<discovery::EndpointSlice>::all(client), watched).backoff(DefaultBackoff::default());
    Ok(follow(origin, services, slices, stop))
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
    SourceError::ApiAccess { reason }
}

type Watched<K> = Result<Event<K>, watcher::Error>;

enum Message {
    Service(Box<Watched<core::Service>>),
    Slice(Box<Watched<discovery::EndpointSlice>>),
}

/// Turns two streams of events into snapshots; the streams never end.
fn follow(
    origin: String,
    services: impl Stream<Item = Watched<core::Service>> + Send + 'static,
    slices: impl Stream<Item = Watched<discovery::EndpointSlice>> + Send + 'static,
    stop: CancellationToken,
) -> Source {
    let (snapshots_to, snapshots) = watch::channel(None);
    let (status_to, status) = watch::channel(SourceStatus { kind: "kube", origin, ..SourceStatus::default() });
    let mut messages = futures::stream::select(
        services.map(|event| Message::Service(Box::new(event))).boxed(),
        slices.map(|event| Message::Slice(Box::new(event))).boxed(),
    )
    .ready_chunks(EVENTS_MAX);
    let task = tokio::spawn(async move {
        let mut held = Held::default();
        loop {
            let chunk = tokio::select! {
                () = stop.cancelled() => return,
                chunk = messages.next() => chunk,
            };
            let Some(chunk) = chunk else { return };
            for message in chunk {
                held.take(message);
            }
            held.publish(&snapshots_to, &status_to);
        }
    });
    Source { snapshots, status, task }
}

/// One resource: what is held, and a list that is under way.
#[derive(Debug)]
struct Resource<T> {
    objects: Objects<T>,
    /// Names seen in the list that is under way; at its end, what was not seen is gone.
    listing: BTreeSet<ObjectName>,
    listed: bool,
    error: Option<String>,
    proof: Option<Instant>,
}

impl<T> Default for Resource<T> {
    fn default() -> Self {
        let objects = Objects::default();
        Self { objects, listing: BTreeSet::new(), listed: false, error: None, proof: None }
    }
}

impl<T> Resource<T> {
    /// Takes one event; `put` converts and keeps the object. Returns whether the objects changed.
    fn take<K>(
        &mut self,
        event: Watched<K>,
        name: impl Fn(&K) -> ObjectName,
        put: impl Fn(&mut Objects<T>, &K),
    ) -> bool {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                let SourceError::ApiAccess { reason } = access(error) else { return false };
                tracing::warn!(source = "kube", "{reason}");
                self.error = Some(reason);
                return false;
            }
        };
        self.proof = Some(Instant::now());
        self.error = None;
        match event {
            Event::Apply(object) => put(&mut self.objects, &object),
            Event::Delete(object) => self.objects.remove(&name(&object)),
            Event::Init => {
                self.listing.clear();
                return false;
            }
            Event::InitApply(object) => {
                self.listing.insert(name(&object));
                put(&mut self.objects, &object);
                // What is new in a list is true at once, but there is nothing to tell before the list is complete.
                return false;
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listing);
                self.objects.retain(|name| listed.contains(name));
                self.listed = true;
            }
        }
        true
    }
}

#[derive(Default)]
struct Held {
    services: Resource<Service>,
    slices: Resource<Slice>,
    changed: bool,
    revision: u64,
}

impl Held {
    fn take(&mut self, message: Message) {
        self.changed |= match message {
            Message::Service(event) => {
                self.services.take(*event, |service| object_name(&service.metadata), Objects::put_service)
            }
            Message::Slice(event) => self.slices.take(*event, |slice| object_name(&slice.metadata), Objects::put_slice),
        };
    }

    fn publish(&mut self, snapshots: &watch::Sender<Option<Arc<Snapshot>>>, status: &watch::Sender<SourceStatus>) {
        let synced = self.services.listed && self.slices.listed;
        let snapshot = (synced && std::mem::take(&mut self.changed)).then(|| {
            self.revision += 1;
            objects::snapshot(&self.services.objects, &self.slices.objects, self.revision)
        });
        let published = snapshot.is_some();
        if let Some(snapshot) = snapshot {
            snapshots.send_replace(Some(Arc::new(snapshot)));
        }
        status.send_modify(|status| {
            status.synced = synced;
            status.revision = self.revision;
            let proofs = [(SERVICES, self.services.proof), (SLICES, self.slices.proof)];
            status.last_proof.extend(proofs.into_iter().filter_map(|(name, proof)| Some((name, proof?))));
            status.last_error = self.services.error.clone().or_else(|| self.slices.error.clone());
            if published {
                status.refusals = objects::refusals(&self.services.objects, &self.slices.objects);
            }
        });
    }
}

#[cfg(test)]
#[path = "kube_tests.rs"]
mod tests;
