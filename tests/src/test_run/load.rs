//! Loading programs: the kernel verifies them when they are first asked for.

use anyhow::{Context as _, Result, bail};
use aya::Ebpf;
use aya::maps::{MapData, ProgramArray};
use aya::programs::Program;
use lb_common::abi::map_name;
use lb_common::stages::{TcStage, XdpStage};

use super::Hook;

/// The program of a hook, with the programs that it tail calls.
pub(super) fn verified(ebpf: &mut Ebpf, hook: Hook) -> Result<&Program> {
    load_entry(ebpf, hook.program())?;
    ebpf.program(hook.program()).with_context(|| format!("no program {}", hook.program()))
}

/// Loads an entry program, and those that it tail calls.
pub fn load_entry(ebpf: &mut Ebpf, entry: &str) -> Result<()> {
    if !load_one(ebpf, entry)? {
        return Ok(());
    }
    let is_xdp = matches!(ebpf.program(entry), Some(Program::Xdp(_)));
    let tc = TcStage::ALL.iter().map(|stage| ([stage.slot::<4>(), stage.slot::<16>()], stage.programs()));
    let xdp = XdpStage::ALL.iter().map(|stage| ([stage.slot::<4>(), stage.slot::<16>()], stage.programs()));
    let (array, stages): (_, Vec<_>) =
        if is_xdp { (map_name::XDP_PROGRAMS, xdp.collect()) } else { (map_name::TC_PROGRAMS, tc.collect()) };
    let mut filled = Vec::new();
    for (slots, names) in stages {
        for (slot, name) in slots.into_iter().zip(names) {
            load_one(ebpf, name)?;
            let program = match ebpf.program(name) {
                Some(Program::SchedClassifier(program)) => program.fd()?.try_clone()?,
                Some(Program::Xdp(program)) => program.fd()?.try_clone()?,
                _ => bail!("{name} is no program of tc or XDP"),
            };
            filled.push((slot, program));
        }
    }
    // It stays where it is: programs that are not loaded yet refer to it by its descriptor.
    let map = ebpf.map_mut(array).with_context(|| format!("no map {array}"))?;
    let mut map: ProgramArray<&mut MapData> = map.try_into()?;
    filled.iter().try_for_each(|(slot, program)| map.set(*slot, program, 0)).context("filling the program array")
}

/// `false`: it was loaded before.
fn load_one(ebpf: &mut Ebpf, name: &str) -> Result<bool> {
    let program = ebpf.program_mut(name).with_context(|| format!("no program {name}"))?;
    if program.fd().is_ok() {
        return Ok(false);
    }
    match program {
        Program::SchedClassifier(program) => program.load(),
        Program::Xdp(program) => program.load(),
        other => bail!("program {name} has type {:?}", other.prog_type()),
    }
    .with_context(|| format!("the kernel refuses {name}"))?;
    Ok(true)
}
