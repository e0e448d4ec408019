//! The whole comparison: batch by batch, with several settings of the node.

use std::collections::HashSet;
use std::fmt;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::case::Inputs;
use super::compare::{Comparison, Difference};
use super::distort::{DISTORTIONS, Distortion};
use super::health::Counts;
use super::node::ZONES;
use super::settings::ProxySettings;
use super::{KubeProxy, ballast, generate, sentinel};

/// Clusters that kube-proxy is shown at once.
const BATCH: u8 = 100;
/// A distortion that shows in none of so many batches shows in none.
const DISTORTED_BATCHES_MAX: u64 = 20;
/// After so many differing clusters the run ends: they likely have one cause.
const DIFFERING_MAX: usize = 5;

/// A cluster on which both differ.
#[derive(Debug)]
pub struct Differing {
    pub seed: u64,
    pub zone: Option<&'static str>,
    pub settings: ProxySettings,
    pub differences: Vec<Difference>,
    pub health: Vec<Counts>,
    pub yaml: String,
}

impl fmt::Display for Differing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let zone = self.zone.unwrap_or("unknown");
        let ProxySettings { nodeport_addresses, external_ips, proxy_name, .. } = &self.settings;
        writeln!(
            f,
            "seed {}, zone {zone}, node ports on {nodeport_addresses:?}, external IPs {external_ips}, proxy name {proxy_name:?}",
            self.seed
        )?;
        self.differences.iter().try_for_each(|difference| writeln!(f, "  {difference}"))?;
        self.health.iter().try_for_each(|counts| writeln!(f, "  {counts}"))?;
        f.write_str(&self.yaml)
    }
}

/// Compares so many batches of clusters with each of the settings, and adds what it finds to `comparison`. The clusters follow those that it has
/// seen: the first of all has this seed.
pub fn run(comparison: &mut Comparison, batches: usize, first_seed: u64) -> Result<Vec<Differing>> {
    let mut differing = Vec::new();
    for settings in &ProxySettings::all() {
        let mut reference = KubeProxy::start(settings)?;
        for _ in 0..batches {
            let seen = comparison.clusters;
            let zone = [Some(ZONES[0]), None, Some(ZONES[1]), Some(ZONES[2])][seen / usize::from(BATCH) % 4];
            let inputs: Vec<Inputs> = batch(settings, first_seed + u64::try_from(seen)?).collect();
            differing.extend(compare_batch(comparison, &mut reference, &inputs, zone)?);
            if differing.len() >= DIFFERING_MAX {
                return Ok(differing);
            }
        }
    }
    Ok(differing)
}

/// How many packets differ by each distortion; the first line is without any. Random clusters may lack what a distortion changes: batch after
/// batch follows until each has shown, at most [`DISTORTED_BATCHES_MAX`]. A batch has
/// `size` clusters, 100 at most.
pub fn run_distorted(first_seed: u64, size: usize) -> Result<Vec<(&'static str, usize)>> {
    let settings = &ProxySettings::all()[0];
    let zone = Some(ZONES[0]);
    let mut reference = KubeProxy::start(settings)?;
    let truth = Distortion { name: "nothing", apply: |_| {} };
    let mut found: Vec<(&Distortion, usize)> = [&truth].into_iter().chain(&DISTORTIONS).map(|one| (one, 0)).collect();
    for turn in 0..DISTORTED_BATCHES_MAX {
        let inputs: Vec<Inputs> = batch(settings, first_seed + turn * u64::from(BATCH)).take(size).collect();
        let services: Vec<_> = inputs.iter().flat_map(|inputs| inputs.cluster.served_services(settings)).collect();
        let slices: Vec<_> = inputs.iter().flat_map(|inputs| inputs.cluster.served_slices()).collect();
        let rules = reference.rules_for(zone, &services, &slices)?;
        for (distortion, differences) in found.iter_mut().filter(|(_, differences)| *differences == 0) {
            let mut comparison = Comparison::default();
            for inputs in &inputs {
                let mut distorted = inputs.clone();
                (distortion.apply)(&mut distorted);
                let ballast = ballast::inputs(&distorted, zone)?;
                comparison.compare(&rules, inputs, zone, &ballast, &mut HashSet::new())?;
            }
            *differences = comparison.differences;
        }
        if found[1..].iter().all(|(_, differences)| *differences > 0) {
            break;
        }
    }
    Ok(found.into_iter().map(|(distortion, differences)| (distortion.name, differences)).collect())
}

fn batch(settings: &ProxySettings, seed: u64) -> impl Iterator<Item = Inputs> {
    (0..BATCH).map(move |place| Inputs {
        cluster: settings.adapt(generate::cluster(seed + u64::from(place), place)),
        settings: settings.clone(),
    })
}

fn compare_batch(
    comparison: &mut Comparison,
    reference: &mut KubeProxy,
    inputs: &[Inputs],
    zone: Option<&'static str>,
) -> Result<Vec<Differing>> {
    let started = Instant::now();
    let services: Vec<_> = inputs.iter().flat_map(|inputs| inputs.cluster.served_services(&inputs.settings)).collect();
    let slices: Vec<_> = inputs.iter().flat_map(|inputs| inputs.cluster.served_slices()).collect();
    let rules = reference.rules_for(zone, &services, &slices)?;
    let shown = started.elapsed();
    let mut asked = HashSet::new();
    let mut found = Vec::new();
    for inputs in inputs {
        let asking = || format!("cluster of seed {}:\n{}", inputs.cluster.seed, inputs.cluster.yaml());
        let ballast = ballast::inputs(inputs, zone).with_context(asking)?;
        let differences = comparison.compare(&rules, inputs, zone, &ballast, &mut asked).with_context(asking)?;
        let health = comparison.compare_health(reference.netns(), inputs, ballast.planner.desired());
        if !differences.is_empty() || !health.is_empty() {
            found.push((inputs, differences, health));
        }
    }
    // Whatever kube-proxy serves was asked about.
    for (address, protocol, port) in rules.served_addresses() {
        let known = asked.contains(&(address, protocol, port)) || sentinel::has_address(address);
        ensure!(known, "kube-proxy serves {address} port {port}/{protocol}, which no cluster names");
    }
    println!(
        "{} clusters, zone {}: rules in {:.1} s, compared in {:.1} s, {} differ",
        inputs.len(),
        zone.unwrap_or("unknown"),
        shown.as_secs_f64(),
        started.elapsed().saturating_sub(shown).as_secs_f64(),
        found.len()
    );
    found.truncate(DIFFERING_MAX);
    let differing = found.into_iter().map(|(inputs, differences, health)| Differing {
        seed: inputs.cluster.seed,
        zone,
        differences,
        health,
        yaml: inputs.cluster.yaml(),
        settings: inputs.settings.clone(),
    });
    Ok(differing.collect())
}
