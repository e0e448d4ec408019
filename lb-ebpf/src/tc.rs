//! One packet at tc: parse, decide, act, count.
//!
//! `family` is the way of a known flow, inline and short. All that happens seldom is a global function of its own (see `steps`), so
//! that neither its stack nor its paths count here: the decision's further steps, refusals. What else turns up seldom hangs in the
//! same way: a packet that `parse` leaves aside (an ICMP error, an echo request, a later fragment) where `family` has matched its
//! `Err`, another way to write a packet (both addresses) in `act`. Such a function takes the context and one number, asks
//! `Family::work()` for the scratch record itself, and returns a number; nothing that holds the record is kept across the call.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::generated::bpf_skb_pull_data;
use aya_log_ebpf::debug;
use lb_common::abi::{SCTP, flow_link};
use lb_common::decide::{Action, Hook, Step, Tables, Work, begin};
use lb_common::outcome::Outcome;

use crate::aside::{self, LEAST_TRANSPORT, Spot};
use crate::beyond;
use crate::count::{self, Counter};
use crate::fast::{self, FAST_PATH_ON};
use crate::forward::{self, DROP, NEXT};
use crate::fragments;
use crate::maps::Family;
use crate::masquerade;
use crate::parse::{Bytes, ETHERNET, IPV4, IPV6, Offsets, Other, TCP_HEADER, parse};
use crate::reject;
use crate::rewrite::End;
use crate::rewrite_tc;
use crate::sctp;
use crate::steps;
use crate::tables::Kernel;
use crate::tunnel;

/// A hook as the entry points name it: [`Hook`]'s bits and the number in events, known at compile time.
pub trait Place {
    const HOOK: Hook;
    const ID: u8;
    /// Where the network header begins: behind an Ethernet header, or at once on links without one.
    const NETWORK: usize;
    const INGRESS: bool;
}

/// The longest headers that are read: IPv4 with all its options and TCP without; IPv6 takes as much.
const LONGEST_HEADERS: usize = 60 + TCP_HEADER;

/// Handles one packet at this place.
#[inline(always)]
pub fn handle<P: Place>(skb: *mut __sk_buff) -> i32 {
    // SAFETY: reads the context.
    match u16::from_be(unsafe { (*skb).protocol } as u16) {
        IPV4 => either_way::<4, P>(skb),
        IPV6 => either_way::<16, P>(skb),
        _ => NEXT,
    }
}

/// No verdict at tc: the packet was left aside.
const ASIDE: i32 = -100;

/// The ordinary path, or for what it leaves aside the other one, which may lead back.
#[inline(always)]
fn either_way<const N: usize, P: Place>(skb: *mut __sk_buff) -> i32
where
    Kernel: Family<N> + Tables<N>,
{
    let verdict = family::<N, P>(skb, 0);
    if verdict != ASIDE {
        return verdict;
    }
    let mut verdict = aside_then_family::<N, P>(skb);
    if !P::HOOK.has(Hook::FROM_OUTSIDE) || verdict != aside::TUNNEL {
        return verdict;
    }
    verdict = tunnel::open::<N>(skb, Spot::number::<P>());
    if verdict == tunnel::OPENED {
        verdict = family::<N, P>(skb, 0);
        if verdict == ASIDE {
            verdict = aside_then_family::<N, P>(skb);
        }
        tunnel::close::<N>();
    }
    verdict
}

/// What the ordinary path has left aside, and that again for what was read there.
#[inline(always)]
fn aside_then_family<const N: usize, P: Place>(skb: *mut __sk_buff) -> i32
where
    Kernel: Family<N> + Tables<N>,
{
    let verdict = aside::handle::<N>(skb, Spot::number::<P>());
    if P::HOOK.has(Hook::FROM_OUTSIDE) && verdict == fragments::WHOLE {
        return tunnel::send::<N>(skb, Spot::number::<P>(), tunnel::UNTOLD);
    }
    if verdict < LEAST_TRANSPORT { verdict } else { family::<N, P>(skb, verdict as u32) }
}

/// One family in a function of its own: both in one would not fit the stack. `transport`: where the transport header of a packet begins
/// that the scratch record holds already; else 0.
#[inline(never)]
fn family<const N: usize, P: Place>(skb: *mut __sk_buff, transport: u32) -> i32
where
    Kernel: Family<N> + Tables<N>,
{
    let Some(work) = <Kernel as Family<N>>::work() else { return NEXT };
    let offsets = if transport != 0 {
        Offsets { network: P::NETWORK, transport: transport as usize }
    } else {
        match read::<N, P>(skb, work) {
            Ok(offsets) => offsets,
            Err(_) => return ASIDE,
        }
    };
    serve::<N, P>(skb, work, offsets)
}

