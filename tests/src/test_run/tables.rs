//! The maps of one address family, as the programs read them.

use anyhow::Result;
use aya::Ebpf;
use aya::maps::lpm_trie::Key;
use aya::maps::{Array, HashMap, LpmTrie, MapData};
use lb_common::abi::{Backend, Flow, FlowKey, Service, ServiceKey, Slot, Source, SourceKey, UDP};
use lb_common::map::{self, Map};

use super::{keys, take};

/// Services, slots, backends, flows and source ranges of one family.
pub struct FamilyMaps<const N: usize> {
    pub services: HashMap<MapData, ServiceKey<N>, Service>,
    pub slots: Array<MapData, Slot>,
    pub backends: Array<MapData, Backend<N>>,
    flows: HashMap<MapData, FlowKey<N>, Flow<N>>,
    udp_flows: HashMap<MapData, FlowKey<N>, Flow<N>>,
    pub sources: LpmTrie<MapData, SourceKey<N>, Source>,
}

impl<const N: usize> FamilyMaps<N> {
    pub(super) fn take(ebpf: &mut Ebpf, slots: MapData) -> Result<Self> {
        Ok(Self {
            services: take(ebpf, map::Services::<N>::NAME)?.try_into()?,
            slots: aya::maps::Map::Array(slots).try_into()?,
            backends: take(ebpf, map::Backends::<N>::NAME)?.try_into()?,
            flows: take(ebpf, map::Flows::<N>::NAME)?.try_into()?,
            udp_flows: take(ebpf, map::UdpFlows::<N>::NAME)?.try_into()?,
            sources: take(ebpf, map::Sources::<N>::NAME)?.try_into()?,
        })
    }

    /// Removes the source ranges of one service port.
    pub fn clear_sources(&mut self, service: u32) -> Result<()> {
        let keys: Vec<Key<SourceKey<N>>> = self.sources.keys().collect::<Result<_, _>>()?;
        for key in keys.iter().filter(|key| key.data().service == service) {
            self.sources.remove(key)?;
        }
        Ok(())
    }

    /// Removes services, flows and source ranges; slots and backends are overwritten by their next user.
    pub fn clear(&mut self) -> Result<()> {
        for key in keys(&self.services)? {
            self.services.remove(&key)?;
        }
        for flows in [&mut self.flows, &mut self.udp_flows] {
            for key in keys(flows)? {
                flows.remove(&key)?;
            }
        }
        let keys: Vec<Key<SourceKey<N>>> = self.sources.keys().collect::<Result<_, _>>()?;
        for key in keys {
            self.sources.remove(&key)?;
        }
        Ok(())
    }

    /// All flow entries, of both tables.
    pub fn all_flows(&self) -> Result<Vec<(FlowKey<N>, Flow<N>)>> {
        Ok(self.flows.iter().chain(self.udp_flows.iter()).collect::<Result<_, _>>()?)
    }

    /// The table that the entry under this key is in.
    pub fn flows_of(&mut self, key: &FlowKey<N>) -> &mut HashMap<MapData, FlowKey<N>, Flow<N>> {
        if key.protocol == UDP { &mut self.udp_flows } else { &mut self.flows }
    }
}
