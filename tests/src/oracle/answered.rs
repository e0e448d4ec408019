//! A connection that was answered: it goes on, is asked for anew, ends, or is told that its backend is gone.

use std::net::SocketAddr;

use lb_common::outcome::Outcome;

use super::connection::{Ended, Half, Second, State};
use super::health::hears;
use super::rules::{Asked, Expected, PASS, Turn};
use super::wire::Protocol;
use super::world::World;

/// A client's packet on a connection that was answered.
pub fn ask(world: &mut World, asked: Asked, at: usize) -> Turn {
    let connection = &world.connections[at];
    let half = connection.forward.expect("asked by its forward half");
    if !asked.serves_clients() || (connection.backend.is_none() && !asked.is_clients_link()) {
        return Turn::Decided(PASS);
    }
    if asked.opens() {
        return ask_to_open(world, asked, at);
    }
    let silent = connection.is_silent(half, world.now_s);
    let outcome = if let Some((id, generation)) = connection.backend {
        let backend = &world.backends[&id];
        let keeps = backend.generation == generation && backend.keeps_flows() && half.state != State::Evicted;
        match asked.protocol {
            Protocol::Tcp if !keeps => return Turn::Decided(evict(world, asked, at, true)),
            Protocol::Udp if !keeps || backend.sheds_udp() => return Turn::Anew(Outcome::Moved),
            Protocol::Udp if silent => return Turn::Anew(Outcome::Selected),
            _ => {}
        }
        Outcome::Forwarded
    } else {
        Outcome::DirectTranslated
    };
    remember(world, asked, at, true, forward_state(half.state, asked));
    Turn::Decided(asked.to_answerer(&world.connections[at], outcome, 0))
}

/// A SYN on a connection that was answered: the same one again, or one for another connection.
fn ask_to_open(world: &mut World, asked: Asked, at: usize) -> Turn {
    let connection = &world.connections[at];
    let half = connection.forward.expect("asked by its forward half");
    let other = connection.isn != asked.sequence;
    let over = connection.is_silent(half, world.now_s) || half.state == State::Evicted;
    if over || (other && half.state == State::Closing) {
        return Turn::Anew(Outcome::Selected);
    }
    if let Some((id, generation)) = connection.backend {
        let backend = &world.backends[&id];
        let gone = backend.generation != generation || !backend.keeps_flows();
        if gone || (other && world.health(id).suspect_s.is_some()) {
            return Turn::Anew(Outcome::Selected);
        }
    }
    let direct = connection.backend.is_none();
    let sent = (connection.answerer, connection.seen_client);
    if other && !second(world, asked, sent, direct) {
        return Turn::Anew(Outcome::Selected);
    }
    let connection = &world.connections[at];
    let outcome = if connection.backend.is_none() { Outcome::DirectTranslated } else { Outcome::Forwarded };
    Turn::Decided(asked.to_answerer(connection, outcome, 0))
}

/// Remembers a SYN with another sequence number; `false` with the third one.
fn second(world: &mut World, asked: Asked, sent: (SocketAddr, SocketAddr), direct: bool) -> bool {
    let here = |second: &Second| (second.client, second.target) == (asked.src, asked.dst);
    let known = world.seconds.iter().position(here).filter(|&at| world.seconds[at].isn == asked.sequence);
    let segments = known.map_or(0, |at| world.seconds[at].segments) + 1;
    world.seconds.retain(|second| !here(second));
    if segments >= 3 {
        return false;
    }
    if let Some(at) = world.asking(asked.protocol, asked.src, asked.dst) {
        world.connections[at].forward = None;
        world.tidy();
    }
    let (client, target, isn) = (asked.src, asked.dst, asked.sequence);
    world.seconds.push(Second { client, target, isn, seen_s: world.now_s, segments, sent, direct });
    true
}

fn forward_state(state: State, asked: Asked) -> State {
    match (asked.protocol, state) {
        (Protocol::Tcp, State::HalfOpen | State::Open) if asked.closes() => State::Closing,
        // It has heard an answer, and asks on.
        (Protocol::Udp, State::Open) => State::Stream,
        _ => state,
    }
}

/// An answerer's packet on a connection that was answered before.
pub fn answer(world: &mut World, asked: Asked, at: usize) -> Expected {
    let connection = &world.connections[at];
    let half = connection.reply.expect("answered by its reply half");
    let Some(early) = asked.sees_answers(connection.early) else { return PASS };
    // What is over is answered no more: this is the answer to a direct packet on the same ports.
    let over = match asked.protocol {
        Protocol::Tcp => asked.accepts() && connection.yields(half, world.now_s),
        Protocol::Udp => connection.is_silent(half, world.now_s),
    };
    if over {
        world.connections.remove(at);
        return PASS;
    }
    if let Some((id, generation)) = connection.backend {
        let backend = &world.backends[&id];
        let keeps = backend.generation == generation && backend.keeps_flows();
        if asked.accepts() && !keeps {
            return asked.evicted(id);
        }
        if !asked.accepts() && (!keeps || half.state == State::Evicted) {
            return evict(world, asked, at, false);
        }
    }
    let mut notes = Vec::new();
    if asked.accepts() {
        notes = accept(world, asked, at);
    } else {
        let state = match half.state {
            State::HalfOpen | State::Open if asked.closes() => State::Closing,
            State::HalfOpen => State::Open,
            state => state,
        };
        remember(world, asked, at, false, state);
    }
    Expected { notes, ..asked.to_client(&world.connections[at], early) }
}

/// A SYN+ACK changes nothing, unless it accepts the other connection that was asked for.
fn accept(world: &mut World, asked: Asked, at: usize) -> Vec<(u32, Outcome)> {
    let connection = &world.connections[at];
    let (client, target) = (connection.client, connection.target);
    let sent = (connection.answerer, connection.seen_client);
    let accepted = world.seconds.iter().find(|second| {
        second.sent == sent
            && (second.client, second.target) == (client, target)
            && second.isn.wrapping_add(1) == asked.acknowledgement
    });
    let Some(isn) = accepted.map(|second| second.isn) else { return Vec::new() };
    world.seconds.retain(|second| (second.client, second.target) != (client, target));
    let now_s = world.now_s;
    let half = Half { state: State::Open, seen_s: now_s, lost: false, ended: Ended::default() };
    let connection = &mut world.connections[at];
    (connection.isn, connection.since_s) = (isn, now_s);
    (connection.forward, connection.reply) = (Some(half), Some(half));
    let backend = connection.backend;
    backend.map_or_else(Vec::new, |(id, _)| hears(world, id))
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
    asked.evicted(connection.backend.map_or(0, |(id, _)| id))
}

/// Writes down that a packet passed: in its own half, in the other, which heals if it is missing.
fn remember(world: &mut World, asked: Asked, at: usize, forward: bool, state: State) {
    let now_s = world.now_s;
    let connection = &world.connections[at];
    let (client, target) = (connection.client, connection.target);
    let (answerer, seen_client) = (connection.answerer, connection.seen_client);
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
