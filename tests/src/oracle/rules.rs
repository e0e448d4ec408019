//! The rules: the result of a packet, and the model after it.

use std::net::SocketAddr;

use anyhow::Result;
use lb_common::outcome::Outcome;

use super::connection::{Connection, Second};
use super::first_packet::{direct, open};
use super::model::Model;
use super::routes::Route;
use super::wire::{ACK, FIN, Protocol, RST, SYN};
use super::{adopted, beside, closed, established, unanswered};
use crate::test_run::Hook;

/// A packet as far as the rules look at it.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub hook: Hook,
    pub protocol: Protocol,
    pub src: SocketAddr,
    pub dst: SocketAddr,
    pub tcp_flags: u8,
    pub sequence: u32,
    pub acknowledgement: u32,
    /// Bytes behind the headers.
    pub data: u32,
    /// How many hops the packet may take.
    pub hops: u8,
}

/// What was seen of the random choices: the addresses in the packet that came out, or that the tables say it is to get, and what it was counted
/// as.
#[derive(Clone, Copy, Debug)]
pub struct Hint {
    pub src: SocketAddr,
    pub dst: SocketAddr,
    pub torn: bool,
    /// It was counted as a refusal that the client is not told.
    pub suppressed: bool,
    /// It was counted as one that needs an address of this node in vain.
    pub no_address: bool,
    /// It was counted as one that needs a port in vain: for this backend, 0 for none.
    pub no_port: Option<u32>,
    /// The backend that was counted as ejected.
    pub ejected: Option<u32>,
}

/// What must happen to the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Pass,
    Drop,
    Refuse,
    /// These addresses.
    Rewrite {
        src: SocketAddr,
        dst: SocketAddr,
        onward: Onward,
    },
}

/// Where a rewritten packet goes from the hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onward {
    /// It goes on as it would have.
    Stack,
    /// Out by the routing table.
    Routed,
    /// The same, or nowhere: the stack would not take it.
    Sent,
    /// Back over the link that it came by: its two ends have traded places.
    Back,
}

/// What must happen, and how it is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    pub fate: Fate,
    pub outcome: Outcome,
    /// Service and backend it is counted for; 0: none.
    pub service: u32,
    pub backend: u32,
    /// What was learnt of backends beside it.
    pub notes: Vec<(u32, Outcome)>,
    /// It begins a flow, and is left to tc as it came: that counts, too.
    pub begins_at_tc: bool,
}

/// Left alone.
pub const PASS: Expected = Expected {
    fate: Fate::Pass,
    outcome: Outcome::Passed,
    service: 0,
    backend: 0,
    notes: Vec::new(),
    begins_at_tc: false,
};

impl Expected {
    /// Left to tc as it came: what a flow begins as is counted here, and what was learnt of backends.
    pub fn handed(self) -> Self {
        let sent = matches!(self.fate, Fate::Rewrite { .. });
        if sent && !matches!(self.outcome, Outcome::Forwarded | Outcome::Replied) {
            return Self { fate: Fate::Pass, begins_at_tc: true, ..self };
        }
        Self { notes: self.notes, outcome: Outcome::HandedToTc, ..PASS }
    }
}

impl Asked {
    /// Where the packet goes with these ends.
    fn onward(self, src: SocketAddr, dst: SocketAddr, masqueraded: bool, routed: bool) -> Onward {
        if masqueraded && (src.ip(), dst.ip()) == (self.dst.ip(), self.src.ip()) {
            Onward::Back
        } else if masqueraded {
            Onward::Sent
        } else if routed {
            Onward::Routed
        } else {
            Onward::Stack
        }
    }

    /// Back to the client, as the service; `early`: sent on from the hook.
    pub fn to_client(self, connection: &Connection, early: bool) -> Expected {
        let (src, dst) = (connection.target, connection.client);
        let onward = self.onward(src, dst, connection.masqueraded, early);
        let backend = connection.backend.map_or(0, |(id, _)| id);
        Expected { fate: Fate::Rewrite { src, dst, onward }, outcome: Outcome::Replied, backend, ..PASS }
    }

    /// Translates requests.
    pub fn serves_clients(self) -> bool {
        self.hook != Hook::PodOut
    }

    /// The link is the client's own.
    pub fn is_clients_link(self) -> bool {
        self.hook == Hook::PodIn
    }

