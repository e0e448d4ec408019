//! What a test does with the tables: serves, asks, ejects, and lets time pass.

use super::{ISN, Memory};
use crate::abi::{
    Backend, FlowKey, Health, Service, ServiceKey, Slot, UDP, backend_flags, backend_state, frontend_kind, seal,
};
use crate::decide::{Action, Hook, Now, Packet, Verdict, Work, decide};
use crate::outcome::Outcome;
use crate::state::tcp_flag::{ACK, SYN};

/// An address and a port.
pub type End<const N: usize = 4> = ([u8; N], u16);

/// A tuple between these ends.
#[must_use]
pub const fn tuple<const N: usize>(protocol: u8, src: End<N>, dst: End<N>) -> FlowKey<N> {
    FlowKey { src: src.0, dst: dst.0, src_port: src.1, dst_port: dst.1, protocol, pad: [0; 3] }
}

/// The tuple of the backend's packets, whose client's packets became what the verdict says.
#[must_use]
pub const fn reply<const N: usize>(protocol: u8, sent: &Verdict<N>) -> FlowKey<N> {
    tuple(protocol, (sent.address, sent.port), (sent.client, sent.client_port))
}

/// The key of a frontend.
#[must_use]
pub const fn frontend<const N: usize>(protocol: u8, (address, port): End<N>) -> ServiceKey<N> {
    ServiceKey { address, port, protocol, pad: 0 }
}

/// A backend of this node that serves all clients.
#[must_use]
pub const fn active<const N: usize>(service: u32, (address, port): End<N>) -> Backend<N> {
    Backend {
        address,
        port,
        state: backend_state::ACTIVE,
        flags: backend_flags::SERVING | backend_flags::LOCAL | backend_flags::IN_CLUSTER_SET,
        generation: 1,
        service,
        deadline_ds: 0,
        drain_ds: 0,
        uid_hash: 0,
        weight: 1,
        pad: 0,
    }
}

/// What became of a packet, in short.
#[must_use]
pub const fn what<const N: usize>(verdict: &Verdict<N>) -> (Action, Outcome) {
    (verdict.action, verdict.outcome)
}

impl<const N: usize> Memory<N> {
    /// Puts a service with these backends into the tables: service `id`, slots from `base`, backend ids from `base` + 1.
    pub fn serve(&mut self, id: u32, base: u32, frontend: ServiceKey<N>, addresses: &[[u8; N]], port: u16) {
        let generation = id + 100;
        for (index, address) in (base..).zip(addresses) {
            self.backends.insert(index + 1, active(id, (*address, port)));
            self.slots.insert(index, Slot { backend: index + 1, backend_generation: 1, service: id, generation });
        }
        let count = addresses.len() as u32;
        let kind = frontend_kind::CLUSTER_IP;
        let (slot_count, external_count) = (count, count);
        let service = Service {
            id,
            generation,
            slot_base: base,
            slot_count,
            external_base: base,
            external_count,
            kind,
            ..Service::NONE
        };
        self.services.insert(frontend, Service { seal: seal(&frontend, &service), ..service });
    }

    /// Changes a frontend as the agent does: whole.
    ///
    /// # Panics
    /// If there is none.
    pub fn edit(&mut self, frontend: ServiceKey<N>, edit: impl FnOnce(&mut Service)) {
        let service = self.services.get_mut(&frontend).expect("it is served");
        edit(service);
        service.seal = seal(&frontend, service);
    }

    /// Decides over a packet with the sequence numbers that every client and backend of a test has.
    pub fn ask(&mut self, key: FlowKey<N>, tcp_flags: u8, hook: Hook) -> Verdict<N> {
        let syn = tcp_flags & SYN != 0 && tcp_flags & ACK == 0;
        let begins = tcp_flags & SYN != 0;
        self.ask_numbered(key, tcp_flags, if begins { ISN } else { ISN + 1 }, if syn { 0 } else { ISN + 1 }, hook)
    }

    /// As [`Memory::ask`], of a segment with these sequence and acknowledgement numbers.
    pub fn ask_numbered(&mut self, key: FlowKey<N>, tcp_flags: u8, seq: u32, ack: u32, hook: Hook) -> Verdict<N> {
        let (seq, ack) = if key.protocol == UDP { (0, 0) } else { (seq, ack) };
        self.decide(Packet { seq, ack, ..Packet::new(key, tcp_flags) }, hook)
    }

    /// Decides over a packet.
    pub fn decide(&mut self, packet: Packet<N>, hook: Hook) -> Verdict<N> {
        let mut work = Work::new(packet);
        decide(self, &mut work, hook);
        work.verdict
    }

    /// The second of the clock.
    #[must_use]
    pub const fn now_s(&self) -> u32 {
        (self.now_ns / 1_000_000_000) as u32
    }

    /// The tenth of a second of the clock.
    #[must_use]
    pub const fn now_ds(&self) -> u32 {
        (self.now_ns / 100_000_000) as u32
    }

    /// The backend, of its first generation, is ejected from now on.
    pub fn eject(&mut self, backend: u32) {
        let ejected_s = Now::from_ns(self.now_ns).s;
        self.health.insert(backend, Health { generation: 1, ejected_s, ..Health::default() });
    }

    /// Time goes on.
    pub const fn pass_seconds(&mut self, seconds: u64) {
        self.now_ns += seconds * 1_000_000_000;
    }
}
