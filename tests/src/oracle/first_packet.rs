//! The first packet of a connection: its backend, its SNAT port, and the connections that it replaces.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use lb_common::outcome::Outcome;

use super::adopted;
use super::client::{Client, Seen, keeps_port, own_addresses, seen, who};
use super::connection::{Connection, Half, Opening, Said, State};
use super::health::{begin, doubt};
use super::model::{Model, Service, Torn};
use super::rules::{Asked, Expected, Fate, Hint, PASS};
use super::wire::Protocol;
use crate::test_run::Hook;

/// The first packet of a connection, or one of a service and of no connection. `None`: not for a service.
pub fn open(model: &mut Model, asked: Asked, why: Outcome, hint: Hint) -> Result<Option<Expected>> {
    let Some(service) = model.services.get(&(asked.dst, asked.protocol)) else { return Ok(None) };
    let service = service.clone();
    let id = service.id;
    let drop = |outcome| Expected { fate: Fate::Drop, outcome, service: id, ..PASS };
    if service.torn == Torn::Entry {
        return Ok(Some(drop(Outcome::DroppedTorn)));
    }
    let client = who(model, asked);
    if client == Client::Martian {
        return Ok(Some(drop(Outcome::DroppedMartian)));
    }
    let (members, drops) = service.set(client);
    let unserved = if !service.admits(asked.src.ip()) {
        Some(drop(Outcome::DroppedSourceRange))
    } else if members.is_empty() && drops {
        Some(drop(Outcome::DroppedNoLocalEndpoint))
    } else if members.is_empty() {
        Some(asked.refuse(Outcome::RefusedNoEndpoint, id, 0))
    } else if asked.opens_or_udp() {
        None
    } else {
        Some(asked.refuse(Outcome::RefusedNoFlow, id, 0))
    };
    if let Some(unserved) = unserved {
        if asked.opens_or_udp() {
            return Ok(Some(unserved));
        }
        let known = super::promotion::unseen(model, asked, id);
        let is_adopted = model.now_s < model.adoption_until_s
            && asked.hook != Hook::NodeOut
            && !model.is_half_open(asked.protocol, asked.src, asked.dst);
        // The answer to somebody of this node who has that port.
        let is_nodes = matches!(asked.hook, Hook::NodeIn | Hook::Xdp)
            && !model.vips.contains_key(&asked.dst.ip())
            && !model.is_half_open(asked.protocol, asked.src, asked.dst);
        let otherwise = if is_adopted {
            Expected { outcome: Outcome::PassedAdoption, service: id, ..PASS }
        } else if is_nodes {
            Expected { service: id, ..PASS }
        } else {
            unserved
        };
        return Ok(Some(known.unwrap_or(otherwise)));
    }
    let usable = usable(model, members);
    // A search that finds the tables changing may be given up, one that finds nobody must be.
    let torn = service.torn != Torn::Whole || usable.is_empty();
    if torn || (hint.torn && usable.len() < members.len()) {
        return Ok(Some(drop(Outcome::DroppedTorn)));
    }
    if asked.opens() && model.is_greedy(asked.src.ip(), client) {
        return Ok(Some(asked.refuse(Outcome::RefusedClientShare, id, 0)));
    }
    if hint.no_address {
        let unseen = |id: &&u32| seen(model, asked, service.kind, client, &model.backends[*id]) == Seen::Nobody;
        let without: Vec<u32> = usable.iter().filter(unseen).copied().collect();
        ensure!(!without.is_empty(), "there is an address for each of {usable:?}");
        let notes = doubt(model, asked, hint, members, &without)?;
        return Ok(Some(Expected { notes, ..drop(Outcome::DroppedNoAddress) }));
    }
    let chosen = match hint.no_port {
        Some(backend) => usable.iter().find(|id| **id == backend),
        None => usable.iter().find(|id| model.backends[id].address == hint.dst),
    };
    let Some(&chosen) = chosen else {
        anyhow::bail!("sent to {}, which is no usable backend of service {id}: {usable:?}", hint.dst);
    };
    let notes = doubt(model, asked, hint, members, &[chosen])?;
    let is_beside = why == Outcome::SecondHandshake;
    let mut connection = connection(model, asked, &service, client, chosen)?;
    if is_beside {
        connection.is_beside = true;
        connection.opening = Some(Opening { segments: 1, ..Opening::default() });
    }
    let Some(made) = settle(model, connection, is_beside, hint)? else {
        return Ok(Some(Expected { notes, backend: chosen, ..drop(Outcome::DroppedNoPort) }));
    };
    if is_beside && let Some(at) = model.asked(asked.protocol, asked.src, asked.dst) {
        model.connections[at].has_beside = true;
    }
    let probed = begin(model, chosen, asked, &usable, !is_beside)?;
    let outcome = match (made.behind_node, made.seen_client.port() == asked.src.port()) {
        _ if probed => Outcome::Probed,
        (true, _) => Outcome::Masqueraded,
        (false, false) if !is_beside => Outcome::PortTranslated,
        (false, _) => why,
    };
    Ok(Some(Expected { notes, ..asked.to_answerer(&made, outcome, id) }))
}

