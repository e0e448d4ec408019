//! The declaration of every map: name, type, key, value, capacity, flags, what it holds, and what becomes of it when the layout changes.
//!
//! [`for_each_map`](crate::for_each_map) is the only place that states any of these. The programs make their maps of it, and [`TABLES`] has it as data.

use core::any::TypeId;

pub use crate::family::Family;
use crate::map::MapId;
use crate::map::kinds::{self, Entry as _};
use crate::service_cidrs::Cover;
use crate::{abi, limits, vip_filter};

/// Calls the macro `$expand` with the declaration of every map:
///
/// ```text
/// of_each_family {
///     /// What it holds, in one sentence.
///     Marker = CONSTANT4 "name4", CONSTANT6 "name6": Type<Key, Value>[capacity, FLAGS], Nature marks;
/// }
/// one {
///     /// What it holds, in one sentence.
///     Marker = CONSTANT "name": Type<Key, Value>[capacity, FLAGS], Nature marks;
/// }
/// ```
///
/// `Marker` is the map as a type ([`crate::map`]). `Type` is one of `aya_ebpf::btf_maps`. The capacity is a default: the agent may load another
/// one. A capacity of `limits::NAME` is that of `--map-sizes`, if it has a size `name`. [`Nature`] says what becomes of the map; the marks are
/// fields of [`Table`]. `of_each_family` declares two maps: `N` is the length of an address, `FAMILY` the family, and two capacities are written
/// as `[four; six]`.
///
/// * `tables`: pinned in the set of tables.
/// * `of_programs`: belong to one set of programs. The agent pins them beside these.
/// * `of_gates`: belong to the gates of a switch between two sets of tables.
/// * `in_programs`: of records that only programs know, and arrays of programs.
#[macro_export]
macro_rules! for_each_map {
    ($expand:ident) => {
        $expand! {
            tables {
                of_each_family {
                    /// Service ports by address, port and protocol.
                    Services = SERVICES4 "services4", SERVICES6 "services6": HashMap<abi::ServiceKey<N>, abi::Service>[limits::SERVICES, ON_DEMAND], Planned is_linked is_audited;
                    /// Backends by id; id 0 is never used.
                    Backends = BACKENDS4 "backends4", BACKENDS6 "backends6": Array<abi::Backend<N>>[limits::BACKENDS], Planned is_linked is_audited;
                    /// Flow entries of established TCP and SCTP connections; nothing is evicted.
                    Flows = FLOWS4 "flows4", FLOWS6 "flows6": HashMap<abi::FlowKey<N>, abi::Flow<N>>[limits::FLOWS4; limits::FLOWS6], Flows(FAMILY) must_fit;
                    /// Flow entries of answered UDP flows.
                    UdpFlows = UDP_FLOWS4 "udp_flows4", UDP_FLOWS6 "udp_flows6": LruHashMap<abi::FlowKey<N>, abi::Flow<N>>[limits::UDP_FLOWS], Flows(FAMILY) must_fit;
                    /// Translated addresses of host sockets.
                    Sockets = SOCKETS4 "sockets4", SOCKETS6 "sockets6": LruHashMap<abi::SocketKey<N>, abi::SocketPeer<N>>[limits::SOCKETS], Noted must_fit;
                    /// Networks whose clients a service port admits (`loadBalancerSourceRanges`).
                    Sources = SOURCES4 "sources4", SOURCES6 "sources6": LpmTrie<abi::SourceKey<N>, abi::Source>[limits::SOURCES], Planned is_linked is_audited;
                    /// Addresses of services: whether unserved ports are refused, and echo requests answered.
                    Vips = VIPS4 "vips4", VIPS6 "vips6": HashMap<abi::VipKey<N>, abi::Vip>[limits::VIPS, ON_DEMAND], Planned is_linked is_audited;
                    /// Networks of pods, nodes and services.
                    Networks = NETWORKS4 "networks4", NETWORKS6 "networks6": LpmTrie<abi::NetworkKey<N>, abi::Network>[limits::NETWORKS], Planned is_audited;
                    /// SNAT addresses by interface index; 0: any interface.
                    Masquerade = MASQUERADE4 "masquerade4", MASQUERADE6 "masquerade6": HashMap<u32, abi::Masquerade<N>>[limits::LINKS, ON_DEMAND], Planned is_audited;
                    /// Backends of this node by address and service port, as other nodes name them (direct server return).
                    Endpoints = ENDPOINTS4 "endpoints4", ENDPOINTS6 "endpoints6": HashMap<abi::EndpointKey<N>, abi::Endpoint>[limits::ENDPOINTS, ON_DEMAND], Planned is_linked is_audited;
                    /// Flow entries of handshakes and of ended connections.
                    HalfOpen = HALF_OPEN4 "half_open4", HALF_OPEN6 "half_open6": LruHashMap<abi::FlowKey<N>, abi::HalfOpen<N>>[limits::HALF_OPEN], Flows(FAMILY);
                    /// Health of each backend, as its packets show it, and its number of connections.
                    Health = HEALTH4 "health4", HEALTH6 "health6": Array<abi::Health>[limits::BACKENDS, SHARED], Noted;
                    /// The backend of each client with client affinity.
                    Affinity = AFFINITY4 "affinity4", AFFINITY6 "affinity6": LruHashMap<abi::AffinityKey<N>, abi::Affinity>[limits::AFFINITY], Noted;
                    /// Ports of fragmented datagrams, from the first fragment.
                    Fragments = FRAGMENTS4 "fragments4", FRAGMENTS6 "fragments6": LruHashMap<abi::FragmentKey<N>, abi::Fragment>[limits::FRAGMENTS], Fragments(FAMILY);
                    /// Packets and bytes of flow entries; as many as `flows` and `udp_flows` of their family have with `--flow-counters`.
                    Traffic = TRAFFIC4 "traffic4", TRAFFIC6 "traffic6": LruHashMap<abi::FlowKey<N>, abi::Traffic>[1], Counted is_resizable;
                }
                one {
                    /// The backends of each service port, side by side.
                    Slots = SLOTS "slots": Array<abi::Slot>[limits::SLOTS], Planned is_linked is_audited;
                    /// The entries of each host socket in `sockets4` and `sockets6`; the kernel removes them with the socket.
                    SocketEntries = SOCKET_ENTRIES "socket_entries": SkStorage<abi::SocketEntries>, Fresh;
                    /// Service ports by id: namespace, name and port.
                    Names = NAMES "names": HashMap<u32, abi::ServiceName>[limits::NAMES, ON_DEMAND], Planned is_linked is_audited;
                    /// Packets by outcome, on each CPU.
                    Outcomes = OUTCOMES "outcomes": PerCpuArray<u64>[limits::OUTCOMES], Counted is_resizable;
                    /// Packets by service port or backend, and by outcome, on each CPU.
                    Stats = STATS "stats": PerCpuHashMap<abi::StatKey, u64>[limits::STATS, ON_DEMAND], Counted;
                    /// Histograms of connect times, with `--connect-times on`: one for all CPUs, as one for each would take too much room.
                    ConnectTimes = CONNECT_TIMES "connect_times": HashMap<abi::ConnectKey, abi::ConnectTimes>[1, ON_DEMAND], Counted is_resizable is_younger;
                    /// Event records of the programs, for one reader.
                    Events = EVENTS "events": RingBuf<abi::Event>[limits::EVENTS_BYTES], Fresh;
                    /// Interfaces by index: role, peer namespace and flags.
                    Links = LINKS "links": HashMap<u32, abi::Link>[limits::LINKS, ON_DEMAND], Planned;
                    /// Layout version, revision and time of programming.
                    Config = CONFIG "config": Array<abi::Config>[1], Own is_audited;
                    /// The layout of every map, as text: the agent that makes the maps writes it, and agents of other versions read it.
                    Layout = LAYOUT "layout": Array<[i8; limits::LAYOUT_BYTES]>[1], Fresh;
                    /// Settings that the programs were loaded with.
                    Settings = SETTINGS "settings": Array<abi::LoadSettings>[1], Planned;
                    /// Which flows have a fast path, and until when: one word, so that all links see a change at once.
                    FastPath = FAST_PATH "fast_path": Array<u32>[1], Planned;
                    /// Links of pods by bridge and link-layer address.
                    BridgePorts = BRIDGE_PORTS "bridge_ports": HashMap<abi::BridgePortKey, abi::BridgePort>[limits::LINKS, ON_DEMAND], Planned;
                    /// Bits of addresses that certainly belong to no service; the agent writes single words of it.
                    VipFilter = VIP_FILTER "vip_filter": Array<[u64; vip_filter::WORDS]>[1, SHARED], Fresh is_audited is_younger;
                    /// Until when segments of unknown connections are left to the host's stack, in seconds of `CLOCK_MONOTONIC`; 0: never.
                    Adoption = ADOPTION "adoption": Array<u32>[1], Planned is_younger;
                    /// The prefix that all service CIDRs of a family have in common: it spares most packets a look-up in `networks4` and `networks6`.
                    ServiceCidrs = SERVICE_CIDRS "service_cidrs": Array<Cover>[FAMILIES], Planned is_audited;
                    /// Established connections of each client, by hashes of its address; the agent corrects them.
                    ClientShares = CLIENT_SHARES "client_shares": Array<u32>[client_shares::COUNTERS, SHARED], Fresh;
                    /// Round-robin counters by service port id.
                    RoundRobin = ROUND_ROBIN "round_robin": Array<u64>[limits::ROUND_ROBIN], Counted;
                }
            }
            of_programs {
                of_each_family {
                }
                one {
                    /// Link-layer addresses of the other ends of interfaces.
                    PeerMacs = PEER_MACS "peer_macs": HashMap<u32, abi::PeerMac>[limits::LINKS, ON_DEMAND];
                    /// Half-open flows that this CPU has made in a second: which one, how many.
                    SynCounts = SYN_COUNTS "syn_counts": PerCpuArray<[u32; 2]>[1];
                    /// Half-open flows that all CPUs have made in a second.
                    SynRate = SYN_RATE "syn_rate": Array<u64>[1];
                    /// Until when flood mode lasts, seconds of `CLOCK_MONOTONIC`. New programs count for themselves.
                    FloodUntil = FLOOD_UNTIL "flood_until": Array<u32>[1];
                    /// When the next new flow of a network is due. New programs begin with full buckets.
                    Buckets = BUCKETS "buckets": LruHashMap<abi::BucketKey, abi::Bucket>[limits::BUCKETS];
                    /// When each CPU may write the next event record of an outcome, nanoseconds of `CLOCK_MONOTONIC`. From the index
                    /// `limits::OUTCOMES` on: when it may originate the next answer. New programs begin with full buckets.
                    CpuBuckets = CPU_BUCKETS "cpu_buckets": PerCpuArray<u64>[2 * limits::OUTCOMES];
                    /// Room for a quoted packet.
                    Quote = QUOTE "quote": PerCpuArray<[u8; 512]>[1];
                }
            }
            of_gates {
                of_each_family {
                    /// Established connections of the old set. Gates ask whether a key is there. Of values they read at most one byte, at
                    /// `OLD_STATE_AT4`: these may have another layout than is declared here.
                    OldFlows = OLD_FLOWS4 "old_flows4", OLD_FLOWS6 "old_flows6": HashMap<abi::FlowKey<N>, u32>[1];
                    /// Answered UDP flows of the old set.
                    OldUdpFlows = OLD_UDP_FLOWS4 "old_udp_flows4", OLD_UDP_FLOWS6 "old_udp_flows6": LruHashMap<abi::FlowKey<N>, u32>[1];
                    /// Handshakes and retained connections of the old set.
                    OldHalfOpen = OLD_HALF_OPEN4 "old_half_open4", OLD_HALF_OPEN6 "old_half_open6": LruHashMap<abi::FlowKey<N>, u32>[1];
                    /// Ports of fragmented datagrams of the old set.
                    OldFragments = OLD_FRAGMENTS4 "old_fragments4", OLD_FRAGMENTS6 "old_fragments6": LruHashMap<abi::FragmentKey<N>, u32>[1];
                }
                one {
                    /// What every gate does (`switch::word`).
                    SwitchWord = SWITCH_WORD "switch_word": Array<u32>[1];
                }
            }
            in_programs {
                of_each_family {
                    /// What the programs that handle one packet hand on to each other: tc and XDP programs run to their end before another starts on
                    /// the same CPU.
                    Scratch = SCRATCH4 "scratch4", SCRATCH6 "scratch6": PerCpuArray<Scratch<N>>[1];
                }
                one {
                    /// What the programs for one call of a socket hand on to each other. Another task's call may interrupt it on its CPU, but none of the same socket, which the kernel
                    /// has locked.
                    SocketScratch = SOCKET_SCRATCH "socket_scratch": SkStorage<SocketScratch<16>>;
                    /// The programs that tc programs tail call, by `TcStage::slot`.
                    TcPrograms = TC_PROGRAMS "tc_programs": ProgramArray<>[TcStage::SLOTS];
                    /// The programs that the XDP program tail calls, by `XdpStage::slot`.
                    XdpPrograms = XDP_PROGRAMS "xdp_programs": ProgramArray<>[XdpStage::SLOTS];
                    /// The entry programs of the old and of the new set at tc (`switch::old_slot`, `switch::new_slot`).
                    SwitchTc = SWITCH_TC "switch_tc": ProgramArray<>[switch::SLOTS];
                    /// The entry programs of the old and of the new set at XDP.
                    SwitchXdp = SWITCH_XDP "switch_xdp": ProgramArray<>[switch::SLOTS];
                }
            }
        }
    };
}

