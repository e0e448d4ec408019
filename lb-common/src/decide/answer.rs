//! What comes back for a flow that nobody has answered yet: an answer, a refusal, or something late.
//!
//! An answer of TCP or SCTP makes no open flow: whoever floods is answered, too. It is noted in the half-open entries, and the client's own
//! segment, which acknowledges it, opens the flow ([`super::opening::unseen`]).
//!
//! `work.half` is the reply entry found under the packet's tuple, `work.pair_key` the client's.

use super::entries::{forget_half, kept_by, leads_to, pair_of, uncount};
use super::{Action, Hook, NotInserted, Now, Step, Tables, Work, fast, health, opening};
use crate::abi::{TCP, UDP, flow_flags, flow_state, half_open_flags};
use crate::outcome::Outcome;
use crate::{state, words};

/// Whether replies of a flow with these flags are rewritten at this hook; and if so, whether they are sent on from here.
#[inline(always)]
pub(super) const fn rewrites(hook: Hook, flags: u8) -> Option<bool> {
    let early = hook.has(Hook::EARLY_REPLIES) && flags & flow_flags::EARLY != 0;
    if early || hook.has(Hook::REPLIES) { Some(early) } else { None }
}

#[inline(always)]
pub(super) fn answer<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, now: Now) -> Step {
    let Some(route) = fast::replies(tables, work, hook) else { return Step::Decided };
    let protocol = work.packet.key.protocol;
    let flags = work.packet.tcp_flags;
    let timeout_s = tables.timeout_s(protocol, flow_state::HALF_OPEN);
    if state::expired(&work.flow, timeout_s, now.s) {
        // Nobody remembers the question: the packet is of another connection on these ports.
        forget_half(tables, work);
        return Step::Decided;
    }
    if work.half.flags & half_open_flags::LEFT != 0 {
        late(work);
        return Step::Decided;
    }
    let mut generation = 0;
    if work.flow.backend != 0 {
        let Some(kept) = kept_by(tables, &work.flow, now) else {
            opening::refuse(work, Outcome::Evicted);
            if protocol == UDP {
                work.settle(Action::Drop, Outcome::Evicted);
            }
            work.verdict.backend = work.flow.backend;
            return Step::Decided;
        };
        generation = kept;
    }
    work.rewrite(Action::ToClient, Outcome::Replied, route);
    let resumed = work.half.flags & half_open_flags::RESUMED != 0;
    // A backend that goes on knows the connection.
    if protocol != UDP && !(resumed && goes_on(work)) {
        let accepts = state::accepts(flags);
        // Of another attempt on the same tuple, or forged: the client judges. So it does what follows its answer.
        if !acknowledges(work, accepts) || (!accepts && (resumed || work.half.flags & half_open_flags::ANSWERED != 0)) {
            return Step::Decided;
        }
        if !accepts {
            return refusal(tables, work, generation, now);
        }
        if work.flow.backend != 0 && !took_data(work) {
            accepted(tables, work, hook, generation, now);
            return Step::Decided;
        }
    }
    work.flow.state = flow_state::OPEN;
    match promote(tables, work, hook, true, generation, now) {
        Promoted::Yes => {
            if generation != 0 {
                health::answered(tables, work.flow.backend, generation, now);
            }
        }
        Promoted::Left => late(work),
        Promoted::Full => work.settle(Action::Drop, Outcome::DroppedTableFull),
    }
    Step::Decided
}

/// What a SYN, or what a client sends before it hears anything, may carry at most.
const MOST_DATA: u32 = u16::MAX as u32;

/// Whether the packet shows that its sender knows the connection of a segment that got half-open entries anew. TCP: it acknowledges what is
/// near that segment's number. What a host says to a number that it did not expect (RFC 5961) acknowledges another one.
#[inline(always)]
fn goes_on<const N: usize>(work: &Work<N>) -> bool {
    let near = work.packet.ack.wrapping_sub(work.flow.isn.wrapping_add(1)) <= MOST_DATA;
    opening::is_midway(work) && (near || work.packet.key.protocol != TCP)
}

/// Whether the packet answers the SYN of `work.flow`. With data in it (RFC 7413), what accepts it acknowledges that, too.
#[inline(always)]
fn acknowledges<const N: usize>(work: &Work<N>, accepts: bool) -> bool {
    let more = work.packet.ack.wrapping_sub(work.flow.isn.wrapping_add(1));
    more == 0 || (accepts && work.packet.key.protocol == TCP && more <= MOST_DATA)
}

/// Whether the answer acknowledges data of the SYN: the backend knows the client by its cookie, and may send before it hears from it again
/// (RFC 7413, sections 4.1 and 4.2). So its flow is open at once.
#[inline(always)]
fn took_data<const N: usize>(work: &Work<N>) -> bool {
    work.packet.key.protocol == TCP && work.packet.ack != work.flow.isn.wrapping_add(1)
}

