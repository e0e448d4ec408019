//! Damage to the tables, and what an audit must find it as.

use std::collections::BTreeMap;

use lb_common::abi;
use proptest::prelude::*;

use super::*;
use crate::{
    apply::MemoryStore,
    plan::{BackendId, Frontend},
};
use lb_model::Family;

/// What is done to one entry, the `n`-th of its table.
#[derive(Clone, Debug)]
pub enum Damage {
    Delete(Target, usize),
    Edit(Target, usize),
    Add(Target, u8),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    Names,
    Backends,
    Slots,
    Sources,
    Services,
    Vips,
    Config,
}

/// `None`: nothing is left.
fn nth<K: Ord + Clone, V>(map: &BTreeMap<K, V>, n: usize) -> Option<K> {
    map.keys().nth(n % map.len().max(1)).cloned()
}

impl Damage {
    /// The table and the kind that it must be found as; `None`: nothing was done.
    pub fn carry_out(&self, programmer: &mut Programmer<MemoryStore>) -> Option<(Target, FindingKind)> {
        let live: Vec<u32> =
            programmer.programmed().slots().live(0).flat_map(|(base, slots)| (base..).take(slots.len())).collect();
        let free: Vec<BackendId> = programmer.programmed().backends().generations().keys().copied().collect();
        let store = programmer.store_mut();
        Some(match self {
            Self::Delete(target, n) => {
                match target {
                    Target::Names => drop(store.names.remove(&nth(&store.names, *n)?)),
                    Target::Backends => {
                        store.backends.remove(&nth(&store.backends, *n)?)?;
                    }
                    Target::Slots => drop(store.slots.insert(live[n % live.len()], abi::Slot::default())),
                    Target::Sources => drop(store.sources.remove(&nth(&store.sources, *n)?)),
                    Target::Services => drop(store.frontends.remove(&nth(&store.frontends, *n)?)),
                    Target::Vips => drop(store.vips.remove(&nth(&store.vips, *n)?)),
                    Target::Config => return None,
                }
                (*target, FindingKind::Missing)
            }
            Self::Edit(target, n) => match target {
                Target::Names => {
                    store.names.get_mut(&nth(&store.names, *n)?)?.port ^= 1;
                    (*target, FindingKind::Edited)
                }
                Target::Backends => {
                    let id = nth(&store.backends, *n)?;
                    let record = store.backends.get_mut(&id)?;
                    if n % 2 == 0 || free.contains(&id) {
                        record.generation += 1;
                    } else {
                        record.state ^= 3;
                    }
                    (*target, FindingKind::Edited)
                }
                Target::Slots => {
                    let slot = store.slots.get_mut(&live[n % live.len()])?;
                    if n % 2 == 0 {
                        slot.generation += 1;
                        (*target, FindingKind::Torn)
                    } else {
                        slot.backend += 1;
                        (*target, FindingKind::Edited)
                    }
                }
                Target::Sources => {
                    store.sources.get_mut(&nth(&store.sources, *n)?)?.service += 1;
                    (*target, FindingKind::Torn)
                }
                Target::Services => {
                    let frontend = nth(&store.frontends, *n)?;
                    let entry = store.frontends.get_mut(&frontend)?;
                    entry.slot_count += 1;
                    if n % 2 == 0 {
                        return Some((*target, FindingKind::Torn));
                    }
                    entry.seal = frontend.seal(entry);
                    (*target, FindingKind::Edited)
                }
                Target::Vips => {
                    store.vips.get_mut(&nth(&store.vips, *n)?)?.flags ^= 2;
                    (*target, FindingKind::Edited)
                }
                Target::Config => {
                    store.programmed.as_mut()?.0 += 1;
                    (*target, FindingKind::Edited)
                }
            },
            Self::Add(target, n) => {
                match target {
                    Target::Names => {
                        let name = *store.names.values().next()?;
                        store.names.insert(500 + u32::from(*n), name);
                    }
                    Target::Backends => {
                        let record = *store.backends.values().next()?;
                        let id = BackendId { family: Family::V4, id: 500 + u32::from(*n) };
                        store.backends.insert(id, record);
                    }
                    Target::Sources => {
                        let network = format!("203.0.113.{n}/32").parse().unwrap();
                        store.sources.insert((1, network), abi::Source { service: 1 });
                    }
                    Target::Services => {
                        let (frontend, entry) = store.frontends.iter().next().map(|(key, entry)| (*key, *entry))?;
                        store.frontends.insert(Frontend { port: 9000 + u16::from(*n), ..frontend }, entry);
                    }
                    Target::Vips => {
                        store.vips.insert([203, 0, 113, *n].into(), abi::Vip { flags: 1 });
                    }
                    Target::Slots | Target::Config => return None,
                }
                (*target, FindingKind::Foreign)
            }
        })
    }
}

pub fn table_of(finding: &Finding) -> Target {
    match finding.table.as_str() {
        "names" => Target::Names,
        "backends4" | "backends6" => Target::Backends,
        "slots" => Target::Slots,
        "sources4" | "sources6" => Target::Sources,
        "services4" | "services6" => Target::Services,
        "vips4" | "vips6" => Target::Vips,
        "config" => Target::Config,
        other => panic!("{other} was not touched"),
    }
}

pub fn damage() -> impl Strategy<Value = Damage> {
    let target = prop::sample::select(vec![
        Target::Names,
        Target::Backends,
        Target::Slots,
        Target::Sources,
        Target::Services,
        Target::Vips,
        Target::Config,
    ]);
    prop_oneof![
        (target.clone(), any::<usize>()).prop_map(|(target, n)| Damage::Delete(target, n)),
        (target.clone(), any::<usize>()).prop_map(|(target, n)| Damage::Edit(target, n)),
        (target, any::<u8>()).prop_map(|(target, n)| Damage::Add(target, n)),
    ]
}
