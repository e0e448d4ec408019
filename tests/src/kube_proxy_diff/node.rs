//! The node of the comparison: its name, links, addresses and zone.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::LazyLock;

use anyhow::Result;
use ipnet::IpNet;
use serde_json::{Value, json};

use crate::topology::{Namespace, PREFIX, sweep};

/// Name of the node.
pub const NAME: &str = "node-a";
/// Zones that hints and the node's label are drawn from.
pub const ZONES: [&str; 3] = ["zone-0", "zone-1", "zone-2"];
/// Where pods are: `clusterCIDR`, one of each family.
pub const POD_NETS: [&str; 2] = ["10.244.0.0/16", "fd00:244::/48"];
/// Addresses of its two links; those of the first are its `InternalIP`s.
pub const ADDRESSES: [[&str; 2]; 2] = [["192.0.2.10", "2001:db8:1::10"], ["198.51.100.10", "2001:db8:2::10"]];
/// An address of each family that is neither a pod's nor the node's.
pub const OUTSIDE: [&str; 2] = ["203.0.113.7", "2001:db8:f::7"];

/// A network namespace with the node's links. What an earlier run left behind is removed first.
pub fn namespace() -> Result<Namespace> {
    sweep()?;
    let namespace = Namespace::new(&format!("{PREFIX}{}-kube-proxy", std::process::id()))?;
    namespace.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
    // No connection of this namespace may take a port that kube-proxy is to listen on: node ports and health checks are above.
    namespace.sysctl("net/ipv4/ip_local_port_range", "11000 19999")?;
    namespace.ip("link set lo up")?;
    for (number, [v4, v6]) in ADDRESSES.iter().enumerate() {
        namespace.ip(&format!(
            "link add eth{number} type veth peer name peer{number}\n\
             link set peer{number} up\n\
             link set eth{number} up\n\
             address add {v4}/24 dev eth{number}\n\
             address add {v6}/64 dev eth{number} nodad"
        ))?;
    }
    Ok(namespace)
}

/// All addresses of its links.
pub fn addresses() -> &'static BTreeSet<IpAddr> {
    static ALL: LazyLock<BTreeSet<IpAddr>> =
        LazyLock::new(|| ADDRESSES.iter().flatten().map(|text| address(text)).collect());
    &ALL
}

/// The first of each family.
pub fn primary(v4: bool) -> IpAddr {
    address(ADDRESSES[0][usize::from(!v4)])
}

/// Parses an address that is written in this code.
pub fn address(text: &str) -> IpAddr {
    text.parse().expect("an address of this code")
}

/// Parses a network that is written in this code.
pub fn network(text: &str) -> IpNet {
    text.parse().expect("a network of this code")
}

/// Its Node object; `zone`: its label, if it has one.
pub fn object(zone: Option<&str>) -> Value {
    let mut labels = json!({"kubernetes.io/hostname": NAME});
    if let Some(zone) = zone {
        labels["topology.kubernetes.io/zone"] = zone.into();
    }
    let addresses: Vec<Value> =
        ADDRESSES[0].iter().map(|address| json!({"type": "InternalIP", "address": address})).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NAME, "labels": labels},
        "spec": {"podCIDRs": ["10.244.0.0/24", "fd00:244::/64"]},
        "status": {"addresses": addresses},
    })
}
