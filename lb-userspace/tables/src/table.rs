//! One pinned map by bpf(2) itself: in batches where the kernel has them (Linux 5.6), one element at a time where not.
//!
//! aya 0.14 has no batches. A batch of one is not worth its set-up, so a lone element takes the plain call.

use std::{
    io,
    marker::PhantomData,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use aya::{Pod, maps::MapData};
use aya_obj::generated::bpf_cmd;
use lb_common::map::Map;

mod opened;
mod part;

pub(super) use opened::Opened;
pub use opened::{open, open_path_read_only};
pub use part::Cursor;

/// Elements in one call: bounded, so that no other map user waits long.
pub(super) const BATCH: usize = 4096;
/// The kernel's own number for an operation that a map type lacks (`ENOTSUPP`); it has no name in libc.
const ENOTSUPP: i32 = 524;

/// Counts system calls of all tables of one opening.
#[derive(Clone, Debug, Default)]
pub struct Calls(Arc<AtomicU64>);

impl Calls {
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A hash, array or LPM map with keys `K` and values `V`. Copies of it share the descriptor.
#[derive(Debug)]
pub struct Table<K, V> {
    opened: Arc<Opened>,
    kinds: PhantomData<(K, V)>,
}

/// The table of a map of the declaration.
pub type TableOf<M> = Table<<M as Map>::Key, <M as Map>::Value>;

/// `union bpf_attr` of the commands for one element.
#[repr(C)]
#[derive(Default)]
pub(super) struct Element {
    pub map: u32,
    pub pad: u32,
    pub key: u64,
    /// Or the next key.
    pub value: u64,
    pub flags: u64,
}

/// `union bpf_attr` of the batch commands.
#[repr(C)]
#[derive(Default)]
pub(super) struct Batch {
    /// Where to begin; null: at the start.
    pub from: u64,
    /// Room for where the next one begins.
    pub to: u64,
    pub keys: u64,
    pub values: u64,
    pub count: u32,
    pub map: u32,
    pub elem_flags: u64,
    pub flags: u64,
}

impl<K, V> Clone for Table<K, V> {
    fn clone(&self) -> Self {
        Self { opened: self.opened.clone(), kinds: PhantomData }
    }
}

impl<K: Pod, V: Pod> Table<K, V> {
    /// The table of a map that was opened with the sizes of these keys and values.
    pub(super) fn at(opened: Arc<Opened>) -> Self {
        Self { opened, kinds: PhantomData }
    }

    pub(super) fn opened(&self) -> Arc<Opened> {
        self.opened.clone()
    }

    pub fn name(&self) -> &'static str {
        self.opened.name
    }

    pub fn capacity(&self) -> u32 {
        self.opened.capacity
    }

    /// A descriptor of its own.
    pub(super) fn open_again(&self) -> io::Result<OwnedFd> {
        self.opened.map.fd().as_fd().try_clone_to_owned()
    }

    /// `None`: not there.
    pub fn get(&self, key: &K) -> io::Result<Option<V>> {
        self.read_by(bpf_cmd::BPF_MAP_LOOKUP_ELEM, key)
    }

    /// The element that this command reads.
    fn read_by(&self, command: bpf_cmd, key: &K) -> io::Result<Option<V>> {
        let mut value = Vec::<V>::with_capacity(1);
        if !present(self.element(command, address(key), value.as_mut_ptr() as u64))? {
            return Ok(None);
        }
        // SAFETY: the kernel wrote one value; every bit pattern is a valid `Pod`.
        unsafe { value.set_len(1) };
        Ok(value.pop())
    }

    /// Writes or replaces one element.
    pub fn put(&self, key: &K, value: &V) -> io::Result<()> {
        self.element(bpf_cmd::BPF_MAP_UPDATE_ELEM, address(key), address(value))
    }

    /// Writes many elements; a result for each. One that fails keeps no other from being written.
    pub fn put_all(&self, keys: &[K], values: &[V]) -> Vec<io::Result<()>> {
        let count = keys.len().min(values.len());
        let mut results = Vec::with_capacity(count);
        while results.len() < count {
            let from = results.len();
            let to = count.min(from + BATCH);
            let done = self.put_batch(&keys[from..to], &values[from..to]);
            results.extend((0..done).map(|_| Ok(())));
            if from + done < to {
                // Where the batch stopped, a call for the element alone returns why; or does it, where there are no batches.
                results.push(self.put(&keys[from + done], &values[from + done]));
            }
        }
        results
    }

    /// Writes elements up to the first failure, and returns how many.
    fn put_batch(&self, keys: &[K], values: &[V]) -> usize {
        if keys.len() < 2 || !self.opened.batches.load(Ordering::Relaxed) {
            return 0;
        }
        let count = u32::try_from(keys.len()).unwrap_or(u32::MAX);
        let (keys, values) = (keys.as_ptr() as u64, values.as_ptr() as u64);
        let mut attributes = Batch { keys, values, count, map: self.descriptor(), ..Batch::default() };
        match self.call(bpf_cmd::BPF_MAP_UPDATE_BATCH, &mut attributes) {
            Ok(()) => count as usize,
            Err(error) => {
                if is_unsupported(&error) && attributes.count == count {
                    self.opened.batches.store(false, Ordering::Relaxed);
                }
                // An error found before the first element leaves the count as it was.
                if attributes.count < count { attributes.count as usize } else { 0 }
            }
        }
    }

    /// False if it was not there.
    pub fn remove(&self, key: &K) -> io::Result<bool> {
        present(self.element(bpf_cmd::BPF_MAP_DELETE_ELEM, address(key), 0))
    }

    /// Passes every element to `take`: each once, if nothing comes or goes meanwhile. False if the table changed faster than it
    /// could be read to its end.
    pub fn each(&self, mut take: impl FnMut(&K, &V)) -> io::Result<bool> {
        let mut position = Position::<K>::start();
        // Twice its size, as a hash may grow while it is read.
        let mut left = 2 * self.opened.capacity as usize + BATCH;
        let mut count = BATCH;
        while left > 0 {
            match self.read_batch(&mut position, count) {
                Ok((keys, values, more)) => {
                    keys.iter().zip(&values).for_each(|(key, value)| take(key, value));
                    left = left.saturating_sub(keys.len().max(1));
                    if !more {
                        return Ok(true);
                    }
                }
                // A bucket holds more than was asked for.
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) && count < self.opened.capacity as usize => {
                    count *= 2;
                }
                Err(error) if is_unsupported(&error) && !position.is_started() => return self.each_single(take),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// All elements. Half of a table is no answer: what it lacks would pass for gone.
    pub fn read(&self) -> io::Result<Vec<(K, V)>> {
        let mut elements = Vec::new();
        let whole = self.each(|key, value| elements.push((*key, *value)))?;
        if whole { Ok(elements) } else { Err(io::Error::other("it changed faster than it could be read")) }
    }

    fn each_single(&self, mut take: impl FnMut(&K, &V)) -> io::Result<bool> {
        let mut key: Option<K> = None;
        for _ in 0..2 * u64::from(self.opened.capacity) {
            let mut next = Vec::<K>::with_capacity(1);
            let before = key.as_ref().map_or(0, address);
            let found = self.element(bpf_cmd::BPF_MAP_GET_NEXT_KEY, before, next.as_mut_ptr() as u64);
            if !present(found)? {
                return Ok(true);
            }
            // SAFETY: the kernel wrote one key; every bit pattern is a valid `Pod`.
            unsafe { next.set_len(1) };
            key = next.pop();
            if let Some(key) = &key
                && let Some(value) = self.get(key)?
            {
                take(key, &value);
            }
        }
        Ok(false)
    }

    /// Keys, values, and whether there are more.
    fn read_batch(&self, position: &mut Position<K>, count: usize) -> io::Result<(Vec<K>, Vec<V>, bool)> {
        let (mut keys, mut values) = (Vec::<K>::with_capacity(count), Vec::<V>::with_capacity(count));
        let mut after = position.clone();
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let mut attributes = Batch {
            from: if position.is_started() { position.bytes.as_ptr() as u64 } else { 0 },
            to: after.bytes.as_mut_ptr() as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count,
            map: self.descriptor(),
            ..Batch::default()
        };
        let more = present(self.call(bpf_cmd::BPF_MAP_LOOKUP_BATCH, &mut attributes))?;
        let found = attributes.count.min(count) as usize;
        // SAFETY: the kernel wrote `found` of each, within the room of `count`; every bit pattern is a valid `Pod`.
        unsafe {
            keys.set_len(found);
            values.set_len(found);
        }
        after.started = true;
        *position = after;
        Ok((keys, values, more))
    }

    fn element(&self, command: bpf_cmd, key: u64, value: u64) -> io::Result<()> {
        self.call(command, &mut Element { map: self.descriptor(), key, value, ..Element::default() })
    }

    fn descriptor(&self) -> u32 {
        self.opened.descriptor()
    }

    fn call<T>(&self, command: bpf_cmd, attributes: &mut T) -> io::Result<()> {
        call(&self.opened.calls, command, attributes)
    }
}

/// Reads the one element of an array, whose value must have the size of these words.
pub(super) fn first(map: &MapData, words: &mut [u64]) -> io::Result<()> {
    let key = 0_u32;
    let descriptor = map.fd().as_fd().as_raw_fd().unsigned_abs();
    let (key, value) = (&raw const key as u64, words.as_mut_ptr() as u64);
    let mut element = Element { map: descriptor, key, value, ..Element::default() };
    call(&Calls::default(), bpf_cmd::BPF_MAP_LOOKUP_ELEM, &mut element)
}

/// One call of bpf(2). Every pointer in the attributes must have room for as many keys, values or positions, of the sizes of the map, as the
/// command reads or writes there.
pub(super) fn call<T>(calls: &Calls, command: bpf_cmd, attributes: &mut T) -> io::Result<()> {
    calls.add();
    // SAFETY: the attributes are a live repr(C) record that begins like `union bpf_attr` for this command, and their size goes with them. Every
    // pointer in them outlives the call. Each has room for as many keys, values or positions as the command reads or writes there, of the sizes that
    // were compared when the map was opened.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command as libc::c_long, &raw mut *attributes, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl<V: Pod> Table<u32, V> {
    /// Elements of an array from index `base` on.
    pub fn read_range(&self, base: u32, count: u32) -> io::Result<Vec<V>> {
        let mut values = Vec::with_capacity(count as usize);
        let mut position = base.checked_sub(1).map_or_else(Position::start, Position::after);
        while values.len() < count as usize {
            let left = (count as usize - values.len()).min(BATCH);
            if left > 1 && self.opened.batches.load(Ordering::Relaxed) {
                let (_, found, more) = self.read_batch(&mut position, left)?;
                values.extend(found);
                if more {
                    continue;
                }
                break;
            }
            let index = base + u32::try_from(values.len()).unwrap_or(u32::MAX);
            let Some(value) = self.get(&index)? else { break };
            values.push(value);
            position = Position::after(index);
        }
        Ok(values)
    }
}

/// Where a batch begins: behind a bucket of a hash, or behind a key of another map.
#[derive(Clone)]
struct Position<K> {
    bytes: Vec<u8>,
    started: bool,
    kind: PhantomData<K>,
}

impl<K: Pod> Position<K> {
    fn start() -> Self {
        Self { bytes: vec![0; size_of::<K>().max(size_of::<u32>())], started: false, kind: PhantomData }
    }

    fn is_started(&self) -> bool {
        self.started
    }
}

impl Position<u32> {
    fn after(index: u32) -> Self {
        Self { bytes: index.to_ne_bytes().to_vec(), started: true, kind: PhantomData }
    }
}

fn address<T>(value: &T) -> u64 {
    std::ptr::from_ref(value) as u64
}

/// Not there is an answer, not an error.
pub(super) fn present(result: io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(ENOTSUPP | libc::EOPNOTSUPP | libc::EINVAL))
}
