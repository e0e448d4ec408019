//! Which destinations are certainly no service's, in the memory that agent and programs share: written word by word, with no call.

use std::{
    io,
    net::IpAddr,
    os::fd::{AsFd as _, AsRawFd as _},
    path::Path,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use aya::maps::MapData;
use lb_common::{
    abi::map_name,
    vip_filter::{WORDS, bit, place},
};

use super::{MapError, pins, table};

const BYTES: usize = WORDS * size_of::<u64>();

/// `vip_filter`, mapped into this process (Linux 5.5, `BPF_F_MMAPABLE`).
#[derive(Debug)]
pub struct VipFilter(NonNull<libc::c_void>);

// SAFETY: the memory belongs to the kernel and is reached by atomic loads and stores only.
unsafe impl Send for VipFilter {}
// SAFETY: as above.
unsafe impl Sync for VipFilter {}

impl VipFilter {
    /// Maps what is pinned in `dir`. `None`: the tables there are of a version without it, and so are its programs.
    pub fn open(dir: &Path) -> Result<Option<Self>, MapError> {
        let map = match pins::data(dir, map_name::VIP_FILTER) {
            Err(MapError::Missing { .. }) => return Ok(None),
            found => found?,
        };
        let size = map.info().map_err(failed)?.value_size();
        if size as usize != BYTES {
            let (path, expected, found) = (dir.join(map_name::VIP_FILTER), BYTES.to_string(), size.to_string());
            return Err(MapError::Layout { map: map_name::VIP_FILTER, path, field: "value size", expected, found });
        }
        Self::map(&map).map(Some)
    }

    /// Maps `vip_filter` itself, which must have the layout of this version.
    pub fn map(map: &MapData) -> Result<Self, MapError> {
        let (protection, descriptor) = (libc::PROT_READ | libc::PROT_WRITE, map.fd().as_fd().as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice; no memory of ours is touched. It outlives the descriptor.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, libc::MAP_SHARED, descriptor, 0) };
        match NonNull::new(start) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED => Ok(Self(start)),
            _ => Err(failed(aya::maps::MapError::IoError(io::Error::last_os_error()))),
        }
    }

    /// From here on the address may be a service's. Before anything that serves it is written.
    pub fn know(&self, address: IpAddr) {
        let (word, mask) = place(bit_of(address));
        self.words()[word].fetch_and(!mask, Ordering::SeqCst);
    }

    /// All words as they are.
    pub fn read(&self) -> Vec<u64> {
        self.words().iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    /// Writes those words that differ.
    pub fn write(&self, words: &[u64]) {
        for (there, wanted) in self.words().iter().zip(words) {
            if there.load(Ordering::Relaxed) != *wanted {
                there.store(*wanted, Ordering::SeqCst);
            }
        }
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: as many words as were mapped, at the start of a page, for as long as `self` lives; only ever reached as atomics here,
        // and read by the programs.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast::<AtomicU64>(), WORDS) }
    }
}

impl Drop for VipFilter {
    fn drop(&mut self) {
        // SAFETY: the mapping made above, which nothing refers to any more.
        unsafe { libc::munmap(self.0.as_ptr(), BYTES) };
    }
}

/// The filter's words for a reader that cannot write. Each question reads them all: the kernel maps no memory by a descriptor for reading alone.
#[derive(Debug)]
pub struct VipFilterReader(MapData);

impl VipFilterReader {
    /// Opens what is pinned in `dir`. `None`: the tables there are of a version without it.
    pub fn open(dir: &Path) -> Result<Option<Self>, MapError> {
        let map = match pins::read_only(&dir.join(map_name::VIP_FILTER), map_name::VIP_FILTER) {
            Err(MapError::Missing { .. }) => return Ok(None),
            found => found?,
        };
        let fits = map.info().map_err(failed)?.value_size() as usize == BYTES;
        Ok(fits.then_some(Self(map)))
    }

    /// Whether the address is certainly no service's.
    pub fn is_ruled_out(&self, address: IpAddr) -> bool {
        let mut words = vec![0_u64; WORDS];
        table::first(&self.0, &mut words).is_ok() && is_ruled_out(&words, address)
    }
}

fn failed(source: aya::maps::MapError) -> MapError {
    MapError::Access { map: map_name::VIP_FILTER, action: "mapping it", source }
}

/// The bit of an address of either family.
fn bit_of(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(v4) => bit(&v4.octets()),
        IpAddr::V6(v6) => bit(&v6.octets()),
    }
}

/// The words that rule out every address but these.
pub fn all_but(addresses: impl Iterator<Item = IpAddr>) -> Vec<u64> {
    let mut words = vec![u64::MAX; WORDS];
    addresses.for_each(|address| know(&mut words, address));
    words
}

/// As [`VipFilter::know`], in a copy of the words; an empty copy rules nothing out.
pub fn know(words: &mut [u64], address: IpAddr) {
    let (word, mask) = place(bit_of(address));
    if let Some(word) = words.get_mut(word) {
        *word &= !mask;
    }
}

/// Whether these words rule the address out.
pub fn is_ruled_out(words: &[u64], address: IpAddr) -> bool {
    let (word, mask) = place(bit_of(address));
    words.get(word).is_some_and(|word| word & mask != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_are_known_who_were_named_and_who_share_a_bit_with_them() {
        let known = ["10.96.0.1", "fd00::1", "192.0.2.7"].map(|address| address.parse().unwrap());
        let mut words = all_but(known.into_iter());
        assert!(known.iter().all(|address| !is_ruled_out(&words, *address)));
        let other = "10.96.0.2".parse().unwrap();
        assert!(is_ruled_out(&words, other) && is_ruled_out(&words, "fd00::2".parse().unwrap()));
        know(&mut words, other);
        assert!(!is_ruled_out(&words, other) && !is_ruled_out(&[], "10.1.1.1".parse().unwrap()));
        assert_eq!(words.iter().map(|word| word.count_zeros()).sum::<u32>(), 4);
    }
}
