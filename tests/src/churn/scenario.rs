//! The scenario of incident A: a service whose backends come and go, held connections, load, and an agent that is killed at random.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::server::Server;
use super::{Drains, Held, HeldConnections, Packets, Seen, TableReader, now_ns, objects};
use crate::agent::Agent;
use crate::cluster::stub::StubApi;
use crate::incident::{BackendPool, Failure, Load};
use crate::random::Random;
use crate::topology::{Node, Pod, Topology};

/// The service's address.
pub const CLUSTER_IP: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
/// The service's name.
const NAME: &str = "churned";
/// How long the agent may take to follow. Generous: a test machine may be busy.
const FOLLOW_LIMIT: Duration = Duration::from_mins(2);
/// At most so long the agent lives, and is dead, in a churn: milliseconds.
const LIVES_MS: u64 = 3_500;
const IS_DEAD_MS: u64 = 1_500;

/// The tables are read more often than this.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// What may differ.
#[derive(Clone, Debug)]
pub struct ScenarioSettings {
    pub seed: u64,
    /// Backends, and how many of them never go.
    pub backends: u8,
    pub kept: u8,
    pub drain_period: Duration,
    /// Connections that are held.
    pub holders: usize,
    /// More flags of the agent.
    pub flags: Vec<String>,
}

impl Default for ScenarioSettings {
    fn default() -> Self {
        Self {
            seed: 1,
            backends: 40,
            kept: 4,
            drain_period: Duration::from_secs(2),
            holders: 60,
            flags: vec!["--map-sizes=backends=8192,slots=65536".into(), "--flow-timeouts=closing=2s".into()],
        }
    }
}

/// All of it. Fields in the order in which they must end.
pub struct Scenario {
    load: Option<Load>,
    holders: Option<HeldConnections>,
    pub tables: TableReader,
    pub packets: Arc<Packets>,
    pub agent: Agent,
    pub api: StubApi,
    _server: Server,
    pool: BackendPool,
    pub client: Pod,
    pub node: Node,
    _topology: Topology,
    settings: ScenarioSettings,
    random: Random,
    /// By number: which pod of its address it is; `None`: it is gone.
    pods: Vec<Option<u64>>,
    next_pod: u64,
    changes: u64,
    kills: u64,
    in_use_at_start: usize,
    is_known_ready: bool,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Churned {
    pub changes: u64,
    /// How often the agent was killed.
    pub kills: u64,
    pub log_lines: usize,
    pub seen: Seen,
    pub drains: Drains,
    pub held: Held,
    /// Connections of the load: made, and failed.
    pub load: (u64, u64),
    /// Records of backends in use before and after.
    pub in_use: [usize; 2],
}

impl Scenario {
    /// Everything runs and is watched, and nothing changes yet.
    pub fn new(subject: &str, settings: ScenarioSettings) -> Result<Self> {
        let topology = Topology::new(subject)?;
        let node = topology.node()?;
        let client = node.pod("client")?;
        let pool = BackendPool::without_server(&node, settings.backends)?;
        let server = Server::start(pool.netns())?;
        let api = StubApi::start(Some(node.namespace().netns()), Ipv4Addr::LOCALHOST.into())?;
        api.put(objects::service(NAME, CLUSTER_IP));
        let source = ["--source=kube".to_owned(), format!("--api-server={}", api.url())];
        let all_end = "--drain-max=0s".to_owned();
        let drain = format!("--drain-period={}s", settings.drain_period.as_secs());
        let flags: Vec<&str> =
            source.iter().chain([&drain, &all_end]).chain(&settings.flags).map(String::as_str).collect();
        let mut agent = Agent::prepare(&node, &flags)?;
        let pods: Vec<Option<u64>> = (0..settings.backends).map(|_| Some(0)).collect();
        api.put(slice_of(&pods));
        agent.restart()?;
        let packets = Arc::new(Packets::watch(pool.netns())?);
        let tables = TableReader::watch(node.bpffs(), &packets)?;
        let random = Random::new(settings.seed);
        let mut this = Self {
            load: None,
            holders: None,
            tables,
            packets,
            agent,
            api,
            _server: server,
            pool,
            client,
            node,
            _topology: topology,
            settings,
            random,
            pods,
            next_pod: 1,
            changes: 0,
            kills: 0,
            in_use_at_start: 0,
            is_known_ready: true,
        };
        this.wait("the tables hold all backends", Self::is_complete)?;
        this.in_use_at_start = this.tables.drains().in_use;
        let to = SocketAddr::new(CLUSTER_IP.into(), 80);
        this.holders = Some(HeldConnections::start(this.client.netns(), to, this.settings.holders));
        this.load = Some(Load::start(this.client.netns(), to));
        Ok(this)
    }

