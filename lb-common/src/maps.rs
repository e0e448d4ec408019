//! The declaration of every map: name, type, key, value, capacity, flags, what it holds, and what becomes of it when the layout changes.
//!
//! [`for_each_map`](crate::for_each_map) is the only place that states any of these. The programs make their maps of it, and [`TABLES`] has it as data.

use core::any::TypeId;

use crate::abi::{
    Affinity, AffinityKey, Backend, BridgePort, BridgePortKey, Config, ConnectKey, ConnectTimes, Endpoint, EndpointKey,
    Event, Flow, FlowKey, Fragment, FragmentKey, HalfOpen, Health, Link, LoadSettings, Masquerade, Network, NetworkKey,
    Service, ServiceKey, ServiceName, Slot, SocketEntries, SocketKey, SocketPeer, Source, SourceKey, StatKey, Traffic,
    Vip, VipKey,
};
use crate::{limits, service_cidrs::Cover, vip_filter};

/// Calls the macro `$expand` with the declaration of every map:
///
/// ```text
/// /// What it holds, in one sentence.
/// CONSTANT = "name": Type<Key, Value>[capacity, FLAGS], Nature marks;
/// ```
///
/// `Type` is one of `aya_ebpf::btf_maps`. The capacity is a default: the agent may load another one. A capacity of `limits::NAME` is
/// that of `--map-sizes`, if it has a size `name`. [`Nature`] says what becomes of the map; the marks are fields of [`Table`].
///
/// * `tables`: pinned in the set of tables.
/// * `of_programs`: belong to one set of programs. The agent pins them beside these.
/// * `of_gates`: belong to the gates of a switch between two sets of tables.
#[macro_export]
macro_rules! for_each_map {
    ($expand:ident) => {
        $expand! {
            tables {
                /// Service ports by IPv4 address, port and protocol.
                SERVICES4 = "services4": HashMap<ServiceKey<4>, Service>[limits::SERVICES, ON_DEMAND], Planned is_linked is_audited;
                /// Service ports by IPv6 address, port and protocol.
                SERVICES6 = "services6": HashMap<ServiceKey<16>, Service>[limits::SERVICES, ON_DEMAND], Planned is_linked is_audited;
                /// The backends of each service port, side by side.
                SLOTS = "slots": Array<Slot>[limits::SLOTS], Planned is_linked is_audited;
                /// IPv4 backends by id; id 0 is never used.
                BACKENDS4 = "backends4": Array<Backend<4>>[limits::BACKENDS], Planned is_linked is_audited;
                /// IPv6 backends by id; id 0 is never used.
                BACKENDS6 = "backends6": Array<Backend<16>>[limits::BACKENDS], Planned is_linked is_audited;
                /// Flow entries of established TCP and SCTP connections over IPv4; nothing is evicted.
                FLOWS4 = "flows4": HashMap<FlowKey<4>, Flow<4>>[limits::FLOWS4], Flows(V4);
                /// Flow entries of established TCP and SCTP connections over IPv6; nothing is evicted.
                FLOWS6 = "flows6": HashMap<FlowKey<16>, Flow<16>>[limits::FLOWS6], Flows(V6);
                /// Flow entries of answered UDP flows over IPv4.
                UDP_FLOWS4 = "udp_flows4": LruHashMap<FlowKey<4>, Flow<4>>[limits::UDP_FLOWS], Flows(V4);
                /// Flow entries of answered UDP flows over IPv6.
                UDP_FLOWS6 = "udp_flows6": LruHashMap<FlowKey<16>, Flow<16>>[limits::UDP_FLOWS], Flows(V6);
                /// Translated IPv4 addresses of host sockets.
                SOCKETS4 = "sockets4": LruHashMap<SocketKey<4>, SocketPeer<4>>[limits::SOCKETS], Noted;
                /// Translated IPv6 addresses of host sockets.
                SOCKETS6 = "sockets6": LruHashMap<SocketKey<16>, SocketPeer<16>>[limits::SOCKETS], Noted;
                /// The entries of each host socket in `sockets4` and `sockets6`; the kernel removes them with the socket.
                SOCKET_ENTRIES = "socket_entries": SkStorage<SocketEntries>, Fresh;
                /// Service ports by id: namespace, name and port.
                NAMES = "names": HashMap<u32, ServiceName>[limits::NAMES, ON_DEMAND], Planned is_linked is_audited;
                /// Packets by outcome, on each CPU.
                OUTCOMES = "outcomes": PerCpuArray<u64>[limits::OUTCOMES], Counted is_resizable;
                /// Packets by service port or backend, and by outcome, on each CPU.
                STATS = "stats": PerCpuHashMap<StatKey, u64>[limits::STATS, ON_DEMAND], Counted;
                /// Histograms of connect times, with `--connect-times on`: one for all CPUs, as one for each would take too much room.
                CONNECT_TIMES = "connect_times": HashMap<ConnectKey, ConnectTimes>[1, ON_DEMAND], Counted is_resizable;
                /// Event records of the programs, for one reader.
                EVENTS = "events": RingBuf<Event>[limits::EVENTS_BYTES], Fresh;
                /// Interfaces by index: role, peer namespace and flags.
                LINKS = "links": HashMap<u32, Link>[limits::LINKS, ON_DEMAND], Planned;
                /// Layout version, revision and time of programming.
                CONFIG = "config": Array<Config>[1], Own is_audited;
                /// The layout of every map, as text: the agent that makes the maps writes it, and agents of other versions read it.
                LAYOUT = "layout": Array<[i8; limits::LAYOUT_BYTES]>[1], Fresh;
                /// Settings that the programs were loaded with.
                SETTINGS = "settings": Array<LoadSettings>[1], Planned;
                /// Which flows have a fast path, and until when: one word, so that all links see a change at once.
                FAST_PATH = "fast_path": Array<u32>[1], Planned;
                /// Links of pods by bridge and link-layer address.
                BRIDGE_PORTS = "bridge_ports": HashMap<BridgePortKey, BridgePort>[limits::LINKS, ON_DEMAND], Planned;
                /// IPv4 networks whose clients a service port admits (`loadBalancerSourceRanges`).
                SOURCES4 = "sources4": LpmTrie<SourceKey<4>, Source>[limits::SOURCES], Planned is_linked is_audited;
                /// IPv6 networks whose clients a service port admits (`loadBalancerSourceRanges`).
                SOURCES6 = "sources6": LpmTrie<SourceKey<16>, Source>[limits::SOURCES], Planned is_linked is_audited;
                /// IPv4 addresses of services: whether unserved ports are refused, and echo requests answered.
                VIPS4 = "vips4": HashMap<VipKey<4>, Vip>[limits::VIPS, ON_DEMAND], Planned is_linked is_audited;
                /// IPv6 addresses of services: whether unserved ports are refused, and echo requests answered.
                VIPS6 = "vips6": HashMap<VipKey<16>, Vip>[limits::VIPS, ON_DEMAND], Planned is_linked is_audited;
                /// Bits of addresses that certainly belong to no service; the agent writes single words of it.
                VIP_FILTER = "vip_filter": Array<[u64; vip_filter::WORDS]>[1, SHARED], Fresh is_audited;
                /// Until when segments of unknown connections are left to the host's stack, in seconds of `CLOCK_MONOTONIC`; 0: never.
                ADOPTION = "adoption": Array<u32>[1], Planned;
                /// The prefix that all service CIDRs of a family have in common: it spares most packets a look-up in `networks4` and `networks6`.
                SERVICE_CIDRS = "service_cidrs": Array<Cover>[FAMILIES], Planned is_audited;
                /// IPv4 networks of pods, nodes and services.
                NETWORKS4 = "networks4": LpmTrie<NetworkKey<4>, Network>[limits::NETWORKS], Planned is_audited;
                /// IPv6 networks of pods, nodes and services.
                NETWORKS6 = "networks6": LpmTrie<NetworkKey<16>, Network>[limits::NETWORKS], Planned is_audited;
                /// IPv4 SNAT addresses by interface index; 0: any interface.
                MASQUERADE4 = "masquerade4": HashMap<u32, Masquerade<4>>[limits::LINKS, ON_DEMAND], Planned is_audited;
                /// IPv6 SNAT addresses by interface index; 0: any interface.
                MASQUERADE6 = "masquerade6": HashMap<u32, Masquerade<16>>[limits::LINKS, ON_DEMAND], Planned is_audited;
                /// IPv4 backends of this node by address and service port, as other nodes name them (direct server return).
                ENDPOINTS4 = "endpoints4": HashMap<EndpointKey<4>, Endpoint>[limits::ENDPOINTS, ON_DEMAND], Planned is_linked is_audited;
                /// IPv6 backends of this node by address and service port, as other nodes name them (direct server return).
                ENDPOINTS6 = "endpoints6": HashMap<EndpointKey<16>, Endpoint>[limits::ENDPOINTS, ON_DEMAND], Planned is_linked is_audited;
                /// Flow entries of IPv4 handshakes and of ended connections.
                HALF_OPEN4 = "half_open4": LruHashMap<FlowKey<4>, HalfOpen<4>>[limits::HALF_OPEN], Flows(V4);
                /// Flow entries of IPv6 handshakes and of ended connections.
                HALF_OPEN6 = "half_open6": LruHashMap<FlowKey<16>, HalfOpen<16>>[limits::HALF_OPEN], Flows(V6);
                /// Health of each IPv4 backend, as its packets show it, and its number of connections.
                HEALTH4 = "health4": Array<Health>[limits::BACKENDS, SHARED], Noted;
                /// Health of each IPv6 backend, as its packets show it, and its number of connections.
                HEALTH6 = "health6": Array<Health>[limits::BACKENDS, SHARED], Noted;
                /// Established connections of each client, by hashes of its address; the agent corrects them.
                CLIENT_SHARES = "client_shares": Array<u32>[client_shares::COUNTERS, SHARED], Fresh;
                /// The backend of each IPv4 client with client affinity.
                AFFINITY4 = "affinity4": LruHashMap<AffinityKey<4>, Affinity>[limits::AFFINITY], Noted;
                /// The backend of each IPv6 client with client affinity.
                AFFINITY6 = "affinity6": LruHashMap<AffinityKey<16>, Affinity>[limits::AFFINITY], Noted;
                /// Round-robin counters by service port id.
                ROUND_ROBIN = "round_robin": Array<u64>[limits::ROUND_ROBIN], Counted;
                /// Ports of fragmented IPv4 datagrams, from the first fragment.
                FRAGMENTS4 = "fragments4": LruHashMap<FragmentKey<4>, Fragment>[limits::FRAGMENTS], Fragments(V4);
                /// Ports of fragmented IPv6 datagrams, from the first fragment.
                FRAGMENTS6 = "fragments6": LruHashMap<FragmentKey<16>, Fragment>[limits::FRAGMENTS], Fragments(V6);
                /// Packets and bytes of IPv4 flow entries; as many as `flows4` and `udp_flows4` have with `--flow-counters`.
                TRAFFIC4 = "traffic4": LruHashMap<FlowKey<4>, Traffic>[1], Counted is_resizable;
                /// Packets and bytes of IPv6 flow entries; as many as `flows6` and `udp_flows6` have with `--flow-counters`.
                TRAFFIC6 = "traffic6": LruHashMap<FlowKey<16>, Traffic>[1], Counted is_resizable;
            }
            of_programs {
                /// Link-layer addresses of the other ends of interfaces.
                PEER_MACS = "peer_macs": HashMap<u32, PeerMac>[limits::LINKS, ON_DEMAND];
                /// Half-open flows that this CPU has made in a second: which one, how many.
                SYN_COUNTS = "syn_counts": PerCpuArray<[u32; 2]>[1];
                /// The same of all CPUs.
                SYN_RATE = "syn_rate": Array<u64>[1];
                /// Until when flood mode lasts, seconds of `CLOCK_MONOTONIC`. New programs count for themselves.
                FLOOD_UNTIL = "flood_until": Array<u32>[1];
                /// When the next new flow of a network is due. New programs begin with full buckets.
                BUCKETS = "buckets": LruHashMap<BucketKey, Bucket>[limits::BUCKETS];
                /// When each CPU may write the next event record of an outcome, nanoseconds of `CLOCK_MONOTONIC`. From the index
                /// `limits::OUTCOMES` on: when it may originate the next answer. New programs begin with full buckets.
                CPU_BUCKETS = "cpu_buckets": PerCpuArray<u64>[2 * limits::OUTCOMES];
                /// Room for a quoted packet.
                QUOTE = "quote": PerCpuArray<[u8; 512]>[1];
                /// What the programs that handle one packet hand on to each other: tc and XDP programs run to their end before another starts on
                /// the same CPU.
                SCRATCH4 = "scratch4": PerCpuArray<Scratch<4>>[1];
                /// The same for IPv6.
                SCRATCH6 = "scratch6": PerCpuArray<Scratch<16>>[1];
                /// The same for a call of a socket: another task's call may interrupt it on its CPU, but none of the same socket, which the kernel
                /// has locked.
                SOCKET_SCRATCH = "socket_scratch": SkStorage<SocketScratch<16>>;
                /// The programs that tc programs tail call, by `TcStage::slot`.
                TC_PROGRAMS = "tc_programs": ProgramArray<>[TcStage::SLOTS];
                /// The programs that the XDP program tail calls, by `XdpStage::slot`.
                XDP_PROGRAMS = "xdp_programs": ProgramArray<>[XdpStage::SLOTS];
            }
            of_gates {
                /// What every gate does (`switch::word`).
                SWITCH_WORD = "switch_word": Array<u32>[1];
                /// The entry programs of the old and of the new set at tc (`switch::old_slot`, `switch::new_slot`).
                SWITCH_TC = "switch_tc": ProgramArray<>[switch::SLOTS];
                /// The same at XDP.
                SWITCH_XDP = "switch_xdp": ProgramArray<>[switch::SLOTS];
                /// `flows4` of the old set. Gates ask whether a key is there. Of values they read at most one byte, at `OLD_STATE_AT4`: these
                /// may have another layout than is declared here.
                OLD_FLOWS4 = "old_flows4": HashMap<FlowKey<4>, u32>[1];
                /// `flows6` of the old set.
                OLD_FLOWS6 = "old_flows6": HashMap<FlowKey<16>, u32>[1];
                /// `udp_flows4` of the old set.
                OLD_UDP_FLOWS4 = "old_udp_flows4": LruHashMap<FlowKey<4>, u32>[1];
                /// `udp_flows6` of the old set.
                OLD_UDP_FLOWS6 = "old_udp_flows6": LruHashMap<FlowKey<16>, u32>[1];
                /// `half_open4` of the old set.
                OLD_HALF_OPEN4 = "old_half_open4": LruHashMap<FlowKey<4>, u32>[1];
                /// `half_open6` of the old set.
                OLD_HALF_OPEN6 = "old_half_open6": LruHashMap<FlowKey<16>, u32>[1];
                /// `fragments4` of the old set.
                OLD_FRAGMENTS4 = "old_fragments4": LruHashMap<FragmentKey<4>, u32>[1];
                /// `fragments6` of the old set.
                OLD_FRAGMENTS6 = "old_fragments6": LruHashMap<FragmentKey<16>, u32>[1];
            }
        }
    };
}

