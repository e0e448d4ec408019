//! What a test does with the tables: serves, asks, ejects, and lets time pass.

use lb_common::abi::{Backend, FlowKey, Health, Service, ServiceKey, Slot, UDP, backend_flags, backend_state, seal};
use lb_common::decide::{Hook, Now, Packet, Verdict, Work, decide};
use lb_common::state::tcp_flag::{ACK, SYN};

use super::{ISN, Memory};

impl<const N: usize> Memory<N> {
    /// Puts a service with these backends into the tables: service `id`, slots from `base`, backend ids from `base` + 1.
    pub fn serve(&mut self, id: u32, base: u32, frontend: ServiceKey<N>, addresses: &[[u8; N]], port: u16) {
        let generation = id + 100;
        let count = u32::try_from(addresses.len()).unwrap();
        for (index, address) in (base..).zip(addresses) {
            let backend = Backend {
                address: *address,
                port,
                state: backend_state::ACTIVE,
                flags: backend_flags::SERVING | backend_flags::LOCAL | backend_flags::IN_CLUSTER_SET,
                generation: 1,
                service: id,
                deadline_ds: 0,
                drain_ds: 0,
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
            external_base: base,
            external_count: count,
            seal: 0,
            affinity_timeout_s: 0,
            scheduler: 0,
            flags: 0,
            kind: 0,
            pad: 0,
            rate: 0,
            burst: 0,
        };
        let service = Service { seal: seal(&frontend, &service), ..service };
        self.services.insert(frontend, service);
    }

    pub fn ask(&mut self, key: FlowKey<N>, tcp_flags: u8, hook: Hook) -> Verdict<N> {
        // Of a client whose initial sequence number is always the same one as its backend's.
        let syn = tcp_flags & SYN != 0 && tcp_flags & ACK == 0;
        let begins = tcp_flags & SYN != 0;
        self.ask_numbered(key, tcp_flags, if begins { ISN } else { ISN + 1 }, if syn { 0 } else { ISN + 1 }, hook)
    }

    /// As [`Memory::ask`], of a segment with these sequence and acknowledgement numbers.
    pub fn ask_numbered(&mut self, key: FlowKey<N>, tcp_flags: u8, seq: u32, ack: u32, hook: Hook) -> Verdict<N> {
        let (seq, ack) = if key.protocol == UDP { (0, 0) } else { (seq, ack) };
        let mut work = Work::new(Packet { seq, ack, ..Packet::new(key, tcp_flags) });
        decide(self, &mut work, hook);
        work.verdict
    }

    /// The backend, of its first generation, is ejected from now on.
    pub fn eject(&mut self, backend: u32) {
        let ejected_s = Now::from_ns(self.now_ns).s;
        let health = Health { generation: 1, ejected_s, ..Health::default() };
        self.health.insert(backend, health);
    }

    pub fn pass_seconds(&mut self, seconds: u64) {
        self.now_ns += seconds * 1_000_000_000;
    }
}
