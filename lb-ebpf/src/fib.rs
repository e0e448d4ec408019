//! FIB look-ups: what the routing table says.

use core::ffi::c_void;

use aya_ebpf::bindings::{
    BPF_FIB_LKUP_RET_FRAG_NEEDED, BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_SUCCESS, bpf_fib_lookup as FibQuery,
};
use aya_ebpf::helpers::generated::bpf_fib_lookup;
use lb_common::abi::{BridgePortKey, link_role};

use crate::maps::{BRIDGE_PORTS, LINKS};

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// Longest packet that a length field of 16 bits can tell.
pub const LONGEST: u32 = 65_535;

/// The index of the link towards an address of which nothing else is known; 0: there is none.
///
/// A function of its own: off the stack of those that ask.
#[inline(never)]
pub fn link_to<const N: usize>(context: *mut c_void, ifindex: u32, address: &[u8; N]) -> u32 {
    let mut query = query(&[0; N], address, 0);
    query.ifindex = ifindex;
    // SAFETY: the query lives on this stack, and the call has its size.
    let found = unsafe { bpf_fib_lookup(context, &raw mut query, size_of::<FibQuery>() as i32, 0) };
    // Too big for the link, it is the link none the less.
    let known = found == i64::from(BPF_FIB_LKUP_RET_SUCCESS)
        || found == i64::from(BPF_FIB_LKUP_RET_NO_NEIGH)
        || found == i64::from(BPF_FIB_LKUP_RET_FRAG_NEEDED);
    if known { query.ifindex } else { 0 }
}

/// Whether packets from `from` to `to` that come by the link `own` leave by this one: as a pod's own, or as a port of the bridge that they leave by. Of
/// a neighbour whose port is not known the bridge proves nothing, and any of its ports will do.
///
/// A function of its own: off the stack of those that ask.
#[inline(never)]
pub fn leads_by<const N: usize>(context: *mut c_void, own: u32, from: &[u8; N], to: &[u8; N], link: u32) -> bool {
    let mut query = query(from, to, 0);
    query.ifindex = own;
    // SAFETY: the query lives on this stack, and the call has its size.
    let found = unsafe { bpf_fib_lookup(context, &raw mut query, size_of::<FibQuery>() as i32, 0) };
    if found != i64::from(BPF_FIB_LKUP_RET_SUCCESS) && found != i64::from(BPF_FIB_LKUP_RET_NO_NEIGH) {
        return false;
    }
    let by = query.ifindex;
    if by == link {
        return true;
    }
    let key = BridgePortKey { bridge: by, address: query.dmac, pad: 0 };
    // SAFETY: one word, copied at once.
    match unsafe { BRIDGE_PORTS.get(key) } {
        Some(port) => port.link == link,
        // SAFETY: copied at once; a link's record is replaced as a whole.
        None => unsafe { LINKS.get(by) }.is_some_and(|link| link.role == link_role::BRIDGE),
    }
}

#[inline(always)]
pub fn query<const N: usize>(src: &[u8; N], dst: &[u8; N], protocol: u8) -> FibQuery {
    // SAFETY: zeroes are a valid query; the union's members are written for the family at hand.
    let mut query: FibQuery = unsafe { core::mem::zeroed() };
    query.family = if N == 4 { AF_INET } else { AF_INET6 };
    query.l4_protocol = protocol;
    if N == 4 {
        query.__bindgen_anon_3.ipv4_src = u32::from_ne_bytes([src[0], src[1], src[2], src[3]]);
        query.__bindgen_anon_4.ipv4_dst = u32::from_ne_bytes([dst[0], dst[1], dst[2], dst[3]]);
    } else {
        query.__bindgen_anon_3.ipv6_src = words(src);
        query.__bindgen_anon_4.ipv6_dst = words(dst);
    }
    query
}

#[inline(always)]
fn words<const N: usize>(address: &[u8; N]) -> [u32; 4] {
    let mut words = [0u32; 4];
    let mut i = 0;
    while i < 4 && 4 * i + 3 < N {
        let at = 4 * i;
        words[i] = u32::from_ne_bytes([address[at], address[at + 1], address[at + 2], address[at + 3]]);
        i += 1;
    }
    words
}
