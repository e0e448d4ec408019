//! The tables: one service at one address of each family, TCP, UDP and SCTP, with one backend; a client that is no part of them.

use anyhow::{Context as _, Result};
use aya::maps::{Array, MapData};
use lb_common::abi::{Backend, Masquerade, SCTP, TCP, UDP, Vip, VipKey, backend_flags, backend_state, vip_flags};
use lb_common::outcome::Outcome;
use lb_common::plain::{Memory, frontend};
use lb_tests::lockstep::Maps;
use lb_tests::programs::edited;
use lb_tests::test_run::{Hook, LoadedPrograms};
use lb_tests::topology::Topology;

/// Last bytes of the addresses, of either family.
pub const NODE: u8 = 1;
pub const CLIENT: u8 = 2;
pub const VIP: u8 = 10;
pub const BACKEND: u8 = 20;
/// The client's port and the service's, of every protocol.
pub const SERVED: (u16, u16) = (4_000, 80);
/// The backend's port.
pub const TARGET: u16 = 8_080;

/// Verdicts at tc: on to the next program, dropped, redirected.
pub const NEXT: i32 = -1;
pub const DROP: i32 = 2;
pub const BACK: i32 = 7;

/// Addresses of the scenario: `10.9.0.x`, `fd09::x`.
pub fn address<const N: usize>(last: u8) -> [u8; N] {
    let mut address = [0; N];
    let prefix: &[u8] = if N == 4 { &[10, 9] } else { &[0xfd, 9] };
    address[..2].copy_from_slice(prefix);
    address[N - 1] = last;
    address
}

/// What a program did with a packet.
#[derive(Debug, PartialEq, Eq)]
pub struct Ran {
    pub verdict: i32,
    pub bytes: Vec<u8>,
    pub counted: Vec<Outcome>,
}

pub struct Scenario {
    programs: LoadedPrograms,
    tables4: Memory<4>,
    tables6: Memory<16>,
    /// Of programs that read the test's time; nanoseconds.
    clock: Option<Clock>,
}

/// The clock of the driven programs, and its time.
type Clock = (Array<MapData, [u64; 2]>, u64);

/// Plays in a namespace of its own.
pub fn with_scenario(subject: &str, play: impl Fn(&mut Scenario) -> Result<()> + Sync) -> Result<()> {
    let topology = Topology::new(subject)?;
    let node = topology.node()?;
    node.netns().run(|| {
        let mut scenario = Scenario::new(LoadedPrograms::load()?, None);
        scenario.forget()?;
        play(&mut scenario)
    })
}

/// Plays with programs that read a clock of the test's own.
pub fn with_clock(subject: &str, play: impl Fn(&mut Scenario) -> Result<()> + Sync) -> Result<()> {
    let (topology, object) = (Topology::new(subject)?, edited("driven", "driven")?);
    let node = topology.node()?;
    node.netns().run(|| {
        let mut programs = LoadedPrograms::load_from(&object, u32::MAX, 1_000, 1)?;
        let clock = programs.take_map(".bss")?.try_into()?;
        let mut scenario = Scenario::new(programs, Some((clock, 1_000_000_000_000)));
        scenario.pass_seconds(0)?;
        scenario.forget()?;
        play(&mut scenario)
    })
}

impl Scenario {
    fn new(programs: LoadedPrograms, clock: Option<Clock>) -> Self {
        Self { programs, tables4: Memory::empty(), tables6: Memory::empty(), clock }
    }

    /// The tables as they were at first.
    pub fn forget(&mut self) -> Result<()> {
        self.programs.clear()?;
        (self.tables4, self.tables6) = (served(1), served(11));
        self.programs.fill(&self.tables4)?;
        self.programs.fill(&self.tables6)
    }

    /// From now on each backend is another one, and masqueraded packets come from `own`.
    fn change(&mut self, own: bool, edit: impl Fn(Life) -> Life) -> Result<()> {
        change(&mut self.programs, &mut self.tables4, own, &edit)?;
        change(&mut self.programs, &mut self.tables6, own, &edit)
    }

