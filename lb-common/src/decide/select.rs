//! The first packet of a flow: look the service up, pick a slot, check that both belong together, write the flow.

use super::{Action, Hook, NotInserted, Now, Packet, Tables, Verdict, pair_key};
use crate::abi::{
    Backend, Flow, FlowKey, Service, ServiceKey, Slot, TCP, backend_flags, flow_flags, flow_state, seal, service_flags,
    tag,
};
use crate::limits::{PORT_ATTEMPTS, SERVICE_LOOKUPS, SOURCE_PORT_COUNT, SOURCE_PORT_FIRST};
use crate::outcome::Outcome;
use crate::state;

/// `None`: the destination is no service's.
#[inline(always)]
pub(super) fn select<const N: usize, T: Tables<N>>(
    tables: &mut T,
    packet: &Packet<N>,
    hook: Hook,
    outcome: Outcome,
) -> Option<Verdict<N>> {
    match pick(tables, &packet.key) {
        Picked::NoService => None,
        Picked::Torn(service) => Some(about(Action::Drop, Outcome::DroppedTorn, service)),
        Picked::Empty(service, flags) => Some(empty(packet, service, flags)),
        Picked::Backend(slot, backend) => Some(found(tables, packet, hook, outcome, &slot, &backend)),
    }
}

/// What a look-up of the service came to.
pub enum Picked<const N: usize> {
    NoService,
    /// The tables kept changing underneath; the service's id.
    Torn(u32),
    /// No endpoint; the service's id and flags.
    Empty(u32, u8),
    Backend(Slot, Backend<N>),
}

/// Looks a frontend up and picks a backend, consistent even while the agent replaces the service.
#[inline(always)]
pub fn pick<const N: usize, T: Tables<N>>(tables: &mut T, key: &FlowKey<N>) -> Picked<N> {
    let frontend = ServiceKey { address: key.dst, port: key.dst_port, protocol: key.protocol, pad: 0 };
    let mut torn = 0;
    for _ in 0..SERVICE_LOOKUPS {
        let Some(service) = tables.service(&frontend) else { return Picked::NoService };
        torn = service.id;
        if !is_whole(&frontend, &service) {
            continue;
        }
        if service.slot_count == 0 {
            return Picked::Empty(service.id, service.flags);
        }
        let index = (u64::from(tables.random()) * u64::from(service.slot_count)) >> 32;
        let Some(slot) = tables.slot(service.slot_base.wrapping_add(index as u32)) else { continue };
        if slot.service != service.id || slot.generation != service.generation {
            continue;
        }
        let Some(backend) = tables.backend(slot.backend) else { continue };
        if backend.generation != slot.backend_generation {
            continue;
        }
        return Picked::Backend(slot, backend);
    }
    Picked::Torn(torn)
}

/// Whether the value belongs to the key and was read in one piece.
#[inline(always)]
fn is_whole<const N: usize>(key: &ServiceKey<N>, service: &Service) -> bool {
    service.seal == seal(key, service.id, service.generation, service.slot_base, service.slot_count)
}

#[inline(always)]
fn empty<const N: usize>(packet: &Packet<N>, service: u32, flags: u8) -> Verdict<N> {
    if flags & service_flags::DROP_IF_EMPTY != 0 {
        return about(Action::Drop, Outcome::DroppedNoLocalEndpoint, service);
    }
    refuse(packet, Outcome::RefusedNoEndpoint, service)
}

/// A RST is never answered by a RST (RFC 9293, section 3.10.7.1).
#[inline(always)]
fn refuse<const N: usize>(packet: &Packet<N>, outcome: Outcome, service: u32) -> Verdict<N> {
    let silent = packet.key.protocol == TCP && packet.tcp_flags & state::tcp_flag::RST != 0;
    about(if silent { Action::Drop } else { Action::Refuse }, outcome, service)
}

#[inline(always)]
fn about<const N: usize>(action: Action, outcome: Outcome, service: u32) -> Verdict<N> {
    Verdict { service, ..Verdict::bare(action, outcome) }
}

