//! A connection: its two flow entries, one for each direction, and their keys.

use super::closing;
use super::packet::{Now, Packet};
use crate::abi::{Flow, FlowKey, HalfOpen, flow_flags, flow_link, flow_state, half_open_flags, second, tag};
use crate::words;

/// The direction of a packet, as in conntrack.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Client to service.
    Original = 0,
    /// Backend to client.
    Reply,
}

/// A connection. Of an established one only the flow in each entry counts.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection<const N: usize> {
    pub(super) original_key: FlowKey<N>,
    pub(super) reply_key: FlowKey<N>,
    pub(super) original: HalfOpen<N>,
    pub(super) reply: HalfOpen<N>,
    /// The packet's direction: the entry of this one was read, the opposite one is derived from it or read later.
    pub(super) direction: Direction,
    pub(super) pad: [u8; 3],
}

/// The packet's own direction of a connection, and the opposite one.
pub(super) struct Directions<'a, const N: usize> {
    pub(super) key: &'a FlowKey<N>,
    pub(super) entry: &'a mut HalfOpen<N>,
    pub(super) opposite_key: &'a FlowKey<N>,
    pub(super) opposite: &'a mut HalfOpen<N>,
}

impl<const N: usize> Connection<N> {
    /// Copies an established entry that stood under `key` to the place of its direction. `false`: it was recycled meanwhile.
    #[inline(always)]
    pub fn read(&mut self, key: &FlowKey<N>, entry: &Flow<N>) -> bool {
        let is_reply = entry.flags & flow_flags::REPLY != 0;
        let into = if is_reply { &mut self.reply.flow } else { &mut self.original.flow };
        self.direction = if is_reply { Direction::Reply } else { Direction::Original };
        words::copy_tagged(entry, into, || tag(key)) && (into.flags & flow_flags::REPLY != 0) == is_reply
    }

    /// Takes over a handshake's entry, which is a copy already.
    #[inline(always)]
    pub(super) fn read_handshake(&mut self, entry: &HalfOpen<N>) {
        if entry.flow.flags & flow_flags::REPLY != 0 {
            words::copy(entry, &mut self.reply);
            self.direction = Direction::Reply;
        } else {
            words::copy(entry, &mut self.original);
            self.direction = Direction::Original;
        }
    }

    /// Makes the original entry of a new connection, whose first packet this is: all but where it leads.
    #[inline(always)]
    pub(super) fn begin(&mut self, packet: &Packet<N>, now: Now) {
        let Self { original_key, original, direction, .. } = self;
        words::copy(&packet.key, original_key);
        *direction = Direction::Original;
        words::clear(original);
        original.segments = 1;
        let flow = &mut original.flow;
        flow.tag = tag(&packet.key);
        flow.seen_s = now.s;
        flow.since_s = now.s;
        flow.isn = if packet.is_udp() { 0 } else { packet.seq };
        flow.state = flow_state::HALF_OPEN;
    }

    /// Sets both keys: that of the packet, and the opposite one that the packet's entry leads to.
    #[inline(always)]
    pub(super) fn set_keys(&mut self, key: &FlowKey<N>) {
        let own = if self.is_reply() {
            words::copy(key, &mut self.reply_key);
            set_opposite_key(key, &self.reply.flow, &mut self.original_key);
            self.reply.flow.second
        } else {
            words::copy(key, &mut self.original_key);
            set_opposite_key(key, &self.original.flow, &mut self.reply_key);
            self.original.flow.second
        };
        // A second handshake has its original entry under a key of its own.
        self.original_key.pad = [(own & second::OWN) as u8, 0, 0];
    }

    #[inline(always)]
    pub(super) const fn is_reply(&self) -> bool {
        self.direction as u8 == Direction::Reply as u8
    }

    /// The entry of the packet's direction.
    #[inline(always)]
    pub(super) const fn entry(&self) -> &HalfOpen<N> {
        if self.is_reply() { &self.reply } else { &self.original }
    }

    #[inline(always)]
    pub(super) const fn directions(&mut self) -> Directions<'_, N> {
        let Self { original_key, reply_key, original, reply, direction, .. } = self;
        if *direction as u8 == Direction::Reply as u8 {
            Directions { key: reply_key, entry: reply, opposite_key: original_key, opposite: original }
        } else {
            Directions { key: original_key, entry: original, opposite_key: reply_key, opposite: reply }
        }
    }

    /// Gives replies another port of the client; 0: they keep theirs.
    #[inline(never)]
    pub(super) fn set_reply_port(&mut self, port: u16) {
        if port != 0 {
            self.reply_key.dst_port = port;
            self.reply.flow.tag = tag(&self.reply_key);
        }
    }

    /// Makes the reply entry of a handshake anew, with its link. Not inline: the compiler would keep its addresses on the caller's stack.
    #[inline(never)]
    pub(super) fn derive_reply(&mut self, link: u32) {
        words::clear(&mut self.reply);
        set_opposite(&self.original_key, &self.original.flow, &self.reply_key, link, &mut self.reply.flow);
        let kept =
            half_open_flags::ANSWERED | half_open_flags::RESUMED | half_open_flags::MOVES | half_open_flags::AFFINITY;
        self.reply.flow.second = self.original.flow.second;
        self.reply.flags = self.original.flags & kept;
        self.reply.answers = self.original.answers;
    }
}

