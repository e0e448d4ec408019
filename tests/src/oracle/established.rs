//! A packet of an established connection: forwarded, answered again, ended, or reset because its backend is gone.

use lb_common::outcome::Outcome;

use super::beside;
use super::closed::close;
use super::connection::{Half, Said, Second, State};
use super::model::{Drain, Model};
use super::rules::{Asked, ConnectionOutcome, Expected, PASS};
use super::wire::{ACK, FIN, Protocol};

/// A client's packet on a connection that was answered.
pub fn ask(model: &mut Model, asked: Asked, at: usize) -> ConnectionOutcome {
    let connection = &model.connections[at];
    let half = connection.forward.expect("asked by its forward half");
    if !asked.serves_clients() || (connection.backend.is_none() && !asked.is_clients_link()) {
        return ConnectionOutcome::Decided(PASS);
    }
    if asked.opens() {
        return ask_to_open(model, asked, at);
    }
    if connection.has_beside
        && let Some(outcome) = beside::ask(model, asked, at)
    {
        return outcome;
    }
    let connection = &model.connections[at];
    let silent = connection.is_silent(half, model.now_s);
    let outcome = if let Some((id, generation)) = connection.backend {
        let backend = &model.backends[&id];
        let is_here = backend.generation == generation && half.state != State::Evicted;
        let keeps = is_here && backend.keeps_flows();
        match asked.protocol {
            Protocol::Tcp if !is_here || !backend.lasts() => {
                return ConnectionOutcome::Decided(evict(model, asked, at, true));
            }
            Protocol::Tcp if backend.drain != Drain::None && wants_answer(asked, half.said) => {
                let silent_s = await_answer(model, asked, at);
                if silent_s > 15 && !keeps {
                    return ConnectionOutcome::Decided(give_up(model, asked, at));
                }
            }
            Protocol::Udp if !keeps || backend.sheds_udp() => return ConnectionOutcome::Anew(Outcome::Moved),
            Protocol::Udp if silent => return ConnectionOutcome::Anew(Outcome::Selected),
            _ => {}
        }
        Outcome::Forwarded
    } else {
        Outcome::DirectTranslated
    };
    remember(model, asked, at, true, forward_state(half.state, asked));
    ConnectionOutcome::Decided(asked.to_answerer(&model.connections[at], outcome, 0))
}

/// A SYN on a connection that was answered: the same one again, or one for another connection.
fn ask_to_open(model: &mut Model, asked: Asked, at: usize) -> ConnectionOutcome {
    let connection = &model.connections[at];
    let half = connection.forward.expect("asked by its forward half");
    let other = connection.isn != asked.sequence;
    let over = connection.is_silent(half, model.now_s) || half.state == State::Evicted;
    if over || (other && half.state == State::Closing) {
        return ConnectionOutcome::Anew(Outcome::Selected);
    }
    if let Some((id, generation)) = connection.backend {
        let backend = &model.backends[&id];
        if backend.generation != generation || !backend.lasts() {
            return ConnectionOutcome::Anew(Outcome::Selected);
        }
    }
    if other {
        let is_silent = !second(model, asked, at);
        let connection = &model.connections[at];
        if connection.backend.is_some() && (is_silent || connection.has_beside) {
            return beside::ask_to_open(model, asked, at, is_silent);
        }
        if is_silent && model.routes().leads_to_pod(asked.src.ip()) {
            return ConnectionOutcome::Anew(Outcome::Selected);
        }
    }
    let connection = &model.connections[at];
    let outcome = if connection.backend.is_none() { Outcome::DirectTranslated } else { Outcome::Forwarded };
    ConnectionOutcome::Decided(asked.to_answerer(connection, outcome, 0))
}

