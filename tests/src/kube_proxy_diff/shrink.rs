//! Shrinks a cluster to a smaller one on which both still differ.

use std::collections::HashSet;

use anyhow::Result;

use super::case::Inputs;
use super::compare::{Comparison, Difference};
use super::{KubeProxy, ballast};

/// How often kube-proxy is asked for one cluster: each takes about half a second.
const TRIES_MAX: usize = 40;

/// A part of a cluster that may be left out.
#[derive(Clone, Copy, Debug)]
enum Part {
    Service(usize),
    Slice(usize),
    Endpoint(usize, usize),
    Field(usize, &'static str),
}

/// The smallest that was found, and how both differ on it.
pub fn smallest(
    reference: &mut KubeProxy,
    inputs: &Inputs,
    zone: Option<&str>,
    differences: Vec<Difference>,
) -> Result<(Inputs, Vec<Difference>)> {
    let (mut inputs, mut differences) = (inputs.clone(), differences);
    if differences.is_empty() {
        return Ok((inputs, differences));
    }
    let mut tries = 0;
    while let Some((smaller, left)) = smaller(reference, &inputs, zone, &mut tries)? {
        (inputs, differences) = (smaller, left);
    }
    Ok((inputs, differences))
}

fn smaller(
    reference: &mut KubeProxy,
    inputs: &Inputs,
    zone: Option<&str>,
    tries: &mut usize,
) -> Result<Option<(Inputs, Vec<Difference>)>> {
    for part in parts(inputs) {
        if *tries >= TRIES_MAX {
            return Ok(None);
        }
        *tries += 1;
        let mut candidate = inputs.clone();
        leave_out(&mut candidate, part);
        let cluster = &candidate.cluster;
        let rules =
            reference.rules_for(zone, &cluster.served_services(&candidate.settings), &cluster.served_slices())?;
        let ballast = ballast::inputs(&candidate, zone)?;
        let differences = Comparison::default().compare(&rules, &candidate, zone, &ballast, &mut HashSet::new())?;
        if !differences.is_empty() {
            return Ok(Some((candidate, differences)));
        }
    }
    Ok(None)
}

/// The large parts first.
fn parts(inputs: &Inputs) -> Vec<Part> {
    let cluster = &inputs.cluster;
    let services = (0..cluster.services.len()).map(Part::Service);
    let slices = (0..cluster.slices.len()).map(Part::Slice);
    let endpoints = cluster.slices.iter().enumerate().flat_map(|(slice, object)| {
        let count = object["endpoints"].as_array().map_or(0, Vec::len);
        (0..count).map(move |endpoint| Part::Endpoint(slice, endpoint))
    });
    let fields = cluster.services.iter().enumerate().flat_map(|(service, object)| {
        let fields = ["externalIPs", "loadBalancerSourceRanges", "sessionAffinity"];
        fields
            .into_iter()
            .filter(|field| !object["spec"][*field].is_null())
            .map(move |field| Part::Field(service, field))
    });
    services.chain(slices).chain(endpoints).chain(fields).collect()
}

fn leave_out(inputs: &mut Inputs, part: Part) {
    let cluster = &mut inputs.cluster;
    match part {
        Part::Service(service) => {
            cluster.services.remove(service);
        }
        Part::Slice(slice) => {
            cluster.slices.remove(slice);
        }
        Part::Endpoint(slice, endpoint) => {
            if let Some(endpoints) = cluster.slices[slice]["endpoints"].as_array_mut() {
                endpoints.remove(endpoint);
            }
        }
        Part::Field(service, field) => {
            if let Some(spec) = cluster.services[service]["spec"].as_object_mut() {
                spec.remove(field);
            }
        }
    }
}
