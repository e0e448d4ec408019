//! A source under watch: every snapshot that it published, and its status.

use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use lb_model::{ObjectName, Snapshot};
use lb_seed::short_or_long;
use lb_source::kube::{KubeSettings, spawn};
use lb_source::{Relist, Restart, Source, SourceStatus};
use lb_tests::cluster::objects::{Endpoint, NAMESPACE};
use lb_tests::cluster::stub::StubApi;
use lb_tests::cluster::{FaultyProxy, SETTLE_LIMIT};
use tokio_util::sync::CancellationToken;

/// How long a watch may be silent in these tests.
pub fn silence() -> Duration {
    Duration::from_secs(short_or_long(1, 4))
}

/// A running source; dropped, it stops.
pub struct WatchedSource {
    source: Source,
    stop: CancellationToken,
    told: Arc<Mutex<Vec<Arc<Snapshot>>>>,
}

impl Drop for WatchedSource {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A real server.
pub fn direct(kubeconfig: &Path) -> KubeSettings {
    KubeSettings { kubeconfig: Some(kubeconfig.to_owned()), ..quick() }
}

/// A real server, by way of a gate.
pub fn through(kubeconfig: &Path, proxy: &FaultyProxy) -> KubeSettings {
    let api_servers = vec![format!("https://{}", proxy.address())];
    KubeSettings { api_servers, ..direct(kubeconfig) }
}

/// The stub.
pub fn stub(stub: &StubApi) -> KubeSettings {
    KubeSettings { api_servers: vec![stub.url()], ..quick() }
}

fn quick() -> KubeSettings {
    KubeSettings { silence: silence(), compare_interval: None, ..KubeSettings::default() }
}

impl WatchedSource {
    pub async fn start(settings: KubeSettings) -> Result<Self> {
        let stop = CancellationToken::new();
        let source = spawn(settings, stop.clone()).await?;
        let told = Arc::<Mutex<Vec<Arc<Snapshot>>>>::default();
        let (mut snapshots, to) = (source.snapshots.clone(), Arc::clone(&told));
        tokio::spawn(async move {
            while snapshots.changed().await.is_ok() {
                let told = snapshots.borrow_and_update().clone();
                to.lock().unwrap_or_else(PoisonError::into_inner).extend(told);
            }
        });
        Ok(Self { source, stop, told })
    }

    /// Waits for a snapshot.
    pub async fn until(&mut self, what: &str, is_so: impl Fn(&Snapshot) -> bool) -> Result<Arc<Snapshot>> {
        let found = self.source.snapshots.wait_for(|snapshot| snapshot.as_deref().is_some_and(&is_so));
        let found = tokio::time::timeout(SETTLE_LIMIT, found).await.map(|found| found.map(|found| found.clone()));
        match found {
            Ok(found) => found?.context("waited for one"),
            Err(_) => anyhow::bail!("no snapshot with {what}: {:#?}", self.status()),
        }
    }

    /// Waits for a status.
    pub async fn status_until(&mut self, what: &str, is_so: impl Fn(&SourceStatus) -> bool) -> Result<SourceStatus> {
        let found = tokio::time::timeout(SETTLE_LIMIT, self.source.status.wait_for(|status| is_so(status))).await;
        match found.map(|found| found.map(|status| status.clone())) {
            Ok(found) => Ok(found?),
            Err(_) => anyhow::bail!("the status never was: {what}: {:#?}", self.status()),
        }
    }

    pub fn status(&self) -> SourceStatus {
        self.source.status.borrow().clone()
    }

    /// The snapshot of this moment.
    pub fn now(&self) -> Result<Arc<Snapshot>> {
        self.source.snapshots.borrow().clone().context("no snapshot yet")
    }

    /// Every event from a revision on was as asked for.
    pub fn insist_since(&self, revision: u64, what: &str, is_so: impl Fn(&Snapshot) -> bool) {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        for snapshot in told.iter().filter(|snapshot| snapshot.revision >= revision) {
            assert!(is_so(snapshot), "not {what}: {snapshot:#?}");
        }
    }
}

/// How often a resource was listed for this reason.
pub fn relists(status: &SourceStatus, resource: &str, why: Relist) -> u64 {
    status.resources.get(resource).and_then(|resource| resource.relists.get(&why)).copied().unwrap_or(0)
}

/// How often the watch of a resource was replaced for this reason.
pub fn restarts(status: &SourceStatus, resource: &str, why: Restart) -> u64 {
    status.resources.get(resource).and_then(|resource| resource.watch_restarts.get(&why)).copied().unwrap_or(0)
}

/// Addresses of the ready endpoints of a service, from all its slices.
pub fn ready(snapshot: &Snapshot, service: &str) -> Vec<IpAddr> {
    let of_service = snapshot.slices.values().filter(|slice| &*slice.service == service);
    let endpoints = of_service.flat_map(|slice| &slice.endpoints).filter(|endpoint| endpoint.ready);
    let mut addresses: Vec<IpAddr> = endpoints.map(|endpoint| endpoint.address).collect();
    addresses.sort();
    addresses
}

pub fn has(snapshot: &Snapshot, service: &str) -> bool {
    snapshot.services.contains_key(&ObjectName::new(NAMESPACE, service))
}

/// Endpoints 10.244.0.0 and following, by number.
pub fn endpoints(numbers: impl IntoIterator<Item = u16>) -> Vec<Endpoint> {
    numbers.into_iter().map(|number| Endpoint::ready(address(number))).collect()
}

pub fn addresses(numbers: impl IntoIterator<Item = u16>) -> Vec<IpAddr> {
    numbers.into_iter().map(address).collect()
}

fn address(number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    [10, 244, high, low].into()
}
