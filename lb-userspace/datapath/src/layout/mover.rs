//! Flow entries on their way from the old tables to the new ones, while the programs of both are at work.
//!
//! A packet is the new programs' if the new tables hold its tuple, the old programs' if only the old ones do. So the moment at which an entry
//! is written to the new table hands its direction over, and the old entry may still be written by programs that began before. Hence: write
//! the new entry, wait until those programs have ended, take the old entry out, and carry over what it held last.

use std::{collections::HashSet, path::Path};

use lb_common::abi::UDP;

use super::{
    Description, LayoutError,
    fates::moving_flows,
    flow_fields::{FlowFields, KeyFields},
    flow_table::FlowTable,
    grace::Grace,
    tables::Family,
};
use lb_tables::{Condition, RawCursor};

/// So many entries are on their way at once, their opposite directions not counted.
const BATCH: usize = 4096;

/// A handshake is moved when it has rested so long, seconds. One that goes on is soon established or over: between the moment at which its entry is
/// read and that at which it is written, it would become another one.
const HANDSHAKE_RESTS_S: u64 = 2;
/// After so many seconds of a mover, it moves all handshakes: clients that send SYNs all the time hold nothing up.
const LONGEST_REST_S: u64 = 15;

/// What became of the entries that a pass has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Entries in the old tables.
    pub found: u64,
    /// Those that are in the new tables now, and no more in the old ones.
    pub moved: u64,
    /// Those that the new tables knew already, or that another connection has followed: out of the old tables.
    pub superseded: u64,
    /// Those with a value that the new layout cannot hold: lost.
    pub dropped: u64,
    /// Those for which the new table has no room: still in the old one.
    pub stuck: u64,
}

/// Moves flow entries; see the module.
#[derive(Debug)]
pub struct FlowMover {
    pub(super) families: Vec<MovedTables>,
    grace: Grace,
    began_s: u64,
}

/// The flow tables of one address family.
#[derive(Debug)]
pub(super) struct MovedTables {
    pub keys: KeyFields,
    pub flows: FlowTable,
    pub udp_flows: FlowTable,
    pub half_open: FlowTable,
}

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Flows,
    UdpFlows,
    HalfOpen,
}

/// A key and an entry of the old table.
type Found = (Vec<u8>, Vec<u8>);

/// An entry on its way.
struct OnItsWay {
    key: Vec<u8>,
    /// In the old layout, when it was written to the new table; `None`: another one was there, or nothing was to be written.
    copied: Option<Vec<u8>>,
}

impl FlowMover {
    /// Moves those flow tables whose fate is [`Fate::Flows`](super::Fate::Flows), from the first set of pinned maps to the second, each described.
    pub fn new(sets: (&Path, &Path), descriptions: (&Description, &Description)) -> Result<Self, LayoutError> {
        let moving = moving_flows(descriptions.0, descriptions.1);
        let families =
            Family::ALL.into_iter().filter(|family| family.flow_tables().iter().any(|name| moving.contains(name)));
        let families =
            families.map(|family| MovedTables::open(family, sets, descriptions)).collect::<Result<_, _>>()?;
        let grace = Grace::new().map_err(LayoutError::access("make", "for waiting"))?;
        Ok(Self { families, grace, began_s: now_s() })
    }

    /// Moves every entry that it finds in the old tables. Call it after the new programs have taken over, until two passes in a row find
    /// nothing but what is stuck.
    ///
    /// Killed at any moment, another mover goes on where this one was.
    pub fn pass(&mut self) -> Result<Moved, LayoutError> {
        let mut moved = Moved::default();
        // Programs that began before the pass may still make entries.
        self.wait()?;
        for tables in &self.families {
            for which in [Which::Flows, Which::UdpFlows, Which::HalfOpen] {
                self.table(tables, which, &mut moved)?;
            }
        }
        Ok(moved)
    }

