//! A client's own direct traffic to an address that also is a backend of one of its service flows.
//!
//! Both look the same to the backend, and a reply entry would rewrite the direct connection's replies. So the second comer
//! gets another source port (TCP), or the ownership of the replies (UDP).

use super::entries::{forget_owner, leads_to, set_pair_key};
use super::place::{forget_half_owner, placing};
use super::{Action, Now, Step, Tables, Work};
use crate::abi::{UDP, flow_flags, flow_state, tag};
use crate::outcome::Outcome;
use crate::{state, words};

#[inline(always)]
pub(super) fn decide<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) -> Step {
    let key = &work.packet.key;
    let starts = key.protocol == UDP || state::opens(work.packet.tcp_flags);
    if !starts {
        return Step::Decided;
    }
    let reply = &mut work.pair_key;
    words::address(&key.dst, &mut reply.src);
    words::address(&key.src, &mut reply.dst);
    (reply.src_port, reply.dst_port, reply.protocol) = (key.dst_port, key.src_port, key.protocol);
    // Most hold nothing, and the clock takes longer than a look-up: it is asked where there is an entry.
    let held = held_open(tables, work) || held_half_open(tables, work);
    if !held {
        return Step::Decided;
    }
    if work.packet.key.protocol == UDP {
        work.settle(Action::Pass, Outcome::AmbiguousUdp);
        return Step::Decided;
    }
    begin(work, Now::from_ns(tables.now_ns()));
    work.placing = placing::DIRECT;
    Step::Place
}

/// Makes `work.half` the translated direct connection's entry.
#[inline(always)]
fn begin<const N: usize>(work: &mut Work<N>, now: Now) {
    let (key, half) = (&work.packet.key, &mut work.half);
    words::clear(half);
    half.segments = 1;
    let flow = &mut half.flow;
    flow.tag = tag(key);
    flow.seen_s = now.s;
    flow.since_s = now.s;
    flow.isn = work.packet.seq;
    words::address(&key.dst, &mut flow.address);
    words::address(&key.src, &mut flow.client);
    flow.port = key.dst_port;
    flow.client_port = key.src_port;
    flow.state = flow_state::HALF_OPEN;
    flow.flags = flow_flags::DIRECT;
}

/// Whether an answered flow holds the tuple of the answers. One that is over is forgotten; one of UDP gives the answers up.
#[inline(always)]
fn held_open<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    if tables.flow(&work.pair_key, &mut work.other).is_none() || work.other.flags & flow_flags::REPLY == 0 {
        return false;
    }
    let now = Now::from_ns(tables.now_ns());
    set_pair_key(&work.pair_key, &work.other, &mut work.owner);
    let protocol = work.owner.protocol;
    let timeout_s = tables.timeout_s(protocol, work.other.state);
    if state::yields(&work.other, timeout_s, now.s) {
        tables.remove_flow(&work.pair_key);
        forget_owner(tables, work);
        return false;
    }
    if protocol == UDP {
        tables.remove_flow(&work.pair_key);
        let flow = &mut work.other;
        if let Some(entry) = tables.flow(&work.owner, flow)
            && leads_to(&work.owner, flow, &work.pair_key)
        {
            tables.touch(entry, flow.tag, flow.seen_s, flow.state, flow.flags | flow_flags::REPLY_LOST);
        }
    }
    true
}

/// The same of one that nobody has answered, or that has left the backend: its answer may be under way.
#[inline(always)]
fn held_half_open<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    let half = &mut work.other_half;
    if !tables.half_open(&work.pair_key, half) || half.flow.flags & flow_flags::REPLY == 0 {
        return false;
    }
    let now = Now::from_ns(tables.now_ns());
    set_pair_key(&work.pair_key, &half.flow, &mut work.owner);
    let protocol = work.owner.protocol;
    let timeout_s = tables.timeout_s(protocol, half.flow.state);
    if state::yields(&half.flow, timeout_s, now.s) {
        tables.remove_half_open(&work.pair_key);
        forget_half_owner(tables, &work.owner, &work.pair_key, half);
        return false;
    }
    if protocol == UDP {
        tables.remove_half_open(&work.pair_key);
        if tables.half_open(&work.owner, half) && leads_to(&work.owner, &half.flow, &work.pair_key) {
            half.flow.flags |= flow_flags::REPLY_LOST;
            let _ = tables.insert_half_open(&work.owner, half, true);
        }
    }
    true
}