    /// Comes from outside this node.
    pub fn is_from_outside(self) -> bool {
        matches!(self.hook, Hook::NodeIn | Hook::Xdp)
    }

    /// Serves clients whose own link has no program.
    pub fn catches_all(self) -> bool {
        matches!(self.hook, Hook::BridgeIn | Hook::NodeOut)
    }

    /// May make a flow.
    pub fn opens_or_udp(self) -> bool {
        self.protocol == Protocol::Udp || self.opens()
    }

    pub fn opens(self) -> bool {
        self.protocol == Protocol::Tcp && self.tcp_flags & (SYN | ACK | RST | FIN) == SYN
    }

    pub fn accepts(self) -> bool {
        self.protocol == Protocol::Tcp && self.tcp_flags & (SYN | ACK | RST | FIN) == SYN | ACK
    }

    /// The sequence number that a connection begins with; UDP has none.
    pub fn isn(self) -> u32 {
        if self.protocol == Protocol::Tcp { self.sequence } else { 0 }
    }

    /// Whether answers of such a connection are translated at this hook; if so, whether they are sent on from here.
    pub fn sees_answers(self, early: bool) -> Option<bool> {
        let early = early && matches!(self.hook, Hook::PodIn | Hook::BridgeIn | Hook::NodeIn | Hook::Xdp);
        (early || matches!(self.hook, Hook::PodOut | Hook::NodeOut)).then_some(early)
    }

    /// Told that the backend is gone; a datagram is dropped.
    pub fn evicted(self, backend: u32) -> Expected {
        match self.protocol {
            Protocol::Tcp => self.refuse(Outcome::Evicted, 0, backend),
            Protocol::Udp => Expected { fate: Fate::Drop, outcome: Outcome::Evicted, backend, ..PASS },
        }
    }

    /// The number that follows this segment: SYN and FIN count as a byte each (RFC 9293, section 3.4).
    pub fn next(self) -> u32 {
        let controls = (self.tcp_flags & (SYN | FIN)).count_ones();
        self.sequence.wrapping_add(self.data).wrapping_add(controls)
    }

    pub fn resets(self) -> bool {
        self.protocol == Protocol::Tcp && self.tcp_flags & RST != 0
    }

    /// Answered to its sender.
    pub fn refuse(self, outcome: Outcome, service: u32, backend: u32) -> Expected {
        // A RST is never answered.
        let silent = self.protocol == Protocol::Tcp && self.tcp_flags & RST != 0;
        Expected { fate: if silent { Fate::Drop } else { Fate::Refuse }, outcome, service, backend, ..PASS }
    }

    /// Sent to the connection's answerer.
    pub fn to_answerer(self, connection: &Connection, outcome: Outcome, service: u32) -> Expected {
        let (src, dst) = (connection.seen_client, connection.answerer);
        let onward = self.onward(src, dst, connection.masqueraded, self.hook == Hook::NodeOut);
        let fate = Fate::Rewrite { src, dst, onward };
        Expected { fate, outcome, service, backend: connection.backend.map_or(0, |(id, _)| id), ..PASS }
    }
}

/// Decides over a packet and changes the model as it must change.
pub fn decide(model: &mut Model, asked: Asked, hint: Hint) -> Result<Expected> {
    let expected = at_any_hook(model, asked, hint)?;
    let handed = asked.hook == Hook::Xdp
        && match expected.fate {
            // XDP cannot turn a packet into its answer: tc will.
            Fate::Refuse | Fate::Rewrite { onward: Onward::Back, .. } => true,
            // tc counts it.
            Fate::Pass => expected.outcome != Outcome::Passed,
            // Nor can it ask for a neighbour, or leave by a link that sends nothing for it.
            Fate::Rewrite { dst, onward: Onward::Routed | Onward::Sent, .. } => {
                asked.hops <= 1 || !matches!(model.routes().to(dst.ip()), Route::Known(link) if link.sends)
            }
            _ => false,
        };
    Ok(if handed { expected.handed() } else { expected })
}

