//! Packets of a flow that is half-open, from the client's side: its SYN again, and the segment that shows that it has the answer.
//!
//! `work.half` is the entry found under the packet's tuple, `work.pair_key` the key of the other direction.

use super::entries::{forget_half, kept_by, leads_to, set_pair_key};
use super::place::{answer_half, placing};
use super::{Action, Hook, Now, Step, Tables, Work, answer, fast, select, tunnel};
use crate::abi::{MOST_MOVES, TCP, UDP, flow_flags, flow_state, half_open_flags};
use crate::outcome::Outcome;
use crate::state::tcp_flag;
use crate::{state, words};

/// A packet of no answered flow that may belong to one that is not answered yet.
#[inline(always)]
pub(super) fn open<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> Step {
    let new = if hook.has(Hook::REQUESTS) { Step::Select } else { Step::Decided };
    if !tables.half_open(&work.packet.key, &mut work.half) {
        return new;
    }
    // Any other segment opens a flow, or belongs to none.
    if is_midway(work) && work.half.flags & half_open_flags::RESUMED == 0 {
        return new;
    }
    words::copy(&work.half.flow, &mut work.flow);
    set_pair_key(&work.packet.key, &work.flow, &mut work.pair_key);
    let now = Now::from_ns(tables.now_ns());
    if work.flow.flags & flow_flags::REPLY != 0 {
        return answer::answer(tables, work, hook, now);
    }
    // A translated packet looks like the direct one of the same tuple: only the client's own link can tell them apart.
    if new == Step::Decided || (work.flow.flags & flow_flags::DIRECT != 0 && !hook.has(Hook::FROM_CLIENT)) {
        return Step::Decided;
    }
    again(tables, work, hook, now)
}

/// Whether the packet neither opens nor accepts nor resets a connection.
#[inline(always)]
pub(super) const fn is_midway<const N: usize>(work: &Work<N>) -> bool {
    let flags = work.packet.tcp_flags;
    work.packet.key.protocol != UDP && !state::opens(flags) && !state::accepts(flags) && flags & tcp_flag::RST == 0
}

/// The client sends once more.
#[inline(always)]
fn again<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, now: Now) -> Step {
    let protocol = work.packet.key.protocol;
    let opens = protocol != UDP && state::opens(work.packet.tcp_flags);
    let timeout_s = tables.timeout_s(protocol, flow_state::HALF_OPEN);
    let other_attempt = opens && work.flow.isn != work.packet.seq;
    if other_attempt || work.half.flags & half_open_flags::SECOND != 0 || state::expired(&work.flow, timeout_s, now.s) {
        forget_half(tables, work);
        return Step::Select;
    }
    if work.flow.backend != 0 {
        let Some(backend) = tables.backend(work.flow.backend) else { return gone(tables, work) };
        if kept_by(tables, &work.flow, now).is_none() || (protocol == UDP && state::udp_moves(&backend)) {
            return gone(tables, work);
        }
    }
    // No stack sends a SYN again within the second (RFC 6298, section 2): the network has doubled it.
    if opens && work.flow.seen_s != now.s {
        work.half.segments = work.half.segments.saturating_add(1);
        let moves = work.half.flags & (half_open_flags::MOVES | half_open_flags::ANSWERED) == half_open_flags::MOVES
            && (work.half.moves as usize) < MOST_MOVES;
        if moves && hook.has(Hook::FROM_CLIENT) {
            return Step::Retry;
        }
    }
    stay(tables, work, hook, now);
    if is_reset(work) {
        forget_half(tables, work);
    }
    Step::Decided
}

/// Whether the client wants no connection of what was answered: its RST has the number that the answer acknowledged.
#[inline(always)]
fn is_reset<const N: usize>(work: &Work<N>) -> bool {
    let packet = &work.packet;
    if packet.tcp_flags & tcp_flag::RST == 0 || work.half.flags & half_open_flags::ANSWERED == 0 {
        return false;
    }
    // SCTP: what is answered names its backend's tag.
    if packet.key.protocol == TCP { packet.seq == work.flow.isn.wrapping_add(1) } else { has_answer(work) }
}

