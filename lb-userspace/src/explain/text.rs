//! The explanation as text: a label and a sentence for each step, in the order of the decision.

use super::explanation::{AffinityView, CandidateView, ConnectionView, Explanation, PolicyView, ResultView};
use super::question::Seen;

/// Label and sentence of each step.
pub fn rows(explanation: &Explanation, interface: Option<&str>) -> Vec<(&'static str, String)> {
    let mut rows = vec![("PACKET", packet(explanation)), ("HOOK", hook(explanation, interface))];
    rows.push(("FRONTEND", frontend(explanation)));
    for problem in &explanation.endpoint_problems {
        rows.extend([("ENDPOINTS", problem.to_string()), ("REMEDY", problem.remedy.clone())]);
    }
    rows.push(("CONNECTION", explanation.connection.as_ref().map_or_else(|| "none".to_owned(), connection)));
    if let Some(found) = &explanation.affinity {
        rows.push(("AFFINITY", affinity(found)));
    }
    if let Some(found) = &explanation.policy {
        rows.push(("POLICY", policy(found)));
    }
    if let Some(frontend) = explanation.frontend.as_ref().filter(|_| explanation.policy.is_some()) {
        rows.push(("SCHEDULER", frontend.scheduler.to_owned()));
    }
    rows.extend(explanation.candidates.iter().map(|one| ("CANDIDATE", candidate(one))));
    rows.push(("REWRITE", rewrite(&explanation.result)));
    rows.push(("ROUTE", route(&explanation.result).to_owned()));
    rows.push(("RESULT", result(&explanation.result)));
    rows.push(("CHANGES WITH", explanation.change.clone()));
    rows
}

fn packet(explanation: &Explanation) -> String {
    let packet = &explanation.packet;
    let source = if packet.port_is_assumed {
        format!("{} (any port; asked with {})", packet.source.ip(), packet.source.port())
    } else {
        packet.source.to_string()
    };
    let what = match (packet.segment, packet.protocol) {
        ("first", "TCP") => "a SYN",
        ("first", _) => "a first datagram",
        (_, "TCP") => "the next segment of a connection",
        _ => "the next datagram of a connection",
    };
    format!("{source} to {}/{}, {what}", packet.destination, packet.protocol)
}

fn hook(explanation: &Explanation, interface: Option<&str>) -> String {
    let seat = &explanation.hook;
    let at = interface.map(|name| format!(" ({name})")).unwrap_or_default();
    let program = match seat.program {
        Seen::PodIn => "pod_in",
        Seen::PodOut => "pod_out",
        Seen::BridgeIn => "bridge_in",
        Seen::NodeIn => "node_in",
        Seen::NodeOut => "node_out",
        Seen::Socket => "connect",
    };
    format!("{program}, {}{at}: {}", seat.program.words(), seat.reason)
}

fn frontend(explanation: &Explanation) -> String {
    let Some(frontend) = &explanation.frontend else {
        return format!("none at {}/{}", explanation.packet.destination, explanation.packet.protocol);
    };
    let label = if frontend.port_name.is_empty() { String::new() } else { format!(" ({})", frontend.port_name) };
    format!("{}/{}:{}{label}, {} {}", frontend.namespace, frontend.name, frontend.port, frontend.kind, frontend.address)
}

fn connection(found: &ConnectionView) -> String {
    let backend = match (found.backend, found.backend_state) {
        (Some(backend), Some(state)) => format!("backend {backend} ({state})"),
        _ => "its backend is gone".to_owned(),
    };
    format!(
        "{} entry, state {}, {} direction, {backend}, {} s old, idle for {} s",
        found.table, found.state, found.direction, found.age_seconds, found.idle_seconds
    )
}

fn affinity(found: &AffinityView) -> String {
    let timeout = found.timeout_seconds;
    match (found.backend, found.age_seconds) {
        (Some(backend), Some(age)) => {
            let used = if found.used { "used" } else { "not used" };
            format!("{backend}, stored {age} s ago of {timeout} s, {used}")
        }
        _ => format!("for {timeout} s; nothing that counts is stored for this client"),
    }
}

fn policy(found: &PolicyView) -> String {
    let ranges = match found.source_ranges_admit {
        None => "no source ranges",
        Some(true) => "source ranges admit it",
        Some(false) => "outside the source ranges",
    };
    let limit = found.rate_limit.map(|rate| format!(", {rate} new connections/s for its network")).unwrap_or_default();
    format!("{} client, {ranges}, {}TrafficPolicy {}{limit}", found.client, found.applies, found.traffic_policy)
}

fn candidate(one: &CandidateView) -> String {
    let local = if one.local { "local" } else { "remote" };
    let chance = one.chance.map(|chance| format!(" (chance {:.0} %)", 100.0 * chance)).unwrap_or_default();
    let mark = if one.chosen { "CHOSEN: " } else { "" };
    // The reason of one that takes nothing begins with its state.
    let state = if one.reason.starts_with(one.state) { String::new() } else { format!("{} ", one.state) };
    format!("{} {local} {state}- {mark}{}{chance}", one.address, one.reason)
}

fn rewrite(result: &ResultView) -> String {
    let to = result.destination_after.map(|place| format!("destination {place}"));
    let from = result.source_after.map(|place| {
        let why = if result.masquerade { " (masquerade)" } else { "" };
        let port = if result.deterministic { "" } else { ", any free SNAT port" };
        format!("source {place}{why}{port}")
    });
    match (to, from) {
        (Some(to), Some(from)) => format!("{to}, {from}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) if result.action == "to-backend" && result.route != "encapsulated" => {
            "destination: the backend that chance names".to_owned()
        }
        (None, None) => "none".to_owned(),
    }
}

fn route(result: &ResultView) -> &'static str {
    match result.route {
        "encapsulated" => "encapsulated, to the backend's node (direct server return)",
        "fast-path" => "the fast path, past the host's stack",
        "stack" if result.fast_path_open => "the fast path, if the routes of both ends allow it; else the host's stack",
        "stack" => "the host's stack",
        _ => "none",
    }
}

fn result(result: &ResultView) -> String {
    let outcome = result.outcome;
    let backend = result.backend.map_or_else(|| "one of the candidates".to_owned(), |backend| backend.to_string());
    match result.action {
        "to-backend" => format!("sent to {backend} ({outcome})"),
        "to-client" => format!("sent to the client ({outcome})"),
        "pass" => format!("passes unchanged ({outcome})"),
        "refuse" => format!("refused ({outcome})"),
        _ => format!("dropped ({outcome})"),
    }
}
