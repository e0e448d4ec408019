//! The maps, as `bpftool` shows them. Capacities are defaults; the agent may load others.

use core::ptr::null_mut;

use aya_ebpf::Global;
use aya_ebpf::bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC, bpf_sock_addr};
use aya_ebpf::btf_maps::lpm_trie::Key;
use aya_ebpf::btf_maps::{
    Array, HashMap, LpmTrie, LruHashMap, PerCpuArray, PerCpuHashMap, ProgramArray, RingBuf, SkStorage,
};
use aya_ebpf::helpers::generated::bpf_sk_storage_get;
use aya_ebpf::macros::btf_map;
use lb_common::abi::{
    Affinity, AffinityKey, Backend, BridgePort, BridgePortKey, Bucket, BucketKey, Config, ConnectKey, ConnectTimes,
    Endpoint, EndpointKey, Event, Flow, FlowKey, Fragment, FragmentKey, HalfOpen, Health, Link, LoadSettings,
    Masquerade, Network, NetworkKey, PeerMac, SOURCE_SERVICE_BITS, Service, ServiceKey, ServiceName, Slot,
    SocketEntries, SocketKey, SocketPeer, Source, SourceKey, StatKey, Traffic, UDP, Vip, VipKey,
};
use lb_common::client_shares;
use lb_common::limits;
use lb_common::service_cidrs::{Cover, FAMILIES};
use lb_common::stages::{TcStage, XdpStage};
use lb_common::switch;
use lb_common::vip_filter;

use crate::scratch::{Scratch, SocketScratch};

/// Elements are allocated as they are used: an idle node pays for what it holds.
const ON_DEMAND: usize = BPF_F_NO_PREALLOC as usize;
/// The agent changes single words of what programs write at the same time.
const SHARED: usize = BPF_F_MMAPABLE as usize;

#[btf_map(name = "services4")]
pub static SERVICES4: HashMap<ServiceKey<4>, Service, { limits::SERVICES as usize }, ON_DEMAND> = HashMap::new();
#[btf_map(name = "services6")]
pub static SERVICES6: HashMap<ServiceKey<16>, Service, { limits::SERVICES as usize }, ON_DEMAND> = HashMap::new();
#[btf_map(name = "slots")]
pub static SLOTS: Array<Slot, { limits::SLOTS as usize }> = Array::new();
#[btf_map(name = "backends4")]
pub static BACKENDS4: Array<Backend<4>, { limits::BACKENDS as usize }> = Array::new();
#[btf_map(name = "backends6")]
pub static BACKENDS6: Array<Backend<16>, { limits::BACKENDS as usize }> = Array::new();
#[btf_map(name = "flows4")]
pub static FLOWS4: HashMap<FlowKey<4>, Flow<4>, { limits::FLOWS4 as usize }> = HashMap::new();
#[btf_map(name = "flows6")]
pub static FLOWS6: HashMap<FlowKey<16>, Flow<16>, { limits::FLOWS6 as usize }> = HashMap::new();
#[btf_map(name = "udp_flows4")]
pub static UDP_FLOWS4: LruHashMap<FlowKey<4>, Flow<4>, { limits::UDP_FLOWS as usize }> = LruHashMap::new();
#[btf_map(name = "udp_flows6")]
pub static UDP_FLOWS6: LruHashMap<FlowKey<16>, Flow<16>, { limits::UDP_FLOWS as usize }> = LruHashMap::new();
#[btf_map(name = "sockets4")]
pub static SOCKETS4: LruHashMap<SocketKey<4>, SocketPeer<4>, { limits::SOCKETS as usize }> = LruHashMap::new();
#[btf_map(name = "sockets6")]
pub static SOCKETS6: LruHashMap<SocketKey<16>, SocketPeer<16>, { limits::SOCKETS as usize }> = LruHashMap::new();
/// Goes with its socket by itself.
#[btf_map(name = "socket_entries")]
pub static SOCKET_ENTRIES: SkStorage<SocketEntries> = SkStorage::new();
/// Written by the agent only: inspection works with the agent dead.
#[btf_map(name = "names")]
pub static NAMES: HashMap<u32, ServiceName, { limits::NAMES as usize }, ON_DEMAND> = HashMap::new();
#[btf_map(name = "outcomes")]
pub static OUTCOMES: PerCpuArray<u64, { limits::OUTCOMES as usize }> = PerCpuArray::new();
#[btf_map(name = "stats")]
pub static STATS: PerCpuHashMap<StatKey, u64, { limits::STATS as usize }, ON_DEMAND> = PerCpuHashMap::new();
/// Of backends that have answered a SYN. All CPUs share a histogram, as one for each would take 64 times the room on 64 CPUs. Capacity
/// [`limits::CONNECT_TIMES`] with `--connect-times on`, else 1.
#[btf_map(name = "connect_times")]
pub static CONNECT_TIMES: HashMap<ConnectKey, ConnectTimes, 1, ON_DEMAND> = HashMap::new();
#[btf_map(name = "events")]
pub static EVENTS: RingBuf<Event, { limits::EVENTS_BYTES as usize }> = RingBuf::new();
#[btf_map(name = "links")]
pub static LINKS: HashMap<u32, Link, { limits::LINKS as usize }, ON_DEMAND> = HashMap::new();
#[btf_map(name = "config")]
pub static CONFIG: Array<Config, 1> = Array::new();
/// The layout of all of these, as text: written by the agent that makes them, read by one of another version.
#[btf_map(name = "layout")]
pub static LAYOUT: Array<[i8; limits::LAYOUT_BYTES], 1> = Array::new();
/// Written by who loads the programs: its readers know what these were loaded with also when no agent runs.
#[btf_map(name = "settings")]
pub static SETTINGS: Array<LoadSettings, 1> = Array::new();

