//! The steps of a decision: each one small enough to be verified by itself, the next one named by the one before.

/// What is left to do over a packet. A step hands over in [`Work`]; it never leads to one of a smaller number.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// The verdict stands in `work`.
    Decided = 0,
    /// [`super::established`]: a SYN on the tuple of an established connection.
    Syn,
    /// [`super::established`]: the connection's backend drains.
    Draining,
    /// [`super::established`]: the connection is an adopted one.
    Adopted,
    /// [`super::established`]: the verdict stands, the opposite direction's entry is behind.
    Refresh,
    /// [`super::established`]: the connection is over, and the packet is none of its.
    Remove,
    /// [`super::established`]: as above, then [`super::select`].
    Reselect,
    /// [`super::open`]: of no answered flow; it may be of one that is not answered yet.
    Handshake,
    /// [`super::retry`]: nobody answers the flow, or its backend refused it.
    Retry,
    /// [`super::select`]: the first packet of a flow.
    Select,
    /// [`super::complete`]: a segment of a service that begins no flow.
    MidStream,
    /// [`super::direct`]: the destination is no service's.
    Direct,
    /// [`super::allocate`]: a flow is to get its entries.
    Allocate,
    /// Nothing: the packet is unrelated and passes. No verdict stands in `work`. Comes from [`super::begin`] alone.
    Unrelated,
}
