//! A packet that comes late, of a connection that has ended.

use lb_common::outcome::Outcome;

use super::connection::{Half, Opening};
use super::model::Model;
use super::rules::{Asked, ConnectionOutcome, Expected, PASS};

/// The connection has ended: it is no established one from now on. What its client asks for meanwhile is forgotten; who claims the place of
/// its answers keeps that.
pub fn close(model: &mut Model, at: usize, last: Half) {
    let connection = &model.connections[at];
    let (protocol, client, target) = (connection.protocol, connection.client, connection.target);
    let is_claimed = model.is_half_open(protocol, connection.answerer, connection.seen_client);
    if let Some(other) = model.asking(protocol, client, target) {
        model.connections[other].forward = None;
    }
    if let Some(other) = model.answering(protocol, client, target) {
        model.connections[other].reply = None;
    }
    model.seconds.retain(|second| (second.client, second.target) != (client, target));
    let connection = &mut model.connections[at];
    connection.opening = Some(Opening::default());
    connection.has_beside = false;
    (connection.forward, connection.reply) = (Some(last), (!is_claimed).then_some(last));
    model.tidy();
}

/// The client's packet.
pub fn ask(model: &Model, asked: Asked, at: usize) -> ConnectionOutcome {
    let connection = &model.connections[at];
    let half = connection.forward.expect("asks by its forward half");
    if !asked.serves_clients() || (connection.backend.is_none() && !asked.is_clients_link()) {
        return ConnectionOutcome::Decided(PASS);
    }
    if asked.opens() || connection.is_silent(half, model.now_s) {
        return ConnectionOutcome::Anew(Outcome::Selected);
    }
    if let Some(gone) = gone(model, at) {
        return ConnectionOutcome::Decided(asked.evicted(gone));
    }
    let outcome = if connection.backend.is_none() { Outcome::DirectTranslated } else { Outcome::Forwarded };
    ConnectionOutcome::Decided(asked.to_answerer(connection, outcome, 0))
}

/// The answerer's packet.
pub fn answer(model: &mut Model, asked: Asked, at: usize) -> Expected {
    let connection = &model.connections[at];
    let half = connection.reply.expect("answers by its reply half");
    let Some(early) = asked.sees_answers(connection.early) else { return PASS };
    if asked.accepts() || connection.is_silent(half, model.now_s) {
        model.connections.remove(at);
        return PASS;
    }
    gone(model, at).map_or_else(|| asked.to_client(connection, early), |gone| asked.evicted(gone))
}

/// The connection's backend, if it is no more.
fn gone(model: &Model, at: usize) -> Option<u32> {
    let (id, generation) = model.connections[at].backend?;
    let backend = &model.backends[&id];
    (backend.generation != generation || !backend.lasts()).then_some(id)
}
