//! The end of a connection: only its two endpoints can bring it about.
//!
//! An endpoint proves itself by numbers that a third party has not seen. Each entry keeps two: the number after the latest segment of its direction, and
//! what that segment acknowledged. A segment *fits* its own entry if one of its numbers is the known one, or both are [`NEAR`]. One that does not is
//! compared with the opposite entry as well, which knows the same numbers from the other side: by one exact number, or by a near one and an
//! acknowledgement of what is under way. So a gap, however long, freezes no numbers: in-order segments, segments sent again and acknowledgements alone
//! have an exact number.
//!
//! A FIN behind a gap may come only once. It is noted as claimed ([`fin::CLAIMED`]), and the opposite end's acknowledgement of just that number
//! proves it.
//!
//! | segment | what ends |
//! |---|---|
//! | RST at the number that the opposite end acknowledged last (RFC 5961, section 3.2), or behind the own latest segment (data that is not acknowledged) | the connection |
//! | RST with ACK that fits (it overtook data, or follows lost data) | the connection |
//! | RST of an end that has sent its FIN, at a number that is not acknowledged yet | the connection |
//! | FIN that fits, or is claimed | its direction, once the opposite end acknowledges it |
//! | SCTP with the verification tag (RFC 9260, section 8.5) | the association |
//!
//! Whatever else looks like an end is forwarded, and the timeout of an established connection holds.
//!
//! A third party that knows the tuple hits by chance. While nothing is under way, one segment in 2^28 fits: by two near numbers (3 × 2^-30), or by one
//! of the four exact ones (2^-30). With 4 MiB under way in the opposite direction it is one in 2^23 for as long. conntrack takes any number
//! within the windows.

use super::packet::Packet;
use crate::abi::{Flow, TCP, fin};
use crate::state::tcp_flag;

/// How far a number may be from the known one, in bytes, where the other number is no exact one either.
const NEAR: u32 = 1 << 16;
/// How long a gap may be, in bytes, that both numbers have moved over: more than the largest receive window by Linux's defaults (`net.ipv4.tcp_rmem`, 6 MiB).
const GAP: u32 = 1 << 24;

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
    if !tells(packet) || !fits_own(packet, own) {
        return None;
    }
    let next = if is_after(packet.next(), own.next) { packet.next() } else { own.next };
    (next != own.next || packet.ack != own.ack).then_some(Numbers { next, ack: packet.ack })
}

/// Whether the packet may end its connection, or a direction of it, or does not fit its own entry, so that both entries must be read.
#[inline(always)]
pub(super) fn may_end<const N: usize>(packet: &Packet<N>, own: &Flow<N>) -> bool {
    const ACKED_TO_SENT: u8 = 1;
    packet.tcp_flags & (tcp_flag::FIN | tcp_flag::RST) != 0
        || own.opposite_fin & !(own.fin >> ACKED_TO_SENT) != 0
        || own.fin & (fin::SENT | fin::CLAIMED) != 0
        || tells(packet) && !fits_own(packet, own)
}

/// Whether the client's segment must be answered: it fits, and carries data or a FIN, or it probes (RFC 9293, section 3.8.4), one number below what
/// was sent last. SCTP: its first chunk is answered. An acknowledgement alone is not.
#[inline(always)]
pub(super) fn asks<const N: usize>(packet: &Packet<N>, own: &Flow<N>) -> bool {
    if packet.key.protocol != TCP {
        return !packet.resets() && packet.payload != 0 && packet.ack == own.ack;
    }
    let probes = packet.seq == own.next.wrapping_sub(1);
    tells(packet) && fits_own(packet, own) && (packet.payload != 0 || packet.tcp_flags & tcp_flag::FIN != 0 || probes)
}

/// Whether the segment has what the opposite direction has not acknowledged yet.
#[inline(always)]
pub(super) const fn is_unacknowledged<const N: usize>(packet: &Packet<N>, opposite: &Flow<N>) -> bool {
    packet.key.protocol == TCP && is_after(packet.next(), opposite.ack)
}

/// What a packet that may end its connection does to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Nothing,
    /// It changes the numbers, or the bits of [`fin`], of its direction.
    Own,
    Reset,
}

/// Sets the numbers and the bits of [`fin`] of the packet's direction. Not inline: the verifier would walk what follows once for each way through it.
#[inline(never)]
pub(super) fn end<const N: usize>(packet: &Packet<N>, own: &mut Flow<N>, opposite: &Flow<N>) -> End {
    if resets(packet, own, opposite) {
        return End::Reset;
    }
    let (next, ack, bits) = (own.next, own.ack, own.fin);
    if !tells(packet) {
        return End::Nothing;
    }
    if fits_known(packet, own, opposite) {
        own.ack = packet.ack;
        own.fin = fin_after(packet, own, opposite);
    } else if claims(packet, own, opposite) {
        own.next = packet.next();
        own.fin = bits & fin::ACKED | fin::CLAIMED;
    }
    if own.next != next || own.ack != ack || own.fin != bits { End::Own } else { End::Nothing }
}

/// Whether both directions have ended, by the bits of [`fin`]. That the opposite end acknowledges a FIN proves a claimed one.
#[inline(always)]
pub(super) const fn are_over(own: u8, opposite: u8) -> bool {
    own & opposite & fin::ACKED != 0 && shown(own) & shown(opposite) != 0
}

/// [`fin::SENT`], if the direction has ended or is said to have.
#[inline(always)]
pub(super) const fn shown(bits: u8) -> u8 {
    (bits & (fin::SENT | fin::CLAIMED) != 0) as u8
}

