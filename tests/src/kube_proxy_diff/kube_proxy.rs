//! kube-proxy's side of the comparison: the real one in nftables mode, in a namespace of its own, and its rules for given objects.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::node;
use super::ruleset::Ruleset;
use super::sentinel;
use super::settings::ProxySettings;
use crate::cluster::stub::{ResourceKind, StubApi};
use crate::cluster::{Process, binary};
use crate::topology::{Namespace, NetNs};

/// How long it may take to show a batch. A batch is synced in about a second.
const SYNC_LIMIT: Duration = Duration::from_mins(2);
/// Pause between two looks at its rules.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A running kube-proxy; dropped, it is gone with its namespace.
#[derive(Debug)]
pub struct KubeProxy {
    // Dropped in this order: the process before the API and the namespace.
    process: Process,
    api: StubApi,
    namespace: Namespace,
    _directory: tempfile::TempDir,
    shown: u16,
}

impl KubeProxy {
    /// Starts it with these settings.
    pub fn start(settings: &ProxySettings) -> Result<Self> {
        let namespace = node::namespace()?;
        let api = StubApi::start(Some(namespace.netns()), std::net::Ipv4Addr::LOCALHOST.into())?;
        let directory = tempfile::tempdir()?;
        let (kubeconfig, config) = (directory.path().join("kubeconfig"), directory.path().join("config"));
        fs::write(&kubeconfig, kubeconfig_of(&api.url()).to_string())?;
        let path = kubeconfig.to_str().context("the folder's name is not text")?;
        fs::write(&config, configuration(path, settings).to_string())?;
        api.put(typed(ResourceKind::Node, &node::object(None)));
        let mut command = Command::new(binary("kube-proxy")?);
        command.arg("--config").arg(&config);
        let process = Process::start(command, &directory.path().join("log"), Some(namespace.netns()))?;
        let mut this = Self { process, api, namespace, _directory: directory, shown: 0 };
        // kube-proxy looks at its node before it registers handlers for the zone: one that it has from the start may be lost
        // (NewNodeTopologyConfig, then RegisterEventHandler). Here it has none until it runs.
        this.rules_for(None, &[], &[]).context("kube-proxy does not start")?;
        Ok(this)
    }

    /// Shows it these objects in place of all others, and returns the rules that it makes of them.
    pub fn rules_for(&mut self, zone: Option<&str>, services: &[Value], slices: &[Value]) -> Result<Ruleset> {
        self.shown += 1;
        self.api.put(typed(ResourceKind::Node, &node::object(zone)));
        for (kind, objects) in [(ResourceKind::Service, services), (ResourceKind::Slice, slices)] {
            self.api.delete_where(kind, |object| !sentinel::is_one(object));
            for object in objects {
                self.api.put(typed(kind, object));
            }
        }
        // Each watch is in order: once the rules of the last objects are there, those of all others are.
        self.api.put(typed(ResourceKind::Service, &sentinel::service(self.shown)));
        for slice in sentinel::slices(self.shown) {
            self.api.put(typed(ResourceKind::Slice, &slice));
        }
        let started = Instant::now();
        loop {
            self.process.check()?;
            let rules = self.read().with_context(|| format!("kube-proxy says:\n{}", self.process.tail()))?;
            if sentinel::is_in(&rules, self.shown, zone)? {
                return Ok(rules);
            }
            if started.elapsed() > SYNC_LIMIT {
                bail!(
                    "kube-proxy did not make rules of batch {} in {SYNC_LIMIT:?}:\n{}",
                    self.shown,
                    self.process.tail()
                );
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Where it runs.
    pub fn netns(&self) -> &NetNs {
        self.namespace.netns()
    }

    fn read(&self) -> Result<Ruleset> {
        let output = self
            .namespace
            .netns()
            .run(|| Command::new("nft").args(["--json", "list", "ruleset"]).output())
            .context("starting `nft`: install nftables")?;
        if !output.status.success() {
            bail!("nft list ruleset: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ruleset::parse(&output.stdout)
    }
}

/// The object with its kind, which a list leaves out.
fn typed(kind: ResourceKind, object: &Value) -> Value {
    let mut object = object.clone();
    object["apiVersion"] = kind.api_version().into();
    object["kind"] = kind.name().into();
    object
}

fn kubeconfig_of(url: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "stub", "cluster": {"server": url}}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "stub", "context": {"cluster": "stub", "user": "nobody"}}],
        "current-context": "stub",
    })
}

/// It writes no sysctl, syncs as soon as it may, and tries again after a second (`syncPeriod`) if that failed.
fn configuration(kubeconfig: &str, settings: &ProxySettings) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": node::NAME,
        "clientConnection": {
            "kubeconfig": kubeconfig,
            "contentType": "application/json",
            "acceptContentTypes": "application/json",
        },
        "clusterCIDR": node::POD_NETS.join(","),
        "detectLocalMode": "ClusterCIDR",
        "nodePortAddresses": settings.nodeport_addresses(),
        "featureGates": {"AllowServiceExternalIPs": settings.external_ips},
        "nftables": {"minSyncPeriod": "50ms", "syncPeriod": "1s"},
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "oomScoreAdj": 0,
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    })
}
