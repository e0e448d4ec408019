//! Passive outlier detection: what the packets say of a backend. It answered, or it left unanswered or refused what another one answered.
//!
//! One client's evidence keeps only that client away. A second client's, within [`EVIDENCE_S`], ejects the backend for all, if at least half of
//! the service's backends stay. An answer to anybody refutes all of it. Connects of processes cannot be moved: they heed everybody's evidence.

use super::frontend::{asked, frontend};
use super::packet::Now;
use super::tables::Tables;
use super::work::Work;
use crate::abi::{FlowKey, Health, Service, UDP, backend_flags, client_tag, half_open_flags};
use crate::limits::{
    ANSWERED_LATELY_S, EJECTION_SLOTS, EVIDENCE_S, PROBE_INTERVAL_S, UDP_ANSWER_S, UDP_UNANSWERED_FLOWS,
};
use crate::outcome::Outcome;

/// How much a backend is worth to a new connection. The order is that of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Worth {
    /// Ejected, and probed not long ago; or its checks fail; or the client has evidence of its own.
    Shunned = 0,
    /// UDP: datagrams of several clients went there and no answer came; it may be that kind of service.
    EjectionCandidate,
    Fit,
    /// It answered a connection lately.
    Proven,
    /// Ejected: time to probe it.
    ToProbe,
}

/// In place of a client's hash: evidence of any client counts. For a connection that nobody can move to another backend.
pub(super) const ANY_CLIENT: u32 = 0;

/// The hash of the client of a packet with this tuple.
#[inline(always)]
pub(super) fn client_of<const N: usize>(key: &FlowKey<N>, service: &Service) -> u32 {
    client_tag(&key.src, service.id, 0)
}

/// Whether there is evidence of some client that is not forgotten.
#[inline(always)]
const fn has_evidence(health: &Health, now_s: u32) -> bool {
    health.evidence_client != 0 && now_s.saturating_sub(health.evidence_s) <= EVIDENCE_S
}

/// Whether the evidence is this client's.
#[inline(always)]
const fn is_of(health: &Health, client: u32) -> bool {
    client == ANY_CLIENT || health.evidence_client == client
}

/// Whether that evidence counts: UDP queries may still be under way.
#[inline(always)]
const fn counts(health: &Health, protocol: u8, now_s: u32) -> bool {
    has_evidence(health, now_s) && (protocol != UDP || now_s.saturating_sub(health.evidence_s) >= UDP_ANSWER_S)
}

/// What is known of a backend with these flags to a client with this hash.
#[inline(always)]
pub(super) fn worth<const N: usize, T: Tables<N>>(
    tables: &mut T,
    (id, generation, flags): (u32, u32, u8),
    (client, protocol): (u32, u8),
    now_s: u32,
) -> Worth {
    if flags & backend_flags::UNHEALTHY != 0 {
        return Worth::Shunned;
    }
    let Some(health) = tables.health(id, generation) else { return Worth::Fit };
    if health.ejected_s != 0 {
        let last_s = if health.probe_s > health.ejected_s { health.probe_s } else { health.ejected_s };
        return if now_s.saturating_sub(last_s) >= PROBE_INTERVAL_S { Worth::ToProbe } else { Worth::Shunned };
    }
    if counts(&health, protocol, now_s) {
        if protocol == UDP && health.unanswered >= UDP_UNANSWERED_FLOWS {
            return Worth::EjectionCandidate;
        }
        if is_of(&health, client) {
            return Worth::Shunned;
        }
    }
    let lately = health.answered_s != 0 && now_s.saturating_sub(health.answered_s) <= ANSWERED_LATELY_S;
    if lately { Worth::Proven } else { Worth::Fit }
}

/// Whether the backend is ejected for all.
#[inline(always)]
pub(super) fn is_ejected<const N: usize, T: Tables<N>>(tables: &mut T, id: u32, generation: u32) -> bool {
    tables.health(id, generation).is_some_and(|health| health.ejected_s != 0)
}

/// Whether a client with this hash avoids the backend: it is ejected, or the client has evidence of its own.
#[inline(always)]
pub(super) fn is_avoided<const N: usize, T: Tables<N>>(
    tables: &mut T,
    id: u32,
    generation: u32,
    (client, protocol): (u32, u8),
    now_s: u32,
) -> bool {
    tables
        .health(id, generation)
        .is_some_and(|health| health.ejected_s != 0 || (is_of(&health, client) && counts(&health, protocol, now_s)))
}

/// The backend is ejected from now on, if at least half of its service's stay. `false`: they would not.
#[inline(always)]
pub(super) fn eject<const N: usize, T: Tables<N>>(
    tables: &mut T,
    service: &Service,
    id: u32,
    generation: u32,
    now: Now,
) -> bool {
    let Some(health) = tables.health(id, generation) else { return false };
    if health.ejected_s != 0 || !tables.leaves_half(service.slot_base, service.slot_count, id) {
        return health.ejected_s != 0;
    }
    // Zero says that it is none.
    tables.set_health(id, &Health { ejected_s: if now.s == 0 { 1 } else { now.s }, ..health });
    tables.note(id, Outcome::Ejected);
    true
}