/// A backend is chosen: write both directions and send the packet there.
#[inline(always)]
fn found<const N: usize, T: Tables<N>>(
    tables: &mut T,
    packet: &Packet<N>,
    hook: Hook,
    outcome: Outcome,
    slot: &Slot,
    backend: &Backend<N>,
) -> Verdict<N> {
    if hook.has(Hook::LOCAL_ONLY) && backend.flags & backend_flags::LOCAL == 0 {
        return about(Action::Pass, Outcome::HandedToTc, slot.service);
    }
    if packet.key.protocol == TCP && !state::opens(packet.tcp_flags) {
        return refuse(packet, Outcome::RefusedNoFlow, slot.service);
    }
    let now = Now::from_ns(tables.now_ns());
    let early = if hook.has(Hook::CATCH_ALL) { flow_flags::EARLY } else { 0 };
    let flow = Flow {
        tag: tag(&packet.key),
        backend: slot.backend,
        seen_s: now.s,
        address: backend.address,
        port: backend.port,
        client_port: packet.key.src_port,
        generation: backend.generation as u16,
        state: flow_state::HALF_OPEN,
        flags: early,
    };
    // Only the client's own link names its namespace.
    let taken = hook.has(Hook::FROM_CLIENT) && packet.key.protocol == TCP && {
        let direct = FlowKey { dst: backend.address, dst_port: backend.port, ..packet.key };
        tables.direct_connection(&direct)
    };
    let installed = install(tables, &packet.key, flow, taken, now);
    match installed {
        Ok(client_port) => Verdict {
            action: Action::ToBackend,
            outcome: if client_port == packet.key.src_port { outcome } else { Outcome::PortTranslated },
            route: hook.has(Hook::ROUTED),
            address: backend.address,
            port: backend.port,
            client_port,
            service: slot.service,
            backend: slot.backend,
        },
        Err(outcome) => Verdict { backend: slot.backend, ..about(Action::Drop, outcome, slot.service) },
    }
}

/// Writes the entries of both directions, under a translated source port if the tuple is taken. Returns the source port.
#[inline(always)]
pub(super) fn install<const N: usize, T: Tables<N>>(
    tables: &mut T,
    key: &FlowKey<N>,
    mut flow: Flow<N>,
    taken: bool,
    now: Now,
) -> Result<u16, Outcome> {
    let mut reply_key = pair_key(key, &flow);
    let mut reply = Flow {
        tag: tag(&reply_key),
        address: key.dst,
        port: key.dst_port,
        client_port: key.src_port,
        flags: flow.flags | flow_flags::REPLY,
        ..flow
    };
    let mut placed = !taken && reserve(tables, key, &reply_key, &reply, now)?;
    if !placed {
        let start = tables.random();
        for attempt in 0..PORT_ATTEMPTS {
            let offset = start.wrapping_add(attempt.wrapping_mul(0x9e37_79b1)) as u16 & (SOURCE_PORT_COUNT - 1);
            reply_key.dst_port = SOURCE_PORT_FIRST + offset;
            reply.tag = tag(&reply_key);
            if reserve(tables, key, &reply_key, &reply, now)? {
                placed = true;
                break;
            }
        }
        flow.client_port = reply_key.dst_port;
    }
    if !placed {
        return Err(Outcome::DroppedNoPort);
    }
    if tables.insert_flow(key, &flow, true).is_err() {
        tables.remove_flow(&reply_key);
        return Err(Outcome::DroppedTableFull);
    }
    Ok(flow.client_port)
}

/// Claims the reply tuple. `Ok(false)`: a live flow holds it.
#[inline(always)]
fn reserve<const N: usize, T: Tables<N>>(
    tables: &mut T,
    key: &FlowKey<N>,
    reply_key: &FlowKey<N>,
    reply: &Flow<N>,
    now: Now,
) -> Result<bool, Outcome> {
    match tables.insert_flow(reply_key, reply, false) {
        Ok(()) => return Ok(true),
        Err(NotInserted::Full) => return Err(Outcome::DroppedTableFull),
        Err(NotInserted::Exists) => {}
    }
    let Some((_, holder)) = tables.flow(reply_key) else { return Ok(false) };
    if holder.flags & flow_flags::REPLY == 0 {
        return Ok(false);
    }
    let holder_key = pair_key(reply_key, &holder);
    if holder_key != *key {
        if !state::expired(&holder, reply_key.protocol, now.s) {
            return Ok(false);
        }
        tables.remove_flow(&holder_key);
    }
    match tables.insert_flow(reply_key, reply, true) {
        Ok(()) => Ok(true),
        Err(_) => Err(Outcome::DroppedTableFull),
    }
}