/// What a table holds, and so what becomes of it when its layout or size changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nature {
    /// What the agent writes, and what no other can derive anew: each record must fit.
    Planned,
    /// The same, with words that are each set's own.
    Own,
    /// What the programs note: a record that does not fit is forgotten.
    Noted,
    /// Flow entries of one address family.
    Flows(Family),
    /// Ports of first fragments, which go with the flows: what a set does not hold was noted by the programs of the other one.
    Fragments(Family),
    /// Counts: kept if they can be, else they begin anew.
    Counted,
    /// What has a meaning for one set of maps only, or is found anew by itself. `layout` describes its own set. Rings and storages of sockets
    /// cannot be copied. The places of the filter's bits and of the clients' counters follow from their number; the agent sets both anew.
    Fresh,
}

impl Nature {
    /// What becomes of a table of another layout, for users.
    #[must_use]
    pub const fn at_a_change(self) -> &'static str {
        match self {
            Self::Planned | Self::Own => "copied; an entry that does not fit refuses the change",
            Self::Noted => "copied; an entry that does not fit is dropped",
            Self::Flows(_) => "moved, connection by connection",
            Self::Counted => "copied if possible, else it begins at zero",
            Self::Fragments(_) | Self::Fresh => "begins anew",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The tables of established connections, of answered UDP flows, and of what nobody has answered or what is retained: in the order of the
    /// declaration.
    #[must_use]
    pub fn flow_tables(self) -> [&'static str; 3] {
        let mut tables = TABLES.iter().filter(|table| table.nature == Nature::Flows(self));
        core::array::from_fn(|_| tables.next().map_or("", |table| table.name))
    }
}

/// The declaration of a map that is pinned in a set of tables.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    pub name: &'static str,
    /// What it holds.
    pub doc: &'static str,
    /// Bytes of a key and of a value.
    pub sizes: (usize, usize),
    /// The type of its values.
    pub value: fn() -> TypeId,
    /// The name of the limit that is its default capacity; empty: it has another one.
    pub limit: &'static str,
    pub nature: Nature,
    /// Names elements of other tables by id or place, or is named so: these stay in step if the agent writes all of them or none.
    pub is_linked: bool,
    /// The audit compares it with what the agent wrote.
    pub is_audited: bool,
    /// Holds nothing but counts, so that a map of another capacity may take its place at any time.
    pub is_resizable: bool,
}

