//! A configuration of kube-proxy (`kubeproxy.config.k8s.io/v1alpha1`) as one of Ballast.

use std::fmt;
use std::time::Duration;

use serde_json::Value;

use super::Options;

/// What becomes of a field.
#[derive(Clone, Copy, Debug)]
pub enum Becomes {
    /// A value of this option.
    Option(&'static str, fn(&Source, &Value) -> Outcome),
    /// Ballast needs no such setting, for this reason.
    Needless(&'static str),
    /// Ballast has no counterpart. A value other than the zero value is named, with this advice.
    Missing(&'static str),
}

/// The value of an option; `Ok(None)`: its default serves. `Err`: why the value cannot be taken over.
pub type Outcome = Result<Option<String>, String>;

use Becomes::{Missing, Needless, Option as Becoming};

/// Written by the agent at once; the audit repairs what others change.
const SYNC: Becomes = Needless("changes are written as they come, and the audit repairs the rest");
const WINDOWS: Becomes = Needless("Windows only");
const REQUESTS: Becomes = Needless("the agent makes few requests: two watches and lists in pages");
const MARK: Becomes = Needless("no packet is marked");

/// Each field of version v1alpha1, as of Kubernetes 1.36, in the order of the reference, and what becomes of it.
pub const FIELDS: &[(&str, Becomes)] = &[
    ("featureGates", Needless("gates of kube-proxy's own features")),
    ("clientConnection.kubeconfig", Becoming("kubeconfig", |_, value| Ok(text(value)))),
    ("clientConnection.acceptContentTypes", REQUESTS),
    ("clientConnection.contentType", REQUESTS),
    ("clientConnection.qps", REQUESTS),
    ("clientConnection.burst", REQUESTS),
    ("logging.format", Becoming("log-format", |_, value| Ok(text(value).filter(|format| format == "json")))),
    ("logging.flushFrequency", Needless("each line is written at once")),
    ("logging.verbosity", Becoming("log-level", |_, value| Ok((value.as_u64() >= Some(4)).then(|| "debug".into())))),
    ("logging.vmodule", Missing("set log-level: debug or trace")),
    ("logging.options", Needless("options of klog's formats")),
    ("hostnameOverride", Becoming("node-name", |_, value| Ok(text(value)))),
    ("bindAddress", Needless("the agent takes the node's addresses from its links and its Node object")),
    ("healthzBindAddress", Becoming("health-bind", |_, value| bind(value, 10256, false))),
    ("metricsBindAddress", Becoming("metrics-bind", |_, value| bind(value, 10249, true))),
    ("bindAddressHardFail", Needless("the agent does not start where it cannot bind")),
    ("enableProfiling", Missing("there is no profiling endpoint")),
    ("showHiddenMetricsForVersion", Needless("no metric is hidden")),
    ("mode", Needless("it only decides which other fields count")),
    ("iptables.masqueradeBit", MARK),
    (
        "iptables.masqueradeAll",
        Missing("a cluster IP shows pods' own addresses to backends; network policies may rely on it"),
    ),
    ("iptables.localhostNodePorts", Becoming("nodeport-addresses", localhost)),
    ("iptables.syncPeriod", SYNC),
    ("iptables.minSyncPeriod", SYNC),
    ("ipvs.syncPeriod", SYNC),
    ("ipvs.minSyncPeriod", SYNC),
    ("ipvs.scheduler", Becoming("scheduler", scheduler)),
    ("ipvs.excludeCIDRs", Needless("the agent changes no IPVS service")),
    ("ipvs.strictARP", Needless("no service address is on a link, so the node answers no ARP for them")),
    ("ipvs.tcpTimeout", Becoming("flow-timeouts", |_, value| timeout("open", value))),
    ("ipvs.tcpFinTimeout", Becoming("flow-timeouts", |_, value| timeout("closing", value))),
    ("ipvs.udpTimeout", Becoming("flow-timeouts", |_, value| timeout("udp-stream", value))),
    ("nftables.masqueradeBit", MARK),
    (
        "nftables.masqueradeAll",
        Missing("a cluster IP shows pods' own addresses to backends; network policies may rely on it"),
    ),
    ("nftables.syncPeriod", SYNC),
    ("nftables.minSyncPeriod", SYNC),
    ("winkernel.networkName", WINDOWS),
    ("winkernel.sourceVip", WINDOWS),
    ("winkernel.enableDSR", WINDOWS),
    ("winkernel.rootHnsEndpointName", WINDOWS),
    ("winkernel.forwardHealthCheckVip", WINDOWS),
    (
        "detectLocalMode",
        Needless("it only decides which of the next three fields counts; the podCIDRs of the Node always count"),
    ),
    ("detectLocal.bridgeInterface", Needless("bridges and their ports are found by what they are")),
    (
        "detectLocal.interfaceNamePrefix",
        Becoming("pod-interfaces", |_, value| Ok(text(value).map(|prefix| format!("{prefix}*")))),
    ),
    ("clusterCIDR", Becoming("cluster-cidr", |_, value| Ok(text(value)))),
    ("nodePortAddresses", Becoming("nodeport-addresses", node_ports)),
    ("oomScoreAdj", Needless("set the pod's QoS class and priority class")),
    ("conntrack.maxPerCore", Becoming("map-sizes", |_, value| room(value, 32_768))),
    ("conntrack.min", Becoming("map-sizes", |_, value| room(value, 131_072))),
    ("conntrack.tcpEstablishedTimeout", Becoming("flow-timeouts", |_, value| timeout("open", value))),
    ("conntrack.tcpCloseWaitTimeout", Needless("a connection that only one end has closed lasts as an open one")),
    ("conntrack.tcpBeLiberal", Needless("no segment is dropped for its sequence number")),
    ("conntrack.udpTimeout", Becoming("flow-timeouts", |_, value| timeout("udp-unreplied", value))),
    ("conntrack.udpStreamTimeout", Becoming("flow-timeouts", |_, value| timeout("udp-stream", value))),
    ("configSyncPeriod", Needless("watches deliver changes; resync-interval bounds what a watch may miss")),
    ("portRange", Needless("kube-proxy does not use it")),
    ("windowsRunAsService", WINDOWS),
];

/// A field whose value is not taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    pub field: String,
    pub value: String,
    pub why: String,
}

/// The configuration of Ballast.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Migrated {
    /// Options and their values, as in the YAML file.
    pub options: Vec<(&'static str, String)>,
    pub left: Vec<Left>,
}

impl fmt::Display for Migrated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# A configuration of Ballast, made from one of kube-proxy.")?;
        if !self.left.is_empty() {
            writeln!(f, "#\n# Not taken over:")?;
        }
        for Left { field, value, why } in &self.left {
            writeln!(f, "#   {field}: {value}\n#     {why}")?;
        }
        for (option, value) in &self.options {
            writeln!(f, "{option}: {}", Value::from(value.as_str()))?;
        }
        Ok(())
    }
}

