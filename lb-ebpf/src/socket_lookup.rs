//! Looks up sockets of a network namespace.

use core::ffi::c_void;

use aya_ebpf::bindings::{
    bpf_sock_tuple, bpf_sock_tuple__bindgen_ty_1, bpf_sock_tuple__bindgen_ty_1__bindgen_ty_1,
    bpf_sock_tuple__bindgen_ty_1__bindgen_ty_2,
};
use aya_ebpf::helpers::generated::{bpf_sk_release, bpf_skc_lookup_tcp};
use lb_common::abi::FlowKey;

use lb_common::words::word;

/// Whether the namespace holds a live TCP socket that receives packets of this tuple. Since Linux 5.2 (`bpf_skc_lookup_tcp`).
#[inline(always)]
pub fn holds_connection<const N: usize>(context: *mut c_void, key: &FlowKey<N>, netns_id: u32) -> bool {
    let mut tuple = if N == 4 {
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
    };
    let size = 2 * N as u32 + 4;
    // SAFETY: the tuple lives on the stack, `size` is that of its family, and the socket is released below.
    unsafe {
        let socket = bpf_skc_lookup_tcp(context, &mut tuple, size, u64::from(netns_id), 0);
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