    /// From now on no packet was seen: the tables are as they were at first, and so are the programs' scratch records.
    pub fn begin_anew(&mut self) -> Result<()> {
        self.programs.clear_scratch()?;
        self.forget()
    }

    pub fn pass_seconds(&mut self, seconds: u64) -> Result<()> {
        let (clock, now_ns) = self.clock.as_mut().context("these programs read the kernel's clock")?;
        *now_ns += seconds * 1_000_000_000;
        Ok(clock.set(0, [*now_ns, *now_ns], 0)?)
    }

    /// From now on all backends drain: these are the seconds until the end of the drain period, and until the eviction deadline.
    pub fn drain(&mut self, period_s: u32, max_s: u32) -> Result<()> {
        let (_, now_ns) = self.clock.as_ref().context("these programs read the kernel's clock")?;
        let began = u32::try_from(now_ns / 100_000_000)?;
        let (drain_ds, deadline_ds) = (began + 10 * period_s, began + 10 * max_s);
        self.change(false, |life| Life { state: backend_state::DRAINING, drain_ds, deadline_ds, ..life })
    }

    /// From now on the backend is another node's, and external clients are masqueraded.
    pub fn far(&mut self) -> Result<()> {
        self.change(true, |life| Life { flags: life.flags & !backend_flags::LOCAL, ..life })
    }

    pub fn run(&mut self, hook: Hook, packet: &[u8]) -> Result<Ran> {
        self.try_run(hook, packet)?.context("the kernel takes this packet for a test run")
    }

    /// `None`: the kernel takes no such packet for a test run.
    pub fn try_run(&mut self, hook: Hook, packet: &[u8]) -> Result<Option<Ran>> {
        let before = self.programs.outcomes()?;
        let Some(ran) = self.programs.run(hook, packet)? else { return Ok(None) };
        let after = self.programs.outcomes()?;
        let counted = Outcome::ALL.into_iter().filter(|outcome| {
            // What is noted of a backend beside the verdict is another matter.
            let noted = matches!(outcome, Outcome::Ejected | Outcome::Cleared | Outcome::EventLost);
            !noted && after[*outcome as usize] > before[*outcome as usize]
        });
        let counted = counted.collect();
        self.programs.take_events();
        Ok(Some(Ran { verdict: ran.verdict, bytes: ran.bytes, counted }))
    }
}

/// What a backend of either family has.
struct Life {
    state: u8,
    flags: u8,
    drain_ds: u32,
    deadline_ds: u32,
}

fn served<const N: usize>(base: u32) -> Memory<N> {
    let mut tables = Memory::empty();
    let flags = vip_flags::ECHO | vip_flags::REFUSE_UNSERVED;
    tables.vips.insert(VipKey { address: address(VIP) }, Vip { flags });
    for (id, protocol) in (base..).zip([TCP, UDP, SCTP]) {
        tables.serve(id, id, frontend(protocol, (address(VIP), SERVED.1)), &[address(BACKEND)], TARGET);
    }
    tables
}

fn change<const N: usize>(
    programs: &mut LoadedPrograms,
    tables: &mut Memory<N>,
    own: bool,
    edit: impl Fn(Life) -> Life,
) -> Result<()>
where
    LoadedPrograms: Maps<N>,
{
    let before = tables.clone();
    for backend in tables.backends.values_mut() {
        let Backend { state, flags, drain_ds, deadline_ds, .. } = *backend;
        let Life { state, flags, drain_ds, deadline_ds } = edit(Life { state, flags, drain_ds, deadline_ds });
        *backend = Backend { state, flags, drain_ds, deadline_ds, ..*backend };
    }
    if own {
        tables.own = Some(Masquerade::new(address(NODE), &[]));
    }
    programs.write(&before, tables)
}
