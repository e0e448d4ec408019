//! A script of bytes: packets, passing time and changes of the tables.
//!
//! [`play`] runs it over plain tables, and after each packet the tables must still make sense.
//!
//! The first byte says how the script is read: bit 0, of which family its packets are; bit 1, whether the scene is a wide one, with SCTP,
//! external clients, node ports, encapsulated packets, ICMP errors and fragments.

mod bytes;
mod judge;
mod scene;

use std::collections::BTreeSet;

pub use bytes::Script;
use judge::{QueryKind, Seen, judge};
use scene::{BACKEND_PORT, BACKENDS, NODE_PORT, PORT, Scene, address, net};

use lb_common::abi::{FlowKey, SCTP, TCP, UDP};
use lb_common::decide::{
    Action, Hook, Inside, Packet, Step, Work, as_refusal, decide, foreign, inside, is_about_tunnelled, later_fragment,
    malformed, open, pair_key, quoted, quoted_elsewhere, refused, retry, stray_fragment,
};
use lb_common::outcome::Outcome;
use lb_common::plain::tuple;
use lb_common::state::tcp_flag;

const HOOKS: [Hook; 6] = [Hook::POD_IN, Hook::POD_OUT, Hook::BRIDGE_IN, Hook::NODE_IN, Hook::NODE_OUT, Hook::XDP];
/// Hooks that see packets of external links: only these decapsulate.
const OF_EXTERNAL_LINKS: [Hook; 3] = [Hook::NODE_IN, Hook::NODE_IN_L3, Hook::XDP];

/// What comes next in a script.
#[derive(Debug)]
pub enum Next<const N: usize> {
    /// The tables have changed, or time has passed.
    Change,
    /// A packet meets a hook.
    Packet(Hook, Packet<N>),
    /// An encapsulated packet meets a hook; this is the outer destination.
    Encapsulated(Hook, Packet<N>, [u8; N]),
    /// An ICMP error, as the programs show it: the quoted tuple reversed, what it says, and the quoted sequence number.
    Error(Hook, FlowKey<N>, u8, u32),
    /// A packet that goes a flow's way without being one of its own, or goes nowhere.
    Beside(Hook, FlowKey<N>, u8),
}

impl Script<'_> {
    /// What comes next; changes are made in the scene. `None`: the script is over.
    pub fn next<const N: usize>(&mut self, scene: &mut Scene<N>) -> Option<Next<N>> {
        match self.byte()? {
            0..=15 => scene.tables.now_ns += u64::from(self.byte()?) * 500_000_000,
            16..=23 => scene.tables.now_ns += u64::from(self.byte()?) * 60_000_000_000,
            24..=39 => scene.change_backend(self)?,
            40..=55 => scene.change_service(self)?,
            56..=63 => scene.press(self)?,
            64..=71 => scene.evict(self)?,
            72..=95 if scene.is_wide => return self.error(scene),
            96..=111 if scene.is_wide => {
                let hook = self.one_of(&HOOKS)?;
                return Some(Next::Beside(hook, self.tuple(scene)?, self.byte()?));
            }
            112..=143 if scene.is_wide => {
                let hook = self.one_of(&OF_EXTERNAL_LINKS)?;
                let hosts = [(net::BACKENDS, 1), (net::BACKENDS, 2), (net::BACKENDS, 3), (net::NODES, 1)];
                let (network, host) = self.one_of(&hosts)?;
                return Some(Next::Encapsulated(hook, self.packet(scene)?, address(network, host)));
            }
            206..=210 if scene.is_wide => {
                let hook = self.one_of(&HOOKS)?;
                let mut packet = self.packet(scene)?;
                // No service has it.
                packet.key.dst = address(net::VIPS, 3);
                return Some(Next::Packet(hook, packet));
            }
            216..=221 if scene.is_wide => scene.hand_over(self)?,
            _ => {
                let hook = self.one_of(&HOOKS)?;
                return Some(Next::Packet(hook, self.packet(scene)?));
            }
        }
        Some(Next::Change)
    }

    fn error<const N: usize>(&mut self, scene: &Scene<N>) -> Option<Next<N>> {
        let hook = self.one_of(&HOOKS)?;
        let key = self.tuple(scene)?;
        let what = self.byte()?;
        let sequence = if key.protocol == UDP { 0 } else { self.one_of(&[1_000_u32, 999, u32::MAX, 0])? };
        Some(Next::Error(hook, key, what, sequence))
    }

    /// A tuple: a request, a direct packet or an answer, of a flow that is there or not.
    fn tuple<const N: usize>(&mut self, scene: &Scene<N>) -> Option<FlowKey<N>> {
        let protocol = self.one_of(if scene.is_wide { &[TCP, SCTP, UDP] } else { &[TCP, TCP, UDP] })?;
        let src_port = 4_000 + u16::from(self.byte()? % 3);
        let clients = [(net::CLIENTS, 2), (net::CLIENTS, 3), (net::BACKENDS, 1)];
        let outside = [(net::OUTSIDE, 1), (net::OUTSIDE, 2), (net::NODES, 1), (net::NODES, 2), (net::VIPS, 1)];
        let all: Vec<(u8, u8)> = clients.iter().chain(outside.iter().filter(|_| scene.is_wide)).copied().collect();
        let (network, host) = self.one_of(&all)?;
        let mut asked = tuple(protocol, (address(network, host), src_port), (address(net::VIPS, 1), PORT));
        match self.byte()? % if scene.is_wide { 6 } else { 2 } {
            0 | 2 => {}
            1 | 3 => asked.dst = address(net::VIPS, 2),
            way => (asked.dst, asked.dst_port) = (address(net::NODES, way - 3), NODE_PORT),
        }
        let backend = address(net::BACKENDS, 1 + self.byte()? % BACKENDS);
        let direct = FlowKey { dst: backend, dst_port: BACKEND_PORT, ..asked };
        // What was forwarded may be answered, under whatever port.
        Some(match self.byte()? % 8 {
            0..=2 => asked,
            3 => direct,
            4 => direct.reversed(),
            way => {
                let tables = &scene.tables;
                let known = if way == 5 {
                    tables.flows.get(&asked).copied()
                } else {
                    tables.half_open.get(&asked).map(|it| it.flow)
                };
                known.map_or(asked, |flow| pair_key(&asked, &flow))
            }
        })
    }

    fn packet<const N: usize>(&mut self, scene: &Scene<N>) -> Option<Packet<N>> {
        use tcp_flag::{ACK, FIN, RST, SYN};
        let key = self.tuple(scene)?;
        let flags = self.one_of(&[SYN, SYN | ACK, ACK, RST | ACK, FIN, 255])?;
        let number = self.one_of(&[1_000_u32, 1_001, u32::MAX, 0])?;
        if key.protocol == UDP {
            return Some(Packet::new(key, 0));
        }
        Some(Packet { seq: number, ack: self.one_of(&[1_001_u32, 0, 7, u32::MAX])?, ..Packet::new(key, flags) })
    }
}

