//! What is held of the API's objects, since when it is known to be true, and when there is a snapshot to give.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use tokio::{sync::watch, time::Instant};

use super::{
    calls::{Update, WatcherOutput},
    item::{Item, Unreadable},
    own_node::OwnNode,
    version::Version,
};
use crate::{Reach, ResourceStatus, SourceStatus};
use lb_model::{
    AllowedAnnotations, Mode, Node, ObjectName, Peer, Refusal, Refused, Service, ServiceCidr, Slice, Snapshot, Unread,
};
use lb_objects::{
    lean::{self, ApiKind},
    objects::{self, Identity, Keyed, Objects},
};

/// What this source proves fresh, as named in its status.
pub const SERVICES: &str = "services";
pub const SLICES: &str = "endpointslices";
pub const NODES: &str = "nodes";
/// The other nodes.
pub const PEERS: &str = "peers";
pub const SERVICE_CIDRS: &str = crate::SERVICE_CIDRS;

/// Updates of one of the resources.
#[derive(Debug)]
pub enum Message {
    Service(Box<WatcherOutput<lean::Service>>),
    Slice(Box<WatcherOutput<lean::EndpointSlice>>),
    Node(Box<WatcherOutput<lean::Node>>),
    Peer(Box<WatcherOutput<lean::Node>>),
    /// Nobody asks for the other nodes any more.
    NoPeers,
    ServiceCidr(Box<WatcherOutput<lean::ServiceCidr>>),
}

/// A list in the making.
#[derive(Debug)]
struct Staged<T: Keyed> {
    objects: Objects<T>,
    names: BTreeSet<ObjectName>,
    /// The highest one of an object.
    version: u64,
}

#[derive(Debug)]
struct Resource<T: Keyed> {
    name: &'static str,
    objects: Objects<T>,
    /// A list in the making.
    staged: Option<Staged<T>>,
    listed: bool,
    status: ResourceStatus,
    /// The highest resource version among the changes; 0: none.
    version: u64,
}

impl<T: Keyed> Resource<T> {
    fn new(name: &'static str) -> Self {
        let status = ResourceStatus::default();
        Self { name, objects: Objects::default(), staged: None, listed: false, status, version: 0 }
    }

    /// Applies the updates; `put` converts and keeps an object. Returns whether the objects changed.
    fn take<K: ApiKind>(&mut self, updates: WatcherOutput<K>, put: impl Fn(&mut Objects<T>, &K, Identity)) -> bool {
        self.log_change(&updates.status);
        self.status = updates.status;
        let mut changed = false;
        for updates in updates.updates {
            changed |= self.take_one(updates, &put);
        }
        changed
    }

    fn take_one<K: ApiKind>(&mut self, updates: Update<K>, put: &impl Fn(&mut Objects<T>, &K, Identity)) -> bool {
        match updates {
            Update::Page(page) => {
                let first = || Staged { objects: self.objects.clone(), names: BTreeSet::new(), version: 0 };
                let staged = self.staged.get_or_insert_with(first);
                for item in page {
                    staged.names.insert(item.name.clone());
                    staged.version = staged.version.max(number(item.version.as_ref()));
                    keep(&mut staged.objects, item, put);
                }
                return false;
            }
            Update::Abandoned => {
                self.staged = None;
                return false;
            }
            Update::Complete => {
                let Some(Staged { mut objects, names, version }) = self.staged.take() else { return false };
                // An object without a name may be any of those that the list does not name.
                if !names.contains(&ObjectName::unreadable()) {
                    objects.retain(|name| names.contains(name));
                }
                (self.objects, self.version) = (objects, version);
                self.listed = true;
            }
            Update::Changed(item) => {
                self.version = self.version.max(number(item.version.as_ref()));
                keep(&mut self.objects, *item, put);
            }
            Update::Deleted(name) => {
                self.version = self.version.max(self.status.version);
                self.objects.remove(&name);
            }
            Update::Difference(kind, object) => {
                let (resource, kind) = (self.name, kind.as_str());
                tracing::warn!(source = "kube", resource, %object, kind, "a complete list differs from what is held; repaired");
                return false;
            }
        }
        true
    }

    /// An error is logged when it comes up, not at every retry.
    fn log_change(&self, new: &ResourceStatus) {
        let resource = self.name;
        match (&self.status.last_error, &new.last_error) {
            (before, Some(error)) if before.as_ref() != Some(error) => {
                tracing::warn!(source = "kube", resource, "{error}; the tables stay as they are");
            }
            (Some(_), None) => tracing::info!(source = "kube", resource, "watch recovered; cached objects verified"),
            _ => {}
        }
        if self.status.wedged_since.is_none() && new.wedged_since.is_some() {
            tracing::warn!(
                source = "kube",
                resource,
                "the watch is dead, though the API answers others; it is replaced"
            );
        }
    }
}

