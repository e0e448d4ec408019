//! Backends: one for each service port and endpoint.

use std::net::IpAddr;

use lb_common::abi::{Backend, backend_flags, backend_state};
use lb_common::outcome::Outcome;
use serde::Serialize;

use super::{FamilyContents, Inventory, backend_stat_kind, ip, state_name};
use crate::model::Monotonic;

/// A backend: an endpoint of a service port.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct BackendView {
    pub namespace: String,
    pub service: String,
    pub service_port: u16,
    pub address: IpAddr,
    pub port: u16,
    pub state: &'static str,
    /// Connections through the packet programs that have not expired. Host processes translated at connect have none.
    pub flows: u64,
    /// Seconds until its flows are evicted, rounded up; null: no deadline.
    pub deadline_seconds: Option<u64>,
    #[serde(skip)]
    pub protocol: &'static str,
    #[serde(skip)]
    pub id: u32,
    #[serde(skip)]
    pub generation: u32,
    #[serde(skip)]
    pub weight: u16,
    #[serde(skip)]
    pub local: bool,
    #[serde(skip)]
    pub serving: bool,
    /// Flows that were given this backend, ever.
    #[serde(skip)]
    pub selected: u64,
}

impl Inventory<'_> {
    /// Every backend that may have flows, grouped by address, then by service.
    pub fn backends(&self) -> Vec<BackendView> {
        let mut views = self.backends_of(&self.contents.v4);
        views.extend(self.backends_of(&self.contents.v6));
        views.sort_by(|a, b| {
            let place = |view: &BackendView| (view.address, view.port, view.service_port, view.protocol, view.id);
            let (a_address, b_address) = ((a.address, a.port), (b.address, b.port));
            (a_address, &a.namespace, &a.service, place(a)).cmp(&(b_address, &b.namespace, &b.service, place(b)))
        });
        views
    }

    fn backends_of<const N: usize>(&self, family: &FamilyContents<N>) -> Vec<BackendView> {
        let living = family.backends.iter().filter(|(_, backend)| backend.state != backend_state::GONE);
        living.map(|(id, backend)| self.backend(*id, backend)).collect()
    }

    fn backend<const N: usize>(&self, id: u32, backend: &Backend<N>) -> BackendView {
        let name = self.name(backend.service);
        let count = |outcome| self.counted(backend_stat_kind::<N>(), id, outcome);
        BackendView {
            namespace: name.namespace,
            service: name.service,
            service_port: name.port,
            address: ip(backend.address),
            port: backend.port,
            state: state_name(backend.state),
            flows: self.flows_of(id, backend),
            deadline_seconds: self.deadline_seconds(backend.deadline_ds),
            protocol: name.protocol,
            id,
            generation: backend.generation,
            weight: backend.weight,
            local: backend.flags & backend_flags::LOCAL != 0,
            serving: backend.flags & backend_flags::SERVING != 0,
            selected: count(Outcome::Selected) + count(Outcome::SocketConnected) + count(Outcome::SocketSent),
        }
    }

    /// Seconds from now until the deadline, rounded up; 0 once it has struck, `None` where there is none.
    pub(super) fn deadline_seconds(&self, deadline_ds: u32) -> Option<u64> {
        let left = Monotonic::from_tenths(deadline_ds).since(self.now);
        (deadline_ds != 0).then(|| u64::try_from(left.as_millis().div_ceil(1000)).unwrap_or(u64::MAX))
    }
}