/// Plays a script, and says what became of its packets; panics when a rule is broken.
#[must_use]
pub fn play(script: &[u8]) -> BTreeSet<Outcome> {
    match Script::of(script) {
        Some((false, is_wide, script)) => play_in::<4>(script, is_wide),
        Some((true, is_wide, script)) => play_in::<16>(script, is_wide),
        None => BTreeSet::new(),
    }
}

fn play_in<const N: usize>(mut script: Script<'_>, is_wide: bool) -> BTreeSet<Outcome> {
    let mut scene = Scene::<N>::new(is_wide);
    while let Some(next) = script.next(&mut scene) {
        match next {
            Next::Change => {}
            Next::Packet(hook, packet) => ask(&mut scene, hook, Work::new(packet)),
            Next::Encapsulated(hook, packet, chosen) => {
                let mut work = Work::new(packet);
                work.chosen = chosen;
                // An unrelated packet stays encapsulated.
                if inside(&mut scene.tables, &mut work) != Inside::Foreign {
                    ask(&mut scene, hook, work);
                }
            }
            Next::Error(hook, key, what, sequence) => report(&mut scene, hook, key, what, sequence),
            Next::Beside(hook, key, which) => concern(&mut scene, hook, key, which),
        }
    }
    scene.outcomes
}

fn ask<const N: usize>(scene: &mut Scene<N>, hook: Hook, mut work: Work<N>) {
    let seen = Seen::before(scene, QueryKind::Packet, hook, &work);
    decide(&mut scene.tables, &mut work, hook);
    judge(scene, &seen, &work.verdict);
}

fn report<const N: usize>(scene: &mut Scene<N>, hook: Hook, key: FlowKey<N>, what: u8, sequence: u32) {
    let mut work = Work::new(Packet::new(key, 0));
    if what & 0xc == 0xc {
        let seen = Seen::before(scene, QueryKind::Outer, hook, &work);
        if is_about_tunnelled(&mut scene.tables, &mut work) {
            judge(scene, &seen, &work.verdict);
        }
        return;
    }
    if what & 1 != 0 && key.protocol == TCP {
        as_refusal(&mut work, sequence);
        let seen = Seen::before(scene, QueryKind::Refusal, hook, &work);
        let tables = &mut scene.tables;
        if open(tables, &mut work, hook, Step::Handshake) == Step::Retry {
            retry(tables, &mut work, hook, Step::Retry);
        }
        if refused(&mut work) {
            judge(scene, &seen, &work.verdict);
            return;
        }
        work.packet.tcp_flags = 0;
    } else {
        scene.tables.notes.clear();
    }
    let seen = Seen::before(scene, QueryKind::Error, hook, &work);
    quoted(&mut scene.tables, &mut work, hook);
    judge(scene, &seen, &work.verdict);
    let is_nobodys = work.verdict.action == Action::Pass && work.verdict.outcome == Outcome::Passed;
    if is_nobodys && hook.has(Hook::FROM_OUTSIDE) && quoted_elsewhere(&mut scene.tables, &mut work, hook) {
        judge(scene, &seen, &work.verdict);
    }
}

fn concern<const N: usize>(scene: &mut Scene<N>, hook: Hook, key: FlowKey<N>, which: u8) {
    let mut work = Work::new(Packet::new(key, 0));
    let seen = Seen::before(scene, QueryKind::Beside, hook, &work);
    let tables = &mut scene.tables;
    match which % 4 {
        0 => foreign(tables, &mut work, hook),
        1 => malformed(tables, &mut work),
        2 => stray_fragment(tables, &mut work),
        _ => later_fragment(tables, &mut work, hook),
    }
    judge(scene, &seen, &work.verdict);
}