/// Which flows have a fast path, and until when ([`lb_common::abi::fast_path`]). One word, so that all links see it change at once.
#[btf_map(name = "fast_path")]
pub static FAST_PATH: Array<u32, 1> = Array::new();
/// Behind which of its ports a bridge finds a pod: known by the agent.
#[btf_map(name = "bridge_ports")]
pub static BRIDGE_PORTS: HashMap<BridgePortKey, BridgePort, { limits::LINKS as usize }, ON_DEMAND> = HashMap::new();
#[btf_map(name = "peer_macs")]
pub static PEER_MACS: HashMap<u32, PeerMac, { limits::LINKS as usize }, ON_DEMAND> = HashMap::new();

#[btf_map(name = "sources4")]
pub static SOURCES4: LpmTrie<SourceKey<4>, Source, { limits::SOURCES as usize }> = LpmTrie::new();
#[btf_map(name = "sources6")]
pub static SOURCES6: LpmTrie<SourceKey<16>, Source, { limits::SOURCES as usize }> = LpmTrie::new();
#[btf_map(name = "vips4")]
pub static VIPS4: HashMap<VipKey<4>, Vip, { limits::VIPS as usize }, ON_DEMAND> = HashMap::new();
#[btf_map(name = "vips6")]
pub static VIPS6: HashMap<VipKey<16>, Vip, { limits::VIPS as usize }, ON_DEMAND> = HashMap::new();

/// Bits of destinations that are certainly no service's; the agent writes them word by word, in memory that both share.
#[btf_map(name = "vip_filter")]
pub static VIP_FILTER: Array<[u64; vip_filter::WORDS], 1, SHARED> = Array::new();

/// Until when segments of unknown connections are left to the host's stack, seconds of `CLOCK_MONOTONIC`; 0: never. Written once, by the
/// agent that makes the tables.
#[btf_map(name = "adoption")]
pub static ADOPTION: Array<u32, 1> = Array::new();

