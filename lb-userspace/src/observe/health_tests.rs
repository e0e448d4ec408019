//! Which fault reddens which answer.

use super::*;
use crate::observe::report::SourceReport;

const QUICK: Duration = Duration::from_secs(1);
const THRESHOLDS: Thresholds = Thresholds {
    stuck_after: Duration::from_mins(1),
    behind_after: Duration::from_secs(15),
    first_sync_grace: Duration::from_mins(1),
    fail_stale: None,
};

fn healthy() -> Report {
    let mut report = Report { uptime_seconds: 1000.0, ..Report::default() };
    (report.tables.synced, report.datapath.synced, report.source.synced) = (true, true, true);
    report
}

fn judge(report: &Report) -> Judgement {
    Judgement::of(report, QUICK, &THRESHOLDS)
}

fn answer(probe: Probe, report: &Report, now: Timestamp, last_in_step: Option<Timestamp>) -> (bool, Answer) {
    judge(report).answer(probe, Audience::Node, now, last_in_step)
}

/// `/healthz`, `/livez`, `/readyz`.
fn answers(report: &Report) -> [bool; 3] {
    let answers =
        [Probe::Healthz, Probe::Livez, Probe::Readyz].map(|probe| answer(probe, report, Timestamp::UNIX_EPOCH, None).0);
    let judged = judge(report).report();
    assert_eq!(answers, [judged.healthz, judged.livez, judged.readyz], "status says the same");
    answers
}

fn with(change: impl FnOnce(&mut Report)) -> Report {
    let mut report = healthy();
    change(&mut report);
    report
}

#[test]
fn all_is_well() {
    assert_eq!(answers(&healthy()), [true; 3]);
}

#[test]
fn a_lost_api_reddens_readyz_alone() {
    let mut report = healthy();
    report.source.stale = Some("connection refused".into());
    report.source.api_reachable = Some(false);
    report.source.age_seconds.insert("services".into(), 100_000.0);
    assert_eq!(answers(&report), [true, true, false]);
}

#[test]
fn a_lost_api_reddens_healthz_where_that_is_asked_for() {
    let mut report = healthy();
    report.source.stale = Some("connection refused".into());
    let thresholds = Thresholds { fail_stale: Some(Duration::from_mins(10)), ..THRESHOLDS };
    for (age, is_good) in [(599.0, true), (600.0, false)] {
        report.source.age_seconds.insert("services".into(), age);
        assert_eq!(own_faults(&report, QUICK, &thresholds).is_empty(), is_good, "{age} s");
    }
    report.source.stale = None;
    assert!(own_faults(&report, QUICK, &thresholds).is_empty(), "a file that never changes is not stale");
}

#[test]
fn a_wedged_watch_is_this_nodes_fault() {
    let mut report = healthy();
    report.source.wedged_seconds = Some(3.0);
    report.source.stale = Some("the watch of services is wedged".into());
    report.source.api_reachable = Some(true);
    assert_eq!(answers(&report), [false, true, false]);
}

#[test]
fn own_faults_redden_healthz_but_no_restart_is_asked_for() {
    assert_eq!(answers(&with(|report| report.tables.synced = false)), [false, true, false]);
    assert_eq!(answers(&with(|report| report.datapath.synced = false)), [false, true, false]);
    assert_eq!(answers(&with(|report| report.datapath.node_problems = vec!["eth0".into()])), [false, true, false]);
}

#[test]
fn tables_that_cannot_be_written_for_long_are_a_fault_that_a_restart_may_heal() {
    let unwritable = |seconds| {
        with(|report| {
            report.tables.unwritable = Some("EPERM".into());
            report.tables.unwritable_seconds = Some(seconds);
        })
    };
    assert_eq!(answers(&unwritable(14.0)), [true, true, false]);
    assert_eq!(answers(&unwritable(15.0)), [false; 3]);
}

/// A restart would find the same.
#[test]
fn one_subject_that_cannot_be_written_for_long_fails_readiness_alone() {
    let behind = |seconds| {
        with(|report| {
            report.tables.last_error = Some("map endpoints4 is full".into());
            (report.tables.failing, report.tables.behind_seconds) = (1, Some(seconds));
            report.datapath.problems = vec!["the link of one pod".into()];
        })
    };
    assert_eq!(answers(&behind(15.0)), [true; 3]);
    assert_eq!(answers(&behind(15.1)), [true, true, false]);
}

#[test]
fn a_restart_is_not_told_to_load_balancers_until_the_grace_is_over() {
    let restarted = |uptime| {
        with(|report| {
            (report.tables.synced, report.tables.inherited, report.datapath.synced) = (false, true, false);
            report.uptime_seconds = uptime;
        })
    };
    assert_eq!(answers(&restarted(59.0)), [true, true, false]);
    assert_eq!(answers(&restarted(60.0)), [false, true, false], "a first sync that never ends");
    let mut fresh = restarted(1.0);
    fresh.tables.inherited = false;
    assert_eq!(answers(&fresh), [false, true, false], "nothing is served on a node that never listed");
}

#[test]
fn an_agent_that_restarts_while_the_api_is_lost_stays_healthy_on_its_tables() {
    let mut report = with(|report| {
        (report.tables.synced, report.tables.inherited) = (false, true);
        report.source.stale = Some("connection refused".into());
        report.source.api_reachable = Some(false);
    });
    assert_eq!(answers(&report), [true, true, false]);
    // The API answers, and every node gets the same answer: revoked rights, an API version that is no more.
    report.source.api_reachable = Some(true);
    report.source.last_error = Some("services: the API answers 403 Forbidden".into());
    assert_eq!(answers(&report), [true, true, false]);
    report.tables.inherited = false;
    assert_eq!(answers(&report), [false, true, false]);
}

