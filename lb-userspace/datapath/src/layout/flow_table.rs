//! One flow table in two layouts: the old one, the new one, and what is between them.

use std::{io, path::Path};

use lb_common::abi::half_open_flags;

use super::{
    Description, LayoutError,
    convert::{Converter, Misfit},
    copy::converter,
    flow_fields::FlowFields,
    merge::Merge,
    tags::{self, Tags},
};
use lb_tables::{Condition, RawTable};

/// Bits of [`HalfOpen::flags`](lb_common::abi::HalfOpen::flags) of an entry that keeps a tuple: see [`super::reserve`].
const BLOCKER: u8 = half_open_flags::SECOND;

#[derive(Debug)]
pub(super) struct FlowTable {
    map: &'static str,
    old_table: RawTable,
    new_table: RawTable,
    /// Where fields are in an entry of the old table.
    pub old: FlowFields,
    /// Where fields are in an entry of the new table.
    pub new: FlowFields,
    convert: Converter,
    merge: Merge,
    /// Whether the tags of keys are recomputed.
    tags: Option<Tags>,
}

impl FlowTable {
    pub fn open(
        map: &'static str,
        sets: (&Path, &Path),
        descriptions: (&Description, &Description),
    ) -> Result<Self, LayoutError> {
        let open = |set: &Path| RawTable::open(&set.join(map)).map_err(LayoutError::access("open", map));
        let (from, to) = (&descriptions.0.map(map)?.value, &descriptions.1.map(map)?.value);
        let fields = |record| {
            FlowFields::new(record).map_err(|field| LayoutError::Layout {
                map: map.to_owned(),
                old: descriptions.0.abi,
                new: descriptions.1.abi,
                reason: format!("its records have no field {field}"),
            })
        };
        Ok(Self {
            map,
            old_table: open(sets.0)?,
            new_table: open(sets.1)?,
            old: fields(from)?,
            new: fields(to)?,
            convert: converter(map, from, to)?,
            merge: Merge::new(to),
            tags: tags::of(descriptions.1, map),
        })
    }

    /// The table of the old set.
    pub fn old_table(&self) -> &RawTable {
        &self.old_table
    }

    /// The table of the new set.
    pub fn new_table(&self) -> &RawTable {
        &self.new_table
    }

    /// An entry that keeps a tuple: see [`super::reserve`]. Of a table of handshakes; of any other one, an entry that never is there.
    pub fn blocker(&self) -> Vec<u8> {
        let mut entry = vec![0; self.new_table.value_size()];
        self.new.set_handshake_flags(&mut entry, BLOCKER);
        entry
    }

    /// Adapter for `map_err` on calls for either.
    pub fn failed(&self) -> impl FnOnce(io::Error) -> LayoutError + use<> {
        LayoutError::access("move entries of", self.map)
    }

    /// The entry in the new layout.
    pub fn convert(&self, key: &[u8], value: &[u8]) -> Result<Vec<u8>, Misfit> {
        let mut value = self.convert.convert(value)?;
        if let Some(set_tags) = self.tags {
            set_tags(key, &mut value);
        }
        Ok(value)
    }

    /// Writes an entry to the new table. `Ok(None)`: it has no room. `Ok(Some(false))`: there is one already.
    pub fn insert(&self, key: &[u8], value: &[u8]) -> io::Result<Option<bool>> {
        match self.new_table.put(key, value, Condition::New) {
            // Its own place was kept free.
            Ok(false) if self.new_table.get(key)?.is_some_and(|there| there == self.blocker()) => {
                self.new_table.put(key, value, Condition::There).map(Some)
            }
            Ok(is_new) => Ok(Some(is_new)),
            Err(error) if matches!(error.raw_os_error(), Some(libc::E2BIG | libc::ENOMEM)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether the new table holds another connection under the key, which is over, and whose tuple this one has got.
    pub fn is_over_for(&self, key: &[u8], value: &[u8]) -> io::Result<bool> {
        let there = self.new_table.get(key)?;
        Ok(there.is_some_and(|there| {
            self.new.identity(&there) != self.new.identity(value)
                && self.new.is_closing(&there)
                && !self.new.is_closing(value)
        }))
    }

    /// Takes the old entry out, now that no old program writes it any more, and carries over what was written since it was `copied` (in the old
    /// layout; `None`: it was not).
    pub fn finish(&self, key: &[u8], copied: Option<&[u8]>) -> io::Result<()> {
        let last = self.old_table.take(key)?;
        let unconverted = |value: &[u8]| self.convert(key, value).ok();
        let Some(last) = last else {
            return match copied.and_then(unconverted) {
                Some(copied) => self.withdraw(key, &copied),
                None => Ok(()),
            };
        };
        if copied == Some(last.as_slice()) {
            return Ok(());
        }
        let Some(last) = unconverted(&last) else { return Ok(()) };
        let copied = copied.and_then(unconverted).unwrap_or_else(|| vec![0; last.len()]);
        let Some(mut current) = self.new_table.get(key)? else { return Ok(()) };
        if self.new.identity(&current) != self.new.identity(&last) {
            // An old program has given the tuple to another connection. It is the one that lives, unless a new program knows better.
            if current == copied {
                self.new_table.put(key, &last, Condition::There)?;
            }
            return Ok(());
        }
        // A write of a new program between these two calls is lost. A packet of that moment made it, and the next packet makes it again.
        if self.merge.carry_over(&copied, &last, &mut current) {
            self.new_table.put(key, &current, Condition::There)?;
        }
        Ok(())
    }

    /// An old program has removed its entry after it was copied: so does this, unless a new program has written it.
    fn withdraw(&self, key: &[u8], copied: &[u8]) -> io::Result<()> {
        if self.new_table.get(key)?.as_deref() != Some(copied) {
            return Ok(());
        }
        match self.new_table.take(key)? {
            Some(taken) if taken != copied => self.new_table.put(key, &taken, Condition::New).map(drop),
            _ => Ok(()),
        }
    }
}
