//! Which settings of service ports and frontends differ, as text.

use std::{collections::BTreeSet, time::Duration};

use ipnet::IpNet;
use lb_common::abi::service_flags;

use crate::plan::{DesiredService, FrontendKind, Set, Use, effect::Differing};
use lb_model::{Check, CheckMethod, RateLimit};

/// Stands for a setting that is not given.
const NONE: &str = "none";

/// What differs between two forms of a service port beside its frontends and backends.
pub(super) fn of_port(before: &DesiredService, after: &DesiredService) -> Vec<Differing> {
    let differing = |name, text: &dyn Fn(&DesiredService) -> String| Differing::new(name, [before, after].map(text));
    let seconds =
        |duration: Option<Duration>| or_none(duration.map(|duration| format!("{} s", duration.as_secs_f64())));
    let all = [
        differing("portName", &|port| or_none(Some(&port.port_name).filter(|name| !name.is_empty()))),
        differing("scheduler", &|port| port.scheduler.to_string()),
        differing("affinitySeconds", &|port| port.affinity_timeout_s.to_string()),
        differing("rateLimit", &|port| rate(port.rate_limit)),
        differing("maglevSize", &|port| or_none(port.maglev_size)),
        differing("slotsMax", &|port| or_none(port.slots_max)),
        differing("drainPeriod", &|port| seconds(port.drain_limits.period)),
        differing("drainMax", &|port| seconds(port.drain_limits.max)),
        differing("check", &|port| or_none(port.check.as_deref().map(check))),
        differing("sourceRanges", &|port| ranges(&port.sources)),
    ];
    all.into_iter().flatten().collect()
}

/// What differs between two uses of a service port by a frontend.
pub(super) fn of_frontend(before: Use, after: Use) -> Vec<Differing> {
    let differing = |name, text: &dyn Fn(Use) -> &'static str| {
        Differing::new(name, [before, after].map(|used| text(used).to_owned()))
    };
    let all = [
        differing("kind", &kind),
        differing("internalTrafficPolicy", &|used| policy(used.inside)),
        differing("externalTrafficPolicy", &|used| policy(used.outside)),
        differing("sourceRanges", &|used| flag(used, service_flags::SOURCE_RANGES, ["off", "on"])),
        differing("nodeAdmitted", &|used| flag(used, service_flags::NODE_ALLOWED, ["off", "on"])),
        differing("retry", &|used| flag(used, service_flags::NO_RETRY, ["on", "off"])),
        differing("dsr", &|used| flag(used, service_flags::DSR, ["off", "on"])),
        differing("withoutBackend", &|used| flag(used, service_flags::DROP_IF_EMPTY, ["refuse", "drop"])),
        differing("withoutBackendExternal", &|used| {
            flag(used, service_flags::DROP_OUTSIDE_IF_EMPTY, ["refuse", "drop"])
        }),
    ];
    all.into_iter().flatten().collect()
}

/// The first word where the flag is not set, else the second.
fn flag(used: Use, flag: u8, [unset, set]: [&'static str; 2]) -> &'static str {
    if used.flags & flag == 0 { unset } else { set }
}

fn or_none(value: Option<impl ToString>) -> String {
    value.map_or_else(|| NONE.to_owned(), |value| value.to_string())
}

fn policy(set: Set) -> &'static str {
    match set {
        Set::Cluster => "Cluster",
        Set::Local => "Local",
    }
}

fn kind(used: Use) -> &'static str {
    match used.kind {
        FrontendKind::ClusterIp => "ClusterIP",
        FrontendKind::LoadBalancer => "LoadBalancer",
        FrontendKind::ExternalIp => "ExternalIP",
        FrontendKind::NodePort => "NodePort",
        FrontendKind::HostSocket => "HostSocket",
    }
}

fn rate(limit: RateLimit) -> String {
    if limit.rate == 0 { NONE.to_owned() } else { format!("{}/s, burst {}", limit.rate, limit.burst) }
}

fn ranges(sources: &BTreeSet<IpNet>) -> String {
    let texts: Vec<String> = sources.iter().map(ToString::to_string).collect();
    if texts.is_empty() { NONE.to_owned() } else { texts.join(",") }
}

fn check(check: &Check) -> String {
    let method = match &check.method {
        CheckMethod::Tcp => "tcp".to_owned(),
        CheckMethod::Http { path } => format!("http {path}"),
    };
    let port = check.port.map(|port| format!(" at port {port}")).unwrap_or_default();
    let (interval, timeout) = (check.interval.as_secs_f64(), check.timeout.as_secs_f64());
    let (failures, successes) = (check.failures, check.successes);
    format!("{method}{port} every {interval} s, timeout {timeout} s, {failures} failures, {successes} successes")
}
