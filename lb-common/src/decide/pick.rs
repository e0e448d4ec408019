//! What a look-up of a service is for, what it came to, and where it leaves what it found.

use super::search::Search;
use crate::abi::{Backend, Service, Slot};

/// What a look-up is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish(u8);

impl Wish {
    /// No backend: the packet begins no flow.
    pub const NONE: Self = Self(0);
    /// A backend that is not suspect: nobody moves the connection if it does not answer.
    pub const SAFE: Self = Self(1);
    /// A backend; a suspect one, where it is time to see whether it answers again.
    pub const PROBE: Self = Self(2);
    /// The same for a flow that is there, and has lost its backend: it is no new one of its client's.
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
    /// The service has endpoints; none was picked, as the packet begins no flow.
    Unasked,
    /// The client's network has made as many new flows as the service's rate limit allows.
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
    /// Not 0: the backend is suspect, and this flow shows whether it answers again.
    pub probes: u32,
    /// Who asks: a [`Client`](super::Client) as a number.
    pub(super) client: u32,
    pub(super) search: Search,
}

impl<const N: usize> Pick<N> {
    /// Nothing found yet.
    pub const NONE: Self = Self {
        service: Service::NONE,
        slot: Slot { backend: 0, generation: 0, service: 0, backend_generation: 0 },
        backend: Backend {
            address: [0; N],
            port: 0,
            state: 0,
            flags: 0,
            generation: 0,
            service: 0,
            deadline_ds: 0,
            uid_hash: 0,
            weight: 0,
            pad: 0,
        },
        probes: 0,
        client: 0,
        search: Search::NONE,
    };
}
