//! Defaults and bounds of the agent's options, for the help of the command line and for the book. They come from the constants that the agent uses.

use std::time::Duration;

use clap::Arg;

use super::{
    self as defaults, Bounds, CheckLimits, LogFormat, LogLevel, Switch, check_limits, durations, flow_timeouts,
};
use lb_datapath::{MAX_MAP_ENTRIES, MIN_MAP_ENTRIES, MapSizes, PortRange, SocketLb, TcAttach, XdpMode};
use lb_model::{AllowedAnnotations, Annotation, Mode, Scheduler, SlotShares};

/// What holds where an option is not given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Default {
    /// The option must be given.
    Required,
    /// This value of the option.
    Value(String),
    /// No value says it.
    Words(&'static str),
    /// Several values by name, which have rows of their own in the book.
    Table,
}

/// Default and bounds of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub default: Default,
    /// Empty: what the form of the value says.
    pub bounds: String,
}

impl Facts {
    fn value(value: impl Into<String>) -> Self {
        Self { default: Default::Value(value.into()), bounds: String::new() }
    }

    fn words(words: &'static str) -> Self {
        Self { default: Default::Words(words), bounds: String::new() }
    }

    fn duration(default: Duration, bounds: Bounds) -> Self {
        Self { default: Default::Value(duration(default)), bounds: bounds_text(bounds) }
    }

    fn within(self, bounds: impl Into<String>) -> Self {
        Self { bounds: bounds.into(), ..self }
    }
}

/// Of the option with this name, which is that of its field in [`super::Options`].
pub fn of(name: &str) -> Option<Facts> {
    of_time(name).or_else(|| of_numbers(name)).or_else(|| of_choice(name)).or_else(|| of_words(name))
}

fn of_time(name: &str) -> Option<Facts> {
    Some(match name {
        "node_wait" => Facts::duration(defaults::DEFAULT_NODE_WAIT, durations::NODE_WAIT),
        "drain_period" => Facts::duration(defaults::DEFAULT_DRAIN_PERIOD, durations::DRAIN_PERIOD),
        "drain_max" => Facts::duration(defaults::DEFAULT_DRAIN_MAX, durations::DRAIN_MAX),
        "terminating_max" => Facts::duration(defaults::DEFAULT_TERMINATING_MAX, durations::TERMINATING_MAX),
        "adoption_window" => Facts::duration(defaults::DEFAULT_ADOPTION_WINDOW, durations::ADOPTION_WINDOW),
        "audit_interval" => Facts::duration(defaults::DEFAULT_AUDIT_INTERVAL, durations::AUDIT_INTERVAL),
        "resync_interval" => Facts::duration(defaults::DEFAULT_RESYNC_INTERVAL, durations::RESYNC_INTERVAL),
        "watch_silence" => Facts::duration(defaults::DEFAULT_WATCH_SILENCE, durations::WATCH_SILENCE),
        "healthz_fail_stale" => Facts::value("off").within(bounds_text(durations::FAIL_STALE)),
        "stuck_after" => Facts::duration(defaults::DEFAULT_STUCK_AFTER, durations::STUCK_AFTER),
        "behind_after" => Facts::duration(defaults::DEFAULT_BEHIND_AFTER, durations::BEHIND_AFTER),
        "first_sync_grace" => Facts::duration(defaults::DEFAULT_FIRST_SYNC_GRACE, durations::FIRST_SYNC_GRACE),
        "flow_timeouts" => Facts { default: Default::Table, bounds: names(flow_timeouts::ALL.map(|one| one.name)) },
        _ => return None,
    })
}

fn of_numbers(name: &str) -> Option<Facts> {
    Some(match name {
        "snat_ports" => Facts::words("all ports from 1024 on but node ports and `net.ipv4.ip_local_port_range`")
            .within(format!("{} to {}", PortRange::FIRST_UNPRIVILEGED, u16::MAX)),
        "check_limits" => {
            let CheckLimits { per_second, in_flight } = CheckLimits::default();
            let value = format!("per-second={per_second},in-flight={in_flight}");
            Facts::value(value).within(format!("1 to {} each", check_limits::MOST))
        }
        "map_sizes" => Facts {
            default: Default::Table,
            bounds: format!(
                "{}; {MIN_MAP_ENTRIES} to {MAX_MAP_ENTRIES} each",
                names(MapSizes::ALL.map(|(name, _)| name))
            ),
        },
        "slot_shares" => {
            let SlotShares { service, namespace } = SlotShares::default();
            let value = format!("service=1/{service},namespace=1/{namespace}");
            Facts::value(value).within(format!("1/1 to 1/{} each", SlotShares::PARTS_MAX))
        }
        "metrics_bind" => Facts::value(defaults::DEFAULT_METRICS_BIND),
        "health_bind" => Facts::value(defaults::DEFAULT_HEALTH_BIND),
        _ => return None,
    })
}

