//! The program arrays, by which the programs tail call each other: which program is in which slot.
//!
//! An array belongs to one set of programs, and is pinned beside them: the kernel empties an array that nothing but programs refers to.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

pub(super) use lb_common::abi::map_name::{TC_PROGRAMS as TC, XDP_PROGRAMS as XDP};
use lb_common::stages::{TcStage, XdpStage};

use super::{DatapathError, bpf_link, fault::Fault, loaded::Loaded};

/// The slots of one array, with the programs that belong there.
#[derive(Debug)]
pub(super) struct ProgramArray {
    name: &'static str,
    path: PathBuf,
    map: OwnedFd,
    slots: Vec<(u32, &'static str)>,
}

/// The programs that tc programs tail call, and their slots.
fn tc_slots() -> Vec<(u32, &'static str)> {
    let slots = |stage: &TcStage| [stage.slot::<4>(), stage.slot::<16>()].into_iter().zip(stage.programs());
    TcStage::ALL.iter().flat_map(slots).collect()
}

/// The programs that the XDP program tail calls, and their slots.
fn xdp_slots() -> Vec<(u32, &'static str)> {
    let slots = |stage: &XdpStage| [stage.slot::<4>(), stage.slot::<16>()].into_iter().zip(stage.programs());
    XdpStage::ALL.iter().flat_map(slots).collect()
}

/// The programs of the slots of an array.
pub(super) fn programs(array: &str) -> impl Iterator<Item = (u32, &'static str)> {
    if array == TC { tc_slots() } else { xdp_slots() }.into_iter()
}

/// Both arrays.
pub(super) const ALL: [&str; 2] = [TC, XDP];

impl ProgramArray {
    /// Opens the pinned array.
    pub fn open(name: &'static str, path: &Path) -> Result<Self, DatapathError> {
        let opened = bpf_link::open_pin(path).map_err(DatapathError::file("open", path))?;
        let missing = || DatapathError::BadObject { reason: format!("map {name} is not pinned") };
        let map = opened.ok_or_else(missing)?;
        Ok(Self { name, path: path.to_owned(), map, slots: programs(name).collect() })
    }

    /// Puts the programs into their slots where they are not there yet. The first failure is returned.
    pub fn fill<'a>(&self, loaded: impl Fn(&str) -> Option<&'a Loaded>) -> Result<(), DatapathError> {
        let wrong = self.wrong(&loaded);
        let put = |(slot, _, program): &(u32, &str, &Loaded)| self.put(*slot, program);
        let written: io::Result<()> = wrong.iter().try_for_each(put);
        written.map_err(DatapathError::kernel(format!("write to map {}", self.name)))
    }

    /// The slots in which another program is than should be, or none.
    pub fn faults<'a>(&self, loaded: impl Fn(&str) -> Option<&'a Loaded>) -> Vec<Fault> {
        let fault = |(slot, program, _): (u32, &str, &Loaded)| Fault {
            table: self.name,
            entry: format!("slot {slot} ({program})"),
            is_replaced: self.found(slot).is_some(),
            is_repaired: false,
        };
        let mut faults: Vec<Fault> = self.wrong(&loaded).into_iter().map(fault).collect();
        if !self.path.exists() {
            let entry = "its pin".to_owned();
            faults.push(Fault { table: self.name, entry, is_replaced: false, is_repaired: false });
        }
        faults
    }

    /// Pins the array again, if its pin is gone: without one the kernel would empty it with the end of this process.
    pub fn pin(&self) -> Result<(), DatapathError> {
        if self.path.exists() {
            return Ok(());
        }
        bpf_link::pin(self.map.as_fd(), &self.path).map_err(DatapathError::file("pin", &self.path))
    }

    fn wrong<'a>(&self, loaded: &impl Fn(&str) -> Option<&'a Loaded>) -> Vec<(u32, &'static str, &'a Loaded)> {
        let wanted = self.slots.iter().filter_map(|(slot, name)| Some((*slot, *name, loaded(name)?)));
        wanted.filter(|(slot, _, program)| self.found(*slot) != Some(program.id)).collect()
    }

    /// Id of the program in this slot.
    fn found(&self, slot: u32) -> Option<u32> {
        bpf_link::array_get(self.map.as_fd(), slot).ok().flatten()
    }

    fn put(&self, slot: u32, program: &Loaded) -> io::Result<()> {
        bpf_link::array_put(self.map.as_fd(), slot, program.descriptor())
    }
}
