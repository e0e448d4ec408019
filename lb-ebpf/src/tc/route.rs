//! Packets that are routed from here, both of their addresses translated: towards a backend that sees another address than its client's,
//! and back; and whatever else the stack would lead astray.
//!
//! Where the source becomes an address of this node, or of a service, the stack would take the packet for a martian. Nothing is
//! written before the next hop is known: a packet that is too big for it, or has come too far, is quoted to its sender as it came.

use aya_ebpf::bindings::__sk_buff;
use lb_common::decide::Work;
use lb_common::stages::TcStage;

use crate::maps;
use crate::nat::ends;
use crate::scratch::{AttachPoint, Unsent};
use crate::tail_call;
use crate::tc::forward::{self, DROP, NextHop};
use crate::tc::nat;

/// [`TcStage::Route`]: does as a verdict with `route` says.
#[inline(always)]
pub fn run<const N: usize>(skb: *mut __sk_buff) -> i32 {
    let Some(scratch) = maps::scratch::<N>() else { return DROP };
    let (point, offsets) = (scratch.point, scratch.offsets());
    let length = forward::wire_length(skb, &scratch.work.packet, offsets);
    match onward(skb, &scratch.work, length, point) {
        Ok(onward) => {
            if nat::both_ends(skb, offsets, &scratch.work).is_err() {
                return forward::lost();
            }
            send::<N>(skb, point, onward)
        }
        Err(unsent) => {
            scratch.unsent = unsent;
            tail_call::tc::<N>(skb, TcStage::IcmpError, DROP)
        }
    }
}

/// Where a packet goes from here.
#[derive(Clone, Copy)]
pub enum Onward {
    /// Back over the link that it came by.
    Back,
    /// To this host, whose stack takes no packet from an address of its own.
    Host {
        is_from_host: bool,
    },
    Link(u32),
}

/// Where a packet of so many bytes goes as its verdict says; or why it does not.
#[inline(always)]
pub fn onward<const N: usize>(
    skb: *mut __sk_buff,
    work: &Work<N>,
    length: u32,
    point: AttachPoint,
) -> Result<Onward, Unsent> {
    let verdict = &work.verdict;
    if verdict.turns_back(&work.packet.key) {
        return Ok(Onward::Back);
    }
    let (src, dst) = ends(verdict);
    match forward::next_hop(skb, src, dst, work.packet.key.protocol, length) {
        NextHop::TooBig(_) => Err(Unsent::TooBig),
        NextHop::Host => Ok(Onward::Host { is_from_host: verdict.masquerade }),
        NextHop::Link(_) if forward::is_expired::<N>(skb, point) => Err(Unsent::Expired),
        NextHop::Link(link) => Ok(Onward::Link(link)),
    }
}

/// Sends the packet, written as its verdict says, on its way.
#[inline(always)]
pub fn send<const N: usize>(skb: *mut __sk_buff, point: AttachPoint, onward: Onward) -> i32 {
    match onward {
        Onward::Link(link) => forward::transmit::<N>(skb, link, point),
        Onward::Back => forward::back(skb, point),
        Onward::Host { is_from_host: true } => forward::lost(),
        Onward::Host { is_from_host: false } => forward::deliver(skb, point),
    }
}

/// Sends an answer of our own, which the packet of the scratch record has become, to its sender.
#[inline(always)]
pub fn answer<const N: usize>(skb: *mut __sk_buff, work: &Work<N>, point: AttachPoint) -> i32 {
    if !work.is_chosen() {
        return forward::back(skb, point);
    }
    // The frame came from another node, not from where the sender is. No answer is too big.
    let key = &work.packet.key;
    forward::route(skb, (&key.dst, &key.src), key.protocol, 0, point)
}
