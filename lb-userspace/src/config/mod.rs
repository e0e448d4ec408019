//! The agent's settings: flags, and a YAML file with the same names; flags win.

mod active_checks;
mod check_limits;
mod durations;
mod facts;
mod flow_timeouts;
pub mod kube_proxy;
mod networks;
mod options;
mod settings;
mod values;

use std::time::Duration;

pub use active_checks::ActiveChecks;
pub use check_limits::CheckLimits;
pub use durations::{Bounds, Period};
pub use flow_timeouts::FlowTimeouts;
pub use lb_model::NodePortAddresses;
pub use options::{ConfigError, Options};
pub use settings::{Fleet, Settings};
pub use values::{ApiServers, CgroupRoot, LogFormat, LogLevel, ProxyName, Source, Switch};

/// Where bpffs is mounted, unless `--bpffs` says otherwise.
pub const DEFAULT_BPFFS: &str = "/sys/fs/bpf";
/// Where lock and socket of the agent are, unless `--run-dir` says otherwise.
pub const DEFAULT_RUN_DIR: &str = "/run/ballast";
/// Loopback only, as kube-proxy's metrics.
pub const DEFAULT_METRICS_BIND: &str = "127.0.0.1:10249";
/// All node addresses, as kube-proxy's health checks: load balancers probe them.
pub const DEFAULT_HEALTH_BIND: &str = "[::]:10256";
/// How long the flows of a vanished backend may go on.
pub const DEFAULT_DRAIN_PERIOD: Duration = Duration::from_secs(30);
pub const DEFAULT_DRAIN_MAX: Duration = Duration::from_hours(1);
/// How long flows to a terminating backend may go on at most.
pub const DEFAULT_TERMINATING_MAX: Duration = Duration::from_hours(1);
/// How long after the first start segments of unknown connections are left to the host's stack.
pub const DEFAULT_ADOPTION_WINDOW: Duration = Duration::from_mins(10);
/// How often the tables are read back and compared with the plan.
pub const DEFAULT_AUDIT_INTERVAL: Duration = Duration::from_secs(30);
/// How often what is held of the API is compared with a fresh list.
pub const DEFAULT_RESYNC_INTERVAL: Duration = Duration::from_hours(1);
/// How long a watch may be silent before a probe.
pub const DEFAULT_WATCH_SILENCE: Duration = Duration::from_secs(30);
/// How long the first start waits for the Node object.
pub const DEFAULT_NODE_WAIT: Duration = Duration::from_secs(30);
/// A runtime that has not turned for this long is stuck.
pub const DEFAULT_STUCK_AFTER: Duration = Duration::from_mins(1);
/// A change that could not be written for this long makes the node unhealthy: several attempts have failed then.
pub const DEFAULT_BEHIND_AFTER: Duration = Duration::from_secs(15);
/// How long a restarted agent may take to list everything while the tables of the one before serve.
pub const DEFAULT_FIRST_SYNC_GRACE: Duration = Duration::from_mins(1);