    fn wait(&self) -> Result<(), LayoutError> {
        self.grace.wait().map_err(LayoutError::access("write", "for waiting"))
    }

    fn table(&self, tables: &MovedTables, which: Which, moved: &mut Moved) -> Result<(), LayoutError> {
        let (table, now_s) = (tables.of(which), now_s());
        let is_early = now_s < self.began_s + LONGEST_REST_S;
        let rested_s = if is_early { now_s.saturating_sub(HANDSHAKE_RESTS_S) } else { u64::MAX };
        let mut cursor = RawCursor::default();
        // Twice its size, as it may grow while it is read.
        let mut left = 2 * table.old_table().capacity() as usize / BATCH + 2;
        while !cursor.is_done() && left > 0 {
            left -= 1;
            let found = tables.find(table, &mut cursor)?;
            let mut batch = Vec::new();
            // The answer to a handshake comes to the new programs first: they make the original entry by the reply entry if it is missing.
            // The other way round, the client's acknowledgement would find no answer noted.
            let (answers, found): (Vec<_>, Vec<_>) =
                found.into_iter().partition(|(_, value)| table.old.is_reply(value) && table.old.is_handshake(value));
            // The reply entry of an ended connection comes last. A SYN on its tuple would find it alone otherwise, and take it for a connection's.
            let (ended, others): (Vec<_>, Vec<_>) =
                found.into_iter().partition(|(_, value)| table.old.is_reply(value) && table.old.is_closing(value));
            for keys in [answers, others, ended] {
                let is_empty = keys.is_empty();
                for (key, _) in keys {
                    moved.found += 1;
                    tables.insert(which, key, rested_s, &mut batch, moved)?;
                }
                if !is_empty {
                    self.wait()?;
                }
            }
            for entry in batch {
                table.finish(&entry.key, entry.copied.as_deref()).map_err(table.failed())?;
            }
        }
        Ok(())
    }
}

impl MovedTables {
    fn open(
        family: Family,
        sets: (&Path, &Path),
        descriptions: (&Description, &Description),
    ) -> Result<Self, LayoutError> {
        let [flows, udp_flows, half_open] = family.flow_tables();
        let keys = KeyFields::new(&descriptions.1.map(flows)?.key).map_err(|field| LayoutError::Layout {
            map: flows.to_owned(),
            old: descriptions.0.abi,
            new: descriptions.1.abi,
            reason: format!("its keys have no field {field}"),
        })?;
        let open = |name| FlowTable::open(name, sets, descriptions);
        Ok(Self { keys, flows: open(flows)?, udp_flows: open(udp_flows)?, half_open: open(half_open)? })
    }

    fn of(&self, which: Which) -> &FlowTable {
        match which {
            Which::Flows => &self.flows,
            Which::UdpFlows => &self.udp_flows,
            Which::HalfOpen => &self.half_open,
        }
    }

    /// The next entries of the old table, and those of their opposite directions: one next to the other.
    fn find(&self, table: &FlowTable, cursor: &mut RawCursor) -> Result<Vec<Found>, LayoutError> {
        let old = table.old_table();
        let part = old.read_part(cursor, BATCH).map_err(table.failed())?;
        let (mut found, mut known) = (Vec::new(), HashSet::new());
        for (key, value) in part.keys.chunks_exact(old.key_size()).zip(part.values.chunks_exact(old.value_size())) {
            let mut next = Some((key.to_vec(), value.to_vec()));
            // A reply entry leads to the original one, and that to the reply entry of its latest backend.
            while let Some((key, value)) = next.take().filter(|(key, _)| known.insert(key.clone())) {
                let pair = table.old.pair_key(&self.keys, &key, &value);
                if !known.contains(&pair) {
                    next = old.get(&pair).map_err(table.failed())?.map(|value| (pair, value));
                }
                found.push((key, value));
            }
        }
        Ok(found)
    }

