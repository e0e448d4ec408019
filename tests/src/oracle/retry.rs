//! A SYN that is sent again because nobody has answered: whether it goes to another backend, and to which.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use lb_common::outcome::Outcome;

use super::client::{Seen, seen};
use super::connection::{Connection, Opening};
use super::first_packet::{self, settle, usable};
use super::health::shuns;
use super::model::{Model, Torn};
use super::rules::{Asked, Expected, Fate, Hint, PASS};
use super::wire::Protocol;
use crate::test_run::Hook;

/// So many tried backends are remembered.
const MOST_TRIED: usize = 3;

/// The backends of the service that a connection may be moved to, but for its own. `None`: it may not be moved.
pub fn others(model: &Model, at: usize) -> Option<Vec<u32>> {
    let connection = &model.connections[at];
    let opening = connection.opening.as_ref()?;
    let service = model.services.get(&(connection.target, connection.protocol))?;
    let (members, _) = service.set(connection.who);
    if !opening.moves
        || opening.answers.is_some()
        || !service.retries
        || members.is_empty()
        || service.torn == Torn::Entry
    {
        return None;
    }
    if service.torn != Torn::Whole {
        return Some(Vec::new());
    }
    let (current, _) = connection.backend?;
    let mut all = usable(model, members);
    all.retain(|id| *id != current);
    Some(all)
}

/// Those of them that were not tried.
pub fn untried(model: &Model, at: usize) -> Option<Vec<u32>> {
    let mut all = others(model, at)?;
    let opening = model.connections[at].opening.as_ref()?;
    all.retain(|id| opening.tried.iter().all(|(tried, _)| tried != id));
    Some(all)
}

/// What a backend is worth to a SYN that is sent again.
fn worth(model: &Model, id: u32, client: IpAddr) -> u8 {
    let lately = |answered_s: u32| model.now_s.saturating_sub(answered_s) <= 30;
    match model.health(id).answered_s {
        _ if shuns(model, id, client, Protocol::Tcp) => 0,
        Some(answered_s) if lately(answered_s) => 2,
        _ => 1,
    }
}

/// The backends that the SYN must go to one of; none: it goes where it went.
fn candidates(model: &Model, at: usize) -> Option<Vec<u32>> {
    let fresh = untried(model, at)?;
    let opening = model.connections[at].opening.as_ref()?;
    let (current, _) = model.connections[at].backend?;
    let client = model.connections[at].client.ip();
    let all = if fresh.is_empty() {
        // All were tried: once more to one that has not refused, if it is worth as much as the last one.
        let mut again = others(model, at)?;
        again.retain(|id| !opening.tried.contains(&(*id, true)));
        let least = if opening.refused { 0 } else { worth(model, current, client) };
        again.retain(|id| worth(model, *id, client) >= least);
        again
    } else {
        fresh
    };
    let best = all.iter().map(|id| worth(model, *id, client)).max().unwrap_or_default();
    Some(all.into_iter().filter(|id| worth(model, *id, client) == best).collect())
}

/// Whether the same SYN, sent again, went to another backend; the result says to which.
pub fn retry(model: &mut Model, asked: Asked, at: usize, hint: Hint) -> Result<Option<Expected>> {
    let connection = model.connections[at].clone();
    let opening = connection.opening.clone().expect("nobody has answered");
    if !opening.moves || opening.answers.is_some() || asked.data > 0 {
        return Ok(None);
    }
    if asked.hook == Hook::Xdp {
        // The program at tc retries, and notes the SYN.
        model.connections[at].opening.as_mut().expect("nobody has answered").segments -= 1;
        return Ok(Some(PASS.handed()));
    }
    if let Some(winner) = model.claim(&connection) {
        let (id, generation) = winner.backend.expect("a service's");
        let backend = &model.backends[&id];
        if backend.generation & 0xffff == generation & 0xffff && backend.keeps_flows() {
            // The answer was forgotten, but for the claim.
            model.give(&winner);
            return Ok(None);
        }
        model.claims.retain(|claim| !claim.is_of(&connection));
    }
    let Some(candidates) = candidates(model, at) else { return Ok(None) };
    let service = model.services[&(connection.target, connection.protocol)].clone();
    let lost = Expected { fate: Fate::Drop, service: service.id, ..PASS };
    if hint.no_address {
        let unseen = |id: &&u32| seen(model, asked, service.kind, connection.who, &model.backends[*id]) == Seen::Nobody;
        ensure!(candidates.iter().any(|id| unseen(&id)), "there is an address for each of {candidates:?}");
        model.connections[at].opening.as_mut().expect("nobody has answered").segments -= 1;
        return Ok(Some(Expected { outcome: Outcome::DroppedNoAddress, ..lost }));
    }
    if hint.no_port.is_none() && hint.dst == connection.answerer {
        // So few members are all looked at.
        ensure!(candidates.is_empty(), "not moved, though it should go to one of {candidates:?}");
        return Ok(None);
    }
    let is_chosen = |id: &&u32| hint.no_port.map_or(model.backends[*id].address == hint.dst, |backend| **id == backend);
    let Some(&chosen) = candidates.iter().find(is_chosen) else {
        anyhow::bail!("moved to {}, which is none of {candidates:?}", hint.dst);
    };
    let (before, _) = connection.backend.expect("a service's");
    let mut tried = opening.tried.clone();
    let left = (before, opening.refused);
    if let Some(place) = tried.iter().position(|(id, _)| *id == chosen) {
        tried[place] = left;
    } else {
        tried.push(left);
        if tried.len() > MOST_TRIED {
            tried.remove(0);
        }
    }
    let moved = u8::try_from(tried.len()).expect("few");
    let moved = Connection {
        since_s: connection.since_s,
        opening: Some(Opening {
            tried,
            moved,
            segments: 1,
            moves: opening.moves,
            reply_moves: opening.moves,
            ..Opening::default()
        }),
        ..first_packet::connection(model, asked, &service, connection.who, chosen)?
    };
    let Some(made) = settle(model, moved, false, hint)? else {
        // The packet is lost, as if the network had lost it.
        model.connections[at].opening.as_mut().expect("nobody has answered").segments -= 1;
        return Ok(Some(Expected { outcome: Outcome::DroppedNoPort, backend: chosen, ..lost }));
    };
    // The one before may answer still.
    let expected = asked.to_answerer(&made, Outcome::Retried, service.id);
    Ok(Some(expected))
}
