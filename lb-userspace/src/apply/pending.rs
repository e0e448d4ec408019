//! What is not yet as it is wanted, and when it is tried again.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use super::writer::Subject;
use crate::{
    model::{Monotonic, Refusal},
    plan::{PlanSettings, PortKey},
};

/// Changes that failed, or that a table has no room for.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub failed: BTreeSet<Subject>,
    pub no_room: BTreeMap<Subject, Refusal>,
    retry: Option<Retry>,
}

/// When all of them are tried again.
#[derive(Clone, Copy, Debug)]
struct Retry {
    at: Monotonic,
    pause: Duration,
}

impl Pending {
    pub fn is_empty(&self) -> bool {
        self.failed.is_empty() && self.no_room.is_empty()
    }

    pub fn has_service(&self, key: &PortKey) -> bool {
        self.has(&Subject::Service(key.clone()))
    }

    pub fn has_vip(&self, address: IpAddr) -> bool {
        self.has(&Subject::Vip(address))
    }

    fn has(&self, subject: &Subject) -> bool {
        self.failed.contains(subject) || self.no_room.contains_key(subject)
    }

    /// Takes one out that is being tried. True if it was there.
    pub fn take(&mut self, subject: &Subject) -> bool {
        self.failed.remove(subject) | self.no_room.remove(subject).is_some()
    }

    pub fn retry_at(&self) -> Option<Monotonic> {
        self.retry.map(|retry| retry.at)
    }

    pub fn is_due(&self, now: Monotonic) -> bool {
        self.retry.is_some_and(|retry| retry.at <= now)
    }

    /// After a run: `trouble` if something is left to do, `fresh` if some of it was not before. What is new comes again soon; a
    /// retry that changed nothing comes again after twice the pause; nothing puts one off.
    pub fn schedule(&mut self, trouble: bool, fresh: bool, settings: &PlanSettings, now: Monotonic) {
        let soon = Retry { at: now + settings.retry_min, pause: settings.retry_min };
        self.retry = match self.retry {
            _ if !trouble => None,
            None => Some(soon),
            Some(retry) if fresh => Some(if retry.at <= now || soon.at < retry.at { soon } else { retry }),
            Some(retry) if retry.at <= now => {
                let pause = (retry.pause * 2).min(settings.retry_max);
                Some(Retry { at: now + pause, pause })
            }
            kept => kept,
        };
    }
}
