//! Ballast's eBPF programs: the entry points, by hook. What they do stands in the modules named here, and what they decide in
//! `lb_common::decide`.
#![no_std]
#![no_main]
// Unstable, and what aya-ebpf itself needs: inline assembly for this target.
#![feature(asm_experimental_arch)]

mod address;
mod adoption;
mod aside;
mod beyond;
mod bind;
mod bucket;
mod count;
mod echo;
mod fast;
mod forward;
mod fragments;
mod headers;
mod icmp;
mod maps;
mod masquerade;
mod parse;
mod pressure;
mod reject;
mod release;
mod rewrite;
mod rewrite_tc;
mod sctp;
mod skb;
mod socket;
mod steps;
mod tables;
mod tc;
mod tell;
mod tunnel;
mod tunnel_icmp;
mod tunnel_xdp;
mod xdp;

use aya_ebpf::macros::{cgroup_sock, cgroup_sock_addr, classifier, xdp};
use aya_ebpf::programs::{SockAddrContext, SockContext, TcContext, XdpContext};
use lb_common::abi::{TCP, UDP, hook};
use lb_common::decide::Hook;
use lb_common::outcome::Outcome;

use count::Counter;
use socket::{ALLOW, Answer, refuse};
use tc::{Place, WITH_ETHERNET, WITHOUT_ETHERNET};

