//! What the agent and the programs leave for each other and for an operator: settings, counters, events.

use super::sizes::sizes;
use crate::connect_times::BUCKETS;
use crate::numbered::numbered;

/// Value of `config` (one element): what a restarted agent compares before it takes the maps over.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// [`ABI_VERSION`].
    pub abi_version: u32,
    /// When the tables were last programmed, tenths of a second of `CLOCK_MONOTONIC`; 0: never.
    pub programmed_ds: u32,
    /// Revision of the snapshot that the tables hold.
    pub revision_low: u32,
    pub revision_high: u32,
}

/// Value of `settings` (one element): what the programs were loaded with, as far as a reader of their tables must know it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LoadSettings {
    /// Seconds without a packet after which a flow is forgotten (see `state::Timeouts`); 0: not known.
    pub half_open_s: u32,
    pub open_s: u32,
    pub closing_s: u32,
    pub udp_unreplied_s: u32,
    pub udp_replied_s: u32,
    pub udp_stream_s: u32,
    /// 1: `traffic4` and `traffic6` count the packets and bytes of each flow.
    pub flow_counters: u32,
    /// Key of the hashes in `client_shares`. Random, drawn when the tables are made.
    pub client_key: u32,
}

/// Key of `stats`: a counter of one outcome for one service port or backend.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StatKey {
    /// Service port id or backend id, by `kind`.
    pub id: u32,
    /// [`stat_kind`].
    pub kind: u8,
    /// [`crate::outcome::Outcome`] as a number.
    pub outcome: u8,
    pub pad: u16,
}

/// Values of [`StatKey::kind`].
pub mod stat_kind {
    pub const SERVICE: u8 = 1;
    pub const BACKEND4: u8 = 4;
    pub const BACKEND6: u8 = 6;
}

/// Key of `connect_times`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectKey {
    /// Backend id or service port id, by `kind`.
    pub id: u32,
    /// [`stat_kind`]. That of a service port holds what backends had whose ids were given up since; the agent writes it.
    pub kind: u32,
}

/// Value of `connect_times`: how long a backend took to answer SYNs, since it has its id.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectTimes {
    /// Sum of all times, in [ticks](crate::connect_times::TICK_NS).
    pub sum: u64,
    /// Answers by [`crate::connect_times::bucket`] of their time.
    pub counts: [u64; BUCKETS],
}

impl ConnectTimes {
    /// Adds those of another backend.
    pub fn add(&mut self, other: &Self) {
        self.sum = self.sum.wrapping_add(other.sum);
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count = count.wrapping_add(more);
        }
    }
}

/// A record in the `events` ring.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    /// `CLOCK_MONOTONIC`, nanoseconds.
    pub time_ns: u64,
    pub service: u32,
    pub backend: u32,
    /// IPv4 addresses stand in the first four bytes.
    pub src: [u8; 16],
    pub dst: [u8; 16],
    pub src_port: u16,
    pub dst_port: u16,
    pub protocol: u8,
    /// [`crate::outcome::Outcome`] as a number.
    pub outcome: u8,
    /// [`EventHook`] as a number.
    pub hook: u8,
    /// 4 or 6.
    pub family: u8,
    pub ifindex: u32,
    pub pad: u32,
}

numbered! {
    /// Where an event was seen: [`Event::hook`].
    EventHook: u8, hook {
        /// The event is about a backend, whatever packet it was learnt from; it has no addresses.
        NotTold, NOT_TOLD = 0, "-";
        PodIn, POD_IN = 1, "pod_in";
        PodOut, POD_OUT = 2, "pod_out";
        NodeIn, NODE_IN = 3, "node_in";
        NodeOut, NODE_OUT = 4, "node_out";
        BridgeIn, BRIDGE_IN = 5, "bridge_in";
        Xdp, XDP = 6, "xdp";
        Socket, SOCKET = 7, "socket";
    }
}

sizes! {
    Config = 16,
    LoadSettings = 32,
    StatKey = 8,
    ConnectKey = 8,
    ConnectTimes = 136,
    Event = 64,
}
