//! The records in the maps: every key and value, `repr(C)`, explicit padding, sizes asserted.
//!
//! Addresses are bytes in network order, as they stand in a packet. Ports are numbers in host order, so that
//! `bpftool map dump` shows 80 as 80; `packet` converts at the edge. No bool, enum or Option crosses: only plain numbers.
//! Keys are aligned to words: BPF has no unaligned access that the compiler would trust, and copies byte by byte otherwise.
//! Times are `CLOCK_MONOTONIC` (what `bpf_ktime_get_ns` reads, and `bpf_ktime_get_coarse_ns` as of the last tick), never the wall clock.
//!
//! A change of any record here is a change of [`ABI_VERSION`].

/// Version of everything in this module; compared before any pinned map is reused.
pub const ABI_VERSION: u32 = 7;

/// Bytes of an IPv4 address.
pub const V4: usize = 4;
/// Bytes of an IPv6 address.
pub const V6: usize = 16;

/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;
/// IP protocol number of SCTP.
pub const SCTP: u8 = 132;

/// Names of the maps, as pinned and as `bpftool` shows them.
pub mod map_name {
    pub const SERVICES4: &str = "services4";
    pub const SERVICES6: &str = "services6";
    pub const SLOTS: &str = "slots";
    pub const BACKENDS4: &str = "backends4";
    pub const BACKENDS6: &str = "backends6";
    pub const FLOWS4: &str = "flows4";
    pub const FLOWS6: &str = "flows6";
    pub const SOCKETS4: &str = "sockets4";
    pub const SOCKETS6: &str = "sockets6";
    pub const NAMES: &str = "names";
    pub const OUTCOMES: &str = "outcomes";
    pub const STATS: &str = "stats";
    pub const EVENTS: &str = "events";
    pub const LINKS: &str = "links";
    pub const CONFIG: &str = "config";
    pub const SOURCES4: &str = "sources4";
    pub const SOURCES6: &str = "sources6";
    pub const VIPS4: &str = "vips4";
    pub const VIPS6: &str = "vips6";
    pub const HALF_OPEN4: &str = "half_open4";
    pub const HALF_OPEN6: &str = "half_open6";
    pub const HEALTH4: &str = "health4";
    pub const HEALTH6: &str = "health6";
    pub const AFFINITY4: &str = "affinity4";
    pub const AFFINITY6: &str = "affinity6";
    pub const TURNS: &str = "turns";
    pub const FRAGMENTS4: &str = "fragments4";
    pub const FRAGMENTS6: &str = "fragments6";
    pub const TRAFFIC4: &str = "traffic4";
    pub const TRAFFIC6: &str = "traffic6";
    pub const SETTINGS: &str = "settings";
    pub const SOCKET_ENTRIES: &str = "socket_entries";
    pub const NETWORKS4: &str = "networks4";
    pub const NETWORKS6: &str = "networks6";
    pub const MASQUERADE4: &str = "masquerade4";
    pub const MASQUERADE6: &str = "masquerade6";
    pub const ENDPOINTS4: &str = "endpoints4";
    pub const ENDPOINTS6: &str = "endpoints6";
    pub const FAST_PATH: &str = "fast_path";
    pub const BRIDGE_PORTS: &str = "bridge_ports";
    pub const STRANGERS: &str = "strangers";
    pub const ADOPTION: &str = "adoption";
    pub const SERVICE_CIDRS: &str = "service_cidrs";

    /// All of them.
    pub const ALL: [&str; 43] = [
        SERVICES4,
        SERVICES6,
        SLOTS,
        BACKENDS4,
        BACKENDS6,
        FLOWS4,
        FLOWS6,
        SOCKETS4,
        SOCKETS6,
        NAMES,
        OUTCOMES,
        STATS,
        EVENTS,
        LINKS,
        CONFIG,
        SOURCES4,
        SOURCES6,
        VIPS4,
        VIPS6,
        HALF_OPEN4,
        HALF_OPEN6,
        HEALTH4,
        HEALTH6,
        AFFINITY4,
        AFFINITY6,
        TURNS,
        FRAGMENTS4,
        FRAGMENTS6,
        TRAFFIC4,
        TRAFFIC6,
        SETTINGS,
        SOCKET_ENTRIES,
        NETWORKS4,
        NETWORKS6,
        MASQUERADE4,
        MASQUERADE6,
        ENDPOINTS4,
        ENDPOINTS6,
        FAST_PATH,
        BRIDGE_PORTS,
        STRANGERS,
        ADOPTION,
        SERVICE_CIDRS,
    ];

