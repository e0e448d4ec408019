//! An API server whose etcd reports no progress, as etcd 3.4.23: it has no bookmark for a quiet resource while others change.

use super::*;

const HOUR: Duration = Duration::from_hours(1);
/// With an older proof `/readyz` fails.
const AGE_MAX: Duration = Duration::from_secs(75);

/// Follows one resource of such a server, for as long as a test wants. Others change each second.
struct NoProgress {
    fixture: Fixture,
    begin: Instant,
    /// What the store holds.
    objects: Vec<(&'static str, String)>,
    /// The server asks etcd for its progress when a client asks for the store's version, as with a newer etcd.
    learns_by_questions: bool,
    is_second_probe: bool,
    probe_ends: Option<Instant>,
    /// When everything was listed, since the beginning.
    lists: Vec<Duration>,
}

impl NoProgress {
    fn new(seed: u64) -> Self {
        let settings = WatchSettings { compare_interval: Some(bounds::COMPARE_INTERVAL), ..SETTINGS };
        let fixture = Fixture::seeded(settings, seed);
        Self {
            begin: fixture.now,
            fixture,
            objects: vec![("a", "50".to_owned())],
            learns_by_questions: false,
            is_second_probe: false,
            probe_ends: None,
            lists: Vec::new(),
        }
    }

    /// Watched for so long that the distance no longer grows.
    fn settled(seed: u64) -> Self {
        let mut api = Self::new(seed);
        api.live(HOUR);
        api
    }

    fn version(&self) -> String {
        (100 + (self.fixture.now - self.begin).as_secs()).to_string()
    }

    fn page(&self) -> Page<Service> {
        let items = self.objects.iter().map(|(name, version)| object(name, version)).collect();
        Page { items, version: Version::parse(Some(&self.version())), token: None, bytes: 0 }
    }

    fn live(&mut self, time: Duration) {
        let end = self.fixture.now + time;
        while self.fixture.now < end {
            let watch_ends = self.fixture.open.contains("watch").then_some(self.fixture.ends);
            let next = [Some(self.fixture.watcher.due()), self.probe_ends, watch_ends].into_iter().flatten().min();
            let next = next.unwrap_or(end).min(end);
            self.fixture.pass(next.saturating_duration_since(self.fixture.now));
            self.insist_on_health();
            self.answer_all();
            self.end_watches();
            self.answer_all();
        }
    }

    fn answer_all(&mut self) {
        while !self.fixture.asked.is_empty() {
            for (call, asked) in std::mem::take(&mut self.fixture.asked) {
                self.answer(call, &asked);
            }
        }
    }

    fn answer(&mut self, call: Call, asked: &RequestKind) {
        match asked {
            RequestKind::Watch(_, seconds) => {
                self.fixture.receive(call, Received::Opened);
                if call == Call::Probe {
                    self.probe_ends = Some(self.fixture.now + Duration::from_secs((*seconds).into()));
                }
            }
            RequestKind::List(_) => {
                self.lists.push(self.fixture.now - self.begin);
                self.fixture.receive(Call::List, Received::Page(self.page()));
            }
            RequestKind::CheckVersion => {
                self.is_second_probe = true;
                self.fixture.receive(Call::Probe, Received::Page(self.page()));
            }
        }
    }

    fn end_watches(&mut self) {
        if self.probe_ends.is_some_and(|ends| ends <= self.fixture.now) {
            self.probe_ends = None;
            let is_second = std::mem::take(&mut self.is_second_probe);
            if is_second && self.learns_by_questions {
                self.fixture.bookmark(Call::Probe, &self.version());
            } else if self.fixture.open.contains("probe") {
                // The first probe is followed by the question for the store's version.
                self.fixture.receive(Call::Probe, Received::Ended);
            }
        }
        if self.fixture.open.contains("watch") && self.fixture.ends <= self.fixture.now {
            self.fixture.receive(Call::Watch, Received::Ended);
        }
    }

    fn insist_on_health(&self) {
        let status = self.fixture.status();
        if status.proof.is_some() {
            assert!(self.fixture.age() <= AGE_MAX, "{:?} without a proof", self.fixture.age());
        }
        assert!(status.last_error.is_none() && status.wedged_since.is_none(), "{status:?}");
    }

    /// An object changes, and the watch says so.
    fn change(&mut self) {
        while !self.fixture.open.contains("watch") {
            self.live(Duration::from_secs(1));
        }
        let version = self.version();
        self.objects[0].1.clone_from(&version);
        self.fixture.put(Call::Watch, "a", &version);
    }

