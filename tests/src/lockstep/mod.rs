//! Runs the programs and the host's decision in lockstep. Both get the same packets, tables, clock and random numbers; verdicts,
//! counters and tables must be equal.
//!
//! The programs are an edited copy that reads time and random numbers from a variable (`tests/mutations/driven`).

mod explained;
mod maps;
mod packets;
mod tables;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use aya::maps::{Array, HashMap, MapData, PerCpuArray, PerCpuValues};
use aya::util::nr_cpus;
use lb_common::abi::{Bucket, BucketKey, FlowKey, map_name};
use lb_common::client_shares::Counters;
use lb_common::decide::{
    Action, Hook as Bits, Packet, Step, Verdict, Work, allocate, begin, complete, decide, established, open, select,
};
use lb_common::outcome::Outcome;
use lb_common::plain::Memory;
use lb_common::service_cidrs::Cover;

pub use explained::{Explained, Foretold};
pub use maps::Maps;
use maps::same;

use crate::oracle::{Frame, opened, tuple};
use crate::programs;
use crate::random::Random;
use crate::test_run::{Hook, LoadedPrograms, Ran};

/// How many packets go by between two comparisons of all tables.
const APART: usize = 64;
/// More half-open flows in a second are too many.
const MOST_HALF_OPEN: u32 = 24;
/// Established connections that fit, as the decision gets it: few, so that some clients have more than their share.
const FLOW_ROOM: u32 = 8;
/// Key of the hashes of clients.
const CLIENT_KEY: u32 = 0x5eed_1e55;
/// How long a world stays under the flood that it begins with.
const FLOOD_S: u32 = 3_600;
/// Packets of one world.
pub const STEPS: usize = 4_000;

/// What was compared.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub steps: u64,
    /// Packets, and changes of the tables between them.
    pub changes: u64,
    pub comparisons: u64,
    /// Worlds in which more clients came in a second than the half-open table holds.
    pub floods: u64,
    /// Entries compared in all comparisons.
    pub entries: u64,
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Packets that `ballast explain` was asked for before they ran, and the outcomes that it named.
    pub explained: BTreeMap<&'static str, u64>,
}

/// The programs, driven.
pub struct Lockstep {
    programs: LoadedPrograms,
    clock: Array<MapData, [u64; 2]>,
    syn_counts: PerCpuArray<MapData, u64>,
    flood_until: Array<MapData, u32>,
    syn_rate: Array<MapData, u64>,
    buckets: HashMap<MapData, BucketKey, Bucket>,
    /// The pinned maps as `ballast explain` reads them; `None`: it is not compared.
    explained: Option<Explained>,
    pub tally: Tally,
}

