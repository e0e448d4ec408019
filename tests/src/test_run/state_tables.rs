//! What the programs of one address family remember beside the flows: half-open ones, backends' health, affinities; and the addresses that they know:
//! those of services, of pods and nodes, those that this node masquerades by, and of backends by which other nodes name them.

use anyhow::Result;
use aya::Ebpf;
use aya::maps::lpm_trie::Key;
use aya::maps::{Array, HashMap, LpmTrie, MapData};
use lb_common::abi::{
    Affinity, AffinityKey, Endpoint, EndpointKey, FlowKey, HalfOpen, Health, Masquerade, Network, NetworkKey, Vip,
    VipKey,
};
use lb_common::map::{self, Map};

use super::{keys, take};

/// Half-open flows, health, affinities, vips, networks and masquerade addresses of one family.
pub struct StateTables<const N: usize> {
    pub half_open: HashMap<MapData, FlowKey<N>, HalfOpen<N>>,
    pub health: Array<MapData, Health>,
    pub affinity: HashMap<MapData, AffinityKey<N>, Affinity>,
    pub vips: HashMap<MapData, VipKey<N>, Vip>,
    pub networks: LpmTrie<MapData, NetworkKey<N>, Network>,
    pub masquerade: HashMap<MapData, u32, Masquerade<N>>,
    pub endpoints: HashMap<MapData, EndpointKey<N>, Endpoint>,
}

impl<const N: usize> StateTables<N> {
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self> {
        Ok(Self {
            half_open: take(ebpf, map::HalfOpen::<N>::NAME)?.try_into()?,
            health: take(ebpf, map::Health::<N>::NAME)?.try_into()?,
            affinity: take(ebpf, map::Affinity::<N>::NAME)?.try_into()?,
            vips: take(ebpf, map::Vips::<N>::NAME)?.try_into()?,
            networks: take(ebpf, map::Networks::<N>::NAME)?.try_into()?,
            masquerade: take(ebpf, map::Masquerade::<N>::NAME)?.try_into()?,
            endpoints: take(ebpf, map::Endpoints::<N>::NAME)?.try_into()?,
        })
    }

    /// Forgets all of it.
    pub fn clear(&mut self) -> Result<()> {
        for key in keys(&self.half_open)? {
            self.half_open.remove(&key)?;
        }
        for key in keys(&self.affinity)? {
            self.affinity.remove(&key)?;
        }
        for key in keys(&self.vips)? {
            self.vips.remove(&key)?;
        }
        let networks: Vec<Key<NetworkKey<N>>> = self.networks.keys().collect::<Result<_, _>>()?;
        for key in networks {
            self.networks.remove(&key)?;
        }
        for key in keys(&self.masquerade)? {
            self.masquerade.remove(&key)?;
        }
        for key in keys(&self.endpoints)? {
            self.endpoints.remove(&key)?;
        }
        for backend in 0..self.health.len() {
            self.health.set(backend, Health::default(), 0)?;
        }
        Ok(())
    }

    /// All half-open entries.
    pub fn all_half_open(&self) -> Result<Vec<(FlowKey<N>, HalfOpen<N>)>> {
        Ok(self.half_open.iter().collect::<Result<_, _>>()?)
    }
}
