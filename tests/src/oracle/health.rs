//! Passive health of backends: which answered, which left unanswered or refused what another backend answered, and to whom that matters.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use lb_common::outcome::Outcome;

use super::model::{Health, Model, Service};
use super::rules::{Asked, Hint};
use super::wire::Protocol;

/// An ejected backend is asked again after so many seconds.
const PROBE_S: u32 = 10;
/// UDP flows without an answer that speak against a backend.
const CANDIDATE_FLOWS: u32 = 3;
/// A UDP flow is unanswered after so many seconds.
const UDP_DUE_S: u32 = 3;
/// Who answered within so many seconds has answered lately.
const LATELY_S: u32 = 30;
/// What a client has met counts for so many seconds.
const EVIDENCE_S: u32 = 60;

/// Who has met the backend silent, while that counts.
fn witness(model: &Model, health: Health) -> Option<IpAddr> {
    let (who, since_s) = health.evidence_client?;
    (model.now_s.saturating_sub(since_s) <= EVIDENCE_S).then_some(who)
}

/// Whether its UDP flows have waited long enough.
fn is_due(model: &Model, health: Health) -> bool {
    health.evidence_client.is_some_and(|(_, since_s)| model.now_s.saturating_sub(since_s) >= UDP_DUE_S)
}

/// Whether the flows of several clients went to a UDP backend in vain.
fn is_candidate(model: &Model, health: Health) -> bool {
    witness(model, health).is_some() && is_due(model, health) && health.unanswered >= CANDIDATE_FLOWS
}

/// Whether the client avoids the backend: all do, or it has met it silent itself.
pub fn shuns(model: &Model, id: u32, client: IpAddr, protocol: Protocol) -> bool {
    let health = model.health(id);
    let is_own = witness(model, health) == Some(client);
    let counts = protocol == Protocol::Tcp || (is_due(model, health) && !is_candidate(model, health));
    health.ejected_s.is_some() || (is_own && counts)
}

/// A new connection of the client goes to this backend; whether that is to see if it answers again.
/// `probes`: an ejected one may be asked again.
pub fn begin(model: &mut Model, chosen: u32, asked: Asked, usable: &[u32], probes: bool) -> Result<bool> {
    let (now_s, client, is_udp) = (model.now_s, asked.src.ip(), asked.protocol == Protocol::Udp);
    let health = model.health(chosen);
    let asked_s = health.probe_s.max(health.ejected_s);
    let due =
        probes && asked_s.is_some_and(|asked_s| now_s.saturating_sub(asked_s) >= PROBE_S) && health.ejected_s.is_some();
    if shuns(model, chosen, client, asked.protocol) && !due {
        // So few members are all looked at.
        let other = usable.iter().find(|other| !shuns(model, **other, client, asked.protocol));
        ensure!(other.is_none(), "{client} avoids backend {chosen}, and not {other:?}");
    }
    let mut after = health;
    if due {
        after.probe_s = Some(now_s);
    }
    match witness(model, health) {
        _ if !is_udp => {}
        None => (after.evidence_client, after.unanswered) = (Some((client, now_s)), 1),
        Some(first) => after.unanswered += u32::from(first != client),
    }
    if is_udp || due {
        model.health.insert(chosen, after);
    }
    Ok(due)
}

/// Flows of several clients went to a backend and no answer came, while one of `winners`, which was picked instead, answers: it is ejected.
pub fn doubt(
    model: &mut Model,
    asked: Asked,
    hint: Hint,
    members: &[(u32, u32)],
    winners: &[u32],
) -> Result<Vec<(u32, Outcome)>> {
    let Some(candidate) = hint.ejected else { return Ok(Vec::new()) };
    let now_s = model.now_s;
    let health = model.health(candidate);
    let in_doubt = asked.protocol == Protocol::Udp && health.ejected_s.is_none() && is_candidate(model, health);
    let proven = |id: &u32| {
        let answered_s = model.health(*id).answered_s;
        answered_s.is_some_and(|answered_s| now_s.saturating_sub(answered_s) <= LATELY_S)
    };
    ensure!(in_doubt && winners.iter().any(proven), "backend {candidate} was ejected for nothing");
    ensure!(leaves_half(model, members, candidate), "backend {candidate} was ejected, and less than half stay");
    model.health.insert(candidate, Health { ejected_s: Some(now_s), ..health });
    Ok(vec![(candidate, Outcome::Ejected)])
}

/// Whether at least half of the members stay without this one.
fn leaves_half(model: &Model, members: &[(u32, u32)], id: u32) -> bool {
    let is_out = |&&(member, generation): &&(u32, u32)| {
        let known = model.health.get(&member).copied().unwrap_or_default();
        member == id || (known.generation == generation && known.ejected_s.is_some())
    };
    members.iter().filter(is_out).count() * 2 <= members.len()
}

/// The client has met the backend silent, and another one answered.
pub fn add_evidence(model: &mut Model, service: &Service, id: u32, client: IpAddr) -> Vec<(u32, Outcome)> {
    let health = model.health(id);
    if health.ejected_s.is_some() {
        return Vec::new();
    }
    let is_second = witness(model, health).is_some_and(|first| first != client);
    if is_second && leaves_half(model, &service.members, id) {
        model.health.insert(id, Health { ejected_s: Some(model.now_s), ..health });
        return vec![(id, Outcome::Ejected)];
    }
    model.health.insert(id, Health { evidence_client: Some((client, model.now_s)), ..health });
    Vec::new()
}

/// The backend has answered a connection's first packet.
pub fn hears(model: &mut Model, id: u32) -> Vec<(u32, Outcome)> {
    let health = model.health(id);
    let cleared =
        Health { answered_s: Some(model.now_s), ejected_s: None, unanswered: 0, evidence_client: None, ..health };
    model.health.insert(id, cleared);
    if health.ejected_s.is_some() { vec![(id, Outcome::Cleared)] } else { Vec::new() }
}
