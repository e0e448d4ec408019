//! The least that a load balancer's program can do with a TCP packet, with the same kinds of maps and helpers: what Ballast's
//! programs are measured against. Nothing here keeps state that anybody reads.
#![no_std]
#![no_main]

use aya_ebpf::bindings::{
    BPF_F_NO_PREALLOC, BPF_F_PSEUDO_HDR, BPF_F_RECOMPUTE_CSUM, TC_ACT_UNSPEC, xdp_action::XDP_PASS,
};
use aya_ebpf::btf_maps::{Array, HashMap, LruHashMap};
use aya_ebpf::helpers::generated::{
    bpf_csum_diff, bpf_ktime_get_ns, bpf_l3_csum_replace, bpf_l4_csum_replace, bpf_skb_store_bytes,
};
use aya_ebpf::macros::{btf_map, classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};

/// Length of an Ethernet header.
const ETHERNET: usize = 14;
/// `TC_ACT_SHOT`.
const DROP: i32 = 2;

/// A tuple: what a flow is found by.
#[repr(C, align(4))]
#[derive(Clone, Copy)]
pub struct Key<const N: usize> {
    src: [u8; N],
    dst: [u8; N],
    ports: [u8; 4],
    protocol: u32,
}

/// A frontend.
#[repr(C, align(4))]
#[derive(Clone, Copy)]
pub struct Frontend<const N: usize> {
    address: [u8; N],
    port: [u8; 2],
    pad: u16,
}

/// As long as Ballast's: what to write, and when it was last seen.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Flow<const N: usize> {
    address: [u8; N],
    ports: [u8; 4],
    seen_s: u32,
    rest: [u32; 5],
}

macro_rules! family {
    ($n:literal, $flows:ident, $services:ident, $backends:ident, $slots:ident,
     $flows_name:literal, $services_name:literal, $backends_name:literal, $slots_name:literal,
     $known:ident, $fresh:ident, $foreign:ident) => {
        #[btf_map(name = $flows_name)]
        pub static $flows: LruHashMap<Key<$n>, Flow<$n>, 262_144> = LruHashMap::new();
        #[btf_map(name = $services_name)]
        pub static $services: HashMap<Frontend<$n>, u32, 131_072, { BPF_F_NO_PREALLOC as usize }> = HashMap::new();
        #[btf_map(name = $slots_name)]
        pub static $slots: Array<u32, 1_048_576> = Array::new();
        #[btf_map(name = $backends_name)]
        pub static $backends: Array<Flow<$n>, 262_144> = Array::new();

        /// One look-up in an LRU hash, and the rewrite.
        #[classifier]
        pub fn $known(context: TcContext) -> i32 {
            let Some(key) = key::<$n>(&context) else { return TC_ACT_UNSPEC };
            let Some(flow) = $flows.get_ptr_mut(&key) else { return TC_ACT_UNSPEC };
            // SAFETY: the element is of this type, and only its time is written.
            let flow = unsafe {
                (*flow).seen_s = (bpf_ktime_get_ns() / 1_000_000_000) as u32;
                *flow
            };
            rewrite(&context, &key, &flow)
        }

        /// The look-ups of flow, service, slot and backend, two inserts, and the rewrite.
        #[classifier]
        pub fn $fresh(context: TcContext) -> i32 {
            let Some(key) = key::<$n>(&context) else { return TC_ACT_UNSPEC };
            if $flows.get_ptr(&key).is_some() {
                return TC_ACT_UNSPEC;
            }
            let frontend = Frontend { address: key.dst, port: [key.ports[2], key.ports[3]], pad: 0 };
            // SAFETY: whole words are read.
            let Some(first) = $services.get_ptr(&frontend).map(|first| unsafe { *first }) else { return TC_ACT_UNSPEC };
            let Some(slot) = $slots.get(first) else { return TC_ACT_UNSPEC };
            let Some(backend) = $backends.get(*slot) else { return TC_ACT_UNSPEC };
            let mut flow = *backend;
            flow.seen_s = unsafe { (bpf_ktime_get_ns() / 1_000_000_000) as u32 };
            flow.ports = [key.ports[0], key.ports[1], backend.ports[2], backend.ports[3]];
            let reply = Key {
                src: flow.address,
                dst: key.src,
                ports: [flow.ports[2], flow.ports[3], key.ports[0], key.ports[1]],
                protocol: key.protocol,
            };
            let back =
                Flow { address: key.dst, ports: [key.ports[2], key.ports[3], key.ports[0], key.ports[1]], ..flow };
            if $flows.insert(&reply, &back, 0).is_err() || $flows.insert(&key, &flow, 0).is_err() {
                return DROP;
            }
            rewrite(&context, &key, &flow)
        }

        /// One look-up, for an unrelated packet.
        #[classifier]
        pub fn $foreign(context: TcContext) -> i32 {
            let Some(key) = key::<$n>(&context) else { return TC_ACT_UNSPEC };
            if $flows.get_ptr(&key).is_some() { DROP } else { TC_ACT_UNSPEC }
        }
    };
}