/// Converts a KubeProxyConfiguration, or the ConfigMap that holds one (kubeadm: `kube-proxy` in `kube-system`), in YAML or JSON.
///
/// # Errors
///
/// What of the text is no configuration of kube-proxy, or makes a configuration that the agent would refuse.
pub fn migrate(yaml: &str) -> Result<Migrated, String> {
    let source = Source::read(yaml)?;
    let mut migrated = Migrated { options: vec![("source", "kube".to_owned())], left: Vec::new() };
    for (field, value) in leaves(&source.0) {
        let Some((_, becomes)) = FIELDS.iter().find(|(known, _)| covers(known, &field)) else {
            migrated.leave(&field, &value, "no field of kube-proxy 1.36");
            continue;
        };
        // A switch that is off may mean something; a field that is not given does not.
        let is_off = value == Value::Bool(false) && matches!(becomes, Becoming(..));
        if !source.counts(&field) || (is_zero(&value) && !is_off) {
            continue;
        }
        match becomes {
            Needless(_) => {}
            Missing(why) => migrated.leave(&field, &value, why),
            Becoming(option, convert) => match convert(&source, &value) {
                Ok(converted) => converted.into_iter().for_each(|value| migrated.set(option, value)),
                Err(why) => migrated.leave(&field, &value, &why),
            },
        }
    }
    // kube-proxy's own defaults, where Ballast's are others.
    if source.mode() == "nftables" && !migrated.has("nodeport-addresses") {
        migrated.set("nodeport-addresses", "primary".to_owned());
    }
    if source.mode() == "ipvs"
        && !migrated.has("scheduler")
        && !migrated.left.iter().any(|left| left.field == "ipvs.scheduler")
    {
        migrated.set("scheduler", "round-robin".to_owned());
    }
    Options::parse(&migrated.to_string()).map_err(|error| format!("what it becomes is not valid: {error}"))?;
    Ok(migrated)
}

impl Migrated {
    fn has(&self, option: &str) -> bool {
        self.options.iter().any(|(set, _)| *set == option)
    }

    /// Several fields make one value of the options that are lists.
    fn set(&mut self, option: &'static str, value: String) {
        match self.options.iter_mut().find(|(set, _)| *set == option) {
            Some((_, before)) => *before = format!("{before},{value}"),
            None => self.options.push((option, value)),
        }
    }

    fn leave(&mut self, field: &str, value: &Value, why: &str) {
        self.left.push(Left { field: field.to_owned(), value: value.to_string(), why: why.to_owned() });
    }
}

/// The configuration as it was read.
#[derive(Debug)]
pub struct Source(Value);

