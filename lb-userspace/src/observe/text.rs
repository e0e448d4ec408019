//! `get` as text: names first, what `ipvsadm -ln` shows at a glance.

use lb_common::abi::ConnectTimes;

use super::connect_time::percentile_text;
use super::inventory::{BackendView, ConnectionView, ServiceView};
use super::report::EndpointProblemReport;
use super::table::{aligned, or_dash, place};

/// Services with their frontends, and their backends below (`->`).
pub fn services(services: &[ServiceView], wide: bool) -> String {
    let mut header = vec!["NAMESPACE", "SERVICE", "PORT", "ADDRESS", "KIND/STATE", "FLOWS", "DEADLINE"];
    if wide {
        header.extend(["SCHEDULER", "AFFINITY", "RATE-LIMIT", "SELECTED", "REFUSED", "P50", "P99", "ID"]);
    }
    let table = aligned(&header, services.iter().flat_map(|service| service_rows(service, wide)));
    let reasons: Vec<String> =
        services.iter().flat_map(|service| &service.endpoint_problems).map(problem_line).collect();
    if reasons.is_empty() { table } else { format!("{table}\n{}", reasons.concat()) }
}

fn problem_line(problem: &EndpointProblemReport) -> String {
    format!("{}: {problem}\n", problem.subject())
}

fn service_rows(service: &ServiceView, wide: bool) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (index, frontend) in service.frontends.iter().enumerate() {
        let mut row = if index == 0 {
            vec![service.namespace.clone(), service.name.clone(), port_text(service)]
        } else {
            vec![String::new(); 3]
        };
        let refuses = if frontend.refuses { ", refuses" } else { "" };
        row.extend([place(frontend.address, frontend.port), format!("{}{refuses}", frontend.kind)]);
        if index == 0 {
            row.extend([service.backends.iter().map(|backend| backend.flows).sum::<u64>().to_string(), "-".into()]);
            if wide {
                let affinity = (service.affinity_timeout_s != 0).then(|| format!("{}s", service.affinity_timeout_s));
                let limit = service.rate_limit.map(|limit| format!("{}/{}", limit.rate, limit.burst));
                row.extend([service.scheduler.to_owned(), or_dash(affinity), or_dash(limit)]);
                row.extend([service.selected.to_string(), service.refused.to_string()]);
                row.extend(percentiles(Some(&service.connect_times)));
                row.push(service.id.to_string());
            }
        }
        rows.push(row);
    }
    for backend in &service.backends {
        let mut row = vec![String::new(); 3];
        let marks = backend.ejected.then_some("ejected").into_iter();
        let state = marked(backend.state, marks.chain(backend.unhealthy.then_some("unhealthy")));
        row.extend([format!("-> {}", place(backend.address, backend.port)), state]);
        row.extend([backend.flows.to_string(), in_seconds(backend.deadline_seconds)]);
        rows.push(row);
    }
    rows
}

/// Backends, each address once with all services that use it.
pub fn backends(backends: &[BackendView], wide: bool) -> String {
    let mut header = vec!["ADDRESS", "NAMESPACE", "SERVICE", "PORT", "STATE", "FLOWS", "DEADLINE"];
    if wide {
        header.extend(["ANSWERED", "HALF-OPEN", "LOCAL", "SERVING", "WEIGHT", "SELECTED", "LEFT"]);
        header.extend(["P50", "P99", "ID", "GENERATION"]);
    }
    let mut last = None;
    let rows = backends.iter().map(|backend| {
        let address = (backend.address, backend.port);
        let shown = if last.replace(address) == Some(address) { String::new() } else { place(address.0, address.1) };
        let port = format!("{}/{}", backend.service_port, backend.protocol);
        let mut row = vec![shown, backend.namespace.clone(), backend.service.clone(), port];
        let state = marked(backend.state, backend.marks());
        row.extend([state, backend.flows.to_string(), in_seconds(backend.deadline_seconds)]);
        if wide {
            row.extend([ago(backend.answered_seconds), backend.half_open_flows.to_string()]);
            row.extend([yes(backend.local), yes(backend.serving), backend.weight.to_string()]);
            row.extend([backend.selected.to_string(), backend.left.to_string()]);
            row.extend(percentiles(backend.connect_times.as_deref()));
            row.extend([backend.id.to_string(), backend.generation.to_string()]);
        }
        row
    });
    aligned(&header, rows.collect::<Vec<_>>())
}

