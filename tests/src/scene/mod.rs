//! Nodes as people have them: what the kubelet, a CNI, a policy engine, a firewall or a cache has put on a node before Ballast starts.
//!
//! A scene is part of [`crate::topology::NodeOptions`]: a node gets its rules when it is made, and each of its pods when that is made, as a CNI does
//! it. So every fixture that takes the options runs on every scene. The rules follow what the programs of that name write. They are in a form of their
//! own: links of pods are called `veth`, and pods have the addresses of the topology.

mod apply;
mod pods;
mod rules;

use lb_common::family::Family;

pub(crate) use apply::{add_pod, install};

/// Who has put rules on the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scene {
    /// Nobody.
    #[default]
    Bare,
    /// The kubelet. It is part of all scenes below.
    Kubelet,
    /// Flannel, as in kubeadm's clusters and in k3s: pods on a bridge, masqueraded with random ports.
    Flannel,
    /// The VPC CNI of EKS: policy routing by connection marks, SNAT to the address of `eth0`.
    Aws,
    /// Calico with iptables: chains for each pod that drop what connection tracking calls invalid, a reverse path filter in `raw`, ipsets.
    Calico,
    /// kube-router's network policies over flannel, as in k3s: a chain for each pod by its address, which rejects what no policy allows.
    Netpol,
    /// Docker beside flannel: forwarded packets are dropped unless a rule accepts them.
    Docker,
    /// firewalld, with pods in the zone `trusted` and masquerade on the uplink: only accepted zones are forwarded.
    Firewalld,
    /// ip-masq-agent, as on GKE and AKS: no subnet on the uplink, and all that leaves the private networks is masqueraded.
    Cloud,
    /// NodeLocal DNSCache: its addresses are on the node, with rules that keep connection tracking away. The CNI is the plugin `bridge` with `ipMasq`,
    /// which keeps source ports.
    NodeLocalDns,
}

impl Scene {
    pub const ALL: [Self; 10] = [
        Self::Bare,
        Self::Kubelet,
        Self::Flannel,
        Self::Aws,
        Self::Calico,
        Self::Netpol,
        Self::Docker,
        Self::Firewalld,
        Self::Cloud,
        Self::NodeLocalDns,
    ];

    /// As a test is asked for.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Kubelet => "kubelet",
            Self::Flannel => "flannel",
            Self::Aws => "aws",
            Self::Calico => "calico",
            Self::Netpol => "netpol",
            Self::Docker => "docker",
            Self::Firewalld => "firewalld",
            Self::Cloud => "cloud",
            Self::NodeLocalDns => "nodelocaldns",
        }
    }

    /// Whether pods that talk to hosts outside are shown as their node.
    pub const fn masquerades(self) -> bool {
        !matches!(self, Self::Bare | Self::Kubelet)
    }

    /// Whether pods that talk to other nodes are so, too.
    pub const fn masquerades_to_nodes(self) -> bool {
        self.masquerades() && !matches!(self, Self::Aws)
    }

    /// Whether its CNI connects pods by a bridge.
    pub const fn is_bridged(self) -> bool {
        matches!(self, Self::Flannel | Self::Netpol | Self::Docker | Self::Firewalld | Self::NodeLocalDns)
    }

    /// The chains of a family that forwarded packets meet, as `status` names them. Without any, packets may take the fast path.
    pub const fn forwarded_meet(self) -> &'static [&'static str] {
        match self {
            Self::Bare | Self::Kubelet => &[],
            Self::Flannel | Self::Netpol => &["filter FORWARD", "nat POSTROUTING"],
            Self::Aws => &["mangle PREROUTING", "nat POSTROUTING", "nat PREROUTING"],
            Self::Calico => &["filter FORWARD", "mangle PREROUTING", "nat POSTROUTING", "raw PREROUTING"],
            Self::Docker => &["filter FORWARD", "nat POSTROUTING", "nat PREROUTING"],
            Self::Firewalld => {
                &["firewalld filter_FORWARD", "firewalld filter_PREROUTING", "firewalld nat_POSTROUTING"]
            }
            Self::Cloud => &["nat POSTROUTING"],
            Self::NodeLocalDns => &["nat POSTROUTING", "raw PREROUTING"],
        }
    }
}

/// What rules of one family are made of.
struct Names {
    family: Family,
    /// Addresses of all pods, and of this node's.
    cluster: &'static str,
    own: String,
    /// The node's address.
    node: String,
    /// Networks that clouds have for themselves.
    private: &'static [&'static str],
    multicast: &'static str,
}

impl Names {
    fn of(node: &crate::topology::Node, family: Family) -> Self {
        let address = node.addresses().of(family).to_string();
        match family {
            Family::V4 => Self {
                family,
                cluster: "10.244.0.0/16",
                own: node.pod_net4(),
                node: address,
                private: &["169.254.0.0/16", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"],
                multicast: "224.0.0.0/4",
            },
            Family::V6 => Self {
                family,
                cluster: "fd00:244::/32",
                own: node.pod_net6(),
                node: address,
                private: &["fe80::/10", "fc00::/7"],
                multicast: "ff00::/8",
            },
        }
    }

    /// What the names of ipsets of this family begin with.
    const fn set_prefix(&self) -> &'static str {
        match self.family {
            Family::V4 => "scene4-",
            Family::V6 => "scene6-",
        }
    }
}
