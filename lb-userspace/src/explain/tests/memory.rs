//! Tables in memory: one service, `demo/web`, and its backends.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use lb_common::abi::{
    Affinity, AffinityKey, Backend, Bucket, BucketKey, Flow, FlowKey, HalfOpen, Health, Masquerade, Network,
    NetworkKey, Service, ServiceKey, ServiceName, Slot, Source, SourceKey, TCP, Vip, VipKey, backend_flags,
    backend_state, network_flags, seal,
};
use lb_common::map::{Map, MapId, Prefix};
use lb_common::service_cidrs::Cover;
use lb_common::state::{SourcePorts, Timeouts};
use lb_tables::to_chars;

use crate::explain::{DecisionContext, Stored};

pub const SERVICE: u32 = 7;
pub const NOW_S: u32 = 1_000;
pub const VIP: [u8; 4] = [10, 96, 0, 1];
pub const CLIENT: [u8; 4] = [10, 1, 9, 9];

/// The client's tuple.
pub const fn key() -> FlowKey<4> {
    FlowKey { src: CLIENT, dst: VIP, src_port: 12_345, dst_port: 80, protocol: TCP, pad: [0; 3] }
}

#[derive(Debug, Default)]
pub struct Memory {
    pub services: BTreeMap<ServiceKey<4>, Service>,
    pub slots: BTreeMap<u32, Slot>,
    pub backends: BTreeMap<u32, Backend<4>>,
    pub flows: BTreeMap<FlowKey<4>, Flow<4>>,
    pub half_open: BTreeMap<FlowKey<4>, HalfOpen<4>>,
    pub health: BTreeMap<u32, Health>,
    pub affinity: HashMap<AffinityKey<4>, Affinity>,
    pub buckets: BTreeMap<BucketKey, Bucket>,
    pub vips: BTreeMap<[u8; 4], u32>,
    pub networks: BTreeMap<[u8; 4], u32>,
    pub masquerade: Option<[u8; 4]>,
    /// Whether the source ranges hold the client.
    pub admits: bool,
    pub round_robin: u32,
    pub adoption: u32,
    pub fast_path: u32,
}

impl Memory {
    /// The service with so many ready backends of this node, 10.1.0.1 and on.
    pub fn serving(backends: u32) -> Self {
        let mut memory = Self::default();
        for id in 1..=backends {
            memory.put_backend(id, backend_state::ACTIVE, backend_flags::LOCAL | backend_flags::IN_CLUSTER_SET);
            let slot = Slot { backend: id, generation: 1, service: SERVICE, backend_generation: 1 };
            memory.slots.insert(id, slot);
        }
        let service = Service {
            id: SERVICE,
            generation: 1,
            slot_base: 1,
            slot_count: backends,
            external_base: 1,
            external_count: backends,
            ..Service::NONE
        };
        let key = ServiceKey { address: VIP, port: 80, protocol: TCP, pad: 0 };
        memory.services.insert(key, Service { seal: seal(&key, &service), ..service });
        memory
    }

    /// Writes a backend.
    pub fn put_backend(&mut self, id: u32, state: u8, flags: u8) {
        let address = [10, 1, 0, u8::try_from(id).expect("few")];
        let value = Backend {
            address,
            port: 8080,
            state,
            flags,
            generation: 1,
            service: SERVICE,
            deadline_ds: 0,
            drain_ds: 0,
            uid_hash: 0,
            weight: 1,
            pad: 0,
        };
        self.backends.insert(id, value);
    }

    /// Changes the service, and seals it.
    pub fn change_service(&mut self, change: impl Fn(&mut Service)) {
        for (key, service) in &mut self.services {
            change(service);
            service.seal = seal(key, service);
        }
    }

    pub fn settings() -> DecisionContext {
        DecisionContext {
            now_ns: u64::from(NOW_S) * 1_000_000_000,
            seed: 1,
            link: 0,
            timeouts: Timeouts::DEFAULT,
            ports: SourcePorts::DEFAULT,
            client_key: 1,
            flow_room: 1_000,
        }
    }
}

/// The value, where it is one of this map.
fn of<M: Map, V: 'static>(value: Option<V>) -> Option<M::Value> {
    (&value? as &dyn Any).downcast_ref().copied()
}