/// Remembers a SYN with another sequence number; `false` with the third second of them without a packet of the answerer.
fn second(model: &mut Model, asked: Asked, at: usize) -> bool {
    let here = |second: &Second| (second.client, second.target) == (asked.src, asked.dst);
    let connection = &model.connections[at];
    let (direct, heard_s) = (connection.backend.is_none(), connection.reply.map(|half| half.seen_s));
    let now_s = model.now_s;
    let (client, target) = (asked.src, asked.dst);
    let new = Second { client, target, since_s: now_s, seen_s: now_s, segments: 1, answers: None, direct };
    let known = model.seconds.iter_mut().find(|second| here(second));
    if let Some(second) = known {
        if heard_s.is_some_and(|heard_s| heard_s >= second.since_s) {
            *second = new;
        } else if second.seen_s < now_s || second.segments == 0 {
            (second.seen_s, second.segments) = (now_s, second.segments + 1);
        }
        let over = second.segments >= 3;
        if over {
            model.seconds.retain(|second| !here(second));
        }
        return !over;
    }
    if let Some(at) = model.asking(asked.protocol, asked.src, asked.dst) {
        model.connections[at].forward = None;
        model.tidy();
    }
    model.seconds.push(new);
    true
}

/// Whether the other end has to answer this: it has data or a FIN, or it asks with an old sequence number whether that end is still there.
fn wants_answer(asked: Asked, said: Said) -> bool {
    let asks_for_life = asked.sequence.wrapping_add(1) == said.next;
    let follows = asked.tcp_flags & ACK != 0 && !said.claimed && follows(asked, said.next, said.heard);
    !asked.resets() && follows && (asked.data > 0 || asked.tcp_flags & FIN != 0 || asks_for_life)
}

/// Writes down that the client waits for an answer; for how many seconds it has.
fn await_answer(model: &mut Model, asked: Asked, at: usize) -> u32 {
    let (connection, now_s) = (&model.connections[at], model.now_s);
    let reply = connection.reply;
    let answers = reply
        .filter(|half| asked.protocol == Protocol::Tcp && is_later(asked.next(), half.said.heard))
        .map(|half| (half.said.next, half.said.heard));
    let direct = connection.backend.is_none();
    let (client, target) = (asked.src, asked.dst);
    let new = Second { client, target, since_s: now_s, seen_s: now_s, segments: 0, answers, direct };
    let here = |second: &Second| (second.client, second.target) == (asked.src, asked.dst);
    // What is not known of the answerer will be written anew.
    let is_heard = |second: &Second| {
        reply.is_none_or(|half| match second.answers {
            Some((next, heard)) => is_later(half.said.next, next) || is_later(half.said.heard, heard),
            None => half.seen_s >= second.since_s,
        })
    };
    let known = model.seconds.iter_mut().find(|second| here(second));
    match known {
        // A SYN is anybody's.
        Some(second) if second.segments != 0 => *second = new,
        Some(second) if !is_heard(second) => return now_s - second.since_s,
        // Of the same second: nothing new.
        Some(second) if second.since_s == now_s => {}
        Some(second) => *second = new,
        None => {
            if let Some(at) = model.asking(asked.protocol, asked.src, asked.dst) {
                model.connections[at].forward = None;
                model.tidy();
            }
            model.seconds.push(new);
        }
    }
    0
}

/// The backend has left the client without an answer for too long: both ends get a RST at their next packet, the client now.
fn give_up(model: &mut Model, asked: Asked, at: usize) -> Expected {
    model.seconds.retain(|second| (second.client, second.target) != (asked.src, asked.dst));
    let now_s = model.now_s;
    let own = model.connections[at].forward.as_mut().expect("asked by its forward half");
    *own = Half { seen_s: now_s, lost: false, said: hears(asked, own.said), ..*own };
    evict(model, asked, at, false);
    evict(model, asked, at, true)
}

fn forward_state(state: State, asked: Asked) -> State {
    match (asked.protocol, state) {
        // It has heard an answer, and asks on.
        (Protocol::Udp, State::Open) => State::Stream,
        _ => state,
    }
}

