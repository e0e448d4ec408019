//! Endpoints that are in several slices with different conditions: kube-proxy takes one of them, whichever its map yields.

use std::collections::BTreeMap;

use serde_json::Value;

use super::case::{Case, Told, slices_of};
use super::cluster::Cluster;

/// More combinations than these are not tried.
const CHOICES_MAX: usize = 256;

/// Where an endpoint stands: slice, and place in it.
type Place = (usize, usize);

/// Groups of endpoints with one address and port that contradict each other, for the port that the packet goes to.
pub fn of(case: &Case<'_>, told: &Told) -> Vec<Vec<Place>> {
    let v4 = case.probe.frontend.address.is_ipv4();
    let of_claim = |claim: &super::probes::Claim| {
        let service = &told.cluster.services[claim.service];
        contradicting(&told.cluster, service, &service["spec"]["ports"][claim.port], v4)
    };
    case.served_claims().flat_map(of_claim).collect()
}

/// Whether one port of a service has such endpoints.
pub fn has_any(cluster: &Cluster, service: &Value) -> bool {
    let ports = || service["spec"]["ports"].as_array().into_iter().flatten();
    [true, false].into_iter().any(|v4| ports().any(|port| !contradicting(cluster, service, port, v4).is_empty()))
}

/// What is told if of each group one endpoint alone is left.
pub fn each_kept_alone(case: &Case<'_>, told: &Told) -> Vec<Told> {
    let mut choices: Vec<Vec<Place>> = vec![Vec::new()];
    for group in of(case, told) {
        let without = |kept: &Place| group.iter().filter(|place| *place != kept).copied().collect::<Vec<_>>();
        let extended =
            |gone: &Vec<Place>| group.iter().map(|kept| [gone.clone(), without(kept)].concat()).collect::<Vec<_>>();
        choices = choices.iter().flat_map(extended).take(CHOICES_MAX).collect();
    }
    choices
        .into_iter()
        .map(|mut gone| {
            let mut told = told.clone();
            // From behind, so that places stay what they are.
            gone.sort_unstable();
            gone.dedup();
            for (slice, endpoint) in gone.into_iter().rev() {
                if let Some(endpoints) = told.cluster.slices[slice]["endpoints"].as_array_mut() {
                    endpoints.remove(endpoint);
                }
            }
            told
        })
        .collect()
}

fn contradicting(cluster: &Cluster, service: &Value, port: &Value, v4: bool) -> Vec<Vec<Place>> {
    let identity = |port: &Value| {
        let text = |field: &str, absent: &str| port[field].as_str().unwrap_or(absent).to_owned();
        (text("name", ""), text("protocol", "TCP"))
    };
    let wanted = identity(port);
    let mut groups: BTreeMap<(String, u64), Vec<Place>> = BTreeMap::new();
    for (slice, object) in slices_of(cluster, service, v4) {
        let fitting = object["ports"].as_array().into_iter().flatten().filter(|port| identity(port) == wanted);
        for number in fitting.filter_map(|port| port["port"].as_u64()) {
            for (place, endpoint) in object["endpoints"].as_array().into_iter().flatten().enumerate() {
                groups.entry((endpoint["addresses"][0].to_string(), number)).or_default().push((slice, place));
            }
        }
    }
    let endpoint = |(slice, place): &Place| &cluster.slices[*slice]["endpoints"][*place];
    let differ =
        |one: &Value, other: &Value| ["conditions", "nodeName", "hints"].iter().any(|field| one[field] != other[field]);
    let groups =
        groups.into_values().filter(|group| group.iter().any(|place| differ(endpoint(place), endpoint(&group[0]))));
    groups.collect()
}