    const _: () = {
        let mut i = 0;
        while i < ALL.len() {
            assert!(ALL[i].len() <= crate::limits::MAP_NAME_LENGTH);
            i += 1;
        }
    };
}

/// Key of `services4` / `services6`: one frontend.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceKey<const N: usize> {
    pub address: [u8; N],
    pub port: u16,
    pub protocol: u8,
    pub pad: u8,
}

/// Value of `services4` / `services6`: the one entry whose replacement makes an update visible.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Service {
    /// Id of the service port, the key of `names`. Several frontends share it. Never 0.
    pub id: u32,
    /// Changes with every new slot range; the slots of both ranges carry the same number.
    pub generation: u32,
    /// First slot of the set that serves internal clients: pods and processes of this node.
    pub slot_base: u32,
    /// How many slots. 0: no endpoint, refuse (or drop, see [`service_flags::DROP_IF_EMPTY`]).
    pub slot_count: u32,
    /// First slot of the set that serves everybody else, pods of other nodes too; for a cluster IP the same set.
    pub outside_base: u32,
    /// How many slots. 0: no endpoint, refuse (or drop, see [`service_flags::DROP_OUTSIDE_IF_EMPTY`]).
    pub outside_count: u32,
    /// [`seal`] of the key and the fields above: a reader that sees another one met a recycled element or half a write.
    pub seal: u32,
    /// Seconds of client affinity; 0: none.
    pub affinity_timeout_s: u32,
    /// [`scheduler`].
    pub scheduler: u8,
    /// [`service_flags`].
    pub flags: u8,
    /// [`frontend_kind`].
    pub kind: u8,
    pub pad: u8,
    /// New flows in a second that each network of clients outside may make, on average; 0: any number.
    pub rate: u32,
    /// How many of them may come at once. With [`Service::rate`] at least 1.
    pub burst: u32,
}

impl Service {
    /// All zeroes: no service.
    pub const NONE: Self = Self {
        id: 0,
        generation: 0,
        slot_base: 0,
        slot_count: 0,
        outside_base: 0,
        outside_count: 0,
        seal: 0,
        affinity_timeout_s: 0,
        scheduler: 0,
        flags: 0,
        kind: 0,
        pad: 0,
        rate: 0,
        burst: 0,
    };
}

/// Key of `buckets`: a network of clients outside, and the service port that it asks for.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketKey {
    /// Id of the service port.
    pub service: u32,
    /// Bytes of an address: 4 or 16.
    pub family: u32,
    /// The first [`crate::limits::LIMITED_BYTES4`] or [`crate::limits::LIMITED_BYTES6`] bytes of the address, then zeroes.
    pub network: [u8; 8],
}

/// Value of `buckets`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// When the next new flow is due, nanoseconds of `CLOCK_MONOTONIC`: it may come earlier by what the burst allows.
    pub due_ns: u64,
}

/// Values of [`Service::scheduler`].
pub mod scheduler {
    /// Any slot, with equal chance.
    pub const RANDOM: u8 = 0;
    /// One slot after the other (`turns`).
    pub const ROUND_ROBIN: u8 = 1;
    /// As round robin, over slots that name each backend as often as its weight asks.
    pub const WEIGHTED: u8 = 2;
    /// Of two slots drawn, the one whose backend has fewer connections for its weight (power of two choices).
    pub const LEAST_CONNECTIONS: u8 = 3;
    /// By the client's address.
    pub const SOURCE_HASH: u8 = 4;
    /// By the tuple, over a table that moves few flows when the backends change.
    pub const MAGLEV: u8 = 5;
}

/// Bits of [`Service::flags`].
pub mod service_flags {
    /// Endpoints exist, but none that clients inside may use (`internalTrafficPolicy: Local`): drop instead of refuse.
    pub const DROP_IF_EMPTY: u8 = 1;
    /// The same for clients outside (`externalTrafficPolicy: Local`).
    pub const DROP_OUTSIDE_IF_EMPTY: u8 = 2;
    /// Only clients in `sources4` / `sources6` may pass (`loadBalancerSourceRanges`).
    pub const SOURCE_RANGES: u8 = 4;
    /// With [`SOURCE_RANGES`]: an address of this node is among them, so its own processes may pass.
    pub const NODE_ALLOWED: u8 = 8;
    /// `externalTrafficPolicy: Local`: a client outside keeps its address.
    pub const OUTSIDE_LOCAL: u8 = 16;
    /// Connections that nobody answers stay with their backend, and refusals are passed at once.
    pub const NO_RETRY: u8 = 32;
    /// Clients inside are served by the endpoints of this node alone (`internalTrafficPolicy: Local`).
    pub const INSIDE_LOCAL: u8 = 64;
    /// Direct server return: packets of clients outside go whole to the backend's node, in an outer header, and are answered from there.
    pub const DSR: u8 = 128;
}