/// What most packets need not be looked for in `networks4`, `networks6`: the element of each family, by `service_cidrs::index`.
#[btf_map(name = "service_cidrs")]
pub static SERVICE_CIDRS: Array<Cover, FAMILIES> = Array::new();
#[btf_map(name = "networks4")]
pub static NETWORKS4: LpmTrie<NetworkKey<4>, Network, { limits::NETWORKS as usize }> = LpmTrie::new();
#[btf_map(name = "networks6")]
pub static NETWORKS6: LpmTrie<NetworkKey<16>, Network, { limits::NETWORKS as usize }> = LpmTrie::new();
#[btf_map(name = "masquerade4")]
pub static MASQUERADE4: HashMap<u32, Masquerade<4>, { limits::LINKS as usize }, ON_DEMAND> = HashMap::new();
#[btf_map(name = "masquerade6")]
pub static MASQUERADE6: HashMap<u32, Masquerade<16>, { limits::LINKS as usize }, ON_DEMAND> = HashMap::new();

#[btf_map(name = "endpoints4")]
pub static ENDPOINTS4: HashMap<EndpointKey<4>, Endpoint, { limits::ENDPOINTS as usize }, ON_DEMAND> = HashMap::new();
#[btf_map(name = "endpoints6")]
pub static ENDPOINTS6: HashMap<EndpointKey<16>, Endpoint, { limits::ENDPOINTS as usize }, ON_DEMAND> = HashMap::new();

#[btf_map(name = "half_open4")]
pub static HALF_OPEN4: LruHashMap<FlowKey<4>, HalfOpen<4>, { limits::HALF_OPEN as usize }> = LruHashMap::new();
#[btf_map(name = "half_open6")]
pub static HALF_OPEN6: LruHashMap<FlowKey<16>, HalfOpen<16>, { limits::HALF_OPEN as usize }> = LruHashMap::new();
/// Capacity as that of `backends4`.
#[btf_map(name = "health4")]
pub static HEALTH4: Array<Health, { limits::BACKENDS as usize }, SHARED> = Array::new();
/// Capacity as that of `backends6`.
#[btf_map(name = "health6")]
pub static HEALTH6: Array<Health, { limits::BACKENDS as usize }, SHARED> = Array::new();
/// How many established connections each client has, by [`lb_common::client_shares::Counters`]. The agent corrects them.
#[btf_map(name = "client_shares")]
pub static CLIENT_SHARES: Array<u32, { client_shares::COUNTERS as usize }, SHARED> = Array::new();
#[btf_map(name = "affinity4")]
pub static AFFINITY4: LruHashMap<AffinityKey<4>, Affinity, { limits::AFFINITY as usize }> = LruHashMap::new();
#[btf_map(name = "affinity6")]
pub static AFFINITY6: LruHashMap<AffinityKey<16>, Affinity, { limits::AFFINITY as usize }> = LruHashMap::new();
#[btf_map(name = "round_robin")]
pub static ROUND_ROBIN: Array<u64, { limits::ROUND_ROBIN as usize }> = Array::new();
#[btf_map(name = "fragments4")]
pub static FRAGMENTS4: LruHashMap<FragmentKey<4>, Fragment, { limits::FRAGMENTS as usize }> = LruHashMap::new();
#[btf_map(name = "fragments6")]
pub static FRAGMENTS6: LruHashMap<FragmentKey<16>, Fragment, { limits::FRAGMENTS as usize }> = LruHashMap::new();
/// Capacity as that of `flows4` with `--flow-counters`, else 1.
#[btf_map(name = "traffic4")]
pub static TRAFFIC4: LruHashMap<FlowKey<4>, Traffic, 1> = LruHashMap::new();
/// Capacity as that of `flows6` with `--flow-counters`, else 1.
#[btf_map(name = "traffic6")]
pub static TRAFFIC6: LruHashMap<FlowKey<16>, Traffic, 1> = LruHashMap::new();

/// The most bytes of a packet that a refusal quotes: whole words, and all ones in binary but for them, so that a mask bounds a length.
pub const MOST_QUOTED: usize = 508;

