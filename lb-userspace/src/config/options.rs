//! The options of `ballast agent` as given: one struct read by clap and by serde, so the names cannot differ.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, de};

use super::durations::{
    adoption_window, audit_interval, behind_after, drain_max, drain_period, fail_stale, first_sync_grace, node_wait,
    resync_interval, stuck_after, terminating_max, watch_silence,
};
use super::networks::{network, networks};
use super::{
    ActiveChecks, ApiServers, CgroupRoot, CheckLimits, FastPath, FlowTimeouts, Interfaces, LogFormat, LogLevel,
    MapSizes, NodePortAddresses, Period, PortRange, ProxyName, SocketLb, Source, Switch, TcAttach, XdpMode,
};
use crate::model::{AllowedAnnotations, Mode, Scheduler, SlotShares};

/// Why there are no settings.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read the configuration {path}: {error}; give --config a readable YAML file, or leave it out")]
    Unreadable { path: String, error: std::io::Error },
    #[error(
        "the configuration {path} is not valid: {error}; its keys are the agent's flags without the dashes in front"
    )]
    Invalid { path: String, error: String },
    #[error(
        "no source given: pass --source file=PATH (Kubernetes YAML) or --source kube, or set source: in the --config file"
    )]
    NoSource,
    #[error("--{flag} belongs to --source kube, but the source is {source_text}: leave one of them out")]
    NotForSource { flag: &'static str, source_text: String },
    #[error("--fleet-bind, --fleet-tls-cert and --fleet-tls-key belong together: give all of them, or none")]
    FleetIncomplete,
    #[error("the host name is empty or not UTF-8: pass --node-name")]
    NoNodeName,
}

