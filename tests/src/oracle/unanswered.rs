//! A packet of a connection whose client has shown no answer yet: retransmitted, answered, refused, answered late.

use anyhow::{Result, ensure};
use lb_common::outcome::Outcome;

use super::beside;
use super::connection::{Claim, Connection, Half, Opening, State};
use super::health::{add_evidence, hears, shuns};
use super::model::{Model, Torn};
use super::promotion::promote;
use super::retry::{others, retry, untried};
use super::rules::{Asked, ConnectionOutcome, Expected, Fate, Hint, PASS};
use super::wire::{Protocol, RST};
use crate::test_run::Hook;

/// What a SYN may carry, at most.
const MOST_DATA: u32 = 65_535;

/// The client sends again.
pub fn ask(model: &mut Model, asked: Asked, at: usize, hint: Hint) -> Result<ConnectionOutcome> {
    let connection = &model.connections[at];
    let half = connection.forward.expect("asks by its forward half");
    if !asked.serves_clients() || (connection.backend.is_none() && !asked.is_clients_link()) {
        return Ok(ConnectionOutcome::Decided(PASS));
    }
    if connection.is_silent(half, model.now_s) {
        return Ok(over(model, asked, at));
    }
    if let Some((id, generation)) = connection.backend {
        let backend = &model.backends[&id];
        let keeps = backend.generation == generation && backend.keeps_flows();
        match asked.protocol {
            Protocol::Tcp if !keeps => return Ok(over(model, asked, at)),
            Protocol::Udp if !keeps || backend.sheds_udp() => return Ok(ConnectionOutcome::Anew(Outcome::Moved)),
            _ => {}
        }
    }
    if asked.opens() && model.connections[at].isn != asked.isn() {
        let it = &model.connections[at];
        if it.backend.is_none() && model.routes().leads_to_pod(asked.src.ip()) {
            return Ok(ConnectionOutcome::Anew(Outcome::Selected));
        }
        let may_begin = it.backend.is_some();
        return Ok(beside::ask_to_open(model, asked, at, may_begin));
    }
    if asked.opens() {
        let opening = model.connections[at].opening.as_mut().expect("nobody has answered");
        opening.segments = opening.segments.saturating_add(1);
        if let Some(expected) = retry(model, asked, at, hint)? {
            return Ok(ConnectionOutcome::Decided(expected));
        }
    }
    let at = model.asking(asked.protocol, asked.src, asked.dst).expect("the client's half is there");
    stay(model, asked, at);
    let connection = &model.connections[at];
    let outcome = if connection.backend.is_none() { Outcome::DirectTranslated } else { Outcome::Forwarded };
    let expected = asked.to_answerer(connection, outcome, 0);
    let answered = connection.opening.as_ref().is_some_and(|opening| opening.answers.is_some());
    let isn = connection.isn;
    let reset = asked.protocol == Protocol::Tcp && asked.tcp_flags & RST != 0;
    if answered && reset && asked.sequence == isn.wrapping_add(1) {
        model.connections.remove(at); // The client wants no such connection.
        beside::follows(model, asked);
    } else if reset && let Some(expected) = beside::reset(model, asked) {
        return Ok(ConnectionOutcome::Decided(expected));
    }
    Ok(ConnectionOutcome::Decided(expected))
}

/// The attempt is over, and the packet a first one, unless it is of another one beside it.
fn over(model: &mut Model, asked: Asked, at: usize) -> ConnectionOutcome {
    if asked.protocol == Protocol::Tcp && model.beside(asked.protocol, asked.src, asked.dst).is_some() {
        let it = &mut model.connections[at];
        (it.forward, it.reply) = (None, None);
        if beside::follows(model, asked) {
            model.tidy();
            return ConnectionOutcome::Decided(beside::forward(model, asked));
        }
    }
    ConnectionOutcome::Anew(Outcome::Selected)
}

