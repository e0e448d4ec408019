//! Runs the programs and the host's decision in lockstep. Both get the same packets, tables, clock and random numbers; verdicts,
//! counters and tables must be equal. Packets and tables are those of a script ([`lb_common::plain::script`]).
//!
//! The programs are an edited copy that reads time and random numbers from a variable (`tests/mutations/driven`).

mod explained;
mod maps;
mod room;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use aya::maps::{Array, HashMap, MapData, PerCpuArray, PerCpuValues};
use aya::util::nr_cpus;
use lb_common::abi::{Bucket, BucketKey, FlowKey, SCTP, map_name};
use lb_common::client_shares::Counters;
use lb_common::decide::{
    Action, Hook as Bits, Packet, Step, Verdict, Work, allocate, begin, complete, decide, established, open, select,
};
use lb_common::outcome::Outcome;
use lb_common::plain::Memory;
use lb_common::plain::script::{Next, Scene, Script};

pub use explained::{Explained, Foretold};
pub use maps::Maps;
use maps::same;
pub use room::Room;

use crate::oracle::{Frame, opened, tuple};
use crate::programs;
use crate::random::Random;
use crate::test_run::{Hook, LoadedPrograms, Ran};

/// Backend ids that scripts use are below this.
const BACKENDS: u32 = 160;
/// Key of the hashes of clients.
const CLIENT_KEY: u32 = 0x5eed_1e55;
/// How long a script stays under the flood that it begins with.
const FLOOD_S: u32 = 3_600;

/// What was compared.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub steps: u64,
    /// Entries compared in all comparisons.
    pub entries: u64,
    /// Scripts in which more clients came in a second than the half-open table holds.
    pub floods: u64,
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Packets that `ballast explain` was asked for before they ran, and the outcomes that it named.
    pub explained: BTreeMap<&'static str, u64>,
}

/// The programs, driven.
pub struct Lockstep {
    programs: LoadedPrograms,
    room: Room,
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
    pub fn new(room: Room, pins: Option<&Path>) -> Result<Self> {
        let object = programs::edited("driven", "driven")?;
        let (most_half_open, flow_room) = room.limits();
        let mut programs = LoadedPrograms::load_pinned(&object, most_half_open, flow_room, CLIENT_KEY, pins)?;
        let explained = pins.map(Explained::open).transpose()?;
        let clock = programs.take_map(".bss")?.try_into()?;
        let (syn_counts, flood_until) = (
            programs.take_map(map_name::SYN_COUNTS)?.try_into()?,
            programs.take_map(map_name::FLOOD_UNTIL)?.try_into()?,
        );
        let syn_rate = programs.take_map(map_name::SYN_RATE)?.try_into()?;
        let buckets = programs.take_map(map_name::BUCKETS)?.try_into()?;
        // Each CPU counts for itself.
        let mut own = nix::sched::CpuSet::new();
        own.set(nix::sched::sched_getcpu()?)?;
        nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &own)?;
        let tally = Tally::default();
        Ok(Self { programs, room, clock, syn_counts, flood_until, syn_rate, buckets, explained, tally })
    }

    /// Plays a script. The seed is that of random numbers. On a difference it is played again, compared after every packet.
    pub fn run(&mut self, bytes: &[u8], seed: u64) -> Result<()> {
        let Some((v6, ..)) = Script::of(bytes) else { return Ok(()) };
        let play = if v6 { Self::play::<16> } else { Self::play::<4> };
        let Err(error) = play(self, bytes, seed, false) else { return Ok(()) };
        play(self, bytes, seed, true).and(Err(error))
    }

    /// The programs know nothing, and the plain tables have their limits.
    fn begin<const N: usize>(&mut self, host: &mut HostSide<N>, seed: u64) -> Result<()>
    where
        LoadedPrograms: Maps<N>,
    {
        let mut random = Random::new(seed);
        self.programs.clear()?;
        self.programs.know_nobody();
        self.programs.take_events();
        let none = PerCpuValues::try_from(vec![0; nr_cpus().map_err(|(_, error)| error)?])?;
        self.syn_counts.set(0, none, 0)?;
        self.syn_rate.set(0, 0, 0)?;
        for key in self.buckets.keys().collect::<Result<Vec<_>, _>>()? {
            self.buckets.remove(&key)?;
        }
        let tables = &mut host.scene.tables;
        tables.seed = u32::try_from(random.any() >> 32)?;
        (tables.flow_room, tables.client_key) = (self.room.limits().1, CLIENT_KEY);
        if matches!(self.room, Room::Little) {
            // Others have most of the room in some scripts, and some begin under a flood.
            let (all, room) = (Counters::families()[usize::from(N != 4)], tables.flow_room.cast_signed());
            tables.client_shares.insert(all, *random.of(&[0, 0, room - 2, room - 1]));
            tables.flood_until_s = if random.one_in(4) { tables.now_s() + FLOOD_S } else { 0 };
        }
        self.flood_until.set(0, tables.flood_until_s, 0)?;
        self.programs.fill(tables)
    }

    fn play<const N: usize>(&mut self, bytes: &[u8], seed: u64, always: bool) -> Result<()>
    where
        LoadedPrograms: Maps<N>,
    {
        let Some((_, is_wide, mut script)) = Script::of(bytes) else { return Ok(()) };
        let (scene, before) = (Scene::<N>::new(is_wide), self.programs.outcomes()?);
        let mut host = HostSide { scene, counted: BTreeMap::new(), before, story: Vec::new() };
        self.begin(&mut host, seed)?;
        let begins_until_s = host.scene.tables.flood_until_s;
        let mut play = || {
            host.drive(self)?;
            while host.step(&mut script, self)? {
                if always {
                    host.compare(self)?;
                }
            }
            host.compare(self)
        };
        let played = play();
        played.with_context(|| format!("seed {seed}, script {bytes:02x?}\n{}", host.story.join("\n")))?;
        self.tally.floods += u64::from(host.scene.tables.flood_until_s != begins_until_s);
        for (outcome, count) in host.counted {
            *self.tally.outcomes.entry(outcome.name()).or_default() += count;
        }
        Ok(())
    }
}