#[inline(always)]
fn read<const N: usize, P: Place>(skb: *mut __sk_buff, work: &mut Work<N>) -> Result<Offsets, Other> {
    let offsets = parse(bytes(skb), P::NETWORK, &mut work.packet);
    let Err(Other::Short) = offsets else { return offsets };
    // SAFETY: reads the context, calls a helper on the program's own packet. What does not fit is not there.
    unsafe { bpf_skb_pull_data(skb, (*skb).len.min((P::NETWORK + LONGEST_HEADERS) as u32)) };
    parse(bytes(skb), P::NETWORK, &mut work.packet)
}

#[inline(always)]
fn bytes(skb: *mut __sk_buff) -> Bytes {
    // SAFETY: reads the context.
    unsafe { Bytes { start: (*skb).data as usize, end: (*skb).data_end as usize, length: (*skb).len } }
}

#[inline(always)]
fn serve<const N: usize, P: Place>(skb: *mut __sk_buff, work: &mut Work<N>, offsets: Offsets) -> i32
where
    Kernel: Family<N> + Tables<N>,
{
    // SAFETY: reads the context.
    let ifindex = unsafe { (*skb).ifindex };
    let mut tables = Kernel::at(skb.cast(), ifindex);
    let step = begin::<N, Kernel>(&mut tables, work, P::HOOK);
    if step == Step::Passed {
        count::outcome(Outcome::Passed, Counter::Packet);
        return NEXT;
    }
    if step != Step::Decided {
        steps::tc::<N>(skb, step, P::HOOK);
    }
    // Anew: the steps work in the same record.
    let Some(work) = <Kernel as Family<N>>::work() else { return NEXT };
    count::packet(work, P::ID, ifindex, work.packet.length);
    let verdict = &work.verdict;
    debug!(
        skb,
        "hook {} outcome {} service {} backend {}",
        P::ID,
        verdict.outcome as u8,
        verdict.service,
        verdict.backend
    );
    act::<N, P>(skb, work, offsets, tables.peer)
}

#[inline(always)]
fn act<const N: usize, P: Place>(
    skb: *mut __sk_buff,
    work: &mut Work<N>,
    offsets: Offsets,
    peer: Option<[u8; 6]>,
) -> i32 {
    let action = work.verdict.action;
    let end = match action {
        Action::Pass => return NEXT,
        Action::Drop => return DROP,
        Action::Refuse => return reject::answer::<N>(skb, Spot::number::<P>(), offsets.transport as u32),
        Action::ToBackend => End::Destination,
        Action::ToClient => End::Source,
    };
    if action == Action::ToBackend && work.verdict.port == 0 {
        if P::HOOK.has(Hook::FROM_OUTSIDE) {
            return tunnel::send::<N>(skb, Spot::number::<P>(), offsets.transport as u32);
        }
        // Somebody inside speaks as a client outside whose flow goes whole.
        return forward::lost();
    }
    if work.verdict.route {
        return masquerade::send::<N>(skb, Spot::number::<P>(), offsets.transport as u32);
    }
    let (link, protocol) = (work.verdict.link, work.packet.key.protocol);
    if protocol == SCTP {
        let verdict = sctp::rewrite::<N>(skb, Spot::number::<P>(), offsets.transport as u32);
        return if verdict == sctp::DONE { NEXT } else { verdict };
    }
    let to_client = action == Action::ToClient;
    if P::HOOK.has(Hook::FROM_CLIENT) && FAST_PATH_ON.load() != 0 && !to_client && flow_link::way(link) != 0 {
        let verdict = beyond::send::<N>(skb);
        if verdict != NEXT {
            return verdict;
        }
    } else if P::HOOK.has(Hook::HANDS_OVER)
        && FAST_PATH_ON.load() != 0
        && link != 0
        && (to_client || P::HOOK.has(Hook::FROM_CLIENT))
    {
        let peer = match peer {
            None if to_client => fast::peer(link),
            None => fast::takes::<N>(skb, link, protocol),
            known => known,
        };
        if let Some(peer) = peer {
            let verdict = rewrite_tc::rewrite(skb, Spot::number::<P>(), offsets, work, end, 1);
            return if verdict == rewrite_tc::DONE { fast::send(skb, link, peer) } else { verdict };
        }
        // An answer that is rewritten here may go no other way.
        if to_client {
            return forward::lost();
        }
    }
    let verdict = rewrite_tc::rewrite(skb, Spot::number::<P>(), offsets, work, end, 0);
    if verdict == rewrite_tc::DONE { NEXT } else { verdict }
}

/// Ethernet or not, as a constant of a place.
pub const WITH_ETHERNET: usize = ETHERNET;
pub const WITHOUT_ETHERNET: usize = 0;