/// Half-open flows that this CPU has made in a second: which one, how many.
#[btf_map(name = "syn_counts")]
pub static SYN_COUNTS: PerCpuArray<[u32; 2], 1> = PerCpuArray::new();
#[btf_map(name = "syn_rate")]
pub static SYN_RATE: Array<u64, 1> = Array::new();
/// Until when they are too many, seconds of `CLOCK_MONOTONIC`. Not pinned: new programs count for themselves.
#[btf_map(name = "flood_until")]
pub static FLOOD_UNTIL: Array<u32, 1> = Array::new();

/// Not pinned: new programs begin with full buckets.
#[btf_map(name = "buckets")]
pub static BUCKETS: LruHashMap<BucketKey, Bucket, { limits::BUCKETS as usize }> = LruHashMap::new();

/// When each CPU may write the next event record of an outcome, and, from the index [`limits::OUTCOMES`] on, originate the next answer,
/// nanoseconds of `CLOCK_MONOTONIC`. Not pinned: new programs begin with full buckets.
#[btf_map(name = "cpu_buckets")]
pub static CPU_BUCKETS: PerCpuArray<u64, { 2 * limits::OUTCOMES as usize }> = PerCpuArray::new();

/// Room for a quoted packet.
#[btf_map(name = "quote")]
pub static QUOTE: PerCpuArray<[u8; 512], 1> = PerCpuArray::new();

/// What the programs that handle one packet hand on to each other: tc and XDP programs run to their end before another starts on the same
/// CPU.
#[btf_map(name = "scratch4")]
pub static SCRATCH4: PerCpuArray<Scratch<4>, 1> = PerCpuArray::new();
#[btf_map(name = "scratch6")]
pub static SCRATCH6: PerCpuArray<Scratch<16>, 1> = PerCpuArray::new();

/// The same for a call of a socket: another task's call may interrupt it on its CPU, but none of the same socket, which the kernel has locked.
#[btf_map(name = "socket_scratch")]
pub static SOCKET_SCRATCH: SkStorage<SocketScratch<16>> = SkStorage::new();

/// The programs that tc programs tail call, by [`TcStage::slot`].
#[btf_map(name = "tc_programs")]
pub static TC_PROGRAMS: ProgramArray<{ TcStage::SLOTS }> = ProgramArray::new();
/// The programs that the XDP program tail calls, by [`XdpStage::slot`].
#[btf_map(name = "xdp_programs")]
pub static XDP_PROGRAMS: ProgramArray<{ XdpStage::SLOTS }> = ProgramArray::new();

/// What every gate does ([`switch::word`]).
#[btf_map(name = "switch_word")]
pub static SWITCH_WORD: Array<u32, 1> = Array::new();
/// The entry programs of the old and of the new set at tc ([`switch::old_slot`], [`switch::new_slot`]).
#[btf_map(name = "switch_tc")]
pub static SWITCH_TC: ProgramArray<{ switch::SLOTS }> = ProgramArray::new();
/// The same at XDP.
#[btf_map(name = "switch_xdp")]
pub static SWITCH_XDP: ProgramArray<{ switch::SLOTS }> = ProgramArray::new();

/// Tables of the old set. Gates ask whether a key is there. Of a value they read one byte, at [`OLD_STATE_AT4`]: it may have another layout than is
/// declared here.
#[btf_map(name = "old_flows4")]
pub static OLD_FLOWS4: HashMap<FlowKey<4>, u32, 1> = HashMap::new();
#[btf_map(name = "old_flows6")]
pub static OLD_FLOWS6: HashMap<FlowKey<16>, u32, 1> = HashMap::new();
#[btf_map(name = "old_udp_flows4")]
pub static OLD_UDP_FLOWS4: LruHashMap<FlowKey<4>, u32, 1> = LruHashMap::new();
#[btf_map(name = "old_udp_flows6")]
pub static OLD_UDP_FLOWS6: LruHashMap<FlowKey<16>, u32, 1> = LruHashMap::new();
#[btf_map(name = "old_half_open4")]
pub static OLD_HALF_OPEN4: LruHashMap<FlowKey<4>, u32, 1> = LruHashMap::new();
#[btf_map(name = "old_half_open6")]
pub static OLD_HALF_OPEN6: LruHashMap<FlowKey<16>, u32, 1> = LruHashMap::new();
#[btf_map(name = "old_fragments4")]
pub static OLD_FRAGMENTS4: LruHashMap<FragmentKey<4>, u32, 1> = LruHashMap::new();
#[btf_map(name = "old_fragments6")]
pub static OLD_FRAGMENTS6: LruHashMap<FragmentKey<16>, u32, 1> = LruHashMap::new();

