//! Five thousand agents and one API server that goes away, freezes, or cuts all watches: how many requests come in each second.
//!
//! The agents are the real state machine, in virtual time.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use super::{super::calls::Page, *};
use lb_objects::lean::Service;

const AGENTS: u64 = 5_000;
/// Services, slices, and the own Node, which is probed more rarely.
const PATIENCE: [u32; 3] = [1, 1, 5];
/// All agents are there and watch before the time that is shown.
const START: u64 = 150;
/// What happens, happens after a minute; an outage lasts five.
const FAULT: u64 = 60;
const RETURN: u64 = 360;
const END: u64 = 540;
const SECOND: u64 = 1_000_000;
/// How long an answer takes, in microseconds. Every probe brings a bookmark: with so many agents, one of them has always asked
/// what the store holds a moment ago, so the server knows how far it is.
const LATENCY: u64 = 20_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Every watch is cut at once, the API is well.
    AllCut,
    /// Every connection is cut, then refused; the server that comes back knows no old version.
    Away,
    /// It accepts and answers nothing; later it goes on as if nothing had been.
    Frozen,
}

/// What comes next, in order of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Tick,
    Opened(u8, u32),
    Bookmark(u8, u32),
    Ended(u8, u32),
    Refused(u8, u32),
    Gone(u8, u32),
    Page(u8, u32),
}

struct Agent {
    watcher: Watcher<Service>,
    /// Counts what was asked on each call, so that the answer to an older question is not taken.
    asked: [u32; 3],
    open: [bool; 3],
    /// The earliest tick that is queued.
    tick: u64,
}

struct Simulation {
    fault: Fault,
    begin: Instant,
    now: u64,
    agents: Vec<Agent>,
    queue: BinaryHeap<Reverse<(u64, usize, Next)>>,
    per_second: BTreeMap<u64, u64>,
}

fn number(call: Call) -> u8 {
    match call {
        Call::Watch => 0,
        Call::Probe => 1,
        Call::List => 2,
    }
}

fn call(number: u8) -> Call {
    [Call::Watch, Call::Probe, Call::List][usize::from(number)]
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap()
}

impl Simulation {
    fn new(fault: Fault, first: u64) -> Self {
        let begin = Instant::now();
        let mut queue = BinaryHeap::new();
        let mut agents = Vec::new();
        for agent in 0..AGENTS {
            for (resource, patience) in PATIENCE.into_iter().enumerate() {
                let settings = WatchSettings {
                    patience,
                    silence: bounds::SILENCE,
                    compare_interval: Some(bounds::COMPARE_INTERVAL),
                    expected_objects: 0,
                    may_be_unknown: false,
                };
                // Nodes come up over a minute and a half.
                let start = agent * 90 * SECOND / AGENTS;
                let seed = first + agent * 3 + resource as u64;
                let watcher = Watcher::new(settings, seed, begin + Duration::from_micros(start));
                queue.push(Reverse((start, agents.len(), Next::Tick)));
                agents.push(Agent { watcher, asked: [0; 3], open: [false; 3], tick: start });
            }
        }
        Self { fault, begin, now: 0, agents, queue, per_second: BTreeMap::new() }
    }

    /// Seconds of the picture.
    fn second(&self) -> Option<u64> {
        (self.now / SECOND).checked_sub(START)
    }

    fn is_faulty(&self) -> bool {
        self.fault != Fault::AllCut && self.second().is_some_and(|second| (FAULT..RETURN).contains(&second))
    }

    fn run(&mut self) {
        let (mut cut, mut returned) = (false, false);
        while let Some(Reverse((at, index, next))) = self.queue.pop() {
            self.now = at;
            if at >= (START + END) * SECOND {
                break;
            }
            if !cut && at >= (START + FAULT) * SECOND {
                cut = true;
                self.cut();
            }
            if !returned && at >= (START + RETURN) * SECOND + micros(bounds::FOUND_LIMIT) {
                returned = true;
                self.assert_reached();
            }
            self.step(index, next);
        }
    }

    /// No resource, the own Node neither, waits to be asked for after the API is back: readiness waits for each.
    fn assert_reached(&self) {
        let failing = self.agents.iter().filter(|agent| agent.watcher.status().last_error.is_some()).count();
        assert_eq!(failing, 0, "{:?}: resources not followed again within {:?}", self.fault, bounds::FOUND_LIMIT);
    }

