//! A packet of a connection whose client has shown no answer yet: retransmitted, answered, refused, answered late, established.

use anyhow::{Result, ensure};
use lb_common::outcome::Outcome;

use super::connection::{Half, Left, Opening, Said, State};
use super::health::{hears, suspects};
use super::model::Model;
use super::retry::{candidates, retry};
use super::rules::{Asked, Expected, Fate, Hint, PASS, Turn};
use super::wire::{FIN, Protocol, RST};
use crate::test_run::Hook;

/// No window is larger.
const WINDOW: u32 = 1 << 30;
/// What a SYN may carry, at most.
const MOST_DATA: u32 = 65_535;

/// The client sends again.
pub fn ask(model: &mut Model, asked: Asked, at: usize, hint: Hint) -> Result<Turn> {
    let connection = &model.connections[at];
    let half = connection.forward.expect("asks by its forward half");
    if !asked.serves_clients() || (connection.backend.is_none() && !asked.is_clients_link()) {
        return Ok(Turn::Decided(PASS));
    }
    if (asked.opens() && connection.isn != asked.isn()) || connection.is_silent(half, model.now_s) {
        return Ok(Turn::Anew(Outcome::Selected));
    }
    if let Some((id, generation)) = connection.backend {
        let backend = &model.backends[&id];
        let keeps = backend.generation == generation && backend.keeps_flows();
        match asked.protocol {
            Protocol::Tcp if !keeps => return Ok(Turn::Anew(Outcome::Selected)),
            Protocol::Udp if !keeps || backend.sheds_udp() => return Ok(Turn::Anew(Outcome::Moved)),
            _ => {}
        }
    }
    if asked.opens() {
        let opening = model.connections[at].opening.as_mut().expect("nobody has answered");
        opening.segments = opening.segments.saturating_add(1);
        if let Some(expected) = retry(model, asked, at, hint)? {
            return Ok(Turn::Decided(expected));
        }
    }
    stay(model, asked, at);
    let connection = &model.connections[at];
    let outcome = if connection.backend.is_none() { Outcome::DirectTranslated } else { Outcome::Forwarded };
    let expected = asked.to_answerer(connection, outcome, 0);
    let answered = connection.opening.as_ref().is_some_and(|opening| opening.answers.is_some());
    let reset = asked.protocol == Protocol::Tcp && asked.tcp_flags & RST != 0;
    if answered && reset && asked.sequence == connection.isn.wrapping_add(1) {
        model.connections.remove(at); // The client wants no such connection.
    }
    Ok(Turn::Decided(expected))
}

/// A SYN or a datagram is remembered in both halves, and heals what is missing; a RST of the client changes nothing.
fn stay(model: &mut Model, asked: Asked, at: usize) {
    let now_s = model.now_s;
    let connection = &model.connections[at];
    let half = connection.forward.expect("asks by its forward half");
    let datagram = asked.protocol == Protocol::Udp && (half.lost || half.seen_s != now_s);
    if !asked.opens() && !datagram {
        return;
    }
    let (protocol, answerer, seen_client) = (connection.protocol, connection.answerer, connection.seen_client);
    // The place of the missing half may be another connection's by now.
    let other = |found: Option<usize>| found.is_some_and(|other| other != at);
    let beside_known = other(model.answered(protocol, answerer, seen_client));
    let foreign = beside_known
        || other(model.answering(protocol, answerer, seen_client))
        || model
            .left
            .iter()
            .any(|left| (left.protocol, left.answerer, left.seen_client) == (protocol, answerer, seen_client));
    let connection = &mut model.connections[at];
    let fresh = Half { seen_s: now_s, lost: false, ..half };
    connection.forward = Some(fresh);
    // An answered connection of the same tuple gets the answers, so the half beside it is not kept alive.
    if !beside_known && (connection.reply.is_some() || !foreign) {
        connection.reply = Some(fresh);
    }
}

