//! The fixture: an API server, a node for each agent with a client, and a host with two addresses that serves them all.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Namespace, Node as KubeNode, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use lb_tests::cluster::ApiServer;
use lb_tests::topology::{NetNs, Node, Outside, Pod, Topology};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

use super::objects::{self, NAMESPACE};
use super::store::Store;

/// Second address of the serving host.
const SECOND: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 201);

/// All of it; dropped, everything is removed. Fields are dropped in their order.
pub struct Fixture {
    pub cluster: Cluster,
    /// Where Ballast runs, and where kube-proxy does.
    pub ballast: Side,
    pub kube_proxy: Side,
    pub servers: Servers,
    _topology: Topology,
}

/// A node and a client in a pod of it.
pub struct Side {
    pub client: Pod,
    pub node: Node,
}

/// The host outside that serves, at two addresses.
pub struct Servers {
    host: Outside,
}

impl Servers {
    pub fn netns(&self) -> &NetNs {
        self.host.netns()
    }

    pub fn addresses(&self) -> [Ipv4Addr; 2] {
        [self.host.addresses().v4, SECOND]
    }
}

impl Fixture {
    pub fn new() -> Result<Self> {
        let topology = Topology::new("control")?;
        let (ballast, kube_proxy) = (Side::new(topology.node()?)?, Side::new(topology.node()?)?);
        let host = topology.outside("servers", &ballast.node)?;
        let other = &kube_proxy.node;
        host.namespace().ip(&format!(
            "address add {SECOND}/24 dev eth0\nroute add {} via {}",
            other.pod_net4(),
            other.addresses().v4
        ))?;
        // A packet to an address that is not served yet is refused at once, and always.
        topology.wire().sysctl("net/ipv4/icmp_ratelimit", "0")?;
        let cluster = Cluster::start(topology.outside("api", &ballast.node)?)?;
        for side in [&ballast, &kube_proxy] {
            cluster.create_node(&side.node)?;
        }
        Ok(Self { cluster, ballast, kube_proxy, servers: Servers { host }, _topology: topology })
    }
}

impl Side {
    fn new(node: Node) -> Result<Self> {
        Ok(Self { client: node.pod("client")?, node })
    }
}

/// When a write was sent to the API, and when the API said that it is done.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    pub sent: Instant,
    pub done: Instant,
}

/// The API and its objects, used from the host where it runs.
pub struct Cluster {
    runtime: Runtime,
    client: Client,
    server: ApiServer,
    host: Arc<Outside>,
}

impl Cluster {
    /// An empty cluster, but for the namespace of the bench.
    pub fn start(host: Outside) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (server, client) = host.netns().run(|| {
            runtime.block_on(async {
                let server = ApiServer::start_in(host.netns(), host.addresses().v4.into()).await?;
                let client = server.client().await?;
                let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
                Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await?;
                anyhow::Ok((server, client))
            })
        })?;
        Ok(Self { runtime, client, server, host: Arc::new(host) })
    }

    pub fn kubeconfig(&self) -> String {
        self.server.kubeconfig().display().to_string()
    }

    pub fn netns(&self) -> &NetNs {
        self.host.netns()
    }

    /// What the API server keeps its objects in.
    pub fn store(&self) -> Store<'_> {
        Store { netns: self.netns(), address: self.server.store_address() }
    }

    /// How many slices the API has.
    pub fn count_slices(&self) -> Result<usize> {
        let one = ListParams::default().limit(1);
        let list = self.run(async { Api::<EndpointSlice>::all(self.client.clone()).list_metadata(&one).await })?;
        let rest = usize::try_from(list.metadata.remaining_item_count.unwrap_or_default())?;
        Ok(list.items.len() + rest)
    }

    /// Gets all services and slices as text; returns the number of bytes.
    pub fn fetch_lists(&self) -> Result<u64> {
        self.run(async {
            let mut bytes = 0;
            for path in ["/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices"] {
                let request = http::Request::get(path).body(Vec::new())?;
                bytes += u64::try_from(self.client.request_text(request).await?.len())?;
            }
            anyhow::Ok(bytes)
        })
    }

    /// Makes a service with one endpoint. The slice comes first: only the service's own write is timed.
    pub fn create_service(&self, name: &str, cluster_ip: Ipv4Addr, endpoint: Ipv4Addr) -> Result<Written> {
        let service = serde_json::from_value(objects::service(name, cluster_ip))?;
        let endpoints = [objects::endpoint(endpoint, true, 0)];
        let slice = serde_json::from_value(objects::slice(name, name, &endpoints))?;
        self.run(async {
            self.slices().create(&PostParams::default(), &slice).await?;
            let sent = Instant::now();
            self.services().create(&PostParams::default(), &service).await?;
            anyhow::Ok(Written { sent, done: Instant::now() })
        })
        .with_context(|| format!("making the service {name}"))
    }

    /// Moves the one endpoint of a service.
    pub fn move_endpoint(&self, name: &str, to: Ipv4Addr) -> Result<Written> {
        let patch = json!({"endpoints": [objects::endpoint(to, true, 0)]});
        self.run(async {
            let sent = Instant::now();
            self.slices().patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
            anyhow::Ok(Written { sent, done: Instant::now() })
        })
        .with_context(|| format!("moving the endpoint of {name}"))
    }

    pub fn delete_service(&self, name: &str) -> Result<()> {
        self.run(async {
            self.services().delete(name, &DeleteParams::default()).await?;
            self.slices().delete(name, &DeleteParams::default()).await?;
            anyhow::Ok(())
        })
    }

    /// Tells it of a node.
    pub fn create_node(&self, node: &Node) -> Result<()> {
        let object: KubeNode = serde_json::from_value(json!({
            "metadata": {"name": node.node_name(), "labels": {"kubernetes.io/hostname": node.node_name()}},
            "spec": {"podCIDR": node.pod_net4(), "podCIDRs": [node.pod_net4()]},
        }))?;
        let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": node.addresses().v4}]}});
        let nodes = Api::<KubeNode>::all(self.client.clone());
        self.run(async {
            nodes.create(&PostParams::default(), &object).await?;
            nodes.patch_status(&node.node_name(), &PatchParams::default(), &Patch::Merge(&status)).await?;
            anyhow::Ok(())
        })
    }

    fn services(&self) -> Api<Service> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    fn slices(&self) -> Api<EndpointSlice> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    fn run<T: Send, E: Send>(&self, work: impl Future<Output = Result<T, E>> + Send) -> Result<T>
    where
        anyhow::Error: From<E>,
    {
        Ok(self.netns().run(|| self.runtime.block_on(work))?)
    }
}
