//! The tables: one service at one address of each family, TCP, UDP and SCTP, with one backend; a client that is no part of them.

use anyhow::{Context as _, Result};
use aya::Pod;
use aya::maps::{Array, MapData};
use lb_common::abi::{
    Backend, Flow, FlowKey, Masquerade, SCTP, Service, ServiceKey, Slot, SourceKey, TCP, UDP, Vip, VipKey,
    backend_flags, backend_state, seal, vip_flags,
};
use lb_common::outcome::Outcome;
use lb_tests::programs::edited;
use lb_tests::test_run::{FamilyMaps, Hook, LoadedPrograms, MapNames, Of};
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
    /// Of programs that read the test's time; nanoseconds.
    clock: Option<(Array<MapData, [u64; 2]>, u64)>,
}

/// Plays in a namespace of its own.
pub fn with_scenario(subject: &str, play: impl Fn(&mut Scenario) -> Result<()> + Sync) -> Result<()> {
    let topology = Topology::new(subject)?;
    let node = topology.node()?;
    node.netns().run(|| {
        let mut scenario = Scenario { programs: LoadedPrograms::load()?, clock: None };
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
        let mut scenario = Scenario { programs, clock: Some((clock, 1_000_000_000_000)) };
        scenario.pass_seconds(0)?;
        scenario.forget()?;
        play(&mut scenario)
    })
}

impl Scenario {
    /// The tables as they were at first.
    pub fn forget(&mut self) -> Result<()> {
        self.programs.clear()?;
        let flags = vip_flags::ECHO | vip_flags::REFUSE_UNSERVED;
        self.programs.state4.vips.insert(VipKey { address: address(VIP) }, Vip { flags }, 0)?;
        self.programs.state6.vips.insert(VipKey { address: address(VIP) }, Vip { flags }, 0)?;
        serve(&mut self.programs.tables4, 1)?;
        serve(&mut self.programs.tables6, 11)
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
        let state = backend_state::DRAINING;
        for id in 0..3 {
            let backends = &mut self.programs.tables4.backends;
            let backend = backends.get(&(1 + id), 0)?;
            backends.set(1 + id, Backend { state, drain_ds, deadline_ds, ..backend }, 0)?;
            let backends = &mut self.programs.tables6.backends;
            let backend = backends.get(&(11 + id), 0)?;
            backends.set(11 + id, Backend { state, drain_ds, deadline_ds, ..backend }, 0)?;
        }
        Ok(())
    }

    /// From now on the backend is another node's, and external clients are masqueraded.
    pub fn far(&mut self) -> Result<()> {
        self.programs.state4.masquerade.insert(0, Masquerade::new(address(NODE), &[]), 0)?;
        self.programs.state6.masquerade.insert(0, Masquerade::new(address(NODE), &[]), 0)?;
        for id in 0..3 {
            let backends = &mut self.programs.tables4.backends;
            let backend = backends.get(&(1 + id), 0)?;
            backends.set(1 + id, Backend { flags: backend.flags & !backend_flags::LOCAL, ..backend }, 0)?;
            let backends = &mut self.programs.tables6.backends;
            let backend = backends.get(&(11 + id), 0)?;
            backends.set(11 + id, Backend { flags: backend.flags & !backend_flags::LOCAL, ..backend }, 0)?;
        }
        Ok(())
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

fn serve<const N: usize>(tables: &mut FamilyMaps<N>, base: u32) -> Result<()>
where
    Of<N>: MapNames,
    ServiceKey<N>: Pod,
    Backend<N>: Pod,
    FlowKey<N>: Pod,
    Flow<N>: Pod,
    SourceKey<N>: Pod,
{
    for (id, protocol) in (base..).zip([TCP, UDP, SCTP]) {
        let backend = Backend {
            address: address::<N>(BACKEND),
            port: TARGET,
            state: backend_state::ACTIVE,
            flags: backend_flags::SERVING | backend_flags::LOCAL | backend_flags::IN_CLUSTER_SET,
            generation: 1,
            service: id,
            deadline_ds: 0,
            drain_ds: 0,
            uid_hash: 0,
            weight: 1,
            pad: 0,
        };
        tables.backends.set(id, backend, 0)?;
        tables.slots.set(id, Slot { backend: id, generation: 7, service: id, backend_generation: 1 }, 0)?;
        let key = ServiceKey { address: address::<N>(VIP), port: SERVED.1, protocol, pad: 0 };
        let service = Service {
            id,
            generation: 7,
            slot_base: id,
            slot_count: 1,
            external_base: id,
            external_count: 1,
            seal: 0,
            affinity_timeout_s: 0,
            scheduler: 0,
            flags: 0,
            kind: 0,
            pad: 0,
            rate: 0,
            burst: 0,
        };
        tables.services.insert(key, Service { seal: seal(&key, &service), ..service }, 0)?;
    }
    Ok(())
}
