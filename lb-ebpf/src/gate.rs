//! Gates: what hangs at the attach points while one set of tables follows another ([`lb_common::switch`]).
//!
//! Every gate reads one word, so that all attach points change sides at once: no connection is ever met by both sets of tables. From then on a
//! gate asks the new tables first, and the old programs take what only the old tables know, until the agent has moved it. The packet that begins a
//! connection on the tuple of an ended one is the new programs' ([`switch::retains`]).

use aya_ebpf::bindings::xdp_action::XDP_PASS;
use aya_ebpf::bindings::{__sk_buff, xdp_md};
use aya_ebpf::macros::{classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};
use lb_common::abi::{FlowKey, FragmentKey, SCTP, TCP, UDP, half_open_flags};
use lb_common::map::{self, Map};
use lb_common::state;
use lb_common::switch::{self, new_slot, old_slot, word};

use crate::maps::{self, SWITCH_TC, SWITCH_WORD, SWITCH_XDP};
use crate::outer_header;
use crate::tc::forward::NEXT;
use crate::tc::headers::{self, Extent, Piece, is_icmp};
use crate::tc::skb::{load, ports};
use crate::xdp::frame::{bytes, is_outer};
use lb_common::parse::{self, ETHERNET, ETHERTYPE, ICMP_HEADER, IPV4, IPV4_HEADER, IPV6, IPV6_HEADER};

