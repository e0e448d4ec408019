//! How many services a set of tables holds, whatever its layout.

use std::{collections::BTreeSet, path::Path};

use lb_common::abi::map_name;

use super::{Description, LayoutError};
use lb_tables::RawTable;

/// Services by their namespace and name. None: the set does not describe itself yet.
pub fn services(set: &Path) -> Result<usize, LayoutError> {
    let Some(described) = Description::read(set)? else { return Ok(0) };
    let value = &described.map(map_name::NAMES)?.value;
    let table = RawTable::open(&set.join(map_name::NAMES)).map_err(LayoutError::access("open", map_name::NAMES))?;
    let mut services = BTreeSet::new();
    let whole = table.each_part(|part| {
        services.extend(part.values.chunks_exact(table.value_size().max(1)).map(|name| {
            ["namespace", "name"].map(|field| value.field(field).and_then(|field| Some(field.of(name)?.to_vec())))
        }));
        Ok(())
    });
    whole.map_err(LayoutError::access("read", map_name::NAMES))?;
    Ok(services.len())
}
