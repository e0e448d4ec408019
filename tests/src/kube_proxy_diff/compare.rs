//! Compares both answers to every probe of a cluster, and names what explains the differences.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::net::IpAddr;

use anyhow::{Result, ensure};
use lb_model::Protocol;
use lb_plan::plan::{Desired, Frontend, FrontendKind};

use super::ballast::{self, Ballast};
use super::case::{Case, Inputs};
use super::evaluate;
use super::health::{self, Counts};
use super::intended_differences::{KNOWN, Reading, without_stand_ins};
use super::packet::{Position, Probe};
use super::probes::{claims, probes};
use super::ruleset::Ruleset;
use super::verdict::{Answer, Fate};
use crate::topology::NetNs;

/// One packet that meets different fates, and no decision explains it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub probe: Probe,
    pub reference: Answer,
    pub subject: Answer,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: kube-proxy: {}; Ballast: {}", self.probe, self.reference, self.subject)
    }
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Comparison {
    pub clusters: usize,
    pub packets: usize,
    pub health_checks: usize,
    /// Summed over the clusters.
    pub frontends: usize,
    /// Packets that differ as they should, by the name of the decision.
    pub known: BTreeMap<&'static str, usize>,
    /// Packets that differ, and should not.
    pub differences: usize,
    /// Packets by the kind of their frontend, where the client is, and what kube-proxy does.
    pub fates: BTreeMap<(Option<FrontendKind>, Position), BTreeMap<&'static str, usize>>,
}

impl Comparison {
    /// Asks both about everything in this cluster; what is asked about is added to `asked`.
    pub fn compare(
        &mut self,
        rules: &Ruleset,
        inputs: &Inputs,
        zone: Option<&str>,
        ballast: &Ballast,
        asked: &mut HashSet<(IpAddr, Protocol, u16)>,
    ) -> Result<Vec<Difference>> {
        let claims = claims(&inputs.cluster);
        let nobody = BTreeSet::new();
        let mut differences = Vec::new();
        self.clusters += 1;
        let desired = ballast.planner.desired();
        // No packet goes to the unspecified address: what is served there is for sockets alone.
        let owned = desired.owners.keys().copied().filter(|frontend| !frontend.address.is_unspecified());
        for probe in probes(&inputs.cluster, owned) {
            let reference = evaluate::fate(rules, &probe)?;
            let subject = ballast::fate(desired, &probe);
            let by_tables = ballast::fate_by_tables(&ballast.tables, &probe)?;
            ensure!(by_tables == subject, "{probe}: by the plan {subject}, by the tables {by_tables}");
            let claims = claims.get(&probe.frontend).unwrap_or(&nobody);
            self.packets += 1;
            let Frontend { address, port, protocol } = probe.frontend;
            if !asked.contains(&(address, protocol, port)) {
                asked.insert((address, protocol, port));
                self.frontends += 1;
            }
            let kind = claims.iter().map(|claim| claim.kind).min();
            let fates = self.fates.entry((kind, probe.client.position)).or_default();
            *fates.entry(word(&reference.fate)).or_default() += 1;
            if same(&reference, &subject) {
                continue;
            }
            let case = Case { inputs, probe, claims, reference: &reference, subject: &subject };
            match explanation(&case, zone)? {
                Some(name) => *self.known.entry(name).or_default() += 1,
                None => differences.push(Difference { probe, reference, subject }),
            }
        }
        self.differences += differences.len();
        Ok(differences)
    }

    /// Asks both on the health-check node ports.
    pub fn compare_health(&mut self, netns: &NetNs, inputs: &Inputs, desired: &Desired) -> Vec<Counts> {
        let mut counts = health::compare(netns, inputs, desired);
        self.health_checks += counts.len();
        counts.retain(|counts| counts.reference != counts.subject);
        self.differences += counts.len();
        counts
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "packets by frontend and client, and what kube-proxy does:")?;
        for ((kind, position), fates) in &self.fates {
            let kind = kind.map_or_else(|| "none".to_owned(), |kind| format!("{kind:?}"));
            writeln!(f, "  {kind:13} {:8} {}", format!("{position:?}"), counts(fates))?;
        }
        writeln!(f, "known differences:")?;
        for known in &KNOWN {
            writeln!(f, "  {:6} {}: {}", self.known.get(known.name).unwrap_or(&0), known.name, known.reason)?;
        }
        write!(
            f,
            "clusters compared: {}, frontends compared: {}, packets: {}, health-check ports: {}, differences: {}, known differences: {}",
            self.clusters,
            self.frontends,
            self.packets,
            self.health_checks,
            self.differences,
            self.known.values().sum::<usize>()
        )
    }
}

fn counts(of: &BTreeMap<&'static str, usize>) -> String {
    let texts: Vec<String> = of.iter().map(|(word, count)| format!("{word} {count}")).collect();
    texts.join(", ")
}

fn word(fate: &Fate) -> &'static str {
    match fate {
        Fate::Passed => "no service",
        Fate::Served(_) => "served",
        Fate::Rejected => "rejected",
        Fate::Dropped => "dropped",
    }
}

fn same(reference: &Answer, subject: &Answer) -> bool {
    reference.fate == subject.fate
        && (!matches!(subject.fate, Fate::Served(_))
            || (reference.affinity_s == subject.affinity_s && reference.masqueraded == subject.masqueraded))
}

/// The decision that explains the case: told as kube-proxy takes it, Ballast gives kube-proxy's answer.
fn explanation(case: &Case<'_>, zone: Option<&str>) -> Result<Option<&'static str>> {
    let concerned: Vec<_> = KNOWN.iter().filter(|known| (known.concerns)(case)).collect();
    let mut readings = vec![case.inputs.clone()];
    for known in &concerned {
        match known.as_kube_proxy {
            Reading::Unchecked => return Ok(Some(known.name)),
            Reading::Otherwise(rewrite) => readings.iter_mut().for_each(rewrite),
            Reading::Chance(alternatives) => {
                readings = readings.iter().flat_map(|inputs| alternatives(case, inputs)).collect();
            }
        }
    }
    let Some(first) = concerned.first() else { return Ok(None) };
    for inputs in &readings {
        let answer = ballast::fate_if_told(inputs, zone, &case.probe)?;
        if same(case.reference, &without_stand_ins(answer)) {
            return Ok(Some(first.name));
        }
    }
    Ok(None)
}
