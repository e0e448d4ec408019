//! The first packet of a connection: which backend it may go to, under which port, and what becomes of connections in its way.

use anyhow::{Result, ensure};
use lb_common::outcome::Outcome;

use super::connection::{Connection, Ended, Half, Left, Opening, State};
use super::health::{begin, doubt};
use super::rules::{Asked, Expected, Fate, Hint, PASS};
use super::wire::Protocol;
use super::world::{Kind, Service, Torn, World};
use crate::live::Hook;

/// Translated source ports come from here.
const TRANSLATED: std::ops::Range<u16> = 61_000..65_096;

/// The first packet of a connection. `None`: not for a service.
pub fn open(world: &mut World, asked: Asked, why: Outcome, hint: Hint) -> Result<Option<Expected>> {
    let Some(service) = world.services.get(&(asked.dst, asked.protocol)) else { return Ok(None) };
    let id = service.id;
    let drop = |outcome| Expected { fate: Fate::Drop, outcome, service: id, ..PASS };
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
    if !asked.opens_or_udp() {
        let expected = super::unanswered::unseen(world, asked, id);
        return Ok(Some(expected.unwrap_or_else(|| asked.refuse(Outcome::RefusedNoFlow, id, 0))));
    }
    let usable = usable(world, service);
    // A search that finds the tables changing may be given up, one that finds nobody must be.
    let torn = service.torn != Torn::Whole || usable.is_empty();
    if torn || (hint.torn && usable.len() < service.members.len()) {
        return Ok(Some(drop(Outcome::DroppedTorn)));
    }
    let fits = |backend: &&u32| asked.hook != Hook::Xdp || world.backends[*backend].local;
    let handed = Expected { outcome: Outcome::HandedToTc, ..PASS };
    if asked.hook == Hook::Xdp && !hint.dropped && hint.dst == asked.dst && !usable.iter().all(|backend| fits(&backend))
    {
        // A backend that is not on this node was picked.
        let elsewhere: Vec<u32> = usable.iter().filter(|backend| !fits(backend)).copied().collect();
        let notes = doubt(world, asked, hint, &elsewhere)?;
        return Ok(Some(Expected { notes, ..handed }));
    }
    let chosen = usable.iter().filter(fits).find(|backend| world.backends[backend].address == hint.dst);
    let Some(&chosen) = chosen else {
        anyhow::bail!("sent to {}, which is no usable backend of service {id}: {usable:?}", hint.dst);
    };
    // Answers pass where the request came only at a pod's own link.
    let moves = service.retries && asked.protocol == Protocol::Tcp && asked.hook == Hook::PodIn;
    let notes = doubt(world, asked, hint, &[chosen])?;
    let probed = begin(world, chosen, asked.protocol, &usable)?;
    let backend = &world.backends[&chosen];
    let connection = Connection {
        protocol: asked.protocol,
        client: asked.src,
        target: asked.dst,
        answerer: backend.address,
        backend: Some((chosen, backend.generation)),
        port: asked.src.port(),
        early: asked.catches_all(),
        isn: asked.isn(),
        since_s: world.now_s,
        opening: Some(Opening { moves, segments: 1, ..Opening::default() }),
        forward: None,
        reply: None,
    };
    let made = settle(world, connection, false, hint)?;
    let outcome = match (made.port == asked.src.port(), probed) {
        (false, _) => Outcome::PortTranslated,
        (true, true) => Outcome::Probed,
        (true, false) => why,
    };
    Ok(Some(Expected { notes, ..asked.to_answerer(&made, outcome, id) }))
}

/// The members that are what they were when the service was written, and not gone.
pub fn usable(world: &World, service: &Service) -> Vec<u32> {
    let still = |&&(backend, generation): &&(u32, u32)| {
        world.backends[&backend].generation == generation && world.backends[&backend].keeps_flows()
    };
    service.members.iter().filter(still).map(|&(backend, _)| backend).collect()
}