/// An answerer's packet on a connection that was answered before.
pub fn answer(model: &mut Model, asked: Asked, at: usize) -> Expected {
    let connection = &model.connections[at];
    let half = connection.reply.expect("answered by its reply half");
    let Some(early) = asked.sees_answers(connection.early) else { return PASS };
    // What is over is answered no more: this is the answer to a direct packet on the same ports.
    let over = match asked.protocol {
        Protocol::Tcp => asked.accepts() && connection.yields(half, model.now_s),
        Protocol::Udp => connection.is_silent(half, model.now_s),
    };
    if over {
        model.connections.remove(at);
        return PASS;
    }
    if let Some((id, generation)) = connection.backend {
        let backend = &model.backends[&id];
        let stays = if asked.protocol == Protocol::Tcp { backend.lasts() } else { backend.keeps_flows() };
        let keeps = backend.generation == generation && stays;
        if !keeps || half.state == State::Evicted {
            return evict(model, asked, at, false);
        }
    }
    let state = if half.state == State::HalfOpen { State::Open } else { half.state };
    remember(model, asked, at, false, state);
    asked.to_client(&model.connections[at], early)
}

/// The backend is gone: nothing is forwarded, and the sender gets a RST.
fn evict(model: &mut Model, asked: Asked, at: usize, forward: bool) -> Expected {
    let now_s = model.now_s;
    let connection = &mut model.connections[at];
    let half = if forward { &mut connection.forward } else { &mut connection.reply };
    let half = half.as_mut().expect("the half that was found");
    if half.state != State::Evicted {
        *half = Half { state: State::Evicted, seen_s: now_s, ..*half };
    }
    asked.evicted(connection.backend.map_or(0, |(id, _)| id))
}

/// Writes down that a packet passed: in its own half, in the other, which heals if it is missing.
fn remember(model: &mut Model, asked: Asked, at: usize, forward: bool, state: State) {
    let now_s = model.now_s;
    let connection = &model.connections[at];
    let (client, target) = (connection.client, connection.target);
    let (answerer, seen_client) = (connection.answerer, connection.seen_client);
    // The place of the missing half may be another connection's by now.
    let foreign = if forward {
        model.answered(connection.protocol, answerer, seen_client).is_some_and(|other| other != at)
    } else {
        model.asked(connection.protocol, client, target).is_some_and(|other| other != at)
    };
    let connection = &mut model.connections[at];
    let (own, other) = if forward {
        (&mut connection.forward, &mut connection.reply)
    } else {
        (&mut connection.reply, &mut connection.forward)
    };
    let before = own.expect("the half that was found");
    let fresh = Half { state, seen_s: now_s, lost: false, said: hears(asked, before.said), ..before };
    *own = Some(fresh);
    match other {
        Some(half) => {
            if half.state <= state {
                half.state = state;
                // A client of TCP that speaks is no sign of life of the other end.
                if !forward || asked.protocol == Protocol::Udp {
                    half.seen_s = now_s;
                }
            }
            let own = own.as_mut().expect("written above");
            ends(asked, own, half);
            if own.state == State::Closing {
                let last = Half { said: Said::default(), other_last: false, ..*own };
                close(model, at, last);
            }
        }
        None if foreign => {}
        None => {
            let Said { next, heard, .. } = fresh.said;
            let said = Said { next: heard, heard: next, last: fresh.other_last, ..Said::default() };
            *other = Some(Half { said, other_last: fresh.said.has_ended(), ..fresh });
        }
    }
}

/// Whether two numbers are at most 64 KiB apart.
fn near(one: u32, other: u32) -> bool {
    one.wrapping_sub(other).cast_signed().unsigned_abs() <= 1 << 16
}

/// Whether a segment follows on these numbers: one is the same, or both are near.
fn follows(asked: Asked, next: u32, heard: u32) -> bool {
    let (sequence, acknowledgement) = (asked.sequence, asked.acknowledgement);
    sequence == next || acknowledgement == heard || near(sequence, next) && near(acknowledgement, heard)
}