/// The key, where it is one of this type.
fn key_as<M: Map, K: Copy + 'static>(key: &M::Key) -> Option<K> {
    (key as &dyn Any).downcast_ref().copied()
}

impl Memory {
    fn all_of<M: Map, K: 'static + Copy, V: 'static + Copy>(map: &BTreeMap<K, V>) -> Vec<(M::Key, M::Value)> {
        let cast =
            |(key, value): (&K, &V)| Some(((key as &dyn Any).downcast_ref().copied()?, of::<M, V>(Some(*value))?));
        map.iter().filter_map(cast).collect()
    }
}

impl Stored for Memory {
    fn get<M: Map>(&self, key: &M::Key) -> Option<M::Value> {
        match M::ID {
            MapId::SERVICES4 => of::<M, _>(self.services.get(&key_as::<M, _>(key)?).copied()),
            MapId::SLOTS => of::<M, _>(self.slots.get(&key_as::<M, _>(key)?).copied()),
            MapId::BACKENDS4 => of::<M, _>(self.backends.get(&key_as::<M, _>(key)?).copied()),
            MapId::FLOWS4 => of::<M, _>(self.flows.get(&key_as::<M, _>(key)?).copied()),
            MapId::HALF_OPEN4 => of::<M, _>(self.half_open.get(&key_as::<M, _>(key)?).copied()),
            MapId::HEALTH4 => of::<M, _>(Some(self.health.get(&key_as::<M, _>(key)?).copied().unwrap_or_default())),
            MapId::AFFINITY4 => of::<M, _>(self.affinity.get(&key_as::<M, _>(key)?).copied()),
            MapId::BUCKETS => of::<M, _>(self.buckets.get(&key_as::<M, _>(key)?).copied()),
            MapId::SOURCES4 => {
                let Prefix { data: SourceKey { service, .. }, .. } = key_as::<M, Prefix<SourceKey<4>>>(key)?;
                of::<M, _>(self.admits.then_some(Source { service }))
            }
            MapId::VIPS4 => {
                let VipKey { address } = key_as::<M, VipKey<4>>(key)?;
                of::<M, _>(self.vips.get(&address).map(|flags| Vip { flags: *flags }))
            }
            MapId::NETWORKS4 => {
                let Prefix { data: NetworkKey { address }, .. } = key_as::<M, Prefix<NetworkKey<4>>>(key)?;
                of::<M, _>(self.networks.get(&address).map(|flags| Network { flags: *flags }))
            }
            MapId::SERVICE_CIDRS => {
                let services = self.networks.iter().filter(|(_, flags)| **flags & network_flags::SERVICES != 0);
                of::<M, _>(Some(Cover::of(services.map(|(address, _)| (*address, 32)))))
            }
            MapId::MASQUERADE4 => of::<M, _>(self.masquerade.map(|address| Masquerade::new(address, &[]))),
            MapId::ROUND_ROBIN => of::<M, _>(Some(u64::from(self.round_robin))),
            MapId::ADOPTION => of::<M, _>(Some(self.adoption)),
            MapId::FAST_PATH => of::<M, _>(Some(self.fast_path)),
            MapId::NAMES => of::<M, _>((key_as::<M, u32>(key)? == SERVICE).then(|| ServiceName {
                namespace: to_chars("demo"),
                name: to_chars("web"),
                port_name: to_chars("http"),
                port: 80,
                protocol: TCP,
                pad: 0,
            })),
            _ => None,
        }
    }

    fn all<M: Map>(&self) -> Vec<(M::Key, M::Value)> {
        match M::ID {
            MapId::SERVICES4 => Self::all_of::<M, _, _>(&self.services),
            MapId::BACKENDS4 => Self::all_of::<M, _, _>(&self.backends),
            other => panic!("{} is not read as a whole", other.name()),
        }
    }

    fn is_ruled_out(&self, address: IpAddr) -> bool {
        let IpAddr::V4(address) = address else { return false };
        let address = address.octets();
        !self.services.keys().any(|key| key.address == address) && !self.vips.contains_key(&address)
    }

    fn link_to<const N: usize>(&self, _: &[u8; N]) -> u32 {
        0
    }
}
