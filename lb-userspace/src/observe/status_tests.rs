//! What `status` says of an agent that runs, and of one that does not.

use super::*;
use std::net::IpAddr;

use crate::observe::report::{AttachmentReport, FailingReport, ResourceReport};

#[test]
fn dead_agent_still_shows_what_is_pinned() {
    let status = Status {
        agent_running: Some(false),
        agent_error: Some("no agent is running with this --run-dir".into()),
        tables: Some(Totals {
            services: 2,
            frontends: 3,
            flows: 5,
            half_open: 2,
            ejections: 3,
            overdue: 1,
            ..Totals::default()
        }),
        revision: Some(7),
        programmed_seconds: Some(12.34),
        links: vec![LinkReport {
            name: "veth0".into(),
            ifindex: 4,
            role: "pod".into(),
            served_by: None,
            served_reason: None,
            programs: vec![AttachmentReport { point: "in".into(), program: "pod_in".into(), how: "tcx".into() }],
        }],
        socket_programs: vec!["connect4".into()],
        ..Status::default()
    };
    insta::assert_snapshot!(text(&status, false), @r"
    Agent:         not running: no agent is running with this --run-dir
    Tables:        revision 7, programmed 12.3s ago
    Services:      2 with 3 frontends
    Backends:      0 active
    Overdue:       1 past their deadline: the agent must take them out
    Avoided:       3 ejected: `ballast get backends` shows them
    Flows:         5, 2 half-open
    Attached:      1 pod (tcx), 1 socket programs
    ");
}

#[test]
fn an_agent_that_says_nothing_is_running_unless_it_is_known_not_to_be() {
    let line = |agent_running| {
        let agent_error = Some("no answer".to_owned());
        text(&Status { agent_running, agent_error, ..Status::default() }, false).lines().next().map(str::to_owned)
    };
    assert_eq!(line(Some(true)).as_deref(), Some("Agent:         running, no report: no answer"));
    assert_eq!(line(Some(false)).as_deref(), Some("Agent:         not running: no answer"));
    assert_eq!(line(None).as_deref(), Some("Agent:         not known: no answer"));
}

#[test]
fn an_open_adoption_window_shows_its_end() {
    let until = "2026-11-23T01:20:03.7Z".parse().expect("a time");
    let adoption = Some(Adoption { until, seconds: 412.4 });
    let shown = text(&Status { tables: Some(Totals::default()), adoption, ..Status::default() }, false);
    let line = shown.lines().find(|line| line.starts_with("Adoption:"));
    let expected = "Adoption:      open until 2026-11-23T01:20:03Z, 412s more: unknown segments go to the host's stack";
    assert_eq!(line, Some(expected), "{shown}");
    let closed = text(&Status { tables: Some(Totals::default()), ..Status::default() }, false);
    assert!(!closed.contains("Adoption"), "{closed}");
}

#[test]
fn adopted_connections_are_counted_and_what_ends_them_is_named() {
    let tables = Some(Totals { adopted: 214, flows: 3, ..Totals::default() });
    let mut report = Report::default();
    let shown = text(&Status { tables: tables.clone(), agent: Some(report.clone()), ..Status::default() }, false);
    assert!(shown.contains("Adopted:       214 connections of another proxy"), "{shown}");
    assert!(shown.contains("Flows:         3\n"), "they are none of Ballast's flows: {shown}");
    report.adoption.problem = Some("no room".into());
    let shown = text(&Status { tables, agent: Some(report.clone()), ..Status::default() }, false);
    assert!(shown.contains("NAT translates them\n               no room\n"), "{shown}");
    let shown = text(&Status { tables: Some(Totals::default()), agent: Some(report), ..Status::default() }, false);
    assert!(shown.contains("Adopted:       no room"), "{shown}");
}

#[test]
fn running_agent_tells_what_is_wrong() {
    let mut report = Report { pid: 9, version: "0.1.0".into(), node_name: "n1".into(), ..Report::default() };
    report.source.kind = "kube".into();
    report.source.origin = "https://10.0.0.1:6443/".into();
    report.source.synced = true;
    report.source.stale = Some("connection refused".into());
    report.source.age_seconds.insert("services".into(), 61.52);
    (report.source.refused, report.source.refusals) = (7, vec!["Service demo/web: bad; mend it".into()]);
    let failing = Some(FailingReport { code: "403".into(), seconds: 61.5 });
    report.source.resources.insert("services".into(), ResourceReport { failing, ..ResourceReport::default() });
    report.health.healthz = true;
    report.health.faults = vec!["the source is stale: connection refused".into()];
    report.datapath.tc = "tcx".into();
    report.datapath.socket_lb = "off".into();
    report.datapath.fast_path.asked = "auto".into();
    report.datapath.fast_path.skips = vec!["nftables chain ip filter FORWARD".into()];
    report.datapath.fast_path.closed_bridges = vec!["cni0: it has more than 4096 neighbours".into()];
    let link = |name: &str, by: &str, reason: Option<&str>| LinkReport {
        name: name.to_owned(),
        role: "external".into(),
        served_by: Some(by.to_owned()),
        served_reason: reason.map(ToOwned::to_owned),
        ..LinkReport::default()
    };
    report.datapath.links = vec![link("eth0", "native", None), link("eth1", "tc", Some("--xdp-mode is off"))];
    report.datapath.warnings = vec!["eth0: forwarding of IPv4 is off".into()];
    report.kernel.release = "6.12.0".into();
    report.kernel.features.insert("tcx".into(), true);
    let status =
        Status { agent: Some(report), tables_error: Some("map services4 is not pinned".into()), ..Status::default() };
    insta::assert_snapshot!(text(&status, false), @r"
    Agent:         running, pid 9, version 0.1.0, node n1
    Health:        healthy, not ready
                   the source is stale: connection refused
    Source:        kube https://10.0.0.1:6443/, revision 0, stale
                   services proven 61.5s ago, 0 objects; the API answers 403 for 62s
    Refused:       Service demo/web: bad; mend it
                   and 6 more; correct those that are named, then the next ones are
    Socket LB:     off
    tc:            tcx
    Fast path:     off (auto)
                   it would skip nftables chain ip filter FORWARD
                   not on cni0: it has more than 4096 neighbours
    Kernel:        6.12.0: tcx yes
    Tables:        none: map services4 is not pinned
    Attached:      nothing
    Outside:       eth0 by native XDP
                   eth1 by tc: --xdp-mode is off
    Warnings:      eth0: forwarding of IPv4 is off
    ");
}

#[test]
fn a_service_that_is_short_of_room_degrades_the_node_and_is_named() {
    let mut report = Report::default();
    (report.health.healthz, report.health.readyz) = (true, true);
    let shown = |report: &Report| text(&Status { agent: Some(report.clone()), ..Status::default() }, false);
    assert!(shown(&report).contains("Health:        healthy and ready\n"));
    let of = |outcome: Outcome| ShortageReport {
        service: "demo/web:80/TCP".into(),
        outcome: outcome.name().into(),
        client: IpAddr::from([198, 51, 100, 7]),
    };
    for (outcome, says) in [
        (Outcome::DroppedNoPort, "demo/web:80/TCP: new connections are dropped, all SNAT ports"),
        (Outcome::DroppedTableFull, "demo/web:80/TCP: new connections are dropped, the flow table is full"),
        (Outcome::RefusedClientShare, "demo/web:80/TCP: new connections of 198.51.100.7 are refused"),
    ] {
        report.tables.shortages = vec![of(outcome)];
        let shown = shown(&report);
        assert!(shown.contains("Health:        healthy and ready, degraded\n"), "{shown}");
        assert!(shown.contains(says), "{shown}");
    }
    report.tables.shortages.clear();
    (report.tables.refused, report.tables.refusals) = (1, vec!["demo/web: services4 is full".into()]);
    assert!(shown(&report).contains("healthy and ready, degraded\n"));
}

#[test]
fn a_node_without_a_known_external_link_is_degraded_and_says_why() {
    let mut report = Report::default();
    (report.health.healthz, report.health.readyz) = (true, true);
    report.datapath.no_external_link = Some("no external link is known: no link has a default route".into());
    let shown = text(&Status { agent: Some(report), ..Status::default() }, false);
    assert!(
        shown.contains("Health:        healthy and ready, degraded\nUplink:        no external link is known"),
        "{shown}"
    );
}
