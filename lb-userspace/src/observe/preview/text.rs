//! A plan as a table: a row for each service port, frontend and backend that would differ.

use std::fmt::Write as _;

use super::{BackendPlan, FrontendPlan, HealthCheckPlan, PlanReport, ServicePlan, SettingPlan};
use crate::observe::table::{aligned, or_dash, place};
use lb_plan::plan::{Change, Fate};

/// The table, and sentences below it.
pub fn table(report: &PlanReport, wide: bool) -> String {
    let mut text = String::new();
    if report.differs {
        let mut header = vec!["SERVICE", "WHAT", "CHANGE", "DETAIL", "CONNECTIONS"];
        if wide {
            header.extend(["HOST SOCKETS", "ID", "GENERATION"]);
        }
        let services = report.services.iter().flat_map(rows);
        let checks = report.health_checks.iter().map(health_check);
        let cut = header.len();
        text += &aligned(&header, services.chain(checks).map(|row| row.into_iter().take(cut).collect()));
        text.push('\n');
    }
    for refusal in &report.refusals {
        let _ = writeln!(text, "refused: {refusal}");
    }
    for ignored in &report.ignored {
        let _ = writeln!(text, "{ignored} is ignored: only Services and EndpointSlices are planned");
    }
    if let Some(stale) = &report.stale {
        let _ = writeln!(text, "The agent's source is stale, and so is this plan: {stale}");
    }
    let _ = writeln!(text, "{} Nothing was applied.", summary(report));
    text
}

fn summary(report: &PlanReport) -> String {
    let revision = report.revision;
    if !report.differs {
        return format!("No difference to revision {revision}.");
    }
    let frontends =
        |change| report.services.iter().flat_map(|one| &one.frontends).filter(|one| one.change == change).count();
    let backends =
        |change| report.services.iter().flat_map(|one| &one.backends).filter(|one| one.change == change).count();
    let connections = &report.connections;
    let mut text = format!(
        "Frontends: {} added, {} moved, {} ended. Backends: {} added, {} drained, {} ended. Connections: {} drain, {} move, {} end.",
        frontends(Change::Add),
        frontends(Change::Move),
        frontends(Change::End),
        backends(Change::Add),
        backends(Change::Drain),
        backends(Change::End) + backends(Change::Replace),
        connections.drain,
        connections.moved,
        connections.end,
    );
    if connections.host_sockets > 0 {
        let _ = write!(text, " Host sockets of these backends: {}.", connections.host_sockets);
    }
    let _ = write!(text, " Planned over revision {revision}.");
    text
}

fn rows(service: &ServicePlan) -> Vec<Vec<String>> {
    let ServicePlan { namespace, name, port, protocol, .. } = service;
    let name = format!("{namespace}/{name}:{port}/{protocol}");
    let (before, after) = (service.taking_before, service.taking_after);
    let mut details = Vec::new();
    if before != after {
        details.push(format!("backends for new connections {before} -> {after}"));
    }
    details.extend(service.settings.iter().map(setting));
    let mut rows = Vec::new();
    if service.change != Change::Change || !details.is_empty() {
        rows.push(row(&name, "service".to_owned(), service.change, &details, or_dash(None::<u64>)));
    }
    rows.extend(service.frontends.iter().map(|one| frontend(&name, one)));
    rows.extend(service.backends.iter().map(|one| backend(&name, one)));
    rows
}

fn frontend(name: &str, plan: &FrontendPlan) -> Vec<String> {
    let from = plan.from.as_ref().map(|from| format!("from {from}"));
    let details: Vec<String> =
        std::iter::once(plan.kind.clone()).chain(from).chain(plan.settings.iter().map(setting)).collect();
    let what = format!("frontend {}", place(plan.address, plan.port));
    let connections =
        if plan.change == Change::Add { or_dash(None::<u64>) } else { counted(plan.connections, plan.fate) };
    row(name, what, plan.change, &details, connections)
}

fn backend(name: &str, plan: &BackendPlan) -> Vec<String> {
    let mut details = vec![match (&plan.before, &plan.after) {
        (Some(before), Some(after)) if before.state == after.state => after.state.clone(),
        (Some(before), Some(after)) => format!("{} -> {}", before.state, after.state),
        (Some(before), None) => format!("{} -> gone", before.state),
        (None, after) => after.as_ref().map(|after| after.state.clone()).unwrap_or_default(),
    }];
    if plan.change == Change::Replace {
        details.push("another pod at its address".to_owned());
    }
    if let Some(after) = &plan.after {
        let before = plan.before.as_ref();
        let takes_differs = before.is_none_or(|before| before.takes_new != after.takes_new);
        if takes_differs && plan.change != Change::Drain {
            details.push(if after.takes_new { "takes new connections" } else { "takes no new connections" }.to_owned());
        }
        details.extend(
            before
                .filter(|before| before.weight != after.weight)
                .map(|before| format!("weight {} -> {}", before.weight, after.weight)),
        );
        details.extend(
            before
                .filter(|before| before.local != after.local)
                .map(|_| if after.local { "of this node" } else { "of another node" }.to_owned()),
        );
    }
    details.extend(plan.deadline_seconds.map(|seconds| format!("at most {seconds} s")));
    let what = format!("backend {}", place(plan.address, plan.port));
    let connections = if plan.before.is_none() { or_dash(None::<u64>) } else { counted(plan.connections, plan.fate) };
    let mut row = row(name, what, plan.change, &details, connections);
    row.truncate(5);
    row.extend([plan.host_sockets.to_string(), or_dash(plan.id), or_dash(plan.generation)]);
    row
}

fn health_check(plan: &HealthCheckPlan) -> Vec<String> {
    let count = |count: Option<u64>| count.map_or_else(|| "closed".to_owned(), |count| count.to_string());
    let details =
        [format!("local endpoints {} -> {}", count(plan.local_endpoints_before), count(plan.local_endpoints_after))];
    let change = match (plan.local_endpoints_before, plan.local_endpoints_after) {
        (None, _) => Change::Add,
        (_, None) => Change::End,
        _ => Change::Change,
    };
    row(&plan.service, format!("health check {}", plan.port), change, &details, or_dash(None::<u64>))
}

fn row(name: &str, what: String, change: Change, details: &[String], connections: String) -> Vec<String> {
    let change = match change {
        Change::Add => "add",
        Change::Move => "move",
        Change::Drain => "drain",
        Change::Replace => "replace",
        Change::End => "end",
        Change::Change => "change",
    };
    let dash = || "-".to_owned();
    vec![name.to_owned(), what, change.to_owned(), details.join("; "), connections, dash(), dash(), dash()]
}

fn setting(one: &SettingPlan) -> String {
    format!("{} {} -> {}", one.name, one.before, one.after)
}

fn counted(connections: u64, fate: Fate) -> String {
    let fate = match fate {
        _ if connections == 0 => return "0".to_owned(),
        Fate::Stay => "stay",
        Fate::Drain => "drain",
        Fate::Move => "move",
        Fate::End => "end",
    };
    format!("{connections} {fate}")
}
