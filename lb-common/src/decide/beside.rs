//! Packets that concern a flow without being one of its own: ICMP errors about it, later fragments, headers that contradict each
//! other. They go the flow's way, or not at all, and change nothing of it.

use super::known::is_of;
use super::{Action, Hook, Now, Tables, Work, is_vip, no_flow};
use crate::abi::{Flow, FlowKey, HalfOpen, MOST_MOVES, ServiceKey, flow_flags, flow_state, half_open_flags};
use crate::outcome::Outcome;
use crate::state;

/// What the packet's tuple came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The verdict says how the packet is translated.
    Translated,
    /// A flow's, but not to be translated at this hook, or not any more.
    NotHere,
    /// No flow's.
    Unknown,
}

/// Translates as a packet of this tuple would be, counted as `outcome`.
#[inline(always)]
pub(super) fn translate<const N: usize, T: Tables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    hook: Hook,
    outcome: Outcome,
) -> Way {
    let now = Now::from_ns(tables.now_ns());
    let key = work.packet.key;
    if !find(tables, &key, &mut work.flow) {
        return Way::Unknown;
    }
    let flow = &work.flow;
    if state::expired(flow, tables.timeout_s(key.protocol, flow.state), now.s) {
        return Way::Unknown;
    }
    let is_reply = flow.flags & flow_flags::REPLY != 0;
    let early = hook.has(Hook::EARLY_REPLIES) && flow.flags & flow_flags::EARLY != 0;
    let here = if is_reply {
        early || hook.has(Hook::REPLIES)
    } else {
        // A translated packet looks like the direct one of the same tuple: only the client's own link can tell them apart.
        hook.has(Hook::REQUESTS) && (flow.flags & flow_flags::DIRECT == 0 || hook.has(Hook::FROM_CLIENT))
    };
    if !here {
        return Way::NotHere;
    }
    if flow.backend != 0 {
        let backend = tables.backend(flow.backend);
        let keeps = matches!(&backend, Some(backend) if is_of(backend, flow) && state::keeps_flows(backend, now.ds));
        if !keeps || flow.state == flow_state::EVICTED {
            work.verdict.backend = flow.backend;
            work.settle(Action::Drop, Outcome::Evicted);
            return Way::NotHere;
        }
    }
    let (action, route) =
        if is_reply { (Action::ToClient, early) } else { (Action::ToBackend, hook.has(Hook::ROUTED)) };
    work.rewrite(action, outcome, route);
    Way::Translated
}

/// Copies the flow of this tuple to `into`, answered or not; `false`: there is none.
#[inline(always)]
fn find<const N: usize, T: Tables<N>>(tables: &mut T, key: &FlowKey<N>, into: &mut Flow<N>) -> bool {
    if tables.flow(key, into).is_some() {
        return true;
    }
    let mut entry = HalfOpen { flow: no_flow(), tried: [0; MOST_MOVES], segments: 0, moves: 0, flags: 0, pad: 0 };
    // What is LEFT has no way to the client any more; a SECOND is of a flow that is answered, and was found above.
    let found =
        tables.half_open(key, &mut entry) && entry.flags & (half_open_flags::LEFT | half_open_flags::SECOND) == 0;
    *into = entry.flow;
    found
}

/// A later fragment, its ports known from the first one.
#[inline(always)]
pub fn later_fragment<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) {
    work.clear();
    work.settle(Action::Pass, Outcome::Fragment);
    if translate(tables, work, hook, Outcome::FragmentFollowed) == Way::Unknown {
        stray_fragment(tables, work);
    }
}

/// A later fragment whose first one is not known, or went nowhere.
#[inline(always)]
pub fn stray_fragment<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) {
    work.clear();
    if is_vip(tables, &work.packet.key.dst) {
        work.settle(Action::Drop, Outcome::DroppedFragment);
    } else {
        work.settle(Action::Pass, Outcome::Fragment);
    }
}

/// A packet whose headers contradict each other, its tuple as far as it can be read, the rest zero.
#[inline(always)]
pub fn malformed<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) {
    work.clear();
    if is_vip(tables, &work.packet.key.dst) || concerns(tables, work) {
        work.settle(Action::Drop, Outcome::DroppedMalformed);
    }
}

/// Whether this packet is a flow's, or may begin one.
#[inline(always)]
pub fn concerns<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    let key = work.packet.key;
    let frontend = ServiceKey { address: key.dst, port: key.dst_port, protocol: key.protocol, pad: 0 };
    find(tables, &key, &mut work.flow) || tables.service(&frontend, &mut work.pick.service)
}