/// What a table holds, and so what becomes of it when its layout or size changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nature {
    /// What the agent writes, and what no other can derive anew: each record must fit.
    Planned,
    /// What the agent writes, as [`Self::Planned`], with words that are each set's own.
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

impl Family {
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
#[allow(clippy::struct_excessive_bools, reason = "each is a mark of its own")]
pub struct Table {
    pub id: MapId,
    pub name: &'static str,
    /// What it holds.
    pub doc: &'static str,
    /// Bytes of a key and of a value.
    pub sizes: (usize, usize),
    /// The type of its values.
    pub value: fn() -> TypeId,
    /// Its default capacity, as the declaration has it.
    pub capacity: &'static str,
    pub nature: Nature,
    /// [`crate::map::Map::IS_PLAIN`].
    pub is_plain: bool,
    /// Sets of tables of earlier versions have none.
    pub is_younger: bool,
    /// Names elements of other tables by id or place, or is named so: these stay in step if the agent writes all of them or none.
    pub is_linked: bool,
    /// The audit compares it with what the agent wrote.
    pub is_audited: bool,
    /// Holds nothing but counts, so that a map of another capacity may take its place at any time.
    pub is_resizable: bool,
    /// Entries in use must fit into a map of another size. Of planned tables that is so without the mark.
    pub must_fit: bool,
}

impl Table {
    /// The name of the limit that is its default capacity; empty: it has another one.
    #[must_use]
    pub fn limit(&self) -> &'static str {
        let (of, name) = self.capacity.rsplit_once("::").unwrap_or_default();
        if of.trim() == "limits" { name.trim() } else { "" }
    }
}

