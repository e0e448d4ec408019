//! A sentinel service: its port and endpoints carry the number of the batch, so that kube-proxy's rules show how far it has read.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use serde_json::{Value, json};

use super::evaluate;
use super::node::{self, ZONES};
use super::packet::{Client, Position, Probe};
use super::ruleset::Ruleset;
use super::verdict::Fate;
use lb_model::Protocol;
use lb_plan::plan::Frontend;

const NAMESPACE: &str = "sentinel";
const ADDRESSES: [&str; 2] = ["10.96.255.254", "fd00:96::ffff:fffe"];

/// Whether an object belongs to it.
pub fn is_one(object: &Value) -> bool {
    object["metadata"]["namespace"] == NAMESPACE
}

/// Whether this is its cluster IP.
pub fn has_address(address: IpAddr) -> bool {
    ADDRESSES.iter().any(|own| node::address(own) == address)
}

/// The Service of a batch.
pub fn service(batch: u16) -> Value {
    json!({
        "metadata": {"namespace": NAMESPACE, "name": "sentinel", "uid": "sentinel"},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": ADDRESSES[0],
            "clusterIPs": ADDRESSES,
            "ipFamilies": ["IPv4", "IPv6"],
            "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None",
            "ports": [{"name": "batch", "port": batch, "protocol": "TCP"}],
        },
    })
}

/// Its slices, in the order to be sent: an endpoint for each zone.
pub fn slices(batch: u16) -> [Value; 2] {
    [true, false].map(|v4| {
        let endpoint = |(zone, name): (usize, &str)| {
            json!({
                "addresses": [endpoint(v4, batch, zone).ip()],
                "conditions": {"ready": true},
                "hints": {"forZones": [{"name": name}]},
            })
        };
        let name = if v4 { "sentinel-4" } else { "sentinel-6" };
        let labels = json!({"kubernetes.io/service-name": "sentinel"});
        json!({
            "metadata": {"namespace": NAMESPACE, "name": name, "uid": name, "labels": labels},
            "addressType": if v4 { "IPv4" } else { "IPv6" },
            "ports": [{"name": "batch", "port": 1, "protocol": "TCP"}],
            "endpoints": ZONES.into_iter().enumerate().map(endpoint).collect::<Vec<_>>(),
        })
    })
}

fn endpoint(v4: bool, batch: u16, zone: usize) -> SocketAddr {
    let [high, low] = batch.to_be_bytes();
    let ip = if v4 { format!("198.{}.{high}.{low}", 16 + zone) } else { format!("fd00:198:{zone}::{batch:x}") };
    SocketAddr::new(node::address(&ip), 1)
}

/// Whether both families serve this batch, for a node in this zone.
pub fn is_in(rules: &Ruleset, batch: u16, zone: Option<&str>) -> Result<bool> {
    for v4 in [true, false] {
        let address = node::address(ADDRESSES[usize::from(!v4)]);
        let zones = (0..ZONES.len()).filter(|number| zone.is_none_or(|zone| zone == ZONES[*number]));
        let wanted: BTreeSet<SocketAddr> = zones.map(|zone| endpoint(v4, batch, zone)).collect();
        let client = Client { position: Position::Outside, address: node::address(node::OUTSIDE[usize::from(!v4)]) };
        let probe = Probe { client, frontend: Frontend { address, port: batch, protocol: Protocol::Tcp } };
        if !rules.has_table(v4) || evaluate::fate(rules, &probe)?.fate != Fate::Served(wanted) {
            return Ok(false);
        }
    }
    Ok(true)
}
