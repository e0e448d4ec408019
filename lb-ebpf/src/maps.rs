//! The maps, made of their declaration ([`lb_common::maps`]), and the access to them by their types ([`lb_common::map`]).

use core::ffi::c_void;
use core::ptr::null_mut;

use aya_ebpf::Global;
use aya_ebpf::bindings::bpf_sock_addr;
use aya_ebpf::helpers::generated::{bpf_map_delete_elem, bpf_map_lookup_elem, bpf_map_update_elem, bpf_sk_storage_get};
use lb_common::map::{Map, MapId};

use crate::scratch::{Scratch, SocketScratch};

/// A static for each map, those of each family in a module of their own.
macro_rules! statics {
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
        mod ipv4 {
            use super::declared::*;

            const N: usize = 4;
            $($(
                $(#[doc = $docs])*
                #[btf_map(name = $name4)]
                pub static $four: $kinds<$($records,)* { $capacity4 as usize } $(, $flags)?> = $kinds::new();
            )*)*
        }

        mod ipv6 {
            use super::declared::*;

            const N: usize = 16;
            $($(
                $(#[doc = $docs])*
                #[btf_map(name = $name6)]
                pub static $six: $kinds<$($records,)* { six!($capacity4 $(; $capacity6)?) as usize } $(, $flags)?> = $kinds::new();
            )*)*
        }

        mod of_both {
            use super::declared::*;

            $($(
                $(#[doc = $doc])*
                #[btf_map(name = $name)]
                pub static $constant: $kind<$($record,)* $({ $capacity as usize } $(, $flag)?)?> = $kind::new();
            )*)*
        }

        /// The map of this name. It is known when this is compiled, where the name is.
        #[inline(always)]
        const fn map(id: MapId) -> *mut c_void {
            match id {
                $($(
                    MapId::$four => (&raw const ipv4::$four).cast_mut().cast(),
                    MapId::$six => (&raw const ipv6::$six).cast_mut().cast(),
                )*)*
                $($(MapId::$constant => (&raw const of_both::$constant).cast_mut().cast(),)*)*
            }
        }
    };
}

macro_rules! six {
    ($four:expr) => {
        $four
    };
    ($four:expr; $six:expr) => {
        $six
    };
}

/// What the declaration names.
mod declared {
    pub use aya_ebpf::bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC};
    pub use aya_ebpf::btf_maps::{
        Array, HashMap, LpmTrie, LruHashMap, PerCpuArray, PerCpuHashMap, ProgramArray, RingBuf, SkStorage,
    };
    pub use aya_ebpf::macros::btf_map;
    pub use lb_common::service_cidrs::{Cover, FAMILIES};
    pub use lb_common::stages::{TcStage, XdpStage};
    pub use lb_common::{abi, client_shares, limits, switch, vip_filter};

    pub use crate::scratch::{Scratch, SocketScratch};

    /// Elements are allocated as they are used: an idle node pays for what it holds.
    pub const ON_DEMAND: usize = BPF_F_NO_PREALLOC as usize;
    /// The agent changes single words of what programs write at the same time.
    pub const SHARED: usize = BPF_F_MMAPABLE as usize;
}

lb_common::for_each_map!(statics);

pub use of_both::*;

/// The element under this key. It stays a live value of the map for the whole run of the program, but may be recycled for another key.
#[inline(always)]
pub fn find<M: Map>(key: &M::Key) -> Option<*mut M::Value> {
    // SAFETY: a map, and a key of the map's type.
    let element = unsafe { bpf_map_lookup_elem(map(M::ID), core::ptr::from_ref(key).cast()) };
    if element.is_null() { None } else { Some(element.cast()) }
}

/// A copy of the element under this key.
#[inline(always)]
pub fn get<M: Map>(key: &M::Key) -> Option<M::Value> {
    // SAFETY: a live map value of plain numbers, copied at once. What was recycled meanwhile shows by the value, or does no harm.
    find::<M>(key).map(|element| unsafe { *element })
}

/// The element under this key, for a reader that copies at once what it needs.
#[inline(always)]
pub fn view<M: Map>(key: &M::Key) -> Option<&'static M::Value> {
    // SAFETY: a live map value of plain numbers.
    find::<M>(key).map(|element| unsafe { &*element })
}

/// Writes an element; the flags are those of `bpf_map_update_elem`.
#[inline(always)]
pub fn insert<M: Map>(key: &M::Key, value: &M::Value, flags: u32) -> Result<(), i32> {
    let (key, value) = (core::ptr::from_ref(key).cast(), core::ptr::from_ref(value).cast());
    // SAFETY: a map, and a key and a value of the map's types.
    let result = unsafe { bpf_map_update_elem(map(M::ID), key, value, flags.into()) };
    if result == 0 { Ok(()) } else { Err(result as i32) }
}

/// Gone already is as good.
#[inline(always)]
pub fn remove<M: Map>(key: &M::Key) {
    // SAFETY: a map, and a key of the map's type.
    unsafe { bpf_map_delete_elem(map(M::ID), core::ptr::from_ref(key).cast()) };
}

/// The most bytes of a packet that a refusal quotes: whole words, and all ones in binary but for them, so that a mask bounds a length.
pub const MOST_QUOTED: usize = 508;

/// Offset of [`lb_common::abi::Flow::state`] in the records of `old_half_open4` and `old_half_open6`. Set when gates are loaded.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
static OLD_STATE_AT4: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
static OLD_STATE_AT6: Global<u32> = Global::new(0);

/// The scratch record of the socket of this call. With the flag `BPF_SK_STORAGE_GET_F_CREATE` it is made if it is missing.
#[inline(always)]
pub fn socket_scratch<const N: usize>(
    context: *mut bpf_sock_addr,
    flags: u32,
) -> Option<&'static mut SocketScratch<N>> {
    // SAFETY: a word of the context, read as a word: the socket, never null in this hook. The record has room for either family, and all
    // zeroes is a valid value of it. The kernel holds the socket's lock: there is one user at a time.
    unsafe {
        let socket = (&raw const (*context).__bindgen_anon_1.sk).read_volatile();
        bpf_sk_storage_get(map(MapId::SOCKET_SCRATCH), socket.cast(), null_mut(), u64::from(flags))
            .cast::<SocketScratch<N>>()
            .as_mut()
    }
}

/// The scratch record of a packet.
#[inline(always)]
pub fn scratch<const N: usize>() -> Option<&'static mut Scratch<N>> {
    let id = if N == 4 { MapId::SCRATCH4 } else { MapId::SCRATCH6 };
    let index = 0_u32;
    // SAFETY: a map whose keys are numbers, with records of this family. This CPU's own element, used by one program at a time.
    unsafe { bpf_map_lookup_elem(map(id), (&raw const index).cast()).cast::<Scratch<N>>().as_mut() }
}

/// Offset of [`lb_common::abi::Flow::state`] in the records of the old set's table of handshakes and retained connections.
#[inline(always)]
pub fn old_state_at<const N: usize>() -> usize {
    (if N == 4 { OLD_STATE_AT4.load() } else { OLD_STATE_AT6.load() }) as usize
}