/// A backend's packet on a connection that awaits one.
pub fn answer(model: &mut Model, asked: Asked, at: usize, hint: Hint) -> Result<Expected> {
    let connection = &model.connections[at];
    let half = connection.reply.expect("answers by its reply half");
    let Some(early) = asked.sees_answers(connection.early) else { return Ok(PASS) };
    if connection.is_silent(half, model.now_s) {
        model.connections.remove(at);
        return Ok(PASS);
    }
    let backend = connection.backend.map_or(0, |(id, _)| id);
    if let Some((id, generation)) = connection.backend {
        let record = &model.backends[&id];
        if record.generation != generation || !record.keeps_flows() {
            return Ok(asked.evicted(backend));
        }
    }
    let replied = asked.to_client(connection, early);
    if asked.protocol == Protocol::Tcp {
        let more = asked.acknowledgement.wrapping_sub(connection.isn.wrapping_add(1));
        let answered = connection.opening.as_ref().is_some_and(|opening| opening.answers.is_some());
        if more > if asked.accepts() { MOST_DATA } else { 0 } || (answered && !asked.accepts()) {
            return Ok(replied); // Of another attempt, or forged, or after an answer: the client judges.
        }
        if !asked.accepts() {
            return refused(model, asked, at, hint, replied);
        }
        // Who takes data with the SYN knows its client: the connection is open.
        if backend != 0 && more == 0 {
            return Ok(accepted(model, asked, at, replied));
        }
    }
    if !promote(model, at, State::Open, asked, true) {
        return Ok(late(asked, backend));
    }
    let notes = if backend == 0 { Vec::new() } else { hears(model, backend) };
    Ok(Expected { notes, ..replied })
}

/// The backend has accepted: what the client must acknowledge is remembered.
fn accepted(model: &mut Model, asked: Asked, at: usize, replied: Expected) -> Expected {
    let connection = model.connections[at].clone();
    let (protocol, client, target) = (connection.protocol, connection.client, connection.target);
    let (id, _) = connection.backend.expect("a service's");
    let known = connection.forward.is_some();
    if !known {
        // Under the client's tuple stands another attempt, or whose answers go where this client is.
        let left = |left: &Left| (left.protocol, left.answerer, left.seen_client) == (protocol, client, target);
        if model.asking(protocol, client, target).is_some()
            || model.answering(protocol, client, target).is_some()
            || model.left.iter().any(left)
            || model.seconds.iter().any(|second| (second.client, second.target) == (client, target))
        {
            return late(asked, id);
        }
        if let Some(before) = model.asked(protocol, client, target) {
            let other = &model.connections[before];
            if (other.answerer, other.seen_client) == (connection.answerer, connection.seen_client) {
                return replied;
            }
            if !other.yields(other.forward.expect("asks"), model.now_s) {
                return late(asked, id);
            }
            model.connections[before].forward = None;
        } else if let Some(before) = model.answered(protocol, client, target) {
            let other = &model.connections[before];
            if !other.yields(other.reply.expect("answers"), model.now_s) {
                return late(asked, id);
            }
            model.connections[before].reply = None;
        }
    }
    let mut opening = connection.opening.clone().expect("not open");
    let (first, number) = (opening.answers.is_none(), asked.sequence);
    match opening.answers {
        None => opening.answers = Some([number; 2]),
        Some(known) if known.contains(&number) => {}
        Some([latest, _]) => opening.answers = Some([number, latest]),
    }
    let tried = std::mem::take(&mut opening.tried);
    let connection = &mut model.connections[at];
    if known {
        connection.opening = Some(Opening { tried: tried.clone(), ..opening });
    } else {
        connection.opening = Some(Opening { answers: opening.answers, ..Opening::default() });
        connection.forward = connection.reply;
    }
    let since_s = connection.since_s;
    model.tidy();
    let mut notes = Vec::new();
    for id in tried.into_iter().filter(|_| known && first) {
        // It has answered nobody since: another one did what it left undone.
        if model.health(id).answered_s.is_none_or(|answered_s| answered_s < since_s) {
            notes.extend(suspects(model, id));
        }
    }
    notes.extend(hears(model, id));
    Expected { notes, ..replied }
}

