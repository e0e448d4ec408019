//! Why a set of maps cannot be made from another one, each with what was found and the remedy.

use std::{io, path::PathBuf};

use super::record::Field;

/// Nothing was changed by any of these but tables of the set that was about to be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    #[error("the eBPF object does not describe its maps: {reason}; rebuild it by `cargo xtask build`")]
    Object { reason: String },
    #[error(
        "the maps pinned in {set} cannot be read by this version: {reason}; start the version that made them, or remove the old state by `ballast cleanup`, which ends the node's connections", set = set.display()
    )]
    Description { set: PathBuf, reason: String },
    #[error(
        "the records of map {map} cannot be taken over from layout version {old} to {new}: {reason}; start a version with layout {old}, or remove the old state by `ballast cleanup`, which ends the node's connections"
    )]
    Layout { map: String, old: u32, new: u32, reason: String },
    #[error(
        "map {map} would be too small: {used} entries are in use, {asked} are asked for; choose at least {used} in --map-sizes"
    )]
    Room { map: String, used: u64, asked: u32 },
    #[error(
        "map {map}: {field} is {value}, which the layout of the new table cannot hold; start the version that wrote it, or remove the old state by `ballast cleanup`, which ends the node's connections"
    )]
    Value { map: String, field: String, value: String },
    #[error("{action} map {map}: {source}")]
    Access { map: String, action: &'static str, source: io::Error },
}

impl LayoutError {
    /// Adapter for `map_err` on calls for a map.
    pub(super) fn access(action: &'static str, map: &str) -> impl FnOnce(io::Error) -> Self + use<> {
        let map = map.to_owned();
        move |source| Self::Access { map, action, source }
    }
}

/// How a field differs, in words.
pub(super) fn difference(field: &str, old: Option<Field>, new: Option<Field>) -> String {
    let text = |field: Option<Field>| field.map_or_else(|| "nothing".to_owned(), |field| field.to_string());
    format!("field {field:?} was {} and is {}", text(old), text(new))
}