/// 0: none that can be compared.
fn number(version: Option<&Version>) -> u64 {
    if let Some(Version::Number(number)) = version { *number } else { 0 }
}

/// Keeps an object. One that cannot be read is refused by name, and what was read of it before goes on.
fn keep<T: Keyed, K: ApiKind>(objects: &mut Objects<T>, item: Item<K>, put: &impl Fn(&mut Objects<T>, &K, Identity)) {
    match item.object {
        Ok(object) => put(objects, &object, Identity { uid: item.uid, mark: item.mark }),
        Err(Unreadable { reason, owner }) => {
            let unread = K::unread(&item.name, &owner).map(|what| Unread { what, uid: item.uid });
            let concerns = unread.is_some();
            let served = match objects.put_unread(&item.name, item.uid, unread) {
                true => "what was read of it before is served",
                false if concerns => "nothing is served of it but what the tables held when the agent started",
                false => "nothing of it is known",
            };
            let name = if K::IS_NAMESPACED || item.name.is_unreadable() {
                item.name.to_string()
            } else {
                item.name.name.to_string()
            };
            let remedy = format!("correct the object; until then {served}");
            let refusal = Refusal::new(format!("{} {name}", K::NAME), format!("it cannot be read: {reason}"), remedy);
            objects.refuse(item.name, refusal);
        }
    }
}

/// Whether the tables cannot be without this resource.
fn is_needed(resource: &str) -> bool {
    resource == SERVICES || resource == SLICES
}

#[derive(Debug)]
pub struct Held {
    services: Resource<Service>,
    slices: Resource<Slice>,
    nodes: Resource<Node>,
    own_node: OwnNode,
    peers: Resource<Peer>,
    /// Of all of these; `None`: not listed yet.
    peer_addresses: Option<Arc<BTreeSet<IpAddr>>>,
    service_cidrs: Resource<ServiceCidr>,
    /// Of all of these; `None`: not listed yet.
    service_networks: Option<Arc<BTreeSet<IpNet>>>,
    /// Whether the other nodes are to be followed.
    want_peers: watch::Sender<bool>,
    allowed: AllowedAnnotations,
    /// Services have direct server return unless they say otherwise.
    always_wants: bool,
    services_changed: bool,
    changed: bool,
    revision: u64,
    /// The last that was seen of the API, and since when it is as it is.
    seen: Option<Reach>,
    reach: Option<Reach>,
}

impl Held {
    /// `want_peers`: says whether the other nodes are to be followed, and holds what is so whatever the services say.
    pub fn new(want_peers: watch::Sender<bool>, allowed: AllowedAnnotations, own_node: OwnNode) -> Self {
        let always_wants = *want_peers.borrow();
        Self {
            peers: Resource::new(PEERS),
            peer_addresses: None,
            service_cidrs: Resource::new(SERVICE_CIDRS),
            service_networks: None,
            want_peers,
            allowed,
            always_wants,
            services_changed: false,
            services: Resource::new(SERVICES),
            slices: Resource::new(SLICES),
            nodes: Resource::new(NODES),
            own_node,
            changed: false,
            revision: 0,
            seen: None,
            reach: None,
        }
    }

    pub fn take(&mut self, message: Message) {
        let seen = match &message {
            Message::Service(updates) => updates.reach,
            Message::Slice(updates) => updates.reach,
            Message::Node(updates) | Message::Peer(updates) => updates.reach,
            Message::NoPeers => None,
            Message::ServiceCidr(updates) => updates.reach,
        };
        self.see(seen);
        self.changed |= match message {
            Message::Service(updates) => {
                let changed = self
                    .services
                    .take(*updates, |objects, service, identity| objects.put_service(service, identity, &self.allowed));
                self.services_changed |= changed;
                changed
            }
            Message::Slice(updates) => self.slices.take(*updates, Objects::put_slice),
            Message::Node(updates) => {
                let changed = self.nodes.take(*updates, Objects::put_node);
                self.own_node.learn(self.nodes.objects.first().filter(|_| self.nodes.listed));
                changed
            }
            Message::Peer(updates) => self.take_peers(*updates),
            Message::NoPeers => {
                self.peers = Resource::new(PEERS);
                self.peer_addresses.take().is_some()
            }
            Message::ServiceCidr(updates) => self.take_service_cidrs(*updates),
        };
    }

    /// Nodes report all the time, and what they report is hardly ever a new address.
    fn take_peers(&mut self, updates: WatcherOutput<lean::Node>) -> bool {
        let before = self.peers.objects.clone();
        self.peers.take(updates, Objects::put_peer);
        let is_known = self.peer_addresses.is_some() && self.peers.objects.is_same(&before);
        if !self.peers.listed || is_known {
            return false;
        }
        let addresses = Some(Arc::new(self.peers.objects.addresses()));
        let changed = addresses != self.peer_addresses;
        if changed {
            self.peer_addresses = addresses;
        }
        changed
    }

