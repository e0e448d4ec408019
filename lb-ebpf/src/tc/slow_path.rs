//! What the entry programs do not read: ICMP, fragments, extension headers, SCTP, headers that contradict each other.

use aya_ebpf::bindings::__sk_buff;
use lb_common::abi::{SCTP, TCP, UDP};
use lb_common::decide::{self, Hook, Step, begin};
use lb_common::outcome::Outcome;
use lb_common::stages::TcStage;

use crate::counters::{self, Counter};
use crate::kernel::Kernel;
use crate::maps;
use crate::outer_header;
use crate::scratch::Scratch;
use crate::tail_call;
use crate::tc::decision;
use crate::tc::forward::{DROP, NEXT};
use crate::tc::fragments;
use crate::tc::headers::{self, Extent, Headers, Odd, Piece, is_icmp};
use crate::tc::transport;

/// [`TcStage::Parse`]: reads the packet into the scratch record, and says which program goes on.
#[inline(always)]
pub fn parse<const N: usize>(skb: *mut __sk_buff) -> i32 {
    let Some(scratch) = maps::scratch::<N>() else { return NEXT };
    // SAFETY: reads the context.
    let (length, ifindex) = unsafe { ((*skb).len, (*skb).ifindex) };
    let network = scratch.point.network();
    let packet = &mut scratch.work.packet;
    packet.length = length.saturating_sub(network as u32);
    let found = headers::network(skb, network, Extent::Packet(length as usize), &mut packet.key);
    let found = found.and_then(|headers| {
        if headers.piece != Piece::Later && matches!(headers.protocol, TCP | UDP | SCTP) {
            transport::read(skb, &headers, packet)?;
        }
        Ok(headers)
    });
    let mut tables = Kernel::at(skb.cast(), ifindex);
    if let Ok(headers) = &found {
        packet.length = (headers.end as u32).saturating_sub(network as u32);
    }
    let stage = match found {
        Ok(headers) => stage_of(&mut tables, scratch, &headers),
        Err(Odd::Foreign) => unrelated(&mut tables, scratch),
        Err(Odd::Malformed) => {
            decide::malformed(&mut tables, &mut scratch.work);
            TcStage::Verdict
        }
    };
    tail_call::tc::<N>(skb, stage, NEXT)
}

#[inline(always)]
fn stage_of<const N: usize>(tables: &mut Kernel, scratch: &mut Scratch<N>, headers: &Headers) -> TcStage {
    scratch.transport = headers.transport as u32;
    let is_icmp = is_icmp::<N>(headers.protocol);
    match headers.protocol {
        TCP | UDP | SCTP if headers.piece != Piece::Later => {
            if headers.piece == Piece::First {
                fragments::remember(tables, &mut scratch.work, headers);
            }
            TcStage::Lookup
        }
        // An ICMP message in pieces: no error is as long, and no echo of it is answered.
        _ if headers.piece == Piece::Later || (is_icmp && headers.piece == Piece::First) => {
            scratch.fragment_id = headers.id;
            TcStage::Fragment
        }
        _ if is_icmp => {
            scratch.icmp.header = headers.transport as u32;
            scratch.icmp.end = headers.end as u32;
            TcStage::Icmp
        }
        // What is taken out may lead back here, but not out of another one.
        protocol
            if protocol == outer_header::protocol::<N>()
                && scratch.point.hook().has(Hook::FROM_OUTSIDE)
                && headers.piece == Piece::Whole
                && headers.transport == scratch.point.network() + outer_header::length::<N>()
                && !scratch.work.is_chosen() =>
        {
            TcStage::Decapsulate
        }
        _ => unrelated(tables, scratch),
    }
}

/// Decides over a packet of no connection: it passes, unless it would go round.
#[inline(always)]
pub fn unrelated<const N: usize>(tables: &mut Kernel, scratch: &mut Scratch<N>) -> TcStage {
    decide::foreign(tables, &mut scratch.work, scratch.point.hook());
    TcStage::Verdict
}

/// [`TcStage::Lookup`]: what the entry programs do with what they have read.
#[inline(always)]
pub fn lookup<const N: usize>(skb: *mut __sk_buff) -> i32 {
    let Some(scratch) = maps::scratch::<N>() else { return DROP };
    // SAFETY: reads the context.
    let mut tables = Kernel::at(skb.cast(), unsafe { (*skb).ifindex });
    let step = begin::<N, Kernel>(&mut tables, &mut scratch.work, scratch.point.hook());
    if step == Step::Unrelated {
        counters::outcome(Outcome::Passed, Counter::Packet);
        return NEXT;
    }
    decision::go_on(skb, scratch, step)
}
