//! The maps of one address family, as the programs read them.

use anyhow::Result;
use aya::maps::{Array, HashMap, MapData};
use aya::{Ebpf, Pod};
use lb_common::abi::{Backend, Flow, FlowKey, Service, ServiceKey, Slot, map_name};

use super::{keys, take};

/// The records of an address family can be stored in maps.
pub trait Family {
    const SERVICES: &str;
    const BACKENDS: &str;
    const FLOWS: &str;
}

/// Names the maps of a family by the length of its addresses.
pub struct Of<const N: usize>;

impl Family for Of<4> {
    const SERVICES: &str = map_name::SERVICES4;
    const BACKENDS: &str = map_name::BACKENDS4;
    const FLOWS: &str = map_name::FLOWS4;
}

impl Family for Of<16> {
    const SERVICES: &str = map_name::SERVICES6;
    const BACKENDS: &str = map_name::BACKENDS6;
    const FLOWS: &str = map_name::FLOWS6;
}

/// Services, slots, backends and flows of one family.
pub struct Tables<const N: usize>
where
    ServiceKey<N>: Pod,
    Backend<N>: Pod,
    FlowKey<N>: Pod,
    Flow<N>: Pod,
{
    pub services: HashMap<MapData, ServiceKey<N>, Service>,
    pub slots: Array<MapData, Slot>,
    pub backends: Array<MapData, Backend<N>>,
    pub flows: HashMap<MapData, FlowKey<N>, Flow<N>>,
}

impl<const N: usize> Tables<N>
where
    Of<N>: Family,
    ServiceKey<N>: Pod,
    Backend<N>: Pod,
    FlowKey<N>: Pod,
    Flow<N>: Pod,
{
    pub(super) fn take(ebpf: &mut Ebpf, slots: MapData) -> Result<Self> {
        Ok(Self {
            services: take(ebpf, Of::<N>::SERVICES)?.try_into()?,
            slots: aya::maps::Map::Array(slots).try_into()?,
            backends: take(ebpf, Of::<N>::BACKENDS)?.try_into()?,
            flows: take(ebpf, Of::<N>::FLOWS)?.try_into()?,
        })
    }

    /// Removes services and flows; slots and backends are overwritten by whoever uses them.
    pub fn clear(&mut self) -> Result<()> {
        for key in keys(&self.services)? {
            self.services.remove(&key)?;
        }
        for key in keys(&self.flows)? {
            self.flows.remove(&key)?;
        }
        Ok(())
    }

    /// All flow entries.
    pub fn all_flows(&self) -> Result<Vec<(FlowKey<N>, Flow<N>)>> {
        Ok(self.flows.iter().collect::<Result<_, _>>()?)
    }
}
