//! The end of a connection: only its two endpoints can bring it about.
//!
//! An endpoint proves itself by numbers that a third party has not seen. A RST counts if its sequence number is the one that the opposite
//! endpoint acknowledged last (as in RFC 5961, section 3.2, and in conntrack). A FIN counts once the opposite endpoint acknowledges it. SCTP has
//! verification tags (RFC 9260, section 8.5). Whatever else looks like an end is forwarded, and the timeout of an established connection
//! holds.

use super::packet::Packet;
use crate::abi::{Flow, TCP, fin};
use crate::state::tcp_flag;

/// How far a segment may be from the latest one of its direction, in bytes, to change what is known of it. Enough for what is under way before
/// the first losses; a third party hits it once in 16,384 guesses, and needs a hit in both directions.
const WINDOW: u32 = 1 << 17;

/// What a segment changes in the entry of its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbers {
    pub(super) next: u32,
    pub(super) ack: u32,
}

/// Sets the numbers of the entry whose packet establishes the connection.
#[inline(always)]
pub(super) fn begin<const N: usize>(packet: &Packet<N>, own: &mut Flow<N>) {
    (own.next, own.ack) = (packet.next(), packet.ack);
    let is_fin = packet.key.protocol == TCP && packet.tcp_flags & tcp_flag::FIN != 0;
    own.fin = if is_fin { fin::SENT } else { 0 };
}

/// The numbers of the entry after a segment of TCP; `None`: it tells nothing new, or does not fit the segments before.
#[inline(always)]
pub(super) fn numbers<const N: usize>(packet: &Packet<N>, own: &Flow<N>) -> Option<Numbers> {
    if !tells(packet, own) {
        return None;
    }
    let next = if is_after(packet.next(), own.next) { packet.next() } else { own.next };
    (next != own.next || packet.ack != own.ack).then_some(Numbers { next, ack: packet.ack })
}

/// Whether the packet may end its connection, or a direction of it, so that both entries must be read.
#[inline(always)]
pub(super) const fn may_end<const N: usize>(packet: &Packet<N>, own: &Flow<N>) -> bool {
    const ACKED_TO_SENT: u8 = 1;
    packet.tcp_flags & (tcp_flag::FIN | tcp_flag::RST) != 0
        || own.opposite_fin & !(own.fin >> ACKED_TO_SENT) != 0
        || own.fin & fin::SENT != 0
}

/// Whether the client's segment must be answered: it carries data or a FIN, or it probes (RFC 9293, section 3.8.4), one number below what was
/// sent last. SCTP: its first chunk is answered. An acknowledgement alone is not.
#[inline(always)]
pub(super) const fn asks<const N: usize>(packet: &Packet<N>, own: &Flow<N>) -> bool {
    let probes = packet.key.protocol == TCP && packet.seq == own.next.wrapping_sub(1);
    !packet.resets() && (packet.payload != 0 || packet.tcp_flags & tcp_flag::FIN != 0 || probes)
}

/// What a packet that may end its connection does to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Nothing,
    /// It changes the bits of [`fin`] of its direction.
    Fin,
    Reset,
}

/// Sets the bits of [`fin`] of the packet's direction. Not inline: the verifier would walk what follows once for each way through it.
#[inline(never)]
pub(super) fn end<const N: usize>(packet: &Packet<N>, own: &mut Flow<N>, opposite: &Flow<N>) -> End {
    let (before, is_reset) = (own.fin, resets(packet, own, opposite));
    own.fin = fin_after(packet, own, opposite);
    match is_reset {
        true => End::Reset,
        false if own.fin != before => End::Fin,
        false => End::Nothing,
    }
}

/// The bits of [`fin`] of the packet's direction after it.
#[inline(always)]
fn fin_after<const N: usize>(packet: &Packet<N>, own: &Flow<N>, opposite: &Flow<N>) -> u8 {
    if !tells(packet, own) {
        return own.fin;
    }
    let mut bits = own.fin;
    if packet.next() == own.next {
        if packet.tcp_flags & tcp_flag::FIN != 0 {
            bits |= fin::SENT;
        } else if packet.payload != 0 {
            // The direction goes on: the FIN was not its sender's.
            bits &= !fin::SENT;
        }
    }
    if opposite.fin & fin::SENT != 0 && packet.ack == opposite.next {
        bits |= fin::ACKED;
    }
    bits
}

/// Whether the packet resets its connection.
#[inline(always)]
fn resets<const N: usize>(packet: &Packet<N>, own: &Flow<N>, opposite: &Flow<N>) -> bool {
    packet.resets()
        && if packet.key.protocol == TCP {
            packet.seq == opposite.ack && fits(packet, own)
        } else {
            packet.ack == own.ack
        }
}

/// Whether the numbers of the segment are those of an end that goes on. Each segment after the first has an ACK.
#[inline(always)]
fn tells<const N: usize>(packet: &Packet<N>, own: &Flow<N>) -> bool {
    let acks = packet.tcp_flags & (tcp_flag::ACK | tcp_flag::RST) == tcp_flag::ACK;
    packet.key.protocol == TCP && acks && fits(packet, own)
}

#[inline(always)]
fn fits<const N: usize>(packet: &Packet<N>, own: &Flow<N>) -> bool {
    packet.seq.wrapping_sub(own.next).wrapping_add(WINDOW) <= 2 * WINDOW
}

/// Whether a sequence number comes after another one (RFC 9293, section 3.4).
#[inline(always)]
const fn is_after(number: u32, other: u32) -> bool {
    number.wrapping_sub(other).wrapping_sub(1) < i32::MAX as u32
}
