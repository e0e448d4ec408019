//! What is held of the API's objects, since when it is known to be true, and when there is a snapshot to give.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::{core::v1 as core, discovery::v1 as discovery};
use tokio::{sync::watch, time::Instant};

use super::{
    super::{
        SourceStatus,
        convert::object_name,
        objects::{self, Keyed, Objects},
    },
    follower::News,
};
use crate::model::{Service, Slice, Snapshot};

/// What this source proves fresh, as named in its status.
pub const SERVICES: &str = "services";
pub const SLICES: &str = "endpointslices";

/// News of one of the two resources.
#[derive(Debug)]
pub enum Message {
    Service(Box<News<core::Service>>),
    Slice(Box<News<discovery::EndpointSlice>>),
}

#[derive(Debug)]
struct Resource<T: Keyed> {
    name: &'static str,
    objects: Objects<T>,
    listed: bool,
    error: Option<String>,
    proof: Option<Instant>,
}

impl<T: Keyed> Resource<T> {
    fn new(name: &'static str) -> Self {
        Self { name, objects: Objects::default(), listed: false, error: None, proof: None }
    }

    /// Takes the news; `put` converts and keeps an object. Returns whether the objects changed.
    fn take<K>(&mut self, news: News<K>, now: Instant, put: impl Fn(&mut Objects<T>, &K)) -> bool
    where
        K: kube::Resource,
    {
        if let News::Trouble(reason) = news {
            self.trouble(reason);
            return false;
        }
        self.proof = Some(now);
        if self.error.take().is_some() {
            tracing::info!(source = "kube", resource = self.name, "the API answers again");
        }
        match news {
            News::All(all) => {
                let names: BTreeSet<_> = all.iter().map(|object| object_name(object.meta())).collect();
                self.objects.retain(|name| names.contains(name));
                for object in &all {
                    put(&mut self.objects, object);
                }
                self.listed = true;
            }
            News::Changed(object) => put(&mut self.objects, &object),
            News::Deleted(object) => self.objects.remove(&object_name(object.meta())),
            News::Bookmark | News::Trouble(_) => return false,
        }
        true
    }

    /// An error changes nothing of what is held. It is logged when it comes up, not at every retry.
    fn trouble(&mut self, reason: String) {
        if self.error.as_ref() != Some(&reason) {
            tracing::warn!(source = "kube", resource = self.name, "{reason}; the tables stay as they are");
            self.error = Some(reason);
        }
    }
}

#[derive(Debug)]
pub struct Held {
    services: Resource<Service>,
    slices: Resource<Slice>,
    changed: bool,
    revision: u64,
}

impl Held {
    pub fn new() -> Self {
        Self { services: Resource::new(SERVICES), slices: Resource::new(SLICES), changed: false, revision: 0 }
    }

    pub fn take(&mut self, message: Message, now: Instant) {
        self.changed |= match message {
            Message::Service(news) => self.services.take(*news, now, Objects::put_service),
            Message::Slice(news) => self.slices.take(*news, now, Objects::put_slice),
        };
    }

    /// Tells what was taken. There is no snapshot before both have been listed: half of the truth is none.
    pub fn publish(&mut self, snapshots: &watch::Sender<Option<Arc<Snapshot>>>, status: &watch::Sender<SourceStatus>) {
        let synced = self.services.listed && self.slices.listed;
        let published = synced && std::mem::take(&mut self.changed);
        if published {
            self.revision += 1;
            let snapshot = objects::snapshot(&self.services.objects, &self.slices.objects, None, self.revision);
            snapshots.send_replace(Some(Arc::new(snapshot)));
        }
        status.send_modify(|status| {
            status.synced = synced;
            status.revision = self.revision;
            let proofs = [(self.services.name, self.services.proof), (self.slices.name, self.slices.proof)];
            status.last_proof.extend(proofs.into_iter().filter_map(|(name, proof)| Some((name, proof?))));
            status.last_error = self.error();
            if published {
                status.refusals = objects::refusals(&self.services.objects, &self.slices.objects);
            }
        });
    }

    fn error(&self) -> Option<String> {
        let errors = [(self.services.name, &self.services.error), (self.slices.name, &self.slices.error)];
        errors.into_iter().find_map(|(name, error)| Some(format!("{name}: {}", error.as_ref()?)))
    }
}

#[cfg(test)]
#[path = "held_tests.rs"]
mod tests;
