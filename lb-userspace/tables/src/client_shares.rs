//! How many connections each client has, in the memory that agent and programs share: changed word by word, so that what programs add at the
//! same time is kept.

use std::{
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
};

use aya::maps::MapData;
use lb_common::{abi::map_name, client_shares::COUNTERS};

use super::{MapError, connections::Window, pins};

/// Elements lie one behind the other in the kernel, each at a multiple of eight bytes.
const STRIDE: usize = 8;
const BYTES: usize = COUNTERS as usize * STRIDE;

/// `client_shares`, mapped into this process (Linux 5.5, `BPF_F_MMAPABLE`).
#[derive(Debug)]
pub struct ClientShares(Window);

impl ClientShares {
    /// Maps what is pinned in `dir`.
    pub fn open(dir: &Path) -> Result<Self, MapError> {
        Self::map(&pins::data(dir, map_name::CLIENT_SHARES)?)
    }

    /// Maps `client_shares` itself.
    pub fn map(map: &MapData) -> Result<Self, MapError> {
        let name = map_name::CLIENT_SHARES;
        let failed = |source| MapError::Access { map: name, action: "mapping it", source };
        let size = map.info().map_err(failed)?.max_entries();
        if size != COUNTERS {
            let (path, expected, found) = (name.into(), COUNTERS.to_string(), size.to_string());
            return Err(MapError::Layout { map: name, path, field: "max_entries", expected, found });
        }
        let window = Window::open(map.fd(), 0, BYTES);
        window.map(Self).map_err(|error| failed(aya::maps::MapError::IoError(error)))
    }

    /// All counters as they are.
    pub fn read(&self) -> Vec<u32> {
        let value = |index: u32| self.counter(index).load(Ordering::Relaxed).cast_signed().max(0).cast_unsigned();
        (0..COUNTERS).map(value).collect()
    }

    /// Adds to a counter.
    pub fn change(&self, index: u32, change: i32) {
        self.counter(index).fetch_add(change.cast_unsigned(), Ordering::Relaxed);
    }

    /// Sets a counter.
    pub fn set(&self, index: u32, count: u32) {
        self.counter(index).store(count, Ordering::Relaxed);
    }

    fn counter(&self, index: u32) -> &AtomicU32 {
        assert!(index < COUNTERS, "counter {index} of {COUNTERS}");
        self.0.word(index as usize * STRIDE)
    }
}