impl Lockstep {
    /// Builds and loads them. The calling thread's namespace must have a default route and forwarding on. With a folder for pins,
    /// `ballast explain` says before each packet what becomes of it.
    pub fn new(pins: Option<&Path>) -> Result<Self> {
        let object = programs::edited("driven", "driven")?;
        let mut programs = LoadedPrograms::load_pinned(&object, MOST_HALF_OPEN, FLOW_ROOM, CLIENT_KEY, pins)?;
        let explained = pins.map(Explained::open).transpose()?;
        let clock = programs.take_map(".bss")?.try_into()?;
        let (syn_counts, flood_until) = (
            programs.take_map(map_name::SYN_COUNTS)?.try_into()?,
            programs.take_map(map_name::FLOOD_UNTIL)?.try_into()?,
        );
        let syn_rate = programs.take_map(map_name::SYN_RATE)?.try_into()?;
        programs.know_nobody();
        let buckets = programs.take_map(map_name::BUCKETS)?.try_into()?;
        // Each CPU counts for itself.
        let mut own = nix::sched::CpuSet::new();
        own.set(nix::sched::sched_getcpu()?)?;
        nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &own)?;
        Ok(Self { programs, clock, syn_counts, flood_until, syn_rate, buckets, explained, tally: Tally::default() })
    }

    /// One random world of one family. On a difference it is played again, compared after every packet.
    pub fn run<const N: usize>(&mut self, seed: u64, steps: usize) -> Result<()>
    where
        LoadedPrograms: Maps<N>,
    {
        let Err(error) = self.play::<N>(seed, steps, APART) else { return Ok(()) };
        self.play::<N>(seed, steps, 1).and(Err(error))
    }

    fn play<const N: usize>(&mut self, seed: u64, steps: usize, apart: usize) -> Result<()>
    where
        LoadedPrograms: Maps<N>,
    {
        let mut random = Random::new(seed);
        self.programs.clear()?;
        self.programs.take_events();
        let mut host = HostSide::<N> {
            memory: Memory::empty(),
            cover: Cover::default(),
            counted: BTreeMap::new(),
            before: self.programs.outcomes()?,
            talk: packets::Traffic::default(),
            story: Vec::new(),
        };
        host.memory.seed = u32::try_from(random.any() >> 32)?;
        host.memory.most_half_open = MOST_HALF_OPEN;
        // Packets are seen at the loopback link, which leads to no client.
        host.memory.comes_astray = true;
        (host.memory.flow_room, host.memory.client_key) = (FLOW_ROOM, CLIENT_KEY);
        // Others have most of the room in some worlds.
        let (all, others) =
            (Counters::families()[usize::from(N != 4)], *random.of(&[0, 0, FLOW_ROOM - 2, FLOW_ROOM - 1]));
        host.memory.client_shares.insert(all, others.cast_signed());
        let none = PerCpuValues::try_from(vec![0; nr_cpus().map_err(|(_, error)| error)?])?;
        self.syn_counts.set(0, none, 0)?;
        self.syn_rate.set(0, 0, 0)?;
        for key in self.buckets.keys().collect::<Result<Vec<_>, _>>()? {
            self.buckets.remove(&key)?;
        }
        tables::set(&mut random, &mut host)?;
        self.programs.refill();
        self.programs.fill(&host.memory)?;
        self.programs.set_cover::<N>(host.cover)?;
        // Some worlds begin under a flood.
        if random.one_in(4) {
            host.memory.flood_until_s = u32::try_from(host.memory.now_ns / 1_000_000_000)? + FLOOD_S;
        }
        let begins_until_s = host.memory.flood_until_s;
        self.flood_until.set(0, begins_until_s, 0)?;
        host.drive(self)?;
        for step in 1..=steps {
            host.step(&mut random, self)
                .and_then(|()| if step % apart == 0 || step == steps { host.compare(self) } else { Ok(()) })
                .with_context(|| {
                    format!("IPv{}, seed {seed}, step {step}\n{}", if N == 4 { 4 } else { 6 }, host.story.join("\n"))
                })?;
        }
        self.tally.floods += u64::from(host.memory.flood_until_s != begins_until_s);
        for (outcome, count) in host.counted {
            *self.tally.outcomes.entry(outcome.name()).or_default() += count;
        }
        Ok(())
    }
}

/// The world of one family in memory, and what was counted in it.
pub struct HostSide<const N: usize> {
    memory: Memory<N>,
    /// Of the service CIDRs: it may hold more.
    cover: Cover,
    counted: BTreeMap<Outcome, u64>,
    before: Vec<u64>,
    talk: packets::Traffic<N>,
    /// The last packets, for a report.
    story: Vec<String>,
}

/// So many of the last packets are printed when one went wrong.
const TOLD: usize = 12;