impl Source {
    fn read(yaml: &str) -> Result<Self, String> {
        let parse = |text: &str| serde_saphyr::from_str::<Value>(text).map_err(|error| first_line(&error.to_string()));
        let read = parse(yaml)?;
        let read = match read["kind"].as_str() {
            Some("ConfigMap") => {
                let texts = read["data"].as_object().into_iter().flat_map(serde_json::Map::values);
                let mut inner = texts.filter_map(Value::as_str).filter_map(|text| parse(text).ok());
                let found = inner.find(|value| value["kind"] == "KubeProxyConfiguration");
                found.ok_or("the ConfigMap holds no KubeProxyConfiguration")?
            }
            _ => read,
        };
        match (read["apiVersion"].as_str(), read["kind"].as_str()) {
            (Some("kubeproxy.config.k8s.io/v1alpha1"), Some("KubeProxyConfiguration")) => Ok(Self(read)),
            (version, kind) => Err(format!(
                "expected a KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1, got {} of {}",
                kind.unwrap_or("no kind"),
                version.unwrap_or("no version")
            )),
        }
    }

    /// iptables is kube-proxy's default on Linux.
    fn mode(&self) -> &str {
        self.0["mode"].as_str().filter(|mode| !mode.is_empty()).unwrap_or("iptables")
    }

    /// Whether kube-proxy reads the field in its mode.
    fn counts(&self, field: &str) -> bool {
        let detects = self.0["detectLocalMode"].as_str().filter(|mode| !mode.is_empty()).unwrap_or("ClusterCIDR");
        match field.split('.').next() {
            Some("ipvs") => self.mode() == "ipvs",
            Some("iptables") => self.mode() != "nftables",
            Some("nftables") => self.mode() == "nftables",
            Some("detectLocal") => field != "detectLocal.interfaceNamePrefix" || detects == "InterfaceNamePrefix",
            _ => true,
        }
    }
}

/// All values that are no mapping, with their paths. The version and the kind are none.
fn leaves(value: &Value) -> Vec<(String, Value)> {
    fn walk(path: &str, value: &Value, found: &mut Vec<(String, Value)>) {
        match value.as_object() {
            Some(fields) => {
                for (name, value) in fields {
                    walk(&if path.is_empty() { name.clone() } else { format!("{path}.{name}") }, value, found);
                }
            }
            None => found.push((path.to_owned(), value.clone())),
        }
    }
    let mut found = Vec::new();
    walk("", value, &mut found);
    found.retain(|(path, _)| path != "apiVersion" && path != "kind");
    found
}

/// Whether `field` is `known`, or below it.
fn covers(known: &str, field: &str) -> bool {
    field.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// What kube-proxy takes for not given.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is_true) => !is_true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty() || text == "0s",
        Value::Array(list) => list.is_empty(),
        Value::Object(_) => false,
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

/// kube-proxy takes an address with or without a port; Ballast's default is the same port. The unspecified address of either
/// family becomes the default, which is that of both.
fn bind(value: &Value, port: u16, is_loopback: bool) -> Outcome {
    let given = value.as_str().ok_or("no address")?;
    let address: std::net::SocketAddr = given
        .parse()
        .or_else(|_| given.parse().map(|ip| std::net::SocketAddr::new(ip, port)))
        .map_err(|_| "no address with or without a port".to_owned())?;
    let is_default = address.port() == port
        && if is_loopback { address.ip().is_loopback() && address.is_ipv4() } else { address.ip().is_unspecified() };
    Ok((!is_default).then(|| address.to_string()))
}

/// Loopback belongs to `all`, the default.
fn localhost(_: &Source, value: &Value) -> Outcome {
    if *value == Value::Bool(false) {
        return Err("loopback belongs to nodeport-addresses: all; name the node's networks there instead".to_owned());
    }
    Ok(None)
}

fn node_ports(_: &Source, value: &Value) -> Outcome {
    let networks: Option<Vec<&str>> = value.as_array().map(|list| list.iter().filter_map(Value::as_str).collect());
    networks.map(|networks| Some(networks.join(","))).ok_or_else(|| "no list".to_owned())
}

fn scheduler(_: &Source, value: &Value) -> Outcome {
    let name = match value.as_str().unwrap_or_default() {
        "rr" => "round-robin",
        "wrr" => "weighted",
        "lc" | "wlc" => "least-connections",
        "sh" => "source-hash",
        "mh" => "maglev",
        _ => return Err("Ballast has no such scheduler; set scheduler: least-connections or maglev".to_owned()),
    };
    Ok(Some(name.to_owned()))
}

fn timeout(name: &str, value: &Value) -> Outcome {
    let given = value.as_str().and_then(go_duration).ok_or("no duration")?;
    let entry = format!("{name}={}s", given.as_secs());
    match entry.parse::<super::FlowTimeouts>() {
        Ok(_) => Ok(Some(entry)),
        Err(error) => Err(error.to_string()),
    }
}

/// Connections that conntrack has room for, and kube-proxy's default.
fn room(value: &Value, default: u64) -> Outcome {
    match value.as_u64() {
        Some(count) if count > default => {
            Err("Ballast does not use conntrack; set map-sizes: flows4=N,flows6=N".to_owned())
        }
        _ => Ok(None),
    }
}

/// A duration as Go writes it: `1h0m0s`, `500ms`.
fn go_duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (value, after) = rest.split_at(number);
        let unit = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        total = total.checked_add(Duration::try_from_secs_f64(value.parse::<f64>().ok()? * seconds).ok()?)?;
        rest = after;
    }
    Some(total)
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
