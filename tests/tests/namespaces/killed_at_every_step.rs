//! The agent is killed at any step of a start or of a change. The tables hold the old or the new state, never a mix of both; no connection is lost;
//! and the next start converges.
//!
//! A run takes a few steps by the lot of its seed. The long form takes every step (about an hour), and
//! `BALLAST_STEPS='start update many slots#1, change rename to x#2'` those that it names.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use lb_tests::agent::{Agent, Manifest, Protocol, SOON, START, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Datagrams, PATIENCE, Stream, eventually};
use lb_tests::random::Random;
use lb_tests::steps::{Step, Stepped};
use lb_tests::topology::{NetNs, NodeOptions};

/// So many connections to a frontend tell whether a mix of backends is served.
const TRIES: usize = 5;
/// For a question where nobody may serve.
const BRIEFLY: Duration = Duration::from_millis(150);

/// A service in one of the states: its name, the end of its cluster IPs, and its backends, which no other service has in that state.
type Wanted = (&'static str, u8, &'static [usize]);

/// `web` loses a backend and gets another, `api` stays, one service goes, and one comes.
const STATES: [&[Wanted]; 2] = [
    &[("web", 10, &[0, 1]), ("api", 11, &[3]), ("early", 12, &[4])],
    &[("web", 10, &[1, 2]), ("api", 11, &[3]), ("late", 13, &[5])],
];

/// The names of its servers in each state; `None`: the service is not there.
type Sets = [Option<BTreeSet<String>>; 2];

struct Scene {
    /// Connections to what both states serve, and the server of each.
    held: Vec<(Stream, String)>,
    agent: Agent,
    fixture: Fixture,
}

impl Scene {
    fn new(subject: &str) -> Self {
        let fixture = Fixture::new(subject, Pods::Routed, 6, NodeOptions::default());
        // Longer than a test keeps any backend away.
        let agent = Agent::prepare(&fixture.node, &["--drain-period=1h"]).unwrap();
        Self { held: Vec::new(), agent, fixture }
    }

    fn manifest(&self, state: usize) -> Manifest {
        let all = self.fixture.endpoints();
        let service = |(name, last, backends): &Wanted| {
            Service::standard(name, *last, backends.iter().map(|index| all[*index].clone()).collect())
        };
        Manifest::of(STATES[state].iter().map(service).collect::<Vec<_>>())
    }

    fn write(&self, state: usize) {
        self.agent.write(&self.manifest(state)).unwrap();
    }

    fn places(&self) -> [NetNs; 2] {
        [self.fixture.client.netns().clone(), self.fixture.node.netns().clone()]
    }

    /// Connections that no kill may end: to all that both states serve, from a pod and from the node itself.
    fn hold(&mut self) {
        for netns in self.places() {
            for to in self.manifest(0).services[..2].iter().flat_map(|service| service.frontends(Protocol::Tcp)) {
                let mut stream = Stream::connect(&netns, to).unwrap();
                let server = stream.ask("hold").unwrap().server;
                self.held.push((stream, server));
            }
        }
    }

    fn check_held(&mut self, at: &str) {
        for (stream, server) in &mut self.held {
            let answer = stream.ask("still").unwrap_or_else(|error| panic!("{at}: a connection to {server}: {error}"));
            assert_eq!(&answer.server, server, "{at}: a connection moved");
        }
    }

    /// What a client may notice after the agent was killed on its way between states.
    fn check(&mut self, at: &str, sets_of: impl Fn(&str) -> Sets) {
        self.check_held(at);
        let services: BTreeSet<(&str, u8)> = STATES.concat().iter().map(|(name, last, _)| (*name, *last)).collect();
        for (name, last) in services {
            let sets = sets_of(name);
            let service = Service::standard(name, last, Vec::new());
            for netns in self.places() {
                for to in service.frontends(Protocol::Tcp) {
                    check_frontend(at, &sets, to, |limit| {
                        Ok(Stream::connect_from(&netns, 0, to, limit)?.ask("new")?.server)
                    });
                }
                for to in service.frontends(Protocol::Udp) {
                    check_frontend(at, &sets, to, |limit| {
                        let socket = Datagrams::connected(&netns, 0, to)?;
                        socket.set_patience(limit)?;
                        Ok(socket.ask("new")?.server)
                    });
                }
            }
        }
    }

