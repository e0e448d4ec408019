//! Shrinks a cluster to a smaller one on which both still differ.

use std::collections::HashSet;

use anyhow::Result;

use super::case::Told;
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
    told: &Told,
    zone: Option<&str>,
    differences: Vec<Difference>,
) -> Result<(Told, Vec<Difference>)> {
    let (mut told, mut differences) = (told.clone(), differences);
    if differences.is_empty() {
        return Ok((told, differences));
    }
    let mut tries = 0;
    while let Some((smaller, left)) = smaller(reference, &told, zone, &mut tries)? {
        (told, differences) = (smaller, left);
    }
    Ok((told, differences))
}

fn smaller(
    reference: &mut KubeProxy,
    told: &Told,
    zone: Option<&str>,
    tries: &mut usize,
) -> Result<Option<(Told, Vec<Difference>)>> {
    for part in parts(told) {
        if *tries >= TRIES_MAX {
            return Ok(None);
        }
        *tries += 1;
        let mut candidate = told.clone();
        leave_out(&mut candidate, part);
        let cluster = &candidate.cluster;
        let rules =
            reference.rules_for(zone, &cluster.served_services(&candidate.settings), &cluster.served_slices())?;
        let ballast = ballast::told(&candidate, zone)?;
        let differences = Comparison::default().compare(&rules, &candidate, zone, &ballast, &mut HashSet::new())?;
        if !differences.is_empty() {
            return Ok(Some((candidate, differences)));
        }
    }
    Ok(None)
}

/// The large parts first.
fn parts(told: &Told) -> Vec<Part> {
    let cluster = &told.cluster;
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

fn leave_out(told: &mut Told, part: Part) {
    let cluster = &mut told.cluster;
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
