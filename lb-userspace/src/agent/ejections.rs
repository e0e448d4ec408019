//! The ejected backends, as the running agent knows them: from the event ring, and from a review at intervals, since a full
//! ring loses records. The tables alone decide; this is for the log, Events and numbers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Bound;

use tokio::time::Instant;

use super::log_bound::LogBound;
use lb_model::PortKey;
use lb_plan::plan::{BackendId, ProgrammedState};

/// Backends that one review looks at.
const REVIEWED: usize = 32_768;

/// An endpoint of a service port.
pub type Subject = (PortKey, SocketAddr);

/// Backends that are ejected.
#[derive(Debug, Default)]
pub(super) struct Ejections {
    known: BTreeMap<BackendId, (u32, Subject)>,
    /// The last backend of the last review, if there may be more.
    reviewed: Option<BackendId>,
    log: LogBound,
    /// Some became ejected, or are no longer, since [`Self::take_news`].
    has_news: bool,
}

impl Ejections {
    /// Takes in what the tables say of one backend, by id and generation. Returns whether that is new.
    pub fn update(
        &mut self,
        id: BackendId,
        programmed: &ProgrammedState,
        is_ejected: impl Fn(BackendId, u32) -> bool,
        now: Instant,
    ) -> bool {
        let record = programmed.backends().get(id).filter(|record| is_ejected(id, record.generation));
        let found = record.and_then(|record| {
            let service = programmed.services().get(record.service)?;
            Some((record.generation, (service.key.clone(), record.address)))
        });
        let before = self.known.get(&id);
        if before == found.as_ref() {
            return false;
        }
        if let Some((_, subject)) = before.filter(|_| found.is_none()) {
            // A backend that is no more is logged where it ends.
            let record = programmed.backends().get(id);
            if record.is_some_and(|record| Some(record.generation) == before.map(|(known, _)| *known)) {
                log_change(&mut self.log, subject, false, now);
            }
        }
        match found {
            Some(found) => {
                log_change(&mut self.log, &found.1, true, now);
                self.known.insert(id, found);
            }
            None => drop(self.known.remove(&id)),
        }
        self.has_news = true;
        true
    }

    /// Looks at a part of all backends, behind those of the review before. Returns whether anything is new.
    pub fn review(
        &mut self,
        programmed: &ProgrammedState,
        is_ejected: impl Fn(BackendId, u32) -> bool,
        now: Instant,
    ) -> bool {
        let first = self.reviewed.take().map_or(Bound::Unbounded, Bound::Excluded);
        self.reviewed =
            programmed.backends().records().range((first, Bound::Unbounded)).nth(REVIEWED - 1).map(|(id, _)| *id);
        let part = (first, self.reviewed.map_or(Bound::Unbounded, Bound::Included));
        let ejected =
            programmed.backends().records().range(part).filter(|(id, record)| is_ejected(**id, record.generation));
        let known = self.known.range(part).map(|(id, _)| *id);
        let ids: BTreeSet<BackendId> = ejected.map(|(id, _)| *id).chain(known).collect();
        // Each is checked, also after the first that is new.
        ids.into_iter().filter(|id| self.update(*id, programmed, &is_ejected, now)).count() > 0
    }

    /// Whether anything was new since the last call.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// All of them.
    pub fn known(&self) -> impl Iterator<Item = &Subject> {
        self.known.values().map(|(_, subject)| subject)
    }
}

fn log_change(log: &mut LogBound, (service, endpoint): &Subject, is_ejected: bool, now: Instant) {
    let Some(unsaid) = log.admits(now) else { return };
    if is_ejected {
        let why = "it left a connection unanswered that another backend answered, or refused one";
        tracing::warn!(%service, %endpoint, unsaid, "ejected, new flows avoid it: {why}");
    } else {
        tracing::info!(%service, %endpoint, unsaid, "no longer ejected: it answers");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_model::Family;
    use lb_plan::plan::{BackendRecord, Capacities, Loaded, restore};

    const ID: BackendId = BackendId { family: Family::V4, id: 3 };

    /// Backends of one service port with this generation.
    fn programmed(ids: impl IntoIterator<Item = BackendId>, generation: u32) -> ProgrammedState {
        let record = BackendRecord {
            address: "10.0.0.1:8080".parse().expect("valid"),
            state: 1,
            flags: 0,
            generation,
            service: 1,
            deadline_ds: 0,
            drain_ds: 0,
            uid_hash: 0,
            weight: 1,
        };
        let backends = ids.into_iter().map(|id| (id, record)).collect();
        restore(Capacities::all(4 * u32::try_from(REVIEWED).expect("few")), Loaded { backends, ..Loaded::default() })
    }

    #[tokio::test(start_paused = true)]
    async fn a_review_looks_at_a_bounded_number_of_backends_and_all_have_their_turn() {
        let (mut ejections, now) = (Ejections::default(), Instant::now());
        let ids = (1..=u32::try_from(3 * REVIEWED).expect("few")).map(|id| BackendId { family: Family::V4, id });
        let programmed = programmed(ids, 1);
        let looked = std::cell::Cell::new(0);
        let mut found = Vec::new();
        for _ in 0..4 {
            looked.set(0);
            let last = BackendId { family: Family::V4, id: 2 * u32::try_from(REVIEWED).expect("few") + 1 };
            let is_ejected = |id: BackendId, _: u32| {
                looked.set(looked.get() + 1);
                id == last
            };
            found.push(ejections.review(&programmed, is_ejected, now));
            assert!(looked.get() <= REVIEWED + 1, "{}", looked.get());
        }
        assert_eq!((found, ejections.known().count()), (vec![false, false, true, false], 1));
        assert!(ejections.take_news() && !ejections.take_news());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_told_twice_is_new_once_and_what_was_missed_is_found() {
        let (mut ejections, now) = (Ejections::default(), Instant::now());
        let (yes, no) = (|_: BackendId, _: u32| true, |_: BackendId, _: u32| false);
        assert!(ejections.update(ID, &programmed([ID], 1), yes, now));
        assert!(!ejections.update(ID, &programmed([ID], 1), yes, now));
        assert_eq!(ejections.known().map(|(_, endpoint)| endpoint.to_string()).collect::<Vec<_>>(), ["10.0.0.1:8080"]);
        assert!(ejections.review(&programmed([ID], 1), no, now), "the record that said so was lost");
        assert_eq!(ejections.known().count(), 0);
        assert!(ejections.review(&programmed([ID], 1), yes, now) && !ejections.review(&programmed([ID], 1), yes, now));
        assert!(
            ejections.review(&programmed([ID], 2), |_, generation| generation == 1, now),
            "another backend has its id"
        );
        assert_eq!(ejections.known().count(), 0);
    }
}