    /// Changes, pauses, and deaths of the agent, all at random, for so long. However slow the machine is, the agent dies every few seconds.
    pub fn churn(&mut self, duration: Duration) -> Result<()> {
        self.churn_until(duration, |_| true)
    }

    /// The same until enough has happened, and at least for so long.
    pub fn churn_until(&mut self, duration: Duration, is_enough: impl Fn(&Self) -> bool) -> Result<()> {
        let start = Instant::now();
        let (mut dies, mut rises) = self.next_death(Duration::ZERO);
        while start.elapsed() < duration || !is_enough(self) {
            ensure!(start.elapsed() < duration + FOLLOW_LIMIT, "too little happened within {:?}", start.elapsed());
            self.change()?;
            self.look_at_agent();
            if start.elapsed() >= dies && self.agent.alive() {
                self.kill();
            } else if start.elapsed() >= rises {
                self.start()?;
                (dies, rises) = self.next_death(rises);
            }
            std::thread::sleep(Duration::from_millis(20 + self.random.any() % 150));
        }
        Ok(())
    }

    /// When the agent dies next, and when it is started again.
    fn next_death(&mut self, now: Duration) -> (Duration, Duration) {
        let mut at_most = |ms| Duration::from_millis(self.random.any() % ms);
        let dies = now + at_most(LIVES_MS);
        (dies, dies + at_most(IS_DEAD_MS))
    }

