//! What a packet does to its connection. One enum for each phase and direction, so that a step handles all that may come. The modules that decide a
//! transition read tables and write none: a step commits it (ADR 0029).

/// An established connection: a packet of the client that is no SYN.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EstablishedOriginal {
    /// To the backend.
    Forward,
    /// The backend drains: more must be asked.
    Drain,
    /// The connection is over, and the packet begins a new one.
    New,
    /// UDP: the backend takes no more, and the datagram goes to another one.
    Move,
    /// The backend is gone, and the sender gets a reset.
    Evict,
}

/// An established connection: a SYN on its tuple.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EstablishedSyn {
    /// The connection's own SYN once more, to the backend.
    Forward,
    /// The connection is over, and the SYN begins a new one.
    New,
    /// A SYN of another connection, while this one goes on.
    Reopen,
}

/// An established connection: a packet of the backend.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EstablishedReply {
    /// To the client.
    Reply,
    /// The backend drains: more must be asked.
    Drain,
    /// The connection is over, and the packet is none of its.
    Over,
    /// The backend is gone, and the sender gets a reset.
    Evict,
}

/// A handshake: a packet of the client.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandshakeOriginal {
    /// To the backend.
    Forward,
    /// The handshake is over, and the packet begins a new one.
    New,
    /// UDP: the backend takes no more, and the datagram goes to another one.
    Move,
    /// The packet ends the handshake, and goes on.
    Abort,
    /// Nobody answers: another backend may take the connection.
    Retry,
    /// A SYN of another handshake, while this one goes on.
    Other,
}

/// A handshake: what comes back.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandshakeReply {
    /// To the client.
    Reply,
    /// The handshake is over, and the packet is none of its.
    Over,
    /// The packet ends the handshake, and goes on.
    Abort,
    /// The backend refuses: another backend may take the connection.
    Retry,
    /// The backend is gone, and the sender gets a reset.
    Evict,
    /// An answer of a backend that lost the connection.
    Late,
    /// The backend accepts the connection. The client's own segment completes the handshake.
    Accept,
    /// The handshake is complete.
    Establish,
}