#[test]
fn a_stuck_runtime_fails_every_probe() {
    for probe in [Probe::Healthz, Probe::Livez, Probe::Readyz] {
        let since_beat = THRESHOLDS.stuck_after + QUICK;
        assert!(!Judgement::of(&healthy(), since_beat, &THRESHOLDS).is_good(probe));
    }
}

#[test]
fn a_node_that_leaves_fails_healthz_alone() {
    let report = with(|report| report.node_leaving = true);
    assert_eq!(answers(&report), [false, true, true]);
    let (_, body) = answer(Probe::Healthz, &report, Timestamp::UNIX_EPOCH, None);
    assert_eq!((body.node_eligible, body.healthy), (Some(false), true));
    assert!(judge(&report).is_well(), "leaving is no fault");
}

#[test]
fn json_has_the_shape_of_kube_proxys() {
    let now: Timestamp = "2026-11-21T04:00:00Z".parse().expect("valid");
    let (_, body) = answer(Probe::Healthz, &healthy(), now, None);
    assert_eq!(
        serde_json::to_value(body).expect("plain data"),
        serde_json::json!({
            "lastUpdated": "2026-11-21T04:00:00Z", "currentTime": "2026-11-21T04:00:00Z", "nodeEligible": true, "healthy": true,
        })
    );
    let mut report = healthy();
    report.tables.unwritable_seconds = Some(60.0);
    report.tables.unwritable = Some("EPERM".into());
    let before = "2026-11-21T03:59:00Z".parse().expect("valid");
    let (_, body) = answer(Probe::Healthz, &report, now, Some(before));
    let family = serde_json::json!({"lastUpdated": "2026-11-21T03:59:00Z", "healthy": false});
    assert_eq!(
        serde_json::to_value(body).expect("plain data"),
        serde_json::json!({
            "lastUpdated": "2026-11-21T03:59:00Z", "currentTime": "2026-11-21T04:00:00Z", "nodeEligible": true,
            "healthy": false, "status": {"IPv4": family, "IPv6": family},
            "faults": ["the tables cannot be written for 60 s: EPERM"],
        })
    );
    let (_, body) = answer(Probe::Livez, &healthy(), now, None);
    assert!(serde_json::to_value(body).expect("plain data").get("nodeEligible").is_none());
}

#[test]
fn a_bad_answer_says_when_all_was_well_and_what_is_wrong() {
    let report = with(|report| {
        report.tables.unwritable = Some("map services4: EPERM".into());
        report.tables.unwritable_seconds = Some(60.0);
    });
    let (now, before) = (Timestamp::from_second(100).expect("valid"), Timestamp::from_second(40).expect("valid"));
    let (_, body) = answer(Probe::Healthz, &report, now, Some(before));
    assert_eq!(body.last_updated, before);
    assert!(body.faults[0].contains("services4"), "{body:?}");
}

#[test]
fn the_own_node_which_is_asked_for_rarely_does_not_make_a_source_stale_for_long() {
    let thresholds = Thresholds { fail_stale: Some(Duration::from_mins(1)), ..THRESHOLDS };
    let mut report = healthy();
    report.source.stale = Some("services: the watch was cut off".into());
    report.source.age_seconds =
        [("services".into(), 2.0), ("endpointslices".into(), 3.0), ("nodes".into(), 170.0)].into();
    assert_eq!(own_faults(&report, QUICK, &thresholds), Vec::new());
    report.source.age_seconds.insert("endpointslices".into(), 61.0);
    assert_eq!(own_faults(&report, QUICK, &thresholds).len(), 1);
}

/// Every fault at once, each with a text that only administrators may see.
#[test]
fn everybody_hears_what_is_wrong_and_no_internals() {
    let secret = "10.0.0.1:6443 /var/lib tenant/web";
    let report = with(|report| {
        report.tables.unwritable = Some(secret.into());
        report.tables.unwritable_seconds = Some(60.0);
        (report.tables.synced, report.datapath.synced) = (false, false);
        report.datapath.node_problems = (0..30).map(|number| format!("eth{number}: {secret}")).collect();
        report.source.stale = Some(secret.into());
        report.source.age_seconds.insert("services".into(), 1e6);
    });
    let thresholds = Thresholds { fail_stale: Some(Duration::from_mins(10)), ..THRESHOLDS };
    for wedged in [None, Some(3.0)] {
        let report =
            Report { source: SourceReport { wedged_seconds: wedged, ..report.source.clone() }, ..report.clone() };
        let judgement = Judgement::of(&report, THRESHOLDS.stuck_after + QUICK, &thresholds);
        let faults = |audience| judgement.answer(Probe::Readyz, audience, Timestamp::UNIX_EPOCH, None).1.faults;
        let (public, own) = (faults(Audience::Everybody), faults(Audience::Node));
        assert!(public.iter().all(|fault| !secret.split(' ').any(|word| fault.contains(word))), "{public:?}");
        for general in
            ["stuck", "tables cannot be written", "first sync", "interfaces", "program is not attached", "stale"]
        {
            assert!(public.iter().any(|fault| fault.contains(general)), "{general}: {public:?}");
        }
        assert_eq!(public.iter().filter(|fault| fault.contains("not attached")).count(), 1, "{public:?}");
        assert!(own.len() == FAULTS_MAX && own.iter().any(|fault| fault.contains(secret)), "{own:?}");
    }
}
