//! Why a pinned map cannot be used.

use std::{io, path::PathBuf};

/// Why a pinned map cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    #[error("map {map} is not pinned at {}: {}", path.display(), why_missing(*is_among_others))]
    Missing {
        map: &'static str,
        path: PathBuf,
        /// Other maps are pinned there.
        is_among_others: bool,
    },
    #[error("map {map} at {} cannot be opened: {source}; run as root, or with CAP_BPF and CAP_NET_ADMIN", path.display())]
    Open { map: &'static str, path: PathBuf, source: io::Error },
    #[error(
        "map {map} at {} has another layout: {field} expected {expected}, found {found}; \
         it was made by another version: use that version's binary, or start this version's agent, which takes it over",
        path.display()
    )]
    Layout { map: &'static str, path: PathBuf, field: &'static str, expected: String, found: String },
    #[error("map {map}: {action} failed: {source}")]
    Access { map: &'static str, action: &'static str, source: aya::maps::MapError },
}

fn why_missing(is_among_others: bool) -> &'static str {
    if is_among_others {
        "the tables there were made by another version: use that version's binary, or start this version's agent, which \
         takes them over"
    } else {
        "no agent has run with this --bpffs; start `ballast agent`, or give its --bpffs"
    }
}
