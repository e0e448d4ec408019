//! The thin part that does it: reads some entries of one table, takes out what is over, and reports to the round what stays.

use std::{any::Any, io, net::IpAddr};

use aya::Pod;
use lb_common::{
    abi::{Affinity, AffinityKey, Flow, FlowKey, HalfOpen, SocketKey, SocketPeer, TCP, UDP, flow_state},
    decide::{Now, is_pair, pair_key},
    map,
    state::{Timeouts, ends_with_drain_period},
};

use super::{Seen, SendReset, SweptKind, SweptTable, reset, rules};
use crate::plan::{BackendId, DrainLimits, Frontend, ProgrammedState};
use lb_model::{Family, Monotonic};
use lb_tables::{Cursor, Pinned, Table};

/// What one part came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    pub looked: usize,
    pub removed: usize,
    /// RSTs that were done with.
    pub resets: usize,
    /// The table has no more.
    pub is_last: bool,
}

/// What a part looks with.
#[derive(Clone, Copy)]
pub struct SweepContext<'a> {
    pub maps: &'a Pinned,
    pub programmed: &'a ProgrammedState,
    pub timeouts: &'a Timeouts,
    pub now: Now,
    /// The moment of [`Self::now`].
    pub at: Monotonic,
    /// Of services that have none of their own.
    pub drain_limits: DrainLimits,
    /// `None`: the ends of connections whose backend is gone get their RST from the programs, at their next segment.
    pub send_reset: Option<SendReset<'a>>,
}

/// Where a table's reader is, whatever its keys; empty at the start of each table.
pub type Position = Option<Box<dyn Any + Send>>;

