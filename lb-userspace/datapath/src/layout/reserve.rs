//! Reply tuples of translated connections that are still in the old tables: no new connection may get one of them.
//!
//! The new programs take a tuple if they can write their entry under it among the handshakes. So an entry is put there that no look-up takes for one:
//! its tag is no key's, and gates see a note in it.

use super::{
    LayoutError,
    mover::{FlowMover, MovedTables},
};
use lb_tables::{Condition, RawCursor};

/// Entries that are read at once.
const BATCH: usize = 4096;

impl FlowMover {
    /// Keeps the new programs from these tuples. Repeatable; call it just before the new programs take over, and just after.
    pub fn reserve(&self) -> Result<(), LayoutError> {
        self.families.iter().try_for_each(MovedTables::reserve)
    }

    /// Gives up what [`Self::reserve`] has kept: everything is moved.
    pub fn release(&self) -> Result<(), LayoutError> {
        self.families.iter().try_for_each(MovedTables::release)
    }
}

impl MovedTables {
    fn reserve(&self) -> Result<(), LayoutError> {
        let (handshakes, blocker) = (self.half_open.new_table(), self.half_open.blocker());
        // The table evicts: what makes room for others must be no more than some of it.
        let mut left = handshakes.capacity() / 2;
        for table in [&self.flows, &self.udp_flows, &self.half_open] {
            let (old, mut cursor) = (table.old_table(), RawCursor::default());
            let mut parts = 2 * old.capacity() as usize / BATCH + 2;
            while !cursor.is_done() && parts > 0 && left > 0 {
                parts -= 1;
                let part = old.read_part(&mut cursor, BATCH).map_err(table.failed())?;
                for (key, value) in
                    part.keys.chunks_exact(old.key_size()).zip(part.values.chunks_exact(old.value_size()))
                {
                    if left > 0 && table.old.is_translated_reply(&self.keys, key, value) {
                        left -= u32::from(handshakes.put(key, &blocker, Condition::New).map_err(table.failed())?);
                    }
                }
            }
        }
        Ok(())
    }

    fn release(&self) -> Result<(), LayoutError> {
        let (table, blocker) = (&self.half_open, self.half_open.blocker());
        let handshakes = table.new_table();
        let whole = handshakes.each_part(|part| {
            let elements =
                part.keys.chunks_exact(handshakes.key_size()).zip(part.values.chunks_exact(handshakes.value_size()));
            for (key, _) in elements.filter(|(_, value)| *value == blocker) {
                handshakes.remove(key)?;
            }
            Ok(())
        });
        whole.map(drop).map_err(table.failed())
    }
}
