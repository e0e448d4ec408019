//! What is held of the API's objects, since when it is known to be true, and when there is a snapshot to give.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::{core::v1 as core, discovery::v1 as discovery};
use tokio::sync::watch;

use super::{
    super::{
        Reach, ResourceStatus, SourceStatus,
        convert::object_name,
        objects::{self, Keyed, Objects},
    },
    calls::{News, Told},
};
use crate::model::{Node, ObjectName, Service, Slice, Snapshot};

/// What this source proves fresh, as named in its status.
pub const SERVICES: &str = "services";
pub const SLICES: &str = "endpointslices";
pub const NODES: &str = "nodes";

/// News of one of the resources.
#[derive(Debug)]
pub enum Message {
    Service(Box<Told<core::Service>>),
    Slice(Box<Told<discovery::EndpointSlice>>),
    Node(Box<Told<core::Node>>),
}

#[derive(Debug)]
struct Resource<T: Keyed> {
    name: &'static str,
    objects: Objects<T>,
    /// A list in the making, and the names in it.
    staged: Option<(Objects<T>, BTreeSet<ObjectName>)>,
    listed: bool,
    status: ResourceStatus,
}

impl<T: Keyed> Resource<T> {
    fn new(name: &'static str) -> Self {
        let status = ResourceStatus::default();
        Self { name, objects: Objects::default(), staged: None, listed: false, status }
    }

    /// Takes the news; `put` converts and keeps an object. Returns whether the objects changed.
    fn take<K>(&mut self, told: Told<K>, put: impl Fn(&mut Objects<T>, &K)) -> bool
    where
        K: kube::Resource,
    {
        self.tell(&told.status);
        self.status = told.status;
        let mut changed = false;
        for news in told.news {
            changed |= self.take_one(news, &put);
        }
        changed
    }

    fn take_one<K>(&mut self, news: News<K>, put: &impl Fn(&mut Objects<T>, &K)) -> bool
    where
        K: kube::Resource,
    {
        match news {
            News::Page(page) => {
                let (objects, names) = self.staged.get_or_insert_with(|| (self.objects.clone(), BTreeSet::new()));
                for object in &page {
                    names.insert(object_name(object.meta()));
                    put(objects, object);
                }
                return false;
            }
            News::Abandoned => {
                self.staged = None;
                return false;
            }
            News::Complete => {
                let Some((mut objects, names)) = self.staged.take() else { return false };
                objects.retain(|name| names.contains(name));
                self.objects = objects;
                self.listed = true;
            }
            News::Changed(object) => put(&mut self.objects, &object),
            News::Deleted(name) => self.objects.remove(&name),
            News::Difference(kind, object) => {
                let (resource, kind) = (self.name, kind.as_str());
                tracing::warn!(source = "kube", resource, %object, kind, "a complete list differs from what is held; repaired");
                return false;
            }
        }
        true
    }

    /// An error is logged when it comes up, not at every retry.
    fn tell(&self, new: &ResourceStatus) {
        let resource = self.name;
        match (&self.status.last_error, &new.last_error) {
            (before, Some(error)) if before.as_ref() != Some(error) => {
                tracing::warn!(source = "kube", resource, "{error}; the tables stay as they are");
            }
            (Some(_), None) => tracing::info!(source = "kube", resource, "what is held is proven again"),
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

#[derive(Debug)]
pub struct Held {
    services: Resource<Service>,
    slices: Resource<Slice>,
    nodes: Resource<Node>,
    changed: bool,
    revision: u64,
    /// The last that was seen of the API, and since when it is as it is.
    seen: Option<Reach>,
    reach: Option<Reach>,
}

impl Held {
    pub fn new() -> Self {
        Self {
            services: Resource::new(SERVICES),
            slices: Resource::new(SLICES),
            nodes: Resource::new(NODES),
            changed: false,
            revision: 0,
            seen: None,
            reach: None,
        }
    }

    pub fn take(&mut self, message: Message) {
        let seen = match &message {
            Message::Service(told) => told.reach,
            Message::Slice(told) => told.reach,
            Message::Node(told) => told.reach,
        };
        self.see(seen);
        self.changed |= match message {
            Message::Service(told) => self.services.take(*told, Objects::put_service),
            Message::Slice(told) => self.slices.take(*told, Objects::put_slice),
            Message::Node(told) => self.nodes.take(*told, Objects::put_node),
        };
    }

    /// Whichever resource saw the API last is right.
    fn see(&mut self, seen: Option<Reach>) {
        let Some(seen) = seen.filter(|seen| self.seen.is_none_or(|last| seen.since >= last.since)) else { return };
        self.seen = Some(seen);
        if self.reach.is_none_or(|reach| reach.reachable != seen.reachable) {
            self.reach = Some(seen);
        }
    }

    /// Tells what was taken. There is no snapshot before services and slices have been listed: half of the truth is none. The
    /// Node may be missing.
    pub fn publish(&mut self, snapshots: &watch::Sender<Option<Arc<Snapshot>>>, status: &watch::Sender<SourceStatus>) {
        let synced = self.services.listed && self.slices.listed;
        let published = synced && std::mem::take(&mut self.changed);
        if published {
            self.revision += 1;
            let node = self.nodes.objects.first();
            let snapshot = objects::snapshot(&self.services.objects, &self.slices.objects, node, self.revision);
            snapshots.send_replace(Some(Arc::new(snapshot)));
        }
        status.send_modify(|status| {
            status.synced = synced;
            status.revision = self.revision;
            for (name, resource) in self.resources() {
                status.last_proof.extend(resource.proof.map(|proof| (name, proof.at)));
                if *resource != ResourceStatus::default() {
                    status.resources.insert(name, resource.clone());
                }
            }
            status.api = self.reach;
            status.last_error = self.error();
            let node_error = self.nodes.status.last_error.as_ref();
            status.notes = node_error.map(|error| format!("{NODES}: {error}")).into_iter().collect();
            if published {
                status.refusals = objects::refusals(&self.services.objects, &self.slices.objects);
            }
        });
    }

    fn resources(&self) -> [(&'static str, &ResourceStatus); 3] {
        [(SERVICES, &self.services.status), (SLICES, &self.slices.status), (NODES, &self.nodes.status)]
    }

    /// Of what the tables cannot be without.
    fn error(&self) -> Option<String> {
        let errors = self.resources().into_iter().filter(|(name, _)| *name != NODES);
        errors.into_iter().find_map(|(name, status)| Some(format!("{name}: {}", status.last_error.as_ref()?)))
    }
}

#[cfg(test)]
#[path = "held_tests.rs"]
mod tests;
