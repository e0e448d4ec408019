//! Keys that a program makes up itself, one for each run, and the records that tables hold. `A` is the length of an address in words.

use aya_ebpf::btf_maps::PerCpuArray;
use aya_ebpf::macros::btf_map;

/// A tuple, as long as Ballast's: 16 and 40 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Key<const A: usize> {
    pub src: [u32; A],
    pub dst: [u32; A],
    pub ports: u32,
    pub protocol: u32,
}

/// As long as Ballast's: 40 and 64 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Flow<const A: usize> {
    pub tag: u32,
    pub backend: u32,
    pub seen_s: u32,
    pub since_s: u32,
    pub isn: u32,
    pub address: [u32; A],
    pub client: [u32; A],
    pub ports: u32,
    pub state: u32,
    pub link: u32,
}

/// Which keys the next runs make.
#[repr(C)]
pub struct Task {
    /// Number of the first key.
    base: u32,
    /// Keys, a power of two less one.
    mask: u32,
    /// 0: one after the other. Otherwise at random.
    scatter: u32,
    /// Runs so far.
    turn: u32,
}

/// Each CPU has its own, so that two of them can work at the same time.
#[btf_map(name = "a_task")]
pub static TASK: PerCpuArray<Task, 1> = PerCpuArray::new();

/// The key of this run.
#[inline(always)]
pub fn next<const A: usize>() -> Option<Key<A>> {
    number().map(key)
}

/// Its number.
#[inline(always)]
pub fn number() -> Option<u32> {
    let task = TASK.get_ptr_mut(0)?;
    // SAFETY: this CPU's element, which is of this type.
    Some(unsafe {
        let turn = (*task).turn;
        (*task).turn = turn.wrapping_add(1);
        let place = if (*task).scatter == 0 { turn } else { mixed(turn) };
        (*task).base.wrapping_add(place & (*task).mask)
    })
}

/// The key of this number: addresses differ in their last words, as those of one network do.
#[inline(always)]
pub fn key<const A: usize>(number: u32) -> Key<A> {
    let mut key = Key { src: [0xfd; A], dst: [0xfd; A], ports: 0x5000_0000 | (number & 0xffff), protocol: 6 };
    key.src[A - 1] = 0x0a00_0000 | (number >> 4);
    key.dst[A - 1] = 0x0a60_0001;
    key
}

/// Another value for a key of this number.
#[inline(always)]
pub fn flow<const A: usize>(key: &Key<A>) -> Flow<A> {
    Flow {
        tag: tag(key),
        backend: 7,
        seen_s: 1,
        since_s: 1,
        isn: 1,
        address: key.dst,
        client: key.src,
        ports: key.ports,
        state: 1,
        link: 0,
    }
}

/// What tells an element from another one that took its place.
#[inline(always)]
pub fn tag<const A: usize>(key: &Key<A>) -> u32 {
    key.src[A - 1] ^ key.ports.rotate_left(7)
}

/// Looks like chance, and is the same each time.
#[inline(always)]
pub fn mixed(number: u32) -> u32 {
    let number = (number ^ (number >> 16)).wrapping_mul(0x7feb_352d);
    let number = (number ^ (number >> 15)).wrapping_mul(0x846c_a68b);
    number ^ (number >> 16)
}
