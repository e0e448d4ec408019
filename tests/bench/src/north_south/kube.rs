//! The real kube-proxy on a lane, with the same services from a real API server.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Node as KubeNode;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use lb_tests::cluster::manifests::apply;
use lb_tests::cluster::{ApiServer, KubeProxy, Process};
use lb_tests::topology::{Outside, Topology};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use super::lane::{Lane, NODE};
use super::proxy::manifest;

/// kube-proxy on its lane. Fields in the order in which they must end.
pub struct Proxied {
    proxy: Process,
    _server: ApiServer,
    _runtime: Runtime,
    _host: Outside,
    pub lane: Lane,
}

impl Proxied {
    pub fn start(topology: &Topology, lane: Lane) -> Result<Self> {
        let host = topology.outside("api", &lane.node)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let server = host.netns().run(|| {
            runtime.block_on(async {
                let server = ApiServer::start_in(host.netns(), host.addresses().v4.into()).await?;
                let client = server.client().await?;
                create_node(&client, &lane).await?;
                for object in objects(&lane)? {
                    apply(&client, &object, false).await?;
                }
                anyhow::Ok(server)
            })
        })?;
        let folder = topology.directory().join("kube-proxy");
        std::fs::create_dir_all(&folder)?;
        let kubeconfig = server.kubeconfig().display().to_string();
        let proxy = KubeProxy { node: &lane.node, kubeconfig, folder }.start()?;
        // Cards check the checksums of what they receive; here connection tracking would do it for each packet.
        lane.node.namespace().sysctl("net/netfilter/nf_conntrack_checksum", "0")?;
        Ok(Self { proxy, _server: server, _runtime: runtime, _host: host, lane })
    }

    /// The error to show if it ended.
    pub fn check(&self) -> Result<()> {
        self.proxy.check()
    }
}

/// The services, and the namespace that they are in.
fn objects(lane: &Lane) -> Result<Vec<DynamicObject>> {
    let mut values: Vec<Value> = serde_saphyr::from_multiple(&manifest(lane).yaml()).context("the manifest")?;
    for value in &mut values {
        if value["kind"] == "Service" {
            value["spec"]["ipFamilyPolicy"] = json!("RequireDualStack");
        }
    }
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "test"}});
    let all = [namespace].into_iter().chain(values.into_iter().filter(|value| !value.is_null()));
    all.map(|value| Ok(serde_json::from_value(value)?)).collect()
}

/// kube-proxy serves node ports at the addresses that its node's object tells.
async fn create_node(client: &Client, lane: &Lane) -> Result<()> {
    let name = lane.node.node_name();
    let nets = [lane.node.pod_net4(), lane.node.pod_net6()];
    let object: KubeNode = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {"podCIDR": nets[0], "podCIDRs": nets},
    }))?;
    let addresses = NODE.map(|address| json!({"type": "InternalIP", "address": address}));
    let nodes = Api::<KubeNode>::all(client.clone());
    nodes.create(&PostParams::default(), &object).await?;
    let status = Patch::Merge(json!({"status": {"addresses": addresses}}));
    nodes.patch_status(&name, &PatchParams::default(), &status).await?;
    Ok(())
}
