//! Tables of our own in an array: four ways to a bucket, found by a tag, and the one that was written first gives way. Once under the kernel's
//! spin lock, once with a version for each way, which who writes takes by compare and exchange.

use core::arch::asm;

use aya_ebpf::bindings::{BPF_F_MMAPABLE, bpf_spin_lock};
use aya_ebpf::btf_maps::Array;
use aya_ebpf::helpers::generated::{bpf_spin_lock as lock, bpf_spin_unlock as unlock};

use crate::keys::{Flow, Key, mixed};
use crate::tables::{Table, read};

const WAYS: usize = 4;
/// Elements begin with a page, and so with a cache line.
const ALIGNED: usize = BPF_F_MMAPABLE as usize;

/// One element: a cache line, or two.
#[repr(C, align(64))]
pub struct Way<const A: usize> {
    key: Key<A>,
    flow: Flow<A>,
}

/// What a look-up reads first: one cache line.
#[repr(C)]
struct Head {
    /// 0: free.
    tags: [u32; WAYS],
    /// When each was written, as a count.
    written: [u32; WAYS],
}

#[repr(C, align(64))]
pub struct FreeBucket<const A: usize> {
    /// Odd while somebody writes.
    versions: [u64; WAYS],
    head: Head,
    ways: [Way<A>; WAYS],
}

#[repr(C, align(64))]
pub struct LockedBucket<const A: usize> {
    lock: bpf_spin_lock,
    head: Head,
    ways: [Way<A>; WAYS],
}

pub type Free<const A: usize, const BUCKETS: usize> = Array<FreeBucket<A>, BUCKETS, ALIGNED>;
pub type Locked<const A: usize, const BUCKETS: usize> = Array<LockedBucket<A>, BUCKETS, ALIGNED>;

/// Bucket and tag of a key.
#[inline(always)]
fn place<const A: usize>(key: &Key<A>, buckets: usize) -> (u32, u32) {
    let mut hash = (u64::from(key.ports) << 32 | u64::from(key.protocol)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 31;
    for word in 0..A {
        let addresses = u64::from(key.src[word]) << 32 | u64::from(key.dst[word]);
        hash = (hash ^ addresses).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 29;
    }
    hash = hash.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed((hash >> 32) as u32) & (buckets as u32 - 1), hash as u32 | 1)
}

#[inline(always)]
unsafe fn is_key<const A: usize>(way: *const Way<A>, key: &Key<A>) -> bool {
    // SAFETY: the caller's element.
    unsafe {
        let there = &raw const (*way).key;
        let mut differs = (&raw const (*there).ports).read_volatile() ^ key.ports;
        differs |= (&raw const (*there).protocol).read_volatile() ^ key.protocol;
        for word in 0..A {
            differs |= (&raw const (*there).src[word]).read_volatile() ^ key.src[word];
            differs |= (&raw const (*there).dst[word]).read_volatile() ^ key.dst[word];
        }
        differs == 0
    }
}

#[inline(always)]
unsafe fn newest(head: *const Head) -> u32 {
    // SAFETY: the caller's element.
    unsafe { (*head).written.iter().fold(0, |newest, written| newest.max(*written)) }
}

/// Where a key is written: its own place, a free one, or that which was written first.
#[inline(always)]
unsafe fn choose<const A: usize>(head: *const Head, ways: *const [Way<A>; WAYS], key: &Key<A>, tag: u32) -> usize {
    // SAFETY: the caller's element.
    unsafe {
        let (mut best, mut best_age) = (0, 0);
        let now = newest(head);
        for way in 0..WAYS {
            let found = (&raw const (*head).tags[way]).read_volatile();
            if found == tag && is_key(&raw const (*ways)[way], key) {
                return way;
            }
            let age = if found == 0 { u32::MAX } else { now.wrapping_sub((*head).written[way]) };
            if age >= best_age {
                (best, best_age) = (way, age);
            }
        }
        best
    }
}

macro_rules! with_way {
    ($at:expr, $way:ident, $work:block) => {
        match $at {
            0 => {
                let $way = 0;
                $work
            }
            1 => {
                let $way = 1;
                $work
            }
            2 => {
                let $way = 2;
                $work
            }
            _ => {
                let $way = 3;
                $work
            }
        }
    };
}

#[inline(always)]
unsafe fn write<const A: usize>(
    head: *mut Head,
    ways: *mut [Way<A>; WAYS],
    way: usize,
    tag: u32,
    key: &Key<A>,
    flow: &Flow<A>,
) {
    // SAFETY: the caller's element, which is the caller's alone now.
    unsafe {
        (*head).written[way] = newest(head).wrapping_add(1);
        (*head).tags[way] = tag;
        (*ways)[way].key = *key;
        (*ways)[way].flow = *flow;
    }
}

