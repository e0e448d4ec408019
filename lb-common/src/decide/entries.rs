//! The two entries of a flow: the key of the other direction, its entry, and how both are forgotten.

use super::{Now, Tables, Work};
use crate::abi::{Backend, Flow, FlowKey, flow_flags, tag};
use crate::{state, words};

/// The key of the other direction's entry.
#[inline(always)]
#[must_use]
pub const fn pair_key<const N: usize>(key: &FlowKey<N>, flow: &Flow<N>) -> FlowKey<N> {
    let Ends { src, dst, src_port, dst_port } = ends(flow);
    FlowKey { src: *src, dst: *dst, src_port, dst_port, protocol: key.protocol, pad: [0; 3] }
}

/// The ends of the packets of the other direction.
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

/// Writes the key of the other direction's entry to `into`, whose padding is zero.
#[inline(never)]
pub(super) fn set_pair_key<const N: usize>(key: &FlowKey<N>, flow: &Flow<N>, into: &mut FlowKey<N>) {
    let Ends { src, dst, src_port, dst_port } = ends(flow);
    words::address(src, &mut into.src);
    words::address(dst, &mut into.dst);
    into.src_port = src_port;
    into.dst_port = dst_port;
    into.protocol = key.protocol;
}

/// Whether the flow that stands under `key` has its other direction's entry under `other`.
#[inline(never)]
pub(super) fn leads_to<const N: usize>(key: &FlowKey<N>, flow: &Flow<N>, other: &FlowKey<N>) -> bool {
    let Ends { src, dst, src_port, dst_port } = ends(flow);
    src_port == other.src_port
        && dst_port == other.dst_port
        && key.protocol == other.protocol
        && words::same(src, &other.src)
        && words::same(dst, &other.dst)
}

/// The other direction's entry of a flow that stands under `key`, for `other_key`, with the link of that direction.
#[inline(never)]
pub(super) fn pair_of<const N: usize>(
    key: &FlowKey<N>,
    flow: &Flow<N>,
    other_key: &FlowKey<N>,
    link: u32,
    into: &mut Flow<N>,
) {
    let is_reply = flow.flags & flow_flags::REPLY != 0;
    into.tag = tag(other_key);
    into.backend = flow.backend;
    into.seen_s = flow.seen_s;
    into.since_s = flow.since_s;
    into.isn = flow.isn;
    words::address(if is_reply { &key.src } else { &key.dst }, &mut into.address);
    words::address(if is_reply { &key.dst } else { &key.src }, &mut into.client);
    into.port = if is_reply { key.src_port } else { key.dst_port };
    into.client_port = if is_reply { key.dst_port } else { key.src_port };
    into.generation = flow.generation;
    into.state = flow.state;
    into.flags = flow.flags ^ flow_flags::REPLY;
    into.link = link;
}

/// Whether the record under the flow's backend id still is the backend that the flow was made for.
#[inline(always)]
pub(super) fn is_of<const N: usize>(backend: &Backend<N>, flow: &Flow<N>) -> bool {
    backend.generation as u16 == flow.generation
}

/// The generation of the flow's backend, if it still takes the flow's packets.
#[inline(always)]
pub(super) fn kept_by<const N: usize, T: Tables<N>>(tables: &mut T, flow: &Flow<N>, now: Now) -> Option<u32> {
    let backend = tables.backend(flow.backend)?;
    (is_of(&backend, flow) && state::keeps_flows(&backend, now.ds)).then_some(backend.generation)
}

/// Whether two keys are the same: compared by words, where the compiler would go byte by byte.
#[inline(always)]
pub(super) fn same<const N: usize>(a: &FlowKey<N>, b: &FlowKey<N>) -> bool {
    let ports = |key: &FlowKey<N>| (key.src_port as u32) << 16 | key.dst_port as u32;
    ports(a) == ports(b) && a.protocol == b.protocol && words::same(&a.src, &b.src) && words::same(&a.dst, &b.dst)
}

/// Removes both entries of the flow `work.flow`, so that its packet counts as a first one.
#[inline(always)]
pub(super) fn forget<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) {
    uncount(tables, &work.flow);
    if tables.flow(&work.pair_key, &mut work.other).is_some() && leads_to(&work.pair_key, &work.other, &work.packet.key)
    {
        tables.remove_flow(&work.pair_key);
    }
    tables.remove_flow(&work.packet.key);
}

/// Takes a connection off its backend's count, if it is in it.
#[inline(never)]
pub(super) fn uncount<const N: usize, T: Tables<N>>(tables: &mut T, flow: &Flow<N>) {
    if flow.flags & flow_flags::COUNTED != 0
        && let Some(backend) = tables.backend(flow.backend)
        && is_of(&backend, flow)
    {
        tables.count_connection(flow.backend, backend.generation, -1);
    }
}

/// Removes the client's half, under `work.owner`, of a flow whose reply entry stood under `work.pair_key`: only if it still is that
/// flow's. The client may have begun another one on the same tuple since, whose half is not to be touched.
#[inline(always)]
pub(super) fn forget_owner<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) {
    if tables.flow(&work.owner, &mut work.other).is_some() && leads_to(&work.owner, &work.other, &work.pair_key) {
        uncount(tables, &work.other);
        tables.remove_flow(&work.owner);
    }
}

/// Removes both entries of the half-open flow `work.half`.
#[inline(never)]
pub(super) fn forget_half<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) {
    if tables.half_open(&work.pair_key, &mut work.other_half)
        && leads_to(&work.pair_key, &work.other_half.flow, &work.packet.key)
    {
        tables.remove_half_open(&work.pair_key);
    }
    tables.remove_half_open(&work.packet.key);
}