fn of_choice(name: &str) -> Option<Facts> {
    Some(match name {
        "socket_lb" => Facts::value(SocketLb::Host.text()),
        "scheduler" => Facts::value(Scheduler::default().name()).within(names(Scheduler::ALL.map(Scheduler::name))),
        "mode" => Facts::value(Mode::default().name()),
        "retry" | "protect_node_ports" | "connect_times" => Facts::value(Switch::On.text()),
        "external_ips" | "flow_counters" => Facts::value(Switch::Off.text()),
        "active_checks" => Facts::value("off"),
        "pod_interfaces" | "external_interfaces" | "cgroup_root" | "fast_path" => Facts::value("auto"),
        "tc_attach" => Facts::value(TcAttach::Auto.text()),
        "xdp_mode" => Facts::value(XdpMode::Auto.text()),
        "nodeport_addresses" => Facts::value("all"),
        "log_format" => Facts::value(LogFormat::Text.text()),
        "log_level" => Facts::value(LogLevel::Info.text()),
        "program_log_level" => Facts::value(LogLevel::Off.text()),
        "bpffs" => Facts::value(defaults::DEFAULT_BPFFS),
        "run_dir" => Facts::value(defaults::DEFAULT_RUN_DIR),
        "allowed_annotations" => {
            let allowed = AllowedAnnotations::default();
            let count = Annotation::ALL.into_iter().filter(|one| allowed.allows(*one, ""));
            Facts::value(count.map(Annotation::name).collect::<Vec<_>>().join(",")).within(format!(
                "{}; with a file as source, the default is all",
                names(Annotation::ALL.map(Annotation::name))
            ))
        }
        _ => return None,
    })
}

fn of_words(name: &str) -> Option<Facts> {
    Some(match name {
        "source" => Facts { default: Default::Required, bounds: String::new() },
        "kubeconfig" => Facts::words("the credentials of the pod that it runs in"),
        "api_server" => Facts::words("the one in the kubeconfig, or the pod's environment"),
        "tls_server_name" => Facts::words("the name in the address"),
        "node_name" => Facts::words("the host name"),
        "cluster_cidr" | "service_cidr" | "dsr_peers" | "fleet_bind" | "fleet_tls_cert" | "fleet_tls_key" => {
            Facts::words("none")
        }
        "snat_addresses" => Facts::words("one of each link"),
        "service_proxy_name" => Facts::words("Services without the label"),
        "programs" => Facts::words("those in the binary"),
        _ => return None,
    })
}

/// Adds default and bounds to the help of an option.
pub(super) fn describe(argument: Arg) -> Arg {
    let facts = of(argument.get_id().as_str());
    let (Some(Facts { default, bounds }), Some(help)) = (facts, argument.get_help()) else { return argument };
    let mut help = help.to_string();
    if !bounds.is_empty() {
        help = format!("{help}; {bounds}");
    }
    match default {
        Default::Value(value) => help = format!("{help} [default: {value}]"),
        Default::Words(words) => help = format!("{help} [default: {words}]"),
        Default::Required | Default::Table => {}
    }
    argument.help(help)
}

fn names<const N: usize>(names: [&str; N]) -> String {
    names.join(", ")
}

/// As `4s to 10m`.
pub fn bounds_text(bounds: Bounds) -> String {
    if bounds.min.is_zero() {
        return format!("at most {}", duration(bounds.max));
    }
    format!("{} to {}", duration(bounds.min), duration(bounds.max))
}

/// In hours, minutes and seconds, as one would write it.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let parts = [(seconds / 3600, "h"), (seconds / 60 % 60, "m"), (seconds % 60, "s")];
    let shown = parts.iter().filter(|(count, _)| *count > 0);
    let text = shown.fold(String::new(), |text, (count, unit)| text + &count.to_string() + unit);
    if text.is_empty() { "0s".to_owned() } else { text }
}

#[cfg(test)]
#[path = "facts_tests.rs"]
mod tests;
