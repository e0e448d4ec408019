//! What the agent runs with: options merged, then filled up with the defaults.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;

use super::{
    self as defaults, ActiveChecks, ApiServers, CgroupRoot, CheckLimits, ConfigError, FlowTimeouts, LogFormat,
    LogLevel, NodePortAddresses, Options, Period, Source, Switch,
};
use lb_datapath::{FastPath, Interfaces, MapSizes, PortRange, SocketLb, TcAttach, XdpMode};
use lb_model::{AllowedAnnotations, Mode, Scheduler, SlotShares};

/// What the agent runs with: every option has a value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Settings {
    pub source: Source,
    pub kubeconfig: Option<PathBuf>,
    pub api_server: Option<ApiServers>,
    pub tls_server_name: Option<String>,
    pub node_name: String,
    pub node_wait: Duration,
    pub pod_interfaces: Interfaces,
    pub external_interfaces: Interfaces,
    pub bpffs: PathBuf,
    pub cgroup_root: CgroupRoot,
    pub socket_lb: SocketLb,
    pub scheduler: Scheduler,
    pub mode: Mode,
    pub retry: bool,
    pub drain_period: Duration,
    pub drain_max: Duration,
    pub terminating_max: Duration,
    pub adoption_window: Duration,
    pub nodeport_addresses: NodePortAddresses,
    pub cluster_cidr: Vec<IpNet>,
    pub service_cidr: Vec<IpNet>,
    pub snat_addresses: Vec<IpNet>,
    pub protect_node_ports: Switch,
    /// `None`: the default.
    pub snat_ports: Option<PortRange>,
    pub dsr_peers: Vec<IpNet>,
    pub external_ips: bool,
    pub service_proxy_name: Option<String>,
    pub flow_timeouts: FlowTimeouts,
    pub flow_counters: bool,
    pub connect_times: bool,
    pub allowed_annotations: AllowedAnnotations,
    pub active_checks: ActiveChecks,
    pub check_limits: CheckLimits,
    pub map_sizes: MapSizes,
    pub slot_shares: SlotShares,
    /// `None`: off.
    pub audit_interval: Option<Duration>,
    /// `None`: off.
    pub resync_interval: Option<Duration>,
    pub watch_silence: Duration,
    /// `None`: a stale source never fails `/healthz`.
    pub healthz_fail_stale: Option<Duration>,
    pub stuck_after: Duration,
    pub behind_after: Duration,
    pub first_sync_grace: Duration,
    pub run_dir: PathBuf,
    pub metrics_bind: SocketAddr,
    pub health_bind: SocketAddr,
    /// `None`: there is no such listener.
    pub fleet: Option<Fleet>,
    pub tc_attach: TcAttach,
    pub xdp_mode: XdpMode,
    pub fast_path: FastPath,
    pub log_format: LogFormat,
    pub log_level: LogLevel,
    pub program_log_level: LogLevel,
    /// `None`: the programs in this binary.
    pub programs: Option<PathBuf>,
}

/// The listener that `kubectl ballast` asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fleet {
    pub bind: SocketAddr,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Options with each of these fields from the first, or from the second where the first has none.
macro_rules! first_given {
    ($first:ident $second:ident: $($field:ident)*) => {
        Self { $($field: $first.$field.or($second.$field)),* }
    };
}