/// The key and value types of each map type.
mod kinds {
    use core::{any::TypeId, marker::PhantomData};

    pub struct Record<K, V>(PhantomData<(K, V)>);

    impl<K, V: 'static> Record<K, V> {
        pub const SIZES: (usize, usize) = (size_of::<K>(), size_of::<V>());
        pub const VALUE: fn() -> TypeId = TypeId::of::<V>;
    }

    /// The key of a trie: the length of the prefix, then the data.
    #[repr(C)]
    pub struct Prefix<K>(u32, K);

    pub type HashMap<K, V> = Record<K, V>;
    pub type LruHashMap<K, V> = Record<K, V>;
    pub type PerCpuHashMap<K, V> = Record<K, V>;
    pub type Array<V> = Record<u32, V>;
    pub type PerCpuArray<V> = Record<u32, V>;
    pub type LpmTrie<K, V> = Record<Prefix<K>, V>;
    pub type SkStorage<V> = Record<i32, V>;
    pub type RingBuf<V> = Record<(), V>;
}

macro_rules! limit {
    (limits::$limit:ident $($flags:tt)*) => {
        stringify!($limit)
    };
    ($($other:tt)*) => {
        ""
    };
}

macro_rules! declared {
    (
        tables {
            $($(#[doc = $doc:literal])* $constant:ident = $name:literal: $kind:ident<$($record:ty),*>
                $([$($capacity:tt)*])?, $nature:ident $(($family:ident))? $($mark:ident)*;)*
        }
        $($others:tt)*
    ) => {
        /// Every map that is pinned in a set of tables.
        pub static TABLES: [Table; [$($name),*].len()] = [$(Table {
            $($mark: true,)*
            ..Table {
                name: $name,
                doc: concat!($($doc),*),
                sizes: kinds::$kind::<$($record),*>::SIZES,
                value: kinds::$kind::<$($record),*>::VALUE,
                limit: concat!($(limit!($($capacity)*))?),
                nature: Nature::$nature $((Family::$family))?,
                is_linked: false,
                is_audited: false,
                is_resizable: false,
            }
        }),*];
    };
}

crate::for_each_map!(declared);

/// The declaration of the table of this name.
#[must_use]
pub fn table(name: &str) -> Option<&'static Table> {
    TABLES.iter().find(|table| table.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_marks_are_those_of_the_declaration() {
        let limit = |name| table(name).map(|table| table.limit);
        assert_eq!(
            [limit("services4"), limit("slots"), limit("health6")].map(Option::unwrap),
            ["SERVICES", "SLOTS", "BACKENDS"]
        );
        assert_eq!([limit("config"), limit("client_shares"), limit("socket_entries")], [Some(""); 3]);
        assert_eq!(Family::V6.flow_tables(), ["flows6", "udp_flows6", "half_open6"]);
        let marks = |name| table(name).map(|table| [table.is_linked, table.is_audited, table.is_resizable]);
        assert_eq!([marks("slots"), marks("traffic4")], [Some([true, true, false]), Some([false, false, true])]);
    }
}
