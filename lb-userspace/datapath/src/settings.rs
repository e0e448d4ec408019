//! Settings of the data path: plain values, parsed once.

mod choices;
mod port_range;
mod sizes;

use std::path::PathBuf;

use ipnet::IpNet;
use lb_common::{abi::map_name, limits, state::Timeouts};
use wildmatch::WildMatch;

pub use choices::{FastPath, Interfaces, SocketLb, TcAttach, XdpMode};
pub use port_range::PortRange;
pub use sizes::{MAX_MAP_ENTRIES, MIN_MAP_ENTRIES, MapSizes};

/// Everything that [`super::Datapath::open`] needs to know.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct DatapathSettings {
    /// Mount point of the bpf file system; maps and links are pinned in `<bpffs>/ballast/`.
    pub bpffs: PathBuf,
    /// Root of the cgroup v2 hierarchy whose processes get socket load balancing; `None`: find it.
    pub cgroup_root: Option<PathBuf>,
    /// Folder of the agent's lock.
    pub run_dir: PathBuf,
    pub socket_lb: SocketLb,
    /// Whether node ports are reached at loopback, in IPv4 and in IPv6.
    pub loopback_node_ports: [bool; 2],
    /// Whether processes of the node are kept from binding node ports.
    pub protect_node_ports: bool,
    pub tc_attach: TcAttach,
    pub xdp_mode: XdpMode,
    pub fast_path: FastPath,
    pub pod_interfaces: Interfaces,
    pub external_interfaces: Interfaces,
    /// Networks of the cluster's pods, beside those that the Node object names.
    pub cluster_cidrs: Vec<IpNet>,
    /// Service CIDRs, beside those that the source names.
    pub service_cidrs: Vec<IpNet>,
    /// Where the addresses are taken from that stand in for clients; empty: from all of the node's.
    pub snat_addresses: Vec<IpNet>,
    /// The SNAT port range; `None`: the default.
    pub snat_ports: Option<PortRange>,
    /// The other nodes, which may send packets in an outer header.
    pub dsr_peers: Vec<IpNet>,
    pub sizes: MapSizes,
    /// How long flows are remembered.
    pub timeouts: Timeouts,
    /// Until when segments of unknown connections are left to the host's stack, if this start makes the tables: seconds of
    /// `CLOCK_MONOTONIC`; 0: never.
    pub adoption_until_s: u32,
    /// Whether packets and bytes of each flow are counted.
    pub flow_counters: bool,
    /// Whether it is measured how long backends take to answer a SYN.
    pub connect_times: bool,
    /// Key of the hashes of `client_shares`. Found or drawn by [`super::Datapath::open`].
    pub client_key: u32,
    /// Whether the programs write event records to the ring.
    pub events: bool,
    /// Level of the programs' own log (aya-log): 0 off, 1 error, 2 warn, 3 info, 4 debug, 5 trace. 0 costs nothing.
    pub program_log_level: u8,
    /// The object whose programs are loaded; `None`: the one in this binary.
    pub programs: Option<PathBuf>,
    /// Receive buffer of the netlink socket that announces links, in bytes. An overrun costs a full look, nothing else.
    pub netlink_buffer_bytes: usize,
}

impl Default for DatapathSettings {
    fn default() -> Self {
        Self {
            bpffs: "/sys/fs/bpf".into(),
            cgroup_root: None,
            run_dir: "/run/ballast".into(),
            socket_lb: SocketLb::Host,
            loopback_node_ports: [true; 2],
            protect_node_ports: true,
            tc_attach: TcAttach::Auto,
            xdp_mode: XdpMode::Auto,
            fast_path: FastPath::Auto,
            pod_interfaces: Interfaces::Auto,
            external_interfaces: Interfaces::Auto,
            cluster_cidrs: Vec::new(),
            service_cidrs: Vec::new(),
            snat_addresses: Vec::new(),
            snat_ports: None,
            dsr_peers: Vec::new(),
            sizes: MapSizes::default(),
            timeouts: Timeouts::DEFAULT,
            adoption_until_s: 0,
            flow_counters: false,
            connect_times: true,
            client_key: 0,
            events: true,
            program_log_level: 0,
            programs: None,
            netlink_buffer_bytes: 1 << 20,
        }
    }
}

impl DatapathSettings {
    /// The capacity for a map; `None`: as the programs declare it.
    pub(super) fn entries(&self, map: &str) -> Option<u32> {
        match map {
            map_name::TRAFFIC4 if self.flow_counters => Some(self.sizes.flows4.saturating_add(self.sizes.udp_flows)),
            map_name::TRAFFIC6 if self.flow_counters => Some(self.sizes.flows6.saturating_add(self.sizes.udp_flows)),
            map_name::CONNECT_TIMES if self.connect_times => Some(limits::CONNECT_TIMES),
            _ => self.sizes.of(map),
        }
    }
}

/// As many half-open flows as may be added in a second: a table of so many entries, of which a flow takes two, then holds each for
/// [`limits::HALF_OPEN_HELD_S`].
pub(super) fn most_half_open(entries: Option<u32>) -> u32 {
    (entries.unwrap_or(limits::HALF_OPEN) / 2 / limits::HALF_OPEN_HELD_S).max(1)
}

/// Value of the programs' `SOCKET_LB`.
pub(super) fn socket_lb_number(socket_lb: SocketLb) -> u8 {
    match socket_lb {
        SocketLb::Off => 0,
        SocketLb::Host => 1,
        SocketLb::All => 2,
    }
}

/// Whether the interface is named here; `auto` names none.
pub(super) fn names(interfaces: &Interfaces, interface: &str) -> bool {
    patterns(interfaces).iter().any(|pattern| WildMatch::new(pattern).matches(interface))
}

/// The names without wildcards: each of them must exist at the start.
pub(super) fn literals(interfaces: &Interfaces) -> impl Iterator<Item = &str> {
    patterns(interfaces).iter().map(String::as_str).filter(|pattern| !pattern.contains(['*', '?']))
}

fn patterns(interfaces: &Interfaces) -> &[String] {
    match interfaces {
        Interfaces::Auto => &[],
        Interfaces::Named(patterns) => patterns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_whole_names() {
        let interfaces: Interfaces = "veth*, cali?,eth0".parse().expect("well-formed");
        for (name, named) in
            [("veth12", true), ("veth", true), ("cali1", true), ("cali12", false), ("cali", false), ("eth01", false)]
        {
            assert_eq!(names(&interfaces, name), named, "{name}");
        }
        assert_eq!(literals(&interfaces).collect::<Vec<_>>(), ["eth0"]);
    }

    #[test]
    fn auto_names_nothing() {
        assert!(!names(&Interfaces::Auto, "eth0"));
        assert_eq!(literals(&Interfaces::Auto).count(), 0);
    }
}
