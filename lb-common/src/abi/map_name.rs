//! Names of the maps, as pinned and as `bpftool` shows them.

use crate::{limits::MAP_NAME_LENGTH, maps::TABLES};

macro_rules! names {
    ($($section:ident {
        $($(#[doc = $doc:literal])* $constant:ident = $name:literal: $kind:ident<$($record:ty),*>
            $([$capacity:expr $(, $flags:ident)?])? $(, $nature:ident $(($family:ident))? $($mark:ident)*)?;)*
    })*) => {
        $($(
            pub const $constant: &str = $name;
            const _: () = assert!($name.len() <= MAP_NAME_LENGTH);
        )*)*
    };
}

crate::for_each_map!(names);

/// Every map that is pinned in a set of tables.
pub const ALL: [&str; TABLES.len()] = {
    let (mut names, mut at) = ([""; TABLES.len()], 0);
    while at < names.len() {
        names[at] = TABLES[at].name;
        at += 1;
    }
    names
};
