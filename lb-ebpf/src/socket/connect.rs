//! connect(), sendmsg() and what they show: the decision, and the sockets' own tables.

use aya_ebpf::bindings::{BPF_ANY, BPF_SK_STORAGE_GET_F_CREATE, bpf_sock_addr};
use aya_ebpf::helpers::generated::{bpf_get_netns_cookie, bpf_get_socket_cookie};
use lb_common::abi::{FlowKey, ServiceKey, SocketKey, SocketPeer, UDP, hook, service_flags, socket_direction};
use lb_common::decide::{self, Asker, Now, Pick, Picked, Tables, Wish, is_unserved, is_unspecified, loopback, stick};
use lb_common::map;
use lb_common::outcome::Outcome;
use lb_common::state;

use crate::counters::{self, Counter};
use crate::kernel::SocketKernel;
use crate::maps::{self, socket_scratch};
use crate::scratch::SocketScratch;
use crate::socket::address::Peer;
use crate::socket::context::{is_on_node, served_as};
use crate::socket::release;

const ECONNREFUSED: i32 = 111;
const EHOSTUNREACH: i32 = 113;

/// connect(): the socket's peer becomes a backend. `None`: not for a service.
#[inline(always)]
pub fn connect<const N: usize>(context: *mut bpf_sock_addr, protocol: u8, to: Peer<N>) -> Answer<N> {
    noted(context, protocol, &named(to), Outcome::SocketConnected)
}

/// sendmsg() of an unconnected socket: stays with the backend of the last datagram while that one serves.
#[inline(always)]
pub fn send<const N: usize>(context: *mut bpf_sock_addr, to: Peer<N>) -> Answer<N> {
    let to = named(to);
    let mut used = to;
    let outcome = match again(context, &mut used) {
        Again::Same => {
            counters::outcome(Outcome::SocketSent, Counter::Socket);
            return Answer::Use(used);
        }
        Again::Moves => Outcome::SocketMoved,
        Again::First => Outcome::SocketSent,
    };
    noted(context, UDP, &to, outcome)
}

/// Whom the process means: the kernel takes no address for loopback, and shows the peer by that.
#[inline(always)]
fn named<const N: usize>(to: Peer<N>) -> Peer<N> {
    if is_unspecified(&to.address) { Peer { address: loopback(), ..to } } else { to }
}

/// A backend for the socket, and a note of what it leaves behind.
#[inline(always)]
fn noted<const N: usize>(context: *mut bpf_sock_addr, protocol: u8, to: &Peer<N>, outcome: Outcome) -> Answer<N> {
    let answer = choose(context, protocol, to, outcome);
    if let Answer::Use(peer) = &answer {
        release::note(context, protocol, to, peer);
    }
    answer
}

/// What a socket's datagram before says of this one.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Again {
    First = 0,
    /// To the backend of the one before.
    Same,
    /// That backend takes no more.
    Moves,
}

/// Where the datagram before went: `peer` is the address asked, and becomes that of its backend.
///
/// A function of its own: off the stack of the search.
#[inline(never)]
fn again<const N: usize>(context: *mut bpf_sock_addr, peer: &mut Peer<N>) -> Again {
    let key = socket_key(context, UDP, *peer, socket_direction::FORWARD);
    let Some(mut used) = maps::get::<map::Sockets<N>>(&key) else { return Again::First };
    if !serves(context, &used) {
        return Again::Moves;
    }
    let asked = *peer;
    *peer = Peer { address: used.address, port: used.port };
    let key = socket_key(context, UDP, *peer, socket_direction::REPLY);
    (used.address, used.port) = (asked.address, asked.port);
    own_answers(&key, &used);
    Again::Same
}

/// The last address asked owns the answers: another service, or the backend itself, may have been asked meanwhile.
#[inline(always)]
fn own_answers<const N: usize>(key: &SocketKey<N>, shown: &SocketPeer<N>) {
    let before = maps::get::<map::Sockets<N>>(key);
    if before.is_some_and(|before| before.address == shown.address && before.port == shown.port) {
        return;
    }
    if before.is_some() {
        counters::outcome(Outcome::AmbiguousUdp, Counter::Socket);
    }
    let _ = maps::insert::<map::Sockets<N>>(key, shown, BPF_ANY);
}

/// What becomes of a socket call.
pub enum Answer<const N: usize> {
    /// Not for a service: leave it.
    Leave,
    Use(Peer<N>),
    /// Fail with this errno.
    Fail(i32),
}

