//! `ballast status`: the agent's report beside what the pinned maps and links show without it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use lb_common::outcome::Outcome;
use serde::Serialize;

use super::inventory::Totals;
use super::report::{LinkReport, Report, ShortageReport, SocketsReport, SourceReport, TablesReport};
use super::table::{aligned, or_dash};

/// Everything that `status` shows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// What the agent says of itself; null: it says nothing.
    pub agent: Option<Report>,
    /// Whether one runs, by its report or its locks; null: not known.
    pub agent_running: Option<bool>,
    /// Why there is no report.
    pub agent_error: Option<String>,
    /// The contents of the pinned maps; null: none are pinned.
    pub tables: Option<Totals>,
    pub tables_error: Option<String>,
    /// Revision of the snapshot that the tables hold, as the agent that wrote it counted.
    pub revision: Option<u64>,
    /// Seconds since the tables were last programmed.
    pub programmed_seconds: Option<f64>,
    /// The adoption window; null: it is not open.
    pub adoption: Option<Adoption>,
    /// Packets and socket calls since the maps were made, by outcome; those that never happened are left out.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// What is attached in this network namespace, read from pins and filters.
    pub links: Vec<LinkReport>,
    pub socket_programs: Vec<String>,
    pub links_error: Option<String>,
}

/// The adoption window while it is open.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Adoption {
    /// When it ends, by the wall clock of this moment: programs count seconds since the machine started.
    pub until: Timestamp,
    /// Seconds until then.
    pub seconds: f64,
}

/// As text; `wide` adds every interface, program and outcome.
pub fn text(status: &Status, wide: bool) -> String {
    let mut lines = Lines(Vec::new());
    if let Some(report) = &status.agent {
        agent(&mut lines, report);
    } else {
        let known = match status.agent_running {
            Some(true) => "running, no report",
            Some(false) => "not running",
            None => "not known",
        };
        lines.add("Agent", &format!("{known}: {}", or_dash(status.agent_error.as_ref())));
    }
    tables(&mut lines, status);
    attachments(&mut lines, status);
    let mut text = aligned_pairs(&lines.0);
    if wide {
        add_wide(&mut text, status);
    }
    text
}

