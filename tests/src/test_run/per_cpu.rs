//! What each CPU keeps from packet to packet: its token buckets, and the scratch records.

use std::os::fd::{AsFd as _, AsRawFd as _};

use anyhow::{Result, bail, ensure};
use aya::maps::{Map, PerCpuValues};
use aya::util::nr_cpus;
use aya_obj::generated::{bpf_attr, bpf_cmd};

use lb_common::abi::map_name;
use lb_common::limits::EVENT_BURST;

use super::LoadedPrograms;

/// The buckets of the CPUs are filled again after so many packets: none that asks for one event or answer finds them empty.
const FILLED_AFTER: u32 = EVENT_BURST;

impl LoadedPrograms {
    /// From here on a flood gets as many answers and events as one on a node does.
    pub fn limit_floods(&mut self) {
        self.until_filled = None;
    }

    /// The buckets are full at the next packet: the clock of driven programs has gone back.
    pub fn refill(&mut self) {
        self.until_filled = Some(0);
    }

    /// Fills the buckets of the CPUs before any is empty.
    pub(super) fn fill_buckets(&mut self) -> Result<()> {
        let Some(left) = &mut self.until_filled else { return Ok(()) };
        *left = if *left == 0 { FILLED_AFTER } else { *left } - 1;
        if *left + 1 != FILLED_AFTER {
            return Ok(());
        }
        let full = vec![0; nr_cpus().map_err(|(_, error)| error)?];
        for index in 0..self.cpu_buckets.len() {
            self.cpu_buckets.set(index, PerCpuValues::try_from(full.clone())?, 0)?;
        }
        Ok(())
    }

    /// Makes the scratch records of all CPUs zero, as before the first packet.
    pub fn clear_scratch(&mut self) -> Result<()> {
        for name in [map_name::SCRATCH4, map_name::SCRATCH6] {
            let Some(Map::PerCpuArray(map)) = self.ebpf.map(name) else { bail!("{name} is no array of each CPU") };
            let size = usize::try_from(map.info()?.value_size())?.next_multiple_of(8);
            let value = vec![0_u8; size * nr_cpus().map_err(|(_, error)| error)?];
            let key = 0_u32;
            // SAFETY: zeros are a valid `bpf_attr`.
            let mut attr = unsafe { std::mem::zeroed::<bpf_attr>() };
            // SAFETY: this is the part of the union that BPF_MAP_UPDATE_ELEM reads, and all of it is plain numbers.
            let wanted = unsafe { &mut attr.__bindgen_anon_2 };
            wanted.map_fd = map.fd().as_fd().as_raw_fd().cast_unsigned();
            wanted.key = (&raw const key) as u64;
            wanted.__bindgen_anon_1.value = value.as_ptr() as u64;
            // SAFETY: key and value are as long as the map's, for each CPU, and live until the call returns.
            let result = unsafe {
                libc::syscall(libc::SYS_bpf, bpf_cmd::BPF_MAP_UPDATE_ELEM, &raw mut attr, size_of::<bpf_attr>())
            };
            ensure!(result == 0, std::io::Error::last_os_error());
        }
        Ok(())
    }
}
