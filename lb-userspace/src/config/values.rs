//! Values that an option can have, read from the same text on the command line and in YAML.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

use super::list;

/// A value that was not understood: what was given, and what would be.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{given:?} is not {what}: expected {expected}")]
pub struct ValueError {
    pub given: String,
    pub what: &'static str,
    pub expected: &'static str,
}

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

/// Which links are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Interfaces {
    /// Found by what they are, and followed as they come and go.
    #[default]
    Auto,
    /// Those whose name matches one of the patterns (`*` and `?`); an empty list means none.
    Named(Vec<String>),
}

impl FromStr for Interfaces {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        Self::from_patterns(&list::parts(text))
    }
}

impl Interfaces {
    fn from_patterns(patterns: &[&str]) -> Result<Self, ValueError> {
        match patterns {
            ["auto"] => Ok(Self::Auto),
            _ if !patterns.contains(&"auto") => {
                Ok(Self::Named(patterns.iter().map(|pattern| (*pattern).to_owned()).collect()))
            }
            _ => Err(ValueError {
                given: patterns.join(","),
                what: "a choice of interfaces",
                expected: "auto alone, or names and patterns separated by commas",
            }),
        }
    }
}

impl<'de> Deserialize<'de> for Interfaces {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        list::deserialize(deserializer, "auto, or interface names and patterns", Self::from_patterns)
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

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident, $what:literal, $expected:literal, { $($(#[$variant_doc:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_doc])* $variant),* }

        impl $name {
            /// As written on the command line.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }

        impl FromStr for $name {
            type Err = ValueError;

            fn from_str(text: &str) -> Result<Self, ValueError> {
                match text {
                    $($text => Ok(Self::$variant),)*
                    _ => Err(ValueError { given: text.into(), what: $what, expected: $expected }),
                }
            }
        }
    };
}

choice!(
    /// Whose sockets are translated at connect.
    SocketLb, "a choice of sockets", "host, all or off", {
        /// Processes in the agent's own network namespace.
        Host = "host",
        /// Every process below the cgroup root, pods too.
        All = "all",
        Off = "off",
    }
);
choice!(
    /// How tc programs are attached.
    TcAttach, "a way to attach tc programs", "auto, tcx or clsact", {
        /// TCX where the kernel has it (6.6), else clsact.
        Auto = "auto",
        Tcx = "tcx",
        Clsact = "clsact",
    }
);
choice!(
    /// How XDP programs are attached.
    XdpMode, "an XDP mode", "auto, native, generic or off", {
        /// Native where the driver has it, else generic.
        Auto = "auto",
        Native = "native",
        Generic = "generic",
        Off = "off",
    }
);
choice!(
    /// Whether packets between two pods of the node are handed over past its stack.
    FastPath, "a mode of the fast path", "auto, on or off", {
        /// While nothing of the node would be skipped.
        Auto = "auto",
        On = "on",
        Off = "off",
    }
);
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
