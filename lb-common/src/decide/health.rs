//! What the packets say of a backend: it answered, it refused, it left unanswered what another one answered.

use super::{Now, Tables, Work};
use crate::abi::{Health, UDP, backend_flags};
use crate::limits::{ANSWERED_LATELY_S, PROBE_INTERVAL_S, UDP_UNANSWERED_FLOWS};
use crate::outcome::Outcome;

/// How much a backend is worth to a new flow. The order is that of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Worth {
    /// Suspect, and probed not long ago; or its checks fail.
    Shunned = 0,
    /// UDP: flows went there and no answer came; it may be that kind of service.
    Doubtful,
    Fit,
    /// It answered a flow lately.
    Proven,
    /// Suspect: time to see whether it answers again.
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

/// Whether new flows avoid this backend.
#[inline(always)]
pub fn is_suspect<const N: usize, T: Tables<N>>(tables: &mut T, id: u32, generation: u32) -> bool {
    tables.health(id, generation).is_some_and(|health| health.suspect_s != 0)
}

/// The backend is suspect from now on, if it was not: it refused a flow, or left unanswered what another one answered.
#[inline(never)]
pub fn accuse<const N: usize, T: Tables<N>>(tables: &mut T, id: u32, generation: u32, now: Now) {
    let Some(health) = tables.health(id, generation) else { return };
    if health.suspect_s == 0 {
        // Zero says that it is none.
        tables.set_health(id, &Health { suspect_s: if now.s == 0 { 1 } else { now.s }, ..health });
        tables.note(id, Outcome::Suspected);
    }
}

/// The backend answered a flow's first packet: it is suspect no more.
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

/// A new flow goes to the backend in `work.pick`.
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

/// Somebody answered the half-open flow `work.pair_half`: who left it unanswered, and has answered nobody since it began, is suspect.
#[inline(never)]
pub(super) fn accuse_silent<const N: usize, T: Tables<N>>(tables: &mut T, work: &Work<N>, now: Now) {
    let half = &work.pair_half;
    let mut i = 0;
    while i < half.tried.len() {
        let id = half.tried[i];
        i += 1;
        if id == 0 {
            continue;
        }
        let Some(backend) = tables.backend(id) else { continue };
        let Some(health) = tables.health(id, backend.generation) else { continue };
        if health.answered_s == 0 || health.answered_s < half.flow.since_s {
            accuse(tables, id, backend.generation, now);
        }
    }
}
