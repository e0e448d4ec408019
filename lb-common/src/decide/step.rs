//! The decision in steps: each one small enough to be verified by itself, the next one named by the one before.

use super::{Hook, Picked, Tables, Work, direct as direct_traffic, entries, fast, known, opening, syn as second};
use super::{place as placing, retry as retrying, select as selection, vip};
use crate::abi::UDP;
use crate::state::tcp_flag;

/// What is left to do over a packet. A step hands over in [`Work`]; it never leads to one of a smaller number, but for
/// [`Step::Unseen`], which is [`open`]'s and the last one.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// The verdict stands in `work`.
    Decided = 0,
    /// [`syn`]: a SYN, or what accepts one, on the tuple of an answered flow.
    Syn,
    /// [`keep`]: the verdict stands, the other direction's entry is behind.
    Books,
    /// [`keep`]: the flow that was found is over, and the packet is none of its.
    Forget,
    /// [`keep`]: as above, then [`select`].
    Anew,
    /// [`open`]: of no answered flow; it may be of one that is not answered yet.
    Open,
    /// [`retry`]: nobody answers the flow, or its backend refused it.
    Retry,
    /// [`select`]: the first packet of a flow.
    Select,
    /// [`open`]: a segment of a service that begins no flow.
    Unseen,
    /// [`direct`]: the destination is no service's.
    Direct,
    /// [`place`]: a flow is to get its entries.
    Place,
    /// Nothing: the packet is nobody's and passes. No verdict stands in `work`. Comes from [`begin`] alone.
    Passed,
}

impl Step {
    const ALL: [Self; 12] = [
        Self::Decided,
        Self::Syn,
        Self::Books,
        Self::Forget,
        Self::Anew,
        Self::Open,
        Self::Retry,
        Self::Select,
        Self::Unseen,
        Self::Direct,
        Self::Place,
        Self::Passed,
    ];

    /// From the number that crosses the border between two functions of the programs.
    #[inline(always)]
    #[must_use]
    pub const fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Syn,
            2 => Self::Books,
            3 => Self::Forget,
            4 => Self::Anew,
            5 => Self::Open,
            6 => Self::Retry,
            7 => Self::Select,
            8 => Self::Unseen,
            9 => Self::Direct,
            10 => Self::Place,
            11 => Self::Passed,
            _ => Self::Decided,
        }
    }

    /// Whether [`keep`] is next.
    #[inline(always)]
    #[must_use]
    pub const fn keeps(self) -> bool {
        matches!(self, Self::Books | Self::Forget | Self::Anew)
    }
}

const _: () = {
    let mut i = 0;
    while i < Step::ALL.len() {
        assert!(Step::from_number(i as u8) as usize == i && Step::ALL[i] as usize == i);
        i += 1;
    }
};

/// Decides over the packet in `work`; the verdict stands there afterwards.
///
/// The programs call the steps themselves: [`begin`] inline, each other one as a function that the kernel verifies by itself.
#[inline(always)]
pub fn decide<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) {
    let mut step = begin(tables, work, hook);
    if step == Step::Passed {
        return work.clear();
    }
    if step == Step::Syn {
        step = syn(tables, work, hook, step);
    }
    if step.keeps() {
        step = keep(tables, work, hook, step);
    }
    if step == Step::Open {
        step = open(tables, work, hook, step);
    }
    if step == Step::Retry {
        step = retry(tables, work, hook, step);
    }
    if step == Step::Select {
        step = select(tables, work, hook, step);
    }
    if step == Step::Unseen {
        step = open(tables, work, hook, step);
    }
    if step == Step::Direct {
        step = direct(tables, work, hook, step);
    }
    if step == Step::Place {
        step = lead(tables, work, hook, step);
        place(tables, work, hook, step);
    }
}

/// The first step, and the only one for most packets: of a known flow, or nobody's.
#[inline(always)]
pub fn begin<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> Step {
    if let Some(entry) = tables.flow(&work.packet.key, &mut work.flow) {
        work.begin();
        return known::decide(tables, work, hook, entry);
    }
    let step = unknown(tables, work, hook);
    if step != Step::Passed {
        work.begin();
    }
    step
}