/// The backend takes no more of the flow, and nobody has answered it: it begins anew.
#[inline(always)]
fn gone<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) -> Step {
    forget_half(tables, work);
    if work.packet.key.protocol == UDP {
        work.beginning = Outcome::Moved;
    }
    Step::Select
}

/// The flow stays with its backend.
#[inline(always)]
pub(super) fn stay<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, now: Now) {
    let is_udp = work.packet.key.protocol == UDP;
    let resumed = work.half.flags & half_open_flags::RESUMED != 0;
    let counts = !is_udp && (state::opens(work.packet.tcp_flags) || resumed);
    let lost = work.flow.flags & flow_flags::REPLY_LOST != 0;
    // Datagrams may be many: their time is written once a second. A RST of the client changes nothing.
    if counts || (is_udp && (lost || work.flow.seen_s != now.s)) {
        work.half.flow.seen_s = now.s;
        work.half.flow.flags &= !flow_flags::REPLY_LOST;
        let link = fast::other_link(tables, &work.half.flow, &work.packet.key.src, hook);
        answer_half(work, link);
        // What is lost when the table is full is written again with the next packet. What another processor notes of an answer at this
        // very moment stays.
        let (backend, segments) = (work.half.flow.backend, work.half.segments);
        if is_udp || !tables.ask_again(&work.packet.key, backend, segments, now.s) {
            let _ = tables.insert_half_open(&work.packet.key, &work.half, is_udp);
        }
        // Another flow may have claimed the tuple since the entry was lost.
        let taken = tables.flow(&work.pair_key, &mut work.other).is_some()
            || (tables.half_open(&work.pair_key, &mut work.other_half)
                && !leads_to(&work.pair_key, &work.other_half.flow, &work.packet.key));
        if !taken && (is_udp || !tables.ask_again(&work.pair_key, backend, 0, now.s)) {
            let _ = tables.insert_half_open(&work.pair_key, &work.pair_half, is_udp);
        }
    }
    let direct = work.flow.flags & flow_flags::DIRECT != 0;
    let outcome = if direct { Outcome::DirectTranslated } else { Outcome::Forwarded };
    work.rewrite(Action::ToBackend, outcome, hook.has(Hook::ROUTED));
}

/// Whether the packet begins a flow.
#[inline(always)]
pub(super) const fn begins<const N: usize>(work: &Work<N>) -> bool {
    work.packet.key.protocol == UDP || state::opens(work.packet.tcp_flags)
}

/// A client's segment of a service, but of no open flow: it acknowledges the answer of a half-open one, which is open from now on; or it
/// belongs to none, for which the verdict is in `work` already.
#[inline(always)]
pub(super) fn unseen<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> Step {
    let now = Now::from_ns(tables.now_ns());
    let is_half_open = tables.half_open(&work.packet.key, &mut work.half);
    if !is_half_open && was_opened(tables, work, hook, now) {
        return Step::Decided;
    }
    if !is_half_open || !follows(tables, work, now) {
        if tunnel::follow(tables, work, hook, now.s) {
            return resume(tables, work, hook);
        }
        if !is_half_open && is_adopted(tables, work, hook, now) {
            work.settle(Action::Pass, Outcome::PassedAdoption);
        }
        return Step::Decided;
    }
    words::copy(&work.half.flow, &mut work.flow);
    set_pair_key(&work.packet.key, &work.flow, &mut work.pair_key);
    let Some(generation) = kept_by(tables, &work.flow, now) else {
        refuse(work, Outcome::Evicted);
        return Step::Decided;
    };
    let flags = work.packet.tcp_flags;
    work.flow.state = state::after_forward(flow_state::OPEN, work.packet.key.protocol, flags);
    work.flow.flags |= state::ends(work.packet.key.protocol, flags, flow_flags::CLIENT_ENDED);
    match answer::promote(tables, work, hook, false, generation, now) {
        answer::Promoted::Yes => work.rewrite(Action::ToBackend, Outcome::Forwarded, hook.has(Hook::ROUTED)),
        // The client sends it once more.
        answer::Promoted::Full => work.settle(Action::Drop, Outcome::DroppedTableFull),
        answer::Promoted::Left => refuse(work, Outcome::RefusedNoFlow),
    }
    Step::Decided
}

