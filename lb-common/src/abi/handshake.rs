//! Flow entries of connections that are not established: those of handshakes, and those that nobody shows to be established.

use super::flow::{Flow, FlowKey, second};
use super::sizes::sizes;

/// Value of `half_open4` / `half_open6`, under the same keys as `flows4` / `flows6`: a flow that nobody has answered.
///
/// A table apart from the answered flows, so that a flood of SYNs evicts none of those. Both entries move there with the client's own segment after
/// the answer (UDP: with the answer). In a later state than [`flow_state::HALF_OPEN`](super::flow_state::HALF_OPEN) are an encapsulated connection,
/// of which the node sees no answer, and one that has ended. Under a client's tuple whose flow is answered, it holds a SYN that asks for another
/// connection. Under a [`claim_key`], it holds the original entry that the first answer of a retried connection has made; under a [`second_key`], that
/// of a second handshake.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HalfOpen<const N: usize> {
    pub flow: Flow<N>,
    /// The latest backends that left it unanswered or refused it, the latest last; 0: none. Each may answer yet.
    pub tried: [u32; MOST_MOVES],
    /// With [`half_open_flags::ANSWERED`]: the sequence numbers of the latest two answers, the latest first (SCTP: initiate tags). One alone
    /// stands twice. Without: [`Self::asked_at`], and 0.
    pub answers: [u32; 2],
    /// SYNs since the flow has its backend, up to 255; UDP: 1.
    pub segments: u8,
    /// Backends in [`Self::tried`]; not 0: the connection was retried, and its first answer needs the claim.
    pub moves: u8,
    /// [`half_open_flags`].
    pub flags: u8,
    /// Original entry: a bit for each backend in [`Self::tried`] that has refused, and [`REFUSED_BY_LATEST`].
    pub refused: u8,
}

impl<const N: usize> HalfOpen<N> {
    /// Reply entry of an unanswered TCP connection: when its backend got the first SYN, in [ticks](crate::connect_times::TICK_NS) that wrap;
    /// 0: not noted.
    #[inline(always)]
    #[must_use]
    pub const fn asked_at(&self) -> u32 {
        if self.flags & half_open_flags::ANSWERED == 0 { self.answers[0] } else { 0 }
    }
}

/// So many tried backends are remembered.
pub const MOST_MOVES: usize = 3;

/// Bit of [`HalfOpen::refused`]: the backend that the latest SYN went to has refused, and the client was not told.
pub const REFUSED_BY_LATEST: u8 = 1 << MOST_MOVES;

/// Turns the key of an original entry into that of the claim by which one backend's answer wins a retried connection. It takes bits of the client's
/// initial sequence number, so that another attempt on the same tuple has another claim. No packet has such a key: its padding is zero.
#[inline(always)]
pub const fn claim_key<const N: usize>(key: &mut FlowKey<N>, isn: u32) {
    let [first, second, third, _] = isn.to_le_bytes();
    key.pad = [first | 1, second, third];
}

/// Whether this is the key of a claim.
#[inline(always)]
#[must_use]
pub const fn is_claim<const N: usize>(key: &FlowKey<N>) -> bool {
    key.pad[0] & 1 != 0
}

/// Turns the key of an original entry into that of the second handshake on its tuple. No packet and no claim has such a key.
#[inline(always)]
pub const fn second_key<const N: usize>(key: &mut FlowKey<N>) {
    key.pad = [second::KEY, 0, 0];
}

/// Whether this is the key of a second handshake.
#[inline(always)]
#[must_use]
pub const fn is_second<const N: usize>(key: &FlowKey<N>) -> bool {
    key.pad[0] == second::KEY
}

/// Bits of [`HalfOpen::flags`].
pub mod half_open_flags {
    /// The entry of a reply direction: another backend's answer went to the client. An answer is refused, never delivered.
    pub const LOST: u8 = 1;
    /// Under the tuple of an answered flow: a SYN with another initial sequence number.
    pub const SECOND: u8 = 2;
    /// Original entry: it was made by a claim, and so was the one under its [`claim_key`](super::claim_key).
    pub const CLAIMED: u8 = 4;
    /// Requests and answers both pass this node, and the connection's service lets it move.
    pub const MOVES: u8 = 8;
    /// The backend has accepted the connection: it stays there. What the client sends next must acknowledge one of [`HalfOpen::answers`].
    ///
    /// [`HalfOpen::answers`]: super::HalfOpen::answers
    pub const ANSWERED: u8 = 16;
    /// Its first packet here was no SYN: the entries were lost, or never were. What the backend says shows whether it knows the connection.
    pub const RESUMED: u8 = 32;
    /// The service has client affinity: the client's entry is written when the connection is established.
    pub const AFFINITY: u8 = 64;
    /// An ICMP error came for it, as which policies refuse: it is no evidence against any backend.
    pub const EXCUSED: u8 = 128;
}

sizes! {
    HalfOpen<N> = 80 | 104,
}
