//! What the survey of all nodes found, as a table and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::compare::Verdict;
use crate::observe::table::aligned;

/// So many services of a node are named in the table.
const SERVICES_SHOWN: usize = 10;
/// Digits of a digest in the table.
const DIGITS_SHOWN: usize = 12;

/// All nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetReport {
    /// The digest of most nodes; null: no node has one.
    pub reference: Option<String>,
    /// How many nodes there are in each state.
    pub totals: Totals,
    /// Seconds that the survey took.
    pub seconds: f64,
    pub nodes: Vec<NodeReport>,
}

/// How many nodes there are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    pub same: usize,
    pub differs: usize,
    pub behind: usize,
    pub stale: usize,
    pub starting: usize,
    pub no_answer: usize,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    pub node: String,
    /// `same`, `differs`, `behind`, `stale`, `starting` or `no answer`.
    pub state: &'static str,
    /// Why it is not `same`; null: the state says all.
    pub reason: Option<String>,
    /// Of the agent; null: it does not answer. So are the next ones.
    pub version: Option<String>,
    pub freshness_seconds: Option<f64>,
    pub lag_seconds: Option<f64>,
    pub digest: Option<String>,
    /// Services in which the node differs from most others, as `NAMESPACE/NAME`.
    pub services: Vec<String>,
}

impl Verdict {
    /// The word for it.
    pub fn state(&self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Differs => "differs",
            Self::Behind(_) => "behind",
            Self::Stale(_) => "stale",
            Self::Starting => "starting",
            Self::NoAnswer(_) => "no answer",
        }
    }

    /// Why, where the word does not say all.
    pub fn reason(self) -> Option<String> {
        match self {
            Self::Same | Self::Differs => None,
            Self::Starting => Some("its tables do not hold the first list yet".to_owned()),
            Self::Behind(reason) | Self::Stale(reason) | Self::NoAnswer(reason) => Some(reason),
        }
    }
}

impl Totals {
    pub fn count(&mut self, verdict: &Verdict) {
        *match verdict {
            Verdict::Same => &mut self.same,
            Verdict::Differs => &mut self.differs,
            Verdict::Behind(_) => &mut self.behind,
            Verdict::Stale(_) => &mut self.stale,
            Verdict::Starting => &mut self.starting,
            Verdict::NoAnswer(_) => &mut self.no_answer,
        } += 1;
    }

    fn all(self) -> [(usize, &'static str); 6] {
        [
            (self.same, "same"),
            (self.differs, "differ"),
            (self.behind, "behind"),
            (self.stale, "stale"),
            (self.starting, "starting"),
            (self.no_answer, "do not answer"),
        ]
    }
}

impl FleetReport {
    /// Whether all nodes are in sync.
    pub fn is_same(&self) -> bool {
        self.totals.same == self.nodes.len()
    }
}

/// As a table of all nodes, or of those that are not in sync; below it each of these with its reason and services, and the totals.
pub fn table(report: &FleetReport, problems_only: bool) -> String {
    let seconds = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1}s"));
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    let shown: Vec<&NodeReport> =
        report.nodes.iter().filter(|node| !problems_only || node.state != Verdict::Same.state()).collect();
    let rows = shown.iter().map(|node| {
        let digest = node.digest.as_ref().map(|digest| digest.chars().take(DIGITS_SHOWN).collect());
        vec![
            node.node.clone(),
            text(&node.version),
            seconds(node.freshness_seconds),
            seconds(node.lag_seconds),
            text(&digest),
            node.state.to_owned(),
        ]
    });
    let mut out = String::new();
    if !shown.is_empty() {
        out = aligned(&["NODE", "VERSION", "FRESHNESS", "LAG", "DIGEST", "STATE"], rows) + "\n";
    }
    for node in report.nodes.iter().filter(|node| node.state != Verdict::Same.state()) {
        // Writing to a string does not fail.
        let _ = writeln!(out, "{}", line(node));
    }
    let totals: Vec<String> = report
        .totals
        .all()
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    let _ = writeln!(out, "{} nodes in {:.1} s: {}", report.nodes.len(), report.seconds, totals.join(", "));
    out
}

fn line(node: &NodeReport) -> String {
    let mut line = format!("{}: {}", node.node, node.state);
    if let Some(reason) = &node.reason {
        let _ = write!(line, ": {reason}");
    }
    if !node.services.is_empty() {
        let named: Vec<&str> = node.services.iter().take(SERVICES_SHOWN).map(String::as_str).collect();
        let more = node.services.len() - named.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let _ = write!(line, "{} in {}{more}", if node.reason.is_some() { "; differs" } else { "" }, named.join(", "));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> FleetReport {
        let mut report = FleetReport { seconds: 1.26, ..FleetReport::default() };
        let services = (0..12).map(|number| format!("demo/s{number:02}")).collect();
        for (node, verdict, services) in [
            ("n1", Verdict::Same, Vec::new()),
            ("n2", Verdict::Differs, services),
            ("n3", Verdict::Stale("the API does not answer for 40 s".to_owned()), vec!["demo/web".to_owned()]),
            ("n4", Verdict::NoAnswer("connection refused".to_owned()), Vec::new()),
        ] {
            report.totals.count(&verdict);
            let answered = !matches!(verdict, Verdict::NoAnswer(_));
            report.nodes.push(NodeReport {
                node: node.to_owned(),
                state: verdict.state(),
                reason: verdict.reason(),
                version: answered.then(|| "0.1.0".to_owned()),
                freshness_seconds: answered.then_some(2.04),
                lag_seconds: answered.then_some(0.0),
                digest: answered.then(|| "0123456789abcdef".to_owned()),
                services,
            });
        }
        report
    }

    #[test]
    fn the_table_names_nodes_and_services() {
        let text = table(&report(), false);
        let expected = "\
NODE  VERSION  FRESHNESS  LAG   DIGEST        STATE
n1    0.1.0    2.0s       0.0s  0123456789ab  same
n2    0.1.0    2.0s       0.0s  0123456789ab  differs
n3    0.1.0    2.0s       0.0s  0123456789ab  stale
n4    -        -          -     -             no answer

n2: differs in demo/s00, demo/s01, demo/s02, demo/s03, demo/s04, demo/s05, demo/s06, demo/s07, demo/s08, demo/s09 and 2 more
n3: stale: the API does not answer for 40 s; differs in demo/web
n4: no answer: connection refused
4 nodes in 1.3 s: 1 same, 1 differ, 1 stale, 1 do not answer
";
        assert_eq!(text, expected);
        assert!(!table(&report(), true).contains("\nn1 "));
    }

    #[test]
    fn a_fleet_in_sync_is_one_line_with_problems_only() {
        let mut report = report();
        report.nodes.truncate(1);
        report.totals = Totals { same: 1, ..Totals::default() };
        assert!(report.is_same());
        assert_eq!(table(&report, true), "1 nodes in 1.3 s: 1 same\n");
    }
}
