//! A SYN that is sent again because nobody has answered: whether it goes to another backend, and to which.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use lb_common::outcome::Outcome;

use super::connection::{Connection, Left, Opening};
use super::first_packet::{settle, usable};
use super::model::{Model, Torn};
use super::rules::{Asked, Expected, Fate, Hint, PASS};

/// How often a connection may be moved.
const MOST_MOVES: usize = 3;

/// The backends that it might be moved to. `None`: it may not be.
pub fn candidates(model: &Model, at: usize) -> Option<Vec<u32>> {
    let connection = &model.connections[at];
    let opening = connection.opening.as_ref()?;
    let service = model.services.get(&(connection.target, connection.protocol))?;
    if !opening.moves
        || opening.answers.is_some()
        || opening.tried.len() >= MOST_MOVES
        || !service.retries
        || service.torn == Torn::Entry
    {
        return None;
    }
    if service.torn != Torn::Whole {
        return Some(Vec::new());
    }
    let (current, _) = connection.backend?;
    let mut all = usable(model, &service.members);
    all.retain(|id| *id != current && !opening.tried.contains(id));
    Some(all)
}

/// Whether the same SYN, sent again, went to another backend; the result says to which.
pub fn retry(model: &mut Model, asked: Asked, at: usize, hint: Hint) -> Result<Option<Expected>> {
    if !asked.is_clients_link() {
        return Ok(None);
    }
    let Some(candidates) = candidates(model, at) else { return Ok(None) };
    let connection = model.connections[at].clone();
    if hint.no_port.is_none() && hint.dst == connection.answerer {
        // So few members are all looked at.
        ensure!(candidates.is_empty(), "not moved, though {candidates:?} are untried");
        return Ok(None);
    }
    let shunned = |id: &u32| model.health(*id).suspect_s.is_some();
    let proven = |id: &u32| {
        let answered_s = model.health(*id).answered_s;
        !shunned(id) && answered_s.is_some_and(|answered_s| model.now_s.saturating_sub(answered_s) <= 30)
    };
    let best = |is: &dyn Fn(&u32) -> bool| candidates.iter().any(is);
    let is_chosen = |id: &&u32| hint.no_port.map_or(model.backends[*id].address == hint.dst, |backend| **id == backend);
    let Some(&chosen) = candidates.iter().find(is_chosen) else {
        anyhow::bail!("moved to {}, which is none of the untried {candidates:?}", hint.dst);
    };
    ensure!(proven(&chosen) || !best(&proven), "moved to {chosen}, though another one answered lately");
    ensure!(
        !shunned(&chosen) || best(&shunned) && candidates.iter().all(shunned),
        "moved to {chosen}, which is suspect"
    );
    let service = model.services[&(connection.target, connection.protocol)].id;
    let before = connection.backend.expect("a service's");
    let left = Left {
        protocol: connection.protocol,
        answerer: connection.answerer,
        seen_client: connection.seen_client,
        client: connection.client,
        target: connection.target,
        backend: before,
        early: connection.early,
        masqueraded: connection.masqueraded,
        isn: connection.isn,
        since_s: connection.since_s,
        seen_s: connection.forward.expect("asks").seen_s,
    };
    let opening = connection.opening.clone().expect("nobody has answered");
    let fewer = Opening { segments: opening.segments - 1, ..opening.clone() };
    let unmoved = Connection { opening: Some(fewer), ..connection.clone() };
    let mut tried = opening.tried;
    tried.push(before.0);
    let backend = &model.backends[&chosen];
    // A client of this node may be the backend itself.
    let itself = backend.address.ip() == connection.client.ip();
    let seen_address = if itself { connection.target.ip() } else { connection.client.ip() };
    let moved = Connection {
        answerer: backend.address,
        backend: Some((chosen, backend.generation)),
        seen_client: SocketAddr::new(seen_address, connection.client.port()),
        masqueraded: itself,
        behind_node: false,
        early: itself,
        opening: Some(Opening { tried, segments: 1, moves: opening.moves, ..Opening::default() }),
        forward: None,
        reply: None,
        ..connection
    };
    model.connections.remove(at);
    let Some(made) = settle(model, moved, false, hint)? else {
        // The packet is lost, as if the network had lost it.
        model.connections.push(unmoved);
        return Ok(Some(Expected {
            fate: Fate::Drop,
            outcome: Outcome::DroppedNoPort,
            service,
            backend: chosen,
            ..PASS
        }));
    };
    // Another connection may have the place of the answers' half by now.
    let (protocol, tuple) = (left.protocol, (left.answerer, left.seen_client));
    let here = |other: &Left| other.protocol == protocol && (other.answerer, other.seen_client) == tuple;
    let own = |other: &Left| (other.client, other.target) == (left.client, left.target);
    let taken = model.answering(protocol, tuple.0, tuple.1).is_some()
        || model.left.iter().any(|other| here(other) && !own(other));
    if !taken {
        model.left.retain(|other| !here(other));
        model.left.push(left);
    }
    let expected = asked.to_answerer(&made, Outcome::Retried, service);
    Ok(Some(expected))
}
