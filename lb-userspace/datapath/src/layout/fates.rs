//! What becomes of each map when one set of maps follows another: a comparison of their descriptions.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Description, LayoutError, MapDescription,
    convert::{Converter, Incompatible},
    error::difference,
    record::Record,
    tables::{self, Family, Nature},
};

/// What becomes of a map of the new set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The old map itself is pinned in the new set, too.
    Share,
    /// It is made, and [`copy`](super::copy()) fills it once, before the programs switch: nobody writes the old one meanwhile, or what is
    /// written meanwhile may be lost.
    Copy,
    /// It is made, and [`copy`](super::copy()) fills it before the programs switch, and once more after it: the old programs wrote meanwhile.
    CopyTwice,
    /// It is made, and [`FlowMover`](super::FlowMover) fills it after the programs have switched.
    Flows,
    /// It is made, and starts empty.
    Begin,
}

/// What becomes of each map of `new`. Maps that only `old` has go with it. Refused if a record cannot be made from the old one by its fields'
/// names, whatever it holds; see [`check_room`](super::check_room) for sizes.
pub fn fates(old: &Description, new: &Description) -> Result<BTreeMap<String, Fate>, LayoutError> {
    let moving = moving_flows(old, new);
    let fate = |(name, map): (&String, &MapDescription)| {
        let fate = match old.maps.get(name) {
            None if !moving.contains(name.as_str()) => Fate::Begin,
            None => Fate::Flows,
            Some(before) => one(name, before, map, &moving).map_err(|reason| LayoutError::Layout {
                map: name.clone(),
                old: old.abi,
                new: new.abi,
                reason,
            })?,
        };
        Ok((name.clone(), fate))
    };
    let mut fates: BTreeMap<String, Fate> = new.maps.iter().map(fate).collect::<Result<_, _>>()?;
    if fates.iter().any(|(name, fate)| tables::is_linked(name) && *fate != Fate::Share) {
        let linked = fates.iter_mut().filter(|(name, fate)| **fate == Fate::Share && tables::is_linked(name));
        linked.for_each(|(_, fate)| *fate = Fate::Copy);
    }
    Ok(fates)
}

/// The flow tables of each family whose flows move: all of them if one differs. A connection wanders between them, so one program must see
/// all of its entries.
pub(super) fn moving_flows(old: &Description, new: &Description) -> BTreeSet<&'static str> {
    let differs = |name: &str| old.maps.get(name) != new.maps.get(name);
    let families = Family::ALL.into_iter().map(Family::flow_tables);
    families.filter(|tables| tables.iter().copied().any(differs)).flatten().collect()
}

fn one(
    name: &str,
    old: &MapDescription,
    new: &MapDescription,
    moving: &BTreeSet<&'static str>,
) -> Result<Fate, String> {
    let same = old == new;
    match tables::nature(name) {
        Nature::Flows(_) if moving.contains(name) => flows(name, old, new).map(|()| Fate::Flows),
        Nature::Fragments(family) => {
            let moves = family.flow_tables().iter().any(|flows| moving.contains(flows));
            Ok(if same && !moves { Fate::Share } else { Fate::Begin })
        }
        Nature::Own => convertible(name, old, new).map(|()| Fate::Copy),
        Nature::Fresh if name == lb_common::abi::map_name::LAYOUT => Ok(Fate::Begin),
        _ if same => Ok(Fate::Share),
        Nature::Planned => convertible(name, old, new).map(|()| Fate::Copy),
        Nature::Noted => convertible(name, old, new).map(|()| if is_array(new) { Fate::Copy } else { Fate::CopyTwice }),
        Nature::Counted if convertible(name, old, new).is_ok() => Ok(Fate::Copy),
        Nature::Counted | Nature::Fresh | Nature::Flows(_) => Ok(Fate::Begin),
    }
}

/// The old programs' entries are found by keys of new packets, and the other way round.
fn flows(name: &str, old: &MapDescription, new: &MapDescription) -> Result<(), String> {
    if old.key != new.key {
        return Err(format!("the keys of flows must stay as they are: {}", first_difference(&old.key, &new.key)));
    }
    convertible(name, old, new)
}

/// Whether the elements of one map can be made from the other's, whatever they hold.
fn convertible(name: &str, old: &MapDescription, new: &MapDescription) -> Result<(), String> {
    if old.meaning != new.meaning {
        return Err(format!("its fields mean something else (meaning {} and {})", old.meaning, new.meaning));
    }
    if group(old.kind) != group(new.kind) {
        return Err(format!("it is a map of another type ({} and {})", old.kind, new.kind));
    }
    if let Some(missing) = old.key.fields.keys().find(|field| new.key.field(field).is_none()) {
        return Err(difference(missing, old.key.field(missing), None));
    }
    let explain = |Incompatible { field, old, new }| difference(&field, Some(old), Some(new));
    Converter::new(&old.key, &new.key, |_| None).map_err(explain)?;
    Converter::new(&old.value, &new.value, |field| tables::fresh(name, field)).map(drop).map_err(explain)
}

fn first_difference(old: &Record, new: &Record) -> String {
    let mut names = old.fields.keys().chain(new.fields.keys());
    let differing = names.find(|name| old.field(name) != new.field(name));
    differing.map_or_else(
        || format!("their size was {} and is {}", old.size, new.size),
        |name| difference(name, old.field(name), new.field(name)),
    )
}

/// Map types between which elements go over: a number for each.
fn group(kind: u32) -> u32 {
    use aya_obj::generated::bpf_map_type::{BPF_MAP_TYPE_HASH, BPF_MAP_TYPE_LRU_HASH};
    if kind == BPF_MAP_TYPE_LRU_HASH as u32 { BPF_MAP_TYPE_HASH as u32 } else { kind }
}

fn is_array(map: &MapDescription) -> bool {
    map.kind == aya_obj::generated::bpf_map_type::BPF_MAP_TYPE_ARRAY as u32
}

#[cfg(test)]
#[path = "fates_tests.rs"]
mod tests;