/// Offset of [`lb_common::abi::Flow::state`] in the records of `old_half_open4` and `old_half_open6`. Set when gates are loaded.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
static OLD_STATE_AT4: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
static OLD_STATE_AT6: Global<u32> = Global::new(0);

/// The scratch record of the socket of this call. With the flag `BPF_SK_STORAGE_GET_F_CREATE` it is made if it is missing.
#[inline(always)]
pub fn socket_scratch<const N: usize>(
    context: *mut bpf_sock_addr,
    flags: u32,
) -> Option<&'static mut SocketScratch<N>> {
    // SAFETY: a word of the context, read as a word: the socket, never null in this hook. The record has room for either family, and all
    // zeroes is a valid value of it. The kernel holds the socket's lock: there is one user at a time.
    unsafe {
        let socket = (&raw const (*context).__bindgen_anon_1.sk).read_volatile();
        let map = (&raw const SOCKET_SCRATCH).cast_mut().cast();
        bpf_sk_storage_get(map, socket.cast(), null_mut(), u64::from(flags)).cast::<SocketScratch<N>>().as_mut()
    }
}

/// The maps, by address family.
pub struct Maps;

/// The maps of one address family.
pub trait Family<const N: usize> {
    fn services() -> &'static HashMap<ServiceKey<N>, Service, { limits::SERVICES as usize }, ON_DEMAND>;
    fn scratch() -> Option<&'static mut Scratch<N>>;
    fn backend(id: u32) -> Option<&'static Backend<N>>;
    fn flow(key: &FlowKey<N>) -> Option<*mut Flow<N>>;
    fn insert_flow(key: &FlowKey<N>, flow: &Flow<N>, flags: u64) -> Result<(), i32>;
    fn remove_flow(key: &FlowKey<N>);
    fn admitted(key: &SourceKey<N>) -> bool;
    fn half_open(key: &FlowKey<N>) -> Option<*mut HalfOpen<N>>;
    fn insert_half_open(key: &FlowKey<N>, entry: &HalfOpen<N>, flags: u64) -> Result<(), i32>;
    fn remove_half_open(key: &FlowKey<N>);
    fn health(backend: u32) -> Option<*mut Health>;
    fn affinity(key: &AffinityKey<N>) -> Option<*mut Affinity>;
    fn insert_affinity(key: &AffinityKey<N>, affinity: &Affinity);
    fn vip(key: &VipKey<N>) -> Option<Vip>;
    fn network(address: &[u8; N]) -> u32;
    fn masquerade(ifindex: u32) -> Option<&'static Masquerade<N>>;
    fn endpoint(key: &EndpointKey<N>) -> Option<Endpoint>;
    fn traffic(key: &FlowKey<N>) -> Option<*mut Traffic>;
    fn insert_traffic(key: &FlowKey<N>, traffic: &Traffic);
    fn socket(key: &SocketKey<N>) -> Option<SocketPeer<N>>;
    fn insert_socket(key: &SocketKey<N>, peer: &SocketPeer<N>);
    fn remove_socket(key: &SocketKey<N>);
    fn fragment(key: &FragmentKey<N>) -> Option<Fragment>;
    fn insert_fragment(key: &FragmentKey<N>, fragment: &Fragment);
    /// Whether the old set has an established connection, or one of UDP.
    fn is_in_old_flows(key: &FlowKey<N>) -> bool;
    /// State of the entry in the old set's table of handshakes and retained connections.
    fn old_half_open_state(key: &FlowKey<N>) -> Option<u8>;
    fn is_in_old_fragments(key: &FragmentKey<N>) -> bool;
}