/// The key of the opposite direction's entry.
#[inline(always)]
#[must_use]
pub const fn pair_key<const N: usize>(key: &FlowKey<N>, flow: &Flow<N>) -> FlowKey<N> {
    let Ends { src, dst, src_port, dst_port } = ends(flow);
    FlowKey { src: *src, dst: *dst, src_port, dst_port, protocol: key.protocol, pad: [0; 3] }
}

/// Whether the entry under `pair_key(key, flow)` belongs to the same flow.
#[inline(always)]
#[must_use]
pub fn is_pair<const N: usize>(key: &FlowKey<N>, flow: &Flow<N>, pair: &Flow<N>) -> bool {
    pair_key(&pair_key(key, flow), pair) == *key && (pair.flags ^ flow.flags) & flow_flags::REPLY != 0
}

/// The ends of the packets of the opposite direction.
struct Ends<'a, const N: usize> {
    src: &'a [u8; N],
    dst: &'a [u8; N],
    src_port: u16,
    dst_port: u16,
}

#[inline(always)]
const fn ends<const N: usize>(flow: &Flow<N>) -> Ends<'_, N> {
    let (address, client) = (&flow.address, &flow.client);
    if flow.flags & flow_flags::REPLY == 0 {
        Ends { src: address, dst: client, src_port: flow.port, dst_port: flow.client_port }
    } else {
        Ends { src: client, dst: address, src_port: flow.client_port, dst_port: flow.port }
    }
}

/// Writes the key of the opposite direction's entry to `into`, whose padding is zero.
#[inline(never)]
pub(super) fn set_opposite_key<const N: usize>(key: &FlowKey<N>, flow: &Flow<N>, into: &mut FlowKey<N>) {
    let Ends { src, dst, src_port, dst_port } = ends(flow);
    words::address(src, &mut into.src);
    words::address(dst, &mut into.dst);
    into.src_port = src_port;
    into.dst_port = dst_port;
    into.protocol = key.protocol;
}

/// Whether the entry under `key` has `opposite_key` as the key of its opposite direction.
#[inline(never)]
pub(super) fn leads_to<const N: usize>(key: &FlowKey<N>, flow: &Flow<N>, opposite_key: &FlowKey<N>) -> bool {
    let Ends { src, dst, src_port, dst_port } = ends(flow);
    src_port == opposite_key.src_port
        && dst_port == opposite_key.dst_port
        && key.protocol == opposite_key.protocol
        && words::same(src, &opposite_key.src)
        && words::same(dst, &opposite_key.dst)
}

/// Makes `into` the opposite direction's entry, for `opposite_key`, of the entry under `key`, with the link of that direction.
#[inline(never)]
pub(super) fn set_opposite<const N: usize>(
    key: &FlowKey<N>,
    flow: &Flow<N>,
    opposite_key: &FlowKey<N>,
    link: u32,
    into: &mut Flow<N>,
) {
    let is_reply = flow.flags & flow_flags::REPLY != 0;
    into.tag = tag(opposite_key);
    into.backend = flow.backend;
    into.seen_s = flow.seen_s;
    into.since_s = flow.since_s;
    into.isn = flow.isn;
    (into.next, into.ack) = (flow.ack, flow.next);
    (into.fin, into.opposite_fin) = (flow.opposite_fin, closing::shown(flow.fin));
    // One branch: for each of several conditional expressions the verifier would walk what follows once more.
    if is_reply {
        words::address(&key.src, &mut into.address);
        words::address(&key.dst, &mut into.client);
        (into.port, into.client_port) = (key.src_port, key.dst_port);
    } else {
        words::address(&key.dst, &mut into.address);
        words::address(&key.src, &mut into.client);
        (into.port, into.client_port) = (key.dst_port, key.src_port);
    }
    into.generation = flow.generation;
    into.state = flow.state;
    into.flags = flow.flags ^ flow_flags::REPLY;
    into.link = link;
    into.own_link = flow_link::index(flow.link);
    into.second = 0;
}

/// Whether two keys are the same: compared by words, where the compiler would go byte by byte.
#[inline(always)]
pub(super) fn same<const N: usize>(a: &FlowKey<N>, b: &FlowKey<N>) -> bool {
    let ports = |key: &FlowKey<N>| (key.src_port as u32) << 16 | key.dst_port as u32;
    ports(a) == ports(b) && a.protocol == b.protocol && words::same(&a.src, &b.src) && words::same(&a.dst, &b.dst)
}