    /// Hands a direction over to the new programs.
    fn insert(
        &self,
        which: Which,
        key: Vec<u8>,
        rested_s: u64,
        batch: &mut Vec<OnItsWay>,
        moved: &mut Moved,
    ) -> Result<(), LayoutError> {
        let table = self.of(which);
        let failed = || table.failed();
        // As it is at this moment. Where it is gone, the old programs have removed it, or written it to another table.
        let Some(value) = table.old_table().get(&key).map_err(failed())? else { return Ok(()) };
        let is_udp = self.keys.protocol(&key) == u64::from(UDP);
        if !is_udp && table.old.is_handshake(&value) && table.old.seen_s(&value) > rested_s {
            return Ok(());
        }
        let Ok(converted) = table.convert(&key, &value) else {
            moved.dropped += 1;
            batch.push(OnItsWay { key, copied: None });
            return Ok(());
        };
        let (is_followed, stale) = self.beside(which, &key, &converted)?;
        let inserted = if is_followed {
            Some(false)
        } else if table.is_over_for(&key, &converted).map_err(failed())? {
            table.new_table().put(&key, &converted, Condition::There).map(Some).map_err(failed())?
        } else {
            table.insert(&key, &converted).map_err(failed())?
        };
        match inserted {
            None => moved.stuck += 1,
            Some(is_new) => {
                if let Some(stale) = stale.filter(|_| !is_followed) {
                    stale.new_table().remove(&key).map_err(failed())?;
                }
                *(if is_new { &mut moved.moved } else { &mut moved.superseded }) += 1;
                batch.push(OnItsWay { key, copied: Some(value).filter(|_| is_new) });
            }
        }
        Ok(())
    }

    /// What the other new table of the same packets holds under the key: whether it goes on where this entry ends, and so the entry is not to
    /// come back; and the table in which it is what comes before this entry, and is to go.
    fn beside(&self, which: Which, key: &[u8], entry: &[u8]) -> Result<(bool, Option<&FlowTable>), LayoutError> {
        let established = if self.keys.protocol(key) == u64::from(UDP) { &self.udp_flows } else { &self.flows };
        let (own, other) = match which {
            Which::HalfOpen => (&self.half_open, established),
            Which::Flows | Which::UdpFlows => (self.of(which), &self.half_open),
        };
        if own.new.is_note(entry) {
            return Ok((false, None));
        }
        let Some(beside) = other.new_table().get(key).map_err(other.failed())?.filter(|it| !other.new.is_note(it))
        else {
            return Ok((false, None));
        };
        if own.new.identity(entry) != other.new.identity(&beside) {
            return Ok((other.new.since_s(&beside) > own.new.since_s(entry), None));
        }
        // Of one connection: the handshake comes first, then the established connection, then the ended one, in the table of handshakes.
        let half_open = if which == Which::HalfOpen { (own, entry) } else { (other, &beside[..]) };
        let is_handshake = half_open.0.new.is_handshake(half_open.1);
        let goes_on = (which == Which::HalfOpen) == is_handshake;
        Ok((goes_on, Some(other).filter(|_| !goes_on)))
    }
}

/// Offsets of the state in the records of `half_open4` and `half_open6` of a set: the gates read it there.
pub fn handshake_state_at(set: &Description) -> Result<[u32; 2], LayoutError> {
    let of = |family: Family| {
        let [.., half_open] = family.flow_tables();
        let fields = FlowFields::new(&set.map(half_open)?.value);
        let missing = |field| LayoutError::Layout {
            map: half_open.to_owned(),
            old: set.abi,
            new: set.abi,
            reason: format!("its records have no field {field}"),
        };
        fields.map(|fields| fields.state_at()).map_err(missing)
    };
    let [v4, v6] = Family::ALL.map(of);
    Ok([v4?, v6?])
}

/// As the programs have it: seconds of `CLOCK_MONOTONIC`.
fn now_s() -> u64 {
    rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).tv_sec.unsigned_abs()
}
