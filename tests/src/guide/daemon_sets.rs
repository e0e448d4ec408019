//! What the DaemonSet controller and the kubelets do, as far as the manual's commands need it. Each node runs what the DaemonSets ask for there.
//! Their status says where it is ready.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node as KubeNode;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;

use super::placement::{Labels, is_on};
use crate::agent::{self, Agent};
use crate::cluster::{Hosted, KubeProxy, Process};
use crate::routed::POD_NETS;
use crate::topology::{NetNs, Node};

const NAMESPACE: &str = "kube-system";
/// Pause between two looks at the API.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Makes kube-proxy's DaemonSet, as kubeadm makes it.
pub fn create_kube_proxy(cluster: &Hosted) -> Result<()> {
    let labels = json!({"k8s-app": "kube-proxy"});
    let set = json!({
        "metadata": {"name": "kube-proxy", "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate"},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "hostNetwork": true,
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                    "containers": [{"name": "kube-proxy", "image": "kube-proxy"}],
                },
            },
        },
    });
    cluster.with_client(async move |client| {
        let sets: Api<DaemonSet> = Api::namespaced(client, NAMESPACE);
        sets.create(&PostParams::default(), &serde_json::from_value(set)?).await?;
        Ok(())
    })
}

/// A node with what runs there.
struct OnNode<'a> {
    node: &'a Node,
    agent: Agent,
    running: BTreeMap<String, Running>,
}

/// What a pod is, by its DaemonSet.
enum Running {
    Agent,
    KubeProxy(Process),
    /// `ballast cleanup`; whether it has succeeded.
    Cleanup {
        done: bool,
    },
}

/// All nodes of a cluster.
pub struct DaemonSets<'a> {
    cluster: &'a Hosted,
    nodes: Vec<OnNode<'a>>,
    /// What cleanups have printed.
    pub printed: Vec<String>,
}

impl<'a> DaemonSets<'a> {
    /// `flags`: more options of the agents.
    pub fn new(cluster: &'a Hosted, nodes: &[&'a Node], flags: &[&str]) -> Result<Self> {
        let on_node = |node: &&'a Node| {
            let agent = cluster.agent(node, flags)?;
            Ok(OnNode { node, agent, running: BTreeMap::new() })
        };
        Ok(Self { cluster, nodes: nodes.iter().map(on_node).collect::<Result<_>>()?, printed: Vec::new() })
    }

    /// Does what the DaemonSets ask for until told to stop.
    pub fn run(&mut self, host: &NetNs, stop: &AtomicBool) -> Result<()> {
        let cluster = self.cluster;
        host.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let client = runtime.block_on(cluster.client())?;
            while !stop.load(Ordering::Relaxed) {
                runtime.block_on(self.step(&client))?;
                std::thread::sleep(LOOK_EVERY);
            }
            Ok(())
        })
    }

    async fn step(&mut self, client: &Client) -> Result<()> {
        let sets: Api<DaemonSet> = Api::namespaced(client.clone(), NAMESPACE);
        let nodes: Api<KubeNode> = Api::all(client.clone());
        let listed = sets.list(&ListParams::default()).await?.items;
        let labels: BTreeMap<String, Labels> = nodes
            .list(&ListParams::default())
            .await?
            .into_iter()
            .map(|node| (node.name_any(), node.labels().clone()))
            .collect();
        for on_node in &mut self.nodes {
            let labels = labels.get(&on_node.node.node_name()).cloned().unwrap_or_default();
            let wanted: Vec<&DaemonSet> = listed.iter().filter(|set| is_on(set, &labels)).collect();
            on_node.stop_all_but(&wanted)?;
            for set in wanted {
                on_node.go_on(set, &self.cluster.kubeconfig().display().to_string(), &mut self.printed)?;
            }
        }
        for set in &listed {
            let status = self.status(set);
            match sets.patch_status(&set.name_any(), &PatchParams::default(), &Patch::Merge(&status)).await {
                // It was deleted since it was listed.
                Err(kube::Error::Api(error)) if error.code == 404 => {}
                patched => drop(patched?),
            }
        }
        Ok(())
    }

    fn status(&self, set: &DaemonSet) -> serde_json::Value {
        let name = set.name_any();
        let pods = self.nodes.iter().filter(|on_node| on_node.running.contains_key(&name)).count();
        let ready = self.nodes.iter().filter(|on_node| on_node.is_ready(&name)).count();
        json!({"status": {
            "observedGeneration": set.metadata.generation,
            "desiredNumberScheduled": pods, "currentNumberScheduled": pods, "updatedNumberScheduled": pods,
            "numberReady": ready, "numberAvailable": ready, "numberMisscheduled": 0, "numberUnavailable": pods - ready,
        }})
    }
}

impl OnNode<'_> {
    fn stop_all_but(&mut self, wanted: &[&DaemonSet]) -> Result<()> {
        let gone: Vec<String> =
            self.running.keys().filter(|name| !wanted.iter().any(|set| set.name_any() == **name)).cloned().collect();
        for name in gone {
            match self.running.remove(&name) {
                Some(Running::Agent) => self.agent.stop()?,
                // Dropped, it ends.
                Some(Running::KubeProxy(_) | Running::Cleanup { .. }) | None => {}
            }
        }
        Ok(())
    }

    /// Starts it, or goes on with what has to succeed before it is ready.
    fn go_on(&mut self, set: &DaemonSet, kubeconfig: &str, printed: &mut Vec<String>) -> Result<()> {
        let name = set.name_any();
        match self.running.get(&name) {
            None if name == "kube-proxy" => {
                let (node, kubeconfig) = (self.node, kubeconfig.to_owned());
                let kube_proxy = KubeProxy { node, kubeconfig, folder: node.run_dir().to_owned() };
                let process =
                    kube_proxy.start_with(&json!({"clusterCIDR": POD_NETS, "detectLocalMode": "ClusterCIDR"}))?;
                self.running.insert(name, Running::KubeProxy(process));
            }
            None if name == "ballast" => {
                self.agent.launch()?;
                self.running.insert(name, Running::Agent);
            }
            None | Some(Running::Cleanup { done: false }) => {
                let done = self.clean_up(set, printed)?;
                self.running.insert(name, Running::Cleanup { done });
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// What the first container does, with the folders of this node.
    fn clean_up(&self, set: &DaemonSet, printed: &mut Vec<String>) -> Result<bool> {
        let pod = set.spec.template.spec.as_ref().context("a pod")?;
        let container = pod.init_containers.iter().flatten().next().context("a container that cleans up")?;
        let own = |argument: &String| match argument.split_once('=') {
            Some(("--bpffs", _)) => format!("--bpffs={}", self.node.bpffs().display()),
            Some(("--run-dir", _)) => format!("--run-dir={}", self.node.run_dir().display()),
            _ => argument.clone(),
        };
        let mut command = Command::new(agent::binary()?);
        command.args(container.args.iter().flatten().map(own)).stdin(Stdio::null());
        let output = self.node.netns().run(|| command.output())?;
        printed.push(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned());
        Ok(output.status.success())
    }

    fn is_ready(&self, name: &str) -> bool {
        match self.running.get(name) {
            Some(Running::Agent) => self.agent.is_ready(),
            Some(Running::KubeProxy(process)) => process.check().is_ok(),
            Some(Running::Cleanup { done }) => *done,
            None => false,
        }
    }
}