/// Whether a segment that is to be refused is left to the host's stack. Its NAT has had its turn with what is routed already, and knows
/// nothing of what another node has chosen a backend for.
#[inline(always)]
fn is_adopted<const N: usize, T: Tables<N>>(tables: &mut T, work: &Work<N>, hook: Hook, now: Now) -> bool {
    !hook.has(Hook::ROUTED)
        && !work.is_chosen()
        && matches!(work.verdict.action, Action::Refuse | Action::Drop)
        && tables.adopts(now.s)
}

/// Whether another processor has opened the flow since it was looked for: a request may overtake the acknowledgement that opens it, as the
/// client's kernel sends the one from where the answer came in and the other from where the process runs.
#[inline(always)]
fn was_opened<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, now: Now) -> bool {
    if tables.flow(&work.packet.key, &mut work.flow).is_none()
        || work.flow.flags & (flow_flags::REPLY | flow_flags::DIRECT) != 0
        || work.flow.state == flow_state::EVICTED
        || kept_by(tables, &work.flow, now).is_none()
    {
        return false;
    }
    work.rewrite(Action::ToBackend, Outcome::Forwarded, hook.has(Hook::ROUTED));
    true
}

/// The flow gets half-open entries anew, with the backend in `work.pick`: its SYN went there. What the backend says to the segment shows
/// whether it knows the connection. If not, that is a RST, which opens nothing.
#[inline(always)]
fn resume<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> Step {
    let step = select::found(tables, work, hook);
    work.placing |= placing::BY_TUPLE;
    work.beginning = Outcome::Resumed;
    work.half.flags = half_open_flags::RESUMED;
    if work.packet.key.protocol == TCP {
        work.half.flow.isn = work.packet.seq.wrapping_sub(1);
    }
    step
}

/// Whether the segment follows the SYN of `work.half`, and its answer. No answer passes here of what goes whole to the backend's node.
#[inline(always)]
fn follows<const N: usize, T: Tables<N>>(tables: &mut T, work: &Work<N>, now: Now) -> bool {
    /// No window is larger (RFC 7323, section 2.3).
    const LARGEST_WINDOW: u32 = 1 << 30;
    let flow = &work.half.flow;
    let protocol = work.packet.key.protocol;
    let distance = work.packet.seq.wrapping_sub(flow.isn.wrapping_add(1));
    let timeout_s = tables.timeout_s(protocol, flow_state::HALF_OPEN);
    flow.flags & flow_flags::REPLY == 0
        && work.half.flags & half_open_flags::SECOND == 0
        && (protocol != TCP || distance <= LARGEST_WINDOW)
        && if flow.port == 0 { !tables.pressed() } else { has_answer(work) }
        && !state::expired(flow, timeout_s, now.s)
}

/// Whether the segment acknowledges an answer to `work.half`: whoever forges its sender has seen none.
#[inline(always)]
fn has_answer<const N: usize>(work: &Work<N>) -> bool {
    let number = work.packet.ack.wrapping_sub(1);
    let [latest, before] = work.half.answers;
    work.half.flags & half_open_flags::ANSWERED != 0 && (number == latest || number == before)
}

/// Tells the sender. A RST is never answered by a RST (RFC 9293, section 3.10.7.1).
#[inline(always)]
pub(super) fn refuse<const N: usize>(work: &mut Work<N>, outcome: Outcome) {
    let silent = work.packet.key.protocol != UDP && work.packet.tcp_flags & tcp_flag::RST != 0;
    work.settle(if silent { Action::Drop } else { Action::Refuse }, outcome);
}
