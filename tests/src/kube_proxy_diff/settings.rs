//! The settings that the plan depends on, for Ballast and as kube-proxy's configuration.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lb_model::Protocol;
use lb_plan::plan::NodePortAddresses;
use serde_json::Value;

use super::cluster::Cluster;
use super::node;

const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Settings of Ballast and kube-proxy, for some batches.
#[derive(Clone, Debug)]
pub struct ProxySettings {
    pub nodeport_addresses: NodePortAddresses,
    pub external_ips: bool,
    /// Services with this label are served; `None`: those without the label.
    pub proxy_name: Option<&'static str>,
    pub reserved: BTreeSet<(IpAddr, u16, Protocol)>,
}

impl ProxySettings {
    /// All that are tried.
    pub fn all() -> [Self; 5] {
        let usual = Self {
            nodeport_addresses: NodePortAddresses::All,
            external_ips: true,
            proxy_name: None,
            reserved: reserved(),
        };
        let cidrs = |texts: &[&str]| NodePortAddresses::Cidrs(texts.iter().map(|text| node::network(text)).collect());
        let second = cidrs(&["198.51.100.0/24", "2001:db8:2::/64"]);
        let first4 = cidrs(&["192.0.2.0/24"]);
        let nowhere = cidrs(&["203.0.113.0/24", "2001:db8:ff::/64"]);
        [
            usual.clone(),
            Self { nodeport_addresses: NodePortAddresses::Primary, external_ips: false, ..usual.clone() },
            Self { nodeport_addresses: second, ..usual.clone() },
            Self { nodeport_addresses: first4, proxy_name: Some("ballast"), ..usual.clone() },
            Self { nodeport_addresses: nowhere, ..usual },
        ]
    }

    /// `nodePortAddresses` of kube-proxy.
    pub fn nodeport_addresses(&self) -> Vec<String> {
        match &self.nodeport_addresses {
            NodePortAddresses::All => vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()],
            NodePortAddresses::Primary => vec!["primary".to_owned()],
            NodePortAddresses::Cidrs(nets) => nets.iter().map(ToString::to_string).collect(),
        }
    }

    /// The cluster as it may be where these settings are: most services carry the label of our name.
    pub fn adapt(&self, mut cluster: Cluster) -> Cluster {
        if let Some(name) = self.proxy_name.filter(|_| !cluster.seed.is_multiple_of(8)) {
            for service in &mut cluster.services {
                let labels = &mut service["metadata"]["labels"];
                if labels.get(PROXY_NAME).is_none() {
                    labels[PROXY_NAME] = name.into();
                }
            }
        }
        cluster
    }

    /// Whether a Service is for this proxy to serve.
    pub fn is_served(&self, service: &Value) -> bool {
        let labels = &service["metadata"]["labels"];
        service["spec"]["type"] != "ExternalName"
            && service["spec"]["clusterIP"] != "None"
            && labels[PROXY_NAME].as_str() == self.proxy_name
    }

    /// Objects as kube-proxy is to see them: it serves those without the label, whatever our name is.
    pub fn as_kube_proxy_sees(&self, mut service: Value) -> Value {
        if let Some(name) = self.proxy_name {
            let labels = &mut service["metadata"]["labels"];
            if labels.get(PROXY_NAME).is_some_and(|label| label == name) {
                labels.as_object_mut().map(|labels| labels.remove(PROXY_NAME));
            } else {
                labels[PROXY_NAME] = "another".into();
            }
        }
        service
    }
}

/// Node ports that the node itself listens on: 30,001, 30,101 and so on, one in every tenth cluster of a batch.
fn reserved() -> BTreeSet<(IpAddr, u16, Protocol)> {
    let unspecified = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
    let ports = (0..20).map(|number| 30_001 + 100 * number);
    ports.flat_map(|port| unspecified.map(|address| (address, port, Protocol::Tcp))).collect()
}
