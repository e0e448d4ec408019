//! Tables in memory as text, and the look of a reader at them.

use std::{
    fmt::Write,
    net::{IpAddr, SocketAddr},
    ops::Range as StdRange,
};

use lb_common::abi::{
    self, BackendState, FrontendKind, backend_flags, backend_state, frontend_kind, service_flags, vip_flags,
};

use super::MemoryStore;
use crate::plan::{BackendId, BackendRecord, Frontend};
use lb_model::{Family, Monotonic, Protocol};
use lb_tables::{from_chars, vip_filter::is_ruled_out};

impl MemoryStore {
    /// What the tables hold, without ids: a line for each frontend, each network that a service admits, each virtual address,
    /// and each backend that is in use. Tables that serve alike read alike, however they came about.
    pub fn dump(&self) -> String {
        let frontends = self.frontends.iter().map(|(frontend, entry)| self.frontend(*frontend, entry));
        let sources = self.sources.iter().map(|((id, network), _)| format!("source {} {network}", self.name(*id)));
        let vips = self.vips.iter().map(|(address, vip)| described(*address, *vip));
        let used = self.backends.values().filter(|record| record.state != backend_state::FREE);
        let backends = used.map(|record| self.backend(record));
        let groups: [Vec<String>; 4] = [frontends.collect(), sources.collect(), vips.collect(), backends.collect()];
        let mut text = String::new();
        for mut group in groups {
            group.sort();
            for line in group {
                let _ = writeln!(text, "{line}");
            }
        }
        text
    }

    /// Kind, service port and what else its entry says; then the set for clients inside, and after `|` the one for those outside
    /// where it may be another one.
    fn frontend(&self, frontend: Frontend, entry: &abi::Service) -> String {
        let has = |flag| entry.flags & flag != 0;
        let kind = match FrontendKind::from_number(entry.kind) {
            Some(FrontendKind::ExternalIp) => "external",
            Some(FrontendKind::LoadBalancer) => "balancer",
            Some(FrontendKind::NodePort) => "node-port",
            Some(FrontendKind::HostSocket) => "host-socket",
            Some(FrontendKind::ClusterIp) | None => "cluster",
        };
        let mut text = format!("frontend {frontend} {kind} {}", self.name(entry.id));
        if entry.affinity_timeout_s > 0 {
            let _ = write!(text, " affinity {}s", entry.affinity_timeout_s);
        }
        if entry.rate > 0 {
            let _ = write!(text, " limit {}/{}", entry.rate, entry.burst);
        }
        for (flag, word) in [
            (service_flags::OUTSIDE_LOCAL, "local"),
            (service_flags::SOURCE_RANGES, "sources"),
            (service_flags::NODE_ALLOWED, "node-allowed"),
        ] {
            text.push_str(if has(flag) { " " } else { "" });
            text.push_str(if has(flag) { word } else { "" });
        }
        let family = Family::of(frontend.address);
        let inside = self.targets(family, inside(entry), has(service_flags::DROP_IF_EMPTY));
        let outside = self.targets(family, outside(entry), has(service_flags::DROP_OUTSIDE_IF_EMPTY));
        let _ = write!(text, " ->{inside}");
        if entry.kind != frontend_kind::CLUSTER_IP || outside != inside {
            let _ = write!(text, " |{outside}");
        }
        text
    }

    fn targets(&self, family: Family, range: StdRange<u32>, drops: bool) -> String {
        let slots = range.filter_map(|index| self.slots.get(&index));
        let records = slots.filter_map(|slot| self.backends.get(&BackendId { family, id: slot.backend }));
        let mut targets: Vec<SocketAddr> = records.map(|record| record.address).collect();
        targets.sort();
        match (targets.is_empty(), drops) {
            (true, true) => " dropped".to_owned(),
            (true, false) => " refused".to_owned(),
            (false, _) => targets.iter().fold(String::new(), |text, target| text + " " + &target.to_string()),
        }
    }

    fn backend(&self, record: &BackendRecord) -> String {
        let state = BackendState::from_number(record.state).unwrap_or(BackendState::Free);
        let mut text = format!("backend {} {} {state}", self.name(record.service), record.address);
        if record.flags & backend_flags::LOCAL != 0 {
            text.push_str(" local");
        }
        if record.flags & backend_flags::SERVING != 0 {
            text.push_str(" serving");
        }
        if record.flags & backend_flags::UNHEALTHY != 0 {
            text.push_str(" unhealthy");
        }
        if record.deadline_ds != 0 && record.state != backend_state::GONE {
            let seconds = |tenths| Monotonic::from_tenths(tenths).since(Monotonic::default()).as_secs_f64();
            if record.drain_ds != 0 && record.drain_ds != record.deadline_ds {
                let _ = write!(text, " while it answers from {}s", seconds(record.drain_ds));
            }
            let _ = write!(text, " until {}s", seconds(record.deadline_ds));
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
        let then = self.held.iter().flat_map(|(frontend, entry)| self.problems_of_old(*frontend, entry));
        let addresses = self.frontends.keys().map(|frontend| frontend.address).chain(self.vips.keys().copied());
        let passed_by = addresses.filter(|address| is_ruled_out(&self.vip_filter, *address));
        now.chain(then).chain(passed_by.map(|address| format!("{address} is ruled out by the VIP filter"))).collect()
    }

    fn problems_of_old(&self, frontend: Frontend, entry: &abi::Service) -> Vec<String> {
        let slots = inside(entry).chain(outside(entry)).filter_map(|index| self.slots.get(&index));
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
        if entry.flags & service_flags::SOURCE_RANGES == 0 && entry.flags & service_flags::NODE_ALLOWED != 0 {
            problems.push(format!("{frontend}: the node is allowed where everybody is"));
        }
        for index in inside(entry).chain(outside(entry)) {
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

/// The slots for clients inside.
fn inside(entry: &abi::Service) -> StdRange<u32> {
    entry.slot_base..entry.slot_base + entry.slot_count
}

/// The slots for external clients.
fn outside(entry: &abi::Service) -> StdRange<u32> {
    entry.external_base..entry.external_base + entry.external_count
}

fn described(address: IpAddr, vip: abi::Vip) -> String {
    let mut text = format!("vip {address}");
    for (flag, word) in [(vip_flags::REFUSE_UNSERVED, " refuses"), (vip_flags::ECHO, " echoes")] {
        text.push_str(if vip.flags & flag == 0 { "" } else { word });
    }
    text
}