    /// Some backends go without a word; or some that had their time come back as other pods.
    pub fn change(&mut self) -> Result<()> {
        let goes = self.random.one_in(2);
        let chosen: Vec<u8> = (0..=self.random.below(3)).filter_map(|_| self.choose(goes)).collect();
        for number in chosen {
            // A pod may have been chosen twice.
            match (goes, self.pods[usize::from(number)]) {
                (true, Some(_)) => self.goes(number)?,
                (false, None) => self.returns(number)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// SIGKILL, if it runs.
    pub fn kill(&mut self) {
        if self.agent.alive() {
            self.tables.agent_is(false);
            self.is_known_ready = false;
            self.agent.kill();
            self.kills += 1;
        }
    }

    /// Starts the agent anew, if it does not run.
    pub fn start(&mut self) -> Result<()> {
        if !self.agent.alive() {
            self.agent.launch()?;
            self.is_known_ready = false;
        }
        Ok(())
    }

    /// Everything comes back, and comes to rest: all backends as in the beginning, no drain, no connection, no id in use more.
    pub fn end(&mut self) -> Result<Churned> {
        let churned = self.settle()?;
        let at_start = self.in_use_at_start;
        self.wait("all ids are free again", |this| this.tables.drains().in_use == at_start)?;
        let drains = self.tables.drains();
        let in_use = [at_start, drains.in_use];
        Ok(Churned { in_use, drains, log_lines: self.agent.log().lines().count(), ..churned })
    }

    /// Ends as [`Self::end`] does, but without the ids: those rest until nothing in the tables names them.
    pub fn settle(&mut self) -> Result<Churned> {
        self.start()?;
        let start = Instant::now();
        while let Some(number) = (0..self.settings.backends).find(|number| self.pods[usize::from(*number)].is_none()) {
            self.look_at_agent();
            if self.tables.is_past(BackendPool::address(number)) {
                self.returns(number)?;
            } else {
                ensure!(
                    start.elapsed() < FOLLOW_LIMIT,
                    "{number} never drained: {:?}\n{}",
                    self.tables.drains(),
                    self.agent.log()
                );
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        self.wait("the tables hold all backends again", Self::is_complete)?;
        let held = self.holders.take().map(|holders| holders.held()).unwrap_or_default();
        let load = self.load.take().map(|load| load.counts()).unwrap_or_default();
        let (seen, drains) = (self.packets.seen(), self.tables.drains());
        Ok(Churned {
            changes: self.changes,
            kills: self.kills,
            log_lines: self.agent.log().lines().count(),
            in_use: [self.in_use_at_start, drains.in_use],
            seen,
            drains,
            held,
            load,
        })
    }

    /// Tells the watch over the tables once an agent is ready: from then on drains must end in time in the tables, too.
    pub(super) fn look_at_agent(&mut self) {
        if !self.is_known_ready && matches!(self.agent.health("/readyz"), Ok((200, _))) {
            self.is_known_ready = true;
            self.tables.agent_is(true);
        }
    }

    /// Whether the agent that runs was seen ready.
    pub(super) fn is_ready(&self) -> bool {
        self.is_known_ready
    }

    /// What is in use now is what must be in use in the end.
    pub(super) fn mark_start(&mut self) {
        std::thread::sleep(LOOK_AGAIN);
        self.in_use_at_start = self.tables.drains().in_use;
    }

    /// Whether the tables hold the backends that the API lists, whatever else drains.
    pub(super) fn is_current(&self) -> bool {
        let expected = self.pods.iter().filter(|pod| pod.is_some()).count();
        let Ok(states) = self.agent.states() else { return false };
        states.iter().filter(|(service, _, state)| service == NAME && state == "active").count() == expected
    }

    /// How often the agent was killed, connections of the holders that know of their end, and connections that the load has made: so far.
    pub fn so_far(&self) -> (u64, u64, u64) {
        let told = self.holders.as_ref().map_or(0, |holders| holders.held().told);
        (self.kills, told, self.load.as_ref().map_or(0, |load| load.counts().0))
    }

    /// Changes so far.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    fn choose(&mut self, alive: bool) -> Option<u8> {
        let (first, last) = (self.settings.kept, self.settings.backends);
        let fits = |this: &Self, number: u8| {
            let is_alive = this.pods[usize::from(number)].is_some();
            is_alive == alive && (alive || this.tables.is_past(BackendPool::address(number)))
        };
        let all: Vec<u8> = (first..last).filter(|number| fits(self, *number)).collect();
        (!all.is_empty()).then(|| *self.random.of(&all))
    }

    fn goes(&mut self, number: u8) -> Result<()> {
        self.pool.vanish(&self.node, [number], Failure::Silent)?;
        self.pods[usize::from(number)] = None;
        self.tell();
        Ok(())
    }

    fn returns(&mut self, number: u8) -> Result<()> {
        let address = BackendPool::address(number);
        self.pool.return_to(&self.node, [number], Failure::Silent)?;
        self.packets.returns(address, now_ns());
        self.tables.returns(address);
        self.pods[usize::from(number)] = Some(self.next_pod);
        self.next_pod += 1;
        self.tell();
        Ok(())
    }

    fn tell(&mut self) {
        self.changes += 1;
        self.api.put(slice_of(&self.pods));
    }

    /// Whether every backend of the API, and no other one, is active in the tables.
    fn is_complete(&self) -> bool {
        let expected = self.pods.iter().filter(|pod| pod.is_some()).count();
        let Ok(states) = self.agent.states() else { return false };
        let of_ours: Vec<_> = states.iter().filter(|(service, ..)| service == NAME).collect();
        let active = of_ours.iter().filter(|(.., state)| state == "active").count();
        active == expected && !of_ours.iter().any(|(.., state)| state == "draining")
    }

    fn wait(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<()> {
        let start = Instant::now();
        while !done(self) {
            ensure!(self.agent.alive(), "the agent ended:\n{}", self.agent.log());
            ensure!(start.elapsed() < FOLLOW_LIMIT, "not within {FOLLOW_LIMIT:?}: {what}; {:?}", self.tables.drains());
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

fn slice_of(pods: &[Option<u64>]) -> serde_json::Value {
    let number = |index: usize| u8::try_from(index).expect("at most 126 backends");
    let alive = pods.iter().enumerate().filter_map(|(index, pod)| Some((BackendPool::address(number(index)), (*pod)?)));
    objects::slice(NAME, alive)
}
