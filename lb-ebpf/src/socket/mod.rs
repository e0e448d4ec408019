//! Host processes: translated once, at connect or per datagram of an unconnected socket. Nothing per packet. These are the entry points
//! of the cgroup hooks.

mod address;
mod bind;
mod connect;
mod context;
mod outcome;
mod release;

use aya_ebpf::macros::{cgroup_sock, cgroup_sock_addr, sock_ops as tcp_events};
use aya_ebpf::programs::{SockAddrContext, SockContext, SockOpsContext};
use lb_common::abi::{TCP, UDP};
use lb_common::outcome::Outcome;

use crate::counters::{self, Counter};
use context::{ALLOW, is_ours, protocol, refuse};

#[cgroup_sock_addr(connect4)]
pub fn connect4(context: SockAddrContext) -> i32 {
    let context = context.sock_addr;
    let Some(protocol) = protocol(context) else { return ALLOW };
    if !is_ours(context) {
        return ALLOW;
    }
    match connect::connect(context, protocol, address::v4(context)) {
        connect::Answer::Leave => {}
        connect::Answer::Use(peer) => address::set_v4(context, peer),
        connect::Answer::Fail(errno) => return refuse(errno),
    }
    ALLOW
}

#[cgroup_sock_addr(connect6)]
pub fn connect6(context: SockAddrContext) -> i32 {
    let context = context.sock_addr;
    let Some(protocol) = protocol(context) else { return ALLOW };
    if !is_ours(context) {
        return ALLOW;
    }
    if let Some(peer) = address::mapped(context) {
        match connect::connect(context, protocol, peer) {
            connect::Answer::Leave => {}
            connect::Answer::Use(peer) => address::set_mapped(context, peer),
            connect::Answer::Fail(errno) => return refuse(errno),
        }
        return ALLOW;
    }
    match connect::connect(context, protocol, address::v6(context)) {
        connect::Answer::Leave => {}
        connect::Answer::Use(peer) => address::set_v6(context, peer),
        connect::Answer::Fail(errno) => return refuse(errno),
    }
    ALLOW
}

#[cgroup_sock_addr(sendmsg4)]
pub fn sendmsg4(context: SockAddrContext) -> i32 {
    let context = context.sock_addr;
    if !is_ours(context) {
        return ALLOW;
    }
    match connect::send(context, address::v4(context)) {
        connect::Answer::Leave => {}
        connect::Answer::Use(peer) => address::set_v4(context, peer),
        connect::Answer::Fail(errno) => return refuse(errno),
    }
    ALLOW
}

#[cgroup_sock_addr(sendmsg6)]
pub fn sendmsg6(context: SockAddrContext) -> i32 {
    let context = context.sock_addr;
    if !is_ours(context) {
        return ALLOW;
    }
    // IPv4-mapped destinations arrive at sendmsg4: the kernel hands them to the IPv4 socket's path first.
    match connect::send(context, address::v6(context)) {
        connect::Answer::Leave => {}
        connect::Answer::Use(peer) => address::set_v6(context, peer),
        connect::Answer::Fail(errno) => return refuse(errno),
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
    let protocol = protocol(context.sock_addr).unwrap_or(TCP);
    show4(context, protocol)
}

#[cgroup_sock_addr(getpeername6)]
pub fn getpeername6(context: SockAddrContext) -> i32 {
    let protocol = protocol(context.sock_addr).unwrap_or(TCP);
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

/// What TCP says of a socket that connects.
#[tcp_events]
pub fn sock_ops(context: SockOpsContext) -> u32 {
    outcome::seen(context.ops);
    // The kernel's own reply, or that of another program, stays.
    ALLOW as u32
}

/// Shows the service's address where the kernel knows the backend's.
#[inline(always)]
fn show4(context: SockAddrContext, protocol: u8) -> i32 {
    let context = context.sock_addr;
    if is_ours(context)
        && let Some(peer) = connect::shown(context, protocol, address::v4(context))
    {
        address::set_v4(context, peer);
        counters::outcome(Outcome::SocketReplied, Counter::Socket);
    }
    ALLOW
}

#[inline(always)]
fn show6(context: SockAddrContext, protocol: u8) -> i32 {
    let context = context.sock_addr;
    if !is_ours(context) {
        return ALLOW;
    }
    if let Some(from) = address::mapped(context) {
        if let Some(peer) = connect::shown(context, protocol, from) {
            address::set_mapped(context, peer);
            counters::outcome(Outcome::SocketReplied, Counter::Socket);
        }
    } else if let Some(peer) = connect::shown(context, protocol, address::v6(context)) {
        address::set_v6(context, peer);
        counters::outcome(Outcome::SocketReplied, Counter::Socket);
    }
    ALLOW
}
