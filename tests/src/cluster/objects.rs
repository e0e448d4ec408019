//! Services and endpoint slices as a test writes them.

use std::net::IpAddr;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Node as KubeNode, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::topology::Node;

/// The namespace that the tests' objects are in.
pub const NAMESPACE: &str = "default";
/// The ports of the tests' services: name, protocol, the service's port, the endpoints' port.
pub const PORTS: [(&str, &str, u16, u16); 2] = [("tcp", "TCP", 80, 8080), ("udp", "UDP", 53, 5353)];

/// One endpoint of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub address: IpAddr,
    pub ready: bool,
}

impl Endpoint {
    /// One that takes traffic.
    pub fn ready(address: IpAddr) -> Self {
        Self { address, ready: true }
    }

    /// One that is there, but takes none.
    pub fn unready(address: IpAddr) -> Self {
        Self { address, ready: false }
    }
}

/// Makes objects, changes and deletes them.
#[derive(Clone)]
pub struct Objects {
    nodes: Api<KubeNode>,
    services: Api<Service>,
    slices: Api<EndpointSlice>,
    service_cidrs: Api<ServiceCIDR>,
}

impl Objects {
    pub fn new(client: &Client) -> Self {
        Self {
            nodes: Api::all(client.clone()),
            services: Api::namespaced(client.clone(), NAMESPACE),
            slices: Api::namespaced(client.clone(), NAMESPACE),
            service_cidrs: Api::all(client.clone()),
        }
    }

    /// Makes a service of all families that the cluster has, TCP and UDP on its [`PORTS`]; returns the cluster IPs that it got.
    pub async fn create_service(&self, name: &str) -> Result<Vec<IpAddr>> {
        let ports = PORTS.map(|(name, protocol, port, target)| {
            json!({"name": name, "protocol": protocol, "port": port, "targetPort": target})
        });
        let service: Service = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"ipFamilyPolicy": "PreferDualStack", "ports": ports},
        }))?;
        let made = self.services.create(&PostParams::default(), &service).await?;
        let addresses = made.spec.and_then(|spec| spec.cluster_ips).context("no cluster IPs")?;
        addresses.iter().map(|address| address.parse().with_context(|| address.clone())).collect()
    }

    /// Makes the node's object: kube-proxy does not start without its own.
    pub async fn create_node(&self, node: &Node) -> Result<()> {
        let name = node.node_name();
        let object: KubeNode = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
            "spec": {"podCIDR": node.pod_nets()[0], "podCIDRs": node.pod_nets()},
        }))?;
        let internal = |address: IpAddr| json!({"type": "InternalIP", "address": address});
        let addresses: Vec<Value> = node.ips().into_iter().map(internal).collect();
        let status = json!({"status": {"addresses": addresses}});
        self.nodes.create(&PostParams::default(), &object).await?;
        self.nodes.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await?;
        Ok(())
    }

    pub async fn delete_node(&self, node: &Node) -> Result<()> {
        self.nodes.delete(&node.node_name(), &DeleteParams::default()).await?;
        Ok(())
    }

    /// Makes a `ServiceCIDR` with one network.
    pub async fn create_service_cidr(&self, name: &str, network: &str) -> Result<()> {
        let object = json!({"metadata": {"name": name}, "spec": {"cidrs": [network]}});
        self.service_cidrs.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        Ok(())
    }

    pub async fn delete_service_cidr(&self, name: &str) -> Result<()> {
        self.service_cidrs.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    pub async fn delete_service(&self, name: &str) -> Result<()> {
        self.services.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Makes the slice, or sets its endpoints, all of the family `IPv4` or `IPv6`.
    pub async fn put_slice(&self, name: &str, service: &str, family: &str, endpoints: &[Endpoint]) -> Result<()> {
        let slice = slice(name, service, family, endpoints);
        self.slices.patch(name, &PatchParams::apply("tests").force(), &Patch::Apply(&slice)).await?;
        Ok(())
    }

    /// Sets the endpoints of a service: one slice for each family.
    pub async fn put_endpoints(&self, service: &str, endpoints: &[Endpoint]) -> Result<()> {
        for (family, v4) in [("IPv4", true), ("IPv6", false)] {
            let of_family: Vec<Endpoint> =
                endpoints.iter().copied().filter(|endpoint| endpoint.address.is_ipv4() == v4).collect();
            let name = format!("{service}-{}", family.to_lowercase());
            self.put_slice(&name, service, family, &of_family).await?;
        }
        Ok(())
    }

    pub async fn delete_slice(&self, name: &str) -> Result<()> {
        self.slices.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }
}

fn slice(name: &str, service: &str, family: &str, endpoints: &[Endpoint]) -> Value {
    let ports = PORTS.map(|(name, protocol, _, target)| json!({"name": name, "protocol": protocol, "port": target}));
    let endpoint = |endpoint: &Endpoint| json!({"addresses": [endpoint.address.to_string()], "conditions": {"ready": endpoint.ready}});
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": service}},
        "addressType": family,
        "ports": ports,
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
    })
}
