//! Every fault of the API as a story: what is asked, what is held, what the status says, and how long it takes.

use std::collections::BTreeSet;

use super::{super::calls::Page, *};
use crate::{Difference, Probed, ProofKind, Restart};
use lb_objects::lean::Service;

/// A question to the API.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RequestKind {
    Watch(String, u32),
    List(Option<String>),
    CheckVersion,
}

/// A watcher with the objects that its updates leave, on a clock that the test advances.
struct Fixture {
    watcher: Watcher<Service>,
    now: Instant,
    held: BTreeSet<String>,
    staged: BTreeSet<String>,
    /// Questions since they were last looked at.
    asked: Vec<(Call, RequestKind)>,
    open: BTreeSet<&'static str>,
    asked_in_all: usize,
    /// How often the store went back.
    went_back: usize,
    /// Of the page that was asked for last.
    token: Option<String>,
    /// When the server ends the watch.
    ends: Instant,
}

const SETTINGS: WatchSettings = WatchSettings {
    patience: 1,
    silence: bounds::SILENCE,
    compare_interval: None,
    expected_objects: 0,
    may_be_unknown: false,
};

fn name_of(call: Call) -> &'static str {
    match call {
        Call::Watch => "watch",
        Call::Probe => "probe",
        Call::List => "list",
    }
}

fn object(name: &str, version: &str) -> Item<Service> {
    let (name, version) = (ObjectName::new("default", name), Version::parse(Some(version)));
    Item { name, uid: 0, mark: lb_model::Mark::default(), version, object: Ok(Service::default()) }
}

fn failure(status: Option<u16>) -> Failure {
    Failure { status, ..Failure::without_status("no") }
}

impl Fixture {
    /// With a fixed seed: a story of single steps must end before its watch does. The other stories take fresh seeds.
    fn new(settings: WatchSettings) -> Self {
        Self::seeded(settings, 1)
    }

    fn seeded(settings: WatchSettings, seed: u64) -> Self {
        let now = Instant::now();
        Self {
            watcher: Watcher::new(settings, seed, now),
            now,
            held: BTreeSet::new(),
            staged: BTreeSet::new(),
            asked: Vec::new(),
            open: BTreeSet::new(),
            asked_in_all: 0,
            went_back: 0,
            token: None,
            ends: now,
        }
    }

    /// Listed in version 100, with the watch open.
    fn watching(settings: WatchSettings, names: &[&str]) -> Self {
        let mut fixture = Self::new(settings);
        fixture.pass(Duration::ZERO);
        fixture.take_list();
        fixture.list("100", names);
        fixture.pass(Duration::ZERO);
        assert!(matches!(&fixture.asked[..], [(Call::Watch, RequestKind::Watch(version, _))] if version == "100"));
        fixture.asked.clear();
        fixture.receive(Call::Watch, Received::Opened);
        fixture
    }

    fn perform(&mut self, effects: Vec<Effect<Service>>) {
        for effect in effects {
            match effect {
                Effect::Watch { call, version, seconds } => {
                    self.open.insert(name_of(call));
                    if call == Call::Watch {
                        self.ends = self.now + Duration::from_secs(seconds.into());
                    }
                    self.ask(call, RequestKind::Watch(version.to_string(), seconds));
                }
                Effect::List { token } => {
                    self.open.insert("list");
                    self.token.clone_from(&token);
                    self.ask(Call::List, RequestKind::List(token));
                }
                Effect::WentBack => self.went_back += 1,
                Effect::CheckVersion => {
                    self.open.insert("probe");
                    self.ask(Call::Probe, RequestKind::CheckVersion);
                }
                Effect::Close(call) => {
                    self.open.remove(name_of(call));
                }
                Effect::Promote => {
                    assert!(self.open.remove("probe"), "what is promoted is open");
                    self.open.insert("watch");
                }
                Effect::Emit(updates) => self.apply(updates),
            }
        }
    }

    fn ask(&mut self, call: Call, asked: RequestKind) {
        self.asked_in_all += 1;
        self.asked.push((call, asked));
    }

    fn apply(&mut self, updates: Update<Service>) {
        match updates {
            Update::Page(page) => self.staged.extend(page.iter().map(|item| item.name.name.to_string())),
            Update::Complete => self.held = std::mem::take(&mut self.staged),
            Update::Abandoned => self.staged.clear(),
            Update::Changed(item) => {
                self.held.insert(item.name.name.to_string());
            }
            Update::Deleted(name) => {
                self.held.remove(&*name.name);
            }
            Update::Difference(..) => {}
        }
    }

