//! The network between clients and pods: loses, doubles, delays and so reorders; every packet passes the hooks.

use std::collections::{BTreeMap, HashMap};

use super::agent::{Agent, VIPS};
use super::client::{self, Connection, Plan, State};
use super::pod::{self, Mode, Pod};
use super::segment::{Dice, End, Segment};
use super::watch::{Story, Watch};
use lb_common::plain::Memory;

/// Two clients: ejection needs the evidence of both.
pub const CLIENTS: [[u8; 4]; 2] = [[10, 0, 1, 2], [10, 0, 1, 3]];

/// How the network treats packets.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// Of each stretch of the way, in percent.
    pub loss: u8,
    pub double: u8,
    /// So many percent are late by up to so many milliseconds.
    pub late: u8,
    pub late_ms: u64,
    /// The client's link has no program: a catch-all hook serves it, and sees no answers before their pods' own links do.
    pub catch_all: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// The pod leaves all slices; its flows end after so many milliseconds.
    Drain(usize, u64),
    Rest(usize, bool),
    /// Another pod has the address.
    Replace(usize),
    Mode(usize, Mode),
    /// A new pod behind the services.
    Add(Mode),
}

#[derive(Clone, Copy)]
pub(super) enum Event {
    Start(Plan),
    Act(Act),
    AtClientsHook(Segment),
    AtPod(Segment),
    AtAnswersHook(Segment),
    AtClient(Segment),
    ClientTimer(usize, u64),
    PodTimer(usize, End, usize),
    /// The agent notices that a drain is over.
    Sweep(usize),
}

pub struct Simulation {
    pub tables: Memory,
    pub agent: Agent,
    pub pods: Vec<Pod>,
    pub connections: Vec<Connection>,
    pub watch: Watch,
    pub(super) network: Network,
    start_ms: u64,
    pub(super) now_ms: u64,
    queue: BTreeMap<(u64, u64), Event>,
    serial: u64,
    dice: Dice,
    /// Which pod has an address.
    pub(super) places: HashMap<End, usize>,
    /// Which connection has a tuple of the client's.
    pub(super) current: HashMap<(End, End), usize>,
}

impl Simulation {
    pub fn new(network: Network, seed: u64, flags: u8, affinity_timeout_s: u32) -> Self {
        let tables = Memory { seed: seed as u32, ..Memory::default() };
        let start_ms = tables.now_ns / 1_000_000;
        Self {
            tables,
            agent: Agent { flags, affinity_timeout_s, ..Agent::default() },
            pods: Vec::new(),
            connections: Vec::new(),
            watch: Watch::default(),
            network,
            start_ms,
            now_ms: start_ms,
            queue: BTreeMap::new(),
            serial: 0,
            dice: Dice(seed),
            places: HashMap::new(),
            current: HashMap::new(),
        }
    }

    pub fn add_pod(&mut self, mode: Mode) -> usize {
        let host = u8::try_from(self.pods.len() % 250).unwrap() + 1;
        self.place(([10, 0, 2, host], 8080), mode)
    }

    fn place(&mut self, address: End, mode: Mode) -> usize {
        let number = self.pods.len();
        self.pods.push(Pod::new(address, mode, self.dice.word()));
        self.places.insert(address, number);
        self.agent.add(&mut self.tables, number, address);
        number
    }

    pub fn plan(&mut self, plan: Plan) {
        self.at(self.start_ms + plan.start_ms, Event::Start(plan));
    }

    pub fn act(&mut self, at_ms: u64, act: Act) {
        self.at(self.start_ms + at_ms, Event::Act(act));
    }

    /// Milliseconds since the beginning.
    pub fn age_ms(&self) -> u64 {
        self.now_ms - self.start_ms
    }

    /// Until nothing happens any more, something is wrong, or so much time has passed.
    pub fn run(&mut self, most_ms: u64) -> Result<(), String> {
        while let Some(((at, _), event)) = self.queue.pop_first() {
            if at > self.start_ms + most_ms {
                break;
            }
            self.now_ms = at;
            self.tables.now_ns = at * 1_000_000;
            self.happen(event);
            if let Some(wrong) = self.watch.wrong.take() {
                return Err(format!("after {} ms: {wrong}", self.age_ms()));
            }
        }
        Ok(())
    }

    fn at(&mut self, time_ms: u64, event: Event) {
        self.serial += 1;
        self.queue.insert((time_ms, self.serial), event);
    }

