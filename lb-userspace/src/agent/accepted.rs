//! The digest of what the tables hold, pass by pass, for the listener of the fleet.

use std::collections::{BTreeSet, VecDeque};

use crate::fleet::answer::Past;
use crate::fleet::digest::Digest;
use lb_model::{Accepted, Monotonic, ObjectName};

/// So many digests that are over are remembered.
const RECENT_MAX: usize = 16;

/// The objects in the tables, with their digest.
#[derive(Clone, Debug, Default)]
pub struct Programmed {
    accepted: Accepted,
    digest: Digest,
    /// Digests before this one, and when each was replaced; the last one first.
    recent: VecDeque<(Digest, Monotonic)>,
    /// Since when a change waits to be in the tables.
    lagging_since: Option<Monotonic>,
}

impl Programmed {
    /// A pass over the tables is over. `missing`: services that are not in the tables as the snapshot wants them; `waits`: there are others that no
    /// pass has come to yet; `fails`: some of the missing are tried again.
    pub fn took(
        &mut self,
        accepted: &Accepted,
        missing: &BTreeSet<ObjectName>,
        (waits, fails): (bool, bool),
        now: Monotonic,
    ) {
        self.lagging_since = (waits || fails).then(|| self.lagging_since.unwrap_or(now));
        if waits {
            return;
        }
        let next = accepted.except(missing, &self.accepted);
        let before = self.digest.clone();
        if self.digest.update(&self.accepted, &next) {
            self.recent.push_front((before, now));
            self.recent.truncate(RECENT_MAX);
        }
        self.accepted = next;
    }

    /// The objects in the tables, and the digest of them.
    pub fn objects(&self) -> (&Accepted, &Digest) {
        (&self.accepted, &self.digest)
    }

    /// Seconds that the oldest change waits; 0: none does.
    pub fn lag_seconds(&self, now: Monotonic) -> f64 {
        self.lagging_since.map_or(0.0, |since| now.since(since).as_secs_f64())
    }

    /// Digests before this one, the last one first.
    pub fn recent(&self, now: Monotonic) -> Vec<Past> {
        let past = |(digest, until): &(Digest, Monotonic)| Past {
            digest: digest.text(),
            age_seconds: now.since(*until).as_secs_f64(),
        };
        self.recent.iter().map(past).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use lb_model::Mark;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_duration(Duration::from_secs(seconds))
    }

    fn accepted(versions: &[(&str, &str)]) -> Accepted {
        let mut accepted = Accepted::default();
        for (service, version) in versions {
            let name = ObjectName::new("demo", *service);
            accepted.services.add(&name, Mark::of("Service", &name, "u", version));
        }
        accepted
    }

    #[test]
    fn a_change_counts_when_it_is_in_the_tables() {
        let mut programmed = Programmed::default();
        let (one, two) = (accepted(&[("web", "1"), ("db", "1")]), accepted(&[("web", "2"), ("db", "2")]));
        let none = BTreeSet::new();
        programmed.took(&one, &none, (false, false), at(1));
        programmed.took(&two, &none, (true, false), at(2));
        assert_eq!(programmed.digest, Digest::of(&one), "it waits");
        assert_eq!(programmed.lagging_since, Some(at(2)));
        let db = BTreeSet::from([ObjectName::new("demo", "db")]);
        programmed.took(&two, &db, (false, true), at(3));
        assert_eq!(programmed.digest, Digest::of(&accepted(&[("web", "2"), ("db", "1")])), "db could not be written");
        assert_eq!(programmed.lagging_since, Some(at(2)));
        programmed.took(&two, &none, (false, false), at(4));
        assert_eq!((&programmed.digest, programmed.lagging_since), (&Digest::of(&two), None));
        let recent = programmed.recent(at(14));
        assert_eq!(recent.iter().map(|past| past.age_seconds).collect::<Vec<_>>(), [10.0, 11.0, 13.0]);
        assert_eq!(recent[1].digest, Digest::of(&one).text());
    }

    #[test]
    fn a_service_without_room_is_no_lag() {
        let mut programmed = Programmed::default();
        let web = BTreeSet::from([ObjectName::new("demo", "web")]);
        programmed.took(&accepted(&[("web", "1")]), &web, (false, false), at(1));
        assert_eq!((&programmed.digest, programmed.lagging_since), (&Digest::default(), None));
        for version in 0..100_u8 {
            let next = accepted(&[("web", &version.to_string())]);
            programmed.took(&next, &BTreeSet::new(), (false, false), at(2));
        }
        assert_eq!(programmed.recent.len(), RECENT_MAX);
    }
}