/// Values of [`Service::kind`].
pub mod frontend_kind {
    pub const CLUSTER_IP: u8 = 0;
    pub const EXTERNAL_IP: u8 = 1;
    pub const LOAD_BALANCER: u8 = 2;
    pub const NODE_PORT: u8 = 3;
    /// A node port as sockets of the node's own processes see it, by no packet: loopback leads to it, and nobody may bind it. Its
    /// address is the unspecified one, and stands for all of the node's.
    pub const HOST_SOCKET: u8 = 4;
}

/// Data of a key of `sources4` / `sources6` (longest prefix match): a client that a service port admits.
///
/// The prefix length counts the bits of both fields: 32 for the service, which must match whole, and those of the network.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceKey<const N: usize> {
    /// Id of the service port.
    pub service: u32,
    /// Network address; bits beyond the prefix are zero.
    pub address: [u8; N],
}

/// Bits of [`SourceKey::service`].
pub const SOURCE_SERVICE_BITS: u32 = 32;

/// Value of `sources4` / `sources6`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// Id of the service port, once more.
    pub service: u32,
}

/// Key of `vips4` / `vips6`: an address that services are reached by and that is not the node's own.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VipKey<const N: usize> {
    pub address: [u8; N],
}

/// Value of `vips4` / `vips6`: what becomes of a packet to this address that no frontend serves.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vip {
    /// [`vip_flags`].
    pub flags: u32,
}

/// Bits of [`Vip::flags`].
pub mod vip_flags {
    /// A port that no frontend serves is refused: the address is a cluster IP, or one of a load balancer.
    pub const REFUSE_UNSERVED: u32 = 1;
    /// An ICMP echo request is answered.
    pub const ECHO: u32 = 2;
}

/// Data of a key of `networks4` / `networks6` (longest prefix match): a network of which something is known.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetworkKey<const N: usize> {
    /// Network address; bits beyond the prefix are zero.
    pub address: [u8; N],
}

/// Value of `networks4` / `networks6`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    /// [`network_flags`].
    pub flags: u32,
}

/// Bits of [`Network::flags`].
pub mod network_flags {
    /// Pods of the cluster, of this node or another one.
    pub const PODS: u32 = 1;
    /// An address of this node.
    pub const NODE: u32 = 2;
    /// An address of another node of the cluster.
    pub const PEER: u32 = 4;
    /// A service CIDR: packets to addresses here that no service has are dropped. Not set where a longer prefix of pods or nodes lies in it.
    pub const SERVICES: u32 = 8;
}

/// Value of `masquerade4` / `masquerade6`, by the index of the interface that leads to the backend; 0: of any other.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Masquerade<const N: usize> {
    /// Addresses of this node, the sources that masqueraded packets get: the first one, and the others in turn where a flow finds no port
    /// at those before. Fewer than these come round again.
    pub addresses: [[u8; N]; MASQUERADE_ADDRESSES],
}

/// How many addresses of this node stand in for clients at one link, at most: a power of two.
pub const MASQUERADE_ADDRESSES: usize = 4;
const _: () = assert!(MASQUERADE_ADDRESSES.is_power_of_two());

impl<const N: usize> Masquerade<N> {
    /// The first address, and those to go on to. What is more than [`MASQUERADE_ADDRESSES`] is left out.
    #[must_use]
    pub fn new(first: [u8; N], others: &[[u8; N]]) -> Self {
        let count = (1 + others.len()).min(MASQUERADE_ADDRESSES);
        let nth = |turn: usize| (turn % count).checked_sub(1).and_then(|at| others.get(at)).copied();
        Self { addresses: core::array::from_fn(|turn| nth(turn).unwrap_or(first)) }
    }

    /// The source of a flow for which those before were tried in vain.
    #[inline(always)]
    #[must_use]
    pub const fn address(&self, turn: u32) -> &[u8; N] {
        &self.addresses[turn as usize & (MASQUERADE_ADDRESSES - 1)]
    }
}