/// A packet of no answered flow. Most are of no service: the fewer look-ups, the better.
#[inline(always)]
fn unknown<const N: usize, T: Tables<N>>(tables: &mut T, work: &Work<N>, hook: Hook) -> Step {
    let key = &work.packet.key;
    // Of the segments of a connection only these may meet a half-open flow that was not asked for by way of its service.
    if key.protocol != UDP && work.packet.tcp_flags & (tcp_flag::SYN | tcp_flag::RST) == 0 {
        // Or those of one that has lost its entries.
        if tables.resumes() && tables.may_be_half_open(key) {
            return Step::Open;
        }
        return if is_foreign(tables, work, hook) { Step::Passed } else { Step::Select };
    }
    if tables.may_be_half_open(key) {
        return Step::Open;
    }
    if !is_foreign(tables, work, hook) {
        return Step::Select;
    }
    if hook.has(Hook::FROM_CLIENT) && opening::begins(work) { Step::Direct } else { Step::Passed }
}

/// Whether the packet asks for no service and for no address that only a service may have, or is not asked for one here.
#[inline(always)]
fn is_foreign<const N: usize, T: Tables<N>>(tables: &mut T, work: &Work<N>, hook: Hook) -> bool {
    // For what another node has chosen, the destination says nothing.
    let is_chosen = hook.has(Hook::FROM_OUTSIDE) && work.is_chosen();
    let dst = &work.packet.key.dst;
    !hook.has(Hook::REQUESTS) || (!is_chosen && tables.is_stranger(dst) && !tables.may_be_in_service_cidr(dst))
}

/// A SYN of a client on the tuple of an answered flow, or what answers one.
#[inline(always)]
pub fn syn<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, _: Step) -> Step {
    entries::set_pair_key(&work.packet.key, &work.flow, &mut work.pair_key);
    second::syn(tables, work, hook)
}

/// What a known flow's packet leaves to do seldom: keeping both entries alike, and forgetting them.
#[inline(always)]
pub fn keep<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, step: Step) -> Step {
    entries::set_pair_key(&work.packet.key, &work.flow, &mut work.pair_key);
    if step == Step::Books {
        known::books(tables, work, hook);
        return Step::Decided;
    }
    entries::forget(tables, work);
    if step == Step::Anew { Step::Select } else { Step::Decided }
}

/// A packet of no answered flow that may be of one that is not answered yet.
///
/// An ICMP error of the way to a backend, or of the backend itself, that quotes the SYN sent there, is to be shown to this step as
/// the RST that it stands for: the quoted tuple reversed, the flags RST and ACK, the quoted sequence number + 1 acknowledged, and the
/// verdict set to pass. Then [`retry`], if that is next. What the verdict says afterwards holds for the error: dropped
/// ([`Outcome::WithheldRefusal`]), or passed on to the client ([`Action::ToClient`]), or left alone.
#[inline(always)]
pub fn open<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, step: Step) -> Step {
    if step == Step::Unseen { opening::unseen(tables, work, hook) } else { opening::open(tables, work, hook) }
}

/// A flow that nobody answers, or that its backend refused, and another backend for it.
#[inline(always)]
pub fn retry<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, _: Step) -> Step {
    retrying::retry(tables, work, hook)
}

/// The first packet of a flow: to a backend of the service that it asks for.
#[inline(always)]
pub fn select<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, _: Step) -> Step {
    match selection::select(tables, work, hook) {
        Picked::NoService if vip::unserved(tables, work, hook) => Step::Decided,
        // Later segments collide with nothing.
        Picked::NoService if !opening::begins(work) => Step::Decided,
        Picked::NoService => Step::Direct,
        Picked::Backend => selection::found(tables, work, hook),
        // What the verdict says by now holds if there is no such flow.
        Picked::Denied | Picked::Empty | Picked::Unasked if !opening::begins(work) => Step::Unseen,
        _ => Step::Decided,
    }
}

/// A packet that no service is meant by: whether it collides with a flow of its sender's, if that is a client.
#[inline(always)]
pub fn direct<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, _: Step) -> Step {
    if hook.has(Hook::FROM_CLIENT) { direct_traffic::decide(tables, work) } else { Step::Decided }
}

/// Before [`place`]: whether packets of the flow are handed over past the host's stack, and where.
#[inline(always)]
pub fn lead<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, step: Step) -> Step {
    fast::lead(tables, work, hook);
    step
}

/// A flow gets its entries, or the packet is dropped.
#[inline(always)]
pub fn place<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook, _: Step) -> Step {
    placing::place(tables, work, hook);
    Step::Decided
}
