//! What a decision reads and writes, in order.

use lb_common::abi::{
    Affinity, Backend, Bucket, Endpoint, Flow, FlowKey, HalfOpen, Health, Service, ServiceKey, Slot, Vip,
};
use lb_common::outcome::Outcome;

/// One access to the tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access<const N: usize> {
    Service(ServiceKey<N>, Option<Service>),
    Slot(u32, Option<Slot>),
    Backend(u32, Option<Backend<N>>),
    Flow(FlowKey<N>, Option<Flow<N>>),
    HalfOpen(FlowKey<N>, Option<HalfOpen<N>>),
    /// Whether a source range of the service port holds the client.
    Admitted(u32, bool),
    RuledOut(bool),
    /// Network flags of an address.
    Network([u8; N], u32),
    Vip([u8; N], Option<Vip>),
    Endpoint(Option<Endpoint>),
    Health(u32, Health),
    Affinity(Option<Affinity>),
    /// A new connection under the service's rate limit: what the client's bucket held, and whether there was room.
    Bucket(Option<Bucket>, bool),
    /// The SNAT address for a backend.
    Masquerade(Option<[u8; N]>),
    /// Whether flood mode is on.
    Flood(bool),
    Random,
    RoundRobin(u32),
    /// A write of the programs, which stays in the overlay.
    Write(Write<N>),
}

/// A write that the program would make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write<const N: usize> {
    Flow(FlowKey<N>, Flow<N>),
    RemoveFlow(FlowKey<N>),
    HalfOpen(FlowKey<N>, HalfOpen<N>),
    RemoveHalfOpen(FlowKey<N>),
    Health(u32, Health),
    Affinity(Affinity),
    /// What the decision learns of a backend.
    Note(u32, Outcome),
}

/// The accesses of one decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace<const N: usize>(pub Vec<Access<N>>);

impl<const N: usize> Default for Trace<N> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<const N: usize> Trace<N> {
    /// Whether a random number decided over the slot of a backend.
    pub fn is_by_chance(&self) -> bool {
        let last_slot = self.0.iter().rposition(|access| matches!(access, Access::Slot(..)));
        let first = self.0.iter().position(|access| *access == Access::Random);
        first.zip(last_slot).is_some_and(|(random, slot)| random < slot)
    }

    /// Whether a SNAT address was asked for.
    pub fn asked_for_address(&self) -> bool {
        self.0.iter().any(|access| matches!(access, Access::Masquerade(_)))
    }

    /// The writes, in order.
    pub fn writes(&self) -> impl Iterator<Item = &Write<N>> {
        self.0.iter().filter_map(|access| if let Access::Write(write) = access { Some(write) } else { None })
    }
}