impl<const A: usize, const BUCKETS: usize> Table<A> for Array<LockedBucket<A>, BUCKETS, ALIGNED> {
    #[inline(always)]
    fn find(&self, key: &Key<A>) -> bool {
        let (index, tag) = place(key, BUCKETS);
        let Some(bucket) = self.get_ptr_mut(index) else { return false };
        let mut is_found = false;
        // SAFETY: an element of this type, under its lock.
        unsafe {
            lock(&raw mut (*bucket).lock);
            for way in 0..WAYS {
                if (*bucket).head.tags[way] == tag && is_key(&raw const (*bucket).ways[way], key) {
                    read(&raw const (*bucket).ways[way].flow);
                    is_found = true;
                    break;
                }
            }
            unlock(&raw mut (*bucket).lock);
        }
        is_found
    }

    #[inline(always)]
    fn put(&self, key: &Key<A>, flow: &Flow<A>) -> bool {
        let (index, tag) = place(key, BUCKETS);
        let Some(bucket) = self.get_ptr_mut(index) else { return false };
        // SAFETY: as above.
        unsafe {
            lock(&raw mut (*bucket).lock);
            let (head, ways) = (&raw mut (*bucket).head, &raw mut (*bucket).ways);
            with_way!(choose(head, ways, key, tag), way, { write(head, ways, way, tag, key, flow) });
            unlock(&raw mut (*bucket).lock);
        }
        true
    }

    #[inline(always)]
    fn take(&self, key: &Key<A>) -> bool {
        let (index, tag) = place(key, BUCKETS);
        let Some(bucket) = self.get_ptr_mut(index) else { return false };
        let mut is_found = false;
        // SAFETY: as above.
        unsafe {
            lock(&raw mut (*bucket).lock);
            for way in 0..WAYS {
                if (*bucket).head.tags[way] == tag && is_key(&raw const (*bucket).ways[way], key) {
                    (*bucket).head.tags[way] = 0;
                    is_found = true;
                    break;
                }
            }
            unlock(&raw mut (*bucket).lock);
        }
        is_found
    }
}

/// Whether the version was still this one, and even: it is odd now, and its element ours.
#[inline(always)]
unsafe fn acquire(version: *mut u64) -> Option<u64> {
    // SAFETY: the caller's element, aligned; libcore has no such operation for this target, the instruction set has.
    unsafe {
        let found = version.read_volatile();
        let mut seen = found;
        if found & 1 == 0 {
            let new = found.wrapping_add(1);
            asm!("r0 = cmpxchg_64({version} + 0, r0, {new})", version = in(reg) version, new = in(reg) new, inout("r0") seen);
        }
        (found & 1 == 0 && seen == found).then_some(found)
    }
}

impl<const A: usize, const BUCKETS: usize> Table<A> for Array<FreeBucket<A>, BUCKETS, ALIGNED> {
    #[inline(always)]
    fn find(&self, key: &Key<A>) -> bool {
        let (index, tag) = place(key, BUCKETS);
        let Some(bucket) = self.get_ptr_mut(index) else { return false };
        // SAFETY: an element of this type; what is read counts only if its version is even and the same before and after.
        unsafe {
            for way in 0..WAYS {
                if (&raw const (*bucket).head.tags[way]).read_volatile() != tag {
                    continue;
                }
                let version = &raw const (*bucket).versions[way];
                let before = version.read_volatile();
                if is_key(&raw const (*bucket).ways[way], key) {
                    read(&raw const (*bucket).ways[way].flow);
                    return before & 1 == 0 && version.read_volatile() == before;
                }
            }
        }
        false
    }

    #[inline(always)]
    fn put(&self, key: &Key<A>, flow: &Flow<A>) -> bool {
        let (index, tag) = place(key, BUCKETS);
        let Some(bucket) = self.get_ptr_mut(index) else { return false };
        // SAFETY: an element of this type, and of its ways only one that is ours.
        unsafe {
            let (head, ways) = (&raw mut (*bucket).head, &raw mut (*bucket).ways);
            with_way!(choose(head, ways, key, tag), way, {
                let version = &raw mut (*bucket).versions[way];
                let Some(found) = acquire(version) else { return false };
                write(head, ways, way, tag, key, flow);
                version.write_volatile(found.wrapping_add(2));
            });
        }
        true
    }

    #[inline(always)]
    fn take(&self, key: &Key<A>) -> bool {
        let (index, tag) = place(key, BUCKETS);
        let Some(bucket) = self.get_ptr_mut(index) else { return false };
        // SAFETY: as above.
        unsafe {
            let (head, ways) = (&raw mut (*bucket).head, &raw const (*bucket).ways);
            for way in 0..WAYS {
                if (*head).tags[way] == tag && is_key(&raw const (*ways)[way], key) {
                    let version = &raw mut (*bucket).versions[way];
                    let Some(found) = acquire(version) else { return false };
                    (*head).tags[way] = 0;
                    version.write_volatile(found.wrapping_add(2));
                    return true;
                }
            }
        }
        false
    }
}
