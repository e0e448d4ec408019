//! Health-check node ports: the number of local endpoints that kube-proxy reports, and Ballast's.

use std::fmt;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lb_plan::plan::{Desired, NodePortAddresses};
use serde_json::Value;

use super::case::{Inputs, slices_of};
use super::cluster::Cluster;
use super::duplicates;
use super::intended_differences::has_stand_in;
use super::node::ADDRESSES;
use crate::topology::NetNs;

/// How long kube-proxy may take after its rules are written.
const SETTLE_LIMIT: Duration = Duration::from_mins(1);
const ASK_LIMIT: Duration = Duration::from_secs(5);
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Both answers on a port: how many endpoints of the service are here and ready; `None`: nobody listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    pub port: u16,
    pub reference: Option<u64>,
    pub subject: Option<u64>,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |count: Option<u64>| count.map_or_else(|| "nobody".to_owned(), |count| format!("{count} endpoints"));
        let (reference, subject) = (text(self.reference), text(self.subject));
        write!(f, "health check on {}: kube-proxy: {reference}; Ballast: {subject}", self.port)
    }
}

/// Asks kube-proxy in `netns` on every port that the objects name, until it agrees or its time is over.
pub fn compare(netns: &NetNs, inputs: &Inputs, desired: &Desired) -> Vec<Counts> {
    let port_of =
        |service: &Value| service["spec"]["healthCheckNodePort"].as_u64().and_then(|port| u16::try_from(port).ok());
    let mut counts = Vec::new();
    for service in &inputs.cluster.services {
        let Some(port) = port_of(service) else { continue };
        let sharing = inputs.cluster.services.iter().filter(|other| port_of(other) == Some(port)).count();
        // Where two have one port, kube-proxy serves one by chance.
        if sharing > 1 || counts_otherwise(&inputs.cluster, service) || listens_on(inputs).is_none() {
            continue;
        }
        let wanted = desired.health_checks.get(&port).map(|check| check.local_ready as u64);
        let started = Instant::now();
        let mut said = ask_both(netns, inputs, port);
        while said != wanted && started.elapsed() < SETTLE_LIMIT {
            std::thread::sleep(ASK_EVERY);
            said = ask_both(netns, inputs, port);
        }
        counts.push(Counts { port, reference: said, subject: wanted });
    }
    counts
}

/// The link on whose addresses kube-proxy listens: where node ports are served.
fn listens_on(inputs: &Inputs) -> Option<usize> {
    match &inputs.settings.nodeport_addresses {
        NodePortAddresses::Cidrs(nets) => ADDRESSES.iter().position(|of_link| {
            nets.iter()
                .any(|net| of_link.iter().any(|text| text.parse().is_ok_and(|ip: std::net::IpAddr| net.contains(&ip))))
        }),
        _ => Some(0),
    }
}

/// kube-proxy counts each family by itself: the higher count, as a pod of both families is one.
fn ask_both(netns: &NetNs, inputs: &Inputs, port: u16) -> Option<u64> {
    let link = listens_on(inputs)?;
    let ask = |text: &str| ask(netns, SocketAddr::new(text.parse().ok()?, port)).ok();
    ADDRESSES[link].iter().filter_map(|text| ask(text)).max()
}

fn ask(netns: &NetNs, address: SocketAddr) -> Result<u64> {
    let mut stream = netns.run(|| TcpStream::connect_timeout(&address, ASK_LIMIT))?;
    stream.set_read_timeout(Some(ASK_LIMIT))?;
    write!(stream, "GET / HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").context("no body")?;
    let body: Value = serde_json::from_str(body)?;
    body["localEndpoints"].as_u64().context("no localEndpoints")
}

/// Whether kube-proxy and Ballast count other endpoints of this service, by a decision or by chance.
fn counts_otherwise(cluster: &Cluster, service: &Value) -> bool {
    let slices = [true, false].into_iter().flat_map(|v4| slices_of(cluster, service, v4));
    let mut endpoints = slices.flat_map(|(_, slice)| slice["endpoints"].as_array().into_iter().flatten());
    endpoints.any(has_stand_in) || duplicates::has_any(cluster, service)
}
