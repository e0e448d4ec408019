//! Reads a whole pinned map in few system calls (`BPF_MAP_LOOKUP_BATCH`, Linux 5.6).
//!
//! One call returns whole buckets, so an element that stays is seen once, whatever else comes and goes. Iterating by keys starts over when its key is
//! deleted, and costs two calls per element.

use std::{io, os::fd::AsRawFd as _, path::Path};

use aya::Pod;
use aya::maps::MapData;

/// Number of the command in the kernel's `enum bpf_cmd`.
const BPF_MAP_LOOKUP_BATCH: libc::c_long = 24;
/// Elements asked for at first; a bucket that holds more doubles it.
const FIRST_COUNT: u32 = 4096;

/// The part of `union bpf_attr` that batch commands read.
#[repr(C)]
#[derive(Default)]
struct BatchAttributes {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// All elements of the hash, LRU hash or array map pinned at `path`.
///
/// `K` and `V` must be as large as the map's keys and values; a map of other sizes is refused.
pub fn read<K: Pod, V: Pod>(path: &Path) -> io::Result<Vec<(K, V)>> {
    let mut elements = Vec::new();
    batches(path, FIRST_COUNT, |keys: Vec<K>, values: Vec<V>| {
        elements.extend(keys.into_iter().zip(values));
        true
    })?;
    Ok(elements)
}

/// The first elements of the array pinned at `path`, in the order of their indices.
pub fn read_first<V: Pod>(path: &Path, elements: u32) -> io::Result<Vec<V>> {
    let mut first = Vec::new();
    if elements > 0 {
        let wanted = elements as usize;
        batches(path, elements.min(FIRST_COUNT), |_: Vec<u32>, values: Vec<V>| {
            first.extend(values);
            first.len() < wanted
        })?;
    }
    Ok(first)
}

/// How many elements a hash or LRU hash map holds. Keeps none of them.
pub fn count<K: Pod, V: Pod>(path: &Path) -> io::Result<u64> {
    walk::<K, V>(path, |_| ())
}

/// Shows each value of a hash or LRU hash map to `look`, and counts them. Keeps none of them.
pub fn walk<K: Pod, V: Pod>(path: &Path, mut look: impl FnMut(&V)) -> io::Result<u64> {
    let mut count = 0;
    batches(path, FIRST_COUNT, |keys: Vec<K>, values: Vec<V>| {
        count += keys.len() as u64;
        values.iter().for_each(&mut look);
        true
    })?;
    Ok(count)
}

/// Gives batch after batch to `take`, until that wants no more.
fn batches<K: Pod, V: Pod>(
    path: &Path,
    first_count: u32,
    mut take: impl FnMut(Vec<K>, Vec<V>) -> bool,
) -> io::Result<()> {
    let map = MapData::from_pin(path).map_err(io::Error::other)?;
    let info = map.info().map_err(io::Error::other)?;
    if info.key_size() as usize != size_of::<K>() || info.value_size() as usize != size_of::<V>() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "{} has keys of {} and values of {} bytes, expected {} and {}: another version made it",
                path.display(),
                info.key_size(),
                info.value_size(),
                size_of::<K>(),
                size_of::<V>()
            ),
        ));
    }
    let (mut position, mut count) = (None, first_count);
    loop {
        let (mut keys, mut values) = (Vec::<K>::new(), Vec::<V>::new());
        match next(map.fd(), &mut position, &mut keys, &mut values, count) {
            Ok(more) => {
                if !take(keys, values) || !more {
                    return Ok(());
                }
            }
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) && count < info.max_entries() => count *= 2,
            Err(error) => return Err(error),
        }
    }
}

/// One batch. Returns whether there is more.
fn next<K: Pod, V: Pod>(
    map: &aya::maps::MapFd,
    position: &mut Option<u32>,
    keys: &mut Vec<K>,
    values: &mut Vec<V>,
    count: u32,
) -> io::Result<bool> {
    use std::os::fd::AsFd as _;
    keys.reserve_exact(count as usize);
    values.reserve_exact(count as usize);
    let mut after = 0_u32;
    let mut attributes = BatchAttributes {
        in_batch: position.as_ref().map_or(0, |position| std::ptr::from_ref(position) as u64),
        out_batch: std::ptr::from_mut(&mut after) as u64,
        keys: keys.as_mut_ptr() as u64,
        values: values.as_mut_ptr() as u64,
        count,
        map_fd: map.as_fd().as_raw_fd().cast_unsigned(),
        ..BatchAttributes::default()
    };
    // SAFETY: the kernel writes at most `count` keys and values of the sizes compared above, into buffers with that room. It reads and writes one
    // 32-bit position (a bucket for hashes, an index for arrays); all of them live across the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_MAP_LOOKUP_BATCH,
            std::ptr::from_mut(&mut attributes),
            size_of::<BatchAttributes>(),
        )
    };
    let end = match result {
        0 => false,
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENOENT) => true,
            error => return Err(error),
        },
    };
    let found = attributes.count.min(count) as usize;
    // SAFETY: the kernel wrote `found` of each, within the room reserved; every bit pattern is a valid `Pod`.
    unsafe {
        keys.set_len(found);
        values.set_len(found);
    }
    *position = Some(after);
    Ok(!end)
}