/// Key of `endpoints4` / `endpoints6`: a backend of this node, as the node that chose it names it.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointKey<const N: usize> {
    pub address: [u8; N],
    /// Id of the service port.
    pub service: u32,
}

/// Value of `endpoints4` / `endpoints6`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Id of the backend.
    pub backend: u32,
    /// The backend's generation.
    pub generation: u32,
}

/// Value of `slots`: one position in a service's range.
///
/// A range may be written again while a reader is between its two words of eight bytes, which the kernel copies one by one:
/// each word has a field that tells the range apart, so that no mix of two passes for one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Id of the backend: the index into `backends4` / `backends6`. Never 0 in a range.
    pub backend: u32,
    /// Generation of the range, as in [`Service::generation`].
    pub generation: u32,
    /// Id of the service port that the range belongs to.
    pub service: u32,
    /// The backend's generation when the slot was written.
    pub backend_generation: u32,
}

/// Value of `backends4` / `backends6`: one endpoint of one service port. Index 0 is never used.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Backend<const N: usize> {
    pub address: [u8; N],
    pub port: u16,
    /// [`backend_state`].
    pub state: u8,
    /// [`backend_flags`].
    pub flags: u8,
    /// Changes each time the id is given to another backend, and when the backend is gone. Never 0 once used.
    pub generation: u32,
    /// Id of the service port.
    pub service: u32,
    /// When its flows are evicted, in tenths of a second of `CLOCK_MONOTONIC`; 0: never.
    pub deadline_ds: u32,
    /// Hash of the pod's UID, so that an address that comes back as another pod is known as a new backend. 0: no UID known.
    pub uid_hash: u32,
    pub weight: u16,
    pub pad: u16,
}

/// Values of [`Backend::state`].
pub mod backend_state {
    /// The id is not in use.
    pub const FREE: u8 = 0;
    /// Takes new flows.
    pub const ACTIVE: u8 = 1;
    /// In the API, not ready: no new flows.
    pub const RESTING: u8 = 2;
    /// In the API, terminating: no new flows.
    pub const TERMINATING: u8 = 3;
    /// Gone from every slice: its flows stay until the deadline.
    pub const DRAINING: u8 = 4;
    /// Taken out by hand: no new flows.
    pub const MAINTENANCE: u8 = 5;
    /// The deadline struck: nothing is forwarded any more.
    pub const GONE: u8 = 6;
}

/// Bits of [`Backend::flags`].
pub mod backend_flags {
    /// The endpoint is on this node: the API says so, or its address is one of this node's.
    pub const LOCAL: u8 = 1;
    /// The endpoint serves (EndpointSlice condition `serving`): UDP flows may stay while it rests or terminates.
    pub const SERVING: u8 = 2;
    /// Its active checks fail: no new flows, no probe.
    pub const QUARANTINED: u8 = 4;
    /// It takes new flows of the set of the whole cluster.
    pub const IN_CLUSTER_SET: u8 = 8;
    /// It takes new flows of this node's set.
    pub const IN_LOCAL_SET: u8 = 16;
}

/// Key of `flows4` / `flows6`: the tuple as it stands in the packet before it is rewritten.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowKey<const N: usize> {
    pub src: [u8; N],
    pub dst: [u8; N],
    pub src_port: u16,
    pub dst_port: u16,
    pub protocol: u8,
    pub pad: [u8; 3],
}

impl<const N: usize> FlowKey<N> {
    /// The tuple of a packet that goes the other way.
    #[inline(always)]
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self {
            src: self.dst,
            dst: self.src,
            src_port: self.dst_port,
            dst_port: self.src_port,
            protocol: self.protocol,
            pad: [0; 3],
        }
    }
}