/// The second capacity of a pair, which may have but one.
macro_rules! six {
    ($four:expr) => {
        stringify!($four)
    };
    ($four:expr; $six:expr) => {
        stringify!($six)
    };
}

macro_rules! described {
    ($($doc:literal)*, $id:ident $name:literal, $kind:ident<$($record:ty),*>, $capacity:expr, $nature:ident $(($family:ident))? $($mark:ident)*) => {
        Table {
            $($mark: true,)*
            ..Table {
                id: MapId::$id,
                name: $name,
                doc: concat!($($doc),*),
                sizes: kinds::$kind::<$($record),*>::SIZES,
                value: kinds::$kind::<$($record),*>::VALUE,
                capacity: $capacity,
                nature: Nature::$nature $(($family))?,
                is_plain: kinds::$kind::<$($record),*>::IS_PLAIN,
                is_younger: false,
                is_linked: false,
                is_audited: false,
                is_resizable: false,
                must_fit: false,
            }
        }
    };
}

macro_rules! declared {
    (
        tables {
            of_each_family {
                $($(#[doc = $docs:literal])* $markers:ident = $four:ident $name4:literal, $six:ident $name6:literal:
                    $kinds:ident<$($records:ty),*>[$capacity4:expr $(; $capacity6:expr)? $(, $flags:ident)?],
                    $natures:ident $(($family:ident))? $($marks:ident)*;)*
            }
            one {
                $($(#[doc = $doc:literal])* $marker:ident = $constant:ident $name:literal: $kind:ident<$($record:ty),*>
                    $([$capacity:expr $(, $flag:ident)?])?, $nature:ident $($mark:ident)*;)*
            }
        }
        $($others:tt)*
    ) => {
        /// Every map that is pinned in a set of tables.
        pub static TABLES: [Table; [$($name4, $name6,)* $($name),*].len()] = [
            $(
                {
                    #[allow(dead_code)]
                    const N: usize = 4;
                    #[allow(dead_code)]
                    const FAMILY: Family = Family::V4;
                    described!($($docs)*, $four $name4, $kinds<$($records),*>, stringify!($capacity4), $natures $(($family))? $($marks)*)
                },
                {
                    #[allow(dead_code)]
                    const N: usize = 16;
                    #[allow(dead_code)]
                    const FAMILY: Family = Family::V6;
                    described!(
                        $($docs)*, $six $name6, $kinds<$($records),*>, six!($capacity4 $(; $capacity6)?), $natures $(($family))? $($marks)*
                    )
                },
            )*
            $(described!($($doc)*, $constant $name, $kind<$($record),*>, concat!($(stringify!($capacity))?), $nature $($mark)*),)*
        ];
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
        let limit = |name| table(name).map(Table::limit);
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
