//! Passive health of backends: which answered, which refused, which left unanswered what another backend answered.

use anyhow::{Result, ensure};
use lb_common::outcome::Outcome;

use super::model::{Health, Model};
use super::rules::{Asked, Hint};
use super::wire::Protocol;

/// A suspect backend is asked again after so many seconds.
const PROBE_S: u32 = 10;
/// UDP flows without an answer that make a backend doubtful.
const DOUBTFUL: u32 = 3;
/// Who answered within so many seconds has answered lately.
const LATELY_S: u32 = 30;

/// A new connection goes to this backend; whether that is to see if it answers again.
pub fn begin(model: &mut Model, chosen: u32, protocol: Protocol, usable: &[u32]) -> Result<bool> {
    let now_s = model.now_s;
    let health = model.health(chosen);
    let asked_s = health.probe_s.max(health.suspect_s);
    let due = asked_s.is_some_and(|asked_s| now_s.saturating_sub(asked_s) >= PROBE_S) && health.suspect_s.is_some();
    if health.suspect_s.is_some() && !due {
        // So few members are all looked at.
        let other = usable.iter().find(|other| model.health(**other).suspect_s.is_none());
        ensure!(other.is_none(), "backend {chosen} is suspect, and {other:?} is not");
    }
    let unanswered = health.unanswered + u32::from(protocol == Protocol::Udp);
    let probe_s = if due { Some(now_s) } else { health.probe_s };
    if protocol == Protocol::Udp || due {
        model.health.insert(chosen, Health { probe_s, unanswered, ..health });
    }
    Ok(due)
}

/// Flows went to a backend and no answer came, while one of `winners`, which was picked instead, answers: it is suspect.
pub fn doubt(model: &mut Model, asked: Asked, hint: Hint, winners: &[u32]) -> Result<Vec<(u32, Outcome)>> {
    let Some(doubtful) = hint.suspected else { return Ok(Vec::new()) };
    let now_s = model.now_s;
    let health = model.health(doubtful);
    let in_doubt = asked.protocol == Protocol::Udp && health.suspect_s.is_none() && health.unanswered >= DOUBTFUL;
    let proven = |id: &u32| {
        let answered_s = model.health(*id).answered_s;
        answered_s.is_some_and(|answered_s| now_s.saturating_sub(answered_s) <= LATELY_S)
    };
    ensure!(in_doubt && winners.iter().any(proven), "backend {doubtful} was suspected for nothing");
    model.health.insert(doubtful, Health { suspect_s: Some(now_s), ..health });
    Ok(vec![(doubtful, Outcome::Suspected)])
}

/// The backend is suspect from now on, if it was not.
pub fn suspects(model: &mut Model, id: u32) -> Vec<(u32, Outcome)> {
    let health = model.health(id);
    if health.suspect_s.is_some() {
        return Vec::new();
    }
    model.health.insert(id, Health { suspect_s: Some(model.now_s), ..health });
    vec![(id, Outcome::Suspected)]
}

/// The backend has answered a connection's first packet.
pub fn hears(model: &mut Model, id: u32) -> Vec<(u32, Outcome)> {
    let health = model.health(id);
    let cleared = Health { answered_s: Some(model.now_s), suspect_s: None, unanswered: 0, ..health };
    model.health.insert(id, cleared);
    if health.suspect_s.is_some() { vec![(id, Outcome::Cleared)] } else { Vec::new() }
}
