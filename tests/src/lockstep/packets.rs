//! Random packets that depend on earlier ones: answers, repeats, contradictions.

use lb_common::abi::{FlowKey, TCP, UDP};
use lb_common::decide::{Action, Packet, Verdict};
use lb_common::state::tcp_flag::{ACK, FIN, RST, SYN};

use super::tables;
use crate::random::Random;
use crate::test_run::Hook;

/// What was forwarded lately.
pub struct Traffic<const N: usize> {
    said: Vec<Said<N>>,
    next: usize,
    /// So many of the next packets are unknown clients.
    crowd: usize,
}

/// A packet of a client that went to a backend.
#[derive(Clone, Copy)]
struct Said<const N: usize> {
    key: FlowKey<N>,
    /// The tuple of its answer.
    answer: FlowKey<N>,
    isn: u32,
    /// The number of the latest answer.
    number: u32,
}

/// How many exchanges are remembered.
const REMEMBERED: usize = 48;
/// Packets of a crowd: more new clients in a second than the half-open table of this test holds.
const CROWD: usize = 96;

impl<const N: usize> Default for Traffic<N> {
    fn default() -> Self {
        Self { said: Vec::new(), next: 0, crowd: 0 }
    }
}

impl<const N: usize> Traffic<N> {
    /// Notes what went to a backend: it may be answered.
    pub fn heard(&mut self, packet: &Packet<N>, verdict: &Verdict<N>) {
        if verdict.action == Action::ToClient {
            let said = self.said.iter_mut().filter(|said| said.answer == packet.key);
            said.for_each(|said| said.number = packet.seq);
        }
        if verdict.action != Action::ToBackend {
            return;
        }
        let (src, dst) = (verdict.client, verdict.address);
        let sent = FlowKey { src, dst, dst_port: verdict.port, src_port: verdict.client_port, ..packet.key };
        let before = self.said.iter().rev().find(|said| said.key == packet.key);
        let (known, number) = before.map_or((packet.seq, 0), |said| (said.isn, said.number));
        let isn = if packet.tcp_flags & SYN == 0 { known } else { packet.seq };
        let said = Said { key: packet.key, answer: sent.reversed(), isn, number };
        if self.said.len() < REMEMBERED {
            self.said.push(said);
        } else {
            self.said[self.next % REMEMBERED] = said;
            self.next += 1;
        }
    }

    /// Whether clients come all at once: time must not go on meanwhile.
    pub fn is_crowded(&self) -> bool {
        self.crowd > 0
    }

    /// The next packet, and where it comes by.
    pub fn packet(&mut self, random: &mut Random) -> (Hook, Packet<N>) {
        if self.crowd > 0 {
            self.crowd -= 1;
            return (asking(random), newcomer(random));
        }
        if random.one_in(1_000) {
            self.crowd = CROWD;
        }
        if self.said.is_empty() || random.one_in(4) {
            return (asking(random), first(random));
        }
        let said = *random.of(&self.said);
        match random.below(16) {
            0..=6 => answer(random, said),
            7 | 8 => (asking(random), shaped(random, said.key, SYN, said.isn)),
            9 => {
                let isn = number(random);
                (asking(random), shaped(random, said.key, SYN, isn))
            }
            10..=12 => {
                let flags = *random.of(&[ACK, ACK, ACK, FIN | ACK, RST, RST | ACK]);
                let mut packet = shaped(random, said.key, flags, said.isn.wrapping_add(1));
                if packet.key.protocol == TCP && !random.one_in(6) {
                    packet.ack = said.number.wrapping_add(1);
                }
                (asking(random), packet)
            }
            13 => {
                // Directly, as the answer's tuple reversed.
                let flags = *random.of(&[SYN, ACK]);
                let seq = number(random);
                (asking(random), shaped(random, said.answer.reversed(), flags, seq))
            }
            _ => {
                let flags = random.byte();
                let key = if random.one_in(2) { said.key } else { said.answer };
                let seq = number(random);
                (*random.of(&Hook::ALL), shaped(random, key, flags, seq))
            }
        }
    }
}

/// Mostly where clients are.
fn asking(random: &mut Random) -> Hook {
    match random.below(8) {
        0..=3 => Hook::PodIn,
        4 => Hook::NodeIn,
        5 => Hook::Xdp,
        _ => *random.of(&Hook::ALL),
    }
}

fn answer<const N: usize>(random: &mut Random, said: Said<N>) -> (Hook, Packet<N>) {
    let flags = *random.of(&[SYN | ACK, SYN | ACK, SYN | ACK, ACK, ACK, RST | ACK, RST, FIN | ACK]);
    let hook = match random.below(8) {
        0..=2 => Hook::PodOut,
        3 => Hook::NodeIn,
        4 => Hook::Xdp,
        5 => Hook::NodeOut,
        _ => *random.of(&Hook::ALL),
    };
    let seq = number(random);
    let mut packet = shaped(random, said.answer, flags, seq);
    if packet.key.protocol == TCP {
        packet.ack = if random.one_in(6) { number(random) } else { said.isn.wrapping_add(1) };
    }
    (hook, packet)
}

/// A client with a port of its own opens a connection.
fn newcomer<const N: usize>(random: &mut Random) -> Packet<N> {
    let first: Packet<N> = first(random);
    let src_port = 10_000 + u16::try_from(random.below(20_000)).expect("below 20,000");
    shaped(random, FlowKey { protocol: TCP, src_port, ..first.key }, SYN, 1_000)
}

/// A client asks a service; or somebody asks something.
fn first<const N: usize>(random: &mut Random) -> Packet<N> {
    let protocol = *random.of(&[TCP, UDP]);
    let dst_port = if random.one_in(12) { 81 } else { tables::PORT };
    let key = FlowKey {
        src: tables::client(random),
        dst: tables::frontend(1 + random.below(4)),
        src_port: if random.one_in(8) {
            *random.of(&[80, 30_000, 40_000, 61_000, u16::MAX])
        } else {
            4_000 + u16::try_from(random.below(4)).expect("few")
        },
        dst_port,
        protocol,
        pad: [0; 3],
    };
    let flags = if random.one_in(8) { random.byte() } else { SYN };
    let seq = number(random);
    shaped(random, key, flags, seq)
}

fn shaped<const N: usize>(random: &mut Random, key: FlowKey<N>, tcp_flags: u8, seq: u32) -> Packet<N> {
    if key.protocol == UDP {
        return Packet::new(key, 0);
    }
    let ack = if tcp_flags & ACK == 0 { 0 } else { number(random) };
    Packet { seq, ack, ..Packet::new(key, tcp_flags) }
}

/// Numbers that often are the same, and that wrap.
fn number(random: &mut Random) -> u32 {
    *random.of(&[1_000, 1_001, 2_000, u32::MAX, 0])
}
