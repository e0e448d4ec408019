//! Compares the entries that the programs have written (flows, half-open flows, health) with the model.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use lb_common::abi::{self, Flow, FlowKey, HalfOpen, MOST_MOVES, fin, flow_flags, flow_state, half_open_flags};

use super::connection::{Connection, Half, State};
use super::model::{self, Model};
use super::tables::{Bytes, number};
use crate::test_run::LoadedPrograms;

/// Key of an entry: protocol, source, destination.
pub type Tuple = (u8, SocketAddr, SocketAddr);

/// A flow entry in the words of the table, for comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub backend: u32,
    pub seen_s: u32,
    pub since_s: u32,
    pub isn: u32,
    pub address: SocketAddr,
    pub client: SocketAddr,
    pub generation: u16,
    pub state: u8,
    pub flags: u8,
    pub next: u32,
    pub ack: u32,
    pub fin: u8,
    pub opposite_fin: u8,
}

/// A half-open entry likewise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HalfEntry {
    Flow {
        entry: Entry,
        tried: [u32; MOST_MOVES],
        segments: u8,
        moves: u8,
        refused: bool,
        answers: Option<[u32; 2]>,
    },
    /// An answer that comes there is late.
    Left {
        entry: Entry,
    },
    /// Of another connection's SYNs only their times matter.
    Second {
        since_s: u32,
        seen_s: u32,
        segments: u8,
    },
}

/// All entries of both tables.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Entries {
    pub flows: BTreeMap<Tuple, Entry>,
    pub half_open: BTreeMap<Tuple, HalfEntry>,
}

/// Holds what the maps hold against what the model demands.
pub fn compare(programs: &LoadedPrograms, model: &Model) -> Result<()> {
    let (demanded, held) = (demanded(model), held(programs)?);
    same("flow", &demanded.flows, &held.flows)?;
    same("half-open flow", &demanded.half_open, &held.half_open)?;
    for &id in model.backends.keys() {
        let v6 = model.backends[&id].address.is_ipv6();
        let held = if v6 { programs.state6.health.get(&id, 0)? } else { programs.state4.health.get(&id, 0)? };
        let time = |time_s: u32| (time_s != 0).then_some(time_s);
        let held = model::Health {
            generation: held.generation,
            answered_s: time(held.answered_s),
            suspect_s: time(held.suspect_s),
            probe_s: time(held.probe_s),
            unanswered: held.unanswered,
        };
        let about = |health: model::Health| {
            if health.generation == model.backends[&id].generation { health } else { model::Health::default() }
        };
        let demanded = about(model.health.get(&id).copied().unwrap_or_default());
        let held = model::Health { generation: demanded.generation, ..about(held) };
        ensure!(held == demanded, "of backend {id} must be known {demanded:?}\n  but is {held:?}");
    }
    Ok(())
}

fn same<E: std::fmt::Debug + PartialEq>(
    what: &str,
    demanded: &BTreeMap<Tuple, E>,
    held: &BTreeMap<Tuple, E>,
) -> Result<()> {
    for (tuple, entry) in demanded {
        let is = held.get(tuple);
        ensure!(is == Some(entry), "{what} {tuple:?}\n  must be {entry:?}\n  but is  {is:?}");
    }
    for (tuple, entry) in held {
        ensure!(demanded.contains_key(tuple), "{what} {tuple:?} must not be there, but is {entry:?}");
    }
    Ok(())
}

fn demanded(model: &Model) -> Entries {
    let mut entries = Entries::default();
    for connection in &model.connections {
        let protocol = number(connection.protocol);
        let asks = (protocol, connection.client, connection.target);
        let answers = (protocol, connection.answerer, connection.seen_client);
        let forward =
            connection.forward.map(|half| entry(connection, half, connection.answerer, connection.seen_client, 0));
        let reply = connection
            .reply
            .map(|half| entry(connection, half, connection.target, connection.client, flow_flags::REPLY));
        let Some(opening) = &connection.opening else {
            entries.flows.extend(forward.map(|entry| (asks, entry)));
            entries.flows.extend(reply.map(|entry| (answers, entry)));
            continue;
        };
        let mut tried = [0; MOST_MOVES];
        tried.iter_mut().zip(&opening.tried).for_each(|(place, id)| *place = *id);
        let moves = u8::try_from(opening.tried.len()).expect("few");
        let (segments, refused, seen) = (opening.segments, opening.refused, opening.answers);
        let forward = forward.map(|entry| HalfEntry::Flow { entry, tried, segments, moves, refused, answers: seen });
        let reply = reply.map(|entry| {
            let (tried, segments, moves, refused) = ([0; MOST_MOVES], 0, 0, false);
            HalfEntry::Flow { entry, tried, segments, moves, refused, answers: seen }
        });
        entries.half_open.extend(forward.map(|entry| (asks, entry)));
        entries.half_open.extend(reply.map(|entry| (answers, entry)));
    }
    for left in &model.left {
        let (backend, generation) = left.backend;
        let entry = Entry {
            backend,
            seen_s: left.seen_s,
            since_s: left.since_s,
            isn: left.isn,
            address: left.target,
            client: left.client,
            generation: u16::try_from(generation & 0xffff).expect("16 bits"),
            state: flow_state::HALF_OPEN,
            flags: flow_flags::REPLY
                | if left.early { flow_flags::EARLY } else { 0 }
                | if left.masqueraded { flow_flags::MASQUERADED } else { 0 },
            next: 0,
            ack: 0,
            fin: 0,
            opposite_fin: 0,
        };
        entries.half_open.insert((number(left.protocol), left.answerer, left.seen_client), HalfEntry::Left { entry });
    }
    for second in &model.seconds {
        let entry = HalfEntry::Second { since_s: second.since_s, seen_s: second.seen_s, segments: second.segments };
        entries.half_open.insert((abi::TCP, second.client, second.target), entry);
    }
    entries
}

