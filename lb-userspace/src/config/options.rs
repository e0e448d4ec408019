//! The options of `ballast agent` as given: one struct read by clap and by serde, so the names cannot differ.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

use super::{
    ApiServer, CgroupRoot, DEFAULT_BPFFS, DEFAULT_DRAIN_PERIOD, DEFAULT_HEALTH_BIND, DEFAULT_METRICS_BIND,
    DEFAULT_RUN_DIR, Interfaces, LogFormat, LogLevel, MAX_DRAIN_PERIOD, Settings, SocketLb, Source, TcAttach, XdpMode,
};

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

    /// Address of the API server, instead of the one in the kubeconfig or the cluster's environment
    #[arg(long, value_name = "URL")]
    #[serde(deserialize_with = "text")]
    pub api_server: Option<ApiServer>,

    /// Name of this node in the cluster [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,

    /// Links towards pods: auto, or names and patterns separated by commas [default: auto]
    #[arg(long, value_name = "auto|GLOB,…")]
    pub pod_interfaces: Option<Interfaces>,

    /// Links to the outside: auto, or names and patterns separated by commas [default: auto]
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

    /// How long flows of a vanished backend may go on, at most 24h [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = drain_period)]
    #[serde(deserialize_with = "drain_period_text")]
    pub drain_period: Option<Duration>,

    /// Folder of the agent's lock and socket [default: /run/ballast]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,

    /// Address of /metrics [default: 127.0.0.1:10249]
    #[arg(long, value_name = "ADDRESS:PORT")]
    #[serde(deserialize_with = "text")]
    pub metrics_bind: Option<SocketAddr>,

    /// Address of /healthz, /livez and /readyz [default: 0.0.0.0:10256]
    #[arg(long, value_name = "ADDRESS:PORT")]
    #[serde(deserialize_with = "text")]
    pub health_bind: Option<SocketAddr>,

    /// How tc programs are attached; auto: TCX where the kernel has it (6.6) [default: auto]
    #[arg(long, value_name = "auto|tcx|clsact")]
    #[serde(deserialize_with = "text")]
    pub tc_attach: Option<TcAttach>,

    /// How XDP is attached to external links; auto: native where the driver has it [default: auto]
    #[arg(long, value_name = "auto|native|generic|off")]
    #[serde(deserialize_with = "text")]
    pub xdp_mode: Option<XdpMode>,

    /// How log lines are written [default: text]
    #[arg(long, value_name = "text|json")]
    #[serde(deserialize_with = "text")]
    pub log_format: Option<LogFormat>,

    /// What the agent logs: off, error, warn, info, debug, trace [default: info]
    #[arg(long, value_name = "LEVEL")]
    #[serde(deserialize_with = "text")]
    pub log_level: Option<LogLevel>,

    /// What the eBPF programs log; set when they are loaded, costs nothing when off [default: off]
    #[arg(long, value_name = "LEVEL")]
    #[serde(deserialize_with = "text")]
    pub program_log_level: Option<LogLevel>,
}

impl Options {
    /// Reads a YAML file. An unknown key is an error with line and column.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::Unreadable { path: path.display().to_string(), error })?;
        Self::parse(&text).map_err(|error| ConfigError::Invalid { path: path.display().to_string(), error })
    }

    fn parse(text: &str) -> Result<Self, String> {
        // An empty file, or one of comments, sets nothing.
        let options = serde_saphyr::from_str::<Option<Self>>(text).map(Option::unwrap_or_default);
        // The first line says where and what; the rest draws it.
        options.map_err(|error| {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            line.strip_prefix("error: ").unwrap_or(line).to_owned()
        })
    }

    /// These options where given, else the other's.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            source: self.source.or(other.source),
            kubeconfig: self.kubeconfig.or(other.kubeconfig),
            api_server: self.api_server.or(other.api_server),
            node_name: self.node_name.or(other.node_name),
            pod_interfaces: self.pod_interfaces.or(other.pod_interfaces),
            external_interfaces: self.external_interfaces.or(other.external_interfaces),
            bpffs: self.bpffs.or(other.bpffs),
            cgroup_root: self.cgroup_root.or(other.cgroup_root),
            socket_lb: self.socket_lb.or(other.socket_lb),
            drain_period: self.drain_period.or(other.drain_period),
            run_dir: self.run_dir.or(other.run_dir),
            metrics_bind: self.metrics_bind.or(other.metrics_bind),
            health_bind: self.health_bind.or(other.health_bind),
            tc_attach: self.tc_attach.or(other.tc_attach),
            xdp_mode: self.xdp_mode.or(other.xdp_mode),
            log_format: self.log_format.or(other.log_format),
            log_level: self.log_level.or(other.log_level),
            program_log_level: self.program_log_level.or(other.program_log_level),
        }
    }

    /// Fills in the defaults. `host_name` stands in for `--node-name`.
    pub fn settle(self, host_name: Option<&str>) -> Result<Settings, ConfigError> {
        let source = self.source.ok_or(ConfigError::NoSource)?;
        if source != Source::Kube {
            for (flag, given) in [("kubeconfig", self.kubeconfig.is_some()), ("api-server", self.api_server.is_some())]
            {
                if given {
                    return Err(ConfigError::NotForSource { flag, source_text: source.to_string() });
                }
            }
        }
        let node_name = self.node_name.as_deref().or(host_name).filter(|name| !name.is_empty());
        let node_name = node_name.ok_or(ConfigError::NoNodeName)?.to_owned();
        Ok(Settings {
            source,
            kubeconfig: self.kubeconfig,
            api_server: self.api_server,
            node_name,
            pod_interfaces: self.pod_interfaces.unwrap_or_default(),
            external_interfaces: self.external_interfaces.unwrap_or_default(),
            bpffs: self.bpffs.unwrap_or_else(|| DEFAULT_BPFFS.into()),
            cgroup_root: self.cgroup_root.unwrap_or_default(),
            socket_lb: self.socket_lb.unwrap_or(SocketLb::Host),
            drain_period: self.drain_period.unwrap_or(DEFAULT_DRAIN_PERIOD),
            run_dir: self.run_dir.unwrap_or_else(|| DEFAULT_RUN_DIR.into()),
            metrics_bind: self.metrics_bind.unwrap_or_else(|| constant(DEFAULT_METRICS_BIND)),
            health_bind: self.health_bind.unwrap_or_else(|| constant(DEFAULT_HEALTH_BIND)),
            tc_attach: self.tc_attach.unwrap_or(TcAttach::Auto),
            xdp_mode: self.xdp_mode.unwrap_or(XdpMode::Auto),
            log_format: self.log_format.unwrap_or(LogFormat::Text),
            log_level: self.log_level.unwrap_or(LogLevel::Info),
            program_log_level: self.program_log_level.unwrap_or(LogLevel::Off),
        })
    }
}

fn constant(address: &str) -> SocketAddr {
    address.parse().expect("the default addresses are valid: tested")
}

fn drain_period(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(period) if period <= MAX_DRAIN_PERIOD => Ok(period),
        Ok(_) => Err("a drain must end: at most 24h".into()),
        Err(error) => Err(format!("expected a duration like 30s or 5m: {error}")),
    }
}

fn drain_period_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| drain_period(&text).map_err(de::Error::custom)).transpose()
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