macro_rules! tc_program {
    ($(#[$meta:meta])* $name:ident, $place:ident, $hook:expr, $id:expr, $network:expr, $ingress:expr) => {
        struct $place;
        impl Place for $place {
            const HOOK: Hook = $hook;
            const ID: u8 = $id;
            const NETWORK: usize = $network;
            const INGRESS: bool = $ingress;
        }
        $(#[$meta])*
        #[classifier]
        pub fn $name(context: TcContext) -> i32 {
            tc::handle::<$place>(context.skb.skb)
        }
    };
}

tc_program!(
    /// Ingress of a pod's link: what the pod sends.
    pod_in, PodIn, Hook::POD_IN, hook::POD_IN, WITH_ETHERNET, true
);
tc_program!(
    /// Egress of a pod's link: what the pod receives.
    pod_out, PodOut, Hook::POD_OUT, hook::POD_OUT, WITH_ETHERNET, false
);
tc_program!(
    /// Ingress of a bridge: pods whose own link has no program yet.
    bridge_in, BridgeIn, Hook::BRIDGE_IN, hook::BRIDGE_IN, WITH_ETHERNET, true
);
tc_program!(
    /// Ingress of an external or tunnel link.
    node_in, NodeIn, Hook::NODE_IN, hook::NODE_IN, WITH_ETHERNET, true
);
tc_program!(
    /// Egress of an external or tunnel link.
    node_out, NodeOut, Hook::NODE_OUT, hook::NODE_OUT, WITH_ETHERNET, false
);
tc_program!(
    /// Ingress of a link without link-layer header.
    node_in_l3, NodeInL3, Hook::NODE_IN_L3, hook::NODE_IN, WITHOUT_ETHERNET, true
);
tc_program!(
    /// Egress of a link without link-layer header.
    node_out_l3, NodeOutL3, Hook::NODE_OUT, hook::NODE_OUT, WITHOUT_ETHERNET, false
);

/// XDP on an external link.
#[xdp]
pub fn xdp_node(context: XdpContext) -> u32 {
    xdp::handle(context.ctx)
}

#[cgroup_sock_addr(connect4)]
pub fn connect4(context: SockAddrContext) -> i32 {
    let context = context.sock_addr;
    let Some(protocol) = socket::protocol(context) else { return ALLOW };
    if !socket::is_ours(context) {
        return ALLOW;
    }
    match socket::connect(context, protocol, address::v4(context)) {
        Answer::Leave => {}
        Answer::Use(peer) => address::set_v4(context, peer),
        Answer::Fail(errno) => return refuse(errno),
    }
    ALLOW
}

#[cgroup_sock_addr(connect6)]
pub fn connect6(context: SockAddrContext) -> i32 {
    let context = context.sock_addr;
    let Some(protocol) = socket::protocol(context) else { return ALLOW };
    if !socket::is_ours(context) {
        return ALLOW;
    }
    if let Some(peer) = address::mapped(context) {
        match socket::connect(context, protocol, peer) {
            Answer::Leave => {}
            Answer::Use(peer) => address::set_mapped(context, peer),
            Answer::Fail(errno) => return refuse(errno),
        }
        return ALLOW;
    }
    match socket::connect(context, protocol, address::v6(context)) {
        Answer::Leave => {}
        Answer::Use(peer) => address::set_v6(context, peer),
        Answer::Fail(errno) => return refuse(errno),
    }
    ALLOW
}

#[cgroup_sock_addr(sendmsg4)]
pub fn sendmsg4(context: SockAddrContext) -> i32 {
    let context = context.sock_addr;
    if !socket::is_ours(context) {
        return ALLOW;
    }
    match socket::send(context, address::v4(context)) {
        Answer::Leave => {}
        Answer::Use(peer) => address::set_v4(context, peer),
        Answer::Fail(errno) => return refuse(errno),
    }
    ALLOW
}

#[cgroup_sock_addr(sendmsg6)]
pub fn sendmsg6(context: SockAddrContext) -> i32 {
    let context = context.sock_addr;
    if !socket::is_ours(context) {
        return ALLOW;
    }
    // IPv4-mapped destinations arrive at sendmsg4: the kernel hands them to the IPv4 socket's path first.
    match socket::send(context, address::v6(context)) {
        Answer::Leave => {}
        Answer::Use(peer) => address::set_v6(context, peer),
        Answer::Fail(errno) => return refuse(errno),
    }
    ALLOW
}

#[cgroup_sock_addr(recvmsg4)]
pub fn recvmsg4(context: SockAddrContext) -> i32 {
    show4(context, UDP)
}

#[cgroup_sock_addr(recvmsg6)]
pub fn recvmsg6(context: SockAddrContext) -> i32 {
    show6(context, UDP)
}

#[cgroup_sock_addr(getpeername4)]
pub fn getpeername4(context: SockAddrContext) -> i32 {
    let protocol = socket::protocol(context.sock_addr).unwrap_or(TCP);
    show4(context, protocol)
}

#[cgroup_sock_addr(getpeername6)]
pub fn getpeername6(context: SockAddrContext) -> i32 {
    let protocol = socket::protocol(context.sock_addr).unwrap_or(TCP);
    show6(context, protocol)
}

/// A socket has bound an IPv4 address and port.
#[cgroup_sock(post_bind4)]
pub fn post_bind4(context: SockContext) -> i32 {
    bind::bound4(context.sock)
}

/// A socket has bound an IPv6 address and port.
#[cgroup_sock(post_bind6)]
pub fn post_bind6(context: SockContext) -> i32 {
    bind::bound6(context.sock)
}

/// The last descriptor of a socket is closed. Since Linux 5.9.
#[cgroup_sock(sock_release)]
pub fn sock_release(context: SockContext) -> i32 {
    release::release(context.sock);
    ALLOW
}

/// Shows the service's address where the kernel knows the backend's.
#[inline(always)]
fn show4(context: SockAddrContext, protocol: u8) -> i32 {
    let context = context.sock_addr;
    if socket::is_ours(context)
        && let Some(peer) = socket::shown(context, protocol, address::v4(context))
    {
        address::set_v4(context, peer);
        count::outcome(Outcome::SocketReplied, Counter::Socket);
    }
    ALLOW
}

#[inline(always)]
fn show6(context: SockAddrContext, protocol: u8) -> i32 {
    let context = context.sock_addr;
    if !socket::is_ours(context) {
        return ALLOW;
    }
    if let Some(from) = address::mapped(context) {
        if let Some(peer) = socket::shown(context, protocol, from) {
            address::set_mapped(context, peer);
            count::outcome(Outcome::SocketReplied, Counter::Socket);
        }
    } else if let Some(peer) = socket::shown(context, protocol, address::v6(context)) {
        address::set_v6(context, peer);
        count::outcome(Outcome::SocketReplied, Counter::Socket);
    }
    ALLOW
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // Unreachable: nothing in the programs panics, and the verifier would refuse the endless loop if it could be reached.
    loop {}
}

/// Lets the programs call the helpers that the kernel reserves for programs under the GPL.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
