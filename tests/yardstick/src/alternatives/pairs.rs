//! A flow as two entries, each under the tuple of its direction, and as one under a tuple with its ends sorted, which both directions
//! share.
//!
//! A tuple with sorted ends finds a flow only if both directions have the same ends, which a translated one has not: what is measured is
//! the most that could be won.

use aya_ebpf::btf_maps::LruHashMap;
use aya_ebpf::macros::{btf_map, classifier};
use aya_ebpf::programs::TcContext;

use crate::keys::{Flow, Key, flow, key, number};
use crate::tables::{FLOWS4, FLOWS6, Table, read};

/// Entries of both directions in one.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Both<const A: usize> {
    flow: Flow<A>,
    back: [u32; A],
    back_ports: u32,
    pad: u32,
}

/// Below the bits that tell the keys of one CPU from those of another.
const OF_ONE_CPU: u32 = 0xff_ffff;

/// The tuple of a packet: the number's last bit says its direction, the others which flow it is of.
#[inline(always)]
fn tuple<const A: usize>(number: u32) -> Key<A> {
    let key = key::<A>((number & !OF_ONE_CPU) | ((number & OF_ONE_CPU) >> 1));
    if number & 1 == 0 { key } else { reversed(&key) }
}

#[inline(always)]
fn reversed<const A: usize>(key: &Key<A>) -> Key<A> {
    Key { src: key.dst, dst: key.src, ports: key.ports.rotate_left(16), protocol: key.protocol }
}

/// The smaller end first, and whether that changed it.
#[inline(always)]
fn sorted<const A: usize>(key: &Key<A>) -> (Key<A>, bool) {
    let (src, dst) = (key.src[A - 1], key.dst[A - 1]);
    let is_back = src > dst || (src == dst && key.ports.rotate_left(16) > key.ports);
    (if is_back { reversed(key) } else { *key }, is_back)
}

macro_rules! pairs {
    ($a:literal, $max:expr, $two:ident, $one:ident, $two_name:literal, $one_name:literal,
     $two_find:ident, $one_find:ident, $two_put:ident, $one_put:ident, $two_churn:ident, $one_churn:ident, $both_key:ident) => {
        #[btf_map(name = $two_name)]
        pub static $two: LruHashMap<Key<$a>, Flow<$a>, { $max }> = LruHashMap::new();
        #[btf_map(name = $one_name)]
        pub static $one: LruHashMap<Key<$a>, Both<$a>, { $max / 2 }> = LruHashMap::new();

        /// A packet of a flow, in the direction that the number's last bit says.
        #[classifier]
        pub fn $two_find(_: TcContext) -> i32 {
            number().map_or(-1, |number| $two.find(&tuple::<$a>(number)).into())
        }

        #[classifier]
        pub fn $one_find(_: TcContext) -> i32 {
            let Some(number) = number() else { return -1 };
            let (key, is_back) = sorted(&tuple::<$a>(number));
            let Some(both) = $one.get_ptr(&key) else { return 0 };
            // SAFETY: an element of this type, which may be taken for another key meanwhile.
            unsafe {
                if is_back {
                    (&raw const (*both).back[$a - 1]).read_volatile();
                    (&raw const (*both).back_ports).read_volatile();
                }
                read(&raw const (*both).flow);
            }
            1
        }

        #[classifier]
        pub fn $two_put(_: TcContext) -> i32 {
            let Some(number) = number() else { return -1 };
            let key = key::<$a>(number);
            let back = reversed(&key);
            ($two.put(&key, &flow(&key)) && $two.put(&back, &flow(&back))).into()
        }

        #[classifier]
        pub fn $one_put(_: TcContext) -> i32 {
            let Some(number) = number() else { return -1 };
            let (key, _) = sorted(&key::<$a>(number));
            $one.insert(&key, &Both { flow: flow(&key), back: key.src, back_ports: key.ports, pad: 0 }, 0)
                .is_ok()
                .into()
        }

        /// A flow begins and ends.
        #[classifier]
        pub fn $two_churn(_: TcContext) -> i32 {
            let Some(number) = number() else { return -1 };
            let key = key::<$a>(number);
            let back = reversed(&key);
            let is_put = $two.put(&key, &flow(&key)) && $two.put(&back, &flow(&back));
            (is_put && $two.take(&key) && $two.take(&back)).into()
        }

        #[classifier]
        pub fn $one_churn(_: TcContext) -> i32 {
            let Some(number) = number() else { return -1 };
            let (key, _) = sorted(&key::<$a>(number));
            let both = Both { flow: flow(&key), back: key.src, back_ports: key.ports, pad: 0 };
            ($one.insert(&key, &both, 0).is_ok() && $one.remove(&key).is_ok()).into()
        }

        /// A tuple and nothing done with it.
        #[classifier]
        pub fn $both_key(_: TcContext) -> i32 {
            number().map_or(-1, |number| core::hint::black_box(tuple::<$a>(number)).protocol as i32)
        }
    };
}

pairs!(
    1, FLOWS4, TWO4, ONE4, "a_two4", "a_one4", two_find4, one_find4, two_put4, one_put4, two_churn4, one_churn4,
    both_key4
);
pairs!(
    4, FLOWS6, TWO6, ONE6, "a_two6", "a_one6", two_find6, one_find6, two_put6, one_put6, two_churn6, one_churn6,
    both_key6
);
