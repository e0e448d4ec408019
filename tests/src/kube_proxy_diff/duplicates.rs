//! Endpoints that are in several slices with different conditions: kube-proxy takes one of them, whichever its map yields.

use std::collections::BTreeMap;

use serde_json::Value;

use super::case::{Case, Inputs, slices_of};
use super::cluster::Cluster;

/// More combinations than these are not tried.
const CHOICES_MAX: usize = 256;

/// Where an endpoint stands: slice, and place in it.
type Place = (usize, usize);

/// Groups of endpoints with one address and port that contradict each other, for the port that the packet goes to.
pub fn of(case: &Case<'_>, inputs: &Inputs) -> Vec<Vec<Place>> {
    let v4 = case.probe.frontend.address.is_ipv4();
    let of_claim = |claim: &super::probes::Claim| {
        let service = &inputs.cluster.services[claim.service];
        contradicting(&inputs.cluster, service, Some(&service["spec"]["ports"][claim.port]), v4)
    };
    case.served_claims().flat_map(of_claim).collect()
}

/// Whether one port of a service's slices has such endpoints, be it a port of the service or not.
pub fn has_any(cluster: &Cluster, service: &Value) -> bool {
    [true, false].into_iter().any(|v4| !contradicting(cluster, service, None, v4).is_empty())
}

/// The objects if of each group one endpoint alone is left.
pub fn each_kept_alone(case: &Case<'_>, inputs: &Inputs) -> Vec<Inputs> {
    let mut choices: Vec<Vec<Place>> = vec![Vec::new()];
    for group in of(case, inputs) {
        let without = |kept: &Place| group.iter().filter(|place| *place != kept).copied().collect::<Vec<_>>();
        let extended =
            |gone: &Vec<Place>| group.iter().map(|kept| [gone.clone(), without(kept)].concat()).collect::<Vec<_>>();
        choices = choices.iter().flat_map(extended).take(CHOICES_MAX).collect();
    }
    choices
        .into_iter()
        .map(|mut gone| {
            let mut inputs = inputs.clone();
            // From behind, so that places stay what they are.
            gone.sort_unstable();
            gone.dedup();
            for (slice, endpoint) in gone.into_iter().rev() {
                if let Some(endpoints) = inputs.cluster.slices[slice]["endpoints"].as_array_mut() {
                    endpoints.remove(endpoint);
                }
            }
            inputs
        })
        .collect()
}

/// At this port of the service, or at any port of its slices.
fn contradicting(cluster: &Cluster, service: &Value, port: Option<&Value>, v4: bool) -> Vec<Vec<Place>> {
    let identity = |port: &Value| {
        let text = |field: &str, absent: &str| port[field].as_str().unwrap_or(absent).to_owned();
        (text("name", ""), text("protocol", "TCP"))
    };
    let wanted = port.map(identity);
    let mut groups: BTreeMap<_, Vec<Place>> = BTreeMap::new();
    for (slice, object) in slices_of(cluster, service, v4) {
        for port in object["ports"].as_array().into_iter().flatten() {
            let (identity, Some(number)) = (identity(port), port["port"].as_u64()) else { continue };
            if wanted.as_ref().is_some_and(|wanted| *wanted != identity) {
                continue;
            }
            for (place, endpoint) in object["endpoints"].as_array().into_iter().flatten().enumerate() {
                groups
                    .entry((endpoint["addresses"][0].to_string(), identity.clone(), number))
                    .or_default()
                    .push((slice, place));
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
