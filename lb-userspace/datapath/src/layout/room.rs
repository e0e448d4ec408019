//! Whether what a set holds fits into tables of other sizes.

use std::path::Path;

use lb_common::abi::map_name;

use super::{Description, LayoutError, MapDescription, tables};
use lb_tables::RawTable;

/// Refuses a table of `new` that is smaller than that of the set pinned in `set`, described by `old`, if the entries in use do not fit. Of
/// other tables than [`tables::must_fit`] names, entries make room by themselves.
///
/// Connections go on coming until the programs have switched: a table that is nearly full may have no room for all of them then.
pub fn check_room(set: &Path, old: &Description, new: &Description) -> Result<(), LayoutError> {
    for (map, to) in &new.maps {
        let Some(from) = old.maps.get(map).filter(|from| to.max_entries < from.max_entries) else { continue };
        let used = used(set, old, map, from)?;
        if used > to.max_entries.into() {
            return Err(LayoutError::Room { map: map.clone(), used, asked: to.max_entries });
        }
    }
    Ok(())
}

/// The least size that a map may have without losing what is in use.
fn used(set: &Path, old: &Description, map: &str, from: &MapDescription) -> Result<u64, LayoutError> {
    let open = || RawTable::open(&set.join(map)).map_err(LayoutError::access("open", map));
    // Slots and backends are in use by what is in them or leads to them, which no mark of the declaration can say.
    match map {
        map_name::SLOTS => slots(set, old),
        map_name::BACKENDS4 | map_name::BACKENDS6 => {
            let state = from.value.field("state");
            last(&open()?, map, |value| state.and_then(|state| state.number(value)) != Some(0))
        }
        _ if !tables::must_fit(map) => Ok(0),
        _ if from.is_array() => last(&open()?, map, |value| value.iter().any(|byte| *byte != 0)),
        _ => count(&open()?, map),
    }
}

/// Elements of a hash.
pub(super) fn count(table: &RawTable, map: &str) -> Result<u64, LayoutError> {
    let (mut count, key_size) = (0, table.key_size().max(1));
    let whole = table.each_part(|part| {
        count += (part.keys.len() / key_size) as u64;
        Ok(())
    });
    whole.map(|_| count).map_err(LayoutError::access("count", map))
}

/// One more than the index of the last element in use.
fn last(table: &RawTable, map: &str, is_used: impl Fn(&[u8]) -> bool) -> Result<u64, LayoutError> {
    let (mut at, mut used, size) = (0_u64, 0, table.value_size().max(1));
    let whole = table.each_part(|part| {
        for value in part.values.chunks_exact(size) {
            at += 1;
            if is_used(value) {
                used = at;
            }
        }
        Ok(())
    });
    whole.map(|_| used).map_err(LayoutError::access("count", map))
}

/// One more than the last slot of any service. What lies in no service's range is not in use, whatever it holds.
fn slots(set: &Path, old: &Description) -> Result<u64, LayoutError> {
    const RANGES: [(&str, &str); 2] = [("slot_base", "slot_count"), ("external_base", "external_count")];
    let mut used = 0;
    for map in [map_name::SERVICES4, map_name::SERVICES6] {
        let value = &old.map(map)?.value;
        let table = RawTable::open(&set.join(map)).map_err(LayoutError::access("open", map))?;
        let whole = table.each_part(|part| {
            for service in part.values.chunks_exact(table.value_size().max(1)) {
                let number = |name| value.field(name).and_then(|field| field.number(service)).unwrap_or(0);
                let ends =
                    RANGES.map(|(base, count)| if number(count) == 0 { 0 } else { number(base) + number(count) });
                used = ends.into_iter().fold(used, u64::max);
            }
            Ok(())
        });
        whole.map_err(LayoutError::access("count", map))?;
    }
    Ok(used)
}
