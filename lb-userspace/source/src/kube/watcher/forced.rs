//! How often a silent probe forces a complete list: ever more rarely while these lists bring nothing new.
//!
//! An etcd before 3.4.31, or 3.5 before 3.5.13, does not tell kube-apiserver of its progress when asked
//! (`staging/src/k8s.io/apiserver/pkg/storage/feature`). The server has no bookmark for a quiet resource while others change, so every
//! probe is silent. A server that lost its store looks the same, and only lists tell them apart.

use std::time::Duration;

use tokio::time::Instant;

use crate::kube::bounds::{FORCED_LIST_DISTANCE, Pauses};

/// When the next silent probe forces a list.
#[derive(Debug, Default)]
pub struct ForcedLists {
    /// From one to the next; zero: the next silent probe forces one at once.
    distance: Duration,
    /// No list before that; `None`: any time.
    due: Option<Instant>,
    /// The server brought something since `due` was drawn.
    is_put_off: bool,
    /// The list that is asked for was forced.
    is_listing: bool,
}

impl ForcedLists {
    /// Whether a probe that was silent forces a list, which must then follow.
    pub fn force(&mut self, pauses: &mut Pauses, now: Instant) -> bool {
        if std::mem::take(&mut self.is_put_off) {
            self.due = self.due.max(Some(now + pauses.within(self.distance)));
        }
        self.is_listing = self.due.is_none_or(|due| due <= now);
        self.is_listing
    }

    /// A complete list was taken; whether it was forced.
    pub fn listed(&mut self, is_changed: bool, pauses: &mut Pauses, now: Instant) -> bool {
        if !std::mem::take(&mut self.is_listing) {
            self.put_off();
            return false;
        }
        let (least, most) = FORCED_LIST_DISTANCE;
        self.distance = if is_changed { Duration::ZERO } else { (self.distance * 2).clamp(least, most) };
        self.due = Some(now + pauses.between(self.distance, self.distance * 6 / 5));
        true
    }

    /// The server brought something new, so its cache follows the store. It reached all nodes at once: their next lists spread over all
    /// of the distance, which stays as it is.
    pub fn put_off(&mut self) {
        self.is_put_off = true;
    }

    /// A silent probe is no rule here, or something was missed.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}