impl SweepContext<'_> {
    /// Looks at up to `count` entries of one table, from `position` on.
    pub fn part(&self, table: SweptTable, position: &mut Position, count: usize, seen: &mut Seen) -> io::Result<Part> {
        match table.family {
            Family::V4 => self.part_of::<4>(table, position, count, seen),
            Family::V6 => self.part_of::<16>(table, position, count, seen),
        }
    }

    fn part_of<const N: usize>(
        &self,
        SweptTable { kind, family }: SweptTable,
        position: &mut Position,
        count: usize,
        seen: &mut Seen,
    ) -> io::Result<Part>
    where
        IpAddr: From<[u8; N]>,
    {
        let maps = self.maps;
        match kind {
            SweptKind::HalfOpen => self.half_open(&maps.of::<map::HalfOpen<N>>(), family, position, count, seen),
            SweptKind::Flows => self.flows(&maps.of::<map::Flows<N>>(), family, position, count, seen),
            SweptKind::UdpFlows => self.flows(&maps.of::<map::UdpFlows<N>>(), family, position, count, seen),
            SweptKind::Sockets => sockets(&maps.of::<map::Sockets<N>>(), family, position, count, seen),
            SweptKind::Affinity => self.affinity(&maps.of::<map::Affinity<N>>(), family, position, count, seen),
            SweptKind::Traffic => traffic::<N>(maps, position, count),
        }
    }

    fn flows<const N: usize>(
        &self,
        table: &Table<FlowKey<N>, Flow<N>>,
        family: Family,
        position: &mut Position,
        count: usize,
        seen: &mut Seen,
    ) -> io::Result<Part>
    where
        IpAddr: From<[u8; N]>,
    {
        let has_room = seen.has_room(family, table.capacity());
        let timeouts = if has_room { self.timeouts.with_room() } else { *self.timeouts };
        let mut resets = 0;
        let part = pass(table, position, count, |key, flow| {
            let ended = if self.owes_reset(key, flow, family) { self.reset(table, key, family)? } else { None };
            resets += usize::from(ended.is_some());
            let flow = ended.as_ref().unwrap_or(flow);
            // Nothing more is forwarded to a backend that is gone: its connections are over when they fall silent.
            let is_gone = seen.is_gone(BackendId { family, id: flow.backend });
            let is_silent = |key: &FlowKey<N>, flow: &Flow<N>| {
                let flow = if is_gone { &Flow { state: flow_state::EVICTED, ..*flow } } else { flow };
                rules::is_silent(key, flow, &timeouts, self.now)
            };
            if is_silent(key, flow) {
                let other = pair_key(key, flow);
                let pair = table.get(&other)?.filter(|pair| is_pair(key, flow, pair));
                let is_over = pair.is_none_or(|pair| is_silent(&other, &pair));
                if is_over && take(table, key, |now| is_silent(key, now))? {
                    return Ok(true);
                }
            }
            if let Some(frontend) = self.unserved(key, flow)
                && self.drain(table, frontend, (key, flow), family, seen)?
            {
                return Ok(true);
            }
            seen.flow(family, flow);
            seen.clients.see(key, flow);
            seen.established[usize::from(family == Family::V6)] += u32::from(key.protocol != UDP);
            seen.masqueraded += u64::from(rules::is_masqueraded(key, flow));
            Ok(false)
        })?;
        Ok(Part { resets, ..part })
    }

    /// Whether this round is to send the sender of the direction a RST.
    fn owes_reset<const N: usize>(&self, key: &FlowKey<N>, flow: &Flow<N>, family: Family) -> bool {
        let backend = || self.programmed.backends().get(BackendId { family, id: flow.backend });
        self.send_reset.is_some() && reset::is_owed(key, flow, backend(), self.at)
    }

    /// Sends the sender of the direction its RST. Returns the entry after that; `None`: none was sent. The entry is written first: its sender may begin
    /// another connection on the tuple once it has the RST.
    fn reset<const N: usize>(
        &self,
        table: &Table<FlowKey<N>, Flow<N>>,
        key: &FlowKey<N>,
        family: Family,
    ) -> io::Result<Option<Flow<N>>>
    where
        IpAddr: From<[u8; N]>,
    {
        // It was read with many others, and their RSTs take a while.
        let Some(flow) = table.get(key)?.filter(|flow| self.owes_reset(key, flow, family)) else { return Ok(None) };
        let after = reset::after(&flow, self.now.s);
        if !table.replace(key, &after)? {
            return Ok(None);
        }
        if self.send_reset.is_some_and(|send| send(&reset::reset(key, &flow))) {
            return Ok(Some(after));
        }
        // The next round tries again.
        table.replace(key, &Flow { next: flow.next, ack: flow.ack, ..after })?;
        Ok(None)
    }

    /// The frontend that the flow came by, if it is no more.
    fn unserved<const N: usize>(&self, key: &FlowKey<N>, flow: &Flow<N>) -> Option<Frontend>
    where
        IpAddr: From<[u8; N]>,
    {
        rules::frontend(key, flow).filter(|at| {
            !rules::is_served(*at, |frontend| self.programmed.frontends().get(frontend).map(|found| found.flags))
        })
    }

    /// Whether to cut a connection of this backend that came by a frontend that is no more. It goes on for the longest drain from the first round
    /// that met one. One of which no reply passes here (DSR) goes on for the drain period.
    fn is_due<const N: usize>(&self, frontend: Frontend, flow: &Flow<N>, family: Family, seen: &mut Seen) -> bool {
        let record = self.programmed.backends().get(BackendId { family, id: flow.backend });
        let own = record.map(|record| self.programmed.services().own_drain_limits(record.service)).unwrap_or_default();
        let DrainLimits { period, max } = own.or(self.drain_limits);
        let limit = if ends_with_drain_period(TCP, flow) { period } else { period.max(max) };
        seen.unserved(frontend, self.at) + limit <= self.at
    }

    /// The flow came by a frontend that is no more. UDP goes with it: its next packet finds no service. TCP goes on for the longest drain;
    /// then each side gets a RST at its next segment, or from the next round. True if the entry was taken out.
    fn drain<const N: usize>(
        &self,
        table: &Table<FlowKey<N>, Flow<N>>,
        frontend: Frontend,
        (key, flow): (&FlowKey<N>, &Flow<N>),
        family: Family,
        seen: &mut Seen,
    ) -> io::Result<bool> {
        let other = pair_key(key, flow);
        let pair = table.get(&other)?.filter(|pair| is_pair(key, flow, pair));
        if key.protocol == UDP {
            if pair.is_some() {
                table.remove(&other)?;
            }
            return table.remove(key);
        }
        if self.is_due(frontend, flow, family, seen) {
            if let Some(pair) = pair {
                table.replace(&other, &rules::cut(&pair))?;
            }
            seen.cut += u64::from(table.replace(key, &rules::cut(flow))?);
        }
        Ok(false)
    }

    fn half_open<const N: usize>(
        &self,
        table: &Table<FlowKey<N>, HalfOpen<N>>,
        family: Family,
        position: &mut Position,
        count: usize,
        seen: &mut Seen,
    ) -> io::Result<Part>
    where
        IpAddr: From<[u8; N]>,
    {
        let is_silent =
            |key: &FlowKey<N>, entry: &HalfOpen<N>| rules::is_half_open_silent(key, entry, self.timeouts, self.now);
        pass(table, position, count, |key, entry| {
            // A note about a connection of a backend that is gone says nothing any more.
            if rules::is_note(entry) && seen.is_gone(BackendId { family, id: entry.flow.backend }) {
                return table.remove(key);
            }
            if is_silent(key, entry) {
                let other = pair_key(key, &entry.flow);
                let pair = if rules::is_alone(entry) { None } else { table.get(&other)? };
                let pair = pair.filter(|pair| is_pair(key, &entry.flow, &pair.flow));
                let is_over = pair.is_none_or(|pair| is_silent(&other, &pair));
                if is_over && take(table, key, |now| is_silent(key, now))? {
                    return Ok(true);
                }
            }
            // A handshake finds no service any more. What is retained goes on as an established connection does.
            if entry.flow.state != flow_state::HALF_OPEN
                && let Some(frontend) = self.unserved(key, &entry.flow)
                && self.is_due(frontend, &entry.flow, family, seen)
            {
                let cut = HalfOpen { flow: rules::cut(&entry.flow), ..*entry };
                seen.cut += u64::from(table.replace(key, &cut)?);
            }
            seen.half_open(family, entry);
            Ok(false)
        })
    }

    fn affinity<const N: usize>(
        &self,
        table: &Table<AffinityKey<N>, Affinity>,
        family: Family,
        position: &mut Position,
        count: usize,
        seen: &mut Seen,
    ) -> io::Result<Part> {
        let is_over = |key: &AffinityKey<N>, affinity: &Affinity| {
            let frontends =
                self.programmed.services().get(key.service).into_iter().flat_map(|service| &service.frontends);
            let entries = frontends.filter_map(|frontend| self.programmed.frontends().get(frontend));
            let timeout_s = entries.map(|entry| entry.affinity_timeout_s).max().unwrap_or_default();
            let id = BackendId { family, id: affinity.backend };
            let generation = self.programmed.backends().get(id).map(|record| record.generation);
            rules::is_affinity_over(key, affinity, timeout_s, generation, self.now)
        };
        pass(table, position, count, |key, affinity| {
            if is_over(key, affinity) && take(table, key, |now| is_over(key, now))? {
                return Ok(true);
            }
            seen.refer(BackendId { family, id: affinity.backend });
            Ok(false)
        })
    }
}

