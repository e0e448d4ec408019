//! Healthy or not, and why: pure judgement over what the runtime knows.
//!
//! `/healthz` is probed by load balancers, so it fails only for this node's own faults: a lost API reddens `/readyz`, or one API
//! outage would take every node out of every load balancer. `/livez` fails only if the runtime no longer turns, because a restart
//! heals nothing else.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::report::{HealthReport, Report};

/// A runtime that has not turned for this long is stuck: it turns at least every [`BEAT`].
pub const STUCK_AFTER: Duration = Duration::from_mins(1);
/// How often the runtime turns at least.
pub const BEAT: Duration = Duration::from_secs(5);

/// One of the questions that the health server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    Healthz,
    Livez,
    Readyz,
}

/// Body of an answer: kube-proxy's fields, and ours where something is wrong.
#[derive(Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// When the tables were last in step; now, if healthy (as kube-proxy has it).
    pub last_updated: Timestamp,
    pub current_time: Timestamp,
    /// Not part of `/livez`, as with kube-proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_eligible: Option<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
}

/// Faults of this node itself.
pub fn own_faults(report: &Report) -> Vec<String> {
    let mut faults = Vec::new();
    if !report.tables.synced {
        faults.push("the first sync is not finished: services and endpoints have not both been listed".to_owned());
    }
    faults.extend(report.tables.last_error.iter().map(|error| format!("the tables are behind: {error}")));
    if !report.datapath.synced {
        faults.push("interfaces have not been looked at yet".to_owned());
    }
    faults.extend(report.datapath.problems.iter().map(|problem| format!("not attached: {problem}")));
    faults
}

/// What makes this node not ready: its own faults, and a stale source.
pub fn unready(report: &Report) -> Vec<String> {
    let mut faults = own_faults(report);
    faults.extend(report.source.stale.iter().map(|reason| format!("the source is stale: {reason}")));
    faults
}

/// Both answers, for the report.
pub fn judge(report: &Report) -> HealthReport {
    let faults = unready(report);
    HealthReport { healthz: own_faults(report).is_empty(), readyz: faults.is_empty(), faults }
}

/// The answer to a probe and whether it is a good one. `since_beat`: how long ago the runtime turned.
pub fn answer(
    probe: Probe,
    report: &Report,
    since_beat: Duration,
    now: Timestamp,
    last_in_step: Option<Timestamp>,
) -> (bool, Answer) {
    let stuck = since_beat > STUCK_AFTER;
    let mut faults = match probe {
        Probe::Healthz => own_faults(report),
        Probe::Readyz => unready(report),
        Probe::Livez => Vec::new(),
    };
    if stuck {
        faults.push(format!("the agent's runtime has not turned for {} s", since_beat.as_secs()));
    }
    let good = faults.is_empty();
    let last_updated = if good { now } else { last_in_step.unwrap_or(Timestamp::UNIX_EPOCH) };
    let node_eligible = (probe != Probe::Livez).then_some(true);
    (good, Answer { last_updated, current_time: now, node_eligible, faults })
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_secs(1);

    fn healthy() -> Report {
        let mut report = Report::default();
        (report.tables.synced, report.datapath.synced, report.source.synced) = (true, true, true);
        report
    }

    fn good(probe: Probe, report: &Report) -> bool {
        answer(probe, report, QUICK, Timestamp::UNIX_EPOCH, None).0
    }

    #[test]
    fn all_is_well() {
        for probe in [Probe::Healthz, Probe::Livez, Probe::Readyz] {
            assert!(good(probe, &healthy()));
        }
    }

    #[test]
    fn a_lost_api_reddens_readyz_alone() {
        let mut report = healthy();
        report.source.stale = Some("connection refused".into());
        assert!(good(Probe::Healthz, &report) && good(Probe::Livez, &report));
        assert!(!good(Probe::Readyz, &report));
        assert!(judge(&report).healthz && !judge(&report).readyz);
    }

    #[test]
    fn own_faults_redden_healthz_but_no_restart_is_asked_for() {
        let faults: [fn(&mut Report); 4] = [
            |report| report.tables.synced = false,
            |report| report.tables.last_error = Some("map full".into()),
            |report| report.datapath.synced = false,
            |report| report.datapath.problems = vec!["eth0".into()],
        ];
        for fault in faults {
            let mut report = healthy();
            fault(&mut report);
            assert!(!good(Probe::Healthz, &report) && !good(Probe::Readyz, &report) && good(Probe::Livez, &report));
        }
    }

    #[test]
    fn a_stuck_runtime_fails_every_probe() {
        for probe in [Probe::Healthz, Probe::Livez, Probe::Readyz] {
            assert!(!answer(probe, &healthy(), STUCK_AFTER + QUICK, Timestamp::UNIX_EPOCH, None).0);
        }
    }

    #[test]
    fn json_has_the_shape_of_kube_proxys() {
        let now: Timestamp = "2026-11-21T04:00:00Z".parse().expect("valid");
        let (_, body) = answer(Probe::Healthz, &healthy(), QUICK, now, None);
        assert_eq!(
            serde_json::to_value(body).expect("plain data"),
            serde_json::json!({
                "lastUpdated": "2026-11-21T04:00:00Z", "currentTime": "2026-11-21T04:00:00Z", "nodeEligible": true,
            })
        );
        let (_, body) = answer(Probe::Livez, &healthy(), QUICK, now, None);
        assert!(serde_json::to_value(body).expect("plain data").get("nodeEligible").is_none());
    }

    #[test]
    fn a_bad_answer_says_when_all_was_well_and_what_is_wrong() {
        let mut report = healthy();
        report.tables.last_error = Some("map services4 is full".into());
        let (now, before) = (Timestamp::from_second(100).expect("valid"), Timestamp::from_second(40).expect("valid"));
        let (_, body) = answer(Probe::Healthz, &report, QUICK, now, Some(before));
        assert_eq!(body.last_updated, before);
        assert!(body.faults[0].contains("services4"), "{body:?}");
    }
}
