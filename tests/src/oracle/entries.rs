//! Compares the entries that the programs have written (flows, half-open flows, health) with the model.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Result, ensure};
use lb_common::abi::{
    self, Flow, FlowKey, HalfOpen, MOST_MOVES, REFUSED_BY_LATEST, fin, flow_flags, flow_state, half_open_flags,
    is_claim, is_second, second,
};

use super::adopted::Adopted;
use super::connection::{Connection, Half, Opening, State};
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
    pub second: u16,
}

/// A half-open entry likewise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HalfEntry {
    Flow {
        entry: Entry,
        tried: [u32; MOST_MOVES],
        segments: u8,
        moves: u8,
        refused: u8,
        answers: Option<[u32; 2]>,
        lost: bool,
        claimed: bool,
    },
    /// Of another connection's SYNs only their times matter.
    Second { since_s: u32, seen_s: u32, segments: u8 },
}

/// All entries of both tables.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Entries {
    pub flows: BTreeMap<Tuple, Entry>,
    pub half_open: BTreeMap<Tuple, HalfEntry>,
    /// With the number that tells the client's attempts apart.
    pub claims: BTreeMap<(Tuple, u32), HalfEntry>,
    /// Of the clients of second handshakes.
    pub beside: BTreeMap<Tuple, HalfEntry>,
}

/// Holds what the maps hold against what the model demands.
pub fn compare(programs: &LoadedPrograms, model: &Model) -> Result<()> {
    let (demanded, held) = (demanded(model), held(programs)?);
    same("flow", &demanded.flows, &held.flows)?;
    same("half-open flow", &demanded.half_open, &held.half_open)?;
    same("claim", &demanded.claims, &held.claims)?;
    same("second handshake", &demanded.beside, &held.beside)?;
    for &id in model.backends.keys() {
        let v6 = model.backends[&id].address.is_ipv6();
        let held = if v6 { programs.state6.health.get(&id, 0)? } else { programs.state4.health.get(&id, 0)? };
        let time = |time_s: u32| (time_s != 0).then_some(time_s);
        let held = model::Health {
            generation: held.generation,
            answered_s: time(held.answered_s),
            ejected_s: time(held.ejected_s),
            probe_s: time(held.probe_s),
            unanswered: held.unanswered,
            // Who it is, a hash says: what the client meets shows it.
            evidence_client: (held.evidence_client != 0).then_some((Ipv4Addr::UNSPECIFIED.into(), held.evidence_s)),
        };
        let about = |health: model::Health| {
            let evidence_client = health.evidence_client.map(|(_, since_s)| (Ipv4Addr::UNSPECIFIED.into(), since_s));
            let is_its = health.generation == model.backends[&id].generation;
            if is_its { model::Health { evidence_client, ..health } } else { model::Health::default() }
        };
        let demanded = about(model.health.get(&id).copied().unwrap_or_default());
        let held = model::Health { generation: demanded.generation, ..about(held) };
        ensure!(held == demanded, "of backend {id} must be known {demanded:?}\n  but is {held:?}");
    }
    Ok(())
}

fn same<K: std::fmt::Debug + Ord, E: std::fmt::Debug + PartialEq>(
    what: &str,
    demanded: &BTreeMap<K, E>,
    held: &BTreeMap<K, E>,
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
        let forward = forward.map(|entry| clients(entry, opening));
        let reply = reply.map(|entry| HalfEntry::Flow {
            entry,
            tried: [0; MOST_MOVES],
            segments: 0,
            moves: 0,
            refused: 0,
            answers: opening.heard,
            lost: opening.lost,
            claimed: false,
        });
        let clients = if connection.is_beside { &mut entries.beside } else { &mut entries.half_open };
        clients.extend(forward.map(|entry| (asks, entry)));
        entries.half_open.extend(reply.map(|entry| (answers, entry)));
    }
    entries.flows.extend(model.adopted.iter().flat_map(Adopted::entries));
    for claim in &model.claims {
        let it = &claim.winner;
        let half = it.forward.expect("the client's");
        let entry = entry(it, half, it.answerer, it.seen_client, 0);
        let asks = (number(it.protocol), it.client, it.target);
        let opening = it.opening.as_ref().expect("not acknowledged");
        entries.claims.insert((asks, attempt(it.isn)), clients(entry, opening));
    }
    for second in &model.seconds {
        let entry = HalfEntry::Second { since_s: second.since_s, seen_s: second.seen_s, segments: second.segments };
        entries.half_open.insert((abi::TCP, second.client, second.target), entry);
    }
    entries
}