/// A closed socket's entries are taken out as it is closed: here they are only looked at.
fn sockets<const N: usize>(
    table: &Table<SocketKey<N>, SocketPeer<N>>,
    family: Family,
    position: &mut Position,
    count: usize,
    seen: &mut Seen,
) -> io::Result<Part> {
    pass(table, position, count, |_, peer| {
        seen.socket(BackendId { family, id: peer.backend });
        Ok(false)
    })
}

/// Counters of flows that are no more.
fn traffic<const N: usize>(maps: &Pinned, position: &mut Position, count: usize) -> io::Result<Part> {
    let (table, half_open) = (maps.of::<map::Traffic<N>>(), maps.of::<map::HalfOpen<N>>());
    let (flows, udp_flows) = (maps.of::<map::Flows<N>>(), maps.of::<map::UdpFlows<N>>());
    pass(&table, position, count / 2, |key, _| {
        let flows = if key.protocol == UDP { &udp_flows } else { &flows };
        let is_over = flows.get(key)?.is_none() && half_open.get(key)?.is_none();
        if is_over { table.remove(key) } else { Ok(false) }
    })
}

/// Reads on from `position`; `visit` says of each entry whether it was taken out.
fn pass<K: Pod + Send, V: Pod>(
    table: &Table<K, V>,
    position: &mut Position,
    count: usize,
    mut visit: impl FnMut(&K, &V) -> io::Result<bool>,
) -> io::Result<Part> {
    let own = position.take().and_then(|position| position.downcast::<Cursor<K>>().ok());
    let mut cursor = own.unwrap_or_else(|| Box::new(table.cursor()));
    let (keys, values) = table.read_part(&mut cursor, count)?;
    let mut part = Part { looked: keys.len(), is_last: cursor.is_done(), ..Part::default() };
    for (key, value) in keys.iter().zip(&values) {
        part.removed += usize::from(visit(key, value)?);
    }
    *position = Some(cursor).filter(|_| !part.is_last).map(|cursor| cursor as Box<dyn Any + Send>);
    Ok(part)
}

/// Takes an entry out that is over. One that came to life since it was read is put back, unless a packet has written it anew.
fn take<K: Pod, V: Pod>(table: &Table<K, V>, key: &K, is_over: impl Fn(&V) -> bool) -> io::Result<bool> {
    let Some(taken) = table.take(key)? else { return Ok(true) };
    if is_over(&taken) {
        return Ok(true);
    }
    table.put_new(key, &taken).map(|_| false)
}
