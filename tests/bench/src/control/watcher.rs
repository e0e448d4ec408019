//! A watch of the API that does nothing but note the time: what no agent can be faster than.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use lb_tests::topology::NetNs;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use super::objects::NAMESPACE;

/// Pause before a watch that broke is begun again.
const PAUSE: Duration = Duration::from_secs(1);

/// When an object of a kind was last received.
type Seen = Arc<Mutex<BTreeMap<(&'static str, String), Instant>>>;

/// Watches services and slices until it is dropped.
#[derive(Debug)]
pub struct Watcher {
    seen: Seen,
    /// Dropping it ends the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    pub fn start(netns: &NetNs, kubeconfig: &Path) -> Result<Self> {
        let read = Kubeconfig::read_from(kubeconfig)?;
        let seen = Seen::default();
        let noted = Arc::clone(&seen);
        let (stop, stopped) = oneshot::channel::<()>();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let thread = netns.spawn(move || {
            runtime.block_on(async {
                let Ok(config) = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await else {
                    return;
                };
                let Ok(client) = Client::try_from(config) else { return };
                tokio::select! {
                    () = follow::<Service>(client.clone(), "service", &noted) => {}
                    () = follow::<EndpointSlice>(client, "slice", &noted) => {}
                    _ = stopped => {}
                }
            });
        });
        Ok(Self { seen, stop: Some(stop), thread: Some(thread) })
    }

    /// When an object was last received.
    pub fn last(&self, kind: &'static str, name: &str) -> Option<Instant> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).get(&(kind, name.to_owned())).copied()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

/// What a client of the API asks of a kind.
trait Watched: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned {}
impl Watched for Service {}
impl Watched for EndpointSlice {}

async fn follow<K>(client: Client, kind: &'static str, seen: &Seen)
where
    K: Watched + kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    let api = Api::<K>::namespaced(client, NAMESPACE);
    loop {
        // How it ended does not matter: it is begun again, and a change in between is one that no time is known of.
        watch(&api, kind, seen).await.ok();
        tokio::time::sleep(PAUSE).await;
    }
}

async fn watch<K>(api: &Api<K>, kind: &'static str, seen: &Seen) -> kube::Result<()>
where
    K: Watched,
{
    let version = api.list_metadata(&ListParams::default().limit(1)).await?.metadata.resource_version;
    let parameters = WatchParams::default().timeout(290);
    let mut events = api.watch_metadata(&parameters, &version.unwrap_or_default()).await?.boxed();
    while let Some(event) = events.try_next().await? {
        let now = Instant::now();
        if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event {
            let name = object.metadata.name.unwrap_or_default();
            seen.lock().unwrap_or_else(PoisonError::into_inner).insert((kind, name), now);
        }
    }
    Ok(())
}
