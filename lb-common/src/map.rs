//! Each map as a type, made of its declaration ([`crate::maps`]): code that is generic over the map knows keys and values by it.

use core::hash::Hash;

use crate::service_cidrs::Cover;
use crate::{abi, limits, vip_filter};

/// What a map may hold: plain numbers, every bit pattern of which is valid.
#[cfg(feature = "user")]
pub use aya::Pod as Record;

/// What a map may hold: plain numbers.
#[cfg(not(feature = "user"))]
pub trait Record: Copy + 'static {}

#[cfg(not(feature = "user"))]
impl<T: Copy + 'static> Record for T {}

/// A map.
pub trait Map: 'static {
    const ID: MapId;
    /// Its name, as pinned.
    const NAME: &'static str;
    /// Has one value for each key, which is read and written by it: no ring, no storage of sockets, and not one value for each CPU.
    const IS_PLAIN: bool;
    type Key: Record + Eq + Hash;
    /// Of one CPU, if each has its own.
    type Value: Record;
}

/// The key of a trie: the length of the prefix in bits, then the data.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix<K> {
    pub bits: u32,
    pub data: K,
}

impl<K> Prefix<K> {
    #[inline(always)]
    #[must_use]
    pub const fn new(bits: u32, data: K) -> Self {
        Self { bits, data }
    }
}

// SAFETY: a number, and a record that is aligned to words: no padding.
#[cfg(feature = "user")]
unsafe impl<K: Record> Record for Prefix<K> {}

/// The key and value types of each map type.
pub mod kinds {
    use core::any::TypeId;
    use core::marker::PhantomData;

    /// Key and value of a map.
    pub trait Entry {
        type Key;
        type Value: 'static;
        /// Has one value for each key, which is read and written by it.
        const IS_PLAIN: bool;
        const SIZES: (usize, usize) = (size_of::<Self::Key>(), size_of::<Self::Value>());
        const VALUE: fn() -> TypeId = TypeId::of::<Self::Value>;
    }

    /// Of a map for which `IS_PLAIN` holds, or not.
    pub struct Pair<K, V, const IS_PLAIN: bool>(PhantomData<(K, V)>);

    impl<K, V: 'static, const IS_PLAIN: bool> Entry for Pair<K, V, IS_PLAIN> {
        type Key = K;
        type Value = V;
        const IS_PLAIN: bool = IS_PLAIN;
    }

    pub type HashMap<K, V> = Pair<K, V, true>;
    pub type LruHashMap<K, V> = Pair<K, V, true>;
    pub type Array<V> = Pair<u32, V, true>;
    pub type LpmTrie<K, V> = Pair<super::Prefix<K>, V, true>;
    pub type PerCpuHashMap<K, V> = Pair<K, V, false>;
    pub type PerCpuArray<V> = Pair<u32, V, false>;
    pub type SkStorage<V> = Pair<i32, V, false>;
    pub type RingBuf<V> = Pair<[u8; 0], V, false>;
}

macro_rules! ids {
    ($($section:ident {
        of_each_family {
            $($(#[doc = $docs:literal])* $markers:ident = $four:ident $name4:literal, $six:ident $name6:literal:
                $kinds:ident<$($records:ty),*>[$capacity4:expr $(; $capacity6:expr)? $(, $flags:ident)?]
                $(, $natures:ident $(($family:ident))? $($marks:ident)*)?;)*
        }
        one {
            $($(#[doc = $doc:literal])* $marker:ident = $constant:ident $name:literal: $kind:ident<$($record:ty),*>
                $([$capacity:expr $(, $flag:ident)?])? $(, $nature:ident $($mark:ident)*)?;)*
        }
    })*) => {
        /// Names a map, by the constant of its declaration.
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum MapId {
            $($(
                $(#[doc = $docs])*
                $four,
                $(#[doc = $docs])*
                $six,
            )*)*
            $($(
                $(#[doc = $doc])*
                $constant,
            )*)*
        }

        /// The name of each map, as pinned and as `bpftool` shows it.
        pub mod names {
            $($(
                pub const $four: &str = $name4;
                pub const $six: &str = $name6;
            )*)*
            $($(pub const $constant: &str = $name;)*)*
        }

        $($(const _: () = assert!($name4.len() <= limits::MAP_NAME_LENGTH && $name6.len() <= limits::MAP_NAME_LENGTH);)*)*
        $($(const _: () = assert!($name.len() <= limits::MAP_NAME_LENGTH);)*)*

        impl MapId {
            /// Its name, as pinned.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $($(Self::$four => $name4, Self::$six => $name6,)*)*
                    $($(Self::$constant => $name,)*)*
                }
            }
        }
    };
}

crate::for_each_map!(ids);

macro_rules! markers {
    ($($section:ident { of_each_family { $($pairs:tt)* } one { $($ones:tt)* } })*) => {
        $(markers!(@ $section { $($pairs)* } { $($ones)* });)*
    };
    (@ in_programs $($others:tt)*) => {};
    (@ $section:ident {
        $($(#[doc = $docs:literal])* $markers:ident = $four:ident $name4:literal, $six:ident $name6:literal:
            $kinds:ident<$($records:ty),*>[$capacity4:expr $(; $capacity6:expr)? $(, $flags:ident)?]
            $(, $natures:ident $(($family:ident))? $($marks:ident)*)?;)*
    } {
        $($(#[doc = $doc:literal])* $marker:ident = $constant:ident $name:literal: $kind:ident<$($record:ty),*>
            $([$capacity:expr $(, $flag:ident)?])? $(, $nature:ident $($mark:ident)*)?;)*
    }) => {
        $(
            $(#[doc = $docs])*
            ///
            /// Of the family whose addresses have `N` bytes.
            #[derive(Clone, Copy, Debug)]
            pub struct $markers<const N: usize>;

            impl<const N: usize> Map for $markers<N> {
                const ID: MapId = if N == 4 { MapId::$four } else { MapId::$six };
                const NAME: &'static str = if N == 4 { $name4 } else { $name6 };
                const IS_PLAIN: bool = <kinds::$kinds<$($records),*> as kinds::Entry>::IS_PLAIN;
                type Key = <kinds::$kinds<$($records),*> as kinds::Entry>::Key;
                type Value = <kinds::$kinds<$($records),*> as kinds::Entry>::Value;
            }
        )*
        $(
            $(#[doc = $doc])*
            #[derive(Clone, Copy, Debug)]
            pub struct $marker;

            impl Map for $marker {
                const ID: MapId = MapId::$constant;
                const NAME: &'static str = $name;
                const IS_PLAIN: bool = <kinds::$kind<$($record),*> as kinds::Entry>::IS_PLAIN;
                type Key = <kinds::$kind<$($record),*> as kinds::Entry>::Key;
                type Value = <kinds::$kind<$($record),*> as kinds::Entry>::Value;
            }
        )*
    };
}

crate::for_each_map!(markers);
