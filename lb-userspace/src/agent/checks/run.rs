//! Makes the checks: steps of the schedule, connections under way, and the report of them.

use std::collections::BTreeMap;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::ask::{Failure, ask};
use super::endpoint::Answer;
use super::schedule::{HealthChange, Schedule, Subject};
use super::wanted::Wanted;
use crate::agent::log_bound::LogBound;
use crate::agent::marks::{Unhealthy, UnhealthySender};
use crate::config::CheckLimits;
use crate::observe::metrics::Metrics;
use crate::observe::report::ChecksReport;

/// How many failing endpoints the report names; `ballast get backends --state unhealthy` has them all.
const NAMED_MAX: usize = 20;

/// What the checks need, and who learns of them.
pub struct Parts {
    pub limits: CheckLimits,
    /// `None`: nothing is planned yet. What an agent before this one found unhealthy stays so until then.
    pub wanted: watch::Receiver<Option<Wanted>>,
    pub restored: Unhealthy,
    /// Any number, another one on each node.
    pub seed: u64,
    pub failing: UnhealthySender,
    pub report: watch::Sender<ChecksReport>,
    pub metrics: Metrics,
}

/// Checks until nobody says any more what is wanted.
pub async fn run(parts: Parts) {
    let Parts { limits, mut wanted, restored, seed, failing, report, metrics } = parts;
    let mut schedule = Schedule::new(limits, restored, seed, Instant::now());
    let mut check_log = CheckLog::default();
    let mut asked = JoinSet::new();
    loop {
        while let Some(next) = schedule.next(Instant::now()) {
            asked.spawn(async move { (next.id, ask(next.target, &next.check).await) });
        }
        check_log.report(&schedule, &report);
        let turn = schedule.due();
        tokio::select! {
            changed = wanted.changed() => {
                if changed.is_err() {
                    return;
                }
                if let Some(wanted) = &*wanted.borrow_and_update() {
                    schedule.set(wanted, Instant::now());
                }
                publish(&schedule, &failing);
                check_log.keep(&schedule.failing());
            }
            Some(Ok((id, result))) = asked.join_next() => {
                let answer = result.as_ref().map_or_else(Failure::answer, |()| Answer::Well);
                metrics.checked(answer.name());
                if let Some(change) = schedule.over(id, answer, Instant::now()) {
                    publish(&schedule, &failing);
                    check_log.changed(change, result.err().as_ref());
                }
            }
            () = sleep_until(turn.unwrap_or_else(Instant::now)), if turn.is_some() => {}
        }
    }
}

fn publish(schedule: &Schedule, sender: &UnhealthySender) {
    let failing = schedule.failing();
    sender.send_if_modified(|known| {
        let changed = *known != failing;
        *known = failing;
        changed
    });
}

/// What the log and the report say.
#[derive(Default)]
struct CheckLog {
    /// Why the failing ones fail.
    reasons: BTreeMap<Subject, String>,
    log: LogBound,
}

impl CheckLog {
    fn changed(&mut self, change: HealthChange, failure: Option<&Failure>) {
        let HealthChange { subject, is_failing } = change;
        let (service, endpoint) = (subject.0.to_string(), subject.1);
        let admitted = self.log.admits(Instant::now());
        if is_failing {
            let reason = failure.map_or_else(String::new, ToString::to_string);
            if let Some(unsaid) = admitted {
                tracing::warn!(service, %endpoint, reason, unsaid, "unhealthy: its checks fail");
            }
            self.reasons.insert(subject, reason);
        } else {
            if let Some(unsaid) = admitted {
                tracing::info!(service, %endpoint, unsaid, "no longer unhealthy: its checks succeed");
            }
            self.reasons.remove(&subject);
        }
    }

    fn keep(&mut self, failing: &Unhealthy) {
        self.reasons.retain(|subject, _| failing.contains(subject));
        for subject in failing {
            let before = || "since before this agent started".to_owned();
            self.reasons.entry(subject.clone()).or_insert_with(before);
        }
    }

    fn report(&self, schedule: &Schedule, report: &watch::Sender<ChecksReport>) {
        let named = self.reasons.iter().take(NAMED_MAX);
        let new = ChecksReport {
            endpoints: schedule.len() as u64,
            failing: self.reasons.len() as u64,
            under_way: schedule.under_way().into(),
            late_seconds: schedule.late(Instant::now()).as_secs_f64(),
            failures: named.map(|((service, endpoint), reason)| format!("{service} at {endpoint}: {reason}")).collect(),
        };
        report.send_if_modified(|known| {
            let changed = *known != new;
            *known = new;
            changed
        });
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use tokio::net::TcpSocket;

    use super::super::wanted::Checked;
    use super::*;
    use lb_model::PortKey;
    use lb_model::{Check, CheckMethod, ObjectName, Protocol};
    use lb_source::api_requests::ApiRequests;

    fn key() -> PortKey {
        PortKey { service: ObjectName::new("demo", "web"), port: 80, protocol: Protocol::Tcp }
    }

    fn wanted(endpoint: SocketAddr) -> Wanted {
        let interval = Duration::from_millis(20);
        let timeout = Duration::from_secs(5);
        let check = Check { method: CheckMethod::Tcp, port: None, interval, timeout, failures: 2, successes: 2 };
        [(key(), Checked { check, endpoints: [endpoint].into() })].into()
    }

    #[tokio::test]
    async fn a_server_that_stops_listening_is_unhealthy_and_one_that_listens_again_is_not() {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind("127.0.0.1:0".parse().expect("valid")).expect("a port");
        let endpoint = socket.local_addr().expect("bound");
        let (want, wanted_here) = watch::channel(None);
        let (failing, mut unhealthy) = watch::channel(Unhealthy::new());
        let (report, reported) = watch::channel(ChecksReport::default());
        let metrics = Metrics::new(&ApiRequests::default(), Vec::new);
        let parts = Parts {
            limits: CheckLimits::default(),
            wanted: wanted_here,
            restored: Unhealthy::new(),
            seed: 3,
            failing,
            report,
            metrics: metrics.clone(),
        };
        let checks = tokio::spawn(run(parts));
        want.send_replace(Some(wanted(endpoint)));
        unhealthy.wait_for(|failing| *failing == [(key(), endpoint)].into()).await.expect("it checks on");
        let listener = socket.listen(16).expect("free");
        let accepting = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        unhealthy.wait_for(Unhealthy::is_empty).await.expect("it checks on");
        accepting.abort();
        assert!(metrics.encode().contains("ballast_checks_total{result=\"failed\"}"), "{}", metrics.encode());
        assert_eq!(reported.borrow().endpoints, 1);
        drop(want);
        checks.await.expect("no panic");
    }
}
