//! What programs derive from the key of an element and keep in it: recomputed, as the functions are of this version.

use aya::Pod;
use lb_common::abi::{
    ABI_VERSION, Affinity, AffinityKey, Flow, FlowKey, Fragment, FragmentKey, HalfOpen, Service, ServiceKey,
    affinity_tag, fragment_tag, map_name, seal, tag,
};

use super::Description;

/// Whether the records of the map in this set are those of this version: only then can [`set`] read them.
pub(super) fn are_ours(set: &Description, map: &str) -> bool {
    let size = |key: usize, value: usize| {
        set.maps.get(map).is_some_and(|map| map.key.size as usize == key && map.value.size as usize == value)
    };
    set.abi == ABI_VERSION && sizes(map).is_some_and(|(key, value)| size(key, value))
}

/// Bytes of key and value of this version's record, for maps with such words.
fn sizes(map: &str) -> Option<(usize, usize)> {
    const fn of<K, V>() -> (usize, usize) {
        (size_of::<K>(), size_of::<V>())
    }
    Some(match map {
        map_name::SERVICES4 => of::<ServiceKey<4>, Service>(),
        map_name::SERVICES6 => of::<ServiceKey<16>, Service>(),
        map_name::FLOWS4 | map_name::UDP_FLOWS4 => of::<FlowKey<4>, Flow<4>>(),
        map_name::FLOWS6 | map_name::UDP_FLOWS6 => of::<FlowKey<16>, Flow<16>>(),
        map_name::HALF_OPEN4 => of::<FlowKey<4>, HalfOpen<4>>(),
        map_name::HALF_OPEN6 => of::<FlowKey<16>, HalfOpen<16>>(),
        map_name::AFFINITY4 => of::<AffinityKey<4>, Affinity>(),
        map_name::AFFINITY6 => of::<AffinityKey<16>, Affinity>(),
        map_name::FRAGMENTS4 => of::<FragmentKey<4>, Fragment>(),
        map_name::FRAGMENTS6 => of::<FragmentKey<16>, Fragment>(),
        _ => return None,
    })
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

fn flow<const N: usize>(key: &[u8], value: &mut [u8])
where
    FlowKey<N>: Pod,
    Flow<N>: Pod,
{
    with(key, value, |key: &FlowKey<N>, flow: &mut Flow<N>| flow.tag = tag(key));
}

fn half_open<const N: usize>(key: &[u8], value: &mut [u8])
where
    FlowKey<N>: Pod,
    HalfOpen<N>: Pod,
{
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