/// A SYN or a datagram is remembered in both halves, and heals what is missing; a RST of the client changes nothing.
pub fn stay(model: &mut Model, asked: Asked, at: usize) {
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
    let foreign = beside_known || other(model.answering(protocol, answerer, seen_client));
    // Another attempt of this client with this backend, which a claim has brought back: its half beside this one is kept alive.
    let (client, target, backend) = (connection.client, connection.target, connection.backend);
    if let Some(attempt) = model.answering(protocol, answerer, seen_client).filter(|attempt| *attempt != at)
        && asked.opens()
        && !beside_known
    {
        let it = &mut model.connections[attempt];
        if (it.client, it.target, it.backend) == (client, target, backend) {
            it.reply = it.reply.map(|half| Half { seen_s: now_s, lost: false, ..half });
        }
    }
    let connection = &mut model.connections[at];
    let fresh = Half { seen_s: now_s, lost: false, ..half };
    connection.forward = Some(fresh);
    // An answered connection of the same tuple gets the answers, so the half beside it is not kept alive.
    if !beside_known && (connection.reply.is_some() || !foreign) {
        if let Some(opening) = connection.opening.as_mut().filter(|_| connection.reply.is_none()) {
            opening.reply_moves = opening.moves;
            // Made anew, it knows what the client's half does.
            (opening.heard, opening.lost) = (opening.answers, false);
        }
        connection.reply = Some(fresh);
    }
}

/// A backend's packet on a connection that awaits one.
pub fn answer(model: &mut Model, asked: Asked, at: usize, hint: Hint) -> Result<Expected> {
    let connection = &model.connections[at];
    let half = connection.reply.expect("answers by its reply half");
    let Some(early) = asked.sees_answers(connection.early) else { return Ok(PASS) };
    if connection.is_silent(half, model.now_s) {
        let gone = model.connections.remove(at);
        // With it goes the client's half of another attempt with this backend, which a claim has brought back.
        for it in model.connections.iter_mut().filter(|it| it.opening.is_some() && it.shares_answers(&gone)) {
            let ends = |it: &Connection| (it.client, it.target, it.backend, it.is_beside);
            if ends(it) == ends(&gone) {
                it.forward = None;
            }
        }
        model.tidy();
        return Ok(PASS);
    }
    let backend = connection.backend.map_or(0, |(id, _)| id);
    if connection.opening.as_ref().is_some_and(|opening| opening.lost) {
        let is_beside = connection.is_beside;
        let notes = if asked.accepts() && !is_beside { hears(model, backend) } else { Vec::new() };
        return Ok(Expected { notes, ..late(asked, backend) });
    }
    if let Some((id, generation)) = connection.backend {
        let record = &model.backends[&id];
        if record.generation != generation || !record.keeps_flows() {
            return Ok(asked.evicted(backend));
        }
    }
    let replied = asked.to_client(connection, early);
    if asked.protocol == Protocol::Tcp {
        let more = asked.acknowledgement.wrapping_sub(connection.isn.wrapping_add(1));
        let answered = connection.opening.as_ref().is_some_and(|opening| opening.heard.is_some());
        let refuses = (asked.resets() || asked.opens()) && !answered;
        if more > if asked.accepts() { MOST_DATA } else { 0 } || (!refuses && !asked.accepts()) {
            return Ok(replied); // Of another attempt, or forged, or after an answer: the client judges.
        }
        if !asked.accepts() {
            return refused(model, asked, at, hint, replied);
        }
        // Who takes data with the SYN knows its client: the connection is open.
        if backend != 0 && (more == 0 || connection.is_beside) {
            return Ok(accepted(model, asked, at, replied));
        }
    }
    let connection = &model.connections[at];
    if backend != 0 && asked.protocol == Protocol::Tcp && model.is_greedy(connection.client.ip(), connection.who) {
        return Ok(Expected { outcome: Outcome::RefusedClientShare, ..late(asked, backend) });
    }
    if !promote(model, at, State::Open, asked, true) {
        // Of two datagrams that came at once each gets its answer.
        return Ok(if asked.protocol == Protocol::Udp { replied } else { late(asked, backend) });
    }
    let notes = if backend == 0 { Vec::new() } else { hears(model, backend) };
    Ok(Expected { notes, ..replied })
}

