//! One table copied from set to set, in batches.

use std::{io, path::Path};

use lb_common::abi::map_name;

use super::{
    Description, LayoutError, MapDescription,
    convert::{Converter, Misfit},
    room, tables,
    tables::Nature,
    tags::{self, Tags},
};
use lb_tables::{Condition, Elements, RawTable};

/// How a table is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// The new table was just made, and nobody uses it yet.
    First,
    /// Programs write the new table: what is there under a key wins. Not for arrays, whose elements are always there.
    Again,
}

/// What came of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Elements in the new table.
    pub copied: u64,
    /// Left as they were in the new table.
    pub kept: u64,
    /// What programs noted that the new layout or table cannot hold.
    pub dropped: u64,
}

/// What makes elements of the new table from those of the old one.
struct Elementwise {
    key: Converter,
    value: Converter,
    /// How many values an element has: one for each CPU in some maps.
    values: usize,
    /// Recomputes what the new programs derive from a key.
    tags: Option<Tags>,
}

/// Copies all elements of `map` from the set pinned in `old` to that in `new`, each described in `descriptions`. Elements of arrays beyond
/// the new one's end are left out.
///
/// A planned record that does not fit is refused; one that programs noted is left out. `config` gets the ABI version of the new set.
pub fn copy(
    map: &str,
    (old, new): (&Path, &Path),
    (old_description, new_description): (&Description, &Description),
    pass: Pass,
) -> Result<Copied, LayoutError> {
    let (from, to) = (old_description.map(map)?, new_description.map(map)?);
    let open = |set: &Path| RawTable::open(&set.join(map)).map_err(LayoutError::access("open", map));
    let (old, new) = (open(old)?, open(new)?);
    let is_array = to.is_array();
    let mut copied = Copied::default();
    if is_array && pass == Pass::Again {
        return Ok(copied);
    }
    let make = Elementwise::new(map, from, to, &old, tags::of(new_description, map))?;
    let leaves_zeroes = is_array && make.value.keeps_zeroes();
    let mut refused = None;
    let whole = old.each_part(|part| {
        let mut elements = Elements::default();
        for (key, value) in part.keys.chunks_exact(old.key_size()).zip(part.values.chunks_exact(old.value_size())) {
            if (is_array && index(key) >= new.capacity()) || (leaves_zeroes && is_zero(value)) {
                continue;
            }
            match make.element(key, value) {
                Ok((key, mut value)) => {
                    own_words(map, to, new_description.abi, &mut value);
                    elements.keys.extend(key);
                    elements.values.extend(value);
                }
                Err(Misfit { field, value }) if is_planned(map) => {
                    refused = Some(LayoutError::Value { map: map.to_owned(), field, value });
                    return Err(io::Error::other("refused"));
                }
                Err(_) => copied.dropped += 1,
            }
        }
        write(&new, &elements, map, pass, &mut copied)
    });
    match (refused, whole) {
        (Some(refused), _) => Err(refused),
        (None, Err(source)) if source.raw_os_error() == Some(libc::E2BIG) => {
            Err(LayoutError::Room { map: map.to_owned(), used: room::count(&old, map)?, asked: new.capacity() })
        }
        (None, Err(source)) => Err(LayoutError::Access { map: map.to_owned(), action: "copy", source }),
        (None, Ok(true)) => Ok(copied),
        (None, Ok(false)) => {
            let source = io::Error::other("it changed faster than it could be read");
            Err(LayoutError::Access { map: map.to_owned(), action: "copy", source })
        }
    }
}

impl Elementwise {
    fn new(
        map: &str,
        from: &MapDescription,
        to: &MapDescription,
        old: &RawTable,
        tags: Option<Tags>,
    ) -> Result<Self, LayoutError> {
        let key = converter(map, &from.key, &to.key)?;
        let value = converter(map, &from.value, &to.value)?;
        Ok(Self { key, value, values: old.values(from.value.size as usize), tags })
    }

    /// The element in the new layout.
    fn element(&self, key: &[u8], value: &[u8]) -> Result<(Vec<u8>, Vec<u8>), Misfit> {
        let key = self.key.convert(key)?;
        if self.values == 1 {
            let mut value = self.value.convert(value)?;
            if let Some(set_tags) = self.tags {
                set_tags(&key, &mut value);
            }
            return Ok((key, value));
        }
        let mut all = Vec::new();
        for value in value.chunks_exact(value.len() / self.values) {
            all.extend(self.value.convert(value)?);
            all.resize(all.len().next_multiple_of(8), 0);
        }
        Ok((key, all))
    }
}

fn write(new: &RawTable, elements: &Elements, map: &str, pass: Pass, copied: &mut Copied) -> io::Result<()> {
    let (keys, values) = (new.key_size(), new.value_size());
    if pass == Pass::First && is_planned(map) {
        new.put_all(elements)?;
        copied.copied += (elements.keys.len() / keys.max(1)) as u64;
        return Ok(());
    }
    let condition = if pass == Pass::Again { Condition::New } else { Condition::Always };
    for (key, value) in elements.keys.chunks_exact(keys).zip(elements.values.chunks_exact(values)) {
        match new.put(key, value, condition) {
            Ok(true) => copied.copied += 1,
            Ok(false) => copied.kept += 1,
            // The table is full: what programs note is no reason to refuse.
            Err(error) if matches!(error.raw_os_error(), Some(libc::E2BIG | libc::ENOMEM)) => copied.dropped += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The element of a set's `config` says which layout the set has.
fn own_words(map: &str, to: &MapDescription, abi: u32, value: &mut [u8]) {
    let field = to.value.field("abi_version").filter(|_| map == map_name::CONFIG);
    // 0: nothing was ever programmed.
    if let Some(bytes) = field.filter(|field| field.number(value) != Some(0)).and_then(|field| field.of_mut(value)) {
        let abi = abi.to_le_bytes();
        let length = bytes.len().min(abi.len());
        bytes[..length].copy_from_slice(&abi[..length]);
    }
}

fn is_planned(map: &str) -> bool {
    matches!(tables::nature(map), Nature::Planned | Nature::Own)
}

/// Most elements of most arrays are: this is what a copy takes its time for.
fn is_zero(value: &[u8]) -> bool {
    let (words, rest) = value.as_chunks();
    words.iter().all(|word| u64::from_ne_bytes(*word) == 0) && rest.iter().all(|byte| *byte == 0)
}

fn index(key: &[u8]) -> u32 {
    key.try_into().map_or(u32::MAX, u32::from_ne_bytes)
}

pub(super) fn converter(
    map: &str,
    from: &super::record::Record,
    to: &super::record::Record,
) -> Result<Converter, LayoutError> {
    Converter::new(from, to, |field| tables::fresh(map, field)).map_err(|error| {
        let reason = super::error::difference(&error.field, Some(error.old), Some(error.new));
        LayoutError::Access { map: map.to_owned(), action: "convert", source: io::Error::other(reason) }
    })
}