/// Backends whose connections end at a limit, in the order of their eviction deadlines. PERIOD: from then on a connection ends that the backend
/// does not answer. DEADLINE: then all end.
pub fn drains(backends: &[BackendView], wide: bool) -> String {
    let mut header = vec!["PERIOD", "DEADLINE", "ADDRESS", "NAMESPACE", "SERVICE", "PORT", "STATE", "FLOWS"];
    if wide {
        header.extend(["HALF-OPEN", "ID", "GENERATION"]);
    }
    let rows = backends.iter().map(|backend| {
        let port = format!("{}/{}", backend.service_port, backend.protocol);
        let mut row = vec![in_seconds(backend.drain_seconds), in_seconds(backend.deadline_seconds)];
        row.push(place(backend.address, backend.port));
        row.extend([backend.namespace.clone(), backend.service.clone(), port]);
        row.extend([marked(backend.state, backend.marks()), backend.flows.to_string()]);
        if wide {
            row.extend([backend.half_open_flows, backend.id.into(), backend.generation.into()].map(|n| n.to_string()));
        }
        row
    });
    aligned(&header, rows)
}

/// Connections, one a line.
pub fn connections(connections: &[ConnectionView], wide: bool) -> String {
    let mut header = vec!["NAMESPACE", "SERVICE", "PORT", "CLIENT", "FRONTEND", "BACKEND", "STATE", "IDLE"];
    if wide {
        header.extend(["AGE", "EXPIRES", "MOVES", "TRIED", "REQUESTS", "REPLIES", "VIA", "TRANSLATED PORT"]);
    }
    let rows = connections.iter().map(|connection| {
        let port = format!("{}/{}", connection.service_port, connection.protocol);
        let client = match (connection.client_address, connection.client_port, connection.socket_cookie) {
            (Some(address), Some(port), _) => place(address, port),
            (_, _, cookie) => format!("socket {}", or_dash(cookie)),
        };
        let mut row = vec![connection.namespace.clone(), connection.service.clone(), port, client];
        row.push(place(connection.frontend_address, connection.frontend_port));
        row.push(place(connection.backend_address, connection.backend_port));
        row.extend([connection.state.to_owned(), in_seconds(connection.idle_seconds)]);
        if wide {
            row.extend([in_seconds(connection.age_seconds), in_seconds(connection.expires_seconds)]);
            let tried = Some(connection.tried.join(",")).filter(|tried| !tried.is_empty());
            row.extend([or_dash(connection.moves), or_dash(tried)]);
            row.push(counted(connection.request_packets, connection.request_bytes));
            row.push(counted(connection.reply_packets, connection.reply_bytes));
            row.push(connection.via.to_owned());
            row.push(or_dash(connection.translated_port));
        }
        row
    });
    aligned(&header, rows)
}

fn port_text(service: &ServiceView) -> String {
    let port = format!("{}/{}", service.port, service.protocol);
    if service.port_name.is_empty() { port } else { format!("{port} {}", service.port_name) }
}

/// The median and the 99th percentile of connect times.
fn percentiles(times: Option<&ConnectTimes>) -> [String; 2] {
    [50, 99].map(|percent| percentile_text(times, percent))
}

fn in_seconds(seconds: Option<u64>) -> String {
    or_dash(seconds.map(|seconds| format!("{seconds}s")))
}

fn ago(seconds: Option<u64>) -> String {
    or_dash(seconds.map(|seconds| format!("{seconds}s ago")))
}

/// A state, and what lies over it.
fn marked(state: &str, marks: impl Iterator<Item = &'static str>) -> String {
    marks.fold(state.to_owned(), |state, mark| format!("{state}, {mark}"))
}

