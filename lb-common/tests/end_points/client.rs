//! A client's TCP: opens, sends one byte after the other and waits for each echo, ends or just stops.

use super::segment::{ACK, End, FIN, RST, SYN, Segment};

/// What a connection is to do.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub start_ms: u64,
    pub port: u16,
    pub vip: usize,
    /// How many bytes are sent and echoed.
    pub bytes: u32,
    /// Pause before each byte.
    pub pause_ms: u64,
    pub ending: Ending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Fin,
    Rst,
    /// The client forgets it: its machine restarted.
    Vanish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Opening,
    Open,
    Finishing,
    Over(Over),
}

/// How it ended for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    Done,
    Reset,
    Refused,
    TimedOut,
}

/// SYNs go out at 0, 1, 3, 7, 15, 31 and 63 s, as from Linux.
const SYNS: u32 = 7;
/// Data and FINs likewise, up to a minute apart.
const SENDS: u32 = 9;

pub struct Connection {
    pub plan: Plan,
    pub client: End,
    pub service: End,
    pub isn: u32,
    pub state: State,
    /// The pod whose SYN+ACK was taken.
    pub peer: Option<usize>,
    pub opened_ms: Option<u64>,
    pub syns: u32,
    echoed: u32,
    received: u32,
    tries: u32,
    /// What is sent again when the timer of this number strikes.
    timer: u64,
    waiting: bool,
}

/// What is to happen: segments to send, and a timer to set (delay, number).
#[derive(Default)]
pub struct Deeds {
    pub sent: Vec<Segment>,
    pub timer: Option<(u64, u64)>,
}

impl Connection {
    pub fn new(plan: Plan, client: End, service: End, isn: u32) -> Self {
        Self {
            plan,
            client,
            service,
            isn,
            state: State::Opening,
            peer: None,
            opened_ms: None,
            syns: 0,
            echoed: 0,
            received: 0,
            tries: 0,
            timer: 0,
            waiting: false,
        }
    }

    pub fn is_held(&self) -> bool {
        !matches!(self.state, State::Over(_))
    }

    pub fn open(&mut self, number: usize) -> Deeds {
        let mut deeds = Deeds::default();
        self.send_now(number, &mut deeds);
        deeds
    }

    /// The timer of this number expired.
    pub fn strike(&mut self, number: usize, timer: u64) -> Deeds {
        let mut deeds = Deeds::default();
        if timer != self.timer || !self.is_held() {
            return deeds;
        }
        if self.waiting {
            self.waiting = false;
            self.tries = 0;
        } else if self.tries >= if self.state == State::Opening { SYNS } else { SENDS } {
            self.state = State::Over(Over::TimedOut);
            return deeds;
        }
        self.send_now(number, &mut deeds);
        deeds
    }

    /// A segment arrived under this connection's tuple.
    pub fn receive(&mut self, number: usize, segment: &Segment, now_ms: u64) -> Deeds {
        let mut deeds = Deeds::default();
        match self.state {
            State::Opening => self.opening(number, segment, now_ms, &mut deeds),
            State::Open | State::Finishing => self.opened(number, segment, &mut deeds),
            State::Over(_) => deeds.sent.extend(segment.reset()),
        }
        deeds
    }

    fn opening(&mut self, number: usize, segment: &Segment, now_ms: u64, deeds: &mut Deeds) {
        let right = segment.has(ACK) && segment.ack == self.isn.wrapping_add(1);
        if segment.has(RST) {
            if right {
                self.state = State::Over(Over::Refused);
            }
        } else if !right {
            // A challenge, or the answer to a SYN of long ago.
            deeds.sent.extend(segment.reset());
        } else if segment.has(SYN) {
            (self.state, self.peer, self.opened_ms) = (State::Open, segment.pod, Some(now_ms));
            self.received = segment.seq.wrapping_add(1);
            deeds.sent.push(self.segment(number, ACK, 0));
            self.next(number, deeds);
        }
    }

    fn opened(&mut self, number: usize, segment: &Segment, deeds: &mut Deeds) {
        if segment.has(RST) {
            if segment.seq == self.received {
                self.state = State::Over(Over::Reset);
            }
            return;
        }
        if segment.has(SYN) || segment.seq != self.received {
            // Out of the window, or an old one again: this is where we are.
            if segment.length() > 0 {
                deeds.sent.push(self.segment(number, ACK, self.echoed));
            }
            return;
        }
        self.received = self.received.wrapping_add(segment.length());
        if self.state == State::Finishing && segment.has(FIN) {
            deeds.sent.push(self.segment(number, ACK, self.echoed + 1));
            self.state = State::Over(Over::Done);
        } else if segment.payload && !self.waiting && self.echoed < self.plan.bytes {
            self.echoed += 1;
            deeds.sent.push(self.segment(number, ACK, self.echoed));
            self.next(number, deeds);
        }
    }

    /// After the pause comes the next byte, or the end.
    fn next(&mut self, _number: usize, deeds: &mut Deeds) {
        self.timer += 1;
        self.waiting = true;
        deeds.timer = Some((self.plan.pause_ms, self.timer));
    }

    fn send_now(&mut self, number: usize, deeds: &mut Deeds) {
        if self.state == State::Open && self.echoed == self.plan.bytes {
            match self.plan.ending {
                Ending::Fin => self.state = State::Finishing,
                Ending::Rst | Ending::Vanish => {
                    if self.plan.ending == Ending::Rst {
                        deeds.sent.push(self.segment(number, RST | ACK, self.echoed));
                    }
                    self.state = State::Over(Over::Done);
                    return;
                }
            }
        }
        let segment = match self.state {
            State::Opening => {
                self.syns += 1;
                Segment { ack: 0, ..self.segment(number, SYN, 0) }
            }
            State::Open => Segment { payload: true, ..self.segment(number, ACK, self.echoed) },
            State::Finishing => self.segment(number, FIN | ACK, self.echoed),
            State::Over(_) => return,
        };
        deeds.sent.push(segment);
        self.tries += 1;
        self.timer += 1;
        deeds.timer = Some((1_000 << (self.tries - 1).min(6), self.timer));
    }

    /// A segment after so many bytes.
    fn segment(&self, number: usize, flags: u8, after: u32) -> Segment {
        let first = if flags & SYN != 0 { self.isn } else { self.isn.wrapping_add(1 + after) };
        Segment {
            src: self.client,
            dst: self.service,
            flags,
            seq: first,
            ack: self.received,
            payload: false,
            connection: number,
            pod: None,
            peer: self.peer,
        }
    }
}
