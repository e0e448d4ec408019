//! Connections of another proxy: their packets pass, and nobody gets their tuples.

use std::net::SocketAddr;

use anyhow::Result;
use lb_common::abi::{Flow, FlowKey, fin, flow_flags, flow_state, tag};
use lb_common::outcome::Outcome;

use super::connection::Connection;
use super::entries::{Entry, Tuple};
use super::model::Model;
use super::rules::{Asked, ConnectionOutcome, Expected, PASS};
use super::tables::{Bytes, number};
use super::wire::{FIN, Protocol, RST};
use crate::random::Random;
use crate::test_run::LoadedPrograms;

/// The client begins another connection after so many seconds of silence: the default keepalive of Linux is shorter.
const SILENCE_S: u32 = 86_400;

/// A connection that the host's NAT translates.
#[derive(Clone, Debug)]
pub struct Adopted {
    pub protocol: Protocol,
    pub client: SocketAddr,
    pub target: SocketAddr,
    pub answerer: SocketAddr,
    pub seen_client: SocketAddr,
    pub since_s: u32,
    /// When the client was seen last; `None`: its tuple is another connection's by now.
    pub asked_s: Option<u32>,
    pub answered_s: u32,
    pub client_ended: bool,
    pub answerer_ended: bool,
}

impl Adopted {
    fn asks(&self, protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> bool {
        self.asked_s.is_some() && (self.protocol, self.client, self.target) == (protocol, src, dst)
    }

    fn answers(&self, protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> bool {
        (self.protocol, self.answerer, self.seen_client) == (protocol, src, dst)
    }

    fn is_over(&self, asked_s: u32, now_s: u32) -> bool {
        (self.client_ended && self.answerer_ended) || now_s - asked_s > SILENCE_S
    }

    /// Both tuples, each with its entry.
    pub fn entries(&self) -> Vec<(Tuple, Entry)> {
        let protocol = number(self.protocol);
        let bit = |is: bool| if is { fin::SENT } else { 0 };
        let entry = |seen_s, address, client, flags, fin, opposite_fin| Entry {
            backend: 0,
            seen_s,
            since_s: self.since_s,
            isn: 0,
            address,
            client,
            generation: 0,
            state: flow_state::ADOPTED,
            flags,
            next: 0,
            ack: 0,
            fin,
            opposite_fin,
            second: 0,
        };
        let (own, other) = (bit(self.client_ended), bit(self.answerer_ended));
        let asks = self.asked_s.map(|seen_s| {
            ((protocol, self.client, self.target), entry(seen_s, self.answerer, self.seen_client, 0, own, other))
        });
        let reply = entry(self.answered_s, self.target, self.client, flow_flags::REPLY, 0, 0);
        asks.into_iter().chain([((protocol, self.answerer, self.seen_client), reply)]).collect()
    }
}

/// Whether an adopted connection has this tuple, of either direction.
pub fn holds(model: &Model, protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> bool {
    model.adopted.iter().any(|it| it.asks(protocol, src, dst) || it.answers(protocol, src, dst))
}

/// A packet of an adopted connection passes; a SYN begins another one, if it is over. `None`: it is none's.
pub fn packet(model: &mut Model, asked: Asked) -> Option<ConnectionOutcome> {
    let Asked { protocol, src, dst, .. } = asked;
    let now_s = model.now_s;
    let is_tcp = protocol == Protocol::Tcp;
    let says = |flag: u8| is_tcp && asked.tcp_flags & flag != 0;
    if let Some(it) = model.adopted.iter_mut().find(|it| it.asks(protocol, src, dst)) {
        let asked_s = it.asked_s.expect("asked by the client's entry");
        if asked.opens() && asked.serves_clients() && it.is_over(asked_s, now_s) {
            it.asked_s = None;
            return Some(ConnectionOutcome::Anew(Outcome::Selected));
        }
        it.asked_s = Some(now_s);
        it.client_ended |= says(FIN);
    } else {
        let it = model.adopted.iter_mut().find(|it| it.answers(protocol, src, dst))?;
        it.answered_s = now_s;
        if it.asked_s.is_some() {
            it.answerer_ended |= says(FIN | RST);
            it.client_ended |= says(RST);
        }
    }
    Some(ConnectionOutcome::Decided(Expected { outcome: Outcome::Adopted, ..PASS }))
}

/// An established connection turns out to be another proxy's, or one that is adopted comes nearer to its end.
pub fn change(random: &mut Random, programs: &mut LoadedPrograms, model: &mut Model) -> Result<()> {
    if !model.adopted.is_empty() && random.one_in(3) {
        let at = random.below(model.adopted.len());
        return end(random, programs, model, at);
    }
    let lone = |it: &Connection| {
        let claims = model.claims.iter().any(|claim| claim.winner.client == it.client);
        // A handshake of before may have left an entry for its answer on the same tuple.
        let is_only = model.connections.iter().filter(|other| other.client == it.client).count() == 1;
        it.opening.is_none()
            && it.forward.is_some()
            && it.reply.is_some()
            && !claims
            && is_only
            && !model.is_half_open(it.protocol, it.client, it.target)
            && !model.is_half_open(it.protocol, it.answerer, it.seen_client)
    };
    let Some(at) = model.connections.iter().position(lone) else { return Ok(()) };
    let it = model.connections.remove(at);
    let adopted = Adopted {
        protocol: it.protocol,
        client: it.client,
        target: it.target,
        answerer: it.answerer,
        seen_client: it.seen_client,
        since_s: model.now_s,
        asked_s: Some(model.now_s),
        answered_s: model.now_s,
        client_ended: false,
        answerer_ended: false,
    };
    write(programs, &adopted)?;
    model.adopted.push(adopted);
    Ok(())
}

/// Conntrack says that the connection is over, or has forgotten it.
fn end(random: &mut Random, programs: &mut LoadedPrograms, model: &mut Model, at: usize) -> Result<()> {
    let it = &mut model.adopted[at];
    if it.asked_s.is_some() && random.one_in(2) {
        (it.client_ended, it.answerer_ended) = (true, true);
        return write(programs, it);
    }
    for (tuple, _) in model.adopted.remove(at).entries() {
        super::ageing::remove(programs, tuple, false, false)?;
    }
    Ok(())
}

fn write(programs: &mut LoadedPrograms, adopted: &Adopted) -> Result<()> {
    for ((protocol, src, dst), entry) in adopted.entries() {
        if src.is_ipv4() {
            let (key, flow) = element::<4>(protocol, src, dst, &entry);
            programs.tables4.flows_of(&key).insert(key, flow, 0)?;
        } else {
            let (key, flow) = element::<16>(protocol, src, dst, &entry);
            programs.tables6.flows_of(&key).insert(key, flow, 0)?;
        }
    }
    Ok(())
}

fn element<const N: usize>(protocol: u8, src: SocketAddr, dst: SocketAddr, entry: &Entry) -> (FlowKey<N>, Flow<N>)
where
    std::net::IpAddr: Bytes<N>,
{
    let (src_port, dst_port, pad) = (src.port(), dst.port(), [0; 3]);
    let key = FlowKey { src: src.ip().bytes(), dst: dst.ip().bytes(), src_port, dst_port, protocol, pad };
    let flow = Flow {
        tag: tag(&key),
        seen_s: entry.seen_s,
        since_s: entry.since_s,
        address: entry.address.ip().bytes(),
        port: entry.address.port(),
        client: entry.client.ip().bytes(),
        client_port: entry.client.port(),
        state: entry.state,
        flags: entry.flags,
        fin: entry.fin,
        opposite_fin: entry.opposite_fin,
        ..Flow::ZERO
    };
    (key, flow)
}
