//! bind() of host processes: a port that the node serves for a service is taken.

use aya_ebpf::Global;
use aya_ebpf::bindings::bpf_sock;
use aya_ebpf::helpers::generated::bpf_get_netns_cookie;
use lb_common::abi::{FlowKey, Service, ServiceKey, TCP, UDP, hook};
use lb_common::decide::{is_unspecified, node_port};
use lb_common::outcome::Outcome;

use crate::counters::{self, Counter};
use crate::kernel::SocketKernel;
use crate::socket::context::{ALLOW, host_netns, refuse, served_as};

/// Whether node ports are kept from processes of the node. Set at load.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
pub static PROTECT_NODE_PORTS: Global<u8> = Global::new(0);

const EADDRINUSE: i32 = 98;

/// The words of `::ffff:0:0/96` (RFC 4291, section 2.5.5.2).
const MAPPED: [u32; 3] = [0, 0, 0xffff_u32.to_be()];

/// An IPv4 socket has its port.
#[inline(always)]
pub fn bound4(socket: *mut bpf_sock) -> i32 {
    let Some((protocol, port)) = guarded(socket) else { return ALLOW };
    // SAFETY: a word of the context, read as a word.
    let address = unsafe { (&raw const (*socket).src_ip4).read_volatile() }.to_ne_bytes();
    if is_taken::<4>(socket, &address, port, protocol) { refuse(EADDRINUSE) } else { ALLOW }
}

/// An IPv6 socket has its port. Bound to no address it has that of IPv4 as well: whether it is for IPv6 alone is not told here.
#[inline(always)]
pub fn bound6(socket: *mut bpf_sock) -> i32 {
    let Some((protocol, port)) = guarded(socket) else { return ALLOW };
    // SAFETY: words of the context, each read as a word.
    let words = unsafe {
        [
            (&raw const (*socket).src_ip6[0]).read_volatile(),
            (&raw const (*socket).src_ip6[1]).read_volatile(),
            (&raw const (*socket).src_ip6[2]).read_volatile(),
            (&raw const (*socket).src_ip6[3]).read_volatile(),
        ]
    };
    if [words[0], words[1], words[2]] == MAPPED {
        let taken = is_taken::<4>(socket, &words[3].to_ne_bytes(), port, protocol);
        return if taken { refuse(EADDRINUSE) } else { ALLOW };
    }
    let mut address = [0_u8; 16];
    address[0..4].copy_from_slice(&words[0].to_ne_bytes());
    address[4..8].copy_from_slice(&words[1].to_ne_bytes());
    address[8..12].copy_from_slice(&words[2].to_ne_bytes());
    address[12..16].copy_from_slice(&words[3].to_ne_bytes());
    if is_taken::<16>(socket, &address, port, protocol)
        || is_unspecified(&address) && is_taken::<4>(socket, &[0; 4], port, protocol)
    {
        return refuse(EADDRINUSE);
    }
    ALLOW
}

/// Protocol and port of a socket whose binding may be refused: one of the node's own.
#[inline(always)]
fn guarded(socket: *mut bpf_sock) -> Option<(u8, u16)> {
    if PROTECT_NODE_PORTS.load() == 0 {
        return None;
    }
    // SAFETY: words of the context, each read as a word.
    let (protocol, port) =
        unsafe { ((&raw const (*socket).protocol).read_volatile(), (&raw const (*socket).src_port).read_volatile()) };
    let protocol = match protocol {
        protocol if protocol == u32::from(TCP) => TCP,
        protocol if protocol == u32::from(UDP) => UDP,
        _ => return None,
    };
    // SAFETY: a helper on the program's own context.
    (unsafe { bpf_get_netns_cookie(socket.cast()) } == host_netns()).then_some((protocol, port as u16))
}

/// Whether a service has this port there; that is counted.
///
/// A function of its own: for its room on the stack.
#[inline(never)]
fn is_taken<const N: usize>(socket: *mut bpf_sock, address: &[u8; N], port: u16, protocol: u8) -> bool {
    let any = is_unspecified(address).then_some(*address);
    let Some(served) = any.or_else(|| served_as(address, true)) else { return false };
    let mut tables = SocketKernel::at(socket.cast(), 0);
    let key = ServiceKey { address: served, port, protocol, pad: 0 };
    let mut service = Service::NONE;
    let id = node_port(&mut tables, &key, &mut service);
    if id == 0 {
        return false;
    }
    counters::outcome(Outcome::RefusedBind, Counter::Socket);
    counters::about::<N>(id, 0, Outcome::RefusedBind, Counter::Socket);
    if counters::EVENTS_ON.load() != 0 {
        let what = FlowKey { src: [0; N], dst: *address, src_port: 0, dst_port: port, protocol, pad: [0; 3] };
        counters::event(&what, id, 0, Outcome::RefusedBind, hook::SOCKET, 0, Counter::Socket);
    }
    true
}
