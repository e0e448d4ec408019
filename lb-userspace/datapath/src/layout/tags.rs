//! What programs derive from the key of an element and keep in it: recomputed, as the functions are of this version.

use std::any::TypeId;

use aya::Pod;
use lb_common::abi::{
    ABI_VERSION, Affinity, AffinityKey, Flow, FlowKey, Fragment, FragmentKey, HalfOpen, Service, ServiceKey,
    affinity_tag, fragment_tag, seal, tag,
};
use lb_common::maps::{Table, table};

use super::Description;

/// Sets the words of a value that follow from its key.
pub(super) type Tags = fn(&[u8], &mut [u8]);

/// How that is done in this map of the set. `None`: its values have no such words, or are not those of this version.
pub(super) fn of(set: &Description, map: &str) -> Option<Tags> {
    let table = table(map)?;
    let sizes = set.maps.get(map).map(|map| (map.key.size as usize, map.value.size as usize));
    let are_ours = set.abi == ABI_VERSION && sizes == Some(table.sizes);
    if are_ours { of_family::<4>(table).or_else(|| of_family::<16>(table)) } else { None }
}

fn of_family<const N: usize>(table: &Table) -> Option<Tags> {
    let holds = |key: usize, value: TypeId| table.sizes.0 == key && (table.value)() == value;
    if holds(size_of::<ServiceKey<N>>(), TypeId::of::<Service>()) {
        Some(|key, value| with(key, value, |key, value: &mut Service| value.seal = seal::<N>(key, value)))
    } else if holds(size_of::<FlowKey<N>>(), TypeId::of::<Flow<N>>()) {
        Some(|key, value| with(key, value, |key: &FlowKey<N>, value: &mut Flow<N>| value.tag = tag(key)))
    } else if holds(size_of::<FlowKey<N>>(), TypeId::of::<HalfOpen<N>>()) {
        Some(|key, value| with(key, value, |key: &FlowKey<N>, value: &mut HalfOpen<N>| value.flow.tag = tag(key)))
    } else if holds(size_of::<AffinityKey<N>>(), TypeId::of::<Affinity>()) {
        Some(|key, value| with(key, value, |key, value: &mut Affinity| value.tag = affinity_tag::<N>(key)))
    } else if holds(size_of::<FragmentKey<N>>(), TypeId::of::<Fragment>()) {
        Some(|key, value| with(key, value, |key, value: &mut Fragment| value.tag = fragment_tag::<N>(key)))
    } else {
        None
    }
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