/// Value of `flows4` / `flows6`: what to rewrite, and for whom.
///
/// Forward (client → service): the destination becomes `address:port`, the source `client:client_port`.
/// Reply (backend → client): the source becomes `address:port` (the service's), the destination `client:client_port`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow<const N: usize> {
    /// [`tag`] of the key: LRU elements are recycled while a reader may hold them.
    pub tag: u32,
    /// Id of the backend; 0: a direct connection whose source port had to be translated.
    pub backend: u32,
    /// When the last packet was seen, seconds of `CLOCK_MONOTONIC`.
    pub seen_s: u32,
    /// When the first packet was seen, seconds of `CLOCK_MONOTONIC`.
    pub since_s: u32,
    /// TCP: the client's initial sequence number; SCTP: its initiate tag; UDP: 0.
    pub isn: u32,
    pub address: [u8; N],
    /// Forward: the source address as the backend sees it; the packet's own, unless the flow is masqueraded. Reply: the client's own.
    pub client: [u8; N],
    /// 0: the packet goes unchanged to the node of the backend `address`, in an outer header ([`service_flags::DSR`]).
    pub port: u16,
    /// Forward: the source port as the backend sees it. Reply: the client's own port.
    pub client_port: u16,
    /// Low 16 bits of the backend's generation.
    pub generation: u16,
    /// [`flow_state`].
    pub state: u8,
    /// [`flow_flags`].
    pub flags: u8,
    /// The link by which the packet leaves, past the host's stack, while `fast_path` says so ([`flow_link`]); 0: none. Of both entries of a
    /// flow, or of neither.
    pub link: u32,
}

/// [`Flow::link`] in two parts: the index of the link, and whether the flow leads to another node.
pub mod flow_link {
    /// The bits of the index: of a pod's link, at whose other end the packet is handed over, or of the external one that it leaves by.
    pub const INDEX: u32 = 0x00ff_ffff;
    /// How many external links can be told from each other.
    const WAYS: u32 = 255;

    /// The other bits, of both entries of a flow that leads to another node by this external link. Those of a flow between two pods of
    /// this node are 0.
    #[inline(always)]
    #[must_use]
    pub const fn beyond(external: u32) -> u32 {
        (external % WAYS + 1) << 24
    }

    /// Where the flow leads: 0, or [`beyond`] of its external link.
    #[inline(always)]
    #[must_use]
    pub const fn way(link: u32) -> u32 {
        link & !INDEX
    }

    #[inline(always)]
    #[must_use]
    pub const fn index(link: u32) -> u32 {
        link & INDEX
    }
}

/// Bits of `fast_path`: which flows have one at this moment.
pub mod fast_path {
    /// Between two pods of this node.
    pub const PODS: u32 = 1;
    /// From a pod of this node to another node.
    pub const NODES: u32 = 2;
}

/// Values of [`Flow::state`].
pub mod flow_state {
    /// No answer yet.
    pub const HALF_OPEN: u8 = 1;
    /// Answered.
    pub const OPEN: u8 = 2;
    /// UDP: answered, and asked again after that.
    pub const STREAM: u8 = 3;
    /// TCP, SCTP: an end was seen (FIN, RST; SHUTDOWN, ABORT).
    pub const CLOSING: u8 = 4;
    /// The backend is gone: each side is told at its next segment.
    pub const EVICTED: u8 = 5;
}

/// Bits of [`Flow::flags`].
pub mod flow_flags {
    /// The entry of the reply direction (backend → client).
    pub const REPLY: u8 = 1;
    /// The client's own link has no program: the reply is rewritten at the first hook that sees it, and sent on from there.
    pub const EARLY: u8 = 2;
    /// A direct connection (no service) whose source port is translated, because a service flow owns its tuple.
    pub const DIRECT: u8 = 4;
    /// Forward: the reply entry was given to a direct UDP sender and must be written again.
    pub const REPLY_LOST: u8 = 8;
    /// TCP: the client has ended its direction (FIN), or the connection was reset (RST).
    pub const CLIENT_ENDED: u8 = 16;
    /// TCP: the backend has ended its direction (FIN), or the connection was reset (RST).
    pub const BACKEND_ENDED: u8 = 32;
    /// Both: the connection is over, and another one may take its tuple.
    pub const ENDED: u8 = CLIENT_ENDED | BACKEND_ENDED;
    /// The backend sees another source address than the client's own: one of this node, or, where the backend is the client itself,
    /// the service's.
    pub const MASQUERADED: u8 = 64;
    /// The flow is among its backend's [`Health::connections`].
    pub const COUNTED: u8 = 128;
}

/// Value of `half_open4` / `half_open6`, under the same keys as `flows4` / `flows6`: a flow that nobody has answered.
///
/// Apart from the answered ones, so that a flood of SYNs evicts none of those, answered or not: both entries move there with the client's
/// own segment after the answer (UDP: with the answer).
/// Under a client's tuple whose flow is answered, it holds a SYN that asks for another connection.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HalfOpen<const N: usize> {
    pub flow: Flow<N>,
    /// Backends that left it unanswered or refused it; 0: none.
    pub tried: [u32; MOST_MOVES],
    /// With [`half_open_flags::ANSWERED`]: the sequence numbers of the latest two answers, the latest first (SCTP: initiate tags). One alone
    /// stands twice.
    pub answers: [u32; 2],
    /// SYNs since the flow has its backend, up to 255; UDP: 1.
    pub segments: u8,
    /// How often it was moved to another backend.
    pub moves: u8,
    /// [`half_open_flags`].
    pub flags: u8,
    pub pad: u8,
}

