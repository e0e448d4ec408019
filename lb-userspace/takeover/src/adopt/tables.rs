//! The flow tables as the adopter writes them.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use lb_common::abi::{Flow, FlowKey, UDP, V4, V6, fin, flow_flags, flow_state};
use lb_common::decide::pair_key;
use lb_common::map;

use super::entries;
use crate::conntrack::{Entry, Family, Tuple};
use lb_tables::{Calls, MapError, Table, TableOf, if_there, open_table};

/// Adopted connections may take so many quarters of a table: the others are for new connections.
const MOST_QUARTERS: u32 = 3;

/// What became of a connection that was to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    Written,
    /// Ballast has a connection on one of its tuples.
    Taken,
    Full,
}

/// The tables, and the adoption window.
pub struct AdoptionTables {
    v4: [Flows<V4>; 2],
    v6: [Flows<V6>; 2],
    /// `None`: the tables are of a version without it.
    window: Option<TableOf<map::Adoption>>,
}

/// A table of flows, and how many connections of it are adopted.
#[derive(Debug)]
struct Flows<const N: usize> {
    table: Table<FlowKey<N>, Flow<N>>,
    adopted: u32,
}

impl AdoptionTables {
    pub fn open(dir: &Path) -> Result<Self, MapError> {
        let calls = Calls::default();
        Ok(Self {
            v4: Flows::both(dir, &calls)?,
            v6: Flows::both(dir, &calls)?,
            window: if_there(open_table::<map::Adoption>(dir, &calls))?,
        })
    }

    pub(super) fn window_until_s(&self) -> u32 {
        self.window.as_ref().and_then(|map| map.get(&0).ok()?).unwrap_or(0)
    }

    pub(super) fn close_window(&mut self) -> io::Result<()> {
        self.window.as_ref().map_or(Ok(()), |map| map.put(&0, &0))
    }

    pub(super) fn write(&mut self, entry: &Entry, now_s: u32) -> io::Result<Room> {
        let of_protocol = usize::from(entry.original.protocol == UDP);
        match entry.original.family() {
            Family::V4 => self.v4[of_protocol].write(entry, now_s, flow_state::ADOPTED),
            Family::V6 => self.v6[of_protocol].write(entry, now_s, flow_state::ADOPTED),
        }
    }

    /// Writes a connection that programs are to hold until [`Self::release`].
    pub(super) fn hold(&mut self, entry: &Entry, now_s: u32) -> io::Result<Room> {
        let of_protocol = usize::from(entry.original.protocol == UDP);
        match entry.original.family() {
            Family::V4 => self.v4[of_protocol].write(entry, now_s, flow_state::HELD),
            Family::V6 => self.v6[of_protocol].write(entry, now_s, flow_state::HELD),
        }
    }

    /// Leaves a held connection to the host's NAT.
    pub(super) fn release(&mut self, original: &Tuple, reply: &Tuple) -> io::Result<()> {
        let of_protocol = usize::from(original.protocol == UDP);
        match original.family() {
            Family::V4 => self.v4[of_protocol].release(original, reply),
            Family::V6 => self.v6[of_protocol].release(original, reply),
        }
    }

    pub(super) fn mark_over(&mut self, original: &Tuple) -> io::Result<()> {
        let of_protocol = usize::from(original.protocol == UDP);
        match original.family() {
            Family::V4 => self.v4[of_protocol].mark_over(original),
            Family::V6 => self.v6[of_protocol].mark_over(original),
        }
    }

    pub(super) fn remove(&mut self, original: &Tuple, reply: &Tuple) -> io::Result<()> {
        let of_protocol = usize::from(original.protocol == UDP);
        match original.family() {
            Family::V4 => self.v4[of_protocol].remove(original, reply),
            Family::V6 => self.v6[of_protocol].remove(original, reply),
        }
    }

    /// Original and reply tuple of every adopted connection.
    pub(super) fn read(&mut self) -> io::Result<Vec<(Tuple, Tuple)>> {
        let mut all = Vec::new();
        for flows in &mut self.v4 {
            all.extend(flows.read()?);
        }
        for flows in &mut self.v6 {
            all.extend(flows.read()?);
        }
        Ok(all)
    }
}

