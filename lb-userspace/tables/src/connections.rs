//! The connections of backends, in the memory that agent and programs share. It is changed word by word, so that nothing is lost that programs write
//! beside it, as it would be by a write of the whole element.

use std::{
    io,
    mem::offset_of,
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    ptr::NonNull,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

use lb_common::abi::Health;

use super::Table;

/// Elements that are mapped together: ids are given from the lowest on, so the many that are not in use take no memory here.
const WINDOW: u32 = 4096;
const WINDOW_BYTES: usize = WINDOW as usize * size_of::<Health>();
/// The largest page of the machines that we run on.
const LARGEST_PAGE: usize = 16384;
const _: () = assert!(size_of::<Health>().is_multiple_of(8), "elements lie one behind the other in the kernel, too");
const _: () = assert!(WINDOW_BYTES.is_multiple_of(LARGEST_PAGE), "a window begins with a page");

/// `health4` or `health6`, mapped into this process part by part as it is asked for (Linux 5.5, `BPF_F_MMAPABLE`).
#[derive(Debug)]
pub struct Connections {
    map: OwnedFd,
    /// `None` inside: it cannot be mapped.
    windows: Vec<OnceLock<Option<Window>>>,
    capacity: u32,
}

impl Connections {
    /// Maps the first part, which shows whether the kernel can.
    pub fn map(table: &Table<u32, Health>) -> io::Result<Self> {
        let (capacity, map) = (table.capacity(), table.open_again()?);
        let windows: Vec<_> = (0..capacity.div_ceil(WINDOW)).map(|_| OnceLock::new()).collect();
        let connections = Self { map, windows, capacity };
        if let Some(first) = connections.windows.first() {
            let window = connections.open(0)?;
            first.get_or_init(|| Some(window));
        }
        Ok(connections)
    }

    fn open(&self, number: usize) -> io::Result<Window> {
        let begin = number * WINDOW_BYTES;
        let bytes = (self.capacity as usize * size_of::<Health>()).saturating_sub(begin).min(WINDOW_BYTES);
        Window::open(&self.map, begin, bytes)
    }

    /// How many connections the backend has. One of another generation has none here.
    pub fn of(&self, id: u32, generation: u32) -> u32 {
        let own = self.word(id, offset_of!(Health, generation)).map(|word| word.load(Ordering::Relaxed));
        let count = self.word(id, offset_of!(Health, connections)).map(|word| word.load(Ordering::Relaxed));
        if own == Some(generation) { count.unwrap_or_default() } else { 0 }
    }

    /// Whether the programs hold this generation of the backend for ejected.
    pub fn is_ejected(&self, id: u32, generation: u32) -> bool {
        let word = |offset| self.word(id, offset).map(|word| word.load(Ordering::Relaxed));
        word(offset_of!(Health, generation)) == Some(generation)
            && word(offset_of!(Health, ejected_s)).is_some_and(|since_s| since_s != 0)
    }

    /// Adds to them, down to zero; what programs add at the same time is kept. False if the record is not about this generation of the backend.
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
        let number = (id / WINDOW) as usize;
        // One that cannot be mapped, where the first one could, has no connections that are known.
        let window = self.windows.get(number)?.get_or_init(|| self.open(number).ok()).as_ref()?;
        Some(window.word((id % WINDOW) as usize * size_of::<Health>() + offset))
    }
}

/// A part of the map in this process.
#[derive(Debug)]
pub(super) struct Window {
    start: NonNull<libc::c_void>,
    bytes: usize,
}

// SAFETY: the memory belongs to the kernel and is reached by atomic loads and stores only.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// Maps so many bytes of the map.
    pub fn open(map: impl AsFd, begin: usize, bytes: usize) -> io::Result<Self> {
        let (protection, descriptor) = (libc::PROT_READ | libc::PROT_WRITE, map.as_fd().as_raw_fd());
        let begin = libc::off_t::try_from(begin).map_err(io::Error::other)?;
        // SAFETY: a new mapping at an address of the kernel's choice; no memory of ours is touched.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, descriptor, begin) };
        match NonNull::new(start) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED => Ok(Self { start, bytes }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The word that begins at this byte: one of an element, which begins at a multiple of eight bytes.
    pub fn word(&self, at: usize) -> &AtomicU32 {
        assert!(
            at + size_of::<u32>() <= self.bytes && at.is_multiple_of(size_of::<u32>()),
            "byte {at} of {}",
            self.bytes
        );
        // SAFETY: within the window, which lives as long as `self`, and aligned; programs change it word by word, too.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().cast::<u8>().add(at).cast()) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the mapping made above, which nothing refers to any more.
        unsafe { libc::munmap(self.start.as_ptr(), self.bytes) };
    }
}
