//! Whose socket calls are translated, and how a call is refused.

use aya_ebpf::Global;
use aya_ebpf::bindings::bpf_sock_addr;
use aya_ebpf::helpers::generated::{bpf_get_netns_cookie, bpf_set_retval};
use lb_common::abi::{TCP, UDP};
use lb_common::decide::is_this_node;

use crate::features::HAS_SET_RETVAL;

/// Whose sockets are translated: 0 none, 1 those of the agent's own network namespace, 2 all. Set at load.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
pub static SOCKET_LB: Global<u8> = Global::new(1);
/// Cookie of the agent's network namespace (`SO_NETNS_COOKIE`, since Linux 5.14); 0: not known. Set at load.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
pub static HOST_NETNS: Global<u64> = Global::new(0);

/// Families whose node ports are reached at loopback: 1 IPv4, 2 IPv6. Set at load.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
pub static LOOPBACK_NODE_PORTS: Global<u8> = Global::new(0);

/// Verdicts of the hook.
pub const ALLOW: i32 = 1;
pub const DENY: i32 = 0;

/// Cookie of the node's own network namespace: where the kernel names no process's, that of its first one. Since Linux 5.7
/// (`bpf_get_netns_cookie`).
#[inline(always)]
pub fn host_netns() -> u64 {
    let known = HOST_NETNS.load();
    // SAFETY: a helper that takes no context, too.
    if known != 0 { known } else { unsafe { bpf_get_netns_cookie(core::ptr::null_mut()) } }
}

/// Whether this socket is one of those that we translate.
#[inline(always)]
pub fn is_ours(context: *mut bpf_sock_addr) -> bool {
    match SOCKET_LB.load() {
        0 => false,
        // SAFETY: a helper on the program's own context.
        1 => unsafe { bpf_get_netns_cookie(context.cast()) == host_netns() },
        _ => true,
    }
}

/// Whether the socket is in the node's own network namespace, not in a pod's.
#[inline(always)]
pub fn is_on_node(context: *mut bpf_sock_addr) -> bool {
    // SAFETY: a helper on the program's own context.
    SOCKET_LB.load() == 1 || unsafe { bpf_get_netns_cookie(context.cast()) == host_netns() }
}

/// The address in whose name a frontend serves this one, for processes of the node: loopback is any address of it. `None`: nobody
/// serves it.
#[inline(always)]
pub fn served_as<const N: usize>(address: &[u8; N], on_node: bool) -> Option<[u8; N]> {
    if !is_this_node(address) {
        return Some(*address);
    }
    let family = if N == 4 { 1 } else { 2 };
    (on_node && LOOPBACK_NODE_PORTS.load() & family != 0).then_some([0; N])
}

/// Fails the call with this errno. Since Linux 5.18 (`bpf_set_retval`); before, the caller sees EPERM.
#[inline(always)]
pub fn refuse(errno: i32) -> i32 {
    // SAFETY: a helper without pointers.
    unsafe {
        if HAS_SET_RETVAL.load() != 0 {
            bpf_set_retval(-errno);
        }
    }
    DENY
}

/// The protocol of the socket, if it is one that we translate.
#[inline(always)]
pub fn protocol(context: *mut bpf_sock_addr) -> Option<u8> {
    // SAFETY: reads the context.
    match unsafe { (*context).protocol } {
        protocol if protocol == u32::from(TCP) => Some(TCP),
        protocol if protocol == u32::from(UDP) => Some(UDP),
        _ => None,
    }
}
