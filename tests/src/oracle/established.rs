//! A packet of an established connection: forwarded, answered again, ended, or reset because its backend is gone.

use std::net::SocketAddr;

use lb_common::outcome::Outcome;

use super::connection::{Ended, Half, Second, State};
use super::health::hears;
use super::model::Model;
use super::rules::{Asked, Expected, PASS, Turn};
use super::wire::Protocol;

/// A client's packet on a connection that was answered.
pub fn ask(model: &mut Model, asked: Asked, at: usize) -> Turn {
    let connection = &model.connections[at];
    let half = connection.forward.expect("asked by its forward half");
    if !asked.serves_clients() || (connection.backend.is_none() && !asked.is_clients_link()) {
        return Turn::Decided(PASS);
    }
    if asked.opens() {
        return ask_to_open(model, asked, at);
    }
    let silent = connection.is_silent(half, model.now_s);
    let outcome = if let Some((id, generation)) = connection.backend {
        let backend = &model.backends[&id];
        let keeps = backend.generation == generation && backend.keeps_flows() && half.state != State::Evicted;
        match asked.protocol {
            Protocol::Tcp if !keeps => return Turn::Decided(evict(model, asked, at, true)),
            Protocol::Udp if !keeps || backend.sheds_udp() => return Turn::Anew(Outcome::Moved),
            Protocol::Udp if silent => return Turn::Anew(Outcome::Selected),
            _ => {}
        }
        Outcome::Forwarded
    } else {
        Outcome::DirectTranslated
    };
    remember(model, asked, at, true, forward_state(half.state, asked));
    Turn::Decided(asked.to_answerer(&model.connections[at], outcome, 0))
}

/// A SYN on a connection that was answered: the same one again, or one for another connection.
fn ask_to_open(model: &mut Model, asked: Asked, at: usize) -> Turn {
    let connection = &model.connections[at];
    let half = connection.forward.expect("asked by its forward half");
    let other = connection.isn != asked.sequence;
    let over = connection.is_silent(half, model.now_s) || half.state == State::Evicted;
    if over || (other && half.state == State::Closing) {
        return Turn::Anew(Outcome::Selected);
    }
    if let Some((id, generation)) = connection.backend {
        let backend = &model.backends[&id];
        let gone = backend.generation != generation || !backend.keeps_flows();
        if gone || (other && model.health(id).suspect_s.is_some()) {
            return Turn::Anew(Outcome::Selected);
        }
    }
    let direct = connection.backend.is_none();
    let sent = (connection.answerer, connection.seen_client);
    if other && !second(model, asked, sent, direct) {
        return Turn::Anew(Outcome::Selected);
    }
    let connection = &model.connections[at];
    let outcome = if connection.backend.is_none() { Outcome::DirectTranslated } else { Outcome::Forwarded };
    Turn::Decided(asked.to_answerer(connection, outcome, 0))
}

/// Remembers a SYN with another sequence number; `false` with the third one.
fn second(model: &mut Model, asked: Asked, sent: (SocketAddr, SocketAddr), direct: bool) -> bool {
    let here = |second: &Second| (second.client, second.target) == (asked.src, asked.dst);
    let known = model.seconds.iter().position(here).filter(|&at| model.seconds[at].isn == asked.sequence);
    let segments = known.map_or(0, |at| model.seconds[at].segments) + 1;
    model.seconds.retain(|second| !here(second));
    if segments >= 3 {
        return false;
    }
    if let Some(at) = model.asking(asked.protocol, asked.src, asked.dst) {
        model.connections[at].forward = None;
        model.tidy();
    }
    let (client, target, isn) = (asked.src, asked.dst, asked.sequence);
    model.seconds.push(Second { client, target, isn, seen_s: model.now_s, segments, sent, direct });
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
pub fn answer(model: &mut Model, asked: Asked, at: usize) -> Expected {
    let connection = &model.connections[at];
    let half = connection.reply.expect("answered by its reply half");
    let Some(early) = asked.sees_answers(connection.early) else { return PASS };
    // What is over is answered no more: this is the answer to a direct packet on the same ports.
    let over = match asked.protocol {
        Protocol::Tcp => asked.accepts() && connection.yields(half, model.now_s),
        Protocol::Udp => connection.is_silent(half, model.now_s),
    };
    if over {
        model.connections.remove(at);
        return PASS;
    }
    if let Some((id, generation)) = connection.backend {
        let backend = &model.backends[&id];
        let keeps = backend.generation == generation && backend.keeps_flows();
        if asked.accepts() && !keeps {
            return asked.evicted(id);
        }
        if !asked.accepts() && (!keeps || half.state == State::Evicted) {
            return evict(model, asked, at, false);
        }
    }
    let mut notes = Vec::new();
    if asked.accepts() {
        notes = accept(model, asked, at);
    } else {
        let state = match half.state {
            State::HalfOpen | State::Open if asked.closes() => State::Closing,
            State::HalfOpen => State::Open,
            state => state,
        };
        remember(model, asked, at, false, state);
    }
    Expected { notes, ..asked.to_client(&model.connections[at], early) }
}

/// A SYN+ACK changes nothing, unless it accepts the other connection that was asked for.
fn accept(model: &mut Model, asked: Asked, at: usize) -> Vec<(u32, Outcome)> {
    let connection = &model.connections[at];
    let (client, target) = (connection.client, connection.target);
    let sent = (connection.answerer, connection.seen_client);
    let accepted = model.seconds.iter().find(|second| {
        second.sent == sent
            && (second.client, second.target) == (client, target)
            && second.isn.wrapping_add(1) == asked.acknowledgement
    });
    let Some(isn) = accepted.map(|second| second.isn) else { return Vec::new() };
    model.seconds.retain(|second| (second.client, second.target) != (client, target));
    let now_s = model.now_s;
    let half = Half { state: State::Open, seen_s: now_s, lost: false, ended: Ended::default() };
    let connection = &mut model.connections[at];
    (connection.isn, connection.since_s) = (isn, now_s);
    (connection.forward, connection.reply) = (Some(half), Some(half));
    let backend = connection.backend;
    backend.map_or_else(Vec::new, |(id, _)| hears(model, id))
}

/// The backend is gone: nothing is forwarded, and whoever sent is told.
fn evict(model: &mut Model, asked: Asked, at: usize, forward: bool) -> Expected {
    let now_s = model.now_s;
    let connection = &mut model.connections[at];
    let half = if forward { &mut connection.forward } else { &mut connection.reply };
    let half = half.as_mut().expect("the half that was found");
    if half.state != State::Evicted {
        *half = Half { state: State::Evicted, seen_s: now_s, ..*half };
    }
    asked.evicted(connection.backend.map_or(0, |(id, _)| id))
}

/// Writes down that a packet passed: in its own half, in the other, which heals if it is missing.
fn remember(model: &mut Model, asked: Asked, at: usize, forward: bool, state: State) {
    let now_s = model.now_s;
    let connection = &model.connections[at];
    let (client, target) = (connection.client, connection.target);
    let (answerer, seen_client) = (connection.answerer, connection.seen_client);
    // The place of the missing half may be another connection's by now.
    let foreign = if forward {
        model.answered(connection.protocol, answerer, seen_client).is_some_and(|other| other != at)
    } else {
        model.asked(connection.protocol, client, target).is_some_and(|other| other != at)
    };
    let said = asked.ended(forward);
    let connection = &mut model.connections[at];
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
