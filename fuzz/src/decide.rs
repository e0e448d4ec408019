//! A script of bytes: packets, passing time and changes of the tables. After each packet the tables must still make sense.

use lb_common::abi::{
    FlowKey, MOST_MOVES, Service, ServiceKey, TCP, UDP, backend_state, flow_flags, flow_state, half_open_flags, seal,
    tag,
};
use lb_common::decide::{Action, Hook, Packet, Tables as _, Work, decide, pair_key};
use lb_common::outcome::Outcome;
use lb_common::state::{self, tcp_flag};

use crate::memory::Memory;

const CLIENTS: [[u8; 4]; 3] = [[10, 0, 1, 2], [10, 0, 1, 3], [10, 0, 2, 1]];
const VIPS: [[u8; 4]; 2] = [[10, 96, 0, 1], [10, 96, 0, 2]];
const BACKENDS: [[u8; 4]; 4] = [[10, 0, 2, 1], [10, 0, 2, 2], [10, 0, 2, 3], [10, 0, 2, 4]];
const HOOKS: [Hook; 6] = [Hook::POD_IN, Hook::POD_OUT, Hook::BRIDGE_IN, Hook::NODE_IN, Hook::NODE_OUT, Hook::XDP];

/// Reads a script to its end.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> Option<T> {
        let at = usize::from(self.byte()?) % choices.len();
        Some(choices[at])
    }
}

/// Plays a script; panics when a rule is broken.
pub fn play(script: &[u8]) {
    let mut tables = Memory::default();
    for (id, address, protocol) in [(1, VIPS[0], TCP), (2, VIPS[0], UDP), (3, VIPS[1], TCP), (4, VIPS[1], UDP)] {
        tables.serve(id, 16 * id, ServiceKey { address, port: 80, protocol, pad: 0 }, &BACKENDS, 8080);
    }
    let mut script = Script(script);
    while step(&mut tables, &mut script).is_some() {}
}

fn step(tables: &mut Memory, script: &mut Script<'_>) -> Option<()> {
    match script.byte()? {
        0..=15 => tables.now_ns += u64::from(script.byte()?) * 500_000_000,
        16..=23 => tables.now_ns += u64::from(script.byte()?) * 60_000_000_000,
        24..=39 => change_backend(tables, script)?,
        40..=55 => change_service(tables, script)?,
        56..=63 => tables.capacity = if script.byte()? < 64 { 6 } else { usize::MAX },
        64..=71 => evict(tables, script)?,
        _ => send(tables, script)?,
    }
    Some(())
}

fn change_backend(tables: &mut Memory, script: &mut Script<'_>) -> Option<()> {
    let (service, nth) = (1 + u32::from(script.byte()? % 4), u32::from(script.byte()? % 4));
    let now_ds = u32::try_from(tables.now_ns / 100_000_000).unwrap_or(u32::MAX);
    let backend = tables.backends.get_mut(&(16 * service + nth + 1))?;
    match script.byte()? % 5 {
        0 => backend.state = script.byte()? % (backend_state::GONE + 1),
        1 => backend.deadline_ds = now_ds.saturating_add(u32::from(script.byte()?)).saturating_sub(20),
        2 => backend.generation += 1,
        3 => backend.flags = script.byte()? & 7,
        _ => backend.deadline_ds = 0,
    }
    Some(())
}

fn change_service(tables: &mut Memory, script: &mut Script<'_>) -> Option<()> {
    let (address, protocol) = (script.of(&VIPS)?, script.of(&[TCP, UDP])?);
    let key = ServiceKey { address, port: 80, protocol, pad: 0 };
    let before = *tables.services.get(&key)?;
    let slot_count = u32::from(script.byte()? % 5);
    let value = Service {
        slot_count,
        flags: script.byte()? & 0x3f,
        scheduler: script.byte()? % 8,
        kind: script.byte()? % 4,
        affinity_timeout_s: u32::from(script.byte()? / 16),
        ..before
    };
    let torn = script.byte()? == 0;
    let right = seal(&key, &value);
    tables.services.insert(key, Service { seal: if torn { !right } else { right }, ..value });
    Some(())
}

