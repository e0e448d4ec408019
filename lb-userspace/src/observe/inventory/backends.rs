//! Backends: one for each service port and endpoint.

use std::net::IpAddr;

use lb_common::abi::{Backend, ConnectTimes, Health, backend_flags, backend_state};
use lb_common::outcome::Outcome;
use serde::Serialize;

use super::{FamilyContents, Inventory, backend_stat_kind, health_of, ip, is_unhealthy, seconds, state_name};
use crate::observe::connect_time::ConnectTimeView;
use lb_model::Monotonic;

/// A backend: an endpoint of a service port.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// Those of them that nobody has answered.
    pub half_open_flows: u64,
    pub weight: u16,
    /// Its active checks fail: it takes no new flows.
    pub unhealthy: bool,
    /// Seconds since it became ejected: it left a flow unanswered that another backend answered, or refused one. null: it is not.
    pub ejected_seconds: Option<u64>,
    /// Seconds since it last answered the first packet of a flow; null: never, or not since the maps were made.
    pub answered_seconds: Option<u64>,
    /// Seconds until its drain period ends, rounded up: from then on only established connections that it answers go on; null: it does not
    /// drain.
    pub drain_seconds: Option<u64>,
    /// Seconds until the eviction deadline, when its last connections end, rounded up; null: no deadline.
    pub deadline_seconds: Option<u64>,
    /// How long it took to answer SYNs; null: nothing was measured.
    pub connect_time: Option<ConnectTimeView>,
    #[serde(skip)]
    pub protocol: &'static str,
    #[serde(skip)]
    pub id: u32,
    #[serde(skip)]
    pub generation: u32,
    #[serde(skip)]
    pub local: bool,
    #[serde(skip)]
    pub serving: bool,
    /// Flows that were given this backend, ever.
    #[serde(skip)]
    pub selected: u64,
    /// Connections that left it because it did not answer, or whose refusal by it was suppressed, ever.
    #[serde(skip)]
    pub left: u64,
    #[serde(skip)]
    pub connect_times: Option<Box<ConnectTimes>>,
}

impl BackendView {
    /// What lies over its state.
    pub fn marks(&self) -> impl Iterator<Item = &'static str> {
        let ejected = self.ejected_seconds.map(|_| "ejected");
        ejected.into_iter().chain(self.unhealthy.then_some("unhealthy"))
    }
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
        living.map(|(id, backend)| self.backend(*id, backend, health_of(family, *id, backend))).collect()
    }

    /// Those whose connections end at a limit, the one with the next eviction deadline first.
    pub fn drains(&self) -> Vec<BackendView> {
        let mut views = self.backends();
        let drains =
            |state| state == state_name(backend_state::DRAINING) || state == state_name(backend_state::TERMINATING);
        views.retain(|view| drains(view.state) && view.deadline_seconds.is_some());
        views.sort_by_key(|view| view.deadline_seconds);
        views
    }

    fn backend<const N: usize>(&self, id: u32, backend: &Backend<N>, health: Health) -> BackendView {
        let flows = self.flows_of(id, backend);
        let name = self.name(backend.service);
        let count = |outcome| self.counted(backend_stat_kind::<N>(), id, outcome);
        let connect_times = self.connect_times(backend_stat_kind::<N>(), id);
        BackendView {
            namespace: name.namespace,
            service: name.service,
            service_port: name.port,
            address: ip(backend.address),
            port: backend.port,
            state: state_name(backend.state),
            flows: flows.all,
            half_open_flows: flows.half_open,
            weight: backend.weight,
            unhealthy: is_unhealthy(backend),
            ejected_seconds: self.seconds_since(health.ejected_s),
            answered_seconds: self.seconds_since(health.answered_s),
            drain_seconds: self.deadline_seconds(backend.drain_ds),
            deadline_seconds: self.deadline_seconds(backend.deadline_ds),
            connect_time: connect_times.and_then(ConnectTimeView::of),
            protocol: name.protocol,
            id,
            generation: backend.generation,
            local: backend.flags & backend_flags::LOCAL != 0,
            serving: backend.flags & backend_flags::SERVING != 0,
            selected: count(Outcome::Selected) + count(Outcome::SocketConnected) + count(Outcome::SocketSent),
            left: count(Outcome::Retried) + count(Outcome::SuppressedRefusal),
            connect_times: connect_times.map(|times| Box::new(*times)),
        }
    }

    /// 0 is no moment.
    fn seconds_since(&self, moment_s: u32) -> Option<u64> {
        (moment_s != 0).then(|| seconds(self.now).saturating_sub(moment_s).into())
    }

    /// Seconds from now until a limit, rounded up; 0 once it is reached, `None` where there is none.
    pub(super) fn deadline_seconds(&self, deadline_ds: u32) -> Option<u64> {
        let left = Monotonic::from_tenths(deadline_ds).since(self.now);
        (deadline_ds != 0).then(|| u64::try_from(left.as_millis().div_ceil(1000)).unwrap_or(u64::MAX))
    }
}
