//! Tables of flows: look-up, insert, and insert with delete, in each kind that a table might be of.

use aya_ebpf::bindings::{BPF_F_NO_COMMON_LRU, BPF_F_NO_PREALLOC};
use aya_ebpf::btf_maps::{HashMap, LruHashMap};
use aya_ebpf::macros::{btf_map, classifier};
use aya_ebpf::programs::TcContext;

use crate::keys::{Flow, Key, flow, next, tag};
use crate::own::{Free, Locked};

pub const FLOWS4: usize = 262_144;
pub const FLOWS6: usize = 131_072;
const PER_CPU_LISTS: usize = BPF_F_NO_COMMON_LRU as usize;
const ON_DEMAND: usize = BPF_F_NO_PREALLOC as usize;

/// What a table of flows does.
pub trait Table<const A: usize> {
    /// Reads the flow of this key, if it is there.
    fn find(&self, key: &Key<A>) -> bool;
    fn put(&self, key: &Key<A>, flow: &Flow<A>) -> bool;
    fn take(&self, key: &Key<A>) -> bool;
}

macro_rules! hash {
    ($kind:ident) => {
        impl<const A: usize, const MAX: usize, const FLAGS: usize> Table<A> for $kind<Key<A>, Flow<A>, MAX, FLAGS> {
            #[inline(always)]
            fn find(&self, key: &Key<A>) -> bool {
                // SAFETY: an element of this type, which may be taken for another key meanwhile.
                self.get_ptr(key).is_some_and(|flow| unsafe { read(flow) } == tag(key))
            }

            #[inline(always)]
            fn put(&self, key: &Key<A>, flow: &Flow<A>) -> bool {
                self.insert(key, flow, 0).is_ok()
            }

            #[inline(always)]
            fn take(&self, key: &Key<A>) -> bool {
                self.remove(key).is_ok()
            }
        }
    };
}

hash!(LruHashMap);
hash!(HashMap);

/// Reads what a known packet needs, and returns the tag.
#[inline(always)]
pub unsafe fn read<const A: usize>(flow: *const Flow<A>) -> u32 {
    // SAFETY: the caller's element.
    unsafe {
        for word in 0..A {
            (&raw const (*flow).address[word]).read_volatile();
        }
        (&raw const (*flow).seen_s).read_volatile();
        (&raw const (*flow).ports).read_volatile();
        (&raw const (*flow).link).read_volatile();
        (&raw const (*flow).tag).read_volatile()
    }
}

macro_rules! table {
    ($a:literal, $kind:ty, $table:ident, $name:literal, $find:ident, $put:ident, $churn:ident) => {
        #[btf_map(name = $name)]
        pub static $table: $kind = <$kind>::new();

        /// One look-up: 1 if the key was there.
        #[classifier]
        pub fn $find(_: TcContext) -> i32 {
            next::<$a>().map_or(-1, |key| Table::<$a>::find(&$table, &key).into())
        }

        /// One insert.
        #[classifier]
        pub fn $put(_: TcContext) -> i32 {
            next::<$a>().map_or(-1, |key| Table::<$a>::put(&$table, &key, &flow(&key)).into())
        }

        /// One insert, and the delete of the same key.
        #[classifier]
        pub fn $churn(_: TcContext) -> i32 {
            next::<$a>().map_or(-1, |key| {
                let is_put = Table::<$a>::put(&$table, &key, &flow(&key));
                (is_put && Table::<$a>::take(&$table, &key)).into()
            })
        }
    };
}

table!(1, LruHashMap<Key<1>, Flow<1>, FLOWS4>, LRU4, "a_lru4", lru_find4, lru_put4, lru_churn4);
table!(4, LruHashMap<Key<4>, Flow<4>, FLOWS6>, LRU6, "a_lru6", lru_find6, lru_put6, lru_churn6);
table!(
    1,
    LruHashMap<Key<1>, Flow<1>, FLOWS4, PER_CPU_LISTS>,
    LISTS4,
    "a_lists4",
    lists_find4,
    lists_put4,
    lists_churn4
);
table!(
    4,
    LruHashMap<Key<4>, Flow<4>, FLOWS6, PER_CPU_LISTS>,
    LISTS6,
    "a_lists6",
    lists_find6,
    lists_put6,
    lists_churn6
);
table!(1, HashMap<Key<1>, Flow<1>, FLOWS4>, HASH4, "a_hash4", hash_find4, hash_put4, hash_churn4);
table!(4, HashMap<Key<4>, Flow<4>, FLOWS6>, HASH6, "a_hash6", hash_find6, hash_put6, hash_churn6);
table!(1, HashMap<Key<1>, Flow<1>, FLOWS4, ON_DEMAND>, DEMAND4, "a_demand4", demand_find4, demand_put4, demand_churn4);
table!(4, HashMap<Key<4>, Flow<4>, FLOWS6, ON_DEMAND>, DEMAND6, "a_demand6", demand_find6, demand_put6, demand_churn6);
table!(1, Locked<1, { FLOWS4 / 4 }>, LOCKED4, "a_locked4", locked_find4, locked_put4, locked_churn4);
table!(4, Locked<4, { FLOWS6 / 4 }>, LOCKED6, "a_locked6", locked_find6, locked_put6, locked_churn6);
table!(1, Free<1, { FLOWS4 / 4 }>, FREE4, "a_free4", free_find4, free_put4, free_churn4);
table!(4, Free<4, { FLOWS6 / 4 }>, FREE6, "a_free6", free_find6, free_put6, free_churn6);

/// A key and nothing done with it: what making one takes.
#[classifier]
pub fn key4(_: TcContext) -> i32 {
    next::<1>().map_or(-1, |key| core::hint::black_box(key).protocol as i32)
}

/// The same for IPv6.
#[classifier]
pub fn key6(_: TcContext) -> i32 {
    next::<4>().map_or(-1, |key| core::hint::black_box(key).protocol as i32)
}