/// How often a flow that nobody answers is moved, at most.
pub const MOST_MOVES: usize = 3;

/// Bits of [`HalfOpen::flags`].
pub mod half_open_flags {
    /// The entry of a reply direction that the flow has left: a late answer is refused, never delivered.
    pub const LEFT: u8 = 1;
    /// Under the tuple of an answered flow: a SYN with another initial sequence number.
    pub const SECOND: u8 = 2;
    /// A refusal was withheld: the next SYN goes to another backend.
    pub const REFUSED: u8 = 4;
    /// Requests and answers both pass the client's link, and its service lets connections move.
    pub const MOVES: u8 = 8;
    /// The backend has accepted the connection: it stays there. What the client sends next must acknowledge one of [`HalfOpen::answers`].
    ///
    /// [`HalfOpen::answers`]: super::HalfOpen::answers
    pub const ANSWERED: u8 = 16;
    /// Its first packet here was no SYN: the entries were lost, or never were. What the backend says shows whether it knows the connection.
    pub const RESUMED: u8 = 32;
}

/// Value of `health4` / `health6`, by backend id: what the programs have seen of a backend. Written by the programs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Health {
    /// The backend's generation; with another one, all of this is about an earlier backend and counts as zero.
    pub generation: u32,
    /// When it last answered a flow's first packet, seconds of `CLOCK_MONOTONIC`; 0: never.
    pub answered_s: u32,
    /// Since when it is suspect: it left a flow unanswered that another backend answered, or refused one; 0: it is not.
    pub suspect_s: u32,
    /// When a new flow was last sent there to see whether it answers again.
    pub probe_s: u32,
    /// UDP: new flows since it last answered one.
    pub unanswered: u32,
    /// Connections counted for [`scheduler::LEAST_CONNECTIONS`]; recounted by the agent.
    pub connections: u32,
}

/// Key of `affinity4` / `affinity6`: a client of a service port with client affinity.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AffinityKey<const N: usize> {
    /// The client; zeroes for processes of a network namespace, whose address is not known at connect.
    pub client: [u8; N],
    /// Id of the service port.
    pub service: u32,
    /// Processes: low half of the cookie of their network namespace. Packets: 0.
    pub netns: u32,
}

/// Value of `affinity4` / `affinity6`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Affinity {
    /// [`affinity_tag`] of the key: LRU elements are recycled while a reader may hold them.
    pub tag: u32,
    pub backend: u32,
    /// The backend's generation.
    pub generation: u32,
    /// When the last connection was made, tenths of a second of `CLOCK_MONOTONIC`.
    pub seen_ds: u32,
}

/// Key of `fragments4` / `fragments6`: a datagram in fragments.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FragmentKey<const N: usize> {
    pub src: [u8; N],
    pub dst: [u8; N],
    pub id: u32,
    pub protocol: u8,
    pub pad: [u8; 3],
}

/// Value of `fragments4` / `fragments6`: what only the first fragment says.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fragment {
    /// [`fragment_tag`] of the key: LRU elements are recycled while a reader may hold them.
    pub tag: u32,
    pub src_port: u16,
    pub dst_port: u16,
    /// When the first fragment was seen, seconds of `CLOCK_MONOTONIC`.
    pub seen_s: u32,
}

/// Value of `traffic4` / `traffic6`, under the keys of `flows4` / `flows6`: counted with `--flow-counters`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Traffic {
    /// As in the [`Flow`]: counts of an earlier flow of the tuple are not this one's.
    pub since_s: u32,
    pub pad: u32,
    pub packets: u64,
    /// Of the network header and what follows it.
    pub bytes: u64,
}

/// Key of `sockets4` / `sockets6`: a host socket and the address that it knows or that answers it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketKey<const N: usize> {
    pub cookie_low: u32,
    pub cookie_high: u32,
    pub address: [u8; N],
    pub port: u16,
    pub protocol: u8,
    /// [`socket_direction`].
    pub direction: u8,
}

