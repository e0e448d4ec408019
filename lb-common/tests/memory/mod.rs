//! The decision's tables as plain hash maps: the third home of the same code.

use std::collections::HashMap;

use lb_common::abi::{Backend, Flow, FlowKey, Service, ServiceKey, Slot, backend_flags, backend_state, seal, tag};
use lb_common::decide::{Hook, NotInserted, Packet, Tables, Verdict, Work, decide};

/// Tables for IPv4, a clock that stands still until told, and a fixed sequence of random numbers.
pub struct Memory {
    pub services: HashMap<ServiceKey<4>, Service>,
    pub slots: HashMap<u32, Slot>,
    pub backends: HashMap<u32, Backend<4>>,
    pub flows: HashMap<FlowKey<4>, Flow<4>>,
    /// Admitted networks: service port, address, bits.
    pub sources: Vec<(u32, [u8; 4], u32)>,
    /// How many flow entries fit.
    pub capacity: usize,
    pub now_ns: u64,
    pub seed: u32,
    /// Live direct connections of local clients, client → server.
    pub direct: Vec<FlowKey<4>>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            services: HashMap::new(),
            slots: HashMap::new(),
            backends: HashMap::new(),
            flows: HashMap::new(),
            sources: Vec::new(),
            capacity: usize::MAX,
            now_ns: 1_000_000_000_000,
            seed: 1,
            direct: Vec::new(),
        }
    }
}

impl Tables<4> for Memory {
    type FlowRef = FlowKey<4>;

    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }

    fn random(&mut self) -> u32 {
        // Knuth's multiplicative sequence: well spread, repeatable.
        self.seed = self.seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.seed
    }

    fn service(&mut self, key: &ServiceKey<4>) -> Option<Service> {
        self.services.get(key).copied()
    }

    fn slot(&mut self, index: u32) -> Option<Slot> {
        self.slots.get(&index).copied()
    }

    fn backend(&mut self, id: u32) -> Option<Backend<4>> {
        self.backends.get(&id).copied()
    }

    fn flow(&mut self, key: &FlowKey<4>) -> Option<(FlowKey<4>, Flow<4>)> {
        self.flows.get(key).filter(|flow| flow.tag == tag(key)).map(|flow| (*key, *flow))
    }

    fn touch(&mut self, entry: FlowKey<4>, tag: u32, seen_s: u32, state: u8, flags: u8) {
        if let Some(flow) = self.flows.get_mut(&entry).filter(|flow| flow.tag == tag) {
            *flow = Flow { seen_s, state, flags, ..*flow };
        }
    }

    fn insert_flow(&mut self, key: &FlowKey<4>, flow: &Flow<4>, replace: bool) -> Result<(), NotInserted> {
        let exists = self.flows.contains_key(key);
        if exists && !replace {
            return Err(NotInserted::Exists);
        }
        if !exists && self.flows.len() >= self.capacity {
            return Err(NotInserted::Full);
        }
        self.flows.insert(*key, *flow);
        Ok(())
    }

    fn remove_flow(&mut self, key: &FlowKey<4>) {
        self.flows.remove(key);
    }

    fn admitted(&mut self, service: u32, address: &[u8; 4]) -> bool {
        let network = |address: &[u8; 4], bits: u32| u64::from(u32::from_be_bytes(*address)) >> (32 - bits);
        self.sources.iter().any(|(id, range, bits)| *id == service && network(range, *bits) == network(address, *bits))
    }

    fn direct_connection(&mut self, reply: &FlowKey<4>) -> bool {
        self.direct.contains(&reply.reversed())
    }
}

impl Memory {
    /// Puts a service with these backends into the tables: service `id`, slots from `base`, backend ids from `base` + 1.
    pub fn serve(&mut self, id: u32, base: u32, frontend: ServiceKey<4>, addresses: &[[u8; 4]], port: u16) {
        let generation = id + 100;
        let count = u32::try_from(addresses.len()).unwrap();
        for (index, address) in (base..).zip(addresses) {
            let backend = Backend {
                address: *address,
                port,
                state: backend_state::ACTIVE,
                flags: backend_flags::SERVING | backend_flags::LOCAL,
                generation: 1,
                service: id,
                deadline_ds: 0,
                uid_hash: 0,
                weight: 1,
                pad: 0,
            };
            self.backends.insert(index + 1, backend);
            self.slots.insert(index, Slot { backend: index + 1, backend_generation: 1, service: id, generation });
        }
        let service = Service {
            id,
            generation,
            slot_base: base,
            slot_count: count,
            outside_base: base,
            outside_count: count,
            seal: 0,
            affinity_timeout_s: 0,
            scheduler: 0,
            flags: 0,
            kind: 0,
            pad: 0,
        };
        let service = Service { seal: seal(&frontend, &service), ..service };
        self.services.insert(frontend, service);
    }

    pub fn ask(&mut self, key: FlowKey<4>, tcp_flags: u8, hook: Hook) -> Verdict<4> {
        let mut work = Work::new(Packet { key, tcp_flags });
        decide(self, &mut work, hook);
        work.verdict
    }

    pub fn pass_seconds(&mut self, seconds: u64) {
        self.now_ns += seconds * 1_000_000_000;
    }
}
