//! Which problems of endpoints have lasted long enough for an Event: those of a rollout pass.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::observe::report::EndpointProblemReport;
use lb_source::announce::ObjectEvent;

/// A rollout that has no ready endpoint in between is over by then, as a rule.
const LASTS: Duration = Duration::from_secs(30);

/// A service port, the family, and the name of the cause: counts in the text may change meanwhile.
type Subject = (String, String, String, String);

/// The problems that this node speaks of.
#[derive(Debug, Default)]
pub(super) struct EndpointEvents {
    since: BTreeMap<Subject, (Instant, Option<ObjectEvent>)>,
}

impl EndpointEvents {
    /// These are all of the moment.
    pub fn set(&mut self, problems: &[EndpointProblemReport], now: Instant) {
        let mut before = std::mem::take(&mut self.since);
        self.since = problems
            .iter()
            .filter(|problem| problem.is_event)
            .map(|problem| {
                let service = format!("{}/{}", problem.namespace, problem.name);
                let port = format!("{}/{}", problem.port, problem.protocol);
                let subject = (service, port, problem.family.clone(), problem.cause.clone());
                // One Event says it, with the first words: the API knows it by them.
                let known = before.remove(&subject).unwrap_or_else(|| {
                    let (service, port, family, _) = &subject;
                    (now, ObjectEvent::of_endpoints(service, port, family, &problem.text, &problem.remedy))
                });
                (subject, known)
            })
            .collect();
    }

    /// Those that have lasted.
    pub fn lasting(&self, now: Instant) -> BTreeSet<ObjectEvent> {
        let lasting = self.since.values().filter(|(since, _)| now.saturating_duration_since(*since) >= LASTS);
        lasting.filter_map(|(_, event)| event.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_plan::plan::Cause;

    fn problem(text: &str, is_event: bool) -> EndpointProblemReport {
        EndpointProblemReport { text: text.into(), is_event, ..EndpointProblemReport::example(Cause::NotReady) }
    }

    #[tokio::test(start_paused = true)]
    async fn the_event_of_a_cause_has_its_phrase_and_remedy() {
        for cause in Cause::ALL {
            let (start, mut events) = (Instant::now(), EndpointEvents::default());
            events.set(&[EndpointProblemReport::example(cause)], start);
            let notes: Vec<String> = events.lasting(start + LASTS).into_iter().map(|event| event.note).collect();
            let note = format!("port 80/TCP, IPv4: {}: the details; {}", cause.phrase(), cause.remedy());
            assert_eq!(notes, cause.has_event().then_some(note).into_iter().collect::<Vec<_>>());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_lasts_is_said_once_and_what_passes_is_not() {
        let (start, mut events) = (Instant::now(), EndpointEvents::default());
        events.set(&[problem("3 are unready", true)], start);
        assert_eq!(events.lasting(start + LASTS / 2), BTreeSet::new());
        events.set(&[problem("2 are unready", true)], start + LASTS / 2);
        let said = events.lasting(start + LASTS);
        let notes: Vec<&str> = said.iter().map(|event| event.note.as_str()).collect();
        assert_eq!(
            notes,
            [format!("port 80/TCP, IPv4: 3 are unready; {}", Cause::NotReady.remedy())],
            "a count that changes is no other Event"
        );
        events.set(&[], start + LASTS);
        events.set(&[problem("1 is unready", true)], start + LASTS);
        assert_eq!(events.lasting(start + LASTS), BTreeSet::new(), "it was over");
        events.set(&[problem("1 is unready", false)], start + LASTS);
        assert_eq!(events.lasting(start + 3 * LASTS), BTreeSet::new(), "another node says it");
    }
}