family!(
    4,
    FLOWS4,
    SERVICES4,
    BACKENDS4,
    SLOTS4,
    "y_flows4",
    "y_services4",
    "y_backends4",
    "y_slots4",
    known4,
    fresh4,
    foreign4
);
family!(
    16,
    FLOWS6,
    SERVICES6,
    BACKENDS6,
    SLOTS6,
    "y_flows6",
    "y_services6",
    "y_backends6",
    "y_slots6",
    known6,
    fresh6,
    foreign6
);

/// Nothing: what is measured with it is the measurement.
#[classifier]
pub fn nothing(_: TcContext) -> i32 {
    TC_ACT_UNSPEC
}

/// The same at XDP.
#[xdp]
pub fn idle(_: XdpContext) -> u32 {
    XDP_PASS
}

const fn network_length<const N: usize>() -> usize {
    if N == 4 { 20 } else { 40 }
}

const fn source_at<const N: usize>() -> usize {
    ETHERNET + if N == 4 { 12 } else { 8 }
}

/// The tuple of a TCP packet without options or extension headers.
#[inline(always)]
fn key<const N: usize>(context: &TcContext) -> Option<Key<N>> {
    let protocol_at = ETHERNET + if N == 4 { 9 } else { 6 };
    let protocol: u8 = at(context, protocol_at)?;
    if protocol != 6 {
        return None;
    }
    Some(Key {
        src: at(context, source_at::<N>())?,
        dst: at(context, source_at::<N>() + N)?,
        ports: at(context, ETHERNET + network_length::<N>())?,
        protocol: 6,
    })
}

#[inline(always)]
fn at<T: Copy>(context: &TcContext, offset: usize) -> Option<T> {
    let start = context.data() + offset;
    if start + size_of::<T>() > context.data_end() {
        return None;
    }
    // SAFETY: within the packet; every pattern of bytes is a value of the types asked for.
    Some(unsafe { (start as *const T).read_unaligned() })
}

/// Writes the destination's address and the ports, checksums included, by the kernel's helpers.
#[inline(always)]
fn rewrite<const N: usize>(context: &TcContext, key: &Key<N>, flow: &Flow<N>) -> i32 {
    let skb = context.skb.skb;
    let ports_at = (ETHERNET + network_length::<N>()) as u32;
    let (address_at, checksum_at) = ((source_at::<N>() + N) as u32, ports_at + 16);
    let (mut old, mut new) = (key.dst, flow.address);
    let word = |bytes: &[u8; N]| u64::from(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    let ports = |bytes: [u8; 4]| u64::from(u32::from_ne_bytes(bytes));
    let pseudo = u64::from(BPF_F_PSEUDO_HDR);
    // SAFETY: helpers check every offset against the packet; the byte arrays live on this stack.
    let failed = unsafe {
        let mut failed = 0;
        if key.ports != flow.ports {
            failed |= bpf_l4_csum_replace(skb, checksum_at, ports(key.ports), ports(flow.ports), 4);
            failed |= bpf_skb_store_bytes(skb, ports_at, flow.ports.as_ptr().cast(), 4, 0);
        }
        if N == 4 {
            failed |= bpf_l4_csum_replace(skb, checksum_at, word(&old), word(&new), pseudo | 4);
            failed |= bpf_l3_csum_replace(skb, (ETHERNET + 10) as u32, word(&old), word(&new), 4);
            failed |= bpf_skb_store_bytes(skb, address_at, new.as_ptr().cast(), 4, 0);
        } else {
            let difference = bpf_csum_diff(old.as_mut_ptr().cast(), 16, new.as_mut_ptr().cast(), 16, 0);
            failed |= bpf_l4_csum_replace(skb, checksum_at, 0, difference as u64, pseudo);
            failed |= bpf_skb_store_bytes(skb, address_at, new.as_ptr().cast(), 16, u64::from(BPF_F_RECOMPUTE_CSUM));
        }
        failed
    };
    if failed == 0 { TC_ACT_UNSPEC } else { DROP }
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

/// The kernel lends its helpers to programs under this licence only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
