//! All limits of time in following the API, checked against each other, and the pauses drawn from them.

use std::time::Duration;

/// What must hold: a dead watch, or an API that gives no answer, is found within this time of silence; after an outage of any
/// length there is a proof of freshness within this time of the API's return.
pub const FOUND_LIMIT: Duration = Duration::from_secs(45);
/// Mean silence of a watch before a probe.
pub const SILENCE: Duration = Duration::from_secs(30);
/// Mean time from one comparison to the next.
pub const COMPARE_INTERVAL: Duration = Duration::from_hours(1);
/// From one list that silent probes force to the next: at first, and at most, up to a fifth more.
pub const FORCED_LIST_DISTANCE: (Duration, Duration) = (Duration::from_mins(1), Duration::from_mins(10));
/// A connection that is idle for so long is asked for a sign of life, then so often.
pub const KEEPALIVE: Duration = Duration::from_secs(20);
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
pub const KEEPALIVE_RETRIES: u32 = 3;
/// A connection on which something stays unacknowledged for so long is dead: `TCP_USER_TIMEOUT`.
pub const UNACKNOWLEDGED_LIMIT: Duration = Duration::from_secs(30);
/// How long the API may take to begin a watch.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(6);
/// Length of a probe. The last thing that a server sends on a watch, two seconds before its end, is a bookmark.
pub const PROBE_SECONDS: u32 = 5;
/// How long after its beginning a probe must have ended.
pub const PROBE_LIMIT: Duration = Duration::from_secs(7);
/// How much later than a probe the watch may bring the same change.
pub const LATE_LIMIT: Duration = Duration::from_secs(2);
/// Length of a watch, drawn anew each time: those of all nodes shall not end together.
pub const WATCH_SECONDS: (u32, u32) = (200, 290);
/// How much later than announced the server may end a watch.
pub const END_LIMIT: Duration = Duration::from_secs(10);
/// A watch without event or bookmark for so long is replaced, though probes say that nothing was missed: a bookmark comes about
/// once a minute.
pub const OVERDUE_LIMIT: Duration = Duration::from_secs(150);
/// A list of which not a byte came for so long has failed. One that goes on may take any time.
pub const LIST_SILENCE_LIMIT: Duration = Duration::from_secs(20);
/// Objects in one page of a list, at most.
pub const PAGE_OBJECTS: u32 = 500;
/// A page with more bytes is followed by smaller ones.
pub const PAGE_BYTES: usize = 4 * 1024 * 1024;
/// Longest text of an object. etcd takes 1.5 MiB of an object by default, and a byte of it is at most six bytes of JSON.
pub const OBJECT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// A watch that is lost so soon after its opening, twice from the same version, is replaced by a list.
pub const SHORT_WATCH: Duration = Duration::from_secs(10);
/// A server that wants a longer pause than this is asked again all the same.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(18);
/// How long what a comparison found may be on its way by the watch.
pub const COMPARE_GRACE: Duration = Duration::from_secs(5);
/// Before an API server that does not know a kind is asked for it again.
pub const UNKNOWN_KIND_PAUSE: (Duration, Duration) = (Duration::from_mins(5), Duration::from_mins(10));
/// After a failed comparison.
pub const COMPARE_PAUSE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_mins(1));

/// Pauses after the first, second, … failure in a row, from and to.
const PAUSES: [(Duration, Duration); 3] = [
    (Duration::from_millis(250), Duration::from_secs(12)),
    (Duration::from_secs(8), Duration::from_secs(16)),
    (Duration::from_secs(15), PAUSE_MAX),
];
pub const PAUSE_MAX: Duration = Duration::from_secs(27);
/// Longest pauses before the first, second, … list in a row.
const LIST_PAUSES: [Duration; 5] =
    [Duration::from_secs(2), Duration::from_secs(4), Duration::from_secs(8), Duration::from_secs(16), PAUSE_MAX];
/// What a server asks for makes no pause longer.
const _: () = assert!(RETRY_AFTER_MAX.as_millis() * 3 / 2 <= PAUSE_MAX.as_millis());
/// A watch that was opened again is probed after this time at the latest; if the last proof is too old already, after the second.
pub const REOPENED_PROBE_MAX: Duration = Duration::from_secs(28);
pub const OLD_PROBE_MAX: Duration = Duration::from_secs(4);

const fn sum(times: &[Duration]) -> u128 {
    let (mut sum, mut at) = (0, 0);
    while at < times.len() {
        sum += times[at].as_millis();
        at += 1;
    }
    sum
}

