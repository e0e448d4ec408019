//! What must become of a packet, and what the world must look like afterwards.

use std::net::SocketAddr;

use anyhow::Result;
use lb_common::outcome::Outcome;

use super::opening::{direct, open};
use super::wire::{ACK, FIN, Protocol, RST, SYN};
use super::world::{Connection, Ended, Half, State, World};
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

/// Left alone.
pub const PASS: Expected = Expected { fate: Fate::Pass, outcome: Outcome::Passed, service: 0, backend: 0 };

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
    pub fn catches_all(self) -> bool {
        matches!(self.hook, Hook::BridgeIn | Hook::NodeOut)
    }

    /// May make a flow.
    pub fn opens_or_udp(self) -> bool {
        self.protocol == Protocol::Udp || self.opens()
    }

    fn opens(self) -> bool {
        self.protocol == Protocol::Tcp && self.tcp_flags & (SYN | ACK | RST | FIN) == SYN
    }

    fn accepts(self) -> bool {
        self.tcp_flags & (SYN | ACK | RST | FIN) == SYN | ACK
    }

    fn closes(self) -> bool {
        self.protocol == Protocol::Tcp && self.tcp_flags & (FIN | RST) != 0
    }

    /// Which ends this packet ends: a FIN its sender's, a RST both.
    fn ended(self, by_client: bool) -> Ended {
        let tcp = self.protocol == Protocol::Tcp;
        let (fin, rst) = (tcp && self.tcp_flags & FIN != 0, tcp && self.tcp_flags & RST != 0);
        Ended { client: rst || (fin && by_client), answerer: rst || (fin && !by_client) }
    }

    /// Told to whoever sent it.
    pub fn refuse(self, outcome: Outcome, service: u32, backend: u32) -> Expected {
        // A RST is never answered.
        let silent = self.protocol == Protocol::Tcp && self.tcp_flags & RST != 0;
        Expected { fate: if silent { Fate::Drop } else { Fate::Refuse }, outcome, service, backend }
    }

    /// Sent to the connection's answerer.
    pub fn to_answerer(self, connection: &Connection, outcome: Outcome, service: u32) -> Expected {
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
        remember(world, asked, at, true, forward_state(half.state, asked));
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
    remember(world, asked, at, true, forward_state(half.state, asked));
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
    // What is over is answered no more: this is the answer to a direct packet on the same ports.
    if (asked.protocol == Protocol::Udp || asked.accepts()) && connection.yields(half, world.now_s) {
        world.connections.remove(at);
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
    remember(world, asked, at, false, state);
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
fn remember(world: &mut World, asked: Asked, at: usize, forward: bool, state: State) {
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
    let said = asked.ended(forward);
    let connection = &mut world.connections[at];
    let (own, other) = if forward {
        (&mut connection.forward, &mut connection.reply)
    } else {
        (&mut connection.reply, &mut connection.forward)
    };
    let ended = own.map_or(said, |half| half.ended.or(said));
    let fresh = Half { state, seen_s: now_s, lost: false, ended };
    *own = Some(fresh);
    match other {
        Some(half) if half.state <= state => *half = Half { lost: half.lost, ended: half.ended.or(said), ..fresh },
        Some(_) => {}
        None if foreign => {}
        None => *other = Some(fresh),
    }
}