    /// After a start: the tables and links of an agent that nothing happened to.
    fn check_converged(&self, at: &str, state: usize, links: &BTreeSet<String>) {
        let wanted = self.manifest(state).states();
        eventually(&format!("{at}: the tables hold what is wanted"), SOON, || {
            let mut shown = self.agent.states().ok()?;
            shown.retain(|(_, _, state)| state != "draining" && state != "gone");
            (shown == wanted).then_some(())
        });
        let audit = self.agent.cli(&["audit", "--dry-run"]).unwrap();
        assert!(audit.status.success(), "{at}: {}", String::from_utf8_lossy(&audit.stdout));
        assert_eq!(&self.links(), links, "{at}: other links than at first");
    }

    /// Every pinned link.
    fn links(&self) -> BTreeSet<String> {
        let all = std::fs::read_dir(self.fixture.node.bpffs().join("ballast/attachments")).unwrap();
        all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Starts it, and waits until it is ready, or killed at its step.
    fn start(&mut self, kill_at: Option<&Step>) -> Stepped {
        let stepped = self.agent.launch_stepped(kill_at.cloned()).unwrap();
        eventually("the agent is ready, or killed at its step", START, || {
            (!stepped.is_alive() || self.agent.is_ready()).then_some(())
        });
        assert!(stepped.is_alive() || kill_at.is_some(), "the agent ended by itself:\n{}", self.agent.log());
        stepped
    }

    /// Changes to this state, and waits until it is done, or the agent was killed at its step.
    fn change(&self, running: &Stepped, state: usize, kill_at: Option<&Step>) {
        running.kill_at(kill_at.cloned());
        self.write(state);
        let wanted = self.manifest(state).states();
        eventually("the change is done, or the agent killed at its step", SOON, || {
            let mut shown = self.agent.states().ok()?;
            shown.retain(|(_, _, state)| state != "draining" && state != "gone");
            (!running.is_alive() || shown == wanted).then_some(())
        });
    }
}

/// All answers are of one state's servers; where both states serve, there are answers.
fn check_frontend(at: &str, sets: &Sets, to: SocketAddr, ask: impl Fn(Duration) -> std::io::Result<String>) {
    if let [Some(old), Some(new)] = sets {
        let ask = || ask(PATIENCE).unwrap_or_else(|error| panic!("{at}: {to}: {error}"));
        let seen: BTreeSet<String> = (0..TRIES).map(|_| ask()).collect();
        assert!(seen.is_subset(old) || seen.is_subset(new), "{at}: {to}: a mix of both states: {seen:?}");
    } else if let Ok(server) = ask(BRIEFLY) {
        assert!(sets.iter().flatten().any(|set| set.contains(&server)), "{at}: {to}: misdelivered to {server}");
    }
}

fn sets_of(name: &str) -> Sets {
    STATES.map(|state| {
        let service = state.iter().find(|(of, ..)| *of == name)?;
        Some(service.2.iter().map(|index| format!("b{index}")).collect())
    })
}

/// Before an agent was ever ready, each service is served, or not.
fn maybe_first_state(name: &str) -> Sets {
    let [first, _] = sets_of(name);
    [first, None]
}

/// Which steps the agent is killed at.
struct Choice {
    asked: String,
    random: Random,
}

impl Choice {
    fn new() -> Self {
        let asked = std::env::var("BALLAST_STEPS").unwrap_or_else(|_| lb_seed::short_or_long("", "all").to_owned());
        Self { asked, random: Random::new(lb_seed::of_run()) }
    }

    /// Every step, or those that are asked for, with this word before them; `None`: the lot decides.
    fn asked(&self, word: &str, all: &[Step]) -> Option<Vec<Step>> {
        match self.asked.as_str() {
            "" => None,
            "all" => Some(all.to_vec()),
            named => {
                let named = named.split(',').filter_map(|part| part.trim().strip_prefix(word));
                Some(named.map(|step| step.trim().parse().unwrap()).collect())
            }
        }
    }

