//! Values that an option can have, read from the same text on the command line and in YAML.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use lb_model::{ValueError, choice};

/// Where services and endpoints come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file or folder of Kubernetes YAML.
    File(PathBuf),
    /// A Kubernetes API server.
    Kube,
}

impl FromStr for Source {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.split_once('=') {
            None if text == "kube" => Ok(Self::Kube),
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            _ => Err(ValueError { given: text.into(), what: "a source", expected: "file=PATH or kube" }),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file={}", path.display()),
            Self::Kube => f.write_str("kube"),
        }
    }
}

/// The root of the cgroup v2 hierarchy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CgroupRoot {
    /// Where cgroup2 is mounted.
    #[default]
    Auto,
    At(PathBuf),
}

impl FromStr for CgroupRoot {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "auto" => Ok(Self::Auto),
            path if path.starts_with('/') => Ok(Self::At(path.into())),
            _ => Err(ValueError { given: text.into(), what: "a cgroup root", expected: "auto or an absolute path" }),
        }
    }
}

/// The URLs of Kubernetes API servers of one cluster; never none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServers(pub Vec<http::Uri>);

impl FromStr for ApiServers {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let is_good = |uri: &http::Uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some();
        let one = |text: &str| text.trim().parse::<http::Uri>().ok().filter(is_good);
        text.split(',').map(one).collect::<Option<_>>().map(Self).ok_or_else(|| ValueError {
            given: text.into(),
            what: "the URL of an API server",
            expected: "https://HOST:PORT, several separated by commas",
        })
    }
}

choice!(
    /// A switch.
    Switch, "a switch", "on or off", { On = "on", Off = "off" }
);
choice!(
    /// How log lines are written.
    LogFormat, "a log format", "text or json", { Text = "text", Json = "json" }
);
choice!(
    /// From which weight on messages are logged.
    LogLevel, "a log level", "off, error, warn, info, debug or trace", {
        Off = "off",
        Error = "error",
        Warn = "warn",
        Info = "info",
        Debug = "debug",
        Trace = "trace",
    }
);

impl LogLevel {
    /// As the eBPF programs count: 0 is off.
    pub const fn as_number(self) -> u8 {
        match self {
            Self::Off => 0,
            Self::Error => 1,
            Self::Warn => 2,
            Self::Info => 3,
            Self::Debug => 4,
            Self::Trace => 5,
        }
    }
}

/// The longest value of a label (Kubernetes' own bound).
pub const MAX_LABEL_LENGTH: usize = 63;

/// A value of the label `service.kubernetes.io/service-proxy-name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyName(pub String);

impl FromStr for ProxyName {
    type Err = ValueError;

    /// Kubernetes' rule for values of labels; an empty one would select nothing that the API server lets exist as a name.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let is_alphanumeric = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
        let ends = is_alphanumeric(text.chars().next()) && is_alphanumeric(text.chars().last());
        let middle = text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        if ends && middle && text.len() <= MAX_LABEL_LENGTH {
            return Ok(Self(text.to_owned()));
        }
        Err(ValueError {
            given: text.into(),
            what: "the value of a label",
            expected: "1 to 63 letters, digits, -, _ and ., beginning and ending with a letter or digit",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_name_is_a_labels_value() {
        assert!("ballast-2.x_y".parse::<ProxyName>().is_ok());
        for wrong in ["", "-a", "a-", "a b", &"a".repeat(64)] {
            assert!(wrong.parse::<ProxyName>().is_err(), "{wrong}");
        }
    }
}