/// Values of [`SocketKey::direction`].
pub mod socket_direction {
    /// The key holds the service's address; the value the backend's.
    pub const FORWARD: u8 = 0;
    /// The key holds the backend's address; the value the service's.
    pub const REPLY: u8 = 1;
}

/// Value of `sockets4` / `sockets6`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketPeer<const N: usize> {
    pub address: [u8; N],
    pub port: u16,
    pub pad: u16,
    pub backend: u32,
    pub backend_generation: u32,
    pub service: u32,
}

/// How many pairs of addresses a socket's own record names. A socket that uses more leaves entries to the LRU maps' own eviction.
pub const SOCKET_PAIRS: usize = 8;

/// Value of `socket_entries`, the storage of one socket: which entries of `sockets4` and `sockets6` go with it when it is closed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketEntries {
    pub pairs: [SocketPair; SOCKET_PAIRS],
    /// How many were noted so far; the next one stands at this number modulo [`SOCKET_PAIRS`].
    pub noted: u32,
    pub pad: u32,
}

/// The keys of a socket's two entries. IPv4 addresses stand in the first word.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketPair {
    /// What the process asked for: the key of the forward entry.
    pub service: [u32; 4],
    /// What it got: the key of the reply entry.
    pub backend: [u32; 4],
    pub service_port: u16,
    pub backend_port: u16,
    pub protocol: u8,
    /// 4 or 6; 0: none.
    pub family: u8,
    pub pad: u16,
}

/// Value of `names`, by service port id. Text is NUL-terminated; `i8` is shown as text by `bpftool`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServiceName {
    pub namespace: [i8; 64],
    pub name: [i8; 64],
    pub port_name: [i8; 16],
    pub port: u16,
    pub protocol: u8,
    pub pad: u8,
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

/// Key of `links`: an interface index. Value: what the programs must know of the link.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// Id of the peer's network namespace as this namespace names it (`IFLA_LINK_NETNSID`); -1: not known.
    pub peer_netns_id: i32,
    /// [`link_role`].
    pub role: u32,
    /// [`link_flags`].
    pub flags: u32,
}

/// Key of `bridge_ports`: an address of the link layer, as a bridge knows it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BridgePortKey {
    /// Index of the bridge.
    pub bridge: u32,
    pub address: [u8; 6],
    pub pad: u16,
}

/// Value of `bridge_ports`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BridgePort {
    /// Index of the pod's link that the address is behind.
    pub link: u32,
}

/// Value of `peer_macs`, by index of a pod's link.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerMac {
    /// The address of the link's other end, as the host's neighbour table had it when a flow first led there.
    pub address: [u8; 6],
    pub pad: u16,
}

/// Bits of [`Link::flags`].
pub mod link_flags {
    /// Frames that XDP redirects to this link leave by it: its driver sends them, or XDP is generic.
    pub const XDP_SENDS: u32 = 1;
    /// A pod's link with both programs, whose other end takes packets in its own namespace past this host's stack.
    pub const HANDS_OVER: u32 = 2;
    /// An external link with Ethernet and both programs, by which packets of pods leave past this host's stack.
    pub const SENDS_ON: u32 = 4;
}

/// Values of [`Link::role`].
pub mod link_role {
    pub const POD: u32 = 1;
    pub const BRIDGE: u32 = 2;
    pub const EXTERNAL: u32 = 3;
    pub const TUNNEL: u32 = 4;
}

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
    /// [`hook`].
    pub hook: u8,
    /// 4 or 6.
    pub family: u8,
    pub ifindex: u32,
    pub pad: u32,
}

/// Values of [`Event::hook`].
pub mod hook {
    /// The event is about a backend, whatever packet it was learnt from; it has no addresses.
    pub const NOT_TOLD: u8 = 0;
    pub const POD_IN: u8 = 1;
    pub const POD_OUT: u8 = 2;
    pub const NODE_IN: u8 = 3;
    pub const NODE_OUT: u8 = 4;
    pub const BRIDGE_IN: u8 = 5;
    pub const XDP: u8 = 6;
    pub const SOCKET: u8 = 7;
}