/// The backend has accepted: what the client must acknowledge is remembered, if no other backend's answer was before.
fn accepted(model: &mut Model, asked: Asked, at: usize, replied: Expected) -> Expected {
    let connection = model.connections[at].clone();
    let (protocol, client, target) = (connection.protocol, connection.client, connection.target);
    let (id, _) = connection.backend.expect("a service's");
    let clients = clients_half(model, at);
    let (is_late, needs_claim) = match clients {
        Some(clients) => {
            let it = &model.connections[clients];
            let opening = it.opening.as_ref().expect("not open");
            let retried = opening.moved > 0 && opening.answers.is_none() && it.isn == connection.isn;
            let same = it.shares_answers(&connection);
            (!same && !retried, retried || it.backend.map(|(id, _)| id) != Some(id))
        }
        None if connection.is_beside => match model.asked(protocol, client, target) {
            Some(open) if model.connections[open].isn == connection.isn => {
                if model.connections[open].shares_answers(&connection) {
                    return replied;
                }
                (true, false)
            }
            _ => (false, false),
        },
        None if is_taken(model, &connection) => (true, false),
        None => {
            if let Some(before) = model.asked(protocol, client, target) {
                let other = &model.connections[before];
                if other.shares_answers(&connection) {
                    return replied;
                }
                if !other.yields(other.forward.expect("asks"), model.now_s) {
                    return lose(model, asked, at, id);
                }
                model.connections[before].forward = None;
            } else if let Some(before) = model.answered(protocol, client, target) {
                let other = &model.connections[before];
                if !other.yields(other.reply.expect("answers"), model.now_s) {
                    return lose(model, asked, at, id);
                }
                model.connections[before].reply = None;
            }
            (false, connection.opening.as_ref().is_some_and(|opening| opening.reply_moves))
        }
    };
    if is_late {
        return lose(model, asked, at, id);
    }
    let opening = model.connections[at].opening.as_mut().expect("not open");
    let first = opening.hear(asked.sequence);
    let heard = opening.heard;
    let mut known = clients.map(|at| model.connections[at].opening.clone().expect("not open")).unwrap_or_default();
    let mut is_new = first && clients.is_some();
    if needs_claim {
        // Those that were asked later had less time.
        let before = known.tried.into_iter().take_while(|(tried, _)| *tried != id);
        // Who has refused matters no more.
        (known.tried, known.refused) = (before.map(|(tried, _)| (tried, false)).collect(), false);
    }
    let all: Vec<u32> = known.tried.iter().map(|(tried, _)| *tried).collect();
    known.answers = heard;
    match clients {
        Some(clients) if !needs_claim => {
            model.connections[clients].opening = {
                let own = model.connections[clients].opening.clone().expect("not open");
                Some(Opening { answers: heard, ..own })
            }
        }
        _ => {
            known.claimed |= needs_claim;
            let half = connection.reply.expect("answers by its reply half");
            let seen_s = if needs_claim { model.now_s } else { half.seen_s };
            let forward = Some(Half { seen_s, ..half });
            if connection.is_beside {
                model.connections[at].forward = forward;
                let opening = model.connections[at].opening.as_mut().expect("not open");
                (opening.answers, opening.segments) = (heard, 0);
                return replied;
            }
            let winner = Connection { forward, reply: None, opening: Some(known), ..connection.clone() };
            if needs_claim {
                match model.claim(&connection) {
                    Some(before) if !before.shares_answers(&connection) => {
                        return lose(model, asked, at, id);
                    }
                    Some(_) => is_new = false,
                    None => {
                        model.claims.push(Claim { winner: winner.clone() });
                        is_new = clients.is_some();
                    }
                }
            }
            model.give(&winner);
        }
    }
    model.tidy();
    let mut notes = if is_new { evidence_against(model, &connection, &all) } else { Vec::new() };
    if !connection.is_beside {
        notes.extend(hears(model, id));
    }
    Expected { notes, ..replied }
}

/// What is learnt of these backends, which were tried before the one that has answered.
fn evidence_against(model: &mut Model, connection: &Connection, tried: &[u32]) -> Vec<(u32, Outcome)> {
    let asked = (connection.target, connection.protocol);
    let Some(service) = model.services.get(&asked).filter(|service| service.torn != Torn::Entry).cloned() else {
        return Vec::new();
    };
    let mut notes = Vec::new();
    for id in tried {
        // It has answered nobody since: another one did what it left undone.
        let is_silent = model.health(*id).answered_s.is_none_or(|answered_s| answered_s < connection.since_s);
        if is_silent && model.backends[id].service == service.id {
            notes.extend(add_evidence(model, &service, *id, connection.client.ip()));
        }
    }
    notes
}