/// Asks for a backend, as a process whose source ranges these flags admit; one that is not ejected, as nobody moves the connection
/// later. For client affinity, each network namespace is one client.
///
/// A function of its own: off the stack of what follows.
#[inline(never)]
fn picked<const N: usize>(context: *mut bpf_sock_addr, scratch: &mut SocketScratch<N>, admitting: u8) -> Picked {
    let SocketScratch { key, pick } = scratch;
    let mut tables = SocketKernel::at(context.cast(), 0);
    let now = Now::from_ns(<SocketKernel as Tables<N>>::now_ns(&mut tables));
    // SAFETY: a helper on the program's own context. The low half tells namespaces apart: they are numbered in turn.
    let netns = unsafe { bpf_get_netns_cookie(context.cast()) } as u32;
    let asker = Asker::Process(admitting);
    let picked = decide::pick(&mut tables, key, asker, netns, Wish::SAFE, now, pick);
    if picked == Picked::Backend {
        stick(&mut tables, pick, key, netns, now.ds);
    }
    picked
}

/// A function of its own: with what calls it it would not fit the stack.
#[inline(never)]
fn choose<const N: usize>(context: *mut bpf_sock_addr, protocol: u8, to: &Peer<N>, outcome: Outcome) -> Answer<N> {
    let on_node = is_on_node(context);
    let leaves = outcome as u8 == Outcome::SocketConnected as u8 || !is_named_by_kernel::<N>(context);
    let served = served_as(&to.address, on_node);
    let Some(address) = served.filter(|address| is_frontend(*address, to.port, protocol)) else {
        return leave(context, protocol, to, true, leaves);
    };
    if <SocketKernel as Tables<N>>::hands_over(&mut SocketKernel::at(context.cast(), 0)) {
        return leave(context, protocol, to, false, leaves);
    }
    let Some(scratch) = socket_scratch(context, BPF_SK_STORAGE_GET_F_CREATE) else {
        counters::outcome(Outcome::DroppedTorn, Counter::Socket);
        return Answer::Fail(EHOSTUNREACH);
    };
    scratch.key = FlowKey { src: [0; N], dst: address, src_port: 0, dst_port: to.port, protocol, pad: [0; 3] };
    // A pod's address is held against the source ranges where its packets come by its link.
    let picked = picked(context, scratch, if on_node { service_flags::NODE_ALLOWED } else { 0 });
    scratch.key.dst = to.address;
    let SocketScratch { key, pick } = scratch;
    let service = pick.service.id;
    let (why, errno) = match picked {
        Picked::Denied if on_node => (Outcome::DroppedSourceRange, ECONNREFUSED),
        Picked::NoService => return leave(context, protocol, to, true, leaves),
        Picked::Martian | Picked::NotHere | Picked::Unasked | Picked::Denied | Picked::Limited => {
            return leave(context, protocol, to, false, leaves);
        }
        Picked::Torn => (Outcome::DroppedTorn, EHOSTUNREACH),
        Picked::Empty if pick.service.flags & service_flags::DROP_IF_EMPTY != 0 => {
            (Outcome::DroppedNoLocalEndpoint, EHOSTUNREACH)
        }
        Picked::Empty => (Outcome::SocketRefused, ECONNREFUSED),
        Picked::Backend => {
            bind(context, key, pick, outcome as u8);
            return Answer::Use(Peer { address: pick.backend.address, port: pick.backend.port });
        }
    };
    fail(key, service, why as u8);
    Answer::Fail(errno)
}

/// Whether a frontend has this address and port. Most sockets ask for something else: they need no scratch record.
#[inline(always)]
fn is_frontend<const N: usize>(address: [u8; N], port: u16, protocol: u8) -> bool {
    maps::find::<map::Services<N>>(&ServiceKey { address, port, protocol, pad: 0 }).is_some()
}

/// What becomes of a call that is for no frontend: it fails if a service has the address, and none this port of it (`refuses`).
///
/// A function of its own: off the stack of the search.
#[inline(never)]
fn leave<const N: usize>(
    context: *mut bpf_sock_addr,
    protocol: u8,
    to: &Peer<N>,
    refuses: bool,
    disowns: bool,
) -> Answer<N> {
    if refuses && is_unserved(&mut SocketKernel::at(context.cast(), 0), &to.address) {
        let key = FlowKey { src: [0; N], dst: to.address, src_port: 0, dst_port: to.port, protocol, pad: [0; 3] };
        fail(&key, 0, Outcome::RefusedUnserved as u8);
        return Answer::Fail(ECONNREFUSED);
    }
    if disowns {
        disown(context, protocol, to);
    }
    Answer::Leave
}

