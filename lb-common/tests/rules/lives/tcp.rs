//! One end of a TCP connection: a window of data, fast and timed retransmission, delayed acknowledgements, half-close, close and abort.
//!
//! Numbers are positions from the first byte of the connection on; [`Wire`] has them as they stand in a segment.

#![expect(clippy::cast_possible_truncation, reason = "a sequence number is a position, modulo 2^32")]

use lb_common::state::tcp_flag::{ACK, FIN, RST};

/// A segment as a packet has it.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    pub flags: u8,
    pub seq: u32,
    pub ack: u32,
    pub length: u32,
}

/// How an end is done with its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A FIN behind its last byte; it still reads.
    Half,
    /// The same, once the opposite end has ended.
    Last,
    /// `close()` once it has sent and received so many bytes: a FIN, and a RST for data that comes after it.
    Close(u64),
    /// `SO_LINGER` 0, or data that nobody read, at that moment: a RST behind what was sent.
    Abort(u64),
}

/// What an end is to do.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub bytes: u64,
    pub segment: u64,
    /// How much may be under way.
    pub window: u64,
    pub ending: Ending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Open,
    TimeWait,
    /// There is no socket any more.
    Closed,
}

#[derive(Clone, Debug)]
pub struct End {
    pub plan: Plan,
    pub state: State,
    isn: u32,
    opposite_isn: u32,
    acked: u64,
    pub sent: u64,
    /// Where the FIN is.
    fin: Option<u64>,
    received: u64,
    opposite_fin: Option<u64>,
    /// What came out of order: begin, end.
    beyond: Vec<(u64, u64)>,
    /// The end was closed, and reads no more.
    is_deaf: bool,
    repeated: u32,
    /// Up to where losses are being repaired.
    repairs: u64,
    pub backoff: u32,
    unacknowledged: u32,
}

impl End {
    pub fn new(plan: Plan, isn: u32, opposite_isn: u32) -> Self {
        Self {
            plan,
            state: State::Open,
            isn,
            opposite_isn,
            acked: 0,
            sent: 0,
            fin: None,
            received: 0,
            opposite_fin: None,
            beyond: Vec::new(),
            is_deaf: false,
            repeated: 0,
            repairs: 0,
            backoff: 0,
            unacknowledged: 0,
        }
    }

    pub fn is_over(&self) -> bool {
        self.state != State::Open
    }

    /// Whether something is to be sent again when nothing comes.
    pub fn waits(&self) -> bool {
        self.state == State::Open && self.acked < self.sent
    }

    fn wire(&self, flags: u8, from: u64, to: u64) -> Wire {
        let number = |isn: u32, position: u64| isn.wrapping_add(1).wrapping_add(position as u32);
        let length = (to - from) as u32 - u32::from(flags & FIN != 0);
        Wire { flags, seq: number(self.isn, from), ack: number(self.opposite_isn, self.received), length }
    }

    fn acknowledges(&mut self, out: &mut Vec<Wire>) {
        self.unacknowledged = 0;
        out.push(self.wire(ACK, self.sent, self.sent));
    }

    /// The segment from this position on, once more or for the first time.
    fn send(&mut self, from: u64, out: &mut Vec<Wire>) -> u64 {
        let last = self.fin.unwrap_or(self.plan.bytes);
        let to = last.min(from + self.plan.segment);
        let ends = self.fin == Some(to);
        self.unacknowledged = 0;
        out.push(self.wire(if ends { ACK | FIN } else { ACK }, from, to + u64::from(ends)));
        to + u64::from(ends)
    }

    /// Sends what the window lets out, and ends when the plan says so.
    pub fn go_on(&mut self, out: &mut Vec<Wire>) {
        if self.state != State::Open {
            return;
        }
        let total = self.sent + self.received;
        match self.plan.ending {
            Ending::Abort(after) if total >= after => {
                out.push(self.wire(RST | ACK, self.sent, self.sent));
                self.state = State::Closed;
                return;
            }
            Ending::Close(after) if total >= after && self.fin.is_none() => {
                (self.fin, self.is_deaf) = (Some(self.sent), true);
            }
            Ending::Half if self.fin.is_none() => self.fin = Some(self.plan.bytes),
            Ending::Last if self.opposite_fin.is_some_and(|fin| self.received > fin) => {
                self.fin = self.fin.or(Some(self.plan.bytes));
            }
            _ => {}
        }
        let last = self.fin.map_or(self.plan.bytes, |fin| fin + 1);
        while self.sent < last && self.sent - self.acked < self.plan.window {
            self.sent = self.send(self.sent, out);
        }
    }

