//! A script of bytes: packets, passing time and changes of the tables. After each packet the tables must still make sense.
//!
//! The first byte says how the script is read: bit 0, of which family its packets are; bit 1, whether the scene is a wide one, with SCTP,
//! external clients, node ports, outer headers, ICMP errors and fragments.

use std::collections::BTreeSet;

use lb_common::abi::{FlowKey, SCTP, TCP, UDP};
use lb_common::decide::{
    Action, Hook, Inside, Packet, Step, Work, as_refusal, decide, foreign, inside, is_about_tunnelled, later_fragment,
    malformed, open, pair_key, quoted, quoted_elsewhere, refused, retry, stray_fragment,
};
use lb_common::outcome::Outcome;
use lb_common::state::tcp_flag;

use crate::judge::{QueryKind, Seen, judge};
use crate::scene::{BACKEND_PORT, BACKENDS, NODE_PORT, PORT, Scene, address, net};

const HOOKS: [Hook; 6] = [Hook::POD_IN, Hook::POD_OUT, Hook::BRIDGE_IN, Hook::NODE_IN, Hook::NODE_OUT, Hook::XDP];
/// Where packets come from the wire: only these open outer headers.
const FROM_THE_WIRE: [Hook; 3] = [Hook::NODE_IN, Hook::NODE_IN_L3, Hook::XDP];

/// Reads a script to its end.
pub struct Script<'a>(&'a [u8]);

impl Script<'_> {
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub fn of<T: Copy>(&mut self, choices: &[T]) -> Option<T> {
        let at = usize::from(self.byte()?) % choices.len();
        Some(choices[at])
    }
}

/// Plays a script, and says what became of its packets; panics when a rule is broken.
pub fn play(script: &[u8]) -> BTreeSet<Outcome> {
    let Some((kind, script)) = script.split_first() else { return BTreeSet::new() };
    let is_wide = kind & 2 != 0;
    if kind & 1 == 0 { play_in::<4>(script, is_wide) } else { play_in::<16>(script, is_wide) }
}

fn play_in<const N: usize>(script: &[u8], is_wide: bool) -> BTreeSet<Outcome> {
    let (mut scene, mut script) = (Scene::<N>::new(is_wide), Script(script));
    while step(&mut scene, &mut script).is_some() {}
    scene.outcomes
}

fn step<const N: usize>(scene: &mut Scene<N>, script: &mut Script<'_>) -> Option<()> {
    match script.byte()? {
        0..=15 => scene.tables.now_ns += u64::from(script.byte()?) * 500_000_000,
        16..=23 => scene.tables.now_ns += u64::from(script.byte()?) * 60_000_000_000,
        24..=39 => scene.change_backend(script)?,
        40..=55 => scene.change_service(script)?,
        56..=63 => scene.press(script)?,
        64..=71 => scene.evict(script)?,
        72..=95 if scene.is_wide => report(scene, script)?,
        96..=111 if scene.is_wide => concern(scene, script)?,
        112..=143 if scene.is_wide => unwrap(scene, script)?,
        _ => send(scene, script)?,
    }
    Some(())
}

