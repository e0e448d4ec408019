//! Sends a packet through kube-proxy's rules, as the kernel would, and follows every choice that it leaves to chance.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, bail, ensure};
use lb_model::Protocol;

use super::node;
use super::packet::{Position, Probe};
use super::ruleset::{Ruleset, Table};
use super::statement::{Datum, Field, Key, Right, Statement, Verdict};
use super::verdict::{Answer, Fate};

/// How deep chains may call each other.
const DEPTH_MAX: usize = 16;

/// A packet on its way.
#[derive(Clone, Copy, Debug)]
struct Packet {
    source: IpAddr,
    destination: SocketAddr,
    protocol: Protocol,
    translated: bool,
    /// Marked for it; what the node itself takes in keeps its source all the same.
    masqueraded: bool,
    affinity_s: Option<u32>,
}

/// How a walk through a chain ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// At its last rule, or by `return`.
    Through,
    Accepted,
    Dropped,
    Rejected,
}

/// What becomes of the packet.
pub fn fate(rules: &Ruleset, probe: &Probe) -> Result<Answer> {
    let frontend = probe.frontend;
    let table = rules.table(frontend.address.is_ipv4());
    let packet = Packet {
        source: probe.client.address,
        destination: SocketAddr::new(frontend.address, frontend.port),
        protocol: frontend.protocol,
        translated: false,
        masqueraded: false,
        affinity_s: None,
    };
    let first = if probe.client.position == Position::Node { "output" } else { "prerouting" };
    let mut ends = BTreeSet::new();
    let mut affinities = BTreeSet::new();
    let mut sources = BTreeSet::new();
    for (end, packet) in through_hook(table, first, packet)? {
        let routed = if end == End::Through { routed(table, probe, packet)? } else { vec![(end, packet)] };
        for (end, packet) in routed {
            affinities.insert(packet.affinity_s);
            if probe.client.position == Position::Outside && end == End::Through && packet.translated {
                let destination = packet.destination;
                sources.insert((destination, packet.masqueraded && !is_local(destination.ip())));
            }
            ends.insert(match end {
                End::Dropped => Fate::Dropped,
                End::Rejected => Fate::Rejected,
                _ if packet.translated => Fate::Served([packet.destination].into()),
                _ => Fate::Passed,
            });
        }
    }
    ensure!(affinities.len() == 1, "{probe}: chance decides about affinity: {affinities:?}");
    let affinity_s = affinities.pop_first().flatten();
    let masqueraded: BTreeSet<SocketAddr> = sources.iter().filter(|(_, is)| *is).map(|(at, _)| *at).collect();
    let own = sources.iter().find(|(at, is)| !is && masqueraded.contains(at));
    ensure!(own.is_none(), "{probe}: chance decides whom {own:?} sees");
    let mut endpoints = BTreeSet::new();
    let mut others = Vec::new();
    for end in ends {
        match end {
            Fate::Served(one) => endpoints.extend(one),
            other => others.push(other),
        }
    }
    match (others.pop(), endpoints.is_empty()) {
        (None, false) => Ok(Answer { fate: Fate::Served(endpoints), affinity_s, masqueraded }),
        (Some(other), true) if others.is_empty() => Ok(Answer { fate: other, affinity_s, masqueraded }),
        (other, _) => bail!("{probe}: chance decides between {endpoints:?} and {other:?}"),
    }
}

/// From the routing decision on.
fn routed(table: &Table, probe: &Probe, packet: Packet) -> Result<Vec<(End, Packet)>> {
    let hook = match (is_local(packet.destination.ip()), probe.client.position) {
        (true, _) => "input",
        (false, Position::Node) => return Ok(vec![(End::Through, packet)]),
        (false, _) => "forward",
    };
    through_hook(table, hook, packet)
}

/// Through all base chains of a hook, by their priority.
fn through_hook(table: &Table, hook: &str, packet: Packet) -> Result<Vec<(End, Packet)>> {
    let mut chains: Vec<(i64, &str)> = table
        .chains
        .iter()
        .filter_map(|(name, chain)| chain.base.as_ref().map(|base| (base, name)))
        .filter(|(base, _)| base.hook == hook)
        .map(|(base, name)| (base.priority, name.as_str()))
        .collect();
    chains.sort_unstable();
    let mut ways = vec![(End::Through, packet)];
    for (_, chain) in chains {
        let mut next = Vec::new();
        for (end, packet) in ways {
            match end {
                End::Through => next.extend(walk(table, chain, packet, 0)?),
                _ => next.push((end, packet)),
            }
        }
        // `accept` ends a base chain, not the way.
        ways = next.into_iter().map(|(end, p)| (if end == End::Accepted { End::Through } else { end }, p)).collect();
    }
    Ok(ways)
}