fn entry(connection: &Connection, half: Half, address: SocketAddr, client: SocketAddr, flags: u8) -> Entry {
    let (backend, generation) = connection.backend.unwrap_or((0, 0));
    let bit = |is: bool, bit: u8| if is { bit } else { 0 };
    Entry {
        backend,
        seen_s: half.seen_s,
        since_s: connection.since_s,
        isn: connection.isn,
        address,
        client,
        generation: u16::try_from(generation & 0xffff).expect("16 bits"),
        state: state_number(half.state),
        flags: flags
            | bit(connection.early, flow_flags::EARLY)
            | bit(connection.masqueraded, flow_flags::MASQUERADED)
            | bit(connection.backend.is_none(), flow_flags::DIRECT)
            | bit(half.lost, flow_flags::REPLY_LOST),
        next: half.said.next,
        ack: half.said.heard,
        fin: bit(half.said.last, fin::SENT) | bit(half.said.heard_last, fin::ACKED),
        opposite_fin: bit(half.other_last, fin::SENT),
    }
}

fn held(programs: &LoadedPrograms) -> Result<Entries> {
    let mut entries = Entries::default();
    entries.flows.extend(programs.tables4.all_flows()?.iter().map(|(key, flow)| (tuple(key), read(flow))));
    entries.flows.extend(programs.tables6.all_flows()?.iter().map(|(key, flow)| (tuple(key), read(flow))));
    entries.half_open.extend(programs.state4.all_half_open()?.iter().map(|(key, half)| (tuple(key), read_half(half))));
    entries.half_open.extend(programs.state6.all_half_open()?.iter().map(|(key, half)| (tuple(key), read_half(half))));
    Ok(entries)
}

/// The ends that the tables say a packet of this client gets: source and destination. `None`: nobody has answered it, and no entry says.
pub fn sent(programs: &LoadedPrograms, (protocol, src, dst): Tuple) -> Option<(SocketAddr, SocketAddr)> {
    let (src_port, dst_port, pad) = (src.port(), dst.port(), [0; 3]);
    let entry = if src.is_ipv4() {
        let key = FlowKey { src: src.ip().bytes(), dst: dst.ip().bytes(), src_port, dst_port, protocol, pad };
        programs.state4.half_open.get(&key, 0).ok().map(|half| read(&half.flow))
    } else {
        let key = FlowKey { src: src.ip().bytes(), dst: dst.ip().bytes(), src_port, dst_port, protocol, pad };
        programs.state6.half_open.get(&key, 0).ok().map(|half| read(&half.flow))
    };
    entry.filter(|entry| entry.flags & flow_flags::REPLY == 0).map(|entry| (entry.client, entry.address))
}

fn tuple<const N: usize>(key: &FlowKey<N>) -> Tuple
where
    IpAddr: From<[u8; N]>,
{
    (key.protocol, SocketAddr::new(key.src.into(), key.src_port), SocketAddr::new(key.dst.into(), key.dst_port))
}

fn read<const N: usize>(flow: &Flow<N>) -> Entry
where
    IpAddr: From<[u8; N]>,
{
    Entry {
        backend: flow.backend,
        seen_s: flow.seen_s,
        since_s: flow.since_s,
        isn: flow.isn,
        address: SocketAddr::new(flow.address.into(), flow.port),
        client: SocketAddr::new(flow.client.into(), flow.client_port),
        generation: flow.generation,
        state: flow.state,
        // Counting connections is the schedulers' own matter.
        flags: flow.flags & !flow_flags::COUNTED,
        next: flow.next,
        ack: flow.ack,
        fin: flow.fin,
        opposite_fin: flow.opposite_fin,
    }
}

fn read_half<const N: usize>(half: &HalfOpen<N>) -> HalfEntry
where
    IpAddr: From<[u8; N]>,
{
    let entry = read(&half.flow);
    if half.flags & half_open_flags::LEFT != 0 {
        return HalfEntry::Left { entry };
    }
    if half.flags & half_open_flags::SECOND != 0 {
        return HalfEntry::Second { since_s: entry.since_s, seen_s: entry.seen_s, segments: half.segments };
    }
    let refused = half.flags & half_open_flags::REFUSED != 0;
    let answers = (half.flags & half_open_flags::ANSWERED != 0).then_some(half.answers);
    HalfEntry::Flow { entry, tried: half.tried, segments: half.segments, moves: half.moves, refused, answers }
}

fn state_number(state: State) -> u8 {
    match state {
        State::HalfOpen => flow_state::HALF_OPEN,
        State::Open => flow_state::OPEN,
        State::Stream => flow_state::STREAM,
        State::Closing => flow_state::CLOSING,
        State::Evicted => flow_state::EVICTED,
    }
}