macro_rules! gate {
    ($(#[$meta:meta])* $name:ident, $entry:literal, $network:expr) => {
        $(#[$meta])*
        #[classifier]
        pub fn $name(context: TcContext) -> i32 {
            let skb = context.skb.skb;
            let slot = if is_old_at_tc(skb, $network) { old_slot($entry) } else { new_slot($entry) };
            // SAFETY: nothing is held that must be dropped.
            unsafe { SWITCH_TC.tail_call(&TcContext::new(skb), slot) };
            // The old set had no program at such a place.
            NEXT
        }
        const _: () = assert!(is(switch::GATES[$entry].1, stringify!($name)));
    };
}

gate!(gate_pod_in, 0, ETHERNET);
gate!(gate_pod_out, 1, ETHERNET);
gate!(gate_bridge_in, 2, ETHERNET);
gate!(gate_node_in, 3, ETHERNET);
gate!(gate_node_out, 4, ETHERNET);
gate!(
    /// Of a link without link-layer header.
    gate_in_l3, 5, 0
);
gate!(
    /// Of a link without link-layer header.
    gate_out_l3, 6, 0
);

/// The gate at XDP.
#[xdp]
pub fn gate_xdp(context: XdpContext) -> u32 {
    const ENTRY: usize = 7;
    let context = context.ctx;
    let slot = if is_old_at_xdp(context) { old_slot(ENTRY) } else { new_slot(ENTRY) };
    // SAFETY: nothing is held that must be dropped.
    unsafe { SWITCH_XDP.tail_call(&XdpContext::new(context), slot) };
    XDP_PASS
}

/// Whether two names are the same.
const fn is(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut i = 0;
    while i < one.len() && i < other.len() && one[i] == other[i] {
        i += 1;
    }
    i == one.len() && i == other.len()
}

/// Whether the new tables are in force. A word that cannot be read is as good as none.
#[inline(always)]
fn has_switched() -> bool {
    SWITCH_WORD.get(0).copied() == Some(word::NEW)
}

/// Whether the old programs take this packet.
#[inline(always)]
fn is_old_at_tc(skb: *mut __sk_buff, network: usize) -> bool {
    if !has_switched() {
        return true;
    }
    // SAFETY: reads the context.
    match u16::from_be(unsafe { (*skb).protocol } as u16) {
        IPV4 => is_old::<4>(skb, network),
        IPV6 => is_old::<16>(skb, network),
        _ => false,
    }
}

#[inline(always)]
fn is_old<const N: usize>(skb: *mut __sk_buff, network: usize) -> bool {
    let mut key = no_key::<N>();
    // SAFETY: reads the context.
    let extent = Extent::Packet(unsafe { (*skb).len } as usize);
    let Ok(headers) = headers::network(skb, network, extent, &mut key) else { return false };
    if headers.piece == Piece::Later {
        let fragment = FragmentKey { src: key.src, dst: key.dst, id: headers.id, protocol: key.protocol, pad: [0; 3] };
        return maps::get::<map::Fragments<N>>(&fragment).is_none()
            && maps::find::<map::OldFragments<N>>(&fragment).is_some();
    }
    match headers.protocol {
        protocol @ (TCP | UDP | SCTP) => {
            ports(skb, headers.transport, &mut key).is_ok() && is_olds(&key, opens(skb, headers.transport, protocol))
        }
        // An error quotes a packet of the opposite direction.
        protocol if is_icmp::<N>(protocol) => {
            inner(skb, headers.transport + ICMP_HEADER, &mut key).is_some() && is_olds(&key.reversed(), false)
        }
        protocol if protocol == outer_header::protocol::<N>() => {
            let transport = inner(skb, headers.transport, &mut key);
            transport.is_some_and(|transport| is_olds(&key, opens(skb, transport, key.protocol)))
        }
        _ => false,
    }
}

/// Whether the packet begins a connection.
#[inline(always)]
fn opens(skb: *mut __sk_buff, transport: usize, protocol: u8) -> bool {
    let mut byte = [0u8; 1];
    switch::opening_at(protocol).is_some_and(|at| load(skb, transport + at, &mut byte).is_ok())
        && switch::opens(protocol, byte[0])
}

/// Reads the tuple of a packet within the packet, if its headers are the usual ones. The answer is where its transport header begins.
#[inline(always)]
fn inner<const N: usize>(skb: *mut __sk_buff, at: usize, key: &mut FlowKey<N>) -> Option<usize> {
    let (addresses, protocol, length);
    if N == 4 {
        let mut start = [0u8; 10];
        if load(skb, at, &mut start).is_err() || start[0] >> 4 != 4 || start[6] & 0x1f != 0 || start[7] != 0 {
            return None;
        }
        (addresses, protocol, length) = (at + 12, start[9], usize::from(start[0] & 0x0f) * 4);
        if length < IPV4_HEADER {
            return None;
        }
    } else {
        let mut start = [0u8; 8];
        if load(skb, at, &mut start).is_err() || start[0] >> 4 != 6 {
            return None;
        }
        (addresses, protocol, length) = (at + 8, start[6], IPV6_HEADER);
    }
    key.protocol = protocol;
    let is_read = matches!(protocol, TCP | UDP | SCTP)
        && load(skb, addresses, &mut key.src).is_ok()
        && load(skb, addresses + N, &mut key.dst).is_ok()
        && ports(skb, at + length, key).is_ok();
    if is_read { Some(at + length) } else { None }
}

/// Whether only the old tables know the connection of a packet. `opens`: whether the packet begins one.
#[inline(always)]
fn is_olds<const N: usize>(key: &FlowKey<N>, opens: bool) -> bool {
    let is_handshake = || {
        // SAFETY: a map value for the whole run of the program.
        let flags = maps::find::<map::HalfOpen<N>>(key).map(|entry| unsafe { (*entry).flags });
        // A note about an established connection is no sign that this is in the new tables.
        flags.is_some_and(|flags| flags & half_open_flags::SECOND == 0)
    };
    !switch::knows(|| has::<map::UdpFlows<N>, map::Flows<N>, N>(key), is_handshake)
        && switch::knows(
            || has::<map::OldUdpFlows<N>, map::OldFlows<N>, N>(key),
            || old_half_open_state(key).is_some_and(|state| switch::retains(state, opens)),
        )
}

/// Whether the table of the protocol has the flow.
#[inline(always)]
fn has<U: Map<Key = FlowKey<N>>, F: Map<Key = FlowKey<N>>, const N: usize>(key: &FlowKey<N>) -> bool {
    if key.protocol == UDP { maps::find::<U>(key).is_some() } else { maps::find::<F>(key).is_some() }
}

/// State of the entry in the old set's table of handshakes and retained connections.
#[inline(always)]
fn old_half_open_state<const N: usize>(key: &FlowKey<N>) -> Option<u8> {
    let record: *const u8 = maps::find::<map::OldHalfOpen<N>>(key)?.cast();
    // SAFETY: the agent sets an offset within the record, and the verifier checks it.
    Some(unsafe { record.add(maps::old_state_at::<N>()).read_volatile() })
}

#[inline(always)]
fn no_key<const N: usize>() -> FlowKey<N> {
    FlowKey { src: [0; N], dst: [0; N], src_port: 0, dst_port: 0, protocol: 0, pad: [0; 3] }
}

#[inline(always)]
fn is_old_at_xdp(context: *mut xdp_md) -> bool {
    if !has_switched() {
        return true;
    }
    match bytes(context).read::<[u8; 2]>(ETHERTYPE).map(u16::from_be_bytes) {
        Some(IPV4) => is_old_frame::<4>(context),
        Some(IPV6) => is_old_frame::<16>(context),
        _ => false,
    }
}

/// What XDP does not read goes to tc either way.
#[inline(always)]
fn is_old_frame<const N: usize>(context: *mut xdp_md) -> bool {
    let Some(scratch) = maps::scratch::<N>() else { return false };
    let (frame, packet) = (bytes(context), &mut scratch.work.packet);
    let is_read = parse::parse(frame, ETHERNET, packet).is_ok()
        || (is_outer::<N>(frame) && parse::parse(frame, ETHERNET + outer_header::length::<N>(), packet).is_ok());
    // XDP reads TCP and UDP alone.
    is_read && is_olds(&packet.key, packet.key.protocol == TCP && state::opens(packet.tcp_flags))
}
