//! The first packet of a flow: look the service up, pick a slot, check that both belong together, write the flow.

use super::client::{Admission, Client, admission};
use super::{Action, Hook, NotInserted, Now, Tables, Work, forget_owner, pair_key, schedule};
use crate::abi::{
    Backend, Flow, FlowKey, Service, ServiceKey, Slot, TCP, backend_flags, flow_flags, flow_state, seal, service_flags,
    tag,
};
use crate::limits::{PORT_ATTEMPTS, SERVICE_LOOKUPS, SOURCE_PORT_COUNT, SOURCE_PORT_FIRST};
use crate::outcome::Outcome;
use crate::state;

/// Decides, unless the destination is no service's, or no service of this client's.
#[inline(always)]
pub(super) fn select<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> Picked {
    let picked = pick(tables, &work.packet.key, Client::at(hook), &mut work.pick);
    if picked == Picked::NoService || picked == Picked::NotServed {
        return picked;
    }
    work.verdict.service = work.pick.service.id;
    match picked {
        Picked::Denied => work.settle(Action::Drop, Outcome::DroppedSourceRange),
        Picked::Empty if work.pick.service.flags & service_flags::DROP_IF_EMPTY != 0 => {
            work.settle(Action::Drop, Outcome::DroppedNoLocalEndpoint);
        }
        Picked::Empty => refuse(work, Outcome::RefusedNoEndpoint),
        Picked::Backend => found(tables, work, hook),
        _ => work.settle(Action::Drop, Outcome::DroppedTorn),
    }
    picked
}

/// What a look-up of a service came to; the records are in the [`Pick`]. A plain number: what a variant would hold and another
/// one would not, the compiler may copy all the same, and the verifier refuses to read what nobody wrote.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Picked {
    /// No frontend has this address and port.
    NoService = 0,
    /// A frontend has, but it serves no such client.
    NotServed,
    /// The client is in none of the service's source ranges.
    Denied,
    /// The tables kept changing underneath.
    Torn,
    /// The service has no endpoint.
    Empty,
    /// [`Pick::slot`] and [`Pick::backend`] hold one.
    Backend,
}

/// Where a look-up leaves what it found.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick<const N: usize> {
    /// Valid unless [`Picked::NoService`]; if [`Picked::Torn`], only its id, for the counters.
    pub service: Service,
    pub slot: Slot,
    pub backend: Backend<N>,
}

impl<const N: usize> Pick<N> {
    /// Nothing found yet.
    pub const NONE: Self = Self {
        service: Service {
            id: 0,
            generation: 0,
            slot_base: 0,
            slot_count: 0,
            outside_base: 0,
            outside_count: 0,
            seal: 0,
            affinity_timeout_s: 0,
            scheduler: 0,
            flags: 0,
            kind: 0,
            pad: 0,
        },
        slot: Slot { backend: 0, generation: 0, service: 0, backend_generation: 0 },
        backend: Backend {
            address: [0; N],
            port: 0,
            state: 0,
            flags: 0,
            generation: 0,
            service: 0,
            deadline_ds: 0,
            uid_hash: 0,
            weight: 0,
            pad: 0,
        },
    };
}

/// Looks a frontend up for this client and picks a backend of the set that serves clients inside, consistent even while the agent
/// replaces the service.
#[inline(always)]
pub fn pick<const N: usize, T: Tables<N>>(
    tables: &mut T,
    key: &FlowKey<N>,
    client: Client,
    pick: &mut Pick<N>,
) -> Picked {
    let frontend = ServiceKey { address: key.dst, port: key.dst_port, protocol: key.protocol, pad: 0 };
    for _ in 0..SERVICE_LOOKUPS {
        if !tables.service(&frontend, &mut pick.service) {
            return Picked::NoService;
        }
        if !is_whole(&frontend, &pick.service) {
            continue;
        }
        match admission(tables, &pick.service, key, client) {
            Admission::Served => {}
            Admission::NotServed => return Picked::NotServed,
            Admission::Denied => return Picked::Denied,
        }
        if pick.service.slot_count == 0 {
            return Picked::Empty;
        }
        let position = schedule::position(tables, &pick.service, key, 0);
        let Some(slot) = tables.slot(pick.service.slot_base.wrapping_add(position)) else { continue };
        if slot.service != pick.service.id || slot.generation != pick.service.generation {
            continue;
        }
        pick.slot = slot;
        let Some(backend) = tables.backend(slot.backend) else { continue };
        if backend.generation != slot.backend_generation {
            continue;
        }
        pick.backend = backend;
        return Picked::Backend;
    }
    Picked::Torn
}

/// Whether the value belongs to the key and was read in one piece.
#[inline(always)]
fn is_whole<const N: usize>(key: &ServiceKey<N>, service: &Service) -> bool {
    service.seal == seal(key, service)
}