impl<const N: usize> Flows<N>
where
    IpAddr: From<[u8; N]>,
{
    /// Opens the table of established connections, and the table of UDP flows.
    fn both(dir: &Path, calls: &Calls) -> Result<[Self; 2], MapError> {
        let tables = [open_table::<map::Flows<N>>(dir, calls)?, open_table::<map::UdpFlows<N>>(dir, calls)?];
        Ok(tables.map(|table| Self { table, adopted: 0 }))
    }

    /// Writes both entries in this state, or none of them.
    fn write(&mut self, entry: &Entry, now_s: u32, state: u8) -> io::Result<Room> {
        let Some([(original, mut forward), (reply, mut back)]) = entries::pair::<N>(entry, now_s) else {
            return Ok(Room::Taken);
        };
        (forward.state, back.state) = (state, state);
        if self.adopted >= self.table.capacity() / 8 * MOST_QUARTERS {
            return Ok(Room::Full);
        }
        let is_known = self.table.get(&original)?.is_some_and(|found| found.is_given());
        match self.put(&reply, &back)? {
            Room::Written => {}
            other @ (Room::Taken | Room::Full) => return Ok(other),
        }
        match self.put(&original, &forward)? {
            Room::Written => self.adopted += u32::from(!is_known),
            other @ (Room::Taken | Room::Full) => {
                self.table.remove(&reply)?;
                return Ok(other);
            }
        }
        Ok(Room::Written)
    }

    /// Writes an entry unless a connection of Ballast has the tuple.
    fn put(&self, key: &FlowKey<N>, flow: &Flow<N>) -> io::Result<Room> {
        match self.table.put_new(key, flow) {
            Ok(true) => Ok(Room::Written),
            // Of an adoption that was broken off.
            Ok(false) if self.table.get(key)?.is_some_and(|found| found.is_given()) => {
                self.table.replace(key, flow)?;
                Ok(Room::Written)
            }
            Ok(false) => Ok(Room::Taken),
            Err(error) if matches!(error.raw_os_error(), Some(libc::E2BIG | libc::ENOSPC)) => Ok(Room::Full),
            Err(error) => Err(error),
        }
    }

    fn release(&self, original: &Tuple, reply: &Tuple) -> io::Result<()> {
        for key in [original, reply].into_iter().filter_map(entries::key) {
            if let Some(flow) = self.table.get(&key)?.filter(|flow| flow.state == flow_state::HELD) {
                self.table.replace(&key, &Flow { state: flow_state::ADOPTED, ..flow })?;
            }
        }
        Ok(())
    }

    fn mark_over(&self, original: &Tuple) -> io::Result<()> {
        let Some(key) = entries::key(original) else { return Ok(()) };
        if let Some(flow) = self.table.get(&key)?.filter(is_adopted) {
            self.table.replace(&key, &Flow { fin: fin::SENT, opposite_fin: fin::SENT, ..flow })?;
        }
        Ok(())
    }

    fn remove(&mut self, original: &Tuple, reply: &Tuple) -> io::Result<()> {
        for tuple in [original, reply] {
            let Some(key) = entries::key(tuple) else { continue };
            if !self.table.get(&key)?.is_some_and(|flow| flow.is_given()) {
                continue;
            }
            // A connection of Ballast that took the tuple at this moment is put back.
            if let Some(taken) = self.table.take(&key)?.filter(|taken| !taken.is_given()) {
                self.table.put_new(&key, &taken)?;
            }
        }
        self.adopted = self.adopted.saturating_sub(1);
        Ok(())
    }

    fn read(&mut self) -> io::Result<Vec<(Tuple, Tuple)>> {
        let mut found = Vec::new();
        let mut take = |key: &FlowKey<N>, flow: &Flow<N>| {
            if !is_adopted(flow) {
                return;
            }
            let (own, opposite) = (entries::tuple(key), entries::tuple(&pair_key(key, flow)));
            // By the reply entry: the original tuple may belong to another connection by now.
            if flow.flags & flow_flags::REPLY != 0 {
                found.push((opposite, own));
            }
        };
        if !self.table.each(&mut take)? {
            return Err(io::Error::other("it changed faster than it could be read"));
        }
        self.adopted = u32::try_from(found.len()).unwrap_or(u32::MAX);
        Ok(found)
    }
}

fn is_adopted<const N: usize>(flow: &Flow<N>) -> bool {
    flow.state == flow_state::ADOPTED
}