/// The backend has refused.
fn refused(model: &mut Model, asked: Asked, at: usize, hint: Hint, replied: Expected) -> Result<Expected> {
    let Some((id, _)) = model.connections[at].backend else {
        model.connections.remove(at);
        return Ok(replied);
    };
    let notes = suspects(model, id);
    if asked.hook == Hook::Xdp {
        // Whether the client is told is for tc to say.
        return Ok(Expected { notes, ..PASS }.handed());
    }
    let fit = |model: &Model, id: &u32| model.health(*id).suspect_s.is_none();
    let mut candidates = if model.connections[at].forward.is_some() { candidates(model, at) } else { None };
    if let Some(candidates) = &mut candidates {
        candidates.retain(|id| fit(model, id));
    }
    let withhold = candidates.as_ref().is_some_and(|some| !some.is_empty());
    ensure!(hint.withheld == withhold, "withheld: {}, and {candidates:?} could take it", hint.withheld);
    if hint.withheld {
        let connection = &mut model.connections[at];
        connection.opening.as_mut().expect("nobody has answered").refused = true;
        let service = model.services[&(connection.target, connection.protocol)].id;
        let outcome = Outcome::WithheldRefusal;
        return Ok(Expected { fate: Fate::Drop, outcome, service, backend: replied.backend, notes, ..PASS });
    }
    model.connections.remove(at);
    Ok(Expected { notes, ..replied })
}

/// The answer of a backend that its connection has left.
pub fn answer_left(model: &mut Model, asked: Asked, at: usize) -> Expected {
    let left = &model.left[at];
    if asked.sees_answers(left.early).is_none() {
        return PASS;
    }
    if model.now_s.saturating_sub(left.seen_s) > 60 {
        model.left.remove(at);
        return PASS;
    }
    late(asked, left.backend.0)
}

fn late(asked: Asked, backend: u32) -> Expected {
    let fate = if asked.accepts() { Fate::Refuse } else { Fate::Drop };
    Expected { fate, outcome: Outcome::RefusedLate, backend, ..PASS }
}

/// A client's segment without SYN that acknowledges the answer of a connection: it is open from now on. `None`: of no such one.
pub fn unseen(model: &mut Model, asked: Asked, service: u32) -> Option<Expected> {
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
    if !promote(model, at, State::Open, asked, false) {
        return Some(asked.refuse(Outcome::RefusedNoFlow, service, 0));
    }
    let at = model.asked(asked.protocol, asked.src, asked.dst).expect("promoted");
    let connection = &model.connections[at];
    Some(asked.to_answerer(connection, Outcome::Forwarded, 0))
}

/// The connection is an open one from now on. `false`: its tuple is another live one's, or it is with another backend meanwhile.
fn promote(model: &mut Model, at: usize, state: State, asked: Asked, by_answer: bool) -> bool {
    let now_s = model.now_s;
    let connection = model.connections[at].clone();
    let (protocol, client, target) = (connection.protocol, connection.client, connection.target);
    let (answerer, seen_client) = (connection.answerer, connection.seen_client);
    if by_answer && connection.forward.is_none() && model.asking(protocol, client, target).is_some() {
        return false; // Under the client's tuple stands another attempt.
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
        own.said = Said { next: asked.next(), heard: asked.acknowledgement, last, heard_last: false };
        // A client that has said anything was heard up to its SYN; an answer that opens is heard.
        let heard = if by_answer { asked.next() } else { connection.isn.wrapping_add(1) };
        other.said = Said { next: asked.acknowledgement, heard, last: false, heard_last: false };
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