/// A number that changes with every byte of a frontend and of its slot range.
///
/// Hash elements are recycled without a grace period, so a pointer held across a recycle may show another frontend's value, or
/// half of each. A reader copies the value, computes this over its copy and its own key, and looks up again on a mismatch.
#[inline(always)]
pub fn seal<const N: usize>(key: &ServiceKey<N>, service: &Service) -> u32 {
    let mut hash = mix_address(0x9e37_79b9, &key.address);
    hash = mix(hash, (key.port as u32) << 16 | key.protocol as u32);
    hash = mix(hash, service.id);
    hash = mix(hash, service.generation);
    hash = mix(hash, service.slot_base);
    hash = mix(hash, service.slot_count);
    hash = mix(hash, service.outside_base);
    hash = mix(hash, service.outside_count);
    // What decides over admission must not come from another entry either.
    hash = mix(hash, (service.flags as u32) << 8 | service.kind as u32);
    hash = mix(hash, service.rate);
    mix(hash, service.burst)
}

/// A number that tells one tuple's flow entry from another's.
#[inline(always)]
pub fn tag<const N: usize>(key: &FlowKey<N>) -> u32 {
    let mut hash = mix_address(0x85eb_ca6b, &key.src);
    hash = mix_address(hash, &key.dst);
    hash = mix(hash, (key.src_port as u32) << 16 | key.dst_port as u32);
    mix(hash, key.protocol as u32)
}

/// A number that tells one address from another.
#[inline(always)]
pub fn address_tag<const N: usize>(address: &[u8; N]) -> u32 {
    mix_address(0x1656_67b1, address)
}

/// A number that tells one client's affinity from another's.
#[inline(always)]
pub fn affinity_tag<const N: usize>(key: &AffinityKey<N>) -> u32 {
    let hash = mix_address(0xc2b2_ae35, &key.client);
    mix(mix(hash, key.service), key.netns)
}

/// A number that tells one datagram's fragments from another's.
#[inline(always)]
pub fn fragment_tag<const N: usize>(key: &FragmentKey<N>) -> u32 {
    let hash = mix_address(mix_address(0x27d4_eb2f, &key.src), &key.dst);
    mix(mix(hash, key.id), key.protocol as u32)
}

#[inline(always)]
fn mix_address<const N: usize>(mut hash: u32, address: &[u8; N]) -> u32 {
    let mut i = 0;
    while i + 4 <= N {
        hash = mix(hash, u32::from_ne_bytes([address[i], address[i + 1], address[i + 2], address[i + 3]]));
        i += 4;
    }
    hash
}

#[inline(always)]
fn mix(hash: u32, word: u32) -> u32 {
    let product = (hash ^ word).wrapping_mul(0x9e37_79b1);
    product ^ (product >> 15)
}

macro_rules! sizes {
    ($($record:ty = $size:literal),* $(,)?) => {
        $(const _: () = assert!(size_of::<$record>() == $size && align_of::<$record>() <= 8);)*
        #[cfg(feature = "user")]
        mod pod {
            use super::*;
            // SAFETY: repr(C), only plain numbers, no implicit padding (the sizes above are the sums of the fields).
            $(unsafe impl aya::Pod for $record {})*
        }
    };
}

sizes! {
    ServiceKey<4> = 8,
    ServiceKey<16> = 20,
    Service = 44,
    BucketKey = 16,
    Bucket = 8,
    SourceKey<4> = 8,
    SourceKey<16> = 20,
    Source = 4,
    VipKey<4> = 4,
    VipKey<16> = 16,
    Vip = 4,
    NetworkKey<4> = 4,
    NetworkKey<16> = 16,
    Network = 4,
    Masquerade<4> = 16,
    Masquerade<16> = 64,
    EndpointKey<4> = 8,
    EndpointKey<16> = 20,
    Endpoint = 8,
    Slot = 16,
    Backend<4> = 28,
    Backend<16> = 40,
    FlowKey<4> = 16,
    FlowKey<16> = 40,
    Flow<4> = 40,
    Flow<16> = 64,
    HalfOpen<4> = 64,
    HalfOpen<16> = 88,
    Health = 24,
    AffinityKey<4> = 12,
    AffinityKey<16> = 24,
    Affinity = 16,
    FragmentKey<4> = 16,
    FragmentKey<16> = 40,
    Fragment = 12,
    Traffic = 24,
    SocketKey<4> = 16,
    SocketKey<16> = 28,
    SocketPeer<4> = 20,
    SocketPeer<16> = 32,
    SocketPair = 40,
    SocketEntries = 328,
    ServiceName = 148,
    StatKey = 8,
    Link = 12,
    BridgePortKey = 12,
    BridgePort = 4,
    PeerMac = 8,
    Config = 16,
    LoadSettings = 28,
    Event = 64,
    crate::service_cidrs::Cover = 36,
}
