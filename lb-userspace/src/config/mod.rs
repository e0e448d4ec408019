//! The agent's settings: flags, and a YAML file with the same names; flags win.

mod options;
mod values;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use options::{ConfigError, Options};
pub use values::{
    ApiServer, CgroupRoot, Interfaces, LogFormat, LogLevel, SocketLb, Source, TcAttach, ValueError, XdpMode,
};

/// Where bpffs is mounted, unless `--bpffs` says otherwise.
pub const DEFAULT_BPFFS: &str = "/sys/fs/bpf";
/// Where lock and socket of the agent are, unless `--run-dir` says otherwise.
pub const DEFAULT_RUN_DIR: &str = "/run/ballast";
/// Loopback only, as kube-proxy's metrics.
pub const DEFAULT_METRICS_BIND: &str = "127.0.0.1:10249";
/// All node addresses, as kube-proxy's health checks: load balancers probe them.
pub const DEFAULT_HEALTH_BIND: &str = "0.0.0.0:10256";
/// How long the flows of a vanished backend may go on.
pub const DEFAULT_DRAIN_PERIOD: Duration = Duration::from_secs(30);
/// The longest drain period: deadlines are kept in tenths of a second in 32 bits, and a drain must end.
pub const MAX_DRAIN_PERIOD: Duration = Duration::from_hours(24);

/// What the agent runs with: every option has a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub source: Source,
    pub kubeconfig: Option<PathBuf>,
    pub api_server: Option<ApiServer>,
    pub node_name: String,
    pub pod_interfaces: Interfaces,
    pub external_interfaces: Interfaces,
    pub bpffs: PathBuf,
    pub cgroup_root: CgroupRoot,
    pub socket_lb: SocketLb,
    pub drain_period: Duration,
    pub run_dir: PathBuf,
    pub metrics_bind: SocketAddr,
    pub health_bind: SocketAddr,
    pub tc_attach: TcAttach,
    pub xdp_mode: XdpMode,
    pub log_format: LogFormat,
    pub log_level: LogLevel,
    pub program_log_level: LogLevel,
}