    fn take_service_cidrs(&mut self, updates: WatcherOutput<lean::ServiceCidr>) -> bool {
        let changed = self.service_cidrs.take(updates, Objects::put_service_cidr);
        if changed && self.service_cidrs.listed {
            self.service_networks = Some(Arc::new(self.service_cidrs.objects.networks()));
        }
        changed
    }

    /// Asks for the other nodes while there is a service that they matter to. Returns their addresses as a snapshot has them.
    fn peers(&mut self) -> Option<Arc<BTreeSet<IpAddr>>> {
        if std::mem::take(&mut self.services_changed) {
            let asks = |service: &Service| {
                service.options.as_ref().and_then(|options| options.mode).is_some_and(Mode::is_ever_direct)
            };
            let wanted = self.always_wants || self.services.objects.any(asks);
            self.want_peers.send_if_modified(|known| std::mem::replace(known, wanted) != wanted);
        }
        if *self.want_peers.borrow() { self.peer_addresses.clone() } else { Some(Arc::default()) }
    }

    /// Whichever resource saw the API last is right.
    fn see(&mut self, seen: Option<Reach>) {
        let Some(seen) = seen.filter(|seen| self.seen.is_none_or(|last| seen.since >= last.since)) else { return };
        self.seen = Some(seen);
        if self.reach.is_none_or(|reach| reach.reachable != seen.reachable) {
            self.reach = Some(seen);
        }
    }

    /// When [`Self::publish`] has a change to publish without an update; `None`: never.
    pub fn due(&self) -> Option<Instant> {
        self.own_node.due().filter(|_| self.changed && self.is_synced())
    }

    fn is_synced(&self) -> bool {
        self.services.listed && self.slices.listed
    }

    /// Publishes what was taken. There is no snapshot before services and slices have been listed: half of the truth is none. The
    /// first one also waits a while for the Node.
    pub fn publish(
        &mut self,
        now: Instant,
        snapshots: &watch::Sender<Option<Arc<Snapshot>>>,
        status: &watch::Sender<SourceStatus>,
    ) {
        let synced = self.is_synced();
        let published = synced && self.own_node.is_settled(now) && std::mem::take(&mut self.changed);
        if published {
            self.revision += 1;
            let peers = self.peers();
            let node = self.own_node.known();
            let (services, slices) = (&self.services.objects, &self.slices.objects);
            let networks = self.service_networks.as_ref();
            let mut snapshot = objects::snapshot(services, slices, node, peers.as_ref(), networks, self.revision);
            snapshot.accepted.services_version = self.services.version;
            snapshot.accepted.slices_version = self.slices.version;
            snapshots.send_replace(Some(Arc::new(snapshot)));
        }
        let missing_node = self.own_node.missing(self.nodes.listed, self.nodes.objects.first().is_some());
        status.send_modify(|status| {
            status.missing_node = missing_node;
            status.synced = synced;
            status.revision = self.revision;
            for (name, resource) in self.resources() {
                status.last_proof.extend(resource.proof.map(|proof| (name, proof.at)));
                if *resource != ResourceStatus::default() {
                    status.resources.insert(name, resource.clone());
                } else if name == PEERS {
                    status.resources.remove(name);
                    status.last_proof.remove(name);
                }
            }
            status.api = self.reach;
            status.last_error = self.error();
            let others = self.resources().into_iter().filter(|(name, _)| !is_needed(name));
            let notes = others.filter_map(|(name, status)| Some(format!("{name}: {}", status.last_error.as_ref()?)));
            status.notes = notes.collect();
            if published {
                let of_nodes = self.nodes.objects.refusals().chain(self.peers.objects.refusals());
                let others = of_nodes.chain(self.service_cidrs.objects.refusals());
                let refused = self.services.objects.refusals().chain(self.slices.objects.refusals()).chain(others);
                status.refusals = Refused::of(refused);
            }
        });
    }

    fn resources(&self) -> [(&'static str, &ResourceStatus); 5] {
        [
            (SERVICES, &self.services.status),
            (SLICES, &self.slices.status),
            (NODES, &self.nodes.status),
            (PEERS, &self.peers.status),
            (SERVICE_CIDRS, &self.service_cidrs.status),
        ]
    }

    /// Of what the tables cannot be without.
    fn error(&self) -> Option<String> {
        let errors = self.resources().into_iter().filter(|(name, _)| is_needed(name));
        errors.into_iter().find_map(|(name, status)| Some(format!("{name}: {}", status.last_error.as_ref()?)))
    }
}

#[cfg(test)]
#[path = "held_tests.rs"]
mod tests;
