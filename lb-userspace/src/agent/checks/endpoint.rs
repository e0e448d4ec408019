//! What the checks of one endpoint have shown: a pure machine, `(state, event, now) → (state, effect)`.

use std::time::Duration;

use tokio::time::Instant;

use lb_model::Check;

/// An endpoint that is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    phase: Phase,
    /// So many in a row failed. It takes no new flows.
    is_failing: bool,
    /// Answers in a row that speak against this.
    row: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting { due: Instant },
    UnderWay,
}

/// What happens to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Its turn has come. What follows the answer comes after `pause`.
    Turn,
    /// The check is over; the next one is due after `pause`.
    Over { answer: Answer, pause: Duration },
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Well,
    Failed,
    /// It could not be made, for want of something on this node: it says nothing about the endpoint.
    NotMade,
}

impl Answer {
    /// Its word in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Well => "well",
            Self::Failed => "failed",
            Self::NotMade => "not_made",
        }
    }
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Ask,
    Fail,
    Clear,
}

impl Endpoint {
    /// One that is first asked at this moment. `is_failing`: an agent before this one has found it unhealthy.
    pub fn new(due: Instant, is_failing: bool) -> Self {
        Self { phase: Phase::Waiting { due }, is_failing, row: 0 }
    }

    pub fn is_failing(&self) -> bool {
        self.is_failing
    }

    /// When its turn comes; `None`: it is being asked.
    pub fn due(&self) -> Option<Instant> {
        match self.phase {
            Phase::Waiting { due } => Some(due),
            Phase::UnderWay => None,
        }
    }

    /// What the event makes of it.
    #[must_use]
    pub fn step(self, event: Event, now: Instant, check: &Check) -> (Self, Option<Effect>) {
        match (event, self.phase) {
            (Event::Turn, Phase::Waiting { due }) if due <= now => {
                (Self { phase: Phase::UnderWay, ..self }, Some(Effect::Ask))
            }
            (Event::Over { answer, pause }, Phase::UnderWay) => {
                let (next, effect) = self.judged(answer, check);
                (Self { phase: Phase::Waiting { due: now + pause }, ..next }, effect)
            }
            (Event::Turn, _) | (Event::Over { .. }, Phase::Waiting { .. }) => (self, None),
        }
    }

    fn judged(self, answer: Answer, check: &Check) -> (Self, Option<Effect>) {
        let (against, limit, effect) = if self.is_failing {
            (Answer::Well, check.successes, Effect::Clear)
        } else {
            (Answer::Failed, check.failures, Effect::Fail)
        };
        let row = match answer {
            Answer::NotMade => self.row,
            Answer::Well | Answer::Failed if answer == against => self.row.saturating_add(1),
            Answer::Well | Answer::Failed => 0,
        };
        if row >= limit.max(1) {
            return (Self { is_failing: !self.is_failing, row: 0, ..self }, Some(effect));
        }
        (Self { row, ..self }, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_model::CheckMethod;

    const PAUSE: Duration = Duration::from_secs(5);

    fn check() -> Check {
        let timeout = Duration::from_secs(1);
        Check { method: CheckMethod::Tcp, port: None, interval: PAUSE, timeout, failures: 3, successes: 2 }
    }

    /// Asks in turn and gives these answers; the effects beside asking, by the number of the answer.
    fn answered(mut endpoint: Endpoint, answers: &[Answer]) -> (Endpoint, Vec<(usize, Effect)>) {
        let mut effects = Vec::new();
        for (index, answer) in answers.iter().enumerate() {
            let now = endpoint.due().expect("not under way");
            let (asked, effect) = endpoint.step(Event::Turn, now, &check());
            assert_eq!(effect, Some(Effect::Ask));
            let (next, effect) = asked.step(Event::Over { answer: *answer, pause: PAUSE }, now, &check());
            effects.extend(effect.map(|effect| (index, effect)));
            assert_eq!(next.due(), Some(now + PAUSE));
            endpoint = next;
        }
        (endpoint, effects)
    }

    use Answer::{Failed, NotMade, Well};

    #[tokio::test(start_paused = true)]
    async fn only_failures_in_a_row_condemn_and_only_successes_in_a_row_bring_back() {
        let fresh = Endpoint::new(Instant::now(), false);
        assert_eq!(answered(fresh, &[Failed, Failed, Well, Failed, Failed]).1, []);
        let (condemned, effects) = answered(fresh, &[Well, Failed, Failed, Failed]);
        assert_eq!(effects, [(3, Effect::Fail)]);
        assert!(condemned.is_failing());
        assert_eq!(answered(condemned, &[Well, Failed, Well]).1, []);
        let (back, effects) = answered(condemned, &[Failed, Well, Well]);
        assert_eq!(effects, [(2, Effect::Clear)]);
        assert!(!back.is_failing());
    }

    #[tokio::test(start_paused = true)]
    async fn a_check_that_could_not_be_made_says_nothing() {
        let fresh = Endpoint::new(Instant::now(), false);
        assert_eq!(answered(fresh, &[NotMade; 9]).1, []);
        assert_eq!(answered(fresh, &[Failed, NotMade, Failed, NotMade, Failed]).1, [(4, Effect::Fail)]);
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_asked_once_at_a_time_and_not_before_its_turn() {
        let now = Instant::now();
        let endpoint = Endpoint::new(now + PAUSE, false);
        assert_eq!(endpoint.step(Event::Turn, now, &check()), (endpoint, None), "too early");
        let over = Event::Over { answer: Failed, pause: PAUSE };
        assert_eq!(endpoint.step(over, now, &check()), (endpoint, None), "it was not asked");
        let (asked, _) = endpoint.step(Event::Turn, now + PAUSE, &check());
        assert_eq!(asked.step(Event::Turn, now + PAUSE, &check()), (asked, None));
    }
}