/// The backend accepts the connection: noted in both entries, one that is missing written again.
#[inline(always)]
fn accepted<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, generation: u32, now: Now) {
    let known = tables.half_open(&work.pair_key, &mut work.pair_half);
    if known {
        let second = work.pair_half.flags & half_open_flags::SECOND != 0;
        if second || !leads_to(&work.pair_key, &work.pair_half.flow, &work.packet.key) {
            return late(work);
        }
    } else if tables.flow(&work.pair_key, &mut work.other).is_some() {
        // The client's tuple is an answered flow's.
        if leads_to(&work.pair_key, &work.other, &work.packet.key) {
            return;
        }
        let timeout_s = tables.timeout_s(work.packet.key.protocol, work.other.state);
        if !state::yields(&work.other, timeout_s, now.s) {
            return late(work);
        }
        uncount(tables, &work.other);
        tables.remove_flow(&work.pair_key);
    }
    let (half, number) = (&mut work.half, work.packet.seq);
    let first = half.flags & half_open_flags::ANSWERED == 0;
    if first || (half.answers[0] != number && half.answers[1] != number) {
        half.answers = [number, if first { number } else { half.answers[0] }];
        half.flags |= half_open_flags::ANSWERED;
        tables.mark_answered(&work.packet.key, half.flow.backend, half.answers);
    }
    let (backend, answers) = (work.half.flow.backend, work.half.answers);
    if !known {
        words::clear(&mut work.pair_half);
        let link = fast::other_link(tables, &work.flow, &work.packet.key.src, hook);
        if link != work.half.flow.link && link == 0 {
            // Its own link is not known here: neither direction keeps one.
            work.half.flow.link = 0;
            let _ = tables.insert_half_open(&work.packet.key, &work.half, true);
        }
        pair_of(&work.packet.key, &work.flow, &work.pair_key, link, &mut work.pair_half.flow);
        (work.pair_half.flags, work.pair_half.answers) = (half_open_flags::ANSWERED, answers);
        // Lost if the table is full: the client asks once more.
        let _ = tables.insert_half_open(&work.pair_key, &work.pair_half, false);
    } else if !tables.mark_answered(&work.pair_key, backend, answers) {
        // Moved at this very moment.
        return late(work);
    } else if first {
        health::accuse_silent(tables, work, now);
    }
    health::answered(tables, backend, generation, now);
}

/// The backend refuses the connection: the next step says whether the client is told.
#[inline(always)]
fn refusal<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, generation: u32, now: Now) -> Step {
    if work.flow.backend == 0 {
        forget_half(tables, work);
        return Step::Decided;
    }
    health::accuse(tables, work.flow.backend, generation, now);
    Step::Retry
}

/// The answer of a backend that the flow has left: it is told that the connection is not wanted.
#[inline(always)]
fn late<const N: usize>(work: &mut Work<N>) {
    let accepts = state::accepts(work.packet.tcp_flags);
    work.settle(if accepts { Action::Refuse } else { Action::Drop }, Outcome::RefusedLate);
    work.verdict.backend = work.flow.backend;
}

/// What became of a half-open flow that is to be an open one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Promoted {
    Yes = 0,
    /// The flow is another backend's meanwhile.
    Left,
    Full,
}

/// Makes the half-open flow an open one. `work.flow` is the entry of the packet's direction as it is to be: with its new state.
///
/// Other CPUs may move the flow, or make it another backend's, at the same time: whoever writes the client's entry among the answered
/// flows first has decided whose it is.
#[inline(always)]
pub(super) fn promote<const N: usize, T: Tables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    hook: Hook,
    is_reply: bool,
    generation: u32,
    now: Now,
) -> Promoted {
    // The client's half says whom the flow is with; either half, by which link the other direction goes.
    let known = (is_reply || work.flow.link != 0)
        && tables.half_open(&work.pair_key, &mut work.pair_half)
        && work.pair_half.flags & half_open_flags::SECOND == 0;
    let link = if known && leads_to(&work.pair_key, &work.pair_half.flow, &work.packet.key) {
        work.pair_half.flow.link
    } else if known && is_reply {
        return Promoted::Left;
    } else {
        fast::other_link(tables, &work.flow, &work.packet.key.src, hook)
    };
    if link == 0 {
        work.flow.link = 0;
    }
    work.flow.seen_s = now.s;
    if generation != 0 && work.flow.flags & flow_flags::ENDED != flow_flags::ENDED {
        work.flow.flags |= flow_flags::COUNTED;
    }
    pair_of(&work.packet.key, &work.flow, &work.pair_key, link, &mut work.pair);
    let (client, reply) =
        if is_reply { (&work.pair_key, &work.packet.key) } else { (&work.packet.key, &work.pair_key) };
    let (forward, answer) = if is_reply { (&work.pair, &work.flow) } else { (&work.flow, &work.pair) };
    let mut counts = work.flow.flags & flow_flags::COUNTED != 0;
    match tables.insert_flow(client, forward, false) {
        Ok(()) => {}
        Err(NotInserted::Full) => return Promoted::Full,
        Err(NotInserted::Exists) => {
            if tables.flow(client, &mut work.other).is_some() {
                let timeout_s = tables.timeout_s(client.protocol, work.other.state);
                let ours = leads_to(client, &work.other, reply);
                if !ours && !state::yields(&work.other, timeout_s, now.s) {
                    return Promoted::Left;
                }
                if ours {
                    counts = false;
                } else {
                    uncount(tables, &work.other);
                }
            }
            if tables.insert_flow(client, forward, true).is_err() {
                return Promoted::Full;
            }
        }
    }
    if tables.insert_flow(reply, answer, true).is_err() {
        return Promoted::Full;
    }
    tables.remove_half_open(client);
    tables.remove_half_open(reply);
    if work.flow.port != 0 {
        tables.opened(now.s);
    }
    if counts {
        tables.count_connection(work.flow.backend, generation, 1);
    }
    Promoted::Yes
}
