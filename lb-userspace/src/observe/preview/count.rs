//! How many connections each frontend and backend of a plan has, and what becomes of each.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::PlanReport;
use crate::observe::contents::Contents;
use crate::observe::inventory::{BackendRef, Live, each_live};
use lb_model::Monotonic;
use lb_plan::plan::Fate;

/// Where something is in the report: the service, and the frontend or backend in it.
type At = (usize, usize);

impl PlanReport {
    /// Counts the connections in `contents`, which was read at `now`.
    pub fn count(&mut self, contents: &Contents, now: Monotonic) {
        let (backends, frontends) = (self.backends(), self.frontends());
        each_live(contents, now, |live| {
            let backend = backends.get(&live.backend).copied();
            let frontend = frontends.get(&(live.frontend, protocol_of(live))).copied();
            self.take(live, backend, frontend);
        });
    }

    fn backends(&self) -> HashMap<BackendRef, At> {
        let all = self.services.iter().enumerate().flat_map(|(service, plan)| {
            plan.backends.iter().enumerate().map(move |(index, backend)| ((service, index), backend))
        });
        all.filter_map(|(at, backend)| {
            #[expect(clippy::cast_possible_truncation, reason = "flows keep the low 16 bits")]
            let generation = backend.generation? as u16;
            Some((BackendRef { is_v6: backend.is_v6(), id: backend.id?, generation }, at))
        })
        .collect()
    }

    fn frontends(&self) -> HashMap<(SocketAddr, &'static str), At> {
        let all = self.services.iter().enumerate().flat_map(|(service, plan)| {
            plan.frontends.iter().enumerate().map(move |(index, frontend)| ((service, index), plan, frontend))
        });
        all.map(|(at, plan, frontend)| {
            let protocol = ["TCP", "UDP", "SCTP"].into_iter().find(|name| *name == plan.protocol).unwrap_or_default();
            ((SocketAddr::new(frontend.address, frontend.port), protocol), at)
        })
        .collect()
    }

    fn take(&mut self, live: &Live, backend: Option<At>, frontend: Option<At>) {
        let backend = backend.map(|(service, index)| &mut self.services[service].backends[index]);
        let of_backend = backend.map_or(Fate::Stay, |backend| {
            *(if live.is_socket { &mut backend.host_sockets } else { &mut backend.connections }) += 1;
            backend.fate
        });
        if live.is_socket {
            // A frontend that ends leaves host sockets alone.
            self.connections.host_sockets += u64::from(of_backend != Fate::Stay);
            return;
        }
        let frontend = frontend.map(|(service, index)| &mut self.services[service].frontends[index]);
        let of_frontend = frontend.map_or(Fate::Stay, |frontend| {
            frontend.connections += 1;
            frontend.fate
        });
        match of_backend.max(of_frontend) {
            Fate::Stay => {}
            Fate::Drain => self.connections.drain += 1,
            Fate::Move => self.connections.moved += 1,
            Fate::End => self.connections.end += 1,
        }
    }
}

fn protocol_of(live: &Live) -> &'static str {
    crate::observe::inventory::protocol_name(live.protocol)
}
