//! The maps, made of their declaration ([`lb_common::maps`]), and the access to those that each address family has.

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

/// A static for each map.
macro_rules! statics {
    ($($section:ident {
        $($(#[doc = $doc:literal])* $constant:ident = $name:literal: $kind:ident<$($record:ty),*>
            $([$capacity:expr $(, $flags:ident)?])? $(, $nature:ident $(($family:ident))? $($mark:ident)*)?;)*
    })*) => {
        $($(
            $(#[doc = $doc])*
            #[btf_map(name = $name)]
            pub static $constant: $kind<$($record,)* $({ $capacity as usize } $(, $flags)?)?> = $kind::new();
        )*)*
    };
}

lb_common::for_each_map!(statics);

/// The most bytes of a packet that a refusal quotes: whole words, and all ones in binary but for them, so that a mask bounds a length.
pub const MOST_QUOTED: usize = 508;

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
    fn service(key: &ServiceKey<N>) -> Option<&'static Service>;
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

/// The maps of IPv4 by the names that those of both families have.
mod ipv4 {
    pub(super) use super::{
        AFFINITY4 as AFFINITY, BACKENDS4 as BACKENDS, ENDPOINTS4 as ENDPOINTS, FLOWS4 as FLOWS,
        FRAGMENTS4 as FRAGMENTS, HALF_OPEN4 as HALF_OPEN, HEALTH4 as HEALTH, MASQUERADE4 as MASQUERADE,
        NETWORKS4 as NETWORKS, OLD_FLOWS4 as OLD_FLOWS, OLD_FRAGMENTS4 as OLD_FRAGMENTS,
        OLD_HALF_OPEN4 as OLD_HALF_OPEN, OLD_STATE_AT4 as OLD_STATE_AT, OLD_UDP_FLOWS4 as OLD_UDP_FLOWS,
        SCRATCH4 as SCRATCH, SERVICES4 as SERVICES, SOCKETS4 as SOCKETS, SOURCES4 as SOURCES, TRAFFIC4 as TRAFFIC,
        UDP_FLOWS4 as UDP_FLOWS, VIPS4 as VIPS,
    };
}

/// The same of IPv6.
mod ipv6 {
    pub(super) use super::{
        AFFINITY6 as AFFINITY, BACKENDS6 as BACKENDS, ENDPOINTS6 as ENDPOINTS, FLOWS6 as FLOWS,
        FRAGMENTS6 as FRAGMENTS, HALF_OPEN6 as HALF_OPEN, HEALTH6 as HEALTH, MASQUERADE6 as MASQUERADE,
        NETWORKS6 as NETWORKS, OLD_FLOWS6 as OLD_FLOWS, OLD_FRAGMENTS6 as OLD_FRAGMENTS,
        OLD_HALF_OPEN6 as OLD_HALF_OPEN, OLD_STATE_AT6 as OLD_STATE_AT, OLD_UDP_FLOWS6 as OLD_UDP_FLOWS,
        SCRATCH6 as SCRATCH, SERVICES6 as SERVICES, SOCKETS6 as SOCKETS, SOURCES6 as SOURCES, TRAFFIC6 as TRAFFIC,
        UDP_FLOWS6 as UDP_FLOWS, VIPS6 as VIPS,
    };
}

macro_rules! family {
    ($n:literal, $maps:ident) => {
        impl Family<$n> for Maps {
            #[inline(always)]
            fn service(key: &ServiceKey<$n>) -> Option<&'static Service> {
                // SAFETY: copied at once by who asks; the seal tells whether the copy is whole and belongs to the key.
                unsafe { $maps::SERVICES.get(key) }
            }
            #[inline(always)]
            fn scratch() -> Option<&'static mut Scratch<$n>> {
                // SAFETY: this CPU's own element, used by one program at a time.
                $maps::SCRATCH.get_ptr_mut(0).map(|scratch| unsafe { &mut *scratch })
            }
            #[inline(always)]
            fn backend(id: u32) -> Option<&'static Backend<$n>> {
                $maps::BACKENDS.get(id)
            }
            #[inline(always)]
            fn flow(key: &FlowKey<$n>) -> Option<*mut Flow<$n>> {
                if key.protocol == UDP { $maps::UDP_FLOWS.get_ptr_mut(key) } else { $maps::FLOWS.get_ptr_mut(key) }
            }
            #[inline(always)]
            fn insert_flow(key: &FlowKey<$n>, flow: &Flow<$n>, flags: u64) -> Result<(), i32> {
                if key.protocol == UDP {
                    $maps::UDP_FLOWS.insert(key, flow, flags)
                } else {
                    $maps::FLOWS.insert(key, flow, flags)
                }
            }
            #[inline(always)]
            fn remove_flow(key: &FlowKey<$n>) {
                // Gone already is as good.
                let _ = if key.protocol == UDP { $maps::UDP_FLOWS.remove(key) } else { $maps::FLOWS.remove(key) };
            }
            #[inline(always)]
            fn admitted(key: &SourceKey<$n>) -> bool {
                // The service must match whole. A recycled element may show another one's id: denied, the next try finds its own.
                $maps::SOURCES
                    .get(&Key::new(SOURCE_SERVICE_BITS + 8 * $n, *key))
                    .is_some_and(|source| source.service == key.service)
            }
            #[inline(always)]
            fn half_open(key: &FlowKey<$n>) -> Option<*mut HalfOpen<$n>> {
                $maps::HALF_OPEN.get_ptr_mut(key)
            }
            #[inline(always)]
            fn insert_half_open(key: &FlowKey<$n>, entry: &HalfOpen<$n>, flags: u64) -> Result<(), i32> {
                $maps::HALF_OPEN.insert(key, entry, flags)
            }
            #[inline(always)]
            fn remove_half_open(key: &FlowKey<$n>) {
                let _ = $maps::HALF_OPEN.remove(key);
            }
            #[inline(always)]
            fn health(backend: u32) -> Option<*mut Health> {
                $maps::HEALTH.get_ptr_mut(backend)
            }
            #[inline(always)]
            fn affinity(key: &AffinityKey<$n>) -> Option<*mut Affinity> {
                $maps::AFFINITY.get_ptr_mut(key)
            }
            #[inline(always)]
            fn insert_affinity(key: &AffinityKey<$n>, affinity: &Affinity) {
                // A full LRU map makes room by itself.
                let _ = $maps::AFFINITY.insert(key, affinity, 0);
            }
            #[inline(always)]
            fn vip(key: &VipKey<$n>) -> Option<Vip> {
                // SAFETY: one word, copied at once.
                unsafe { $maps::VIPS.get(key) }.copied()
            }
            #[inline(always)]
            fn network(address: &[u8; $n]) -> u32 {
                // One word, copied at once.
                $maps::NETWORKS
                    .get(&Key::new(8 * $n, NetworkKey { address: *address }))
                    .map_or(0, |network| network.flags)
            }
            #[inline(always)]
            fn masquerade(ifindex: u32) -> Option<&'static Masquerade<$n>> {
                // SAFETY: copied at once by who asks; a record is replaced as a whole.
                unsafe { $maps::MASQUERADE.get(&ifindex) }
            }
            #[inline(always)]
            fn endpoint(key: &EndpointKey<$n>) -> Option<Endpoint> {
                // SAFETY: copied at once; a recycled element shows another backend, whose service is compared.
                unsafe { $maps::ENDPOINTS.get(key) }.copied()
            }
            #[inline(always)]
            fn traffic(key: &FlowKey<$n>) -> Option<*mut Traffic> {
                $maps::TRAFFIC.get_ptr_mut(key)
            }
            #[inline(always)]
            fn insert_traffic(key: &FlowKey<$n>, traffic: &Traffic) {
                // A full LRU map makes room by itself.
                let _ = $maps::TRAFFIC.insert(key, traffic, 0);
            }
            #[inline(always)]
            fn socket(key: &SocketKey<$n>) -> Option<SocketPeer<$n>> {
                // SAFETY: the value is copied at once; a recycled element shows at worst another socket's peer, whose
                // backend is checked by its generation.
                unsafe { $maps::SOCKETS.get(key) }.copied()
            }
            #[inline(always)]
            fn insert_socket(key: &SocketKey<$n>, peer: &SocketPeer<$n>) {
                // A full LRU map makes room by itself.
                let _ = $maps::SOCKETS.insert(key, peer, 0);
            }
            #[inline(always)]
            fn remove_socket(key: &SocketKey<$n>) {
                let _ = $maps::SOCKETS.remove(key);
            }
            #[inline(always)]
            fn fragment(key: &FragmentKey<$n>) -> Option<Fragment> {
                // SAFETY: copied at once, and the tag tells whether it is the key's.
                unsafe { $maps::FRAGMENTS.get(key) }.copied()
            }
            #[inline(always)]
            fn insert_fragment(key: &FragmentKey<$n>, fragment: &Fragment) {
                // A full LRU map makes room by itself.
                let _ = $maps::FRAGMENTS.insert(key, fragment, 0);
            }
            #[inline(always)]
            fn is_in_old_flows(key: &FlowKey<$n>) -> bool {
                if key.protocol == UDP {
                    $maps::OLD_UDP_FLOWS.get_ptr(key).is_some()
                } else {
                    $maps::OLD_FLOWS.get_ptr(key).is_some()
                }
            }
            #[inline(always)]
            fn old_half_open_state(key: &FlowKey<$n>) -> Option<u8> {
                let record: *const u8 = $maps::OLD_HALF_OPEN.get_ptr(key)?.cast();
                // SAFETY: the agent sets an offset within the record, and the verifier checks it.
                Some(unsafe { record.add($maps::OLD_STATE_AT.load() as usize).read_volatile() })
            }
            #[inline(always)]
            fn is_in_old_fragments(key: &FragmentKey<$n>) -> bool {
                $maps::OLD_FRAGMENTS.get_ptr(key).is_some()
            }
        }
    };
}

family!(4, ipv4);
family!(16, ipv6);
