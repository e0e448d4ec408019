//! What programs derive from the key of an element and keep in it: recomputed, as the functions are of this version.

use aya::Pod;
use lb_common::abi::{
    ABI_VERSION, Affinity, Flow, FlowKey, Fragment, HalfOpen, Service, affinity_tag, fragment_tag, map_name, seal, tag,
};

use super::Description;

/// Whether the records of the map in this set are those of this version: only then can [`set`] read them.
pub(super) fn are_ours(set: &Description, map: &str) -> bool {
    let sizes = set.maps.get(map).map(|map| (map.key.size as usize, map.value.size as usize));
    set.abi == ABI_VERSION && sizes.is_some() && sizes == lb_common::maps::table(map).map(|table| table.sizes)
}

/// Sets the words of `value` that follow from `key`. For records of which [`are_ours`] holds.
pub(super) fn set(map: &str, key: &[u8], value: &mut [u8]) {
    match map {
        map_name::SERVICES4 => with(key, value, |key, value: &mut Service| value.seal = seal::<4>(key, value)),
        map_name::SERVICES6 => with(key, value, |key, value: &mut Service| value.seal = seal::<16>(key, value)),
        map_name::FLOWS4 | map_name::UDP_FLOWS4 => flow::<4>(key, value),
        map_name::FLOWS6 | map_name::UDP_FLOWS6 => flow::<16>(key, value),
        map_name::HALF_OPEN4 => half_open::<4>(key, value),
        map_name::HALF_OPEN6 => half_open::<16>(key, value),
        map_name::AFFINITY4 => with(key, value, |key, value: &mut Affinity| value.tag = affinity_tag::<4>(key)),
        map_name::AFFINITY6 => with(key, value, |key, value: &mut Affinity| value.tag = affinity_tag::<16>(key)),
        map_name::FRAGMENTS4 => with(key, value, |key, value: &mut Fragment| value.tag = fragment_tag::<4>(key)),
        map_name::FRAGMENTS6 => with(key, value, |key, value: &mut Fragment| value.tag = fragment_tag::<16>(key)),
        _ => {}
    }
}

fn flow<const N: usize>(key: &[u8], value: &mut [u8]) {
    with(key, value, |key: &FlowKey<N>, flow: &mut Flow<N>| flow.tag = tag(key));
}

fn half_open<const N: usize>(key: &[u8], value: &mut [u8]) {
    with(key, value, |key: &FlowKey<N>, entry: &mut HalfOpen<N>| entry.flow.tag = tag(key));
}

fn with<K: Pod, V: Pod>(key: &[u8], value: &mut [u8], change: impl FnOnce(&K, &mut V)) {
    if key.len() != size_of::<K>() || value.len() != size_of::<V>() {
        return;
    }
    // SAFETY: both have the bytes that are read, wherever they begin, and every bit pattern is a valid `Pod`.
    let (key, mut record) =
        unsafe { (key.as_ptr().cast::<K>().read_unaligned(), value.as_ptr().cast::<V>().read_unaligned()) };
    change(&key, &mut record);
    // SAFETY: the value has the bytes that are written, and is not borrowed otherwise.
    unsafe { value.as_mut_ptr().cast::<V>().write_unaligned(record) };
}
