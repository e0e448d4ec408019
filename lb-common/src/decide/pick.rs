//! What a look-up of a service is for, what it came to, and where it leaves what it found.

use crate::abi::{Backend, MOST_MOVES, Service, Slot};

/// What a look-up is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish(u8);

impl Wish {
    /// No backend: the packet begins no connection.
    pub const NONE: Self = Self(0);
    /// A backend that is not ejected: nobody retries if it does not answer.
    pub const SAFE: Self = Self(1);
    /// A backend; an ejected one, where it is time to probe it.
    pub const PROBE: Self = Self(2);
    /// A backend as by [`Self::PROBE`], for a connection that lost its own: it is no new one of its client's.
    pub const AGAIN: Self = Self(3);
}

/// What a look-up of a service came to; the records are in the [`Pick`]. A plain number: what a variant would hold and another
/// one would not, the compiler may copy all the same, and the verifier refuses to read what nobody wrote.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Picked {
    /// No frontend has this address and port.
    NoService = 0,
    /// The client is in none of the service's source ranges.
    Denied,
    /// A packet from the wire, whose source cannot be out there.
    Martian,
    /// Another node has chosen a backend that this one does not have.
    NotHere,
    /// The tables kept changing underneath.
    Torn,
    /// The service has no endpoint.
    Empty,
    /// [`Pick::slot`] and [`Pick::backend`] hold one.
    Backend,
    /// The service has endpoints; none was picked, as the packet begins no connection.
    Unasked,
    /// The client's network has made as many new connections as the service's rate limit allows.
    Limited,
}

/// Where a look-up leaves what it found.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick<const N: usize> {
    /// Valid unless [`Picked::NoService`]; if [`Picked::Torn`], only its id, for the counters. Its first set of slots, and what its flags
    /// say of that, are those that serve the client.
    pub service: Service,
    pub slot: Slot,
    pub backend: Backend<N>,
    /// Not 0: the backend is ejected, and this connection probes it.
    pub probes: u32,
    /// A [`Client`](super::Client) as a number.
    pub(super) client: u32,
    pub(super) search: Search,
}

/// What a search has come to. In memory, not in registers: the verifier forgets what it knows of it, and so walks each attempt once.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Search {
    /// Backends that are not wanted; 0: none.
    pub(super) avoid: [u32; MOST_MOVES + 1],
    /// Worth of the backend picked so far, and 1; 0: none yet.
    pub(super) best: u32,
    /// The last position looked at.
    pub(super) position: u32,
    /// The first backend passed over as it may not answer, and its generation; 0: none.
    pub(super) candidate: u32,
    pub(super) candidate_generation: u32,
    /// What the search goes by, if it does not go by the scheduler.
    pub(super) hash: u32,
    /// A hash of the client: it may have evidence of its own.
    pub(super) client: u32,
}

impl<const N: usize> Pick<N> {
    /// Nothing found yet.
    // SAFETY: plain numbers.
    pub const NONE: Self = unsafe { core::mem::zeroed() };
}
