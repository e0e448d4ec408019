//! Packets that concern a flow without being one of its own: ICMP errors about it, later fragments, headers that contradict each
//! other. They go the flow's way, or not at all, and change nothing of it.

use super::answer::rewrites;
use super::entries::is_of;
use super::vip::{ends_here, unallocated};
use super::{Action, Hook, Now, Tables, Work, is_vip};
use crate::abi::{ServiceKey, flow_flags, flow_state, half_open_flags};
use crate::outcome::Outcome;
use crate::{state, words};

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
    if !find(tables, work) {
        return Way::Unknown;
    }
    let flow = &work.flow;
    if state::expired(flow, tables.timeout_s(work.packet.key.protocol, flow.state), now.s) {
        return Way::Unknown;
    }
    let is_reply = flow.flags & flow_flags::REPLY != 0;
    let rewritten = rewrites(hook, flow.flags);
    let here = if is_reply {
        rewritten.is_some()
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
    let (action, route) = if is_reply {
        (Action::ToClient, rewritten == Some(true))
    } else {
        (Action::ToBackend, hook.has(Hook::ROUTED))
    };
    work.rewrite(action, outcome, route);
    Way::Translated
}

/// Finds the flow of the packet's tuple, answered or not, in `work.flow`; `false`: there is none.
#[inline(always)]
fn find<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    if tables.flow(&work.packet.key, &mut work.flow).is_some() {
        return true;
    }
    // What is LEFT has no way to the client any more; a SECOND is of a flow that is answered, and was found above.
    let found = tables.half_open(&work.packet.key, &mut work.half)
        && work.half.flags & (half_open_flags::LEFT | half_open_flags::SECOND) == 0;
    words::copy(&work.half.flow, &mut work.flow);
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
    } else if !unallocated(tables, work) {
        work.settle(Action::Pass, Outcome::Fragment);
    }
}

/// A packet whose headers contradict each other, its tuple as far as it can be read, the rest zero.
#[inline(always)]
pub fn malformed<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) {
    work.clear();
    if is_vip(tables, &work.packet.key.dst) || concerns(tables, work) {
        work.settle(Action::Drop, Outcome::DroppedMalformed);
    } else {
        unallocated(tables, work);
    }
}

/// A packet of a protocol that is not balanced, or a message about no flow: it passes, but goes no further where it was sent to an
/// address of services, or to one that only a service may have.
#[inline(always)]
pub fn foreign<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) {
    work.clear();
    if ends_here(tables, &work.packet.key.dst, hook) {
        work.settle(Action::Drop, Outcome::RefusedUnserved);
    } else if hook.has(Hook::REQUESTS) {
        unallocated(tables, work);
    }
}

/// Whether this packet is a flow's, or may begin one.
#[inline(always)]
pub fn concerns<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    let key = &work.packet.key;
    let frontend = ServiceKey { address: key.dst, port: key.dst_port, protocol: key.protocol, pad: 0 };
    find(tables, work) || tables.service(&frontend, &mut work.pick.service)
}
