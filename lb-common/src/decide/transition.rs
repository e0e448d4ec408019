//! What a packet does to its connection.

/// The transition of a connection by a packet. The modules that decide it read tables and write none: a step commits it.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transition {
    /// Original direction: to the backend.
    Forward,
    /// The backend drains: more must be asked.
    Drain,
    /// Reply direction: to the client.
    Reply,
    /// The connection is over, and the packet begins a new one.
    New,
    /// UDP: the backend takes no more, and the datagram goes to another one.
    Move,
    /// The connection is over, and the packet is none of its.
    Over,
    /// The packet ends the handshake, and goes on.
    Abort,
    /// Nobody answers, or the backend refuses: another backend may take the connection.
    Retry,
    /// The backend is gone, and the sender gets a reset.
    Evict,
    /// An answer of a backend that lost the connection.
    Late,
    /// The backend accepts the connection. The client's own segment completes the handshake.
    Accept,
    /// The handshake is complete.
    Establish,
    /// A SYN of another connection on an established one's tuple.
    Reopen,
}
