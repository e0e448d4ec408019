//! A TCP segment on its way, with what the test knows of it and nobody else sees.

/// An address and a port.
pub type End = ([u8; 4], u16);

/// The packet's fields, and whose it is.
#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub src: End,
    pub dst: End,
    pub flags: u8,
    pub seq: u32,
    pub ack: u32,
    /// One byte of payload.
    pub payload: bool,
    /// Hidden: the connection that it belongs to, by its place in the client's list.
    pub connection: usize,
    /// Hidden: the pod that sent it; `None`: the client, or the balancer in somebody's name.
    pub pod: Option<usize>,
    /// Hidden: the pod that the client took for its peer when it sent this.
    pub peer: Option<usize>,
}

impl Segment {
    /// How much of the sequence it takes.
    pub fn length(&self) -> u32 {
        u32::from(self.payload) + u32::from(self.has(FIN)) + u32::from(self.has(SYN))
    }

    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The RST that answers it (RFC 9293, section 3.10.7.1); a RST is not answered.
    pub fn reset(&self) -> Option<Self> {
        if self.has(RST) {
            return None;
        }
        let (flags, seq, ack) =
            if self.has(ACK) { (RST, self.ack, 0) } else { (RST | ACK, 0, self.seq.wrapping_add(self.length())) };
        Some(Self { src: self.dst, dst: self.src, flags, seq, ack, payload: false, ..*self })
    }
}

pub use lb_common::state::tcp_flag::{ACK, FIN, RST, SYN};

/// A small seeded generator (`SplitMix64`): the network's dice.
pub struct Dice(pub u64);

impl Dice {
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.any() % bound
    }

    pub fn percent(&mut self, chance: u8) -> bool {
        self.below(100) < u64::from(chance)
    }

    pub fn word(&mut self) -> u32 {
        u32::try_from(self.any() >> 32).unwrap()
    }
}
