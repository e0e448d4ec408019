//! What must become of a packet, and what the world must look like afterwards.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use lb_common::outcome::Outcome;

use super::wire::{ACK, FIN, Protocol, RST, SYN};
use super::world::{Connection, Half, State, World};
use crate::live::Hook;

/// A packet as far as the rules look at it.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub hook: Hook,
    pub protocol: Protocol,
    pub src: SocketAddr,
    pub dst: SocketAddr,
    pub tcp_flags: u8,
}

/// What was seen of the random choices: the addresses in the packet that came out, and whether it was dropped, or counted as torn.
#[derive(Clone, Copy, Debug)]
pub struct Hint {
    pub src: SocketAddr,
    pub dst: SocketAddr,
    pub torn: bool,
    pub dropped: bool,
}

/// What must happen to the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Pass,
    Drop,
    Refuse,
    /// These addresses; `routed`: sent on from the hook, not left to the stack.
    Rewrite {
        src: SocketAddr,
        dst: SocketAddr,
        routed: bool,
    },
}

/// What must happen, and how it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    pub fate: Fate,
    pub outcome: Outcome,
    /// Service and backend it is counted for; 0: none.
    pub service: u32,
    pub backend: u32,
}

const PASS: Expected = Expected { fate: Fate::Pass, outcome: Outcome::Passed, service: 0, backend: 0 };

/// Translated source ports come from here.
const TRANSLATED: std::ops::Range<u16> = 61_000..65_096;

impl Asked {
    /// Translates requests.
    fn serves_clients(self) -> bool {
        self.hook != Hook::PodOut
    }

    /// The link is the client's own.
    fn is_clients_link(self) -> bool {
        self.hook == Hook::PodIn
    }

    /// Serves clients whose own link has no program.
    fn catches_all(self) -> bool {
        matches!(self.hook, Hook::BridgeIn | Hook::NodeOut)
    }

    fn opens(self) -> bool {
        self.protocol == Protocol::Tcp && self.tcp_flags & (SYN | ACK | RST | FIN) == SYN
    }

    fn closes(self) -> bool {
        self.protocol == Protocol::Tcp && self.tcp_flags & (FIN | RST) != 0
    }

    fn refuse(self, outcome: Outcome, service: u32, backend: u32) -> Expected {
        // A RST is never answered.
        let silent = self.protocol == Protocol::Tcp && self.tcp_flags & RST != 0;
        Expected { fate: if silent { Fate::Drop } else { Fate::Refuse }, outcome, service, backend }
    }

    fn to_answerer(self, connection: &Connection, outcome: Outcome, service: u32) -> Expected {
        let fate = Fate::Rewrite {
            src: connection.seen_client(),
            dst: connection.answerer,
            routed: self.hook == Hook::NodeOut,
        };
        Expected { fate, outcome, service, backend: connection.backend.map_or(0, |(id, _)| id) }
    }
}

/// Decides over a packet and changes the world as it must change.
pub fn decide(world: &mut World, asked: Asked, hint: Hint) -> Result<Expected> {
    let expected = at_any_hook(world, asked, hint)?;
    // XDP cannot turn a packet into its answer: tc will.
    let handed = asked.hook == Hook::Xdp && expected.fate == Fate::Refuse;
    Ok(if handed { Expected { outcome: Outcome::HandedToTc, ..PASS } } else { expected })
}

fn at_any_hook(world: &mut World, asked: Asked, hint: Hint) -> Result<Expected> {
    let mut why = Outcome::Selected;
    if let Some(at) = world.asked(asked.protocol, asked.src, asked.dst) {
        match ask(world, asked, at) {
            Turn::Decided(expected) => return Ok(expected),
            Turn::Anew(outcome) => {
                world.connections.remove(at);
                why = outcome;
            }
        }
    } else if let Some(at) = world.answered(asked.protocol, asked.src, asked.dst) {
        return Ok(answer(world, asked, at));
    } else if !asked.serves_clients() {
        return Ok(PASS);
    }
    if let Some(expected) = open(world, asked, why, hint)? {
        return Ok(expected);
    }
    if asked.is_clients_link() { direct(world, asked, hint) } else { Ok(PASS) }
}

enum Turn {
    Decided(Expected),
    Anew(Outcome),
}

