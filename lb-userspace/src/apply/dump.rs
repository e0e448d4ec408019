//! Tables in memory as text, and the look of a reader at them.

use std::{fmt::Write, net::SocketAddr};

use lb_common::abi::{self, backend_flags, backend_state};

use super::MemoryStore;
use crate::{
    maps::from_chars,
    model::{Family, Monotonic, Protocol},
    plan::{BackendId, BackendRecord, Frontend},
};

impl MemoryStore {
    /// What the tables hold, without ids: one line for each frontend, then one for each backend that is in use. Tables that
    /// serve alike read alike, however they came about.
    pub fn dump(&self) -> String {
        let mut lines: Vec<String> =
            self.frontends.iter().map(|(frontend, entry)| self.frontend(*frontend, entry)).collect();
        lines.sort();
        let used = self.backends.iter().filter(|(_, record)| record.state != backend_state::FREE);
        let mut backends: Vec<String> = used.map(|(_, record)| self.backend(record)).collect();
        backends.sort();
        lines.extend(backends);
        lines.into_iter().fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "{line}");
            text
        })
    }

    fn frontend(&self, frontend: Frontend, entry: &abi::Service) -> String {
        let mut text = format!("frontend {frontend} {}", self.name(entry.id));
        if entry.affinity_timeout_s > 0 {
            let _ = write!(text, " affinity {}s", entry.affinity_timeout_s);
        }
        let family = Family::of(frontend.address);
        let mut targets: Vec<SocketAddr> = (entry.slot_base..entry.slot_base + entry.slot_count)
            .filter_map(|index| self.slots.get(&index))
            .filter_map(|slot| self.backends.get(&BackendId { family, id: slot.backend }))
            .map(|record| record.address)
            .collect();
        targets.sort();
        text.push_str(" ->");
        for target in &targets {
            let _ = write!(text, " {target}");
        }
        if targets.is_empty() {
            text.push_str(" nothing");
        }
        text
    }

    fn backend(&self, record: &BackendRecord) -> String {
        let state = match record.state {
            backend_state::ACTIVE => "active",
            backend_state::RESTING => "resting",
            backend_state::TERMINATING => "terminating",
            backend_state::DRAINING => "draining",
            backend_state::MAINTENANCE => "maintenance",
            backend_state::GONE => "gone",
            _ => "free",
        };
        let mut text = format!("backend {} {} {state}", self.name(record.service), record.address);
        if record.flags & backend_flags::LOCAL != 0 {
            text.push_str(" local");
        }
        if record.flags & backend_flags::SERVING != 0 {
            text.push_str(" serving");
        }
        if record.deadline_ds != 0 && record.state != backend_state::GONE {
            let until = Monotonic::from_tenths(record.deadline_ds).since(Monotonic::default());
            let _ = write!(text, " until {}s", until.as_secs_f64());
        }
        text
    }

    fn name(&self, id: u32) -> String {
        let Some(name) = self.names.get(&id) else { return format!("#{id}") };
        let protocol =
            Protocol::from_number(name.protocol).map_or_else(|| name.protocol.to_string(), |p| p.to_string());
        let port_name = from_chars(&name.port_name);
        let port_name = if port_name.is_empty() { port_name } else { format!("({port_name})") };
        format!("{}/{}:{}/{protocol}{port_name}", from_chars(&name.namespace), from_chars(&name.name), name.port)
    }

    /// What a reader of these tables must never see: a torn frontend, a slot of another range, a backend that is not there; nor,
    /// with a copy of an entry as it once was, take a backend that is not the service's or is gone.
    pub fn problems(&self) -> Vec<String> {
        let now = self.frontends.iter().flat_map(|(frontend, entry)| self.problems_of(*frontend, entry));
        now.chain(self.held.iter().flat_map(|(frontend, entry)| self.problems_of_old(*frontend, entry))).collect()
    }

    fn problems_of_old(&self, frontend: Frontend, entry: &abi::Service) -> Vec<String> {
        let slots = (entry.slot_base..entry.slot_base + entry.slot_count).filter_map(|index| self.slots.get(&index));
        let own = slots.filter(|slot| slot.service == entry.id && slot.generation == entry.generation);
        let taken = own.filter_map(|slot| {
            let record = self.backends.get(&BackendId { family: Family::of(frontend.address), id: slot.backend })?;
            (record.generation == slot.backend_generation).then_some(record)
        });
        let over = [backend_state::GONE, backend_state::FREE];
        taken
            .filter(|record| record.service != entry.id || over.contains(&record.state))
            .map(|record| format!("{frontend}: an old entry leads to {record:?}"))
            .collect()
    }

    fn problems_of(&self, frontend: Frontend, entry: &abi::Service) -> Vec<String> {
        let mut problems = Vec::new();
        if entry.seal != frontend.seal(entry) {
            problems.push(format!("{frontend}: broken seal"));
        }
        if !self.names.contains_key(&entry.id) {
            problems.push(format!("{frontend}: service port {} has no name", entry.id));
        }
        for index in entry.slot_base..entry.slot_base + entry.slot_count {
            let Some(slot) = self.slots.get(&index) else {
                problems.push(format!("{frontend}: slot {index} was never written"));
                continue;
            };
            if slot.service != entry.id || slot.generation != entry.generation {
                problems.push(format!("{frontend}: slot {index} belongs to another range"));
            }
            let id = BackendId { family: Family::of(frontend.address), id: slot.backend };
            match self.backends.get(&id) {
                Some(record) if record.generation == slot.backend_generation && record.service == entry.id => {}
                other => problems.push(format!("{frontend}: slot {index} leads to {other:?}")),
            }
        }
        problems
    }
}