/// Writes a new connection down, under a translated port if another live one has its answers.
pub fn settle(world: &mut World, mut connection: Connection, taken: bool, hint: Hint) -> Result<Connection> {
    if taken || !is_free(world, &connection) {
        connection.port = hint.src.port();
        ensure!(TRANSLATED.contains(&connection.port), "port {} is not one to translate to", connection.port);
        ensure!(is_free(world, &connection), "port {} is another live connection's", connection.port);
    }
    let (protocol, answerer, seen_client) = (connection.protocol, connection.answerer, connection.seen_client());
    let (client, target) = (connection.client, connection.target);
    // Whoever had the answers' tuple is over, or this client's attempt before: an answered one is forgotten whole.
    if let Some(at) = world.answered(protocol, answerer, seen_client) {
        let own = world.connections[at].client == client && world.connections[at].target == target;
        if own { world.connections[at].reply = None } else { _ = world.connections.remove(at) }
    }
    if let Some(at) = world.answering(protocol, answerer, seen_client) {
        let own = world.connections[at].client == client && world.connections[at].target == target;
        if own { world.connections[at].reply = None } else { _ = world.connections.remove(at) }
    }
    world.left.retain(|left| (left.protocol, left.answerer, left.seen_client) != (protocol, answerer, seen_client));
    // Whatever nobody has answered under the client's tuple is replaced.
    if let Some(at) = world.asking(protocol, client, target) {
        world.connections[at].forward = None;
    }
    if protocol == Protocol::Tcp {
        world.seconds.retain(|second| (second.client, second.target) != (client, target));
    }
    world.tidy();
    let half = Half { state: State::HalfOpen, seen_s: world.now_s, lost: false, ended: Ended::default() };
    (connection.forward, connection.reply) = (Some(half), Some(half));
    world.connections.push(connection.clone());
    Ok(connection)
}

/// Whether no live connection of somebody else has the answers' tuple, nor awaits an answer there.
fn is_free(world: &World, connection: &Connection) -> bool {
    let (protocol, answerer, seen_client) = (connection.protocol, connection.answerer, connection.seen_client());
    let yields = |at: usize| {
        let holder = &world.connections[at];
        let same = holder.client == connection.client && holder.target == connection.target;
        same || holder.yields(holder.reply.expect("answers"), world.now_s)
    };
    let left = |left: &Left| {
        (left.protocol, left.answerer, left.seen_client) == (protocol, answerer, seen_client)
            && (left.client, left.target) != (connection.client, connection.target)
            && world.now_s.saturating_sub(left.seen_s) <= 60
    };
    // A second SYN stands under the client's tuple, which may be the one that answers here would have.
    world.answered(protocol, answerer, seen_client).is_none_or(yields)
        && world.answering(protocol, answerer, seen_client).is_none_or(yields)
        && !world.left.iter().any(left)
}

/// A client's own packet to an address that answers one of its service flows: told apart by another port, or by who spoke last.
pub fn direct(world: &mut World, asked: Asked, hint: Hint) -> Result<Expected> {
    if !asked.opens_or_udp() {
        return Ok(PASS);
    }
    // The answer to it would look like an answer of that connection.
    let mut held = false;
    let holders =
        [world.answered(asked.protocol, asked.dst, asked.src), world.answering(asked.protocol, asked.dst, asked.src)];
    for holder in holders.into_iter().flatten() {
        let holder = &world.connections[holder];
        held |= !holder.yields(holder.reply.expect("answers"), world.now_s);
    }
    for find in [World::answered, World::answering] {
        let Some(at) = find(world, asked.protocol, asked.dst, asked.src) else { continue };
        let holder = &mut world.connections[at];
        if holder.yields(holder.reply.expect("answers"), world.now_s) {
            world.connections.remove(at);
        } else if asked.protocol == Protocol::Udp {
            holder.reply = None;
            if let Some(forward) = &mut holder.forward {
                forward.lost = true;
            }
            world.tidy();
            return Ok(Expected { outcome: Outcome::AmbiguousUdp, ..PASS });
        }
        if held {
            break;
        }
    }
    let left_here =
        |left: &Left| (left.protocol, left.answerer, left.seen_client) == (asked.protocol, asked.dst, asked.src);
    let now_s = world.now_s;
    if !held {
        held = world.left.iter().any(|left| left_here(left) && now_s.saturating_sub(left.seen_s) <= 60);
        world.left.retain(|left| !left_here(left) || held);
    }
    if !held {
        return Ok(PASS);
    }
    let connection = Connection {
        protocol: asked.protocol,
        client: asked.src,
        target: asked.dst,
        answerer: asked.dst,
        backend: None,
        port: asked.src.port(),
        early: false,
        isn: asked.isn(),
        since_s: world.now_s,
        opening: Some(Opening { segments: 1, ..Opening::default() }),
        forward: None,
        reply: None,
    };
    let made = settle(world, connection, true, hint)?;
    Ok(asked.to_answerer(&made, Outcome::DirectTranslated, 0))
}
