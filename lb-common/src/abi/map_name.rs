//! Names of the maps, as pinned and as `bpftool` shows them.

use crate::{limits::MAP_NAME_LENGTH, maps::TABLES};

macro_rules! names {
    ($($section:ident {
        of_each_family {
            $($(#[doc = $docs:literal])* $markers:ident = $four:ident $name4:literal, $six:ident $name6:literal:
                $kinds:ident<$($records:ty),*>[$capacity4:expr $(; $capacity6:expr)? $(, $flags:ident)?]
                $(, $natures:ident $(($family:ident))? $($marks:ident)*)?;)*
        }
        one {
            $($(#[doc = $doc:literal])* $marker:ident = $constant:ident $name:literal: $kind:ident<$($record:ty),*>
                $([$capacity:expr $(, $flag:ident)?])? $(, $nature:ident $($mark:ident)*)?;)*
        }
    })*) => {
        $($(names!(@ $four $name4); names!(@ $six $name6);)*)*
        $($(names!(@ $constant $name);)*)*
    };
    (@ $constant:ident $name:literal) => {
        pub const $constant: &str = $name;
        const _: () = assert!($name.len() <= MAP_NAME_LENGTH);
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