impl<const N: usize> HostSide<N>
where
    LoadedPrograms: Maps<N>,
{
    /// A change now and then, a packet always.
    fn step(&mut self, random: &mut Random, lockstep: &mut Lockstep) -> Result<()> {
        if !self.talk.is_crowded() && random.one_in(6) {
            lockstep.tally.changes += 1;
            let before = self.memory.clone();
            tables::change(random, self)?;
            lockstep.programs.write(&before, &self.memory)?;
            lockstep.programs.set_cover::<N>(self.cover)?;
            self.drive(lockstep)?;
        }
        let (hook, packet) = self.talk.packet(random);
        let bytes = Frame::of(&packet).bytes();
        let foretold = self.explain(lockstep, hook, packet)?;
        let ran = lockstep.programs.run(hook, &bytes)?.context("the kernel runs every whole packet")?;
        let verdict = self.decide(hook, packet);
        if let Some(foretold) = foretold {
            explained::compare(hook, &packet, &foretold, &ran)?;
            ensure!(foretold.verdict == verdict, "explain says {:?}, the host {verdict:?}", foretold.verdict);
            *lockstep.tally.explained.entry(verdict.outcome.name()).or_default() += 1;
        }
        lockstep.tally.steps += 1;
        if self.story.len() == TOLD {
            self.story.remove(0);
        }
        self.story.push(format!("{hook:?} {packet:?}\n    {verdict:?}"));
        let mut demanded = demanded(hook, &packet, &verdict);
        if goes_whole(&verdict) && hook != Hook::Xdp {
            demanded = self.demanded_whole(hook, &packet, &verdict, &ran)?;
        }
        ensure!(ran.verdict == demanded.0, "the program says {}, the host {demanded:?}", ran.verdict);
        if let Some(key) = demanded.1 {
            let came = tuple(&ran.bytes).context("a packet came out")?;
            ensure!(came == key, "out came {came:?}, the host says {key:?}");
        }
        self.talk.heard(&packet, &verdict);
        Ok(())
    }

    fn decide(&mut self, hook: Hook, packet: Packet<N>) -> Verdict<N> {
        let mut work = Work::new(packet);
        let xdp = hook == Hook::Xdp;
        if xdp {
            decide_at_xdp(&mut self.memory, &mut work);
        } else {
            decide(&mut self.memory, &mut work, bits(hook));
        }
        let verdict = work.verdict;
        let counted = match verdict.action {
            Action::Pass if xdp && verdict.outcome == Outcome::Passed => None,
            Action::Pass | Action::Refuse if xdp => Some(Outcome::HandedToTc),
            // No way out is known where packets are handed to programs by hand.
            Action::ToBackend | Action::ToClient if xdp && verdict.route => Some(Outcome::HandedToTc),
            _ => Some(verdict.outcome),
        };
        // tc meets a known flow: what it began as is counted where it began.
        let is_known = matches!(verdict.outcome, Outcome::Forwarded | Outcome::Replied);
        let sent = matches!(verdict.action, Action::ToBackend | Action::ToClient);
        let begun = (xdp && sent && verdict.route && !is_known).then_some(verdict.outcome);
        for outcome in counted.into_iter().chain(begun).chain(self.memory.notes.drain(..).map(|(_, outcome)| outcome)) {
            *self.counted.entry(outcome).or_default() += 1;
        }
        verdict
    }

    /// What leaves in an outer header, from an address of this node to the backend, is otherwise as it came.
    fn demanded_whole(
        &mut self,
        hook: Hook,
        packet: &Packet<N>,
        verdict: &Verdict<N>,
        ran: &Ran,
    ) -> Result<(i32, Option<FlowKey<N>>)> {
        // Only from the wire, and with an address to send from.
        let (Hook::NodeIn, Some(own)) = (hook, self.memory.own) else {
            let why = if hook == Hook::NodeIn { Outcome::DroppedNoAddress } else { Outcome::DroppedRewrite };
            *self.counted.entry(why).or_default() += 1;
            return Ok((TC[1], None));
        };
        let (ends, inner) = opened::<N>(&ran.bytes).context("an outer header")?;
        ensure!(ends == (own.address(0).to_owned(), verdict.address), "an outer header between {ends:?}");
        let came = tuple(&inner).context("a packet in it")?;
        ensure!(came == packet.key, "in an outer header came {came:?}");
        Ok((TC[2], None))
    }

    /// Gives the programs the clock and the chance of the memory.
    fn drive(&self, lockstep: &mut Lockstep) -> Result<()> {
        Ok(lockstep.clock.set(0, [self.memory.now_ns, u64::from(self.memory.seed)], 0)?)
    }

    /// Everything that both hold.
    fn compare(&mut self, lockstep: &mut Lockstep) -> Result<()> {
        let programs = &mut lockstep.programs;
        programs.take_events();
        let flows = programs.flows()?;
        let half_open = programs.half_open()?;
        let affinity = programs.affinity()?;
        lockstep.tally.comparisons += 1;
        lockstep.tally.entries += (flows.len() + half_open.len() + affinity.len()) as u64;
        same("flow", &flows, &self.memory.flows)?;
        same("half-open", &half_open, &self.memory.half_open)?;
        same("affinity", &affinity, &self.memory.affinity)?;
        let counted = (0..).zip(programs.client_shares.read()).filter(|(_, held)| *held != 0);
        let demanded = self.memory.client_shares.iter().filter(|(_, count)| **count > 0);
        let demanded = demanded.map(|(counter, count)| (*counter, count.unsigned_abs())).collect();
        same("counter of clients", &counted.collect(), &demanded)?;
        let flood_until_s = lockstep.flood_until.get(&0, 0)?;
        ensure!(
            flood_until_s == self.memory.flood_until_s,
            "a flood until {flood_until_s} s, the host says until {} s",
            self.memory.flood_until_s
        );
        same("bucket", &lockstep.buckets.iter().collect::<Result<_, _>>()?, &self.memory.buckets)?;
        for backend in 1..=tables::BACKENDS {
            let (held, demanded) =
                (programs.health(backend)?, self.memory.health.get(&backend).copied().unwrap_or_default());
            ensure!(held == demanded, "health of backend {backend}: kernel {held:?}, host {demanded:?}");
        }
        let after = programs.outcomes()?;
        for outcome in Outcome::ALL {
            let more = after[outcome as usize] - self.before[outcome as usize];
            let demanded = self.counted.get(&outcome).copied().unwrap_or_default();
            ensure!(more == demanded, "{}: the programs counted {more}, the host {demanded}", outcome.name());
        }
        Ok(())
    }
}