/// A client's packet on a connection that is known.
fn ask(world: &mut World, asked: Asked, at: usize) -> Turn {
    let connection = &world.connections[at];
    let half = connection.forward.expect("asked by its forward half");
    if !asked.serves_clients() || (connection.backend.is_none() && !asked.is_clients_link()) {
        return Turn::Decided(PASS);
    }
    let silent = connection.is_silent(half, world.now_s);
    let over = silent || half.state == State::Closing;
    let Some((id, generation)) = connection.backend else {
        if asked.opens() && over {
            return Turn::Anew(Outcome::Selected);
        }
        remember(world, at, true, forward_state(half.state, asked));
        return Turn::Decided(asked.to_answerer(&world.connections[at], Outcome::DirectTranslated, 0));
    };
    let backend = &world.backends[&id];
    let keeps = backend.generation == generation && backend.keeps_flows();
    match asked.protocol {
        Protocol::Tcp if asked.opens() && (over || !keeps || half.state == State::Evicted) => {
            return Turn::Anew(Outcome::Selected);
        }
        Protocol::Tcp if !keeps => return Turn::Decided(evict(world, asked, at, true)),
        Protocol::Udp if !keeps || backend.sheds_udp() => return Turn::Anew(Outcome::Moved),
        Protocol::Udp if over => return Turn::Anew(Outcome::Selected),
        _ => {}
    }
    if asked.hook == Hook::Xdp && !backend.local {
        return Turn::Decided(Expected { outcome: Outcome::HandedToTc, ..PASS });
    }
    remember(world, at, true, forward_state(half.state, asked));
    Turn::Decided(asked.to_answerer(&world.connections[at], Outcome::Forwarded, 0))
}

fn forward_state(state: State, asked: Asked) -> State {
    match state {
        State::HalfOpen | State::Open if asked.closes() => State::Closing,
        // A client that sends anything but a SYN has seen an answer.
        State::HalfOpen if asked.protocol == Protocol::Tcp && asked.tcp_flags & SYN == 0 => State::Open,
        _ => state,
    }
}

/// An answerer's packet on a connection that is known.
fn answer(world: &mut World, asked: Asked, at: usize) -> Expected {
    let connection = &world.connections[at];
    let half = connection.reply.expect("answered by its reply half");
    let early = connection.early && matches!(asked.hook, Hook::PodIn | Hook::BridgeIn | Hook::NodeIn);
    if !early && !matches!(asked.hook, Hook::PodOut | Hook::NodeOut) {
        return PASS;
    }
    if let Some((id, generation)) = connection.backend {
        let backend = &world.backends[&id];
        if backend.generation != generation || !backend.keeps_flows() {
            return evict(world, asked, at, false);
        }
    }
    let state = match half.state {
        State::HalfOpen | State::Open => {
            if asked.closes() {
                State::Closing
            } else {
                State::Open
            }
        }
        state => state,
    };
    remember(world, at, false, state);
    let connection = &world.connections[at];
    Expected {
        fate: Fate::Rewrite { src: connection.target, dst: connection.client, routed: early },
        outcome: Outcome::Replied,
        service: 0,
        backend: connection.backend.map_or(0, |(id, _)| id),
    }
}

/// The backend is gone: nothing is forwarded, and whoever sent is told.
fn evict(world: &mut World, asked: Asked, at: usize, forward: bool) -> Expected {
    let now_s = world.now_s;
    let connection = &mut world.connections[at];
    let half = if forward { &mut connection.forward } else { &mut connection.reply };
    let half = half.as_mut().expect("the half that was found");
    if half.state != State::Evicted {
        *half = Half { state: State::Evicted, seen_s: now_s, ..*half };
    }
    let backend = connection.backend.map_or(0, |(id, _)| id);
    match asked.protocol {
        Protocol::Tcp => asked.refuse(Outcome::Evicted, 0, backend),
        Protocol::Udp => Expected { fate: Fate::Drop, outcome: Outcome::Evicted, service: 0, backend },
    }
}

/// Writes down that a packet passed: in its own half, in the other, which heals if it is missing.
fn remember(world: &mut World, at: usize, forward: bool, state: State) {
    let now_s = world.now_s;
    let connection = &world.connections[at];
    let (client, target) = (connection.client, connection.target);
    let (answerer, seen_client) = (connection.answerer, connection.seen_client());
    // The place of the missing half may be another connection's by now.
    let foreign = if forward {
        world.answered(connection.protocol, answerer, seen_client).is_some_and(|other| other != at)
    } else {
        world.asked(connection.protocol, client, target).is_some_and(|other| other != at)
    };
    let fresh = Half { state, seen_s: now_s, lost: false };
    let connection = &mut world.connections[at];
    let (own, other) = if forward {
        (&mut connection.forward, &mut connection.reply)
    } else {
        (&mut connection.reply, &mut connection.forward)
    };
    *own = Some(fresh);
    match other {
        Some(half) if half.state <= state => *half = Half { lost: half.lost, ..fresh },
        Some(_) => {}
        None if foreign => {}
        None => *other = Some(fresh),
    }
}