macro_rules! family {
    ($n:literal, $services:ident, $backends:ident, $flows:ident, $udp_flows:ident, $sources:ident, $sockets:ident, $scratch:ident,
     $half_open:ident, $health:ident, $affinity:ident, $vips:ident, $traffic:ident,
     $networks:ident, $masquerade:ident, $endpoints:ident, $fragments:ident,
     $old_flows:ident, $old_udp_flows:ident, $old_half_open:ident, $old_state_at:ident, $old_fragments:ident) => {
        impl Family<$n> for Maps {
            #[inline(always)]
            fn services() -> &'static HashMap<ServiceKey<$n>, Service, { limits::SERVICES as usize }, ON_DEMAND> {
                &$services
            }
            #[inline(always)]
            fn scratch() -> Option<&'static mut Scratch<$n>> {
                // SAFETY: this CPU's own element, used by one program at a time.
                $scratch.get_ptr_mut(0).map(|scratch| unsafe { &mut *scratch })
            }
            #[inline(always)]
            fn backend(id: u32) -> Option<&'static Backend<$n>> {
                $backends.get(id)
            }
            #[inline(always)]
            fn flow(key: &FlowKey<$n>) -> Option<*mut Flow<$n>> {
                if key.protocol == UDP { $udp_flows.get_ptr_mut(key) } else { $flows.get_ptr_mut(key) }
            }
            #[inline(always)]
            fn insert_flow(key: &FlowKey<$n>, flow: &Flow<$n>, flags: u64) -> Result<(), i32> {
                if key.protocol == UDP { $udp_flows.insert(key, flow, flags) } else { $flows.insert(key, flow, flags) }
            }
            #[inline(always)]
            fn remove_flow(key: &FlowKey<$n>) {
                // Gone already is as good.
                let _ = if key.protocol == UDP { $udp_flows.remove(key) } else { $flows.remove(key) };
            }
            #[inline(always)]
            fn admitted(key: &SourceKey<$n>) -> bool {
                // The service must match whole. A recycled element may show another one's id: denied, the next try finds its own.
                $sources
                    .get(&Key::new(SOURCE_SERVICE_BITS + 8 * $n, *key))
                    .is_some_and(|source| source.service == key.service)
            }
            #[inline(always)]
            fn half_open(key: &FlowKey<$n>) -> Option<*mut HalfOpen<$n>> {
                $half_open.get_ptr_mut(key)
            }
            #[inline(always)]
            fn insert_half_open(key: &FlowKey<$n>, entry: &HalfOpen<$n>, flags: u64) -> Result<(), i32> {
                $half_open.insert(key, entry, flags)
            }
            #[inline(always)]
            fn remove_half_open(key: &FlowKey<$n>) {
                let _ = $half_open.remove(key);
            }
            #[inline(always)]
            fn health(backend: u32) -> Option<*mut Health> {
                $health.get_ptr_mut(backend)
            }
            #[inline(always)]
            fn affinity(key: &AffinityKey<$n>) -> Option<*mut Affinity> {
                $affinity.get_ptr_mut(key)
            }
            #[inline(always)]
            fn insert_affinity(key: &AffinityKey<$n>, affinity: &Affinity) {
                // A full LRU map makes room by itself.
                let _ = $affinity.insert(key, affinity, 0);
            }
            #[inline(always)]
            fn vip(key: &VipKey<$n>) -> Option<Vip> {
                // SAFETY: one word, copied at once.
                unsafe { $vips.get(key) }.copied()
            }
            #[inline(always)]
            fn network(address: &[u8; $n]) -> u32 {
                // One word, copied at once.
                $networks.get(&Key::new(8 * $n, NetworkKey { address: *address })).map_or(0, |network| network.flags)
            }
            #[inline(always)]
            fn masquerade(ifindex: u32) -> Option<&'static Masquerade<$n>> {
                // SAFETY: copied at once by who asks; a record is replaced as a whole.
                unsafe { $masquerade.get(&ifindex) }
            }
            #[inline(always)]
            fn endpoint(key: &EndpointKey<$n>) -> Option<Endpoint> {
                // SAFETY: copied at once; a recycled element shows another backend, whose service is compared.
                unsafe { $endpoints.get(key) }.copied()
            }
            #[inline(always)]
            fn traffic(key: &FlowKey<$n>) -> Option<*mut Traffic> {
                $traffic.get_ptr_mut(key)
            }
            #[inline(always)]
            fn insert_traffic(key: &FlowKey<$n>, traffic: &Traffic) {
                // A full LRU map makes room by itself.
                let _ = $traffic.insert(key, traffic, 0);
            }
            #[inline(always)]
            fn socket(key: &SocketKey<$n>) -> Option<SocketPeer<$n>> {
                // SAFETY: the value is copied at once; a recycled element shows at worst another socket's peer, whose
                // backend is checked by its generation.
                unsafe { $sockets.get(key) }.copied()
            }
            #[inline(always)]
            fn insert_socket(key: &SocketKey<$n>, peer: &SocketPeer<$n>) {
                // A full LRU map makes room by itself.
                let _ = $sockets.insert(key, peer, 0);
            }
            #[inline(always)]
            fn remove_socket(key: &SocketKey<$n>) {
                let _ = $sockets.remove(key);
            }
            #[inline(always)]
            fn fragment(key: &FragmentKey<$n>) -> Option<Fragment> {
                // SAFETY: copied at once, and the tag tells whether it is the key's.
                unsafe { $fragments.get(key) }.copied()
            }
            #[inline(always)]
            fn insert_fragment(key: &FragmentKey<$n>, fragment: &Fragment) {
                // A full LRU map makes room by itself.
                let _ = $fragments.insert(key, fragment, 0);
            }
            #[inline(always)]
            fn is_in_old_flows(key: &FlowKey<$n>) -> bool {
                if key.protocol == UDP {
                    $old_udp_flows.get_ptr(key).is_some()
                } else {
                    $old_flows.get_ptr(key).is_some()
                }
            }
            #[inline(always)]
            fn old_half_open_state(key: &FlowKey<$n>) -> Option<u8> {
                let record: *const u8 = $old_half_open.get_ptr(key)?.cast();
                // SAFETY: the agent sets an offset within the record, and the verifier checks it.
                Some(unsafe { record.add($old_state_at.load() as usize).read_volatile() })
            }
            #[inline(always)]
            fn is_in_old_fragments(key: &FragmentKey<$n>) -> bool {
                $old_fragments.get_ptr(key).is_some()
            }
        }
    };
}

family!(
    4,
    SERVICES4,
    BACKENDS4,
    FLOWS4,
    UDP_FLOWS4,
    SOURCES4,
    SOCKETS4,
    SCRATCH4,
    HALF_OPEN4,
    HEALTH4,
    AFFINITY4,
    VIPS4,
    TRAFFIC4,
    NETWORKS4,
    MASQUERADE4,
    ENDPOINTS4,
    FRAGMENTS4,
    OLD_FLOWS4,
    OLD_UDP_FLOWS4,
    OLD_HALF_OPEN4,
    OLD_STATE_AT4,
    OLD_FRAGMENTS4
);
family!(
    16,
    SERVICES6,
    BACKENDS6,
    FLOWS6,
    UDP_FLOWS6,
    SOURCES6,
    SOCKETS6,
    SCRATCH6,
    HALF_OPEN6,
    HEALTH6,
    AFFINITY6,
    VIPS6,
    TRAFFIC6,
    NETWORKS6,
    MASQUERADE6,
    ENDPOINTS6,
    FRAGMENTS6,
    OLD_FLOWS6,
    OLD_UDP_FLOWS6,
    OLD_HALF_OPEN6,
    OLD_STATE_AT6,
    OLD_FRAGMENTS6
);