/// The longest silence before a probe.
const SILENCE_MAX: Duration = Duration::from_millis(37_500);
const _: () = assert!(SILENCE_MAX.as_millis() == SILENCE.as_millis() * 5 / 4);
// A probe without an answer; one that brings something at once, which the watch does not.
const _: () = assert!(sum(&[SILENCE_MAX, ANSWER_LIMIT]) <= FOUND_LIMIT.as_millis());
const _: () = assert!(sum(&[SILENCE_MAX, LATE_LIMIT]) <= FOUND_LIMIT.as_millis());
// A store that went back is found by a short watch that brings nothing, after all watches were cut.
const _: () = assert!(sum(&[PAUSES[0].1, REOPENED_PROBE_MAX, PROBE]) <= FOUND_LIMIT.as_millis());
// The API comes back right after a question was lost, and the first probe ends without a word.
const PROBE: Duration = Duration::from_secs(PROBE_SECONDS as u64);
const BOOKMARK: Duration = Duration::from_secs(PROBE_SECONDS as u64 - 2);
const _: () = assert!(sum(&[ANSWER_LIMIT, PAUSE_MAX, OLD_PROBE_MAX, PROBE, BOOKMARK]) <= FOUND_LIMIT.as_millis());

/// Draws times, another sequence on each node.
#[derive(Clone, Debug)]
pub struct Pauses {
    state: u64,
    failures: usize,
    lists: usize,
}

impl Pauses {
    pub fn new(seed: u64) -> Self {
        Self { state: seed, failures: 0, lists: 0 }
    }

    /// Splitmix64.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn between(&mut self, from: Duration, to: Duration) -> Duration {
        let width = u64::try_from(to.saturating_sub(from).as_micros()).unwrap_or(u64::MAX - 1);
        from + Duration::from_micros(self.random() % (width + 1))
    }

    /// `mean`, up to `1 / part` of it shorter or longer.
    pub fn around(&mut self, mean: Duration, part: u32) -> Duration {
        self.between(mean * (part - 1) / part, mean + mean / part)
    }

    pub fn watch_seconds(&mut self) -> u32 {
        let (from, to) = WATCH_SECONDS;
        let seconds = self.between(Duration::from_secs(from.into()), Duration::from_secs(to.into()));
        u32::try_from(seconds.as_secs()).unwrap_or(to)
    }

    /// `retry_after`: how long the server wants nothing to be asked.
    pub fn after_failure(&mut self, retry_after: Option<Duration>) -> Duration {
        let (from, to) = PAUSES[self.failures.min(PAUSES.len() - 1)];
        self.failures += 1;
        let least = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        self.between(from.max(least), to.max(least + least / 2))
    }

    /// Up to a time from now.
    pub fn within(&mut self, most: Duration) -> Duration {
        self.between(Duration::ZERO, most)
    }

    pub fn before_list(&mut self) -> Duration {
        let to = LIST_PAUSES[self.lists.min(LIST_PAUSES.len() - 1)];
        self.lists += 1;
        self.between(if self.lists == 1 { Duration::ZERO } else { to / 2 }, to)
    }

    /// Something was proven, so the API is well.
    pub fn reset(&mut self) {
        (self.failures, self.lists) = (0, 0);
    }

    /// A list was answered. Lists alone do not make the next one come sooner.
    pub fn answered(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound_and_differ_between_nodes() {
        let (mut one, mut other) = (Pauses::new(1), Pauses::new(2));
        let pauses: Vec<Duration> = (0..20).map(|_| one.after_failure(None)).collect();
        assert!(pauses[0] <= Duration::from_secs(12), "{pauses:?}");
        assert!(pauses[2..].iter().all(|pause| (PAUSE_MAX / 2..=PAUSE_MAX).contains(pause)), "{pauses:?}");
        assert_ne!(pauses, (0..20).map(|_| other.after_failure(None)).collect::<Vec<_>>());
        one.reset();
        assert!(one.after_failure(None) <= Duration::from_secs(12));
        let lists: Vec<Duration> = (0..8).map(|_| one.before_list()).collect();
        assert!(lists[0] <= Duration::from_secs(2) && lists[5..].iter().all(|pause| *pause >= PAUSE_MAX / 2));
        one.answered();
        assert!(one.before_list() >= PAUSE_MAX / 2, "lists in a loop do not come fast");
    }

    #[test]
    fn a_server_that_asks_for_a_pause_gets_it_up_to_a_bound_and_never_from_all_nodes_at_once() {
        let asked = Duration::from_secs(10);
        let drawn: Vec<Duration> = (0..100).map(|seed| Pauses::new(seed).after_failure(Some(asked))).collect();
        assert!(drawn.iter().all(|pause| *pause >= asked && *pause <= asked * 3 / 2), "{drawn:?}");
        assert!(drawn.iter().max() > drawn.iter().min(), "{drawn:?}");
        assert!(Pauses::new(1).after_failure(Some(Duration::from_hours(1))) <= PAUSE_MAX);
    }

    #[test]
    fn a_time_around_another_stays_within_its_part() {
        let mut pauses = Pauses::new(3);
        let drawn: Vec<Duration> = (0..1000).map(|_| pauses.around(SILENCE, 4)).collect();
        let (least, most) = (drawn.iter().min().unwrap(), drawn.iter().max().unwrap());
        assert!(*least >= Duration::from_millis(22_500) && *least < Duration::from_secs(23), "{least:?}");
        assert!(*most <= Duration::from_millis(37_500) && *most > Duration::from_secs(37), "{most:?}");
    }
}