struct Lines(Vec<(&'static str, String)>);

impl Lines {
    fn add(&mut self, name: &'static str, value: &str) {
        self.0.push((name, value.to_owned()));
    }

    /// A name once, then one value a line.
    fn list(&mut self, name: &'static str, values: &[String]) {
        for (index, value) in values.iter().enumerate() {
            self.add(if index == 0 { name } else { "" }, value);
        }
    }
}

fn aligned_pairs(lines: &[(&'static str, String)]) -> String {
    let mut text = String::new();
    for (name, value) in lines {
        let label = if name.is_empty() { String::new() } else { format!("{name}:") };
        // Writing to a string does not fail.
        let _ = writeln!(text, "{label:<14} {value}");
    }
    text
}

fn agent(lines: &mut Lines, report: &Report) {
    lines.add("Agent", &format!("running, pid {}, version {}, node {}", report.pid, report.version, report.node_name));
    let health = match (report.health.healthz, report.health.readyz) {
        (true, true) if is_degraded(report) => "healthy and ready, degraded",
        (true, true) => "healthy and ready",
        (true, false) => "healthy, not ready",
        (false, _) => "unhealthy",
    };
    lines.add("Health", health);
    lines.list("", &report.health.faults);
    lines.list("Uplink", report.datapath.no_external_link.as_slice());
    lines.list("Short of room", &report.tables.shortages.iter().map(shortage).collect::<Vec<_>>());
    let source = &report.source;
    let fresh = match (&source.stale, source.synced) {
        (Some(_), _) => "stale",
        (None, false) => "not listed yet",
        (None, true) => "fresh",
    };
    lines.add("Source", &format!("{} {}, revision {}, {fresh}", source.kind, source.origin, source.revision));
    lines.list("", &freshness(source));
    lines.list("API address", source.api_address_problem.as_slice());
    lines.list("Last error", source.last_error.as_slice());
    lines.list("Node", source.missing_node.as_slice());
    lines.list("Behind", report.tables.last_error.as_slice());
    lines.list("Refused", &refusals(report));
    maintenance(lines, &report.tables);
    if report.checks.endpoints > 0 {
        let (endpoints, failing) = (report.checks.endpoints, report.checks.failing);
        lines.add("Checks", &format!("{endpoints} endpoints, {failing} fail"));
        lines.list("", &report.checks.failures);
    }
    lines.add(
        "Socket LB",
        &match &report.datapath.cgroup {
            Some(cgroup) => format!("{} at {cgroup}", report.datapath.socket_lb),
            None => report.datapath.socket_lb.clone(),
        },
    );
    lines.list("", &sockets(&report.sockets));
    lines.add("tc", &report.datapath.tc);
    let fast = &report.datapath.fast_path;
    let open = match (fast.open, fast.open_to_nodes) {
        (true, true) => "on",
        (true, false) => "on between pods of this node",
        (false, _) => "off",
    };
    lines.add("Fast path", &format!("{open} ({})", fast.asked));
    lines.list("", &fast.skips.iter().map(|what| format!("it would skip {what}")).collect::<Vec<_>>());
    let to_nodes = fast.skips_to_nodes.iter().map(|what| format!("to other nodes it would skip {what}"));
    lines.list("", &to_nodes.collect::<Vec<_>>());
    lines.list("", &fast.closed_bridges.iter().map(|bridge| format!("not on {bridge}")).collect::<Vec<_>>());
    let features =
        report.kernel.features.iter().map(|(name, used)| format!("{name} {}", if *used { "yes" } else { "no" }));
    let features: Vec<_> = features.collect();
    lines.add("Kernel", &format!("{}: {}", report.kernel.release, features.join(", ")));
    lines.list("", &report.kernel.lacks);
}

/// Those that are named, and how many more there are.
fn refusals(report: &Report) -> Vec<String> {
    let mut named = [report.source.refusals.as_slice(), report.tables.refusals.as_slice()].concat();
    let more = (report.source.refused + report.tables.refused).saturating_sub(named.len() as u64);
    if more > 0 {
        named.push(format!("and {more} more; correct those that are named, then the next ones are"));
    }
    named
}

/// What was done about sockets whose backend is gone, if anything was.
fn sockets(report: &SocketsReport) -> Vec<String> {
    let destroyed: Vec<_> = report
        .destroyed
        .iter()
        .filter(|(_, count)| **count > 0)
        .map(|(protocol, count)| format!("{count} {}", protocol.to_uppercase()))
        .collect();
    let done =
        (!destroyed.is_empty()).then(|| format!("{} sockets of evicted backends destroyed", destroyed.join(", ")));
    let problem = report.problem.as_ref().map(|problem| format!("sockets may keep a backend that is gone: {problem}"));
    done.into_iter().chain(problem).collect()
}

/// Each resource with the kind and age of its last proof; the API, where it does not answer; what comparisons found.
fn freshness(source: &SourceReport) -> Vec<String> {
    let mut lines = Vec::new();
    if let (Some(false), Some(seconds)) = (source.api_reachable, source.api_seconds) {
        lines.push(format!("the API does not answer for {seconds:.0}s"));
    }
    for (name, age) in &source.age_seconds {
        let mut line = format!("{name} proven {age:.1}s ago");
        if let Some(resource) = source.resources.get(name) {
            if let Some(proof) = &resource.proof {
                let _ = write!(line, " by {}", proof.kind);
            }
            let _ = write!(line, ", {} objects", resource.objects);
            let differences: u64 = resource.differences.values().sum();
            if resource.compares > 0 {
                let _ = write!(line, ", {} compares found {differences} differences", resource.compares);
            }
            if let Some(failing) = &resource.failing {
                let _ = write!(line, "; the API answers {} for {:.0}s", failing.code, failing.seconds);
            }
            if let Some(seconds) = resource.wedged_seconds {
                let _ = write!(line, "; its watch is dead for {seconds:.0}s");
            }
        }
        lines.push(line);
    }
    lines
}

/// Said of a cluster IP that a link of the node has.
pub const LOCAL_CLUSTER_IP: &str =
    "a link of this node has this cluster IP, as with NodeLocal DNSCache: the node answers there by itself";

/// Said of a service port whose new connections are refused for want of room.
pub fn shortage(of: &ShortageReport) -> String {
    const NO_PORT: &str = Outcome::DroppedNoPort.name();
    const SHARE: &str = Outcome::RefusedClientShare.name();
    let ShortageReport { service, outcome, client } = of;
    let why = match outcome.as_str() {
        NO_PORT => {
            "new connections are dropped, all SNAT ports to a backend are in use; name more --snat-addresses, or widen --snat-ports".to_owned()
        }
        SHARE => {
            format!("new connections of {client} are refused, it holds more than its share of the flow table; raise flows4, flows6 of --map-sizes")
        }
        _ => "new connections are dropped, the flow table is full; raise flows4, flows6 of --map-sizes".to_owned(),
    };
    format!("{service}: {why}")
}

/// Whether something is not served as it should be, though the agent works.
fn is_degraded(report: &Report) -> bool {
    let Report { tables, datapath, .. } = report;
    let is_whole = datapath.warnings.is_empty() && datapath.no_external_link.is_none();
    !tables.shortages.is_empty() || tables.refused > 0 || !is_whole
}

/// From this share on a table is shown without being asked for.
const FULL_PERCENT: u64 = 50;

/// Audits, drains, tables that fill up, health-check node ports that could not be opened.
fn maintenance(lines: &mut Lines, tables: &TablesReport) {
    if let Some(audit) = &tables.audit {
        let (age, checked, found) = (audit.age_seconds, audit.checked, audit.found);
        lines.add("Audit", &format!("{age:.0}s ago, {checked} compared, {found} differed, {} audits", audit.runs));
        lines.list("", &audit.findings);
        lines.list("", audit.last_error.as_slice());
    }
    if let Some(seconds) = tables.drains.oldest_seconds {
        lines.add("Oldest drain", &format!("{seconds:.0}s"));
    }
    let full = tables.fill.iter().filter(|(_, fill)| fill.entries * 100 >= fill.capacity * FULL_PERCENT);
    let full: Vec<_> = full.map(|(map, fill)| format!("{map}: {} of {}", fill.entries, fill.capacity)).collect();
    lines.list("Filling up", &full);
    lines.list("Greedy clients", &tables.sweep.greedy_clients);
    let problems: Vec<_> = tables.health_checks.values().filter_map(|check| check.problem.clone()).collect();
    lines.list("Health ports", &problems);
    lines.list("Held ports", &tables.held_ports);
    lines.list("Maintenance", tables.unread_maintenance.as_slice());
    let local = tables.local_cluster_ips.iter();
    lines.list("Local IPs", &local.map(|address| format!("{address}: {LOCAL_CLUSTER_IP}")).collect::<Vec<_>>());
}

fn tables(lines: &mut Lines, status: &Status) {
    let Some(totals) = &status.tables else {
        lines.add("Tables", &format!("none: {}", or_dash(status.tables_error.as_ref())));
        return;
    };
    let programmed = match (status.revision, status.programmed_seconds) {
        (Some(revision), Some(seconds)) => format!("revision {revision}, programmed {seconds:.1}s ago"),
        _ => "never programmed".to_owned(),
    };
    lines.add("Tables", &programmed);
    lines.add("Services", &format!("{} with {} frontends", totals.services, totals.frontends));
    let counted = totals.backends.by_state().into_iter().filter(|(state, count)| *count > 0 || *state == "active");
    let parts: Vec<_> = counted.map(|(state, count)| format!("{count} {state}")).collect();
    lines.add("Backends", &parts.join(", "));
    if totals.overdue > 0 {
        lines.add("Overdue", &format!("{} past their deadline: the agent must take them out", totals.overdue));
    }
    let avoided = [(totals.ejections, "ejected"), (totals.unhealthy, "unhealthy")];
    let avoided: Vec<_> = avoided.iter().filter(|(count, _)| *count > 0).collect();
    if !avoided.is_empty() {
        let parts: Vec<_> = avoided.iter().map(|(count, mark)| format!("{count} {mark}")).collect();
        lines.add("Avoided", &format!("{}: `ballast get backends` shows them", parts.join(", ")));
    }
    let half_open = if totals.half_open > 0 { format!(", {} half-open", totals.half_open) } else { String::new() };
    lines.add("Flows", &format!("{}{half_open}", totals.flows));
    if totals.adopted > 0 {
        let text = format!("{} connections of another proxy: the host's NAT translates them", totals.adopted);
        lines.add("Adopted", &text);
    }
    if let Some(problem) = status.agent.as_ref().and_then(|report| report.adoption.problem.as_ref()) {
        lines.add(if totals.adopted > 0 { "" } else { "Adopted" }, problem);
    }
    if let Some(Adoption { until, seconds }) = &status.adoption {
        lines.add(
            "Adoption",
            &format!("open until {until:.0}, {seconds:.0}s more: unknown segments go to the host's stack"),
        );
    }
}

fn attachments(lines: &mut Lines, status: &Status) {
    if let Some(error) = &status.links_error {
        lines.add("Attached", &format!("not known: {error}"));
        return;
    }
    let mut counts = BTreeMap::<(&str, String), usize>::new();
    for link in &status.links {
        let hows: std::collections::BTreeSet<_> = link.programs.iter().map(|program| program.how.as_str()).collect();
        let hows: Vec<_> = hows.into_iter().collect();
        *counts.entry((&link.role, hows.join("+"))).or_default() += 1;
    }
    let counts = counts
        .into_iter()
        .map(|((role, how), links)| format!("{links} {} ({how})", if role.is_empty() { "unknown" } else { role }));
    let mut parts: Vec<String> = counts.collect();
    if !status.socket_programs.is_empty() {
        parts.push(format!("{} socket programs", status.socket_programs.len()));
    }
    lines.add("Attached", if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }.as_str());
    if let Some(report) = &status.agent {
        let external = report.datapath.links.iter().filter_map(|link| Some((link, link.served_by.as_ref()?)));
        let served = external.map(|(link, by)| match &link.served_reason {
            Some(reason) => format!("{} by {by}: {reason}", link.name),
            None => format!("{} by {by} XDP", link.name),
        });
        lines.list("Outside", &served.collect::<Vec<_>>());
        lines.list("Problems", &report.datapath.problems);
        lines.list("Warnings", &report.datapath.warnings);
    }
}

fn add_wide(text: &mut String, status: &Status) {
    let rows = status.links.iter().flat_map(|link| {
        link.programs.iter().map(|program| {
            vec![
                link.name.clone(),
                link.role.clone(),
                program.point.clone(),
                program.program.clone(),
                program.how.clone(),
            ]
        })
    });
    let _ = write!(text, "\n{}", aligned(&["INTERFACE", "ROLE", "POINT", "PROGRAM", "HOW"], rows));
    if let Some(report) = &status.agent {
        let fill = report.tables.fill.iter();
        let rows = fill.map(|(map, fill)| vec![map.clone(), fill.entries.to_string(), fill.capacity.to_string()]);
        let _ = write!(text, "\n{}", aligned(&["MAP", "ENTRIES", "CAPACITY"], rows));
        let rows = report.datapath.programs.iter().map(|program| {
            vec![program.name.clone(), program.verified_instructions.to_string(), program.jited_bytes.to_string()]
        });
        let _ = write!(text, "\n{}", aligned(&["PROGRAM", "VERIFIED INSTRUCTIONS", "BYTES"], rows));
    }
    let rows = status.outcomes.iter().map(|(outcome, count)| vec![(*outcome).to_owned(), count.to_string()]);
    let _ = write!(text, "\n{}", aligned(&["OUTCOME", "PACKETS AND CALLS"], rows));
}

#[cfg(test)]
#[path = "status_tests.rs"]
mod tests;