/// Writes which backend the socket uses, and counts that.
///
/// A function of its own: off the stack of the search.
#[inline(never)]
fn bind<const N: usize>(context: *mut bpf_sock_addr, asked: &FlowKey<N>, pick: &Pick<N>, outcome: u8) {
    let protocol = asked.protocol;
    let to = Peer { address: asked.dst, port: asked.dst_port };
    let peer = Peer { address: pick.backend.address, port: pick.backend.port };
    let (backend, backend_generation, service) = (pick.slot.backend, pick.slot.backend_generation, pick.service.id);
    let mut value = SocketPeer { address: to.address, port: to.port, pad: 0, backend, backend_generation, service };
    let answers = socket_key(context, protocol, peer, socket_direction::REPLY);
    let _ = maps::insert::<map::Sockets<N>>(&answers, &value, BPF_ANY);
    // A connected socket may name its peer again: the datagram must go where the answers are taken from.
    if protocol == UDP {
        let asks = socket_key(context, protocol, to, socket_direction::FORWARD);
        (value.address, value.port) = (peer.address, peer.port);
        let _ = maps::insert::<map::Sockets<N>>(&asks, &value, BPF_ANY);
    }
    let outcome = Outcome::from_number(outcome).unwrap_or(Outcome::SocketSent);
    counters::outcome(outcome, Counter::Socket);
    counters::about::<N>(service, backend, outcome, Counter::Socket);
    if outcome as u8 == Outcome::SocketMoved as u8 && counters::EVENTS_ON.load() != 0 {
        counters::event(asked, service, backend, outcome, hook::SOCKET, 0, Counter::Socket);
    }
}

/// Whether the kernel may have named the destination of a datagram, and not the process. For each datagram of an IPv6 socket that is connected to an
/// IPv4-mapped address, the kernel names the peer, a backend, to the IPv4 path.
#[inline(always)]
fn is_named_by_kernel<const N: usize>(context: *mut bpf_sock_addr) -> bool {
    const AF_INET6: u32 = 10;
    // SAFETY: a word of the context, read as a word.
    N == 4 && unsafe { (&raw const (*context).family).read_volatile() } == AF_INET6
}

/// The socket asks this address itself: should it be a backend that answered the socket in a service's name, it no longer does.
///
/// A function of its own: off the stack of those that call it.
#[inline(never)]
fn disown<const N: usize>(context: *mut bpf_sock_addr, protocol: u8, to: &Peer<N>) {
    let key = socket_key(context, protocol, *to, socket_direction::REPLY);
    // Most sockets have no such entry, and looking takes no lock.
    if maps::get::<map::Sockets<N>>(&key).is_some() {
        maps::remove::<map::Sockets<N>>(&key);
    }
}

/// Counts a call that fails.
///
/// A function of its own: off the stack of those that call it.
#[inline(never)]
fn fail<const N: usize>(key: &FlowKey<N>, service: u32, outcome: u8) {
    let outcome = Outcome::from_number(outcome).unwrap_or(Outcome::SocketRefused);
    counters::outcome(outcome, Counter::Socket);
    counters::about::<N>(service, 0, outcome, Counter::Socket);
    if counters::EVENTS_ON.load() != 0 {
        counters::event(key, service, 0, outcome, hook::SOCKET, 0, Counter::Socket);
    }
}

/// The service's address for one that a backend answers from. `None`: the peer is no backend of this socket.
#[inline(always)]
pub fn shown<const N: usize>(context: *mut bpf_sock_addr, protocol: u8, from: Peer<N>) -> Option<Peer<N>> {
    let key = socket_key(context, protocol, from, socket_direction::REPLY);
    maps::get::<map::Sockets<N>>(&key).map(|peer| Peer { address: peer.address, port: peer.port })
}

/// Whether the backend that a socket uses still may be used for its next datagram.
#[inline(always)]
fn serves<const N: usize>(context: *mut bpf_sock_addr, peer: &SocketPeer<N>) -> bool {
    let mut tables = SocketKernel::at(context.cast(), 0);
    let now = Now::from_ns(<SocketKernel as Tables<N>>::now_ns(&mut tables));
    match <SocketKernel as Tables<N>>::backend(&mut tables, peer.backend) {
        Some(backend) => {
            backend.generation == peer.backend_generation
                && state::keeps_flows(&backend, now.ds)
                && !state::udp_moves(&backend)
        }
        None => false,
    }
}

#[inline(always)]
fn socket_key<const N: usize>(context: *mut bpf_sock_addr, protocol: u8, peer: Peer<N>, direction: u8) -> SocketKey<N> {
    // SAFETY: a helper on the program's own context.
    let cookie = unsafe { bpf_get_socket_cookie(context.cast()) };
    SocketKey {
        cookie_low: cookie as u32,
        cookie_high: (cookie >> 32) as u32,
        address: peer.address,
        port: peer.port,
        protocol,
        direction,
    }
}