    /// Nothing came for a while.
    pub fn strike(&mut self, out: &mut Vec<Wire>) {
        if self.waits() {
            self.backoff += 1;
            self.repairs = self.sent;
            self.send(self.acked, out);
        }
    }

    /// Asks whether the opposite end is there.
    pub fn probe(&self) -> Option<Wire> {
        let probe = self.wire(ACK, self.sent, self.sent);
        (self.state == State::Open).then_some(Wire { seq: probe.seq.wrapping_sub(1), ..probe })
    }

    /// An acknowledgement was delayed long enough.
    pub fn acknowledge_now(&mut self, out: &mut Vec<Wire>) {
        if self.state == State::Open && self.unacknowledged != 0 {
            self.acknowledges(out);
        }
    }

    pub fn receive(&mut self, segment: Wire, out: &mut Vec<Wire>) {
        let near = |isn: u32, number: u32, at: u64| {
            at.saturating_add_signed(i64::from(
                number.wrapping_sub(isn.wrapping_add(1)).wrapping_sub(at as u32).cast_signed(),
            ))
        };
        let seq = near(self.opposite_isn, segment.seq, self.received);
        let is_fin = segment.flags & FIN != 0;
        let end = seq + u64::from(segment.length) + u64::from(is_fin);
        if segment.flags & RST != 0 {
            if seq == self.received {
                self.state = State::Closed;
            } else if self.state == State::Open && seq > self.received && seq - self.received < self.plan.window {
                self.acknowledges(out);
            }
            return;
        }
        let resets = |out: &mut Vec<Wire>| out.push(Wire { flags: RST, seq: segment.ack, ack: 0, length: 0 });
        match self.state {
            State::Closed => return resets(out),
            State::TimeWait if end > seq => return self.acknowledges(out),
            State::TimeWait => return,
            State::Open => {}
        }
        if end == seq && seq + 1 == self.received {
            return self.acknowledges(out);
        }
        if self.is_deaf && end - u64::from(is_fin) > self.received {
            self.state = State::Closed;
            return resets(out);
        }
        self.hear(near(self.isn, segment.ack, self.acked), end == seq, out);
        if end > seq {
            self.take(seq, end, is_fin, out);
        }
        let is_done = self.fin.is_some_and(|fin| self.acked > fin);
        if is_done && self.opposite_fin.is_some_and(|fin| self.received > fin) {
            // The end that sent its FIN last needs no TIME-WAIT.
            let is_last = matches!(self.plan.ending, Ending::Last);
            self.state = if is_last { State::Closed } else { State::TimeWait };
            return;
        }
        self.go_on(out);
    }

    fn hear(&mut self, ack: u64, is_pure: bool, out: &mut Vec<Wire>) {
        if ack > self.sent {
            return;
        }
        if ack > self.acked {
            (self.acked, self.repeated, self.backoff) = (ack, 0, 0);
            if ack < self.repairs {
                self.send(ack, out);
            }
        } else if is_pure && ack == self.acked && self.waits() {
            self.repeated += 1;
            if self.repeated == 3 && self.acked >= self.repairs {
                self.repairs = self.sent;
                self.send(self.acked, out);
            }
        }
    }

    fn take(&mut self, seq: u64, end: u64, is_fin: bool, out: &mut Vec<Wire>) {
        if is_fin {
            self.opposite_fin = Some(end - 1);
        }
        let is_next = seq <= self.received && end > self.received;
        if end > self.received {
            self.beyond.push((seq, end));
            self.beyond.sort_unstable();
            for &(begin, end) in &self.beyond {
                if begin <= self.received {
                    self.received = self.received.max(end);
                }
            }
            let received = self.received;
            self.beyond.retain(|(_, end)| *end > received);
        }
        self.unacknowledged += 1;
        if !is_next || is_fin || self.unacknowledged >= 2 || !self.beyond.is_empty() {
            self.acknowledges(out);
        }
    }
}