/// A new connection with this backend, at the client's own port.
pub fn connection(model: &Model, asked: Asked, service: &Service, client: Client, chosen: u32) -> Result<Connection> {
    let backend = &model.backends[&chosen];
    let seen = seen(model, asked, service.kind, client, backend);
    let address = match seen {
        Seen::Client => asked.src.ip(),
        Seen::Service => asked.dst.ip(),
        Seen::Node(address) => address,
        Seen::Nobody => anyhow::bail!("sent to {chosen}, though there is no address to send it from"),
    };
    // What a SYN brings may be at its backend already.
    let is_served = matches!(client, Client::Near | Client::Outside);
    let moves = service.retries && asked.protocol == Protocol::Tcp && is_served && asked.data == 0;
    Ok(Connection {
        protocol: asked.protocol,
        client: asked.src,
        target: asked.dst,
        answerer: backend.address,
        backend: Some((chosen, backend.generation)),
        seen_client: SocketAddr::new(address, asked.src.port()),
        who: client,
        masqueraded: seen != Seen::Client,
        behind_node: matches!(seen, Seen::Node(_)),
        early: seen != Seen::Client || asked.catches_all(),
        hook: asked.hook,
        isn: asked.isn(),
        since_s: model.now_s,
        opening: Some(Opening { moves, reply_moves: moves, segments: 1, ..Opening::default() }),
        is_beside: false,
        has_beside: false,
        forward: None,
        reply: None,
    })
}

/// The members that are what they were when the service was written, and may take new flows.
pub fn usable(model: &Model, members: &[(u32, u32)]) -> Vec<u32> {
    let still = |&&(backend, generation): &&(u32, u32)| {
        model.backends[&backend].generation == generation && model.backends[&backend].takes_flows()
    };
    members.iter().filter(still).map(|&(backend, _)| backend).collect()
}

/// Writes a new connection down, under a translated port if another live one has its answers. `None`: there is no port for it.
pub fn settle(model: &mut Model, mut connection: Connection, taken: bool, hint: Hint) -> Result<Option<Connection>> {
    let kept = !connection.behind_node || keeps_port(connection.client.port());
    if taken || !kept || !is_free(model, &connection, false) {
        let stand_ins = stand_ins(model, &connection);
        if hint.no_port.is_some() {
            let free = stand_ins.iter().find_map(|address| free_port(model, &connection, *address, true));
            ensure!(free.is_none(), "no port was found, though {free:?} is free");
            return Ok(None);
        }
        let at = stand_ins.iter().position(|address| *address == hint.src.ip());
        let Some(at) = at else { anyhow::bail!("{} is none of the addresses {stand_ins:?}", hint.src) };
        let rested = is_free(model, &Connection { seen_client: hint.src, ..connection.clone() }, false);
        if model.has_few_ports() {
            // Before one that rests is taken, all are tried.
            let before = if rested { &stand_ins[..at] } else { &stand_ins };
            let free = before.iter().find_map(|address| free_port(model, &connection, *address, false));
            ensure!(free.is_none(), "sent from {}, though {free:?} is free at an address before it", hint.src);
        }
        connection.seen_client = hint.src;
        let port = hint.src.port();
        let (first, last) = model.ports;
        let is_reused = model.is_reused_port(port);
        ensure!(is_reused || (rested && (first..=last).contains(&port)), "port {port} is not one to translate to");
        ensure!(is_free(model, &connection, true), "port {port} is another live connection's");
    }
    ensure!(hint.no_port.is_none(), "no port was found, though the client's own is free");
    let (protocol, answerer, seen_client) = (connection.protocol, connection.answerer, connection.seen_client);
    let (client, target) = (connection.client, connection.target);
    // The connection that had the reply tuple is over, or this client's attempt before: an answered one is forgotten whole.
    if let Some(at) = model.answered(protocol, answerer, seen_client) {
        let own = model.connections[at].client == client && model.connections[at].target == target;
        if own && !connection.is_beside { model.connections[at].reply = None } else { _ = model.connections.remove(at) }
    }
    if let Some(at) = model.answering(protocol, answerer, seen_client) {
        let own = model.connections[at].client == client && model.connections[at].target == target;
        if own && !connection.is_beside { model.connections[at].reply = None } else { _ = model.connections.remove(at) }
    }
    // Whatever nobody has answered under the client's tuple is replaced.
    let before = if connection.is_beside {
        model.connections.iter().position(|it| it.asks_beside(protocol, client, target))
    } else {
        model.asking(protocol, client, target)
    };
    if let Some(at) = before {
        model.connections[at].forward = None;
    }
    if protocol == Protocol::Tcp && !connection.is_beside {
        model.seconds.retain(|second| (second.client, second.target) != (client, target));
    }
    model.tidy();
    let half =
        Half { state: State::HalfOpen, seen_s: model.now_s, lost: false, said: Said::default(), other_last: false };
    (connection.forward, connection.reply) = (Some(half), Some(half));
    model.connections.push(connection.clone());
    Ok(Some(connection))
}

