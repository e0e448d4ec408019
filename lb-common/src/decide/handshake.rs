//! Packets of a connection whose handshake is not complete: what each one does to it.

use super::lifetime::{Standing, expired};
use super::packet::{Now, Packet};
use super::tables::Tables;
use super::transition::{HandshakeOriginal, HandshakeReply};
use crate::abi::{HalfOpen, TCP, flow_flags, half_open_flags};

/// What a SYN, or what a client sends before it hears anything, may carry at most.
const MOST_DATA: u32 = u16::MAX as u32;

/// The client sends once more.
#[inline(always)]
pub(super) fn original<const N: usize, T: Tables<N>>(
    tables: &mut T,
    packet: &Packet<N>,
    entry: &mut HalfOpen<N>,
    now: Now,
) -> HandshakeOriginal {
    let flow = &entry.flow;
    if entry.flags & half_open_flags::SECOND != 0 || expired(tables, packet.key.protocol, flow, now) {
        return HandshakeOriginal::New;
    }
    let backend = Standing::of(tables, flow, now);
    if !backend.keeps || (packet.is_udp() && backend.moves) {
        return if packet.is_udp() { HandshakeOriginal::Move } else { HandshakeOriginal::New };
    }
    if packet.opens() && flow.isn != packet.seq {
        return HandshakeOriginal::Other;
    }
    // No stack sends a SYN again within the second (RFC 6298, section 2): the network has doubled it.
    if packet.opens() && flow.seen_s != now.s {
        entry.segments = entry.segments.saturating_add(1);
        let moves = entry.flags & (half_open_flags::MOVES | half_open_flags::ANSWERED) == half_open_flags::MOVES;
        // Two backends must not process the same data (RFC 7413).
        if moves && packet.payload == 0 {
            return HandshakeOriginal::Retry;
        }
    }
    if is_reset(packet, entry) { HandshakeOriginal::Abort } else { HandshakeOriginal::Forward }
}

/// Whether the client wants no connection of what was answered: its RST has the number that the answer acknowledged.
#[inline(always)]
pub(super) fn is_reset<const N: usize>(packet: &Packet<N>, entry: &HalfOpen<N>) -> bool {
    if !packet.resets() || entry.flags & half_open_flags::ANSWERED == 0 {
        return false;
    }
    // SCTP: what is answered names its backend's tag.
    if packet.key.protocol == TCP {
        packet.seq == entry.flow.isn.wrapping_add(1)
    } else {
        acknowledges_answer(packet, entry)
    }
}

/// Whether the client's segment completes the handshake: it follows the SYN, and acknowledges the answer. No answer of an encapsulated
/// connection passes here.
#[inline(always)]
pub(super) fn completes<const N: usize, T: Tables<N>>(
    tables: &mut T,
    packet: &Packet<N>,
    entry: &HalfOpen<N>,
    now: Now,
) -> bool {
    /// No window is larger (RFC 7323, section 2.3).
    const LARGEST_WINDOW: u32 = 1 << 30;
    let flow = &entry.flow;
    let distance = packet.seq.wrapping_sub(flow.isn.wrapping_add(1));
    flow.flags & flow_flags::REPLY == 0
        && entry.flags & half_open_flags::SECOND == 0
        && (packet.key.protocol != TCP || distance <= LARGEST_WINDOW)
        && if flow.port == 0 { !tables.is_flood() } else { acknowledges_answer(packet, entry) }
        && !expired(tables, packet.key.protocol, flow, now)
}

/// Whether the client's packet acknowledges an answer: a forged sender has seen none.
#[inline(always)]
fn acknowledges_answer<const N: usize>(packet: &Packet<N>, entry: &HalfOpen<N>) -> bool {
    let number = packet.ack.wrapping_sub(1);
    let [latest, before] = entry.answers;
    entry.flags & half_open_flags::ANSWERED != 0 && (number == latest || number == before)
}

/// What comes back for a handshake: an answer, a refusal, or something late.
///
/// An answer of TCP or SCTP establishes nothing: a flood's senders are answered, too. The client's own segment, which acknowledges it, does.
#[inline(always)]
pub(super) fn reply<const N: usize, T: Tables<N>>(
    tables: &mut T,
    packet: &Packet<N>,
    entry: &HalfOpen<N>,
    backend: Standing,
    now: Now,
) -> HandshakeReply {
    if expired(tables, packet.key.protocol, &entry.flow, now) {
        // Nobody remembers the question: the packet is of another connection on these ports.
        return HandshakeReply::Over;
    }
    if entry.flags & half_open_flags::LOST != 0 {
        return HandshakeReply::Late;
    }
    if !backend.keeps {
        return HandshakeReply::Evict;
    }
    let resumed = entry.flags & half_open_flags::RESUMED != 0;
    // A backend that goes on knows the connection.
    if packet.is_udp() || (resumed && goes_on(packet, entry)) {
        return HandshakeReply::Establish;
    }
    let accepts = packet.accepts();
    // Of another attempt on the same tuple, or forged: the client judges. So it does what follows its answer.
    if packet.is_midway()
        || !acknowledges_syn(packet, entry)
        || (!accepts && (resumed || entry.flags & half_open_flags::ANSWERED != 0))
    {
        return HandshakeReply::Reply;
    }
    match accepts {
        false if entry.flow.backend == 0 => HandshakeReply::Abort,
        false => HandshakeReply::Retry,
        true if entry.flow.backend == 0 || (took_data(packet, entry) && entry.flow.second == 0) => {
            HandshakeReply::Establish
        }
        true => HandshakeReply::Accept,
    }
}

/// Whether the packet shows that its sender knows the connection of a segment that got its entries anew. TCP: it acknowledges what is
/// near that segment's number. What a host says to a number that it did not expect (RFC 5961) acknowledges another one.
#[inline(always)]
fn goes_on<const N: usize>(packet: &Packet<N>, entry: &HalfOpen<N>) -> bool {
    let near = packet.ack.wrapping_sub(entry.flow.isn.wrapping_add(1)) <= MOST_DATA;
    packet.is_midway() && (near || packet.key.protocol != TCP)
}

/// Whether the packet answers the SYN. With data in it (RFC 7413), what accepts it acknowledges that, too.
#[inline(always)]
fn acknowledges_syn<const N: usize>(packet: &Packet<N>, entry: &HalfOpen<N>) -> bool {
    let more = packet.ack.wrapping_sub(entry.flow.isn.wrapping_add(1));
    more == 0 || (packet.accepts() && packet.key.protocol == TCP && more <= MOST_DATA)
}

/// Whether the answer acknowledges data of the SYN. Such a backend knows the client by its cookie, and may send before it hears from the client again
/// (RFC 7413, sections 4.1 and 4.2). So its connection is established at once.
#[inline(always)]
fn took_data<const N: usize>(packet: &Packet<N>, entry: &HalfOpen<N>) -> bool {
    packet.key.protocol == TCP && packet.ack != entry.flow.isn.wrapping_add(1)
}