fn at_any_hook(model: &mut Model, asked: Asked, hint: Hint) -> Result<Expected> {
    let Asked { protocol, src, dst, .. } = asked;
    let mut why = Outcome::Selected;
    let turn = if let Some(turn) = adopted::packet(model, asked) {
        (usize::MAX, turn)
    } else if let Some(at) = model.asked(protocol, src, dst) {
        (at, established::ask(model, asked, at))
    } else if let Some(at) = model.answered(protocol, src, dst) {
        return Ok(established::answer(model, asked, at));
    } else if let Some(turn) = half_open(model, asked, hint)? {
        turn
    } else if asked.serves_clients() {
        (usize::MAX, ConnectionOutcome::Anew(why))
    } else {
        return Ok(PASS);
    };
    match turn {
        (_, ConnectionOutcome::Decided(expected)) => return Ok(expected),
        (at, ConnectionOutcome::Anew(outcome)) => {
            if at != usize::MAX && outcome != Outcome::SecondHandshake {
                if model.connections[at].has_ended() {
                    // The tuple of its answers goes on to rest.
                    model.connections[at].forward = None;
                    model.tidy();
                } else {
                    model.connections.remove(at);
                }
            }
            why = outcome;
        }
    }
    if let Some(expected) = open(model, asked, why, hint)? {
        return Ok(expected);
    }
    if unserved(model, asked) {
        return Ok(asked.refuse(Outcome::RefusedUnserved, 0, 0));
    }
    // No service has the address, and nobody else can.
    if model.is_unallocated(dst.ip()) {
        return Ok(Expected { fate: Fate::Drop, outcome: Outcome::DroppedNoService, ..PASS });
    }
    if asked.is_clients_link() { direct(model, asked, hint) } else { Ok(PASS) }
}

/// Whether the packet is for an address of services at a port that nobody serves, and goes no further.
fn unserved(model: &Model, asked: Asked) -> bool {
    let vip = model.vips.get(&asked.dst.ip());
    match asked.hook {
        // Whatever comes from the wire for such an address would go back there.
        Hook::NodeIn | Hook::Xdp => vip.is_some(),
        // Nor may anything leave for one; the other ports of an external IP may be somebody's own.
        Hook::NodeOut => vip == Some(&true),
        _ => vip == Some(&true) && asked.opens_or_udp(),
    }
}

/// What nobody has answered yet is looked for by what may begin or answer it, what has ended by what may come late. `None`: nothing was
/// found.
fn half_open(model: &mut Model, asked: Asked, hint: Hint) -> Result<Option<(usize, ConnectionOutcome)>> {
    let Asked { protocol, src, dst, .. } = asked;
    let has = |flag: u8| protocol == Protocol::Tcp && asked.tcp_flags & flag != 0;
    let begins = asked.opens_or_udp() || asked.accepts() || has(RST);
    let ended = |at: &usize| model.connections[*at].has_ended();
    if let Some(at) = model.asking(protocol, src, dst).filter(ended)
        && (begins || has(FIN) || (asked.serves_clients() && model.connections[at].backend.is_some()))
    {
        return Ok(Some((at, closed::ask(model, asked, at))));
    }
    // A backend may still know another connection of a SNAT tuple that was reused: the client judges.
    let is_reused = model.is_reused_port(dst.port());
    if let Some(at) = model.answering(protocol, src, dst).filter(ended)
        && (begins || has(FIN) || is_reused)
    {
        return Ok(Some((at, ConnectionOutcome::Decided(closed::answer(model, asked, at)))));
    }
    if !begins {
        let Some(at) = model.answering(protocol, src, dst).filter(|_| is_reused) else { return Ok(None) };
        return Ok(Some((at, ConnectionOutcome::Decided(unanswered::answer(model, asked, at, hint)?))));
    }
    if let Some(at) = model.asking(protocol, src, dst) {
        return Ok(Some((at, unanswered::ask(model, asked, at, hint)?)));
    }
    if let Some(at) = model.answering(protocol, src, dst) {
        return Ok(Some((at, ConnectionOutcome::Decided(unanswered::answer(model, asked, at, hint)?))));
    }
    if protocol == Protocol::Tcp && asked.serves_clients() {
        // The connection that the second SYN was beside is no more.
        let known = |second: &Second| !second.direct || asked.is_clients_link();
        let before = model.seconds.len();
        model.seconds.retain(|second| (second.client, second.target) != (src, dst) || !known(second));
        if model.seconds.len() < before && beside::follows(model, asked) {
            return Ok(Some((usize::MAX, ConnectionOutcome::Decided(beside::forward(model, asked)))));
        }
    }
    Ok(None)
}

/// What became of a client's packet on a connection.
pub enum ConnectionOutcome {
    Decided(Expected),
    /// It is over: the packet is a first one, and counts as this.
    Anew(Outcome),
}