    fn receive(&mut self, call: Call, received: Received<Service>) {
        let is_over = matches!(received, Received::Ended | Received::Failed(_) | Received::Page(_));
        assert!(!is_over || self.open.remove(name_of(call)), "{call:?} is not open");
        let effects = self.watcher.receive(call, received, self.now);
        self.perform(effects);
    }

    /// Ticks whenever it is due.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        let mut ticks = 0;
        while self.watcher.due() <= end {
            self.now = self.now.max(self.watcher.due());
            let effects = self.watcher.tick(self.now);
            self.perform(effects);
            ticks += 1;
            assert!(ticks < 10_000, "a loop without end");
        }
        self.now = end;
    }

    fn seconds(&mut self, seconds: u64) {
        self.pass(Duration::from_secs(seconds));
    }

    /// Passes time until something is asked for; what, and how long it took.
    fn next(&mut self) -> (Call, RequestKind, Duration) {
        let begin = self.now;
        self.pass(Duration::ZERO);
        while self.asked.is_empty() {
            assert!(self.now - begin < Duration::from_hours(1), "nothing is asked for");
            self.pass(Duration::from_millis(10));
        }
        let (call, asked) = self.asked.remove(0);
        (call, asked, self.now - begin)
    }

    fn take_list(&mut self) -> Duration {
        let (call, asked, after) = self.next();
        assert_eq!((call, asked), (Call::List, RequestKind::List(None)));
        after
    }

    /// Waits for a watch, opens it.
    fn take_watch(&mut self, call: Call, version: &str) -> Duration {
        let (by, asked, after) = self.next();
        assert!(by == call && matches!(&asked, RequestKind::Watch(from, _) if from == version), "{by:?} {asked:?}");
        self.receive(call, Received::Opened);
        after
    }

    /// A probe that is open ends without a word; what the store holds is asked for, and is of this version.
    fn store_is_at(&mut self, version: &str) {
        self.seconds(5);
        self.receive(Call::Probe, Received::Ended);
        let (call, asked, after) = self.next();
        assert_eq!((call, asked, after), (Call::Probe, RequestKind::CheckVersion, Duration::ZERO));
        let (items, version) = (vec![object("a", "50")], Version::parse(Some(version)));
        let page = Page { items, version, token: Some("more".into()), bytes: 0 };
        self.receive(Call::Probe, Received::Page(page));
    }

    fn page(&mut self, version: &str, names: &[&str], token: Option<&str>) {
        let items = names.iter().map(|name| object(name, "50")).collect();
        let page = Page { items, version: Version::parse(Some(version)), token: token.map(Into::into), bytes: 0 };
        self.receive(Call::List, Received::Page(page));
    }

    fn list(&mut self, version: &str, names: &[&str]) {
        self.page(version, names, None);
    }

    fn put(&mut self, call: Call, name: &str, version: &str) {
        self.receive(call, Received::Put(object(name, version)));
    }

    fn delete(&mut self, call: Call, name: &str, version: &str) {
        self.receive(call, Received::Deleted(ObjectName::new("default", name), Version::parse(Some(version))));
    }

    fn bookmark(&mut self, call: Call, version: &str) {
        self.receive(call, Received::Bookmark(Version::parse(Some(version))));
    }

    fn fail(&mut self, call: Call, status: Option<u16>) {
        self.receive(call, Received::Failed(failure(status)));
    }

    fn status(&self) -> &ResourceStatus {
        self.watcher.status()
    }

    fn held(&self) -> Vec<&str> {
        self.held.iter().map(String::as_str).collect()
    }

    fn age(&self) -> Duration {
        self.now - self.status().proof.unwrap().at
    }

    fn is_reachable(&self) -> bool {
        self.watcher.updates(Vec::new()).reach.unwrap().reachable
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("s{number:03}")).collect()
}

#[path = "comparison_tests.rs"]
mod comparisons;
#[path = "list_tests.rs"]
mod lists;
#[path = "random_tests.rs"]
mod random;
#[path = "silent_probe_tests.rs"]
mod silent_probes;
#[path = "story_tests.rs"]
mod stories;
