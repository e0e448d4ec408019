//! Passive outlier detection: what the packets say of a backend. It answered, it refused, it left unanswered what another one answered.

use super::packet::Now;
use super::tables::Tables;
use super::work::Work;
use crate::abi::{HalfOpen, Health, UDP, backend_flags};
use crate::limits::{ANSWERED_LATELY_S, PROBE_INTERVAL_S, UDP_UNANSWERED_FLOWS};
use crate::outcome::Outcome;

/// How much a backend is worth to a new connection. The order is that of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Worth {
    /// Ejected, and probed not long ago; or its checks fail.
    Shunned = 0,
    /// UDP: datagrams went there and no answer came; it may be that kind of service.
    Doubtful,
    Fit,
    /// It answered a connection lately.
    Proven,
    /// Ejected: time to probe it.
    ToProbe,
}

/// What is known of a backend with these flags.
#[inline(always)]
pub(super) fn worth<const N: usize, T: Tables<N>>(
    tables: &mut T,
    id: u32,
    generation: u32,
    flags: u8,
    protocol: u8,
    now_s: u32,
) -> Worth {
    if flags & backend_flags::QUARANTINED != 0 {
        return Worth::Shunned;
    }
    let Some(health) = tables.health(id, generation) else { return Worth::Fit };
    if health.suspect_s != 0 {
        let last_s = if health.probe_s > health.suspect_s { health.probe_s } else { health.suspect_s };
        return if now_s.saturating_sub(last_s) >= PROBE_INTERVAL_S { Worth::ToProbe } else { Worth::Shunned };
    }
    if protocol == UDP && health.unanswered >= UDP_UNANSWERED_FLOWS {
        return Worth::Doubtful;
    }
    let lately = health.answered_s != 0 && now_s.saturating_sub(health.answered_s) <= ANSWERED_LATELY_S;
    if lately { Worth::Proven } else { Worth::Fit }
}

/// Whether new connections avoid this backend.
#[inline(always)]
pub fn is_suspect<const N: usize, T: Tables<N>>(tables: &mut T, id: u32, generation: u32) -> bool {
    tables.health(id, generation).is_some_and(|health| health.suspect_s != 0)
}

/// The backend is ejected from now on, if it was not: it refused a connection, or left unanswered what another one answered.
#[inline(never)]
pub fn accuse<const N: usize, T: Tables<N>>(tables: &mut T, id: u32, generation: u32, now: Now) {
    let Some(health) = tables.health(id, generation) else { return };
    if health.suspect_s == 0 {
        // Zero says that it is none.
        tables.set_health(id, &Health { suspect_s: if now.s == 0 { 1 } else { now.s }, ..health });
        tables.note(id, Outcome::Suspected);
    }
}

/// The backend answered a connection's first packet: it is ejected no more.
#[inline(never)]
pub fn answered<const N: usize, T: Tables<N>>(tables: &mut T, id: u32, generation: u32, now: Now) {
    let Some(health) = tables.health(id, generation) else { return };
    if health.answered_s == now.s && health.suspect_s == 0 && health.unanswered == 0 {
        return;
    }
    tables.set_health(id, &Health { answered_s: now.s, suspect_s: 0, unanswered: 0, ..health });
    if health.suspect_s != 0 {
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
    let Some(health) = tables.health(id, generation) else { return };
    let probe_s = if is_probe { now.s } else { health.probe_s };
    let unanswered = if is_udp { health.unanswered.saturating_add(1) } else { health.unanswered };
    tables.set_health(id, &Health { probe_s, unanswered, ..health });
}

/// A backend answered this handshake. Those that left it unanswered, and have answered nobody since it began, are ejected.
#[inline(never)]
pub(super) fn accuse_silent<const N: usize, T: Tables<N>>(tables: &mut T, original: &HalfOpen<N>, now: Now) {
    let mut i = 0;
    while i < original.tried.len() {
        let id = original.tried[i];
        i += 1;
        if id == 0 {
            continue;
        }
        let Some(backend) = tables.backend(id) else { continue };
        let Some(health) = tables.health(id, backend.generation) else { continue };
        if health.answered_s == 0 || health.answered_s < original.flow.since_s {
            accuse(tables, id, backend.generation, now);
        }
    }
}