/// A tuple: a request, a direct packet or an answer, of a flow that is there or not.
fn tuple<const N: usize>(scene: &Scene<N>, script: &mut Script<'_>) -> Option<FlowKey<N>> {
    let protocol = script.of(if scene.is_wide { &[TCP, SCTP, UDP] } else { &[TCP, TCP, UDP] })?;
    let src_port = 4_000 + u16::from(script.byte()? % 3);
    let clients = [(net::CLIENTS, 2), (net::CLIENTS, 3), (net::BACKENDS, 1)];
    let outside = [(net::OUTSIDE, 1), (net::OUTSIDE, 2), (net::NODES, 1), (net::NODES, 2), (net::VIPS, 1)];
    let all: Vec<(u8, u8)> = clients.iter().chain(outside.iter().filter(|_| scene.is_wide)).copied().collect();
    let (network, host) = script.of(&all)?;
    let src = address(network, host);
    let mut asked = FlowKey { src, dst: address(net::VIPS, 1), src_port, dst_port: PORT, protocol, pad: [0; 3] };
    match script.byte()? % if scene.is_wide { 6 } else { 2 } {
        0 | 2 => {}
        1 | 3 => asked.dst = address(net::VIPS, 2),
        way => (asked.dst, asked.dst_port) = (address(net::NODES, way - 3), NODE_PORT),
    }
    let backend = address(net::BACKENDS, 1 + script.byte()? % BACKENDS);
    let direct = FlowKey { dst: backend, dst_port: BACKEND_PORT, ..asked };
    // What was forwarded may be answered, under whatever port.
    Some(match script.byte()? % 8 {
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

fn packet<const N: usize>(scene: &Scene<N>, script: &mut Script<'_>) -> Option<Packet<N>> {
    let key = tuple(scene, script)?;
    let flags = script.of(&[
        tcp_flag::SYN,
        tcp_flag::SYN | tcp_flag::ACK,
        tcp_flag::ACK,
        tcp_flag::RST | tcp_flag::ACK,
        1,
        255,
    ])?;
    let number = script.of(&[1_000_u32, 1_001, u32::MAX, 0])?;
    if key.protocol == UDP {
        return Some(Packet::new(key, 0));
    }
    Some(Packet { seq: number, ack: script.of(&[1_001_u32, 0, 7, u32::MAX])?, ..Packet::new(key, flags) })
}

fn send<const N: usize>(scene: &mut Scene<N>, script: &mut Script<'_>) -> Option<()> {
    let hook = script.of(&HOOKS)?;
    let packet = packet(scene, script)?;
    ask(scene, hook, Work::new(packet));
    Some(())
}

fn ask<const N: usize>(scene: &mut Scene<N>, hook: Hook, mut work: Work<N>) {
    let seen = Seen::before(scene, QueryKind::Packet, hook, &work);
    decide(&mut scene.tables, &mut work, hook);
    judge(scene, &seen, &work.verdict);
}

/// A packet in an outer header, from another node: for a backend that it names, or somebody else's.
fn unwrap<const N: usize>(scene: &mut Scene<N>, script: &mut Script<'_>) -> Option<()> {
    let hook = script.of(&FROM_THE_WIRE)?;
    let chosen = script.of(&[(net::BACKENDS, 1), (net::BACKENDS, 2), (net::BACKENDS, 3), (net::NODES, 1)])?;
    let mut work = Work::new(packet(scene, script)?);
    work.chosen = address(chosen.0, chosen.1);
    // An unrelated packet goes on in its outer header.
    if inside(&mut scene.tables, &mut work) != Inside::Foreign {
        ask(scene, hook, work);
    }
    Some(())
}

/// An ICMP error, as the programs show it: the quoted tuple reversed.
fn report<const N: usize>(scene: &mut Scene<N>, script: &mut Script<'_>) -> Option<()> {
    let hook = script.of(&HOOKS)?;
    let key = tuple(scene, script)?;
    let what = script.byte()?;
    let sequence = if key.protocol == UDP { 0 } else { script.of(&[1_000_u32, 999, u32::MAX, 0])? };
    let tables = &mut scene.tables;
    let mut work = Work::new(Packet::new(key, 0));
    if what & 0xc == 0xc {
        let seen = Seen::before(scene, QueryKind::Outer, hook, &work);
        if is_about_tunnelled(&mut scene.tables, &mut work) {
            judge(scene, &seen, &work.verdict);
        }
        return Some(());
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
            return Some(());
        }
        work.packet.tcp_flags = 0;
    } else {
        tables.notes.clear();
    }
    let seen = Seen::before(scene, QueryKind::Error, hook, &work);
    quoted(&mut scene.tables, &mut work, hook);
    judge(scene, &seen, &work.verdict);
    let is_nobodys = work.verdict.action == Action::Pass && work.verdict.outcome == Outcome::Passed;
    if is_nobodys && hook.has(Hook::FROM_OUTSIDE) && quoted_elsewhere(&mut scene.tables, &mut work, hook) {
        judge(scene, &seen, &work.verdict);
    }
    Some(())
}

/// A packet that goes a flow's way without being one of its own, or goes nowhere.
fn concern<const N: usize>(scene: &mut Scene<N>, script: &mut Script<'_>) -> Option<()> {
    let hook = script.of(&HOOKS)?;
    let mut work = Work::new(Packet::new(tuple(scene, script)?, 0));
    let seen = Seen::before(scene, QueryKind::Beside, hook, &work);
    let tables = &mut scene.tables;
    match script.byte()? % 4 {
        0 => foreign(tables, &mut work, hook),
        1 => malformed(tables, &mut work),
        2 => stray_fragment(tables, &mut work),
        _ => later_fragment(tables, &mut work, hook),
    }
    judge(scene, &seen, &work.verdict);
    Some(())
}
