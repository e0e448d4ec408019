//! The kernel's maps of one family, as far as a lockstep run writes and compares them.

use std::collections::HashMap;

use anyhow::Result;
use aya::maps::MapError;
use aya::maps::lpm_trie::Key;
use lb_common::abi::{
    Affinity, AffinityKey, Backend, Endpoint, EndpointKey, Flow, FlowKey, HalfOpen, Health, Masquerade, Network,
    NetworkKey, SOURCE_SERVICE_BITS, Service, ServiceKey, Slot, Source, SourceKey, Vip, VipKey,
};

use lb_common::service_cidrs::Cover;

use crate::test_run::LoadedPrograms;

/// Writes and reads the maps of one family.
pub trait Maps<const N: usize> {
    fn set_service(&mut self, key: ServiceKey<N>, value: Service) -> Result<()>;
    fn remove_service(&mut self, key: ServiceKey<N>) -> Result<()>;
    fn set_slot(&mut self, index: u32, value: Slot) -> Result<()>;
    fn set_backend(&mut self, id: u32, value: Backend<N>) -> Result<()>;
    fn set_source(&mut self, service: u32, address: [u8; N], bits: u32) -> Result<()>;
    fn set_vip(&mut self, key: VipKey<N>, value: Vip) -> Result<()>;
    fn set_network(&mut self, address: [u8; N], bits: u32, flags: u32) -> Result<()>;
    fn set_service_cidr_cover(&mut self, cover: Cover) -> Result<()>;
    fn set_endpoint(&mut self, key: EndpointKey<N>, value: Endpoint) -> Result<()>;
    fn remove_endpoint(&mut self, key: EndpointKey<N>) -> Result<()>;
    fn set_health(&mut self, backend: u32, value: Health) -> Result<()>;
    /// The addresses that packets are masqueraded by, whichever link they leave by.
    fn set_own(&mut self, own: Option<Masquerade<N>>) -> Result<()>;
    fn set_flow(&mut self, key: FlowKey<N>, value: Flow<N>) -> Result<()>;
    fn remove_flow(&mut self, key: FlowKey<N>) -> Result<()>;
    fn remove_half_open(&mut self, key: FlowKey<N>) -> Result<()>;
    fn flows(&self) -> Result<HashMap<FlowKey<N>, Flow<N>>>;
    fn half_open(&self) -> Result<HashMap<FlowKey<N>, HalfOpen<N>>>;
    fn affinity(&self) -> Result<HashMap<AffinityKey<N>, Affinity>>;
    fn health(&self, backend: u32) -> Result<Health>;
}

/// Gone already is as good.
fn gone(result: Result<(), MapError>) -> Result<()> {
    match result {
        Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => Ok(other?),
    }
}

macro_rules! maps {
    ($n:literal, $tables:ident, $life:ident) => {
        impl Maps<$n> for LoadedPrograms {
            fn set_service(&mut self, key: ServiceKey<$n>, value: Service) -> Result<()> {
                self.know(key.address.into());
                Ok(self.$tables.services.insert(key, value, 0)?)
            }
            fn remove_service(&mut self, key: ServiceKey<$n>) -> Result<()> {
                gone(self.$tables.services.remove(&key))
            }
            fn set_slot(&mut self, index: u32, value: Slot) -> Result<()> {
                Ok(self.$tables.slots.set(index, value, 0)?)
            }
            fn set_backend(&mut self, id: u32, value: Backend<$n>) -> Result<()> {
                Ok(self.$tables.backends.set(id, value, 0)?)
            }
            fn set_source(&mut self, service: u32, address: [u8; $n], bits: u32) -> Result<()> {
                let key = Key::new(SOURCE_SERVICE_BITS + bits, SourceKey { service, address });
                Ok(self.$tables.sources.insert(&key, Source { service }, 0)?)
            }
            fn set_vip(&mut self, key: VipKey<$n>, value: Vip) -> Result<()> {
                self.know(key.address.into());
                Ok(self.$life.vips.insert(key, value, 0)?)
            }
            fn set_network(&mut self, address: [u8; $n], bits: u32, flags: u32) -> Result<()> {
                Ok(self.$life.networks.insert(&Key::new(bits, NetworkKey { address }), Network { flags }, 0)?)
            }
            fn set_service_cidr_cover(&mut self, cover: Cover) -> Result<()> {
                self.set_cover::<$n>(cover)
            }
            fn set_endpoint(&mut self, key: EndpointKey<$n>, value: Endpoint) -> Result<()> {
                Ok(self.$life.endpoints.insert(key, value, 0)?)
            }
            fn remove_endpoint(&mut self, key: EndpointKey<$n>) -> Result<()> {
                gone(self.$life.endpoints.remove(&key))
            }
            fn set_health(&mut self, backend: u32, value: Health) -> Result<()> {
                Ok(self.$life.health.set(backend, value, 0)?)
            }
            fn set_own(&mut self, own: Option<Masquerade<$n>>) -> Result<()> {
                match own {
                    Some(own) => Ok(self.$life.masquerade.insert(0, own, 0)?),
                    None => gone(self.$life.masquerade.remove(&0)),
                }
            }
            fn set_flow(&mut self, key: FlowKey<$n>, value: Flow<$n>) -> Result<()> {
                Ok(self.$tables.flows_of(&key).insert(key, value, 0)?)
            }
            fn remove_flow(&mut self, key: FlowKey<$n>) -> Result<()> {
                gone(self.$tables.flows_of(&key).remove(&key))
            }
            fn remove_half_open(&mut self, key: FlowKey<$n>) -> Result<()> {
                gone(self.$life.half_open.remove(&key))
            }
            fn flows(&self) -> Result<HashMap<FlowKey<$n>, Flow<$n>>> {
                Ok(self.$tables.all_flows()?.into_iter().collect())
            }
            fn half_open(&self) -> Result<HashMap<FlowKey<$n>, HalfOpen<$n>>> {
                Ok(self.$life.half_open.iter().collect::<Result<_, _>>()?)
            }
            fn affinity(&self) -> Result<HashMap<AffinityKey<$n>, Affinity>> {
                Ok(self.$life.affinity.iter().collect::<Result<_, _>>()?)
            }
            fn health(&self, backend: u32) -> Result<Health> {
                Ok(self.$life.health.get(&backend, 0)?)
            }
        }
    };
}

maps!(4, tables4, state4);
maps!(16, tables6, state6);