/// Whether at least half of a service's slots lead to backends that are not ejected, without this one. Of many slots, some are read.
///
/// The programs have it as a function that is verified once and by itself ([`Tables::leaves_half`]).
#[inline(always)]
pub fn leaves_half<const N: usize, T: Tables<N>>(tables: &mut T, base: u32, count: u32, id: u32) -> bool {
    let step = count / EJECTION_SLOTS + 1;
    let (mut looked, mut ejected) = (0, 0);
    for i in 0..EJECTION_SLOTS {
        let position = i * step;
        if position >= count {
            break;
        }
        looked += 1;
        ejected += u32::from(tables.is_out(base.wrapping_add(position), id));
    }
    ejected * 2 <= looked
}

/// Whether the slot leads to this backend, or to one that is ejected.
///
/// The programs have it as a function that is verified once and by itself ([`Tables::is_out`]).
#[inline(always)]
pub fn is_out<const N: usize, T: Tables<N>>(tables: &mut T, index: u32, id: u32) -> bool {
    let Some(slot) = tables.slot(index) else { return false };
    if slot.backend == id {
        return true;
    }
    // One condition after the other: of two in one expression the compiler may test both, also what was never read. The verifier refuses that.
    let Some(health) = tables.health(slot.backend, slot.backend_generation) else { return false };
    health.ejected_s != 0
}

/// A client with this hash has evidence against the backend.
#[inline(always)]
fn add_evidence<const N: usize, T: Tables<N>>(
    tables: &mut T,
    service: &Service,
    id: u32,
    generation: u32,
    client: u32,
    now: Now,
) {
    let Some(health) = tables.health(id, generation) else { return };
    let is_second = has_evidence(&health, now.s) && health.evidence_client != client;
    if health.ejected_s == 0 && !(is_second && eject(tables, service, id, generation, now)) {
        tables.set_health(id, &Health { evidence_client: client, evidence_s: now.s, ..health });
    }
}

/// The connect of a process to this backend was refused, or its SYN was sent again: evidence of this node's processes, if the backend has answered
/// nobody for a second. Nobody moves such a connection, so none shows that another backend answers: this alone ejects nothing.
#[inline(always)]
pub fn failed<const N: usize, T: Tables<N>>(tables: &mut T, service: u32, id: u32, generation: u32, now: Now) {
    let Some(health) = tables.health(id, generation) else { return };
    let is_silent = health.answered_s == 0 || health.answered_s.saturating_add(1) < now.s;
    if is_silent && health.ejected_s == 0 && !has_evidence(&health, now.s) {
        let evidence_client = client_tag(&[0; N], service, 0);
        tables.set_health(id, &Health { evidence_client, evidence_s: now.s, ..health });
    }
}

/// The backend answered a connection's first packet: nothing speaks against it any more.
#[inline(never)]
pub fn answered<const N: usize, T: Tables<N>>(tables: &mut T, id: u32, generation: u32, now: Now) {
    let Some(health) = tables.health(id, generation) else { return };
    if health.answered_s == now.s && health.ejected_s == 0 && health.evidence_client == 0 {
        return;
    }
    let clear = Health { answered_s: now.s, ejected_s: 0, unanswered: 0, evidence_client: 0, evidence_s: 0, ..health };
    tables.set_health(id, &clear);
    if health.ejected_s != 0 {
        tables.note(id, Outcome::Cleared);
    }
}

/// A new connection goes to the backend in `work.pick`.
#[inline(always)]
pub(super) fn begun<const N: usize, T: Tables<N>>(tables: &mut T, work: &Work<N>, now: Now) {
    let (id, generation) = (work.pick.slot.backend, work.pick.backend.generation);
    let is_udp = work.packet.key.protocol == UDP;
    let is_probe = work.pick.probes != 0;
    if !is_udp && !is_probe {
        return;
    }
    let Some(mut health) = tables.health(id, generation) else { return };
    if is_probe {
        health.probe_s = now.s;
    }
    let client = client_of(&work.packet.key, &work.pick.service);
    if is_udp && !has_evidence(&health, now.s) {
        (health.evidence_client, health.evidence_s, health.unanswered) = (client, now.s, 1);
    } else if is_udp && health.evidence_client != client {
        health.unanswered = health.unanswered.saturating_add(1);
    }
    tables.set_health(id, &health);
}

/// A backend answered the connection in `work`: its client has evidence against those that were tried before, and have answered nobody since
/// it began.
///
/// The programs have it as a function that is verified once and by itself ([`Tables::note_tried`]).
#[inline(always)]
pub fn note_tried<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, now_ds: u32) {
    let Work { pick, connection, .. } = work;
    let (key, original) = (&connection.original_key, &connection.original);
    if original.flags & half_open_flags::EXCUSED != 0 || !frontend(tables, &asked(key), &mut pick.service) {
        return;
    }
    let client = client_of(key, &pick.service);
    let mut i = 0;
    while i < original.tried.len() {
        let id = original.tried[i];
        i += 1;
        if id == 0 {
            continue;
        }
        let Some(backend) = tables.backend(id) else { continue };
        let Some(health) = tables.health(id, backend.generation) else { continue };
        let is_silent = health.answered_s == 0 || health.answered_s < original.flow.since_s;
        if is_silent && backend.service == pick.service.id {
            add_evidence(tables, &pick.service, id, backend.generation, client, Now::from_ds(now_ds));
        }
    }
}
