//! A connection becomes an established one: by the client's acknowledgement, or by an answer that opens it.

use lb_common::outcome::Outcome;

use super::beside;
use super::connection::{Half, Said, State};
use super::model::Model;
use super::rules::{Asked, Expected};
use super::wire::{FIN, Protocol};

/// No window is larger.
const WINDOW: u32 = 1 << 30;

/// A client's segment without SYN that acknowledges the answer of a connection: it is open from now on. `None`: of no such one.
pub fn unseen(model: &mut Model, asked: Asked, service: u32) -> Option<Expected> {
    if let Some(expected) = of_first(model, asked, service) {
        return Some(expected);
    }
    let beside =
        model.beside(asked.protocol, asked.src, asked.dst).filter(|at| beside::completes(model, asked, *at))?;
    Some(beside::complete(model, asked, beside, service))
}

fn of_first(model: &mut Model, asked: Asked, service: u32) -> Option<Expected> {
    let at = model.asking(asked.protocol, asked.src, asked.dst)?;
    let connection = &model.connections[at];
    let half = connection.forward.expect("asks by its forward half");
    let distance = asked.sequence.wrapping_sub(connection.isn.wrapping_add(1));
    let answers = connection.opening.as_ref().and_then(|opening| opening.answers)?;
    let has_answer = answers.contains(&asked.acknowledgement.wrapping_sub(1));
    if !has_answer || distance > WINDOW || connection.is_silent(half, model.now_s) {
        return None;
    }
    let (id, generation) = connection.backend?;
    let backend = &model.backends[&id];
    if backend.generation != generation || !backend.keeps_flows() {
        return Some(asked.refuse(Outcome::Evicted, service, 0));
    }
    if model.is_greedy(asked.src.ip(), connection.who) {
        // The backend, which answers once more, is refused as well.
        model.connections[at].opening.as_mut().expect("not open").lost = true;
        return Some(asked.refuse(Outcome::RefusedClientShare, service, 0));
    }
    if !promote(model, at, State::Open, asked, false) {
        return Some(asked.refuse(Outcome::RefusedNoFlow, service, 0));
    }
    let at = model.asked(asked.protocol, asked.src, asked.dst).expect("promoted");
    let connection = &model.connections[at];
    Some(asked.to_answerer(connection, Outcome::Forwarded, 0))
}

/// The connection is an open one from now on. `false`: its tuple is another live one's, or it is with another backend meanwhile.
pub fn promote(model: &mut Model, at: usize, state: State, asked: Asked, by_answer: bool) -> bool {
    let now_s = model.now_s;
    let connection = model.connections[at].clone();
    let (protocol, client, target) = (connection.protocol, connection.client, connection.target);
    let (answerer, seen_client) = (connection.answerer, connection.seen_client);
    if by_answer && connection.forward.is_none() && model.asking(protocol, client, target).is_some() {
        return false; // Under the client's tuple stands another attempt.
    }
    let opening = connection.opening.clone().unwrap_or_default();
    if by_answer && connection.forward.is_some() && opening.moved > 0 {
        return false; // Another backend may have answered: the client's own segment decides.
    }
    if !by_answer && opening.claimed {
        model.claims.retain(|claim| !claim.is_of(&connection));
    }
    let beside = |model: &Model| model.find_beside(protocol, answerer, seen_client, at);
    if let Some(other) = beside(model) {
        model.connections[other].reply = None;
    }
    if let Some(before) = model.asked(protocol, client, target) {
        let other = &model.connections[before];
        let ours = other.answerer == answerer && other.seen_client == seen_client;
        if !ours && !other.yields(other.forward.expect("asks"), now_s) {
            return false;
        }
        model.connections[before].forward = None;
    }
    if let Some(before) = model.answered(protocol, answerer, seen_client) {
        model.connections[before].reply = None;
    }
    let connection = &mut model.connections[at];
    let silent = Half { state, seen_s: now_s, lost: false, said: Said::default(), other_last: false };
    let (mut own, mut other) = (silent, silent);
    if protocol == Protocol::Tcp {
        let last = asked.tcp_flags & FIN != 0;
        own.said = Said { next: asked.next(), heard: asked.acknowledgement, last, ..Said::default() };
        // A client that has said anything was heard up to its SYN; an answer that opens is heard.
        let heard = if by_answer { asked.next() } else { connection.isn.wrapping_add(1) };
        other.said = Said { next: asked.acknowledgement, heard, ..Said::default() };
        other.other_last = last;
    }
    let (forward, reply) = if by_answer { (other, own) } else { (own, other) };
    (connection.forward, connection.reply) = (Some(forward), Some(reply));
    connection.opening = None;
    if protocol == Protocol::Tcp {
        model.seconds.retain(|second| (second.client, second.target) != (client, target));
    }
    model.tidy();
    true
}