/// The first packet of a flow. `None`: not for a service.
fn open(world: &mut World, asked: Asked, why: Outcome, hint: Hint) -> Result<Option<Expected>> {
    let Some(service) = world.services.get(&(asked.dst, asked.protocol)) else { return Ok(None) };
    let id = service.id;
    let stale = |&(backend, generation): &(u32, u32)| world.backends[&backend].generation != generation;
    let all_stale = !service.members.is_empty() && service.members.iter().all(stale);
    if service.torn || all_stale || (hint.torn && service.members.iter().any(stale)) {
        return Ok(Some(Expected { fate: Fate::Drop, outcome: Outcome::DroppedTorn, service: id, backend: 0 }));
    }
    if service.members.is_empty() {
        return Ok(Some(if service.drop_if_empty {
            Expected { fate: Fate::Drop, outcome: Outcome::DroppedNoLocalEndpoint, service: id, backend: 0 }
        } else {
            asked.refuse(Outcome::RefusedNoEndpoint, id, 0)
        }));
    }
    let usable: Vec<u32> =
        service.members.iter().filter(|member| !stale(member)).map(|&(backend, _)| backend).collect();
    let fits = |backend: &&u32| asked.hook != Hook::Xdp || world.backends[*backend].local;
    let handed = Expected { outcome: Outcome::HandedToTc, ..PASS };
    if asked.hook == Hook::Xdp && !hint.dropped && hint.dst == asked.dst && !usable.iter().all(|backend| fits(&backend))
    {
        return Ok(Some(handed)); // A backend that is not on this node was picked.
    }
    if !asked.opens_or_udp() {
        ensure!(usable.iter().any(|backend| fits(&backend)), "refused for backends that are not on this node");
        return Ok(Some(asked.refuse(Outcome::RefusedNoFlow, id, 0)));
    }
    let chosen = usable.iter().filter(fits).find(|backend| world.backends[backend].address == hint.dst);
    let Some(&chosen) = chosen else {
        anyhow::bail!("sent to {}, which is no usable backend of service {id}: {usable:?}", hint.dst);
    };
    let backend = &world.backends[&chosen];
    let connection = Connection {
        protocol: asked.protocol,
        client: asked.src,
        target: asked.dst,
        answerer: backend.address,
        backend: Some((chosen, backend.generation)),
        port: asked.src.port(),
        early: asked.catches_all(),
        forward: None,
        reply: None,
    };
    let made = settle(world, connection, false, hint)?;
    let outcome = if made.port == asked.src.port() { why } else { Outcome::PortTranslated };
    Ok(Some(asked.to_answerer(&made, outcome, id)))
}

impl Asked {
    fn opens_or_udp(self) -> bool {
        self.protocol == Protocol::Udp || self.opens()
    }
}

/// Writes a new connection down, under a translated port if another live one has its replies.
fn settle(world: &mut World, mut connection: Connection, taken: bool, hint: Hint) -> Result<Connection> {
    let is_free = |world: &World, connection: &Connection| {
        let holder = world.answered(connection.protocol, connection.answerer, connection.seen_client());
        holder.is_none_or(|at| {
            let holder = &world.connections[at];
            let same = holder.client == connection.client && holder.target == connection.target;
            same || holder.is_silent(holder.reply.expect("answered"), world.now_s)
        })
    };
    if taken || !is_free(world, &connection) {
        connection.port = hint.src.port();
        ensure!(TRANSLATED.contains(&connection.port), "port {} is not one to translate to", connection.port);
        ensure!(is_free(world, &connection), "port {} is another live connection's", connection.port);
    }
    if let Some(at) = world.answered(connection.protocol, connection.answerer, connection.seen_client()) {
        world.connections.remove(at);
    }
    // Whatever stood under the client's tuple is replaced.
    if let Some(at) = world.asked(connection.protocol, connection.client, connection.target) {
        world.connections[at].forward = None;
    }
    world.tidy();
    let half = Half { state: State::HalfOpen, seen_s: world.now_s, lost: false };
    (connection.forward, connection.reply) = (Some(half), Some(half));
    world.connections.push(connection.clone());
    Ok(connection)
}

/// A client's own packet to an address that answers one of its service flows: told apart by another port, or by who spoke last.
fn direct(world: &mut World, asked: Asked, hint: Hint) -> Result<Expected> {
    if !asked.opens_or_udp() {
        return Ok(PASS);
    }
    // The answer to it would look like an answer of that connection.
    let Some(at) = world.answered(asked.protocol, asked.dst, asked.src) else { return Ok(PASS) };
    let holder = &world.connections[at];
    if holder.backend.is_none() {
        return Ok(PASS);
    }
    let silent = holder.is_silent(holder.reply.expect("answered"), world.now_s);
    if silent {
        world.connections.remove(at);
        return Ok(PASS);
    }
    if asked.protocol == Protocol::Udp {
        let holder = &mut world.connections[at];
        holder.reply = None;
        if let Some(forward) = &mut holder.forward {
            forward.lost = true;
        }
        world.tidy();
        return Ok(Expected { outcome: Outcome::AmbiguousUdp, ..PASS });
    }
    let connection = Connection {
        protocol: asked.protocol,
        client: asked.src,
        target: asked.dst,
        answerer: asked.dst,
        backend: None,
        port: asked.src.port(),
        early: false,
        forward: None,
        reply: None,
    };
    let made = settle(world, connection, true, hint)?;
    Ok(asked.to_answerer(&made, Outcome::DirectTranslated, 0))
}
