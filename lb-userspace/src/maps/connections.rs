//! The connections of backends, in the memory that agent and programs share: changed word by word, so that nothing of what
//! programs write beside it is lost, as it would be by a write of the whole element.

use std::{
    io,
    mem::offset_of,
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering},
};

use lb_common::abi::Health;

use super::Table;

const _: () = assert!(size_of::<Health>().is_multiple_of(8), "elements lie one behind the other in the kernel, too");

/// `health4` or `health6`, mapped into this process (Linux 5.5, `BPF_F_MMAPABLE`).
#[derive(Debug)]
pub struct Connections {
    start: NonNull<libc::c_void>,
    bytes: usize,
    capacity: u32,
}

// SAFETY: the memory belongs to the kernel and is reached by atomic loads and stores only.
unsafe impl Send for Connections {}

impl Connections {
    pub fn map(table: &Table<u32, Health>) -> io::Result<Self> {
        let capacity = table.capacity();
        let bytes = capacity as usize * size_of::<Health>();
        let (protection, descriptor) = (libc::PROT_READ | libc::PROT_WRITE, table.raw_descriptor());
        // SAFETY: a new mapping at an address of the kernel's choice; no memory of ours is touched.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, descriptor, 0) };
        match NonNull::new(start) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED => Ok(Self { start, bytes, capacity }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// How many connections the backend has. One of another generation has none here.
    pub fn of(&self, id: u32, generation: u32) -> u32 {
        let own = self.word(id, offset_of!(Health, generation)).map(|word| word.load(Ordering::Relaxed));
        let count = self.word(id, offset_of!(Health, connections)).map(|word| word.load(Ordering::Relaxed));
        if own == Some(generation) { count.unwrap_or_default() } else { 0 }
    }

    /// Whether the programs hold this generation of the backend for suspect.
    pub fn is_suspect(&self, id: u32, generation: u32) -> bool {
        let word = |offset| self.word(id, offset).map(|word| word.load(Ordering::Relaxed));
        word(offset_of!(Health, generation)) == Some(generation)
            && word(offset_of!(Health, suspect_s)).is_some_and(|since_s| since_s != 0)
    }

    /// Adds to them, down to zero; what programs add at the same time is kept. False if what stands there is not about this
    /// generation of the backend.
    pub fn change(&self, id: u32, generation: u32, change: i32) -> bool {
        let own = self.word(id, offset_of!(Health, generation)).map(|word| word.load(Ordering::Relaxed));
        let Some(word) = self.word(id, offset_of!(Health, connections)).filter(|_| own == Some(generation)) else {
            return false;
        };
        let change = |count: u32| Some(count.saturating_add_signed(change));
        word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).is_ok()
    }

    fn word(&self, id: u32, offset: usize) -> Option<&AtomicU32> {
        if id >= self.capacity {
            return None;
        }
        let at = id as usize * size_of::<Health>() + offset;
        // SAFETY: within the mapping, which lives as long as `self`; aligned, as every element begins at a multiple of eight
        // bytes and the fields are words; programs change it word by word, too.
        Some(unsafe { AtomicU32::from_ptr(self.start.as_ptr().cast::<u8>().add(at).cast()) })
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        // SAFETY: the mapping made above, which nothing refers to any more.
        unsafe { libc::munmap(self.start.as_ptr(), self.bytes) };
    }
}