/// The SNAT addresses that the client may get, in turn; its own, where it shows that itself.
fn stand_ins(model: &Model, connection: &Connection) -> Vec<IpAddr> {
    if connection.behind_node {
        own_addresses(model, connection.answerer.ip()).to_vec()
    } else {
        vec![connection.seen_client.ip()]
    }
}

/// A port of this address to translate to that a search must find; `resting`: one that rests will do.
fn free_port(model: &Model, connection: &Connection, address: IpAddr, resting: bool) -> Option<u16> {
    let (first, last) = model.ports;
    let is_free = |port: &u16| {
        let seen_client = SocketAddr::new(address, *port);
        is_free(model, &Connection { seen_client, ..connection.clone() }, resting)
    };
    let free: Vec<u16> = (first..=last).filter(is_free).collect();
    let found = model.has_few_ports() || free.len() * 2 > usize::from(last - first);
    free.first().copied().filter(|_| found)
}

/// Whether no live connection of somebody else has the answers' tuple, nor awaits an answer there; without `resting`, nor had it lately.
fn is_free(model: &Model, connection: &Connection, resting: bool) -> bool {
    let (protocol, answerer, seen_client) = (connection.protocol, connection.answerer, connection.seen_client);
    let yields = |at: usize| {
        let holder = &model.connections[at];
        let same = !connection.is_beside && holder.client == connection.client && holder.target == connection.target;
        let reply = holder.reply.expect("answers");
        same || (holder.yields(reply, model.now_s) && (resting || !reply.rests(model.now_s)))
    };
    // Who answers here may ask from the same port whom the client seems to be: that is the same tuple.
    let asks = model.asked(protocol, answerer, seen_client).is_some()
        || model.asking(protocol, answerer, seen_client).is_some()
        || protocol == Protocol::Tcp
            && model.seconds.iter().any(|second| (second.client, second.target) == (answerer, seen_client));
    !asks
        && !adopted::holds(model, protocol, answerer, seen_client)
        && model.answered(protocol, answerer, seen_client).is_none_or(yields)
        && model.answering(protocol, answerer, seen_client).is_none_or(yields)
}

/// A client's own packet to an address that answers one of its service flows: another port, or the last sender, decides which one it is.
pub fn direct(model: &mut Model, asked: Asked, hint: Hint) -> Result<Expected> {
    if !asked.opens_or_udp() {
        return Ok(PASS);
    }
    // The answer to it would look like an answer of that connection.
    let mut held = false;
    let holders =
        [model.answered(asked.protocol, asked.dst, asked.src), model.answering(asked.protocol, asked.dst, asked.src)];
    for holder in holders.into_iter().flatten() {
        let holder = &model.connections[holder];
        held |= !holder.yields(holder.reply.expect("answers"), model.now_s);
    }
    for find in [Model::answered, Model::answering] {
        let Some(at) = find(model, asked.protocol, asked.dst, asked.src) else { continue };
        let holder = &mut model.connections[at];
        if holder.yields(holder.reply.expect("answers"), model.now_s) {
            model.connections.remove(at);
        } else if asked.protocol == Protocol::Udp {
            if model.routes.as_ref().is_some_and(|routes| routes.leads_to_pod(asked.src.ip())) {
                holder.reply = None;
                if let Some(forward) = &mut holder.forward {
                    forward.lost = true;
                }
                model.tidy();
            }
            return Ok(Expected { outcome: Outcome::AmbiguousUdp, ..PASS });
        }
        if held {
            break;
        }
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
        seen_client: asked.src,
        who: Client::Near,
        masqueraded: false,
        behind_node: false,
        early: false,
        hook: asked.hook,
        isn: asked.isn(),
        since_s: model.now_s,
        opening: Some(Opening { segments: 1, ..Opening::default() }),
        is_beside: false,
        has_beside: false,
        forward: None,
        reply: None,
    };
    let Some(made) = settle(model, connection, true, hint)? else {
        return Ok(Expected { fate: Fate::Drop, outcome: Outcome::DroppedNoPort, ..PASS });
    };
    Ok(asked.to_answerer(&made, Outcome::DirectTranslated, 0))
}