/// The bits of [`fin`] of the packet's direction after it, a segment that fits. Sets the next number, too.
#[inline(always)]
fn fin_after<const N: usize>(packet: &Packet<N>, own: &mut Flow<N>, opposite: &Flow<N>) -> u8 {
    let mut bits = own.fin;
    let (is_claimed, is_fin) = (bits & fin::CLAIMED != 0, packet.tcp_flags & tcp_flag::FIN != 0);
    if is_after(packet.next(), own.next) || (is_claimed && is_fin) {
        own.next = packet.next();
    }
    if packet.next() == own.next {
        if is_fin || (is_claimed && packet.payload == 0 && packet.seq == own.next) {
            bits |= fin::SENT;
        } else if packet.payload != 0 {
            // The direction goes on: the FIN was not its sender's.
            bits &= !fin::SENT;
        }
        bits &= !fin::CLAIMED;
    }
    if shown(opposite.fin) != 0 && packet.ack == opposite.next {
        bits |= fin::ACKED;
    }
    bits
}

/// Whether a FIN that does not fit may be its sender's all the same: behind a gap, or late, while much is under way in the opposite direction.
#[inline(always)]
const fn claims<const N: usize>(packet: &Packet<N>, own: &Flow<N>, opposite: &Flow<N>) -> bool {
    packet.tcp_flags & tcp_flag::FIN != 0
        && packet.next().wrapping_sub(own.next) < GAP
        && opposite.next.wrapping_sub(packet.ack) < GAP
}

/// Whether the packet resets its connection.
#[inline(always)]
fn resets<const N: usize>(packet: &Packet<N>, own: &Flow<N>, opposite: &Flow<N>) -> bool {
    if !packet.resets() {
        return false;
    }
    if packet.key.protocol != TCP {
        return packet.ack == own.ack;
    }
    let is_behind = packet.seq == own.next && own.fin & fin::CLAIMED == 0;
    let acks = packet.tcp_flags & tcp_flag::ACK != 0;
    // An end that has sent its FIN resets the connection if data still comes. The RST has the number that this data acknowledges.
    let is_within =
        own.fin & fin::SENT != 0 && own.next.wrapping_sub(packet.seq) <= own.next.wrapping_sub(opposite.ack);
    packet.seq == opposite.ack || is_behind || is_within || (acks && fits_known(packet, own, opposite))
}

/// Whether the segment can tell where its end is. Each one of TCP after the first has an ACK.
#[inline(always)]
const fn tells<const N: usize>(packet: &Packet<N>) -> bool {
    packet.key.protocol == TCP && packet.tcp_flags & (tcp_flag::ACK | tcp_flag::RST) == tcp_flag::ACK
}

/// Whether the segment fits its own entry. A number that is claimed alone is none to go by.
#[inline(always)]
const fn fits_own<const N: usize>(packet: &Packet<N>, own: &Flow<N>) -> bool {
    own.fin & fin::CLAIMED == 0 && fits(packet, own.next, own.ack)
}

/// Whether the segment fits what both entries know.
#[inline(always)]
const fn fits_known<const N: usize>(packet: &Packet<N>, own: &Flow<N>, opposite: &Flow<N>) -> bool {
    let is_claimed = own.fin & fin::CLAIMED != 0;
    let is_near = is_near(packet.seq, opposite.ack) || (!is_claimed && is_near(packet.seq, own.next));
    packet.seq == opposite.ack
        || packet.ack == opposite.next
        || packet.ack == own.ack
        || (packet.seq == own.next && !is_claimed)
        || (is_near && acks_flight(packet, own, opposite))
        || (!is_claimed && acks_behind_gap(packet, own, opposite))
}

/// Whether the segment lies behind a gap, and acknowledges a little more of what is under way than its direction did before.
#[inline(always)]
const fn acks_behind_gap<const N: usize>(packet: &Packet<N>, own: &Flow<N>, opposite: &Flow<N>) -> bool {
    let more = packet.ack.wrapping_sub(own.ack);
    packet.seq.wrapping_sub(own.next) < GAP && more <= NEAR && more <= opposite.next.wrapping_sub(own.ack)
}

/// Whether the segment acknowledges what is under way in the opposite direction: between what its own direction has acknowledged and what was
/// sent last.
#[inline(always)]
const fn acks_flight<const N: usize>(packet: &Packet<N>, own: &Flow<N>, opposite: &Flow<N>) -> bool {
    let first = own.ack.wrapping_sub(NEAR);
    packet.ack.wrapping_sub(first) <= opposite.next.wrapping_sub(first).wrapping_add(NEAR)
}

/// Whether the segment follows on these numbers: its end sends `next` next, and has acknowledged `acked`.
#[inline(always)]
const fn fits<const N: usize>(packet: &Packet<N>, next: u32, acked: u32) -> bool {
    packet.seq == next || packet.ack == acked || (is_near(packet.seq, next) && is_near(packet.ack, acked))
}

#[inline(always)]
const fn is_near(number: u32, known: u32) -> bool {
    number.wrapping_sub(known).wrapping_add(NEAR) <= 2 * NEAR
}

/// Whether a sequence number comes after another one (RFC 9293, section 3.4).
#[inline(always)]
pub(super) const fn is_after(number: u32, other: u32) -> bool {
    number.wrapping_sub(other).wrapping_sub(1) < i32::MAX as u32
}
