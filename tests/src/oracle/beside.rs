//! What is begun beside a connection that goes on: it replaces that one once its client has completed it.

use lb_common::outcome::Outcome;

use super::model::Model;
use super::rules::{Asked, ConnectionOutcome, Expected};
use super::unanswered::stay;

/// So many seconds it keeps its place after an answer.
const PLACE_S: u32 = 3;
/// No window is larger.
const WINDOW: u32 = 1 << 30;

/// A SYN of another connection than the one at `at`. `may_begin`: another one may be begun beside it.
pub fn ask_to_open(model: &mut Model, asked: Asked, at: usize, may_begin: bool) -> ConnectionOutcome {
    let beside = model.beside(asked.protocol, asked.src, asked.dst).filter(|at| model.is_kept(*at));
    let known = beside.map(|at| {
        let it = &model.connections[at];
        let seen_s = it.forward.expect("asks").seen_s;
        (it.isn == asked.sequence, it.opening.as_ref().is_some_and(|opening| opening.answers.is_some()), seen_s)
    });
    match known {
        Some((true, is_answered, seen_s)) if is_answered || seen_s == model.now_s => {
            let beside = beside.expect("it is known");
            stay(model, asked, beside);
            ConnectionOutcome::Decided(asked.to_answerer(&model.connections[beside], Outcome::Forwarded, 0))
        }
        Some((true, ..)) => ConnectionOutcome::Anew(Outcome::SecondHandshake),
        Some((false, true, seen_s)) if model.now_s - seen_s <= PLACE_S => leave(model, asked, at),
        _ if may_begin => ConnectionOutcome::Anew(Outcome::SecondHandshake),
        _ => leave(model, asked, at),
    }
}

/// The backend that has the tuple answers.
fn leave(model: &Model, asked: Asked, at: usize) -> ConnectionOutcome {
    let it = &model.connections[at];
    let outcome = if it.backend.is_none() { Outcome::DirectTranslated } else { Outcome::Forwarded };
    ConnectionOutcome::Decided(asked.to_answerer(it, outcome, 0))
}

/// Any other segment on an established connection that another one was begun beside. `None`: it is the established one's.
pub fn ask(model: &mut Model, asked: Asked, at: usize) -> Option<ConnectionOutcome> {
    let Some(beside) = model.beside(asked.protocol, asked.src, asked.dst) else {
        model.connections[at].has_beside = false;
        return None;
    };
    if completes(model, asked, beside) {
        return Some(ConnectionOutcome::Decided(complete(model, asked, beside, 0)));
    }
    reset(model, asked).map(ConnectionOutcome::Decided)
}

/// Whether the segment has the answer that the client must have.
pub fn completes(model: &Model, asked: Asked, beside: usize) -> bool {
    let it = &model.connections[beside];
    let answers = it.opening.as_ref().and_then(|opening| opening.answers);
    let is_midway = !asked.opens() && !asked.accepts() && !asked.resets();
    is_midway
        && answers.is_some_and(|answers| answers.contains(&asked.acknowledgement.wrapping_sub(1)))
        && asked.sequence.wrapping_sub(it.isn.wrapping_add(1)) <= WINDOW
}

/// It is the client's connection from now on.
pub fn complete(model: &mut Model, asked: Asked, beside: usize, service: u32) -> Expected {
    let it = &model.connections[beside];
    if !model.is_kept(beside) {
        return asked.refuse(Outcome::Evicted, service, 0);
    }
    if model.is_greedy(asked.src.ip(), it.who) {
        model.connections[beside].opening.as_mut().expect("not open").lost = true;
        return asked.refuse(Outcome::RefusedClientShare, service, 0);
    }
    let (answerer, seen_client) = (it.answerer, it.seen_client);
    if let Some(at) = model.asked(asked.protocol, asked.src, asked.dst) {
        model.connections.remove(at);
    }
    if let Some(at) = model.asking(asked.protocol, asked.src, asked.dst) {
        model.connections[at].forward = None;
    }
    model.tidy();
    let own = model.answering(asked.protocol, answerer, seen_client);
    let at = own.filter(|at| model.connections[*at].is_beside);
    let at = at.or_else(|| model.beside(asked.protocol, asked.src, asked.dst)).expect("it is there");
    model.connections[at].is_beside = false;
    assert!(super::promotion::promote(model, at, super::connection::State::Open, asked, false), "its tuple is free");
    let at = model.asked(asked.protocol, asked.src, asked.dst).expect("promoted");
    asked.to_answerer(&model.connections[at], Outcome::Forwarded, 0)
}

/// The client resets the answer that it does not want.
pub fn reset(model: &mut Model, asked: Asked) -> Option<Expected> {
    let beside = model.beside(asked.protocol, asked.src, asked.dst)?;
    let it = &model.connections[beside];
    let is_answered = it.opening.as_ref().is_some_and(|opening| opening.answers.is_some());
    if !asked.resets() || !is_answered || asked.sequence != it.isn.wrapping_add(1) {
        return None;
    }
    let expected = asked.to_answerer(it, Outcome::Forwarded, 0);
    model.connections.remove(beside);
    Some(expected)
}

/// The first attempt is over: what was begun beside it takes its place. Whether this is the SYN of that one.
pub fn follows(model: &mut Model, asked: Asked) -> bool {
    let beside = model.beside(asked.protocol, asked.src, asked.dst).filter(|at| model.is_kept(*at));
    let Some(beside) = beside else { return false };
    model.connections[beside].is_beside = false;
    asked.opens() && asked.sequence == model.connections[beside].isn
}

/// The SYN that [`follows`].
pub fn forward(model: &mut Model, asked: Asked) -> Expected {
    let at = model.asking(asked.protocol, asked.src, asked.dst).expect("it follows");
    stay(model, asked, at);
    asked.to_answerer(&model.connections[at], Outcome::Forwarded, 0)
}
