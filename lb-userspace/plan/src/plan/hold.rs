//! Service ports that stay as a restart found them: objects that they depend on cannot be read, and no memory holds what they said.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use lb_common::abi;

use super::{
    DesiredEndpoint, DesiredService, EndpointState, Frontend, Marks, ProgrammedState, claim::Claim, claims::Claimed,
    node_context::slices_of, service, written::written,
};
use lb_model::{ObjectName, PortKey, Refusal, Service, Snapshot, Unread, UnreadKind};

/// One service as the tables hold it.
#[derive(Clone, Debug)]
pub(super) struct HeldService {
    /// In the order of the keys.
    pub ports: Vec<(PortKey, DesiredService)>,
    /// Of the Service that cannot be read; 0: not known.
    uid: u32,
    /// The first object that keeps it from being planned.
    cause: String,
}

impl HeldService {
    /// Claims on its frontends. They come before all others: nobody takes a frontend from it meanwhile.
    pub fn claims(&self) -> impl Iterator<Item = (Frontend, Claim)> {
        let frontends = self.ports.iter().flat_map(|(key, port)| port.frontends.iter().map(move |one| (key, one)));
        frontends.map(|(key, (frontend, used))| (*frontend, Claim::of_held(key, used.kind)))
    }

    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.ports.iter().flat_map(|(_, port)| port.frontends.keys().map(|frontend| frontend.address))
    }

    /// Its ports with the frontends that are still its own: a cluster IP of another service comes before all that is external. A hand has
    /// its say about its endpoints.
    pub fn owned(&self, claimed: &Claimed, marks: &Marks) -> Vec<(PortKey, DesiredService)> {
        let mut ports = self.ports.clone();
        for (key, port) in &mut ports {
            service::maintain(port, marks);
            let is_own = |frontend: &Frontend| claimed.owner(frontend).is_some_and(|owner| owner.key() == *key);
            port.frontends.retain(|frontend, _| is_own(frontend));
        }
        ports.retain(|(_, port)| !port.frontends.is_empty());
        ports
    }

    pub fn refusal(&self, name: &ObjectName) -> Refusal {
        let reason =
            format!("it is served as the tables held it when the agent started: {} cannot be read", self.cause);
        Refusal::new(format!("Service {name}"), reason, "correct what cannot be read, or delete it")
    }

    /// Whether slices that can be read list all its endpoints, and as ready those that are.
    fn is_covered(&self, name: &ObjectName, snapshot: &Snapshot) -> bool {
        let slices = slices_of(snapshot, name);
        let ports = slices.iter().flat_map(|slice| slice.ports.iter().map(move |port| (slice, port.port)));
        let mut listed: BTreeMap<SocketAddr, bool> = BTreeMap::new();
        for (slice, port) in ports {
            for at in &slice.endpoints {
                *listed.entry(SocketAddr::new(at.address, port)).or_default() |= at.ready;
            }
        }
        let is_listed = |address: &SocketAddr, endpoint: &DesiredEndpoint| {
            let ready = listed.get(address).copied();
            ready.is_some_and(|ready| ready || endpoint.state != EndpointState::Ready)
        };
        self.ports.iter().all(|(_, port)| port.endpoints.iter().all(|(address, one)| is_listed(address, one)))
    }

    /// What keeps it from being planned by this snapshot; `None`: nothing.
    fn cause<'a>(
        &self,
        name: &ObjectName,
        snapshot: &'a Snapshot,
        is_ours: impl Fn(&Service) -> bool,
    ) -> Option<&'a Unread> {
        let other = |unread: &Unread| unread.uid != 0 && self.uid != 0 && unread.uid != self.uid;
        match snapshot.services.get(name) {
            Some(service) if !is_ours(service) => None,
            Some(_) => {
                let cause = snapshot.unread.iter().find(|unread| unread.may_list_endpoints_of(name))?;
                (!self.is_covered(name, snapshot)).then_some(cause)
            }
            None => snapshot.unread.iter().find(|unread| unread.may_be_service(name) && !other(unread)),
        }
    }
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub struct Hold {
    services: BTreeMap<ObjectName, HeldService>,
    /// What becomes of packets to their addresses that no frontend serves.
    vips: BTreeMap<IpAddr, abi::Vip>,
}

impl Hold {
    /// What the tables hold of services that `unread` may be about.
    pub fn of(programmed: &ProgrammedState, unread: &BTreeSet<Unread>) -> Self {
        let any = unread.iter().any(|unread| matches!(unread.what, UnreadKind::Unknown(_)));
        let is_concerned = |name: &ObjectName| {
            let mut all = unread.iter();
            any || all.any(|unread| unread.may_be_service(name) || unread.may_list_endpoints_of(name))
        };
        let mut hold = Self::default();
        if unread.is_empty() {
            return hold;
        }
        for (key, id) in programmed.services().ids().iter().filter(|(key, _)| is_concerned(&key.service)) {
            let Some(port) = written(programmed, *id) else { continue };
            let addresses = port.frontends.keys().map(|frontend| frontend.address);
            hold.vips.extend(addresses.filter_map(|address| Some((address, *programmed.vips().get(address)?))));
            let service = hold.services.entry(key.service.clone()).or_insert_with(|| {
                let is_it = |unread: &&Unread| unread.what == UnreadKind::Service(key.service.clone());
                let uid = unread.iter().find(is_it).map_or(0, |unread| unread.uid);
                HeldService { ports: Vec::new(), uid, cause: String::new() }
            });
            service.ports.push((key.clone(), port));
        }
        hold
    }

    pub(super) fn get(&self, name: &ObjectName) -> Option<&HeldService> {
        self.services.get(name)
    }

    pub(super) fn services(&self) -> impl Iterator<Item = (&ObjectName, &HeldService)> {
        self.services.iter()
    }

    pub(super) fn vip(&self, address: IpAddr) -> Option<abi::Vip> {
        self.vips.get(&address).copied()
    }

    /// Gives up, and returns, what this snapshot knows enough of. What is given up once does not come again.
    pub(super) fn review(
        &mut self,
        snapshot: &Snapshot,
        is_ours: impl Fn(&Service) -> bool,
    ) -> Vec<(ObjectName, HeldService)> {
        let mut known = Vec::new();
        for (name, service) in std::mem::take(&mut self.services) {
            match service.cause(&name, snapshot, &is_ours).map(ToString::to_string) {
                Some(cause) => drop(self.services.insert(name, HeldService { cause, ..service })),
                None => known.push((name, service)),
            }
        }
        if self.services.is_empty() {
            self.vips.clear();
        }
        known
    }
}
