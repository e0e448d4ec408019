//! Waiting until no program runs any more that began before.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

use aya_obj::generated::{bpf_cmd, bpf_map_type};

use crate::bpf_link::{array_put, create};

/// A map of maps. Each write to one waits for the programs that run, as they may be at work in the map that is replaced
/// (`maybe_wait_bpf_programs`, Linux 5.0 and the stable releases before).
#[derive(Debug)]
pub(super) struct Grace {
    outer: OwnedFd,
    inner: OwnedFd,
}

/// `union bpf_attr` of `BPF_MAP_CREATE`.
#[repr(C)]
#[derive(Default)]
struct MapCreate {
    kind: u32,
    key: u32,
    value: u32,
    entries: u32,
    flags: u32,
    inner: u32,
}

impl Grace {
    pub fn new() -> io::Result<Self> {
        let of =
            |kind: bpf_map_type| MapCreate { kind: kind as u32, key: 4, value: 4, entries: 1, ..MapCreate::default() };
        let inner = create(bpf_cmd::BPF_MAP_CREATE, &mut of(bpf_map_type::BPF_MAP_TYPE_ARRAY))?;
        let mut outer = of(bpf_map_type::BPF_MAP_TYPE_ARRAY_OF_MAPS);
        outer.inner = inner.as_raw_fd().unsigned_abs();
        let outer = create(bpf_cmd::BPF_MAP_CREATE, &mut outer)?;
        Ok(Self { outer, inner })
    }

    /// Returns when every program that runs at the call has ended: some tens of milliseconds.
    pub fn wait(&self) -> io::Result<()> {
        array_put(self.outer.as_fd(), 0, self.inner.as_fd())
    }
}