fn evict(tables: &mut Memory, script: &mut Script<'_>) -> Option<()> {
    let half_open = script.byte()? % 2 == 0;
    let mut keys: Vec<FlowKey<4>> =
        if half_open { tables.half_open.keys().copied().collect() } else { tables.flows.keys().copied().collect() };
    keys.sort_unstable();
    let at = usize::from(script.byte()?);
    if let Some(key) = keys.get(at % keys.len().max(1)) {
        if half_open { tables.remove_half_open(key) } else { tables.remove_flow(key) }
    }
    Some(())
}

fn send(tables: &mut Memory, script: &mut Script<'_>) -> Option<()> {
    let hook = script.of(&HOOKS)?;
    let protocol = script.of(&[TCP, TCP, UDP])?;
    let port = 4_000 + u16::from(script.byte()? % 3);
    let (client, vip) = (script.of(&CLIENTS)?, script.of(&VIPS)?);
    let asked = FlowKey { src: client, dst: vip, src_port: port, dst_port: 80, protocol, pad: [0; 3] };
    let direct = FlowKey { dst: script.of(&BACKENDS)?, dst_port: 8080, ..asked };
    // What was forwarded may be answered, under whatever port.
    let key = match script.byte()? % 8 {
        0..=2 => asked,
        3 => direct,
        4 => direct.reversed(),
        way => {
            let known = if way == 5 {
                tables.flows.get(&asked).copied()
            } else {
                tables.half_open.get(&asked).map(|it| it.flow)
            };
            known.map_or(asked, |flow| pair_key(&asked, &flow))
        }
    };
    let flags = script.of(&[
        tcp_flag::SYN,
        tcp_flag::SYN | tcp_flag::ACK,
        tcp_flag::ACK,
        tcp_flag::RST | tcp_flag::ACK,
        1,
        255,
    ])?;
    let number = script.of(&[1_000_u32, 1_001, u32::MAX, 0])?;
    let mut packet = Packet::new(key, if protocol == TCP { flags } else { 0 });
    if protocol == TCP {
        (packet.seq, packet.ack) = (number, script.of(&[1_001_u32, 0, 7, u32::MAX])?);
    }
    let mut work = Work::new(packet);
    decide(tables, &mut work, hook);
    judge(tables, &packet, &work, hook);
    tables.notes.clear();
    Some(())
}

/// What holds after every packet.
fn judge(tables: &Memory, packet: &Packet<4>, work: &Work<4>, hook: Hook) {
    let verdict = &work.verdict;
    let now_ds = u32::try_from(tables.now_ns / 100_000_000).unwrap_or(u32::MAX);
    if verdict.action == Action::ToBackend && verdict.backend != 0 {
        let backend = &tables.backends[&verdict.backend];
        assert!(state::keeps_flows(backend, now_ds), "forwarded to a backend that is gone: {verdict:?}");
        assert_eq!((verdict.address, verdict.port), (backend.address, backend.port));
    }
    if verdict.action == Action::ToClient && verdict.backend != 0 {
        assert!(
            state::keeps_flows(&tables.backends[&verdict.backend], now_ds),
            "an answer of one that is gone: {verdict:?}"
        );
    }
    match verdict.action {
        Action::ToBackend => assert!(hook.has(Hook::REQUESTS), "{hook:?} translates no requests"),
        Action::ToClient => {
            assert!(hook.has(Hook::REPLIES) || hook.has(Hook::EARLY_REPLIES), "{hook:?} sees no answers");
        }
        Action::Refuse => assert!(packet.tcp_flags & tcp_flag::RST == 0, "a RST is never answered"),
        Action::Pass | Action::Drop => {}
    }
    let passed = matches!(verdict.outcome, Outcome::Passed | Outcome::HandedToTc | Outcome::AmbiguousUdp);
    assert_eq!(passed, verdict.action == Action::Pass, "{verdict:?}");
    for (key, flow) in &tables.flows {
        assert_eq!(flow.tag, tag(key));
        assert!((flow_state::HALF_OPEN..=flow_state::EVICTED).contains(&flow.state), "{flow:?}");
    }
    for (key, entry) in &tables.half_open {
        assert_eq!(entry.flow.tag, tag(key));
        assert!(usize::from(entry.moves) <= MOST_MOVES, "{entry:?}");
        let left = entry.flags & half_open_flags::LEFT != 0;
        assert!(!left || entry.flow.flags & flow_flags::REPLY != 0, "only a reply half is left: {entry:?}");
    }
}