/// A client's half.
fn clients(entry: Entry, opening: &Opening) -> HalfEntry {
    let (mut tried, mut refused) = ([0; MOST_MOVES], 0);
    for (at, (id, has_refused)) in opening.tried.iter().enumerate() {
        tried[at] = *id;
        refused |= u8::from(*has_refused) << at;
    }
    refused |= if opening.refused { REFUSED_BY_LATEST } else { 0 };
    let Opening { segments, moved, answers, claimed, .. } = *opening;
    HalfEntry::Flow { entry, tried, segments, moves: moved, refused, answers, lost: false, claimed }
}

/// What tells attempts of a client apart.
const fn attempt(isn: u32) -> u32 {
    isn & 0xff_ffff | 1
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
        fin: bit(half.said.last, fin::SENT)
            | bit(half.said.heard_last, fin::ACKED)
            | bit(half.said.claimed, fin::CLAIMED),
        opposite_fin: bit(half.other_last, fin::SENT),
        second: if connection.is_beside { second::OWN } else { 0 }
            | if connection.has_beside && flags & flow_flags::REPLY == 0 { second::BESIDE } else { 0 },
    }
}

fn held(programs: &LoadedPrograms) -> Result<Entries> {
    let mut entries = Entries::default();
    entries.flows.extend(programs.tables4.all_flows()?.iter().map(|(key, flow)| (tuple(key), read(flow))));
    entries.flows.extend(programs.tables6.all_flows()?.iter().map(|(key, flow)| (tuple(key), read(flow))));
    for (key, half) in programs.state4.all_half_open()? {
        entries.half(&key, &half);
    }
    for (key, half) in programs.state6.all_half_open()? {
        entries.half(&key, &half);
    }
    Ok(entries)
}

impl Entries {
    fn half<const N: usize>(&mut self, key: &FlowKey<N>, half: &HalfOpen<N>)
    where
        IpAddr: From<[u8; N]>,
    {
        if is_claim(key) {
            let [first, second, third] = key.pad;
            let attempt = u32::from_le_bytes([first, second, third, 0]);
            self.claims.insert((tuple(key), attempt), read_half(half));
        } else if is_second(key) {
            self.beside.insert(tuple(key), read_half(half));
        } else {
            self.half_open.insert(tuple(key), read_half(half));
        }
    }
}

/// The ends that the tables say a packet of this client gets: source and destination. `None`: nobody has answered it, and no entry says. `isn`: that
/// of its SYN.
pub fn sent(programs: &LoadedPrograms, (protocol, src, dst): Tuple, isn: u32) -> Option<(SocketAddr, SocketAddr)> {
    let (src_port, dst_port) = (src.port(), dst.port());
    let entry = |pad: [u8; 3]| {
        if src.is_ipv4() {
            let key = FlowKey { src: src.ip().bytes(), dst: dst.ip().bytes(), src_port, dst_port, protocol, pad };
            programs.state4.half_open.get(&key, 0).ok().map(|half| read(&half.flow))
        } else {
            let key = FlowKey { src: src.ip().bytes(), dst: dst.ip().bytes(), src_port, dst_port, protocol, pad };
            programs.state6.half_open.get(&key, 0).ok().map(|half| read(&half.flow))
        }
    };
    // A second handshake may outlast the first one, whose place another SYN takes then.
    let (first, beside) = (entry([0; 3]), entry([second::KEY, 0, 0]));
    let own = [&first, &beside].into_iter().flatten().find(|entry| entry.isn == isn).cloned();
    let entry = own.or(first);
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
        flags: flow.flags & !(flow_flags::COUNTED | flow_flags::EXTERNAL),
        next: flow.next,
        ack: flow.ack,
        fin: flow.fin,
        opposite_fin: flow.opposite_fin,
        second: flow.second,
    }
}

fn read_half<const N: usize>(half: &HalfOpen<N>) -> HalfEntry
where
    IpAddr: From<[u8; N]>,
{
    let entry = read(&half.flow);
    if half.flags & half_open_flags::SECOND != 0 {
        return HalfEntry::Second { since_s: entry.since_s, seen_s: entry.seen_s, segments: half.segments };
    }
    let (lost, claimed) = (half.flags & half_open_flags::LOST != 0, half.flags & half_open_flags::CLAIMED != 0);
    let answers = (half.flags & half_open_flags::ANSWERED != 0).then_some(half.answers);
    let HalfOpen { tried, segments, moves, refused, .. } = *half;
    HalfEntry::Flow { entry, tried, segments, moves, refused, answers, lost, claimed }
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