/// Options of the agent: `None` where nothing was given.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Options {
    /// Where services come from: a YAML file or folder, or the Kubernetes API
    #[arg(long, value_name = "file=PATH|kube")]
    #[serde(deserialize_with = "text")]
    pub source: Option<Source>,

    /// Credentials and address of the API server [default: those of the pod it runs in]
    #[arg(long, value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,

    /// Addresses of the API servers, tried in turn, instead of the one in the kubeconfig or the cluster's environment
    #[arg(long, value_name = "URL,…")]
    #[serde(deserialize_with = "text")]
    pub api_server: Option<ApiServers>,

    /// Name that the API servers' certificates must have [default: the one in their address]
    #[arg(long, value_name = "NAME")]
    pub tls_server_name: Option<String>,

    /// Name of this node in the cluster [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,

    /// How long the first start waits for the Node object, at most 10m [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = node_wait::parse)]
    #[serde(deserialize_with = "node_wait::deserialize")]
    pub node_wait: Option<Duration>,

    /// Links of pods: auto, or names and patterns separated by commas [default: auto]
    #[arg(long, value_name = "auto|GLOB,…")]
    pub pod_interfaces: Option<Interfaces>,

    /// External links: auto, or names and patterns separated by commas [default: auto]
    #[arg(long, value_name = "auto|GLOB,…")]
    pub external_interfaces: Option<Interfaces>,

    /// Where bpffs is mounted; everything is pinned in DIR/ballast [default: /sys/fs/bpf]
    #[arg(long, value_name = "DIR")]
    pub bpffs: Option<PathBuf>,

    /// Root of the cgroup v2 hierarchy [default: auto]
    #[arg(long, value_name = "auto|DIR")]
    #[serde(deserialize_with = "text")]
    pub cgroup_root: Option<CgroupRoot>,

    /// Translate at connect: sockets of the host, of all processes, or none [default: host]
    #[arg(long, value_name = "host|all|off")]
    #[serde(deserialize_with = "text")]
    pub socket_lb: Option<SocketLb>,

    /// Scheduler of Services without the annotation: random, round-robin, weighted, least-connections,
    /// source-hash or maglev [default: random]
    #[arg(long, value_name = "NAME")]
    #[serde(deserialize_with = "text")]
    pub scheduler: Option<Scheduler>,

    /// How packets of external clients reach backends of other nodes, for Services without the annotation. snat: from an address of this node. dsr:
    /// encapsulated, and the backend's node answers. hybrid: TCP as dsr [default: snat]
    #[arg(long, value_name = "snat|dsr|hybrid")]
    #[serde(deserialize_with = "text")]
    pub mode: Option<Mode>,

    /// Retry unanswered connections on another backend, for Services without the annotation [default: on]
    #[arg(long, value_name = "on|off")]
    #[serde(deserialize_with = "text")]
    pub retry: Option<Switch>,

    /// Drain period of a deleted backend: unanswered connections end after it, at most 24h [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = drain_period::parse)]
    #[serde(deserialize_with = "drain_period::deserialize")]
    pub drain_period: Option<Duration>,

    /// Limit for all connections of a deleted backend, at most 24h; 0s: the drain period [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = drain_max::parse)]
    #[serde(deserialize_with = "drain_max::deserialize")]
    pub drain_max: Option<Duration>,

    /// Limit for connections of a terminating backend, 1s to 24h [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = terminating_max::parse)]
    #[serde(deserialize_with = "terminating_max::deserialize")]
    pub terminating_max: Option<Duration>,

    /// How long after the node's first start segments of unknown connections are left to the host's stack, at most 24h; 0s: refused at
    /// once [default: 10m]
    #[arg(long, value_name = "DURATION", value_parser = adoption_window::parse)]
    #[serde(deserialize_with = "adoption_window::deserialize")]
    pub adoption_window: Option<Duration>,

    /// Node addresses that serve node ports: all, the first InternalIP (else ExternalIP) of each family, or networks [default: all]
    #[arg(long, value_name = "all|primary|CIDR,…")]
    pub nodeport_addresses: Option<NodePortAddresses>,

    /// Keep processes of the node from binding node ports: bind() fails with EADDRINUSE [default: on]
    #[arg(long, value_name = "on|off")]
    #[serde(deserialize_with = "text")]
    pub protect_node_ports: Option<Switch>,

    /// Networks of the cluster's pods, whose clients keep their addresses [default: those of the Node object]
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',', value_parser = network)]
    #[serde(deserialize_with = "networks")]
    pub cluster_cidr: Option<Vec<IpNet>>,

    /// Service CIDRs, beside the ServiceCIDR objects of the API: packets to an address there without a Service are dropped
    /// [default: none]
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',', value_parser = network)]
    #[serde(deserialize_with = "networks")]
    pub service_cidr: Option<Vec<IpNet>>,

    /// SNAT addresses for external clients whose backend is on another node [default: those of all links]
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',', value_parser = network)]
    #[serde(deserialize_with = "networks")]
    pub snat_addresses: Option<Vec<IpNet>>,

    /// SNAT port range, used when the client's own port is taken; it must not overlap the node's own ports [default: 61000-65535]
    #[arg(long, value_name = "FIRST-LAST")]
    #[serde(deserialize_with = "text")]
    pub snat_ports: Option<PortRange>,

    /// Networks of other nodes that may send encapsulated packets of clients here (--mode dsr), beside the addresses of Node objects
    /// [default: none]
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',', value_parser = network)]
    #[serde(deserialize_with = "networks")]
    pub dsr_peers: Option<Vec<IpNet>>,

    /// Serve externalIPs: every user with the right to write a Service may then take any address [default: off]
    #[arg(long, value_name = "on|off")]
    #[serde(deserialize_with = "text")]
    pub external_ips: Option<Switch>,

    /// Serve Services with this service-proxy-name label, not those without [default: those without]
    #[arg(long, value_name = "NAME")]
    #[serde(deserialize_with = "text")]
    pub service_proxy_name: Option<ProxyName>,

    /// Time without a packet after which a flow entry is removed: half-open, open, closing, udp-unreplied,
    /// udp-replied, udp-stream [default: half-open=60s,open=2h15m,closing=2m,udp-unreplied=30s,udp-replied=30s,udp-stream=2m]
    #[arg(long, value_name = "NAME=DURATION,…")]
    pub flow_timeouts: Option<FlowTimeouts>,

    /// Count packets and bytes of each flow; set when the programs are loaded, costs nothing when off [default: off]
    #[arg(long, value_name = "on|off")]
    #[serde(deserialize_with = "text")]
    pub flow_counters: Option<Switch>,

    /// Measure how long backends take to answer a SYN; set when the programs are loaded, costs nothing when off [default: on]
    #[arg(long, value_name = "on|off")]
    #[serde(deserialize_with = "text")]
    pub connect_times: Option<Switch>,

    /// Annotations ballast.dev/NAME that Services may use: NAME everywhere, or NAME=NAMESPACE+NAMESPACE; or all, or none
    /// [default: scheduler,weights,retry,drain-period,drain-max,rate-limit; all with a file as source]
    #[arg(long, value_name = "NAME[=NAMESPACE+…],…")]
    pub allowed_annotations: Option<AllowedAnnotations>,

    /// Allowed targets of active checks: none, or pods and these networks [default: off]
    #[arg(long, value_name = "off|pods[,CIDR,…]")]
    pub active_checks: Option<ActiveChecks>,

    /// Most active checks in a second and at the same time [default: per-second=200,in-flight=128]
    #[arg(long, value_name = "NAME=N,…")]
    pub check_limits: Option<CheckLimits>,

    /// Entries of the maps: services, backends, endpoints, slots, flows4, flows6, udp_flows, sockets, names, stats, sources, vips,
    /// half_open, affinity
    #[arg(long, value_name = "NAME=N,…")]
    pub map_sizes: Option<MapSizes>,

    /// Share of the slots that one service and one namespace may take, 1/1 to 1/1024 [default: service=1/16,namespace=1/4]
    #[arg(long, value_name = "NAME=1/N,…")]
    pub slot_shares: Option<SlotShares>,

    /// Interval of the audit, which compares the tables with the plan, 1s to 1h, or off [default: 30s]
    #[arg(long, value_name = "DURATION|off", value_parser = audit_interval::parse)]
    #[serde(deserialize_with = "audit_interval::deserialize")]
    pub audit_interval: Option<Period>,

    /// Interval at which cached objects are compared with a list of the API, 1s to 24h, or off [default: 5m]
    #[arg(long, value_name = "DURATION|off", value_parser = resync_interval::parse)]
    #[serde(deserialize_with = "resync_interval::deserialize")]
    pub resync_interval: Option<Period>,

    /// Time without a message on a watch before the agent probes it, 1s to 10m [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = watch_silence::parse)]
    #[serde(deserialize_with = "watch_silence::deserialize")]
    pub watch_silence: Option<Duration>,

    /// Fail /healthz, too, if the source is stale for this long, 1s to 24h, or off [default: off]
    #[arg(long, value_name = "DURATION|off", value_parser = fail_stale::parse)]
    #[serde(deserialize_with = "fail_stale::deserialize")]
    pub healthz_fail_stale: Option<Period>,

    /// Fail every probe if the agent's main loop stands still for this long, 10s to 10m [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = stuck_after::parse)]
    #[serde(deserialize_with = "stuck_after::deserialize")]
    pub stuck_after: Option<Duration>,

    /// Fail /healthz and /livez if no table can be written for this long, 1s to 1h [default: 15s]
    #[arg(long, value_name = "DURATION", value_parser = behind_after::parse)]
    #[serde(deserialize_with = "behind_after::deserialize")]
    pub behind_after: Option<Duration>,

    /// How long a restarted agent may take to list everything, at most 1h [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = first_sync_grace::parse)]
    #[serde(deserialize_with = "first_sync_grace::deserialize")]
    pub first_sync_grace: Option<Duration>,

    /// Folder of the agent's lock and socket [default: /run/ballast]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,

    /// Address of /metrics [default: 127.0.0.1:10249]
    #[arg(long, value_name = "ADDRESS:PORT")]
    #[serde(deserialize_with = "text")]
    pub metrics_bind: Option<SocketAddr>,

    /// Address of /healthz, /livez and /readyz; [::] is both families [default: [::]:10256]
    #[arg(long, value_name = "ADDRESS:PORT")]
    #[serde(deserialize_with = "text")]
    pub health_bind: Option<SocketAddr>,

    /// Address of the listener that `kubectl ballast` asks, with TLS and bearer tokens; needs --fleet-tls-cert and --fleet-tls-key [default: none]
    #[arg(long, value_name = "ADDRESS:PORT")]
    #[serde(deserialize_with = "text")]
    pub fleet_bind: Option<SocketAddr>,

    /// Certificate of --fleet-bind for the name ballast-fleet, in PEM; read again when it changes
    #[arg(long, value_name = "FILE")]
    pub fleet_tls_cert: Option<PathBuf>,

    /// Private key of that certificate, in PEM
    #[arg(long, value_name = "FILE")]
    pub fleet_tls_key: Option<PathBuf>,

    /// How tc programs are attached; auto: TCX where the kernel has it (6.6) [default: auto]
    #[arg(long, value_name = "auto|tcx|clsact")]
    #[serde(deserialize_with = "text")]
    pub tc_attach: Option<TcAttach>,

    /// How XDP is attached to external links; auto: native where the driver has it [default: auto]
    #[arg(long, value_name = "auto|native|generic|off")]
    #[serde(deserialize_with = "text")]
    pub xdp_mode: Option<XdpMode>,

    /// Fast path past the host's stack; auto: while it skips no rule of the host [default: auto]
    #[arg(long, value_name = "auto|on|off")]
    #[serde(deserialize_with = "text")]
    pub fast_path: Option<FastPath>,

    /// Format of log lines [default: text]
    #[arg(long, value_name = "text|json")]
    #[serde(deserialize_with = "text")]
    pub log_format: Option<LogFormat>,

    /// Log level of the agent: off, error, warn, info, debug, trace [default: info]
    #[arg(long, value_name = "LEVEL")]
    #[serde(deserialize_with = "text")]
    pub log_level: Option<LogLevel>,

    /// Log level of the eBPF programs; set when they are loaded, costs nothing when off [default: off]
    #[arg(long, value_name = "LEVEL")]
    #[serde(deserialize_with = "text")]
    pub program_log_level: Option<LogLevel>,

    /// For developers: load the programs of this eBPF object, not those in this binary
    #[arg(long, value_name = "FILE", env = "BALLAST_PROGRAMS")]
    pub programs: Option<PathBuf>,
}

impl Options {
    /// Reads a YAML file. An unknown key is an error with line and column.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::Unreadable { path: path.display().to_string(), error })?;
        Self::parse(&text).map_err(|error| ConfigError::Invalid { path: path.display().to_string(), error })
    }

    pub(super) fn parse(text: &str) -> Result<Self, String> {
        // An empty file, or one of comments, sets nothing.
        let options = serde_saphyr::from_str::<Option<Self>>(text).map(Option::unwrap_or_default);
        // The first line says where and what; the rest draws it.
        options.map_err(|error| {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            line.strip_prefix("error: ").unwrap_or(line).to_owned()
        })
    }
}

/// A value written as on the command line.
fn text<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| text.parse().map_err(de::Error::custom)).transpose()
}

#[cfg(test)]
mod tests;