    /// All watches at one moment.
    fn cut(&mut self) {
        if self.fault == Fault::Frozen {
            return;
        }
        for index in 0..self.agents.len() {
            for number in 0..2 {
                if self.agents[index].open[usize::from(number)] {
                    self.receive(index, number, Received::Failed(Failure::without_status("reset")));
                }
            }
        }
    }

    fn step(&mut self, index: usize, next: Next) {
        let (number, asked) = match next {
            Next::Tick => {
                let now = self.begin + Duration::from_micros(self.now);
                let agent = &mut self.agents[index];
                agent.tick = u64::MAX;
                let effects = if agent.watcher.due() <= now { agent.watcher.tick(now) } else { Vec::new() };
                self.perform(index, effects);
                return;
            }
            Next::Opened(number, asked)
            | Next::Bookmark(number, asked)
            | Next::Ended(number, asked)
            | Next::Refused(number, asked)
            | Next::Gone(number, asked)
            | Next::Page(number, asked) => (number, asked),
        };
        let agent = &self.agents[index];
        if agent.asked[usize::from(number)] != asked || !agent.open[usize::from(number)] {
            return;
        }
        if self.is_faulty() && self.fault == Fault::Frozen {
            // It comes when the server goes on.
            self.queue.push(Reverse(((START + RETURN) * SECOND + LATENCY, index, next)));
            return;
        }
        let version = (self.now / SECOND + 1).to_string();
        let received = match next {
            Next::Tick => return,
            Next::Opened(..) => Received::Opened,
            Next::Bookmark(..) => Received::Bookmark(Version::parse(Some(&version))),
            Next::Ended(..) => Received::Ended,
            Next::Refused(..) => Received::Failed(Failure::without_status("refused")),
            Next::Gone(..) => Received::Failed(Failure { status: Some(410), ..Failure::without_status("gone") }),
            Next::Page(..) => Received::Page(Page {
                items: Vec::new(),
                version: Version::parse(Some(&version)),
                token: None,
                bytes: 0,
            }),
        };
        self.receive(index, number, received);
    }

    fn receive(&mut self, index: usize, number: u8, received: Received<Service>) {
        if matches!(received, Received::Ended | Received::Failed(_) | Received::Page(_)) {
            self.agents[index].open[usize::from(number)] = false;
        }
        let now = self.begin + Duration::from_micros(self.now);
        let effects = self.agents[index].watcher.receive(call(number), received, now);
        self.perform(index, effects);
    }

    fn perform(&mut self, index: usize, effects: Vec<Effect<Service>>) {
        for effect in effects {
            match effect {
                Effect::Watch { call, version, seconds } => self.watch(index, number(call), &version, seconds),
                Effect::List { .. } => {
                    let asked = self.ask(index, 2);
                    let next = if self.refuses() { Next::Refused(2, asked) } else { Next::Page(2, asked) };
                    self.queue.push(Reverse((self.now + LATENCY, index, next)));
                }
                Effect::CheckVersion => {
                    let asked = self.ask(index, 1);
                    self.queue.push(Reverse((self.now + LATENCY, index, Next::Page(1, asked))));
                }
                Effect::Close(call) => self.agents[index].open[usize::from(number(call))] = false,
                Effect::Promote => {
                    // What is under way on the probe is not followed any more: the watch that follows it comes at its end.
                    let agent = &mut self.agents[index];
                    agent.open[1] = false;
                    let asked = self.begin_call(index, 0);
                    let end = self.now + u64::from(bounds::PROBE_SECONDS) * SECOND;
                    let next = if self.refuses() { Next::Refused(0, asked) } else { Next::Ended(0, asked) };
                    self.queue.push(Reverse((end, index, next)));
                    if !self.refuses() {
                        self.queue.push(Reverse((end - 2 * SECOND, index, Next::Bookmark(0, asked))));
                    }
                }
                Effect::WentBack | Effect::Emit(_) => {}
            }
        }
        let due = micros(self.agents[index].watcher.due().saturating_duration_since(self.begin)).max(self.now);
        let agent = &mut self.agents[index];
        if due < agent.tick {
            agent.tick = due;
            self.queue.push(Reverse((due, index, Next::Tick)));
        }
    }

    fn refuses(&self) -> bool {
        self.fault == Fault::Away && self.is_faulty()
    }