    fn lists_between(&self, from: Duration, to: Duration) -> usize {
        self.lists.iter().filter(|at| (from..to).contains(*at)).count()
    }
}

#[tokio::test(start_paused = true)]
async fn a_quiet_resource_is_listed_at_most_six_times_an_hour_and_stays_fresh() {
    let mut api = NoProgress::new(lb_seed::of_run());
    api.live(HOUR * 24);
    let hours: Vec<usize> = (0..24).map(|hour| api.lists_between(HOUR * hour, HOUR * (hour + 1))).collect();
    assert!(hours[0] <= 10, "{hours:?}");
    assert!(hours[1..].iter().all(|lists| (4..=6).contains(lists)), "{hours:?}");
    let status = api.fixture.status();
    assert!(status.probes[&Probed::Unproven] > 1000 && status.watch_restarts.is_empty(), "{status:?}");
    // What a list proved is known, and no more.
    let last = 100 + api.lists.last().unwrap().as_secs();
    assert_eq!(api.fixture.watcher.updates(Vec::new()).status.version, last);
}

#[tokio::test(start_paused = true)]
async fn changes_of_the_resource_do_not_bring_more_lists() {
    let mut api = NoProgress::settled(lb_seed::of_run());
    for _ in 0..6 * 30 {
        api.change();
        api.live(Duration::from_mins(2));
    }
    let lists = api.lists_between(HOUR, HOUR * 7);
    assert!(lists <= 6 * 6, "{lists} in six hours");
    assert_eq!(api.fixture.status().differences.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_brings_a_missed_change_is_followed_by_another_one_soon() {
    let mut api = NoProgress::settled(lb_seed::of_run());
    // The server's watches leave it out.
    api.objects.push(("b", "60".to_owned()));
    let untold = HOUR;
    api.live(HOUR / 2);
    let found: Vec<Duration> = api.lists.iter().copied().filter(|at| *at >= untold).collect();
    assert!(found[0] <= untold + Duration::from_secs(12 * 60 + 50), "{found:?}");
    assert!(found[1] <= found[0] + Duration::from_mins(1), "{found:?}");
    assert!(found[2] <= found[1] + Duration::from_mins(3), "{found:?}");
    assert_eq!(api.fixture.held(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_turns_out_to_learn_of_progress_is_listed_at_once_when_it_is_silent_again() {
    let mut api = NoProgress::settled(lb_seed::of_run());
    api.learns_by_questions = true;
    api.live(HOUR * 2);
    assert!(api.lists_between(HOUR + Duration::from_mins(1), HOUR * 3) <= 3, "comparisons alone: {:?}", api.lists);
    api.learns_by_questions = false;
    api.live(Duration::from_mins(1));
    assert!(api.lists_between(HOUR * 3, HOUR * 4) >= 1, "{:?}", api.lists);
}

#[tokio::test(start_paused = true)]
async fn after_a_busy_time_the_lists_of_all_nodes_are_spread() {
    let first = lb_seed::of_run();
    let mut lists = Vec::new();
    let quiet = HOUR + Duration::from_mins(30);
    for seed in first..first + 300 {
        let mut api = NoProgress::settled(seed);
        // No watch is probed, and the list is overdue on all nodes.
        for _ in 0..90 {
            api.change();
            api.live(Duration::from_secs(20));
        }
        api.live(Duration::from_mins(15));
        lists.extend(api.lists.iter().filter(|at| **at >= quiet).map(|at| (at.as_secs() - quiet.as_secs()) / 10));
    }
    assert!(lists.len() >= 300, "each node lists: {}", lists.len());
    let most = (0..90).map(|window| lists.iter().filter(|at| **at == window).count()).max();
    assert!(most <= Some(30), "{most:?} of 300 nodes list within 10 s");
}

#[tokio::test(start_paused = true)]
async fn a_dead_watch_is_found_within_45_s_all_the_same() {
    let first = lb_seed::of_run();
    for seed in first..first + 50 {
        let mut api = NoProgress::settled(seed);
        // Begins with the first proof after the hour.
        let proof = api.fixture.status().proof.unwrap().at;
        while api.fixture.status().proof.unwrap().at == proof {
            api.live(Duration::from_secs(1));
        }
        let silent = api.fixture.now;
        while api.probe_ends.is_none() {
            api.live(Duration::from_secs(1));
        }
        api.fixture.put(Call::Probe, "b", &api.version());
        assert_eq!(api.fixture.held(), ["a", "b"]);
        api.fixture.seconds(2);
        assert!(api.fixture.now - silent <= bounds::FOUND_LIMIT, "{:?}", api.fixture.now - silent);
        assert_eq!(api.fixture.status().watch_restarts, [(Restart::MissedEvents, 1)].into());
        assert!(api.fixture.status().wedged_since.is_some());
    }
}

/// A load balancer that cuts idle connections would otherwise bring the lists back.
#[tokio::test(start_paused = true)]
async fn a_silent_probe_that_took_the_place_of_a_watch_brings_no_list_either() {
    let mut api = NoProgress::settled(lb_seed::of_run());
    let lists = api.lists.len() + 1;
    // The next one is far.
    while api.lists.len() < lists || api.probe_ends.is_none() {
        api.live(Duration::from_secs(1));
    }
    api.fixture.fail(Call::Watch, None);
    assert!(api.fixture.open.contains("watch") && !api.fixture.open.contains("probe"), "promoted");
    api.fixture.seconds(5);
    api.fixture.receive(Call::Watch, Received::Ended);
    let (call, asked, after) = api.fixture.next();
    assert!(call == Call::Watch && matches!(asked, RequestKind::Watch(..)), "{asked:?}");
    assert_eq!((after, api.lists.len()), (Duration::ZERO, lists));
    api.fixture.receive(Call::Watch, Received::Opened);
    let probed = api.fixture.next();
    assert!(probed.0 == Call::Probe && probed.2 <= bounds::REOPENED_PROBE_MAX, "{probed:?}");
}
