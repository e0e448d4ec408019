//! Flow entries of connections that are not established: those of handshakes, and those that nobody shows to be established.

use super::flow::Flow;
use super::sizes::sizes;

/// Value of `half_open4` / `half_open6`, under the same keys as `flows4` / `flows6`: a flow that nobody has answered.
///
/// Apart from the answered ones, so that a flood of SYNs evicts none of those, answered or not: both entries move there with the client's
/// own segment after the answer (UDP: with the answer). In a later state than
/// [`flow_state::HALF_OPEN`](super::flow_state::HALF_OPEN) are an encapsulated connection, of which the node sees no answer, and one that has
/// ended.
/// Under a client's tuple whose flow is answered, it holds a SYN that asks for another connection.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HalfOpen<const N: usize> {
    pub flow: Flow<N>,
    /// Backends that left it unanswered or refused it; 0: none.
    pub tried: [u32; MOST_MOVES],
    /// With [`half_open_flags::ANSWERED`]: the sequence numbers of the latest two answers, the latest first (SCTP: initiate tags). One alone
    /// stands twice.
    pub answers: [u32; 2],
    /// SYNs since the flow has its backend, up to 255; UDP: 1.
    pub segments: u8,
    /// How often it was moved to another backend.
    pub moves: u8,
    /// [`half_open_flags`].
    pub flags: u8,
    pub pad: u8,
}

/// How often a flow that nobody answers is moved, at most.
pub const MOST_MOVES: usize = 3;

/// Bits of [`HalfOpen::flags`].
pub mod half_open_flags {
    /// The entry of a reply direction that the flow has left: a late answer is refused, never delivered.
    pub const LEFT: u8 = 1;
    /// Under the tuple of an answered flow: a SYN with another initial sequence number.
    pub const SECOND: u8 = 2;
    /// A refusal was withheld: the next SYN goes to another backend.
    pub const REFUSED: u8 = 4;
    /// Requests and answers both pass the client's link, and its service lets connections move.
    pub const MOVES: u8 = 8;
    /// The backend has accepted the connection: it stays there. What the client sends next must acknowledge one of [`HalfOpen::answers`].
    ///
    /// [`HalfOpen::answers`]: super::HalfOpen::answers
    pub const ANSWERED: u8 = 16;
    /// Its first packet here was no SYN: the entries were lost, or never were. What the backend says shows whether it knows the connection.
    pub const RESUMED: u8 = 32;
}

sizes! {
    HalfOpen<4> = 80,
    HalfOpen<16> = 104,
}