fn walk(table: &Table, chain: &str, packet: Packet, depth: usize) -> Result<Vec<(End, Packet)>> {
    ensure!(depth < DEPTH_MAX, "chains call each other in circles at {chain}");
    let rules = &table.chains.get(chain).with_context(|| format!("no chain {chain}"))?.rules;
    rest(table, rules, packet, depth)
}

/// The rules from here to the end of a chain.
fn rest(table: &Table, rules: &[Vec<Statement>], packet: Packet, depth: usize) -> Result<Vec<(End, Packet)>> {
    let Some((rule, later)) = rules.split_first() else { return Ok(vec![(End::Through, packet)]) };
    let mut packet = packet;
    for statement in rule {
        let verdicts: Vec<&Verdict> = match statement {
            Statement::Match { field, negated, right } => {
                if matches(table, &packet, *field, right)? == *negated {
                    break;
                }
                continue;
            }
            Statement::Mark => {
                packet.masqueraded = true;
                continue;
            }
            Statement::Remember(set) => {
                let set = table.sets.get(set).with_context(|| format!("no set {set}"))?;
                packet.affinity_s = Some(set.timeout_s.context("a set without timeout")?);
                continue;
            }
            Statement::Dnat(choices) => {
                let to = |destination: &SocketAddr| {
                    (End::Accepted, Packet { destination: *destination, translated: true, ..packet })
                };
                return Ok(choices.iter().map(to).collect());
            }
            Statement::Lookup { fields, map } => {
                let map = table.maps.get(map).with_context(|| format!("no map {map}"))?;
                let key: Key = fields.iter().map(|field| datum(&packet, *field)).collect::<Result<_>>()?;
                match map.get(&key) {
                    Some(verdict) => vec![verdict],
                    None => break,
                }
            }
            Statement::Choose(choices) => choices.iter().collect(),
            Statement::Verdict(verdict) => vec![verdict],
            Statement::Unknown(text) => bail!("a statement that is not understood: {text}"),
        };
        let mut ends = Vec::new();
        for verdict in verdicts {
            for (end, packet) in follow(table, verdict, packet, depth)? {
                match end {
                    Some(end) => ends.push((end, packet)),
                    None => ends.extend(rest(table, later, packet, depth)?),
                }
            }
        }
        return Ok(ends);
    }
    rest(table, later, packet, depth)
}

/// Where a verdict leads; `None`: on to the next rule.
fn follow(table: &Table, verdict: &Verdict, packet: Packet, depth: usize) -> Result<Vec<(Option<End>, Packet)>> {
    let ended = |end| Ok(vec![(Some(end), packet)]);
    match verdict {
        Verdict::Drop => ended(End::Dropped),
        Verdict::Reject => ended(End::Rejected),
        Verdict::Accept => ended(End::Accepted),
        Verdict::Return => ended(End::Through),
        Verdict::Goto(chain) => {
            let ways = walk(table, chain, packet, depth + 1)?;
            Ok(ways.into_iter().map(|(end, packet)| (Some(end), packet)).collect())
        }
        Verdict::Jump(chain) => {
            let ways = walk(table, chain, packet, depth + 1)?;
            Ok(ways.into_iter().map(|(end, packet)| ((end != End::Through).then_some(end), packet)).collect())
        }
    }
}

fn matches(table: &Table, packet: &Packet, field: Field, right: &Right) -> Result<bool> {
    Ok(match (field, right) {
        (Field::State, Right::Word(word)) => word == "new",
        (Field::SourceType, Right::Word(word)) => word == "local" && is_local(packet.source),
        (Field::DestinationType, Right::Word(word)) => word == "local" && is_local(packet.destination.ip()),
        (_, Right::Protocol(protocol)) => datum(packet, field)? == Datum::Protocol(*protocol),
        (_, Right::Set(set)) => {
            let set = table.sets.get(set).with_context(|| format!("no set {set}"))?;
            set.elements.contains(&vec![datum(packet, field)?])
        }
        (_, Right::Ranges(ranges)) => match datum(packet, field)? {
            Datum::Address(address) => ranges.iter().any(|(first, last)| (*first..=*last).contains(&address)),
            other => bail!("{other:?} is compared with addresses"),
        },
        _ => bail!("{field:?} is compared with {right:?}"),
    })
}

fn datum(packet: &Packet, field: Field) -> Result<Datum> {
    Ok(match field {
        Field::Source => Datum::Address(packet.source),
        Field::Destination => Datum::Address(packet.destination.ip()),
        Field::Protocol => Datum::Protocol(packet.protocol),
        Field::Port => Datum::Port(packet.destination.port()),
        other => bail!("{other:?} is no part of a key"),
    })
}

fn is_local(address: IpAddr) -> bool {
    address.is_loopback() || node::addresses().contains(&address)
}