impl Options {
    /// These options where given, else the other's.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        first_given! { self other:
            source kubeconfig api_server tls_server_name node_name node_wait pod_interfaces external_interfaces bpffs
            cgroup_root socket_lb scheduler mode retry drain_period drain_max terminating_max adoption_window
            nodeport_addresses cluster_cidr service_cidr snat_addresses protect_node_ports snat_ports dsr_peers
            external_ips service_proxy_name flow_timeouts flow_counters connect_times allowed_annotations
            active_checks check_limits map_sizes slot_shares audit_interval resync_interval watch_silence
            healthz_fail_stale stuck_after behind_after first_sync_grace run_dir metrics_bind health_bind fleet_bind
            fleet_tls_cert fleet_tls_key tc_attach xdp_mode fast_path log_format log_level program_log_level programs
        }
    }

    /// Fills in the defaults. `host_name` is used where `--node-name` is missing.
    pub fn settle(self, host_name: Option<&str>) -> Result<Settings, ConfigError> {
        let source = self.source.ok_or(ConfigError::NoSource)?;
        if source != Source::Kube {
            let of_kube = [
                ("kubeconfig", self.kubeconfig.is_some()),
                ("api-server", self.api_server.is_some()),
                ("tls-server-name", self.tls_server_name.is_some()),
                ("node-wait", self.node_wait.is_some()),
                ("resync-interval", self.resync_interval.is_some()),
                ("watch-silence", self.watch_silence.is_some()),
                ("fleet-bind", self.fleet_bind.is_some()),
            ];
            for (flag, given) in of_kube {
                if given {
                    return Err(ConfigError::NotForSource { flag, source_text: source.to_string() });
                }
            }
        }
        let node_name = self.node_name.as_deref().or(host_name).filter(|name| !name.is_empty());
        let node_name = node_name.ok_or(ConfigError::NoNodeName)?.to_owned();
        Ok(Settings {
            kubeconfig: self.kubeconfig,
            api_server: self.api_server,
            tls_server_name: self.tls_server_name,
            node_name,
            node_wait: self.node_wait.unwrap_or(defaults::DEFAULT_NODE_WAIT),
            pod_interfaces: self.pod_interfaces.unwrap_or_default(),
            external_interfaces: self.external_interfaces.unwrap_or_default(),
            bpffs: self.bpffs.unwrap_or_else(|| defaults::DEFAULT_BPFFS.into()),
            cgroup_root: self.cgroup_root.unwrap_or_default(),
            socket_lb: self.socket_lb.unwrap_or(SocketLb::Host),
            scheduler: self.scheduler.unwrap_or_default(),
            mode: self.mode.unwrap_or_default(),
            retry: self.retry != Some(Switch::Off),
            drain_period: self.drain_period.unwrap_or(defaults::DEFAULT_DRAIN_PERIOD),
            drain_max: self.drain_max.unwrap_or(defaults::DEFAULT_DRAIN_MAX),
            terminating_max: self.terminating_max.unwrap_or(defaults::DEFAULT_TERMINATING_MAX),
            adoption_window: self.adoption_window.unwrap_or(defaults::DEFAULT_ADOPTION_WINDOW),
            nodeport_addresses: self.nodeport_addresses.unwrap_or_default(),
            cluster_cidr: self.cluster_cidr.unwrap_or_default(),
            service_cidr: self.service_cidr.unwrap_or_default(),
            snat_addresses: self.snat_addresses.unwrap_or_default(),
            protect_node_ports: self.protect_node_ports.unwrap_or(Switch::On),
            snat_ports: self.snat_ports,
            dsr_peers: self.dsr_peers.unwrap_or_default(),
            external_ips: self.external_ips == Some(Switch::On),
            service_proxy_name: self.service_proxy_name.map(|name| name.0),
            flow_timeouts: self.flow_timeouts.unwrap_or_default(),
            flow_counters: self.flow_counters == Some(Switch::On),
            connect_times: self.connect_times != Some(Switch::Off),
            allowed_annotations: self.allowed_annotations.unwrap_or_else(|| allowed_by(&source)),
            active_checks: self.active_checks.unwrap_or_default(),
            check_limits: self.check_limits.unwrap_or_default(),
            map_sizes: self.map_sizes.unwrap_or_default(),
            slot_shares: self.slot_shares.unwrap_or_default(),
            audit_interval: period(self.audit_interval, Some(defaults::DEFAULT_AUDIT_INTERVAL)),
            resync_interval: period(self.resync_interval, Some(defaults::DEFAULT_RESYNC_INTERVAL)),
            watch_silence: self.watch_silence.unwrap_or(defaults::DEFAULT_WATCH_SILENCE),
            healthz_fail_stale: period(self.healthz_fail_stale, None),
            stuck_after: self.stuck_after.unwrap_or(defaults::DEFAULT_STUCK_AFTER),
            behind_after: self.behind_after.unwrap_or(defaults::DEFAULT_BEHIND_AFTER),
            first_sync_grace: self.first_sync_grace.unwrap_or(defaults::DEFAULT_FIRST_SYNC_GRACE),
            run_dir: self.run_dir.unwrap_or_else(|| defaults::DEFAULT_RUN_DIR.into()),
            metrics_bind: self.metrics_bind.unwrap_or_else(|| constant(defaults::DEFAULT_METRICS_BIND)),
            health_bind: self.health_bind.unwrap_or_else(|| constant(defaults::DEFAULT_HEALTH_BIND)),
            fleet: fleet(self.fleet_bind, self.fleet_tls_cert, self.fleet_tls_key)?,
            tc_attach: self.tc_attach.unwrap_or(TcAttach::Auto),
            xdp_mode: self.xdp_mode.unwrap_or(XdpMode::Auto),
            fast_path: self.fast_path.unwrap_or(FastPath::Auto),
            log_format: self.log_format.unwrap_or(LogFormat::Text),
            log_level: self.log_level.unwrap_or(LogLevel::Info),
            program_log_level: self.program_log_level.unwrap_or(LogLevel::Off),
            programs: self.programs,
            source,
        })
    }
}

fn fleet(
    bind: Option<SocketAddr>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
) -> Result<Option<Fleet>, ConfigError> {
    match (bind, certificate, key) {
        (None, None, None) => Ok(None),
        (Some(bind), Some(certificate), Some(key)) => Ok(Some(Fleet { bind, certificate, key })),
        _ => Err(ConfigError::FleetIncomplete),
    }
}

/// Tenants write what the API holds; the operator alone writes the file.
fn allowed_by(source: &Source) -> AllowedAnnotations {
    match source {
        Source::Kube => AllowedAnnotations::default(),
        Source::File(_) => AllowedAnnotations::all(),
    }
}

/// What is given wins over the default, also if it is `off`.
fn period(given: Option<Period>, default: Option<Duration>) -> Option<Duration> {
    given.map_or(default, Period::duration)
}

fn constant(address: &str) -> SocketAddr {
    address.parse().expect("the default addresses are valid: tested")
}
