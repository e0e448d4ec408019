//! The model's connections: the state of each.

use std::net::SocketAddr;

use super::client::Client;
use super::wire::Protocol;
use crate::test_run::Hook;

/// One connection, with the halves of it that the tables hold.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each holds by itself")]
pub struct Connection {
    pub protocol: Protocol,
    pub client: SocketAddr,
    /// What the client asked for: a frontend, or for a direct connection the other end itself.
    pub target: SocketAddr,
    /// Who answers.
    pub answerer: SocketAddr,
    /// The backend's id and generation; `None`: a direct connection under a translated port.
    pub backend: Option<(u32, u32)>,
    /// Who the client was when it began.
    pub who: Client,
    /// The client as the answerer sees it.
    pub seen_client: SocketAddr,
    /// That is another address than the client's own.
    pub masqueraded: bool,
    /// It is one of this node: its port must be none that the node may use itself.
    pub behind_node: bool,
    /// Answers are translated at the first hook that sees them: the client's own link has no program, or they come back to this node
    /// alone.
    pub early: bool,
    /// Where its first packet came by.
    pub hook: Hook,
    /// The sequence number of its SYN.
    pub isn: u32,
    /// When its first packet came.
    pub since_s: u32,
    /// What is remembered until the client shows that it has an answer, and again once it has ended: then nothing but that it is there.
    pub opening: Option<Opening>,
    /// It was begun beside another connection of its client, which goes on until this one is established.
    pub is_beside: bool,
    /// Established: another one was begun beside it.
    pub has_beside: bool,
    pub forward: Option<Half>,
    pub reply: Option<Half>,
}

/// A connection of which the client has shown no answer yet.
#[derive(Clone, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "what is known of it, each by itself")]
pub struct Opening {
    /// Made at the client's own link, for a service that lets connections move.
    pub moves: bool,
    /// The same, as the answerer's half remembers it.
    pub reply_moves: bool,
    /// The backends that it has left, as far as they are remembered, and whether each has refused it.
    pub tried: Vec<(u32, bool)>,
    /// How many there were when it was answered.
    pub moved: u8,
    /// SYNs since it has its backend.
    pub segments: u8,
    /// Its backend has refused it, and the client was not told.
    pub refused: bool,
    /// The numbers of the latest two answers that the client may acknowledge: the latest first.
    pub answers: Option<[u32; 2]>,
    /// The numbers of the latest two answers of the answerer.
    pub heard: Option<[u32; 2]>,
    /// Another backend has answered it: nothing of this one goes to the client.
    pub lost: bool,
    /// It has a claim.
    pub claimed: bool,
}

impl Opening {
    /// Notes an answer of the answerer. Whether it is the first one.
    pub fn hear(&mut self, number: u32) -> bool {
        let first = self.heard.is_none();
        match self.heard {
            None => self.heard = Some([number; 2]),
            Some(known) if known.contains(&number) => {}
            Some([latest, _]) => self.heard = Some([number, latest]),
        }
        first
    }

    /// What the client's half of another attempt remembers, with this answerer's own.
    pub fn with_clients(&self, clients: &Self) -> Self {
        Self { heard: self.heard, lost: self.lost, reply_moves: self.reply_moves, ..clients.clone() }
    }
}

/// The answer that won a connection whose SYN went to several backends: what the client's half was then.
#[derive(Clone, Debug)]
pub struct Claim {
    pub winner: Connection,
}

impl Claim {
    /// Whether it is about this attempt of a client.
    pub fn is_of(&self, other: &Connection) -> bool {
        let it = &self.winner;
        (it.protocol, it.client, it.target, it.isn) == (other.protocol, other.client, other.target, other.isn)
    }
}

/// What the answerer of an answered connection has left unanswered: SYNs with other sequence numbers, and since it drains, its client's segments.
#[derive(Clone, Debug)]
pub struct Second {
    pub client: SocketAddr,
    pub target: SocketAddr,
    pub since_s: u32,
    pub seen_s: u32,
    pub segments: u8,
    /// What the backend had said and heard, if it had not heard the segment: only more than that is an answer.
    pub answers: Option<(u32, u32)>,
    /// The connection is a direct one: only the client's own link knows it.
    pub direct: bool,
}

/// What is remembered of one direction.
#[derive(Clone, Copy, Debug)]
pub struct Half {
    pub state: State,
    pub seen_s: u32,
    /// The other half was given away and is due to be written again.
    pub lost: bool,
    pub said: Said,
    /// The other end has said its last.
    pub other_last: bool,
}

impl Half {
    /// Whether another client may have to wait for its place, though the connection is over.
    pub fn rests(self, now_s: u32) -> bool {
        self.state == State::Closing && now_s.saturating_sub(self.seen_s) <= 60
    }
}

/// What one end of a TCP connection has said, as far as its segments followed on each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// The number of what it says next.
    pub next: u32,
    /// What it has received from the other end.
    pub heard: u32,
    /// It has said its last.
    pub last: bool,
    /// A last segment came whose number follows on nothing: `next` is its end.
    pub claimed: bool,
    /// It has heard the other end's last.
    pub heard_last: bool,
}

impl Said {
    /// Its end is done, or seems to be.
    pub const fn has_ended(self) -> bool {
        self.last || self.claimed
    }
}

/// States only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    HalfOpen,
    Open,
    Stream,
    Closing,
    Evicted,
}

impl Connection {
    /// Whether this packet is the client's.
    pub fn asks(&self, protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> bool {
        !self.is_beside
            && self.protocol == protocol
            && self.forward.is_some()
            && self.client == src
            && self.target == dst
    }

    /// Whether this packet of the client is of what was begun beside its connection.
    pub fn asks_beside(&self, protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> bool {
        Self { is_beside: !self.is_beside, ..self.clone() }.asks(protocol, src, dst)
    }

    /// Whether this packet is the answerer's.
    pub fn answers(&self, protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> bool {
        self.protocol == protocol && self.reply.is_some() && self.answerer == src && self.seen_client == dst
    }

    /// Whether both are answered by the same one, to the same address.
    pub fn shares_answers(&self, other: &Self) -> bool {
        (self.answerer, self.seen_client) == (other.answerer, other.seen_client)
    }

    /// Whether a half has been silent for longer than its state allows.
    pub fn is_silent(&self, half: Half, now_s: u32) -> bool {
        // Both have said their last, and this one has heard it: what is missing is an acknowledgement at most.
        let is_last = half.said.last && half.said.heard_last;
        let limit = match (self.protocol, half.state) {
            (Protocol::Tcp, State::HalfOpen | State::Open) if is_last => 120,
            (Protocol::Tcp, State::HalfOpen) => 60,
            (Protocol::Tcp, State::Open | State::Stream) => 86_400,
            (Protocol::Udp, State::Stream) | (Protocol::Tcp, State::Closing | State::Evicted) => 120,
            (Protocol::Udp, _) => 30,
        };
        now_s.saturating_sub(half.seen_s) > limit
    }
}

impl Connection {
    /// Whether another connection may have the place of this one's replies: it is over, or silent for too long.
    pub fn yields(&self, reply: Half, now_s: u32) -> bool {
        reply.state == State::Closing || self.is_silent(reply, now_s)
    }

    /// Whether it is no established connection any more.
    pub fn has_ended(&self) -> bool {
        let halves = [self.forward, self.reply];
        self.opening.is_some() && halves.into_iter().flatten().any(|half| half.state == State::Closing)
    }
}
