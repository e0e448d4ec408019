//! Looks up sockets of a network namespace.

use core::ffi::c_void;

use aya_ebpf::bindings::{
    bpf_sock_tuple, bpf_sock_tuple__bindgen_ty_1, bpf_sock_tuple__bindgen_ty_1__bindgen_ty_1,
    bpf_sock_tuple__bindgen_ty_1__bindgen_ty_2,
};
use aya_ebpf::helpers::generated::{bpf_sk_lookup_udp, bpf_sk_release, bpf_skc_lookup_tcp};
use lb_common::abi::{FlowKey, TCP};
use lb_common::words::word;

/// Whether the namespace holds a live TCP socket that receives packets of this tuple. Since Linux 5.2 (`bpf_skc_lookup_tcp`).
#[inline(always)]
pub fn holds_connection<const N: usize>(context: *mut c_void, key: &FlowKey<N>, netns_id: u32) -> bool {
    tcp(context, &mut tuple(key), size::<N>(), u64::from(netns_id))
}

/// Whether the link's own namespace, which is the node's, has a socket that receives packets of this tuple: a live TCP connection, or any UDP
/// socket. Since Linux 5.2.
///
/// A function of its own: off the stack of the one that asks.
#[inline(never)]
pub fn node_has<const N: usize>(context: *mut c_void, key: &FlowKey<N>) -> bool {
    let mut tuple = tuple(key);
    if key.protocol == TCP {
        return tcp(context, &mut tuple, size::<N>(), CURRENT_NETNS);
    }
    // SAFETY: the tuple lives on the stack, `size` is that of its family, and the socket is released at once.
    unsafe {
        let socket = bpf_sk_lookup_udp(context, &mut tuple, size::<N>(), CURRENT_NETNS, 0);
        if socket.is_null() {
            return false;
        }
        bpf_sk_release(socket.cast());
    }
    true
}

/// `BPF_F_CURRENT_NETNS`: the namespace of the packet's link.
const CURRENT_NETNS: u64 = u64::MAX;

/// How long the tuple of a family is.
const fn size<const N: usize>() -> u32 {
    2 * N as u32 + 4
}

#[inline(always)]
fn tuple<const N: usize>(key: &FlowKey<N>) -> bpf_sock_tuple {
    if N == 4 {
        bpf_sock_tuple {
            __bindgen_anon_1: bpf_sock_tuple__bindgen_ty_1 {
                ipv4: bpf_sock_tuple__bindgen_ty_1__bindgen_ty_1 {
                    saddr: word(&key.src, 0),
                    daddr: word(&key.dst, 0),
                    sport: key.src_port.to_be(),
                    dport: key.dst_port.to_be(),
                },
            },
        }
    } else {
        bpf_sock_tuple {
            __bindgen_anon_1: bpf_sock_tuple__bindgen_ty_1 {
                ipv6: bpf_sock_tuple__bindgen_ty_1__bindgen_ty_2 {
                    saddr: [word(&key.src, 0), word(&key.src, 4), word(&key.src, 8), word(&key.src, 12)],
                    daddr: [word(&key.dst, 0), word(&key.dst, 4), word(&key.dst, 8), word(&key.dst, 12)],
                    sport: key.src_port.to_be(),
                    dport: key.dst_port.to_be(),
                },
            },
        }
    }
}

#[inline(always)]
fn tcp(context: *mut c_void, tuple: &mut bpf_sock_tuple, size: u32, netns: u64) -> bool {
    // SAFETY: the tuple lives on the stack, `size` is that of its family, and the socket is released below.
    unsafe {
        let socket = bpf_skc_lookup_tcp(context, tuple, size, netns, 0);
        if socket.is_null() {
            return false;
        }
        let state = (*socket).state;
        bpf_sk_release(socket.cast());
        // Listeners, TIME_WAIT and closed sockets hold no connection (numbers of include/net/tcp_states.h).
        const TIME_WAIT: u32 = 6;
        const CLOSE: u32 = 7;
        const LISTEN: u32 = 10;
        state != TIME_WAIT && state != CLOSE && state != LISTEN
    }
}
