//! What becomes of connect() to a backend: TCP says whether it answered. Nothing is asked per packet.

use aya_ebpf::bindings::{
    BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, BPF_SOCK_OPS_RETRANS_CB, BPF_SOCK_OPS_RETRANS_CB_FLAG, BPF_SOCK_OPS_STATE_CB,
    BPF_SOCK_OPS_STATE_CB_FLAG, BPF_SOCK_OPS_TCP_CONNECT_CB, BPF_TCP_CLOSE, BPF_TCP_SYN_SENT, bpf_sock_ops,
};
use aya_ebpf::helpers::generated::{bpf_get_socket_cookie, bpf_sock_ops_cb_flags_set};
use lb_common::abi::{SocketKey, SocketPeer, TCP, V4, V6, socket_direction};
use lb_common::decide::{self, Now, Tables};
use lb_common::map;

use crate::kernel::SocketKernel;
use crate::maps;

const AF_INET: u32 = 2;

/// What TCP has said.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Said {
    /// It sends the SYN now.
    Connects = 0,
    /// The backend has answered.
    Answered,
    /// The SYN is sent again, or was refused.
    Failed,
}

/// TCP says something of a socket.
#[inline(always)]
pub fn seen(context: *mut bpf_sock_ops) {
    let Some(said) = said(context) else { return };
    // SAFETY: words of the context, each read as a word.
    let (family, v4, words, port) = unsafe {
        let words = &raw const (*context).remote_ip6;
        let word = |at: usize| words.cast::<u32>().add(at).read_volatile();
        (
            (&raw const (*context).family).read_volatile(),
            (&raw const (*context).remote_ip4).read_volatile(),
            [word(0), word(1), word(2), word(3)],
            u32::from_be((&raw const (*context).remote_port).read_volatile()) as u16,
        )
    };
    let is_mapped = words[0] == 0 && words[1] == 0 && words[2] == 0xffff_u32.to_be();
    if family == AF_INET {
        note::<V4>(context, said, v4.to_ne_bytes(), port);
    } else if is_mapped {
        note::<V4>(context, said, words[3].to_ne_bytes(), port);
    } else {
        let mut address = [0; V6];
        for (at, word) in words.iter().enumerate() {
            address[4 * at..4 * at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        note::<V6>(context, said, address, port);
    }
}

#[inline(always)]
fn said(context: *mut bpf_sock_ops) -> Option<Said> {
    // SAFETY: words of the context, each read as a word.
    let (op, state, segments, first, second, third) = unsafe {
        let arguments = (&raw const (*context).__bindgen_anon_1).cast::<u32>();
        (
            (&raw const (*context).op).read_volatile(),
            (&raw const (*context).state).read_volatile(),
            (&raw const (*context).segs_in).read_volatile(),
            arguments.read_volatile(),
            arguments.add(1).read_volatile(),
            arguments.add(2).read_volatile(),
        )
    };
    match op {
        BPF_SOCK_OPS_TCP_CONNECT_CB => Some(Said::Connects),
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB => Some(Said::Answered),
        // Its third argument is the error with which it was not sent.
        BPF_SOCK_OPS_RETRANS_CB if state == BPF_TCP_SYN_SENT && third == 0 => Some(Said::Failed),
        // Without a segment, the process has given up, or an ICMP error came, which anybody can forge.
        BPF_SOCK_OPS_STATE_CB if first == BPF_TCP_SYN_SENT && second == BPF_TCP_CLOSE && segments != 0 => {
            Some(Said::Failed)
        }
        _ => None,
    }
}

/// Notes what was said, if the socket has this backend by a service.
///
/// A function of its own: off the stack of those that call it.
#[inline(never)]
fn note<const N: usize>(context: *mut bpf_sock_ops, said: Said, address: [u8; N], port: u16) {
    // SAFETY: a helper on the program's own context.
    let cookie = unsafe { bpf_get_socket_cookie(context.cast()) };
    let key = SocketKey {
        cookie_low: cookie as u32,
        cookie_high: (cookie >> 32) as u32,
        address,
        port,
        protocol: TCP,
        direction: socket_direction::REPLY,
    };
    let Some(peer) = maps::get::<map::Sockets<N>>(&key) else { return };
    let SocketPeer { backend, backend_generation, service, .. } = peer;
    let mut tables = SocketKernel::at(context.cast(), 0);
    let now = Now::from_ns(<SocketKernel as Tables<N>>::now_ns(&mut tables));
    match said {
        Said::Connects => watch(context),
        Said::Answered => decide::answered::<N, _>(&mut tables, backend, backend_generation, now),
        Said::Failed => decide::failed::<N, _>(&mut tables, service, backend, backend_generation, now),
    }
}

/// TCP is to say what becomes of the SYN, besides what other programs have asked it for.
#[inline(always)]
fn watch(context: *mut bpf_sock_ops) {
    // SAFETY: a word of the context, and a helper on it.
    unsafe {
        let flags = (&raw const (*context).bpf_sock_ops_cb_flags).read_volatile();
        let wanted = flags | BPF_SOCK_OPS_RETRANS_CB_FLAG | BPF_SOCK_OPS_STATE_CB_FLAG;
        bpf_sock_ops_cb_flags_set(context, wanted as i32);
    }
}
