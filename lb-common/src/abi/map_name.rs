//! Names of the maps, as pinned and as `bpftool` shows them.

use crate::limits::MAP_NAME_LENGTH;

macro_rules! names {
    ($($constant:ident = $name:literal,)*) => {
        $(
            pub const $constant: &str = $name;
            const _: () = assert!($name.len() <= MAP_NAME_LENGTH);
        )*
        /// All of them.
        pub const ALL: [&str; [$($name),*].len()] = [$($name),*];
    };
}

names! {
    SERVICES4 = "services4",
    SERVICES6 = "services6",
    SLOTS = "slots",
    BACKENDS4 = "backends4",
    BACKENDS6 = "backends6",
    FLOWS4 = "flows4",
    FLOWS6 = "flows6",
    UDP_FLOWS4 = "udp_flows4",
    UDP_FLOWS6 = "udp_flows6",
    SOCKETS4 = "sockets4",
    SOCKETS6 = "sockets6",
    NAMES = "names",
    OUTCOMES = "outcomes",
    STATS = "stats",
    EVENTS = "events",
    LINKS = "links",
    CONFIG = "config",
    SOURCES4 = "sources4",
    SOURCES6 = "sources6",
    VIPS4 = "vips4",
    VIPS6 = "vips6",
    HALF_OPEN4 = "half_open4",
    HALF_OPEN6 = "half_open6",
    HEALTH4 = "health4",
    HEALTH6 = "health6",
    AFFINITY4 = "affinity4",
    AFFINITY6 = "affinity6",
    TURNS = "round_robin",
    FRAGMENTS4 = "fragments4",
    FRAGMENTS6 = "fragments6",
    TRAFFIC4 = "traffic4",
    TRAFFIC6 = "traffic6",
    SETTINGS = "settings",
    SOCKET_ENTRIES = "socket_entries",
    NETWORKS4 = "networks4",
    NETWORKS6 = "networks6",
    MASQUERADE4 = "masquerade4",
    MASQUERADE6 = "masquerade6",
    ENDPOINTS4 = "endpoints4",
    ENDPOINTS6 = "endpoints6",
    FAST_PATH = "fast_path",
    BRIDGE_PORTS = "bridge_ports",
    VIP_FILTER = "vip_filter",
    ADOPTION = "adoption",
    SERVICE_CIDRS = "service_cidrs",
    CLIENT_SHARES = "client_shares",
    LAYOUT = "layout",
    CONNECT_TIMES = "connect_times",
}
