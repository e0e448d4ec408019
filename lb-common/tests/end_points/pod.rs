//! A backend's TCP: accepts, echoes bytes, remembers each connection that it accepted; or is dead, deaf or slow.

use std::collections::HashMap;

use super::segment::{ACK, End, FIN, RST, SYN, Segment};

/// What a pod does with what it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Live,
    /// Nothing comes back: its machine is gone, or a policy drops.
    Silent,
    /// Its port is closed.
    Refusing,
    /// Answers, so many milliseconds late.
    Slow(u64),
}

/// One process behind an address. The address may later be another one's.
pub struct Pod {
    pub address: End,
    pub mode: Mode,
    accepted: HashMap<End, Accepted>,
    next_iss: u32,
}

/// Its end of a connection.
struct Accepted {
    connection: usize,
    isn: u32,
    iss: u32,
    received: u32,
    sent: u32,
    open: bool,
    /// Both ends have said that they are done.
    finished: bool,
    /// The last thing said, said again when the client asks again.
    last: Segment,
    retransmits: u32,
}

/// SYN+ACKs are sent again so often.
const SYN_ACKS: u32 = 4;

/// Answers, and a timer for the SYN+ACK to this client: delay.
#[derive(Default)]
pub struct Deeds {
    pub sent: Vec<Segment>,
    pub timer: Option<(u64, End, usize)>,
    /// A byte of this connection was taken, from this segment.
    pub took: Option<(usize, Segment)>,
}

impl Pod {
    pub fn new(address: End, mode: Mode, seed: u32) -> Self {
        Self { address, mode, accepted: HashMap::new(), next_iss: seed }
    }

    pub fn receive(&mut self, own: usize, segment: &Segment) -> Deeds {
        let mut deeds = Deeds::default();
        match self.mode {
            Mode::Silent => {}
            Mode::Refusing if !segment.has(RST) => {
                self.accepted.remove(&segment.src);
                deeds.sent.extend(segment.reset().map(|reset| Segment { pod: Some(own), ..reset }));
            }
            Mode::Refusing | Mode::Live | Mode::Slow(_) => self.accept(own, segment, &mut deeds),
        }
        deeds
    }

    /// Time to say SYN+ACK again.
    pub fn strike(&mut self, client: End, connection: usize) -> Deeds {
        let mut deeds = Deeds::default();
        if self.mode == Mode::Silent {
            return deeds;
        }
        let waiting = self.accepted.get_mut(&client).filter(|it| it.connection == connection && !it.open);
        if let Some(it) = waiting
            && it.retransmits < SYN_ACKS
        {
            it.retransmits += 1;
            deeds.sent.push(it.last);
            deeds.timer = Some((1_000 << it.retransmits, client, connection));
        } else if self.accepted.get(&client).is_some_and(|it| it.connection == connection && !it.open) {
            self.accepted.remove(&client);
        }
        deeds
    }

    fn accept(&mut self, own: usize, segment: &Segment, deeds: &mut Deeds) {
        let stateless = |reset: Segment| Segment { pod: Some(own), peer: None, ..reset };
        let Some(it) = self.accepted.get_mut(&segment.src) else {
            if !segment.has(SYN) || segment.has(ACK) || segment.has(RST) {
                deeds.sent.extend(segment.reset().map(stateless));
                return;
            }
            return self.listen(own, segment, deeds);
        };
        if segment.has(RST) {
            if segment.seq == it.received {
                self.accepted.remove(&segment.src);
            }
            return;
        }
        if segment.has(SYN) {
            // Once more the SYN that is known, or somebody else's: where we are is what there is to say.
            let again =
                if segment.seq == it.isn && !it.open { it.last } else { it.here(own, self.address, segment.src) };
            deeds.sent.push(again);
            return;
        }
        if !it.open {
            if segment.ack != it.iss.wrapping_add(1) || segment.seq.wrapping_sub(it.received) > 1 {
                deeds.sent.extend(segment.reset().map(stateless));
                return;
            }
            it.open = true;
        }
        if segment.seq != it.received {
            if segment.length() > 0 {
                deeds.sent.push(it.last);
            }
            return;
        }
        if segment.length() == 0 {
            if it.finished && segment.ack == it.sent {
                self.accepted.remove(&segment.src);
            }
            return;
        }
        it.received = it.received.wrapping_add(segment.length());
        let mut answer = it.here(own, self.address, segment.src);
        if segment.has(FIN) {
            answer.flags |= FIN;
        } else {
            deeds.took = Some((it.connection, *segment));
            answer.payload = true;
        }
        it.sent = it.sent.wrapping_add(answer.length());
        it.last = answer;
        deeds.sent.push(answer);
        it.finished = segment.has(FIN);
    }

    fn listen(&mut self, own: usize, segment: &Segment, deeds: &mut Deeds) {
        let iss = self.next_iss;
        self.next_iss = self.next_iss.wrapping_add(0x0100_1001);
        let last = Segment {
            src: self.address,
            dst: segment.src,
            flags: SYN | ACK,
            seq: iss,
            ack: segment.seq.wrapping_add(1),
            payload: false,
            connection: segment.connection,
            pod: Some(own),
            peer: None,
        };
        let accepted = Accepted {
            connection: segment.connection,
            isn: segment.seq,
            iss,
            received: segment.seq.wrapping_add(1),
            sent: iss.wrapping_add(1),
            open: false,
            finished: false,
            last,
            retransmits: 0,
        };
        self.accepted.insert(segment.src, accepted);
        deeds.sent.push(last);
        deeds.timer = Some((1_000, segment.src, segment.connection));
    }
}

impl Accepted {
    /// An acknowledgement of all that came.
    fn here(&self, own: usize, address: End, client: End) -> Segment {
        Segment {
            src: address,
            dst: client,
            flags: ACK,
            seq: self.sent,
            ack: self.received,
            payload: false,
            connection: self.connection,
            pod: Some(own),
            peer: None,
        }
    }
}
