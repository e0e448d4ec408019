//! What the agent is told about the data path: plain values, parsed once.

use std::{convert::Infallible, fmt, path::PathBuf, str::FromStr};

use clap::ValueEnum;
use lb_common::limits;
use serde::{Deserialize, Serialize};

/// Everything that [`super::Datapath::open`] needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Mount point of the bpf file system; maps and links are pinned in `<bpffs>/ballast/`.
    pub bpffs: PathBuf,
    /// Root of the cgroup v2 hierarchy whose processes get socket load balancing; `None`: find it.
    pub cgroup_root: Option<PathBuf>,
    /// Folder of the agent's lock.
    pub run_dir: PathBuf,
    pub socket_lb: SocketLb,
    pub tc_attach: TcAttach,
    pub xdp_mode: XdpMode,
    pub pod_interfaces: Selector,
    pub external_interfaces: Selector,
    pub sizes: MapSizes,
    /// Whether the programs write event records to the ring.
    pub events: bool,
    /// Level of the programs' own log (aya-log): 0 off, 1 error, 2 warn, 3 info, 4 debug, 5 trace. 0 costs nothing.
    pub program_log_level: u8,
    /// Receive buffer of the netlink socket that announces links, in bytes. An overrun costs a full look, nothing else.
    pub netlink_buffer_bytes: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            bpffs: "/sys/fs/bpf".into(),
            cgroup_root: None,
            run_dir: "/run/ballast".into(),
            socket_lb: SocketLb::default(),
            tc_attach: TcAttach::default(),
            xdp_mode: XdpMode::default(),
            pod_interfaces: Selector::Auto,
            external_interfaces: Selector::Auto,
            sizes: MapSizes::default(),
            events: true,
            program_log_level: 0,
            netlink_buffer_bytes: 1 << 20,
        }
    }
}

/// Whose sockets are translated at connect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SocketLb {
    /// Nobody's: every packet is translated on its way.
    Off,
    /// Processes in the agent's network namespace.
    #[default]
    Host,
    /// Processes in every network namespace.
    All,
}

impl SocketLb {
    /// Value of the programs' `SOCKET_LB`.
    pub fn as_number(self) -> u8 {
        match self {
            Self::Off => 0,
            Self::Host => 1,
            Self::All => 2,
        }
    }
}

/// How tc programs are attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TcAttach {
    /// TCX where the kernel has it (6.6), else clsact.
    #[default]
    Auto,
    Tcx,
    Clsact,
}

/// How XDP is attached to external interfaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum XdpMode {
    /// In the driver where it can, else generic.
    #[default]
    Auto,
    Native,
    Generic,
    Off,
}

/// Which interfaces play a role: found by what they are, or named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Selector {
    #[default]
    Auto,
    /// Globs (`*`, `?`) over interface names.
    Globs(Vec<String>),
}

impl Selector {
    /// Whether the interface is named here; `auto` names none.
    pub fn names(&self, interface: &str) -> bool {
        match self {
            Self::Auto => false,
            Self::Globs(globs) => globs.iter().any(|glob| matches(glob.as_bytes(), interface.as_bytes())),
        }
    }

    /// The names without wildcards: each of them must exist at the start.
    pub fn literals(&self) -> impl Iterator<Item = &str> {
        let globs = match self {
            Self::Auto => [].as_slice(),
            Self::Globs(globs) => globs.as_slice(),
        };
        globs.iter().map(String::as_str).filter(|glob| !glob.contains(['*', '?']))
    }
}

impl From<String> for Selector {
    fn from(text: String) -> Self {
        if text.trim() == "auto" {
            return Self::Auto;
        }
        Self::Globs(text.split(',').map(str::trim).filter(|glob| !glob.is_empty()).map(String::from).collect())
    }
}

impl From<Selector> for String {
    fn from(selector: Selector) -> Self {
        selector.to_string()
    }
}

impl FromStr for Selector {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self::from(text.to_owned()))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Globs(globs) => f.write_str(&globs.join(",")),
        }
    }
}

fn matches(glob: &[u8], name: &[u8]) -> bool {
    match (glob.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => (0..=name.len()).any(|skipped| matches(rest, &name[skipped..])),
        (Some((b'?', glob)), Some((_, name))) => matches(glob, name),
        (Some((wanted, glob)), Some((found, name))) => wanted == found && matches(glob, name),
        _ => false,
    }
}

/// Capacities of the maps, in entries; the defaults are those of [`lb_common::limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct MapSizes {
    pub services: u32,
    pub backends: u32,
    pub slots: u32,
    pub flows4: u32,
    pub flows6: u32,
    pub sockets: u32,
    pub names: u32,
    pub stats: u32,
}

impl Default for MapSizes {
    fn default() -> Self {
        Self {
            services: limits::SERVICES,
            backends: limits::BACKENDS,
            slots: limits::SLOTS,
            flows4: limits::FLOWS4,
            flows6: limits::FLOWS6,
            sockets: limits::SOCKETS,
            names: limits::NAMES,
            stats: limits::STATS,
        }
    }
}

impl MapSizes {
    /// The capacity for a map; `None`: as the programs declare it.
    pub fn of(&self, map: &str) -> Option<u32> {
        use lb_common::abi::map_name as name;
        Some(match map {
            name::SERVICES4 | name::SERVICES6 => self.services,
            name::BACKENDS4 | name::BACKENDS6 => self.backends,
            name::SLOTS => self.slots,
            name::FLOWS4 => self.flows4,
            name::FLOWS6 => self.flows6,
            name::SOCKETS4 | name::SOCKETS6 => self.sockets,
            name::NAMES => self.names,
            name::STATS => self.stats,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_whole_names() {
        let selector = Selector::from("veth*, cali?,eth0".to_owned());
        for (name, named) in [("veth12", true), ("veth", true), ("cali1", true), ("cali12", false), ("eth01", false)] {
            assert_eq!(selector.names(name), named, "{name}");
        }
        assert_eq!(selector.literals().collect::<Vec<_>>(), ["eth0"]);
    }

    #[test]
    fn auto_names_nothing_and_round_trips() {
        assert_eq!(Selector::from("auto".to_owned()), Selector::Auto);
        assert!(!Selector::Auto.names("eth0"));
        assert_eq!(Selector::from("a*,b".to_owned()).to_string(), "a*,b");
    }
}