    fn begin_call(&mut self, index: usize, number: u8) -> u32 {
        let agent = &mut self.agents[index];
        let number = usize::from(number);
        agent.asked[number] += 1;
        agent.open[number] = true;
        agent.asked[number]
    }

    /// A request, counted.
    fn ask(&mut self, index: usize, number: u8) -> u32 {
        if let Some(second) = self.second() {
            *self.per_second.entry(second).or_default() += 1;
        }
        self.begin_call(index, number)
    }

    fn watch(&mut self, index: usize, number: u8, version: &Version, seconds: u32) {
        let asked = self.ask(index, number);
        let opened = self.now + LATENCY;
        let end = opened + u64::from(seconds) * SECOND;
        let mut plan = |at, next| self.queue.push(Reverse((at, index, next)));
        let is_back = self.now >= (START + RETURN) * SECOND;
        let is_old = *version < Version::Number(START + RETURN);
        if self.fault == Fault::Away && self.now >= (START + FAULT) * SECOND && !is_back {
            plan(opened, Next::Refused(number, asked));
        } else if self.fault == Fault::Away && is_back && is_old {
            plan(opened, Next::Gone(number, asked));
        } else {
            plan(opened, Next::Opened(number, asked));
            let mut bookmark = opened + 60 * SECOND;
            while bookmark < end - 2 * SECOND {
                plan(bookmark, Next::Bookmark(number, asked));
                bookmark += 60 * SECOND;
            }
            plan(end - 2 * SECOND, Next::Bookmark(number, asked));
            plan(end, Next::Ended(number, asked));
        }
    }

    /// The oldest proof of services and slices now, in seconds.
    fn oldest_proof(&self) -> f64 {
        let now = self.begin + Duration::from_micros(self.now);
        let shown = self.agents.iter().enumerate().filter(|(index, _)| index % PATIENCE.len() < 2);
        let ages = shown.map(|(_, agent)| {
            let proof = agent.watcher.status().proof.expect("listed");
            now.saturating_duration_since(proof.at).as_secs_f64()
        });
        ages.fold(0.0, f64::max)
    }
}

/// One fault lived through.
struct Run {
    per_second: Vec<u64>,
}

impl Run {
    fn of(fault: Fault, title: &'static str, first: u64) -> Self {
        let mut simulation = Simulation::new(fault, first);
        simulation.run();
        assert!(
            simulation.oldest_proof() <= bounds::FOUND_LIMIT.as_secs_f64(),
            "{title}: {} s",
            simulation.oldest_proof()
        );
        let restarts = simulation.agents.iter().map(|agent| agent.watcher.status().wedged_since.is_some());
        assert!(!restarts.into_iter().any(|is_wedged| is_wedged), "{title}: nobody's own fault");
        let per_second = (0..END).map(|second| simulation.per_second.get(&second).copied().unwrap_or(0)).collect();
        Self { per_second }
    }

    fn mean(&self, from: u64, to: u64) -> u64 {
        let seconds = &self.per_second[usize::try_from(from).unwrap()..usize::try_from(to).unwrap()];
        seconds.iter().sum::<u64>() / (to - from)
    }

    fn peak(&self, from: u64, to: u64) -> u64 {
        let seconds = &self.per_second[usize::try_from(from).unwrap()..usize::try_from(to).unwrap()];
        seconds.iter().copied().max().unwrap_or(0)
    }
}

const FAULTS: [(Fault, &str); 3] = [
    (Fault::AllCut, "All watches are cut at once; the API is well"),
    (Fault::Away, "The API is away for five minutes and comes back without a memory"),
    (Fault::Frozen, "The API is frozen for five minutes"),
];

/// A fault, with agents of seeds from this one on.
fn live_through((fault, title): (Fault, &'static str), first: u64) {
    let run = Run::of(fault, title, first);
    let (quiet, peak) = (run.mean(0, FAULT), run.peak(FAULT, END));
    println!("{title}: {quiet}/s before, at most {peak}/s, {}/s at the end", run.mean(END - 60, END));
    // Each agent follows three resources.
    assert!(quiet <= AGENTS / 10, "{quiet} requests a second in a quiet cluster");
    assert!(peak <= AGENTS / 2, "{peak} requests in a second");
}

/// One of the faults, by the lot of the seed.
#[tokio::test(start_paused = true)]
async fn five_thousand_agents_do_not_stampede() {
    let seed = lb_seed::of_run();
    live_through(FAULTS[usize::try_from(seed % 3).unwrap()], seed);
}
