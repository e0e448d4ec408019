//! Tables in memory: one service, `demo/web`, and its backends.

use std::collections::{BTreeMap, HashMap};

use lb_common::abi::{
    Affinity, AffinityKey, Backend, Bucket, BucketKey, Endpoint, EndpointKey, Flow, FlowKey, HalfOpen, Health, Link,
    Service, ServiceKey, ServiceName, Slot, TCP, Vip, VipKey, backend_flags, backend_state, network_flags, seal,
};
use lb_common::state::{SourcePorts, Timeouts};

use crate::explain::{DecisionContext, Stored};
use lb_tables::to_chars;

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

impl Stored<4> for Memory {
    fn service(&self, key: &ServiceKey<4>) -> Option<Service> {
        self.services.get(key).copied()
    }

    fn services(&self) -> Vec<(ServiceKey<4>, Service)> {
        self.services.iter().map(|(key, service)| (*key, *service)).collect()
    }

    fn slot(&self, index: u32) -> Option<Slot> {
        self.slots.get(&index).copied()
    }

    fn backend(&self, id: u32) -> Option<Backend<4>> {
        self.backends.get(&id).copied()
    }

    fn backends(&self, service: u32) -> Vec<(u32, Backend<4>)> {
        let of = self.backends.iter().filter(|(_, backend)| backend.service == service);
        of.map(|(id, backend)| (*id, *backend)).collect()
    }

    fn flow(&self, key: &FlowKey<4>) -> Option<Flow<4>> {
        self.flows.get(key).copied()
    }

    fn half_open(&self, key: &FlowKey<4>) -> Option<HalfOpen<4>> {
        self.half_open.get(key).copied()
    }

    fn admitted(&self, _: u32, _: &[u8; 4]) -> bool {
        self.admits
    }

    fn is_ruled_out(&self, address: &[u8; 4]) -> bool {
        !self.services.keys().any(|key| key.address == *address) && !self.vips.contains_key(address)
    }

    fn may_be_in_service_cidr(&self, address: &[u8; 4]) -> bool {
        self.network(address) & network_flags::SERVICES != 0
    }

    fn health(&self, backend: u32) -> Option<Health> {
        Some(self.health.get(&backend).copied().unwrap_or_default())
    }

    fn affinity(&self, key: &AffinityKey<4>) -> Option<Affinity> {
        self.affinity.get(key).copied()
    }

    fn client_share(&self, _: u32) -> u32 {
        0
    }

    fn round_robin(&self, _: u32) -> u32 {
        self.round_robin
    }

    fn vip(&self, key: &VipKey<4>) -> Option<Vip> {
        self.vips.get(&key.address).map(|flags| Vip { flags: *flags })
    }

    fn network(&self, address: &[u8; 4]) -> u32 {
        self.networks.get(address).copied().unwrap_or_default()
    }

    fn masquerade(&self, _: &[u8; 4], _: u32) -> Option<[u8; 4]> {
        self.masquerade
    }

    fn endpoint(&self, _: &EndpointKey<4>) -> Option<Endpoint> {
        None
    }

    fn bucket(&self, key: &BucketKey) -> Option<Bucket> {
        self.buckets.get(key).copied()
    }

    fn flood_until_s(&self) -> u32 {
        0
    }

    fn adoption(&self) -> u32 {
        self.adoption
    }

    fn fast_path(&self) -> u32 {
        self.fast_path
    }

    fn link(&self, _: u32) -> Option<Link> {
        None
    }

    fn name(&self, service: u32) -> Option<ServiceName> {
        (service == SERVICE).then(|| ServiceName {
            namespace: to_chars("demo"),
            name: to_chars("web"),
            port_name: to_chars("http"),
            port: 80,
            protocol: TCP,
            pad: 0,
        })
    }
}
