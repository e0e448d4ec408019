//! The first packet of a flow: which backend it may go to, under which port, and what becomes of connections in its way.

use anyhow::{Result, ensure};
use lb_common::outcome::Outcome;

use super::rules::{Asked, Expected, Fate, Hint, PASS};
use super::wire::Protocol;
use super::world::{Connection, Ended, Half, Kind, State, Torn, World};
use crate::live::Hook;

/// Translated source ports come from here.
const TRANSLATED: std::ops::Range<u16> = 61_000..65_096;

/// The first packet of a flow. `None`: not for a service.
pub fn open(world: &mut World, asked: Asked, why: Outcome, hint: Hint) -> Result<Option<Expected>> {
    let Some(service) = world.services.get(&(asked.dst, asked.protocol)) else { return Ok(None) };
    let id = service.id;
    let drop = |outcome| Expected { fate: Fate::Drop, outcome, service: id, backend: 0 };
    if service.torn == Torn::Entry {
        return Ok(Some(drop(Outcome::DroppedTorn)));
    }
    if service.kind != Kind::ClusterIp {
        // Nobody serves clients outside there yet, and who comes by another link than a pod's own may be one.
        if asked.hook != Hook::PodIn {
            return Ok(None);
        }
        if !service.admits(asked.src.ip()) {
            return Ok(Some(drop(Outcome::DroppedSourceRange)));
        }
    }
    if service.members.is_empty() {
        return Ok(Some(if service.drop_if_empty {
            drop(Outcome::DroppedNoLocalEndpoint)
        } else {
            asked.refuse(Outcome::RefusedNoEndpoint, id, 0)
        }));
    }
    let stale = |&(backend, generation): &(u32, u32)| world.backends[&backend].generation != generation;
    let torn = service.torn != Torn::Whole || service.members.iter().all(stale);
    if torn || (hint.torn && service.members.iter().any(stale)) {
        return Ok(Some(drop(Outcome::DroppedTorn)));
    }
    let usable: Vec<u32> =
        service.members.iter().filter(|member| !stale(member)).map(|&(backend, _)| backend).collect();
    let fits = |backend: &&u32| asked.hook != Hook::Xdp || world.backends[*backend].local;
    let handed = Expected { outcome: Outcome::HandedToTc, ..PASS };
    if asked.hook == Hook::Xdp && !hint.dropped && hint.dst == asked.dst && !usable.iter().all(|backend| fits(&backend))
    {
        return Ok(Some(handed)); // A backend that is not on this node was picked.
    }
    if !asked.opens_or_udp() {
        ensure!(usable.iter().any(|backend| fits(&backend)), "refused for backends that are not on this node");
        return Ok(Some(asked.refuse(Outcome::RefusedNoFlow, id, 0)));
    }
    let chosen = usable.iter().filter(fits).find(|backend| world.backends[backend].address == hint.dst);
    let Some(&chosen) = chosen else {
        anyhow::bail!("sent to {}, which is no usable backend of service {id}: {usable:?}", hint.dst);
    };
    let backend = &world.backends[&chosen];
    let connection = Connection {
        protocol: asked.protocol,
        client: asked.src,
        target: asked.dst,
        answerer: backend.address,
        backend: Some((chosen, backend.generation)),
        port: asked.src.port(),
        early: asked.catches_all(),
        forward: None,
        reply: None,
    };
    let made = settle(world, connection, false, hint)?;
    let outcome = if made.port == asked.src.port() { why } else { Outcome::PortTranslated };
    Ok(Some(asked.to_answerer(&made, outcome, id)))
}

/// Writes a new connection down, under a translated port if another live one has its replies.
fn settle(world: &mut World, mut connection: Connection, taken: bool, hint: Hint) -> Result<Connection> {
    let is_free = |world: &World, connection: &Connection| {
        let holder = world.answered(connection.protocol, connection.answerer, connection.seen_client());
        holder.is_none_or(|at| {
            let holder = &world.connections[at];
            let same = holder.client == connection.client && holder.target == connection.target;
            same || holder.yields(holder.reply.expect("answered"), world.now_s)
        })
    };
    if taken || !is_free(world, &connection) {
        connection.port = hint.src.port();
        ensure!(TRANSLATED.contains(&connection.port), "port {} is not one to translate to", connection.port);
        ensure!(is_free(world, &connection), "port {} is another live connection's", connection.port);
    }
    if let Some(at) = world.answered(connection.protocol, connection.answerer, connection.seen_client()) {
        world.connections.remove(at);
    }
    // Whatever stood under the client's tuple is replaced.
    if let Some(at) = world.asked(connection.protocol, connection.client, connection.target) {
        world.connections[at].forward = None;
    }
    world.tidy();
    let half = Half { state: State::HalfOpen, seen_s: world.now_s, lost: false, ended: Ended::default() };
    (connection.forward, connection.reply) = (Some(half), Some(half));
    world.connections.push(connection.clone());
    Ok(connection)
}

/// A client's own packet to an address that answers one of its service flows: told apart by another port, or by who spoke last.
pub fn direct(world: &mut World, asked: Asked, hint: Hint) -> Result<Expected> {
    if !asked.opens_or_udp() {
        return Ok(PASS);
    }
    // The answer to it would look like an answer of that connection.
    let Some(at) = world.answered(asked.protocol, asked.dst, asked.src) else { return Ok(PASS) };
    let holder = &world.connections[at];
    if holder.yields(holder.reply.expect("answered"), world.now_s) {
        world.connections.remove(at);
        return Ok(PASS);
    }
    if asked.protocol == Protocol::Udp {
        let holder = &mut world.connections[at];
        holder.reply = None;
        if let Some(forward) = &mut holder.forward {
            forward.lost = true;
        }
        world.tidy();
        return Ok(Expected { outcome: Outcome::AmbiguousUdp, ..PASS });
    }
    let connection = Connection {
        protocol: asked.protocol,
        client: asked.src,
        target: asked.dst,
        answerer: asked.dst,
        backend: None,
        port: asked.src.port(),
        early: false,
        forward: None,
        reply: None,
    };
    let made = settle(world, connection, true, hint)?;
    Ok(asked.to_answerer(&made, Outcome::DirectTranslated, 0))
}
