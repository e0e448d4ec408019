//! What the agent does to the tables: publishes, drains, takes away, gives an address to another pod.

use lb_common::abi::{Backend, Service, ServiceKey, Slot, TCP, backend_flags, backend_state, seal};

use super::segment::End;
use lb_common::plain::Memory;

/// The services' addresses; all have the same pods behind them.
pub const VIPS: [End; 2] = [([10, 96, 0, 10], 80), ([10, 96, 0, 11], 80)];
/// A slot range of each service, and as many again for its next one.
const RANGE: u32 = 64;

/// One record: a pod behind a service.
pub struct Record {
    pub pod: usize,
    pub service: usize,
    /// Whether new flows go there.
    pub serves: bool,
    pub deadline_ms: Option<u64>,
    pub gone: bool,
}

#[derive(Default)]
pub struct Agent {
    /// By backend id, less 1.
    pub records: Vec<Record>,
    pub generation: u32,
    /// Added to each service's flags.
    pub flags: u8,
    pub affinity_timeout_s: u32,
}

impl Agent {
    /// A pod appears behind all services.
    pub fn add(&mut self, tables: &mut Memory, pod: usize, address: End) {
        for service in 0..VIPS.len() {
            self.records.push(Record { pod, service, serves: true, deadline_ms: None, gone: false });
            let backend = Backend {
                address: address.0,
                port: address.1,
                state: backend_state::ACTIVE,
                flags: backend_flags::SERVING | backend_flags::LOCAL | backend_flags::IN_CLUSTER_SET,
                generation: 1,
                service: u32::try_from(service).unwrap() + 1,
                deadline_ds: 0,
                drain_ds: 0,
                uid_hash: u32::try_from(pod).unwrap() + 1,
                weight: 1,
                pad: 0,
            };
            tables.backends.insert(u32::try_from(self.records.len()).unwrap(), backend);
        }
        self.publish(tables);
    }

    /// The pod is in no slice any more: its flows stay until the deadline.
    pub fn drain(&mut self, tables: &mut Memory, pod: usize, deadline_ms: u64) {
        self.edit(tables, pod, |record, backend| {
            if record.serves {
                record.serves = false;
                record.deadline_ms = Some(deadline_ms);
                backend.state = backend_state::DRAINING;
                backend.deadline_ds = u32::try_from(deadline_ms / 100).unwrap();
            }
        });
    }

    /// The pod takes no new flows, and keeps those that it has; or takes new ones again.
    pub fn rest(&mut self, tables: &mut Memory, pod: usize, rests: bool) {
        self.edit(tables, pod, |record, backend| {
            if record.deadline_ms.is_none() && !record.gone {
                record.serves = !rests;
                backend.state = if rests { backend_state::MAINTENANCE } else { backend_state::ACTIVE };
            }
        });
    }

    /// Its address is another pod's now, or its deadline was noticed.
    pub fn remove(&mut self, tables: &mut Memory, pod: usize) {
        self.edit(tables, pod, |record, backend| {
            if !record.gone {
                (record.serves, record.gone) = (false, true);
                backend.state = backend_state::GONE;
                backend.generation += 1;
            }
        });
    }

    /// Whether flows of this record may still be forwarded.
    pub fn keeps(&self, backend: u32, now_ms: u64) -> bool {
        let Some(record) = self.records.get(backend.wrapping_sub(1) as usize) else { return false };
        !record.gone && record.deadline_ms.is_none_or(|deadline| now_ms < deadline)
    }

    /// Whether the pod's flows of a service may still be forwarded.
    pub fn keeps_pod(&self, pod: usize, service: End, now_ms: u64) -> bool {
        (1..)
            .zip(&self.records)
            .any(|(id, record)| record.pod == pod && VIPS[record.service] == service && self.keeps(id, now_ms))
    }

    fn edit(&mut self, tables: &mut Memory, pod: usize, edit: impl Fn(&mut Record, &mut Backend<4>)) {
        for (id, record) in (1..).zip(&mut self.records) {
            if record.pod == pod {
                edit(record, tables.backends.get_mut(&id).unwrap());
            }
        }
        self.publish(tables);
    }

    fn publish(&mut self, tables: &mut Memory) {
        self.generation += 1;
        let generation = self.generation;
        for (service, (address, port)) in VIPS.into_iter().enumerate() {
            let id = u32::try_from(service).unwrap() + 1;
            let base = 2 * RANGE * id + RANGE * (generation % 2);
            let serving = (1..).zip(&self.records).filter(|(_, record)| record.serves && record.service == service);
            let mut count = 0;
            for (backend, _) in serving {
                let slot =
                    Slot { backend, generation, service: id, backend_generation: tables.backends[&backend].generation };
                tables.slots.insert(base + count, slot);
                count += 1;
            }
            assert!(count <= RANGE);
            let key = ServiceKey { address, port, protocol: TCP, pad: 0 };
            let value = Service {
                id,
                generation,
                slot_base: base,
                slot_count: count,
                external_base: base,
                external_count: count,
                seal: 0,
                affinity_timeout_s: self.affinity_timeout_s,
                scheduler: 0,
                flags: self.flags,
                kind: 0,
                pad: 0,
                rate: 0,
                burst: 0,
            };
            tables.services.insert(key, Service { seal: seal(&key, &value), ..value });
        }
    }
}
