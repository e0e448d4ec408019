//! The machine under the bench: what it is, what else it does, and on which of its CPUs we are.

use anyhow::{Context, Result};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::{Pid, SysconfVar, sysconf};
use serde::Serialize;

/// Kernel and CPUs.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    pub kernel: String,
    pub cpus: i64,
}

/// This machine.
pub fn machine() -> Result<Machine> {
    let cpus = sysconf(SysconfVar::_NPROCESSORS_ONLN)?.context("the kernel does not say how many CPUs there are")?;
    let name = nix::sys::utsname::uname()?;
    // What follows the version names who built it.
    let kernel = name.release().to_string_lossy().split('-').next().unwrap_or_default().to_owned();
    Ok(Machine { kernel, cpus })
}

/// Load averages, as the kernel writes them.
pub fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// The CPUs that the calling thread might use: dropped, it may use them again.
#[derive(Debug)]
pub struct Cpus(CpuSet);

impl Cpus {
    /// Keeps the CPUs of now, and restores them when it is dropped.
    pub fn keep() -> Result<Self> {
        Ok(Self(sched_getaffinity(Pid::from_raw(0)).context("asking for our CPUs")?))
    }

    /// From now on the calling thread, and the threads that it starts, are on one CPU.
    pub fn one() -> Result<Self> {
        let kept = Self::keep()?;
        stay_on_one_cpu()?;
        Ok(kept)
    }
}

impl Drop for Cpus {
    fn drop(&mut self) {
        if let Err(error) = sched_setaffinity(Pid::from_raw(0), &self.0) {
            eprintln!("leaving the one CPU: {error}");
        }
    }
}

/// Binds the calling thread, and what it starts from now on, to the last CPU that it may use; the first one serves most interrupts.
pub fn stay_on_one_cpu() -> Result<()> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).context("asking for our CPUs")?;
    let last = (0..CpuSet::count()).rev().find(|cpu| allowed.is_set(*cpu).unwrap_or(false)).context("no CPU")?;
    let mut one = CpuSet::new();
    one.set(last).context("choosing a CPU")?;
    sched_setaffinity(Pid::from_raw(0), &one).context("binding ourselves to a CPU")
}
