//! What the maps hold, for a reader that changes nothing; and what the programs were loaded with.

use std::net::IpAddr;

use lb_common::abi::{Flow, FlowKey, NetworkKey, UDP};
use lb_common::map::{self, Map, Prefix};
use lb_common::state::{SourcePorts, Timeouts};

/// The maps, read only. What cannot be read counts as absent, as in the programs.
pub trait Stored {
    fn get<M: Map>(&self, key: &M::Key) -> Option<M::Value>;
    /// Every element.
    fn all<M: Map>(&self) -> Vec<(M::Key, M::Value)>;
    /// Whether the VIP filter rules the address out.
    fn is_ruled_out(&self, address: IpAddr) -> bool;
    /// Index of the link that packets to the address leave by; 0: not known.
    fn link_to<const N: usize>(&self, address: &[u8; N]) -> u32;

    /// An entry of an established connection, or of answered UDP.
    fn flow<const N: usize>(&self, key: &FlowKey<N>) -> Option<Flow<N>> {
        if key.protocol == UDP { self.get::<map::UdpFlows<N>>(key) } else { self.get::<map::Flows<N>>(key) }
    }

    /// Bits of [`lb_common::abi::network_flags`].
    fn network<const N: usize>(&self, address: &[u8; N]) -> u32 {
        let key = Prefix::new(8 * u32::try_from(N).unwrap_or(0), NetworkKey { address: *address });
        self.get::<map::Networks<N>>(&key).map_or(0, |network| network.flags)
    }
}

/// What a decision needs beside the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionContext {
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
