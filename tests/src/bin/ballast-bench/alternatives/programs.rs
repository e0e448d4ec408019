//! The programs of `tests/yardstick/src/alternatives`, and running them.

use std::path::Path;

use anyhow::{Context, Result};
use aya::maps::{Array, MapData, PerCpuArray, PerCpuValues};
use aya::programs::{SchedClassifier, TestRun, TestRunOptions, TestRunResult, Xdp};
use aya::util::nr_cpus;
use aya::{Ebpf, Pod};

/// Which keys the next runs make, as the programs have it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Task {
    pub base: u32,
    /// Keys, a power of two less one.
    pub mask: u32,
    /// Whether they come at random or one after the other.
    pub scatter: u32,
    /// Runs so far.
    pub turn: u32,
}

// SAFETY: plain numbers without padding between them.
unsafe impl Pod for Task {}

/// What programs are run on that look at no packet.
pub const PACKET: &[u8] = &[0; 64];
/// Keys of one CPU are as far from those of the next.
const APART: u32 = 1 << 24;

/// What runs took on average, and what the last one returned.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    pub ns: f64,
    pub returned: u32,
}

/// Frames that came, and when, as the programs have it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    pub frames: u64,
    pub first_ns: u64,
    pub last_ns: u64,
}

// SAFETY: plain numbers without padding between them.
unsafe impl Pod for Clock {}

/// Everything, loaded.
pub struct Programs {
    ebpf: Ebpf,
}

/// What steers the programs that make up keys.
pub struct Tasks(PerCpuArray<MapData, Task>);

impl Programs {
    pub fn load(object: &Path) -> Result<Self> {
        let bytes = std::fs::read(object).with_context(|| object.display().to_string())?;
        let mut ebpf = Ebpf::load(&bytes).context("loading the alternatives")?;
        for (name, program) in ebpf.programs_mut() {
            let loaded = match program {
                aya::programs::Program::SchedClassifier(program) => program.load(),
                aya::programs::Program::Xdp(program) => program.load(),
                _ => continue,
            };
            loaded.with_context(|| format!("alternative {name}"))?;
        }
        Ok(Self { ebpf })
    }

    pub fn tasks(&mut self) -> Result<Tasks> {
        Ok(Tasks(self.ebpf.take_map("a_task").context("no a_task among the alternatives")?.try_into()?))
    }

    pub fn clock(&mut self) -> Result<Array<MapData, Clock>> {
        Ok(self.ebpf.take_map("a_clock").context("no a_clock among the alternatives")?.try_into()?)
    }

    pub fn tc(&self, name: &str) -> Result<&SchedClassifier> {
        Ok(self.ebpf.program(name).with_context(|| format!("no {name} among the alternatives"))?.try_into()?)
    }

    pub fn tc_mut(&mut self, name: &str) -> Result<&mut SchedClassifier> {
        Ok(self.ebpf.program_mut(name).with_context(|| format!("no {name} among the alternatives"))?.try_into()?)
    }

    pub fn xdp_mut(&mut self, name: &str) -> Result<&mut Xdp> {
        Ok(self.ebpf.program_mut(name).with_context(|| format!("no {name} among the alternatives"))?.try_into()?)
    }

    pub fn xdp(&self, name: &str) -> Result<&Xdp> {
        Ok(self.ebpf.program(name).with_context(|| format!("no {name} among the alternatives"))?.try_into()?)
    }
}

impl Tasks {
    /// The next runs make these keys, those on the second CPU others, and so on.
    pub fn set(&mut self, task: Task) -> Result<()> {
        let cpus = u32::try_from(nr_cpus().map_err(|(_, error)| error)?)?;
        let each = (0..cpus).map(|cpu| Task { base: task.base.wrapping_add(cpu * APART), ..task }).collect::<Vec<_>>();
        Ok(self.0.set(0, PerCpuValues::try_from(each)?, 0)?)
    }
}

/// Runs a program that often.
pub fn run<P>(program: &P, packet: &[u8], repeat: u32) -> Result<Ran>
where
    P: for<'a> TestRun<Opts<'a> = TestRunOptions<'a>, Result = TestRunResult>,
{
    let options = TestRunOptions { data_in: Some(packet), repeat, ..TestRunOptions::default() };
    let ran = program.test_run(options).context("running a program")?;
    Ok(Ran { ns: ran.duration.as_secs_f64() * 1e9, returned: ran.return_value })
}
