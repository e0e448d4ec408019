//! An API server on a host of its own on the wire, used from there, and agents that follow it.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Result;
use tokio::runtime::{Builder, Runtime};

use super::objects::{Endpoint, Objects};
use super::{ApiServer, Backup, ClientCa, FaultyProxy, manifests};
use crate::agent::{Agent, Manifest};
use crate::topology::{NetNs, Node, Outside, Pod};

/// The server, and its objects as an administrator on that host changes them.
pub struct Hosted {
    netns: NetNs,
    runtime: Runtime,
    server: ApiServer,
    objects: Objects,
}

impl Hosted {
    pub fn start(host: &Outside) -> Result<Self> {
        let netns = host.netns().clone();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (server, objects) = netns.run(|| {
            runtime.block_on(async {
                let server = ApiServer::start_in(host.netns(), host.ips()[0]).await?;
                let objects = Objects::new(&server.client().await?);
                anyhow::Ok((server, objects))
            })
        })?;
        Ok(Self { netns, runtime, server, objects })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// A file with every right.
    pub fn kubeconfig(&self) -> PathBuf {
        self.server.kubeconfig()
    }

    /// A kubeconfig with a client certificate of `ca`, which the server believes from now on. The files may be written anew.
    pub fn kubeconfig_by(&self, ca: &ClientCa, key: &Path, certificate: &Path) -> Result<PathBuf> {
        self.server.believe(ca)?;
        self.server.kubeconfig_by(key, certificate)
    }

    /// See [`ApiServer::kubeconfig_as`].
    pub fn kubeconfig_as(&self, user: &str) -> Result<PathBuf> {
        self.server.kubeconfig_as(user)
    }

    /// A faulty proxy in front of it, on the same host.
    pub fn proxy(&self) -> Result<FaultyProxy> {
        FaultyProxy::new(Some(&self.netns), self.server.address())
    }

    /// An agent on the node that follows this API, not started yet.
    pub fn agent(&self, node: &Node, flags: &[&str]) -> Result<Agent> {
        Self::agent_by(&self.kubeconfig(), node, flags)
    }

    /// [`Self::agent`] with the credentials of this kubeconfig.
    pub fn agent_by(kubeconfig: &Path, node: &Node, flags: &[&str]) -> Result<Agent> {
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        let flags: Vec<&str> = ["--source=kube", &kubeconfig].into_iter().chain(flags.iter().copied()).collect();
        Agent::prepare(node, &flags)
    }

    pub fn create_node(&self, node: &Node) -> Result<()> {
        self.on_the_host(self.objects.create_node(node))
    }

    pub fn delete_node(&self, node: &Node) -> Result<()> {
        self.on_the_host(self.objects.delete_node(node))
    }

    pub fn create_service(&self, name: &str) -> Result<Vec<IpAddr>> {
        self.on_the_host(self.objects.create_service(name))
    }

    /// Makes the services of a manifest, and gives them their load balancer's addresses as its controller would.
    pub fn create(&self, manifest: &Manifest) -> Result<()> {
        self.on_the_host(async { manifests::create_services(&self.server.client().await?, &manifest.yaml()).await })
    }

    pub fn delete_service(&self, name: &str) -> Result<()> {
        self.on_the_host(self.objects.delete_service(name))
    }

    pub fn put_endpoints(&self, service: &str, endpoints: &[Endpoint]) -> Result<()> {
        self.on_the_host(self.objects.put_endpoints(service, endpoints))
    }

    /// The pods, ready, with all their addresses.
    pub fn put_pods(&self, service: &str, pods: &[&Pod]) -> Result<()> {
        let endpoints: Vec<Endpoint> = pods.iter().flat_map(|pod| pod.ips()).map(Endpoint::ready).collect();
        self.put_endpoints(service, &endpoints)
    }

    /// Kills the server and leaves its store running.
    pub fn stop(&mut self) {
        self.server.stop();
    }

    /// Starts it again.
    pub fn restart(&mut self) -> Result<()> {
        let (netns, runtime, server) = (&self.netns, &self.runtime, &mut self.server);
        netns.run(|| runtime.block_on(server.restart()))
    }

    /// See [`ApiServer::freeze`].
    pub fn freeze(&self) -> Result<()> {
        self.server.freeze()
    }

    /// See [`ApiServer::thaw`].
    pub fn thaw(&self) -> Result<()> {
        self.server.thaw()
    }

    /// See [`ApiServer::back_up`].
    pub fn back_up(&self) -> Result<Backup> {
        self.server.back_up()
    }

    /// See [`ApiServer::roll_back`].
    pub fn roll_back(&mut self, backup: &Backup) -> Result<()> {
        let (netns, runtime, server) = (&self.netns, &self.runtime, &mut self.server);
        netns.run(|| runtime.block_on(server.roll_back(backup)))
    }

    /// A client with every right, for work on the host.
    pub async fn client(&self) -> Result<kube::Client> {
        self.server.client().await
    }

    /// Does something with such a client.
    pub fn with_client<T, F>(&self, work: impl FnOnce(kube::Client) -> F + Send) -> Result<T>
    where
        T: Send,
        F: Future<Output = Result<T>>,
    {
        self.netns.run(|| self.runtime.block_on(async { work(self.server.client().await?).await }))
    }

    fn on_the_host<T: Send>(&self, work: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.netns.run(|| self.runtime.block_on(work))
    }
}