/// Whose is the client's half of the connection that is answered at `at`.
fn clients_half(model: &Model, at: usize) -> Option<usize> {
    let it = &model.connections[at];
    match it.forward {
        Some(_) => Some(at),
        None if it.is_beside => {
            model.connections.iter().position(|other| other.asks_beside(it.protocol, it.client, it.target))
        }
        None => model.asking(it.protocol, it.client, it.target),
    }
}

/// Whether something else than a client's half is under its tuple.
fn is_taken(model: &Model, it: &Connection) -> bool {
    model.answering(it.protocol, it.client, it.target).is_some()
        || it.protocol == Protocol::Tcp
            && model.seconds.iter().any(|second| (second.client, second.target) == (it.client, it.target))
}

/// Another backend has the connection.
fn lose(model: &mut Model, asked: Asked, at: usize, backend: u32) -> Expected {
    let it = &mut model.connections[at];
    it.opening.as_mut().expect("not open").lost = true;
    let notes = if asked.accepts() && !it.is_beside { hears(model, backend) } else { Vec::new() };
    Expected { notes, ..late(asked, backend) }
}

/// The backend has refused.
fn refused(model: &mut Model, asked: Asked, at: usize, hint: Hint, replied: Expected) -> Result<Expected> {
    let Some((id, _)) = model.connections[at].backend else {
        model.connections.remove(at);
        return Ok(replied);
    };
    if asked.hook == Hook::Xdp {
        // The program at tc decides whether the client gets an answer.
        return Ok(PASS.handed());
    }
    let it = model.connections[at].clone();
    let known = replied.clone();
    let Some(clients) = clients_half(model, at) else {
        if it.is_beside {
            model.connections.remove(at);
            return Ok(known);
        }
        let open = model.asked(it.protocol, it.client, it.target);
        let is_elsewhere = match open {
            Some(open) => !model.connections[open].shares_answers(&it),
            None => model.answered(it.protocol, it.client, it.target).is_some(),
        };
        let is_second = is_taken(model, &it);
        if (is_second && open.is_none()) || is_elsewhere {
            model.connections[at].opening.as_mut().expect("not open").lost = true;
            return Ok(late(asked, id));
        }
        if !is_second {
            model.connections.remove(at);
        }
        return Ok(known);
    };
    let asks = &model.connections[clients];
    let opening = asks.opening.as_ref().expect("not open");
    let same = asks.shares_answers(&it);
    let answered = opening.answers.is_some();
    if !same && (answered || opening.moved == 0 || asks.isn != it.isn) {
        model.connections[at].opening.as_mut().expect("not open").lost = true;
        return Ok(late(asked, id));
    }
    if answered {
        return Ok(known);
    }
    let fit = |id: &u32| !shuns(model, *id, it.client.ip(), Protocol::Tcp);
    let may_move = others(model, clients).is_some();
    let new = untried(model, clients).is_some_and(|all| opening.tried.len() < 3 && all.iter().any(fit));
    let opening = model.connections[clients].opening.as_mut().expect("not open");
    if same {
        opening.refused = true;
    }
    for (tried, has_refused) in &mut opening.tried {
        *has_refused |= !same && *tried == id;
    }
    let is_last = opening.refused && opening.tried.iter().all(|(_, has_refused)| *has_refused);
    let suppressed = may_move && (!is_last || new);
    ensure!(hint.suppressed == suppressed, "suppressed: {}, the last: {is_last}, another one: {new}", hint.suppressed);
    if suppressed {
        let service = model.services[&(it.target, it.protocol)].id;
        let outcome = Outcome::SuppressedRefusal;
        return Ok(Expected { fate: Fate::Drop, outcome, service, backend: replied.backend, ..PASS });
    }
    model.connections[clients].forward = None;
    model.connections[at].reply = None;
    model.tidy();
    Ok(known)
}

fn late(asked: Asked, backend: u32) -> Expected {
    let fate = if asked.accepts() { Fate::Refuse } else { Fate::Drop };
    Expected { fate, outcome: Outcome::RefusedLate, backend, ..PASS }
}
