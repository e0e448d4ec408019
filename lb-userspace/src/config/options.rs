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
use super::facts::describe;
use super::networks::{network, networks};
use super::{
    ActiveChecks, ApiServers, CgroupRoot, CheckLimits, FlowTimeouts, LogFormat, LogLevel, NodePortAddresses, Period,
    ProxyName, Source, Switch,
};
use lb_datapath::{FastPath, Interfaces, MapSizes, PortRange, SocketLb, TcAttach, XdpMode};
use lb_model::{AllowedAnnotations, Mode, Scheduler, SlotShares};

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

/// Options of the agent: `None` where nothing was given. Defaults and bounds are those of [`super::facts`]; help and the book's reference add them.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args, Deserialize)]
#[command(mut_args = describe)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Options {
    /// Where services come from: a file or folder of Kubernetes YAML, or the Kubernetes API
    #[arg(long, value_name = "file=PATH|kube")]
    #[serde(deserialize_with = "text")]
    pub source: Option<Source>,

    /// File with the address of the API server and the credentials for it
    #[arg(long, value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,

    /// Addresses of the API servers, instead of the one in the kubeconfig or the environment. The next one is tried
    /// where one gives no answer, or a server error. They must be no addresses of Services, since Ballast serves those
    #[arg(long, value_name = "URL,…")]
    #[serde(deserialize_with = "text")]
    pub api_server: Option<ApiServers>,

    /// Name that the API servers' certificates must have
    #[arg(long, value_name = "NAME")]
    pub tls_server_name: Option<String>,

    /// Name of this node, as `nodeName` of endpoints has it; says which backends are local
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,

    /// How long the first start waits for the Node object. Then services are served without it, and `status` names what
    /// is missing
    #[arg(long, value_name = "DURATION", value_parser = node_wait::parse)]
    #[serde(deserialize_with = "node_wait::deserialize")]
    pub node_wait: Option<Duration>,

    /// Links of pods, by names and patterns. auto: veth and netkit whose peer is in another network namespace, without
    /// a default route
    #[arg(long, value_name = "auto|GLOB,…")]
    pub pod_interfaces: Option<Interfaces>,

    /// External links, by names and patterns. auto: devices with a global address or a default route, bridges of which
    /// one is a port, and the default route's link; no pod link, tunnel, dummy or loopback
    #[arg(long, value_name = "auto|GLOB,…")]
    pub external_interfaces: Option<Interfaces>,

    /// Where bpffs is mounted; everything is pinned in DIR/ballast
    #[arg(long, value_name = "DIR")]
    pub bpffs: Option<PathBuf>,

    /// Root of the cgroup v2 hierarchy. auto: where it is mounted
    #[arg(long, value_name = "auto|DIR")]
    #[serde(deserialize_with = "text")]
    pub cgroup_root: Option<CgroupRoot>,

    /// Whose sockets are translated at connect: those of the agent's network namespace, of all processes below the
    /// cgroup root, or none
    #[arg(long, value_name = "host|all|off")]
    #[serde(deserialize_with = "text")]
    pub socket_lb: Option<SocketLb>,

    /// How new connections are spread over the backends of Services without the annotation
    #[arg(long, value_name = "NAME")]
    #[serde(deserialize_with = "text")]
    pub scheduler: Option<Scheduler>,

    /// How packets of external clients reach backends of other nodes, for Services without the annotation. snat: from
    /// an address of this node. dsr: encapsulated, and the backend's node answers. hybrid: TCP as dsr, the rest as snat
    #[arg(long, value_name = "snat|dsr|hybrid")]
    #[serde(deserialize_with = "text")]
    pub mode: Option<Mode>,

    /// Move a connection that nobody answers to another backend, for Services without the annotation
    #[arg(long, value_name = "on|off")]
    #[serde(deserialize_with = "text")]
    pub retry: Option<Switch>,

    /// How long connections to a deleted backend may go on without its answer
    #[arg(long, value_name = "DURATION", value_parser = drain_period::parse)]
    #[serde(deserialize_with = "drain_period::deserialize")]
    pub drain_period: Option<Duration>,

    /// How long any connection to a deleted backend may go on, from the begin of its drain. 0s: all end with the drain
    /// period
    #[arg(long, value_name = "DURATION", value_parser = drain_max::parse)]
    #[serde(deserialize_with = "drain_max::deserialize")]
    pub drain_max: Option<Duration>,

    /// How long connections to a terminating backend may go on
    #[arg(long, value_name = "DURATION", value_parser = terminating_max::parse)]
    #[serde(deserialize_with = "terminating_max::deserialize")]
    pub terminating_max: Option<Duration>,

    /// How long after the node's first start segments of unknown connections go on to the host's stack,
    /// until those of kube-proxy are adopted. 0s: none is adopted, and such segments are refused at once
    #[arg(long, value_name = "DURATION", value_parser = adoption_window::parse)]
    #[serde(deserialize_with = "adoption_window::deserialize")]
    pub adoption_window: Option<Duration>,

    /// Addresses of the node that serve node ports: those of all links; the first InternalIP (else ExternalIP) of each
    /// family; or those in the networks
    #[arg(long, value_name = "all|primary|CIDR,…")]
    pub nodeport_addresses: Option<NodePortAddresses>,

    /// Let `bind()` of a process of the node to a node port fail with EADDRINUSE, for TCP and UDP. Not with --socket-lb
    /// off
    #[arg(long, value_name = "on|off")]
    #[serde(deserialize_with = "text")]
    pub protect_node_ports: Option<Switch>,

    /// Networks of the cluster's pods, of both families; clients there keep their addresses. The `podCIDRs` of the Node
    /// object count as well
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',', value_parser = network)]
    #[serde(deserialize_with = "networks")]
    pub cluster_cidr: Option<Vec<IpNet>>,

    /// Service CIDRs of both families, beside the ServiceCIDR objects of the API. Packets to an address there that no
    /// Service has are dropped
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',', value_parser = network)]
    #[serde(deserialize_with = "networks")]
    pub service_cidr: Option<Vec<IpNet>>,

    /// Which of the node's addresses are SNAT addresses, for external clients whose backend is on another node
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',', value_parser = network)]
    #[serde(deserialize_with = "networks")]
    pub snat_addresses: Option<Vec<IpNet>>,

    /// SNAT port range, used when a client's own port cannot be kept; without node ports. A port whose tuple a socket of
    /// this node has is passed over
    #[arg(long, value_name = "FIRST-LAST")]
    #[serde(deserialize_with = "text")]
    pub snat_ports: Option<PortRange>,

    /// Networks of other nodes, beside the addresses of Node objects. Encapsulated packets (--mode dsr) are accepted
    /// from these alone
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',', value_parser = network)]
    #[serde(deserialize_with = "networks")]
    pub dsr_peers: Option<Vec<IpNet>>,

    /// Serve `externalIPs`. A user who may write a Service may take any address with them (CVE-2020-8554)
    #[arg(long, value_name = "on|off")]
    #[serde(deserialize_with = "text")]
    pub external_ips: Option<Switch>,

    /// Serve the Services with this value of the label `service.kubernetes.io/service-proxy-name`, instead of those
    /// without the label
    #[arg(long, value_name = "NAME")]
    #[serde(deserialize_with = "text")]
    pub service_proxy_name: Option<ProxyName>,

    /// How long a connection is remembered without a packet, by its state; whole seconds
    #[arg(long, value_name = "NAME=DURATION,…")]
    pub flow_timeouts: Option<FlowTimeouts>,

    /// Count packets and bytes of each connection, and packets of known connections for each backend. Fixed when the
    /// programs are loaded: off costs nothing
    #[arg(long, value_name = "on|off")]
    #[serde(deserialize_with = "text")]
    pub flow_counters: Option<Switch>,

    /// Measure how long backends take to answer a SYN. Fixed when the programs are loaded: off costs nothing
    #[arg(long, value_name = "on|off")]
    #[serde(deserialize_with = "text")]
    pub connect_times: Option<Switch>,

    /// Annotations `ballast.dev/NAME` of Services that count: NAME in all namespaces, or NAME=NS+NS in those; or all,
    /// or none. It replaces the default
    #[arg(long, value_name = "NAME[=NAMESPACE+…],…")]
    pub allowed_annotations: Option<AllowedAnnotations>,

    /// Where active checks of endpoints may go: nowhere, or to pods and to these networks
    #[arg(long, value_name = "off|pods[,CIDR,…]")]
    pub active_checks: Option<ActiveChecks>,

    /// How many active checks begin in a second, and run at a time. Others come later; each namespace has a share
    #[arg(long, value_name = "NAME=N,…")]
    pub check_limits: Option<CheckLimits>,

    /// Entries of the maps
    #[arg(long, value_name = "NAME=N,…")]
    pub map_sizes: Option<MapSizes>,

    /// How many of the slots one service, and all services of one namespace, may take; at least 4096 slots
    #[arg(long, value_name = "NAME=1/N,…")]
    pub slot_shares: Option<SlotShares>,

    /// How often maps and attachments are compared with the plan, and repaired
    #[arg(long, value_name = "DURATION|off", value_parser = audit_interval::parse)]
    #[serde(deserialize_with = "audit_interval::deserialize")]
    pub audit_interval: Option<Period>,

    /// How often cached objects are compared with a complete list of the API
    #[arg(long, value_name = "DURATION|off", value_parser = resync_interval::parse)]
    #[serde(deserialize_with = "resync_interval::deserialize")]
    pub resync_interval: Option<Period>,

    /// How long a watch may be silent before it is probed
    #[arg(long, value_name = "DURATION", value_parser = watch_silence::parse)]
    #[serde(deserialize_with = "watch_silence::deserialize")]
    pub watch_silence: Option<Duration>,

    /// Fail /healthz, too, when a stale source was not proven for so long. An outage of the API then takes every node
    /// out of every load balancer
    #[arg(long, value_name = "DURATION|off", value_parser = fail_stale::parse)]
    #[serde(deserialize_with = "fail_stale::deserialize")]
    pub healthz_fail_stale: Option<Period>,

    /// Fail every probe when the agent's main loop is stuck for so long. It runs at least every 5 s
    #[arg(long, value_name = "DURATION", value_parser = stuck_after::parse)]
    #[serde(deserialize_with = "stuck_after::deserialize")]
    pub stuck_after: Option<Duration>,

    /// Fail /healthz and /livez when no map can be written for so long, and /readyz when one change cannot be written for longer
    #[arg(long, value_name = "DURATION", value_parser = behind_after::parse)]
    #[serde(deserialize_with = "behind_after::deserialize")]
    pub behind_after: Option<Duration>,

    /// How long a restarted agent may take for its first sync before /healthz fails, while the earlier maps serve
    #[arg(long, value_name = "DURATION", value_parser = first_sync_grace::parse)]
    #[serde(deserialize_with = "first_sync_grace::deserialize")]
    pub first_sync_grace: Option<Duration>,

    /// Folder of the agent's lock and socket
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,

    /// Address of /metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    #[serde(deserialize_with = "text")]
    pub metrics_bind: Option<SocketAddr>,

    /// Address of /healthz, /livez and /readyz. [::] takes both families; without IPv6 it is 0.0.0.0
    #[arg(long, value_name = "ADDRESS:PORT")]
    #[serde(deserialize_with = "text")]
    pub health_bind: Option<SocketAddr>,

    /// Address of the listener that `kubectl ballast` asks, with TLS and bearer tokens; needs --fleet-tls-cert and
    /// --fleet-tls-key
    #[arg(long, value_name = "ADDRESS:PORT")]
    #[serde(deserialize_with = "text")]
    pub fleet_bind: Option<SocketAddr>,

    /// Certificate of --fleet-bind for the name ballast-fleet, in PEM; read again each minute
    #[arg(long, value_name = "FILE")]
    pub fleet_tls_cert: Option<PathBuf>,

    /// Private key of that certificate, in PEM
    #[arg(long, value_name = "FILE")]
    pub fleet_tls_key: Option<PathBuf>,

    /// How tc programs are attached. auto: TCX where the kernel has it (6.6), else clsact
    #[arg(long, value_name = "auto|tcx|clsact")]
    #[serde(deserialize_with = "text")]
    pub tc_attach: Option<TcAttach>,

    /// How XDP is attached to external links. auto: in the driver; never on veth and netkit. Where it is not, tc serves
    #[arg(long, value_name = "auto|native|generic|off")]
    #[serde(deserialize_with = "text")]
    pub xdp_mode: Option<XdpMode>,

    /// Fast path past the host's stack. auto: while it skips no netfilter rule and nothing of others on the links. on:
    /// it skips them
    #[arg(long, value_name = "auto|on|off")]
    #[serde(deserialize_with = "text")]
    pub fast_path: Option<FastPath>,

    /// Format of log lines
    #[arg(long, value_name = "text|json")]
    #[serde(deserialize_with = "text")]
    pub log_format: Option<LogFormat>,

    /// From which level on the agent logs: off, error, warn, info, debug, trace
    #[arg(long, value_name = "LEVEL")]
    #[serde(deserialize_with = "text")]
    pub log_level: Option<LogLevel>,

    /// Log level of the eBPF programs. Fixed when they are loaded: off costs nothing
    #[arg(long, value_name = "LEVEL")]
    #[serde(deserialize_with = "text")]
    pub program_log_level: Option<LogLevel>,

    /// For developers: load the programs of this eBPF object
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