    /// One of the steps that begin so. All kinds are alike, however many there are of each.
    fn one(&mut self, all: &[Step], begins: &[&str]) -> Step {
        let fits = |step: &&Step| begins.iter().any(|begin| step.what.starts_with(begin));
        let kinds: BTreeSet<&str> = all.iter().filter(fits).map(|step| step.what.as_str()).collect();
        let kind = *self.random.of(&kinds.into_iter().collect::<Vec<_>>());
        let alike: Vec<&Step> = all.iter().filter(|step| step.what == kind).collect();
        (*self.random.of(&alike)).clone()
    }
}

/// What writes tables, what attaches, and anything.
const TABLES: &[&str] = &["update", "delete"];
const LINKS: &[&str] = &["attach", "pin link", "replace"];
const ANY: &[&str] = &[""];

/// The agent is killed at so many steps at most.
const TRIED_MAX: usize = 24;

/// Where a change and the start after it are killed, each alone or both.
fn kills(choice: &mut Choice, changes: &[Step], starts: &[Step]) -> Vec<[Option<Step>; 2]> {
    let alone = |change: Step| [Some(change), None];
    match (choice.asked("change", changes), choice.asked("start", starts)) {
        (Some(changes), Some(starts)) => {
            changes.into_iter().map(alone).chain(starts.into_iter().map(|start| [None, Some(start)])).collect()
        }
        _ => vec![
            [Some(choice.one(changes, ANY)), None],
            [None, Some(choice.one(starts, TABLES))],
            [Some(choice.one(changes, TABLES)), Some(choice.one(starts, LINKS))],
            [Some(choice.one(changes, TABLES)), Some(choice.one(starts, ANY))],
        ],
    }
}

#[test]
fn a_start_or_a_change_that_is_killed_leaves_one_of_both_states_and_the_next_start_converges() {
    let mut scene = Scene::new("killed");
    scene.write(0);
    scene.agent.restart().unwrap();
    scene.hold();
    let links = scene.links();
    scene.agent.kill();
    // A whole start and a whole change show the steps.
    scene.write(1);
    let mut running = scene.start(None);
    scene.check_converged("a whole start", 1, &links);
    let starts = running.steps();
    scene.change(&running, 0, None);
    let (changes, mut state) = (running.steps(), 0);
    let mut choice = Choice::new();
    let mut kills = VecDeque::from(kills(&mut choice, &changes, &starts));
    let (mut tried, mut reached) = (0, 0);
    while let Some([change, start]) = kills.pop_front() {
        state = 1 - state;
        if let Some(step) = change {
            scene.change(&running, state, Some(&step));
            tried += 1;
            reached += usize::from(running.end().unwrap());
            scene.check(&format!("change killed at `{step}`"), sets_of);
        } else {
            running.end().unwrap();
            scene.write(state);
        }
        if let Some(step) = start {
            tried += 1;
            reached += usize::from(scene.start(Some(&step)).end().unwrap());
            scene.check(&format!("start killed at `{step}`"), sets_of);
        }
        running = scene.start(None);
        scene.check_converged("the next start", state, &links);
        scene.check_held("after the next start");
        // Some steps depend on time, as what the sweep takes out: others follow until most have come again.
        if kills.is_empty() && choice.asked.is_empty() && reached * 2 <= tried && tried < TRIED_MAX {
            kills.push_back([Some(choice.one(&changes, TABLES)), None]);
        }
    }
    assert!(reached * 2 > tried, "of {tried} steps {reached} came again");
}

#[test]
fn a_first_start_that_is_killed_is_finished_by_the_next() {
    let mut scene = Scene::new("killedfirst");
    scene.write(0);
    let whole = scene.start(None);
    scene.check_converged("a whole start", 0, &scene.links());
    let (steps, links) = (whole.steps(), scene.links());
    whole.end().unwrap();
    let mut choice = Choice::new();
    let chains: Vec<Vec<Step>> = match choice.asked("first", &steps) {
        Some(steps) => steps.into_iter().map(|step| vec![step]).collect(),
        None => vec![[&["make", "pin map"], TABLES, LINKS].map(|begins| choice.one(&steps, begins)).to_vec()],
    };
    for chain in chains {
        assert!(scene.agent.cli(&["cleanup"]).unwrap().status.success());
        for step in chain {
            scene.start(Some(&step)).end().unwrap();
            scene.check(&format!("first start killed at `{step}`"), maybe_first_state);
        }
        let running = scene.start(None);
        scene.check_converged("the next start", 0, &links);
        scene.hold();
        scene.check_held("after the next start");
        scene.held.clear();
        running.end().unwrap();
    }
}