/// A RST is never answered by a RST (RFC 9293, section 3.10.7.1).
#[inline(always)]
fn refuse<const N: usize>(work: &mut Work<N>, outcome: Outcome) {
    let silent = work.packet.key.protocol == TCP && work.packet.tcp_flags & state::tcp_flag::RST != 0;
    work.settle(if silent { Action::Drop } else { Action::Refuse }, outcome);
}

/// A backend is chosen: write both directions and send the packet there.
#[inline(always)]
fn found<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) {
    let (slot, backend) = (work.pick.slot, &work.pick.backend);
    if hook.has(Hook::LOCAL_ONLY) && backend.flags & backend_flags::LOCAL == 0 {
        return work.settle(Action::Pass, Outcome::HandedToTc);
    }
    let is_tcp = work.packet.key.protocol == TCP;
    if is_tcp && !state::opens(work.packet.tcp_flags) {
        return refuse(work, Outcome::RefusedNoFlow);
    }
    let now = Now::from_ns(tables.now_ns());
    work.flow = Flow {
        tag: tag(&work.packet.key),
        backend: slot.backend,
        seen_s: now.s,
        since_s: now.s,
        isn: 0,
        address: backend.address,
        port: backend.port,
        client_port: work.packet.key.src_port,
        generation: backend.generation as u16,
        state: flow_state::HALF_OPEN,
        flags: if hook.has(Hook::CATCH_ALL) { flow_flags::EARLY } else { 0 },
    };
    // Only the client's own link names its namespace.
    let sockets = hook.has(Hook::FROM_CLIENT) && is_tcp;
    match install(tables, work, true, sockets, now) {
        Ok(()) => {
            let own = work.flow.client_port == work.packet.key.src_port;
            let outcome = if own { work.beginning } else { Outcome::PortTranslated };
            work.rewrite(Action::ToBackend, outcome, hook.has(Hook::ROUTED));
        }
        Err(outcome) => {
            work.settle(Action::Drop, outcome);
            work.verdict.backend = slot.backend;
        }
    }
}

/// Writes `work.flow` and the entry of the other direction, under a translated source port if the client's own is taken or not
/// to be kept. `sockets`: what the client's own TCP sockets hold is taken, too.
#[inline(always)]
pub(super) fn install<const N: usize, T: Tables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    keep_port: bool,
    sockets: bool,
    now: Now,
) -> Result<(), Outcome> {
    work.pair_key = pair_key(&work.packet.key, &work.flow);
    work.pair = Flow {
        tag: tag(&work.pair_key),
        address: work.packet.key.dst,
        port: work.packet.key.dst_port,
        client_port: work.packet.key.src_port,
        flags: work.flow.flags | flow_flags::REPLY,
        ..work.flow
    };
    let mut placed = keep_port && reserve(tables, work, sockets, now)?;
    if !placed {
        let start = tables.random();
        for attempt in 0..PORT_ATTEMPTS {
            let offset = start.wrapping_add(attempt.wrapping_mul(0x9e37_79b1)) as u16 & (SOURCE_PORT_COUNT - 1);
            work.pair_key.dst_port = SOURCE_PORT_FIRST + offset;
            work.pair.tag = tag(&work.pair_key);
            if reserve(tables, work, sockets, now)? {
                placed = true;
                break;
            }
        }
        work.flow.client_port = work.pair_key.dst_port;
    }
    if !placed {
        return Err(Outcome::DroppedNoPort);
    }
    if tables.insert_flow(&work.packet.key, &work.flow, true).is_err() {
        tables.remove_flow(&work.pair_key);
        return Err(Outcome::DroppedTableFull);
    }
    Ok(())
}

/// Claims the reply tuple for `work.pair`. `Ok(false)`: a live flow, or a socket of the client's own, holds it.
///
/// A function of its own: it is tried once per source port, and the verifier would walk every copy.
#[inline(never)]
fn reserve<const N: usize, T: Tables<N>>(
    tables: &mut T,
    work: &mut Work<N>,
    sockets: bool,
    now: Now,
) -> Result<bool, Outcome> {
    if sockets && tables.direct_connection(&work.pair_key) {
        return Ok(false);
    }
    match tables.insert_flow(&work.pair_key, &work.pair, false) {
        Ok(()) => return Ok(true),
        Err(NotInserted::Full) => return Err(Outcome::DroppedTableFull),
        Err(NotInserted::Exists) => {}
    }
    if tables.flow(&work.pair_key, &mut work.other).is_none() {
        return Ok(false);
    }
    let holder = &work.other;
    if holder.flags & flow_flags::REPLY == 0 {
        return Ok(false);
    }
    work.owner = pair_key(&work.pair_key, holder);
    if work.owner != work.packet.key {
        let timeout_s = tables.timeout_s(work.owner.protocol, holder.state);
        if !state::yields(holder, timeout_s, now.s) {
            return Ok(false);
        }
        forget_owner(tables, work);
    }
    match tables.insert_flow(&work.pair_key, &work.pair, true) {
        Ok(()) => Ok(true),
        Err(_) => Err(Outcome::DroppedTableFull),
    }
}