/// As [`decide`], but for the steps that XDP leaves to tc: the packet passes, and is counted as refused there.
fn decide_at_xdp<const N: usize>(memory: &mut Memory<N>, work: &mut Work<N>) {
    let mut step = begin(memory, work, Bits::XDP);
    if step == Step::Unrelated {
        // Nothing stands in a new record, either.
        return;
    }
    step = established(memory, work, Bits::XDP, step);
    if step == Step::Handshake {
        step = open(memory, work, Bits::XDP, step);
    }
    if step == Step::Select {
        step = select(memory, work, Bits::XDP, step);
    }
    if step == Step::MidStream {
        step = complete(memory, work, Bits::XDP, step);
    }
    if step == Step::Allocate {
        step = allocate(memory, work, Bits::XDP, step);
    }
    if step == Step::Retry {
        work.verdict.action = Action::Refuse;
    }
}

/// `TCX_NEXT`, `TC_ACT_SHOT`, `TC_ACT_REDIRECT`.
const TC: [i32; 3] = [-1, 2, 7];

/// Whether the packet is for the backend's node.
fn goes_whole<const N: usize>(verdict: &Verdict<N>) -> bool {
    verdict.action == Action::ToBackend && verdict.port == 0
}

/// The program's return value, and the tuple of the packet that comes out; `None`: nothing to compare.
fn demanded<const N: usize>(hook: Hook, packet: &Packet<N>, verdict: &Verdict<N>) -> (i32, Option<FlowKey<N>>) {
    /// `XDP_PASS`, `XDP_DROP`.
    const XDP: [i32; 2] = [2, 1];
    let key = packet.key;
    let mut out = key;
    match verdict.action {
        Action::ToBackend => {
            (out.dst, out.dst_port) = (verdict.address, verdict.port);
            (out.src, out.src_port) = (verdict.client, verdict.client_port);
        }
        Action::ToClient => {
            (out.src, out.src_port) = (verdict.address, verdict.port);
            (out.dst, out.dst_port) = (verdict.client, verdict.client_port);
        }
        _ => {}
    }
    if hook == Hook::Xdp {
        return match verdict.action {
            Action::Drop => (XDP[1], None),
            Action::ToBackend | Action::ToClient if !verdict.route => (XDP[0], Some(out)),
            Action::ToBackend | Action::Pass | Action::Refuse | Action::ToClient => (XDP[0], Some(key)),
        };
    }
    match verdict.action {
        Action::Pass => (TC[0], Some(key)),
        Action::Drop => (TC[1], None),
        Action::Refuse => (TC[2], None),
        Action::ToBackend | Action::ToClient => (TC[if verdict.route { 2 } else { 0 }], Some(out)),
    }
}

fn bits(hook: Hook) -> Bits {
    match hook {
        Hook::PodIn => Bits::POD_IN,
        Hook::PodOut => Bits::POD_OUT,
        Hook::BridgeIn => Bits::BRIDGE_IN,
        Hook::NodeIn => Bits::NODE_IN,
        Hook::NodeOut => Bits::NODE_OUT,
        Hook::Xdp => Bits::XDP,
    }
}