    /// One stretch of the way.
    pub(super) fn send(&mut self, event: Event, extra_ms: u64) {
        let Network { loss, double, late, late_ms, .. } = self.network;
        for _ in 0..=u64::from(self.dice.percent(double)) {
            if self.dice.percent(loss) {
                continue;
            }
            let late = if self.dice.percent(late) { self.dice.below(late_ms + 1) } else { 0 };
            let delay = 1 + self.dice.below(3) + late + extra_ms;
            self.at(self.now_ms + delay, event);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Start(plan) => self.start(plan),
            Event::Act(act) => self.change(act),
            Event::Sweep(pod) => self.agent.remove(&mut self.tables, pod),
            Event::AtClientsHook(segment) => self.request(segment),
            Event::AtAnswersHook(segment) => self.answer(segment),
            Event::AtPod(segment) => {
                let Some(&pod) = self.places.get(&segment.dst) else { return };
                let deeds = self.pods[pod].receive(pod, &segment);
                self.carry_out_pods(pod, deeds);
            }
            Event::AtClient(segment) => {
                let Some(&number) = self.current.get(&(segment.dst, segment.src)) else {
                    // No socket there.
                    if let Some(reset) = segment.reset() {
                        self.send(Event::AtClientsHook(Segment { pod: None, peer: None, ..reset }), 0);
                    }
                    return;
                };
                let deeds = self.connections[number].receive(number, &segment, self.now_ms);
                self.carry_out_clients(number, deeds);
            }
            Event::ClientTimer(number, timer) => {
                let deeds = self.connections[number].strike(number, timer);
                self.carry_out_clients(number, deeds);
            }
            Event::PodTimer(pod, client, connection) => {
                let deeds = self.pods[pod].strike(client, connection);
                self.carry_out_pods(pod, deeds);
            }
        }
    }

    fn start(&mut self, plan: Plan) {
        let (client, service) = ((CLIENTS[usize::from(plan.port % 2)], plan.port), VIPS[plan.vip]);
        let number = self.connections.len();
        if let Some(&before) = self.current.get(&(client, service))
            && self.connections[before].is_held()
        {
            return; // The port is in use.
        }
        let isn = self.dice.word();
        self.connections.push(Connection::new(plan, client, service, isn));
        self.watch.stories.push(Story::default());
        self.current.insert((client, service), number);
        let deeds = self.connections[number].open(number);
        self.carry_out_clients(number, deeds);
    }

    fn change(&mut self, act: Act) {
        let count = self.pods.len();
        match act {
            Act::Drain(pod, period_ms) if pod < count => {
                // The tables know tenths of a second.
                let deadline_ms = (self.now_ms + period_ms) / 100 * 100;
                self.agent.drain(&mut self.tables, pod, deadline_ms);
                let noticed = self.now_ms + period_ms + 200 + self.dice.below(5_000);
                self.at(noticed, Event::Sweep(pod));
            }
            Act::Rest(pod, rests) if pod < count => self.agent.rest(&mut self.tables, pod, rests),
            Act::Replace(pod) if pod < count => {
                let address = self.pods[pod].address;
                if self.places[&address] == pod {
                    self.agent.remove(&mut self.tables, pod);
                    self.place(address, Mode::Live);
                }
            }
            Act::Mode(pod, mode) if pod < count => self.pods[pod].mode = mode,
            Act::Add(mode) => _ = self.add_pod(mode),
            _ => {}
        }
    }

    fn carry_out_clients(&mut self, number: usize, deeds: client::Deeds) {
        for segment in deeds.sent {
            self.send(Event::AtClientsHook(segment), 0);
        }
        if let Some((delay_ms, timer)) = deeds.timer {
            self.at(self.now_ms + delay_ms, Event::ClientTimer(number, timer));
        }
    }

    fn carry_out_pods(&mut self, pod: usize, deeds: pod::Deeds) {
        if let Some((accepted, segment)) = deeds.took {
            self.watch.took(accepted, &segment);
        }
        let slow = if let Mode::Slow(slow_ms) = self.pods[pod].mode { slow_ms } else { 0 };
        for segment in deeds.sent {
            self.send(Event::AtAnswersHook(segment), slow);
        }
        if let Some((delay_ms, client, connection)) = deeds.timer {
            self.at(self.now_ms + delay_ms, Event::PodTimer(pod, client, connection));
        }
    }

    /// Connections that the client still holds open to a pod whose deadline has passed.
    pub fn undead(&self) -> Vec<usize> {
        let open = |connection: &Connection| matches!(connection.state, State::Open | State::Finishing);
        let gone = |connection: &Connection| {
            connection.peer.is_some_and(|pod| !self.agent.keeps_pod(pod, connection.service, self.now_ms))
        };
        (0..self.connections.len()).filter(|&at| open(&self.connections[at]) && gone(&self.connections[at])).collect()
    }
}