/// Whether the acknowledgement lies between what the end has heard and what the other has said, give or take 64 KiB.
fn hears_on(asked: Asked, own: Said, other: Said) -> bool {
    let from = own.heard.wrapping_sub(1 << 16);
    asked.acknowledgement.wrapping_sub(from) <= other.next.wrapping_sub(from).wrapping_add(1 << 16)
}

/// Whether a segment follows on what both ends have said.
fn follows_both(asked: Asked, own: Said, other: Said) -> bool {
    let known: &[u32] = if own.claimed { &[other.heard] } else { &[other.heard, own.next] };
    known.contains(&asked.sequence)
        || [own.heard, other.next].contains(&asked.acknowledgement)
        || known.iter().any(|known| near(asked.sequence, *known)) && hears_on(asked, own, other)
        || !own.claimed && jumps(asked, own, other)
}

/// Whether the segment is ahead of the last one by less than 16 MiB, and hears at most 64 KiB more of what the other end has said.
fn jumps(asked: Asked, own: Said, other: Said) -> bool {
    let more = asked.acknowledgement.wrapping_sub(own.heard);
    asked.sequence.wrapping_sub(own.next) < 1 << 24 && more <= other.next.wrapping_sub(own.heard).min(1 << 16)
}

/// Whether one number comes after another one.
fn is_later(one: u32, other: u32) -> bool {
    one.wrapping_sub(other).cast_signed() > 0
}

/// What an end has said after this segment, by itself.
fn hears(asked: Asked, said: Said) -> Said {
    let fits = asked.protocol == Protocol::Tcp && !said.claimed && follows(asked, said.next, said.heard);
    if asked.resets() || asked.tcp_flags & ACK == 0 || !fits {
        return said;
    }
    let next = if is_later(asked.next(), said.next) { asked.next() } else { said.next };
    Said { next, heard: asked.acknowledgement, ..said }
}

/// Both ends have said their last and heard the other's, or one has reset the connection with a number that only it and the other know.
fn ends(asked: Asked, own: &mut Half, other: &mut Half) {
    if asked.protocol != Protocol::Tcp {
        return;
    }
    let (acknowledges, fits) = (asked.tcp_flags & ACK != 0, follows_both(asked, own.said, other.said));
    if asked.resets() {
        let is_next = asked.sequence == own.said.next && !own.said.claimed;
        let behind = |number: u32| own.said.next.wrapping_sub(number);
        let is_within = own.said.last && behind(asked.sequence) <= behind(other.said.heard);
        if asked.sequence == other.said.heard || is_next || is_within || acknowledges && fits {
            (own.state, other.state) = (State::Closing, State::Closing);
        }
        return;
    }
    if !acknowledges {
        return;
    }
    let (said, last) = (&mut own.said, asked.tcp_flags & FIN != 0);
    if fits {
        said.heard = asked.acknowledgement;
        if !is_later(said.next, asked.next()) || said.claimed && last {
            said.last = match (last, asked.data) {
                (true, _) => true,
                (false, 0) => said.last || said.claimed && said.next == asked.next(),
                (false, _) => false,
            };
            (said.next, said.claimed) = (asked.next(), false);
        }
        said.heard_last |= other.said.has_ended() && asked.acknowledgement == other.said.next;
    } else if last
        && asked.next().wrapping_sub(said.next) < 1 << 24
        && other.said.next.wrapping_sub(asked.acknowledgement) < 1 << 24
    {
        *said = Said { next: asked.next(), last: false, claimed: true, ..*said };
    }
    other.other_last = own.said.has_ended();
    if [own.said, other.said].iter().all(|said| said.has_ended() && said.heard_last) {
        (own.state, other.state) = (State::Closing, State::Closing);
    }
}
