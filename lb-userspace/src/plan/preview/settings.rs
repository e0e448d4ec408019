//! Which settings of service ports and frontends differ, as text.

use std::{collections::BTreeSet, time::Duration};

use ipnet::IpNet;
use lb_common::abi::service_flags;

use crate::{
    model::{Check, Question, RateLimit},
    plan::{DesiredService, Set, Use, effect::Differing},
};

/// Stands for a setting that is not given.
const NONE: &str = "none";

/// What differs between two forms of a service port beside its frontends and backends.
pub(super) fn of_port(before: &DesiredService, after: &DesiredService) -> Vec<Differing> {
    let seconds =
        |duration: Option<Duration>| or_none(duration.map(|duration| format!("{} s", duration.as_secs_f64())));
    let (old, new) = (before.drain_limits, after.drain_limits);
    let differing = [
        Differing::new("portName", or_none(label(before)), or_none(label(after))),
        Differing::new("scheduler", before.scheduler, after.scheduler),
        Differing::new("affinitySeconds", before.affinity_timeout_s, after.affinity_timeout_s),
        Differing::new("rateLimit", rate(before.rate_limit), rate(after.rate_limit)),
        Differing::new("maglevSize", or_none(before.maglev_size), or_none(after.maglev_size)),
        Differing::new("slotsMax", or_none(before.slots_max), or_none(after.slots_max)),
        Differing::new("drainPeriod", seconds(old.period), seconds(new.period)),
        Differing::new("drainMax", seconds(old.max), seconds(new.max)),
        Differing::new("check", check(before.check.as_deref()), check(after.check.as_deref())),
        Differing::new("sourceRanges", ranges(&before.sources), ranges(&after.sources)),
    ];
    differing.into_iter().flatten().collect()
}

/// What differs between two uses of a service port by a frontend.
pub(super) fn of_frontend(before: Use, after: Use) -> Vec<Differing> {
    let has = |used: Use, flag: u8| if used.flags & flag == 0 { "off" } else { "on" };
    let without_backend = |used: Use, flag: u8| if used.flags & flag == 0 { "refuse" } else { "drop" };
    let (inside, outside) = (service_flags::DROP_IF_EMPTY, service_flags::DROP_OUTSIDE_IF_EMPTY);
    let differing = [
        Differing::new("kind", format!("{:?}", before.kind), format!("{:?}", after.kind)),
        Differing::new("internalTrafficPolicy", policy(before.inside), policy(after.inside)),
        Differing::new("externalTrafficPolicy", policy(before.outside), policy(after.outside)),
        Differing::new(
            "sourceRanges",
            has(before, service_flags::SOURCE_RANGES),
            has(after, service_flags::SOURCE_RANGES),
        ),
        Differing::new(
            "nodeAdmitted",
            has(before, service_flags::NODE_ALLOWED),
            has(after, service_flags::NODE_ALLOWED),
        ),
        Differing::new("retry", retry(before), retry(after)),
        Differing::new("dsr", has(before, service_flags::DSR), has(after, service_flags::DSR)),
        Differing::new("withoutBackend", without_backend(before, inside), without_backend(after, inside)),
        Differing::new("withoutBackendExternal", without_backend(before, outside), without_backend(after, outside)),
    ];
    differing.into_iter().flatten().collect()
}

fn or_none(value: Option<impl ToString>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| value.to_string())
}

fn label(port: &DesiredService) -> Option<&String> {
    Some(&port.port_name).filter(|name| !name.is_empty())
}

fn policy(set: Set) -> &'static str {
    match set {
        Set::Cluster => "Cluster",
        Set::Local => "Local",
    }
}

fn retry(used: Use) -> &'static str {
    if used.flags & service_flags::NO_RETRY == 0 { "on" } else { "off" }
}

fn rate(limit: RateLimit) -> String {
    if limit.rate == 0 { NONE.to_owned() } else { format!("{}/s, burst {}", limit.rate, limit.burst) }
}

fn ranges(sources: &BTreeSet<IpNet>) -> String {
    let texts: Vec<String> = sources.iter().map(ToString::to_string).collect();
    if texts.is_empty() { NONE.to_owned() } else { texts.join(",") }
}

fn check(check: Option<&Check>) -> String {
    let Some(check) = check else { return NONE.to_owned() };
    let question = match &check.question {
        Question::Tcp => "tcp".to_owned(),
        Question::Http { path } => format!("http {path}"),
    };
    let port = check.port.map(|port| format!(" at port {port}")).unwrap_or_default();
    let (interval, timeout) = (check.interval.as_secs_f64(), check.timeout.as_secs_f64());
    let (failures, successes) = (check.failures, check.successes);
    format!("{question}{port} every {interval} s, timeout {timeout} s, {failures} failures, {successes} successes")
}