/// The plain tables of one family, and what was counted.
pub struct HostSide<const N: usize> {
    scene: Scene<N>,
    counted: BTreeMap<Outcome, u64>,
    before: Vec<u64>,
    /// The last packets, for a report.
    story: Vec<String>,
}

/// So many of the last packets are printed when one went wrong.
const TOLD: usize = 12;

impl<const N: usize> HostSide<N>
where
    LoadedPrograms: Maps<N>,
{
    /// Changes until a packet, and the packet; `false`: the script is over. SCTP, fragments, ICMP errors and outer headers are for the rungs
    /// `headers` and `tunnelled`.
    fn step(&mut self, script: &mut Script<'_>, lockstep: &mut Lockstep) -> Result<bool> {
        let before = self.scene.tables.clone();
        let Some(next) = script.next(&mut self.scene) else { return Ok(false) };
        let tables = &mut self.scene.tables;
        // These limits are the programs' own.
        tables.capacity = usize::MAX;
        tables.most_half_open = if let Room::Little = lockstep.room { lockstep.room.limits().0 } else { 0 };
        match next {
            Next::Change => {
                lockstep.programs.write(&before, tables)?;
                self.drive(lockstep)?;
            }
            Next::Packet(bits, packet) if packet.key.protocol != SCTP => self.packet(bits, packet, lockstep)?,
            _ => {}
        }
        Ok(true)
    }

    fn packet(&mut self, at: Bits, packet: Packet<N>, lockstep: &mut Lockstep) -> Result<()> {
        let hook = Hook::ALL.into_iter().find(|hook| bits(*hook) == at).context("a hook whose program runs here")?;
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
        Ok(())
    }

    fn decide(&mut self, hook: Hook, packet: Packet<N>) -> Verdict<N> {
        let mut work = Work::new(packet);
        let xdp = hook == Hook::Xdp;
        if xdp {
            decide_at_xdp(&mut self.scene.tables, &mut work);
        } else {
            decide(&mut self.scene.tables, &mut work, bits(hook));
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
        for outcome in
            counted.into_iter().chain(begun).chain(self.scene.tables.notes.drain(..).map(|(_, outcome)| outcome))
        {
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
        let (Hook::NodeIn, Some(own)) = (hook, self.scene.tables.own) else {
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
        Ok(lockstep.clock.set(0, [self.scene.tables.now_ns, u64::from(self.scene.tables.seed)], 0)?)
    }

    /// Everything that both hold.
    fn compare(&mut self, lockstep: &mut Lockstep) -> Result<()> {
        let programs = &mut lockstep.programs;
        programs.take_events();
        let flows = programs.flows()?;
        let half_open = programs.half_open()?;
        let affinity = programs.affinity()?;
        lockstep.tally.entries += (flows.len() + half_open.len() + affinity.len()) as u64;
        same("flow", &flows, &self.scene.tables.flows)?;
        same("half-open", &half_open, &self.scene.tables.half_open)?;
        same("affinity", &affinity, &self.scene.tables.affinity)?;
        let counted = (0..).zip(programs.client_shares.read()).filter(|(_, held)| *held != 0);
        let demanded = self.scene.tables.client_shares.iter().filter(|(_, count)| **count > 0);
        let demanded = demanded.map(|(counter, count)| (*counter, count.unsigned_abs())).collect();
        same("counter of clients", &counted.collect(), &demanded)?;
        let flood_until_s = lockstep.flood_until.get(&0, 0)?;
        ensure!(
            flood_until_s == self.scene.tables.flood_until_s,
            "a flood until {flood_until_s} s, the host says until {} s",
            self.scene.tables.flood_until_s
        );
        same("bucket", &lockstep.buckets.iter().collect::<Result<_, _>>()?, &self.scene.tables.buckets)?;
        for backend in 1..BACKENDS {
            let (held, demanded) =
                (programs.health(backend)?, self.scene.tables.health.get(&backend).copied().unwrap_or_default());
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
