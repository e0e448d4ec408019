//! What the tables hold, for a reader that changes nothing; and what the programs were loaded with.

use lb_common::abi::{
    Affinity, AffinityKey, Backend, Bucket, BucketKey, Endpoint, EndpointKey, Flow, FlowKey, HalfOpen, Health, Link,
    Service, ServiceKey, ServiceName, Slot, Vip, VipKey,
};
use lb_common::state::{SourcePorts, Timeouts};

/// Tables of one address family, read only. What cannot be read counts as absent, as in the programs.
pub trait Stored<const N: usize> {
    fn service(&self, key: &ServiceKey<N>) -> Option<Service>;
    /// Every frontend.
    fn services(&self) -> Vec<(ServiceKey<N>, Service)>;
    fn slot(&self, index: u32) -> Option<Slot>;
    fn backend(&self, id: u32) -> Option<Backend<N>>;
    /// Every backend of a service port, by id.
    fn backends(&self, service: u32) -> Vec<(u32, Backend<N>)>;
    /// An entry of an established connection, or of answered UDP.
    fn flow(&self, key: &FlowKey<N>) -> Option<Flow<N>>;
    fn half_open(&self, key: &FlowKey<N>) -> Option<HalfOpen<N>>;
    fn admitted(&self, service: u32, address: &[u8; N]) -> bool;
    fn is_ruled_out(&self, address: &[u8; N]) -> bool;
    fn may_be_in_service_cidr(&self, address: &[u8; N]) -> bool;
    fn health(&self, backend: u32) -> Option<Health>;
    fn affinity(&self, key: &AffinityKey<N>) -> Option<Affinity>;
    fn client_share(&self, counter: u32) -> u32;
    /// The round-robin counter of a service port.
    fn round_robin(&self, service: u32) -> u32;
    fn vip(&self, key: &VipKey<N>) -> Option<Vip>;
    /// Bits of [`lb_common::abi::network_flags`].
    fn network(&self, address: &[u8; N]) -> u32;
    fn masquerade(&self, backend: &[u8; N], turn: u32) -> Option<[u8; N]>;
    fn endpoint(&self, key: &EndpointKey<N>) -> Option<Endpoint>;
    fn bucket(&self, key: &BucketKey) -> Option<Bucket>;
    /// Until when flood mode lasts, seconds of `CLOCK_MONOTONIC`; 0: there was none.
    fn flood_until_s(&self) -> u32;
    /// The word of the map `adoption`.
    fn adoption(&self) -> u32;
    /// The word of the map `fast_path`.
    fn fast_path(&self) -> u32;
    fn link(&self, index: u32) -> Option<Link>;
    fn name(&self, service: u32) -> Option<ServiceName>;
}

/// What a decision needs beside the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub now_ns: u64,
    /// The seed of the random numbers: they stand for chance.
    pub seed: u32,
    /// Index of the link that the packet is seen at; 0: not known.
    pub link: u32,
    pub timeouts: Timeouts,
    pub ports: SourcePorts,
    pub client_key: u32,
    /// Established connections that fit.
    pub flow_room: u32,
}