/// Packets and bytes, where they are counted.
fn counted(packets: Option<u64>, bytes: Option<u64>) -> String {
    or_dash(packets.zip(bytes).map(|(packets, bytes)| format!("{packets} ({bytes} B)")))
}

fn yes(value: bool) -> String {
    if value { "yes" } else { "no" }.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::inventory::Inventory;
    use crate::observe::inventory::tests::{NOW, contents};

    #[test]
    fn services_read_like_ipvsadm_with_names() {
        let contents = contents();
        insta::assert_snapshot!(services(&Inventory::new(&contents, NOW).services(), false), @r"
        NAMESPACE  SERVICE  PORT         ADDRESS            KIND/STATE          FLOWS  DEADLINE
        demo       web      80/TCP http  10.96.0.1:80       ClusterIP           3      -
                                         [fd00::1]:80       ClusterIP
                                         -> 10.1.0.2:8080   active              2      -
                                         -> 10.1.0.3:8080   draining            1      30s
                                         -> [fd00::2]:8080  active              0      -
        other      empty    80/TCP       10.96.0.2:80       ClusterIP, refuses  0      -
        ");
    }

    #[test]
    fn wide_services_show_counters_and_ids() {
        let contents = contents();
        insta::assert_snapshot!(services(&Inventory::new(&contents, NOW).services(), true), @r"
        NAMESPACE  SERVICE  PORT         ADDRESS            KIND/STATE          FLOWS  DEADLINE  SCHEDULER  AFFINITY  RATE-LIMIT  SELECTED  REFUSED  P50  P99  ID
        demo       web      80/TCP http  10.96.0.1:80       ClusterIP           3      -         random     -         -           0         0        -    -    1
                                         [fd00::1]:80       ClusterIP
                                         -> 10.1.0.2:8080   active              2      -
                                         -> 10.1.0.3:8080   draining            1      30s
                                         -> [fd00::2]:8080  active              0      -
        other      empty    80/TCP       10.96.0.2:80       ClusterIP, refuses  0      -         random     -         -           0         0        -    -    2
        ");
    }

    #[test]
    fn backends_are_grouped_by_address() {
        let mut contents = contents();
        let shared = contents.v4.backends[0].1;
        contents.v4.backends.push((9, lb_common::abi::Backend { service: 2, ..shared }));
        insta::assert_snapshot!(backends(&Inventory::new(&contents, NOW).backends(), false), @r"
        ADDRESS         NAMESPACE  SERVICE  PORT    STATE     FLOWS  DEADLINE
        10.1.0.2:8080   demo       web      80/TCP  active    2      -
                        other      empty    80/TCP  active    0      -
        10.1.0.3:8080   demo       web      80/TCP  draining  1      30s
        [fd00::2]:8080  demo       web      80/TCP  active    0      -
        ");
    }

    #[test]
    fn drains_show_both_limits() {
        let contents = contents();
        insta::assert_snapshot!(drains(&Inventory::new(&contents, NOW).drains(), false), @r"
        PERIOD  DEADLINE  ADDRESS        NAMESPACE  SERVICE  PORT    STATE     FLOWS
        10s     30s       10.1.0.3:8080  demo       web      80/TCP  draining  1
        ");
    }

    #[test]
    fn connections_show_both_ends() {
        let contents = contents();
        insta::assert_snapshot!(connections(&Inventory::new(&contents, NOW).connections(), false), @r"
        NAMESPACE  SERVICE  PORT    CLIENT          FRONTEND      BACKEND        STATE  IDLE
        demo       web      80/TCP  10.1.0.9:40001  10.96.0.1:80  10.1.0.2:8080  open   0s
        demo       web      80/TCP  10.1.0.9:40002  10.96.0.1:80  10.1.0.2:8080  open   60s
        demo       web      80/TCP  10.1.0.9:40003  10.96.0.1:80  10.1.0.2:8080  open   0s
        ");
    }
}
