//! Runs random packets through the live programs and holds every result against the model.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result, ensure};
use lb_common::abi::{Event, StatKey, hook, stat_kind};
use lb_common::outcome::Outcome;
use nix::time::{ClockId, clock_gettime};

use super::rules::{Asked, Expected, Fate, Hint, decide};
use super::wire::{Frame, Protocol};
use super::world::World;
use super::{generate, tables};
use crate::live::{Hook, Live, Ran};
use crate::random::Random;

/// What was examined: that an exam asked something is part of its result.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub packets: u64,
    /// How often each outcome came up.
    pub outcomes: BTreeMap<&'static str, u64>,
    /// Packets that the kernel takes for no test run.
    pub refused_by_kernel: u64,
    /// Packets during which a second struck: not judged, their worlds were left.
    pub at_the_second: u64,
}

/// An examination: live programs, and a tally.
pub struct Exam {
    live: Live,
    tally: Tally,
}

/// Verdicts: `TCX_NEXT`, `TC_ACT_SHOT`, `TC_ACT_REDIRECT`; `XDP_PASS`, `XDP_DROP`.
const TC: [i32; 3] = [-1, 2, 7];
const XDP: [i32; 2] = [2, 1];

/// Ages by which the flows of a world grow older between packets: below and beyond every timeout.
const AGES_S: [u32; 8] = [2, 2, 2, 2, 20, 50, 100, 200];

impl Exam {
    /// Loads the programs; the calling thread's namespace must have a default route and forwarding on.
    pub fn new() -> Result<Self> {
        Ok(Self { live: Live::load()?, tally: Tally::default() })
    }

    /// What was examined so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// One world of one family with this many packets.
    pub fn world(&mut self, seed: u64, v6: bool, packets: usize) -> Result<()> {
        let mut random = Random::new(seed);
        self.live.clear()?;
        let mut world = generate::world(&mut random, v6, now_s());
        tables::write(&mut self.live, &world)?;
        for number in 0..packets {
            let go_on = self
                .packet(&mut random, v6, &mut world)
                .with_context(|| format!("seed {seed}, {}, packet {number}", if v6 { "IPv6" } else { "IPv4" }))?;
            if !go_on {
                break;
            }
        }
        Ok(())
    }

    /// One world that broken packets are sent to: what comes out is never misdelivered, and counted.
    pub fn broken(&mut self, seed: u64, v6: bool, packets: usize) -> Result<()> {
        let mut random = Random::new(seed);
        self.live.clear()?;
        let world = generate::world(&mut random, v6, now_s());
        tables::write(&mut self.live, &world)?;
        for number in 0..packets {
            let hook = *random.of(&Hook::ALL);
            let frame = generate::frame(&mut random, v6, &world);
            let bytes = generate::broken(&mut random, &frame);
            let before: u64 = self.live.outcomes()?.iter().sum();
            let Some(ran) = self.live.run(hook, &bytes)? else {
                self.tally.refused_by_kernel += 1;
                continue;
            };
            let counts = self.live.outcomes()?.iter().sum::<u64>() - before;
            self.live.take_events();
            self.tally.packets += 1;
            judge_broken(&world, hook, &frame, &bytes, &ran, counts).with_context(|| {
                format!("seed {seed}, packet {number}: {hook:?} {frame:?}\nbroken: {bytes:02x?}\nran: {ran:02x?}")
            })?;
        }
        Ok(())
    }

    /// A change or two, then a packet. `false`: the clock's second struck meanwhile, nobody can tell what is right.
    fn packet(&mut self, random: &mut Random, v6: bool, world: &mut World) -> Result<bool> {
        self.change(random, world)?;
        self.age(world, *random.of(&AGES_S))?;
        let frame = generate::frame(random, v6, world);
        let hook = *random.of(&Hook::ALL);
        let bytes = frame.bytes();
        let before = self.live.outcomes()?;
        let start = now_s();
        world.now_s = start;
        let Some(ran) = self.live.run(hook, &bytes)? else {
            self.tally.refused_by_kernel += 1;
            return Ok(true);
        };
        let after = self.live.outcomes()?;
        let books = Books { stats: self.live.take_stats()?, events: self.live.take_events() };
        if now_s() != start {
            self.tally.at_the_second += 1;
            return Ok(false);
        }
        let counted: Vec<Outcome> = Outcome::ALL
            .into_iter()
            .flat_map(|outcome| {
                let more = after[outcome as usize] - before[outcome as usize];
                std::iter::repeat_n(outcome, usize::try_from(more).unwrap_or(usize::MAX).min(9))
            })
            .collect();
        self.tally.packets += 1;
        let story =
            || format!("{hook:?} {frame:?}\nran: verdict {}, counted {counted:?}\nworld: {world:#?}", ran.verdict);
        let told = story();
        judge(world, hook, &frame, &bytes, &ran, &counted, &books).with_context(|| told.clone())?;
        self.compare(world).context(told)?;
        for outcome in counted {
            *self.tally.outcomes.entry(outcome.name()).or_default() += 1;
        }
        Ok(true)
    }

    /// What the agent does, and what a full table does.
    fn change(&mut self, random: &mut Random, world: &mut World) -> Result<()> {
        if random.one_in(6) && !world.backends.is_empty() {
            let ids: Vec<u32> = world.backends.keys().copied().collect();
            let id = *random.of(&ids);
            let backend = world.backends.get_mut(&id).context("one of them")?;
            generate::change_backend(random, backend);
            tables::write_backend(&mut self.live, id, backend, world.now_s)?;
        }
        if random.one_in(12) && !world.services.is_empty() {
            let keys: Vec<_> = world.services.keys().copied().collect();
            let key = *random.of(&keys);
            generate::rewrite_service(random, world, key);
            tables::write_service(&mut self.live, key.0, key.1, &world.services[&key])?;
            if random.one_in(8) {
                world.services.remove(&key);
                tables::remove_service(&mut self.live, key.0, key.1)?;
            }
        }
        if random.one_in(10) && !world.connections.is_empty() {
            let at = random.below(world.connections.len());
            let connection = &mut world.connections[at];
            let protocol = tables::number(connection.protocol);
            if random.one_in(2) && connection.forward.take().is_some() {
                tables::remove_flow(&mut self.live, (protocol, connection.client, connection.target))?;
            } else if connection.reply.take().is_some() {
                tables::remove_flow(&mut self.live, (protocol, connection.answerer, connection.seen_client()))?;
            }
            world.tidy();
        }
        Ok(())
    }

    fn age(&mut self, world: &mut World, seconds: u32) -> Result<()> {
        for connection in &mut world.connections {
            for half in [&mut connection.forward, &mut connection.reply].into_iter().flatten() {
                half.seen_s = half.seen_s.saturating_sub(seconds);
            }
        }
        tables::age(&mut self.live, seconds)
    }

    fn compare(&self, world: &World) -> Result<()> {
        let (demanded, held) = (tables::demanded(world), tables::held(&self.live)?);
        for (tuple, entry) in &demanded {
            ensure!(
                held.get(tuple) == Some(entry),
                "flow {tuple:?}\n  must be {entry:?}\n  but is  {:?}",
                held.get(tuple)
            );
        }
        for (tuple, entry) in &held {
            ensure!(demanded.contains_key(tuple), "flow {tuple:?} must not be there, but is {entry:?}");
        }
        Ok(())
    }
}

fn judge(
    world: &mut World,
    hook: Hook,
    frame: &Frame,
    bytes: &[u8],
    ran: &Ran,
    counted: &[Outcome],
    books: &Books,
) -> Result<()> {
    let xdp = hook == Hook::Xdp;
    if frame.fragment_offset != 0 {
        // No ports in it: nobody can say whose it is.
        let counts: &[Outcome] = if xdp { &[] } else { &[Outcome::Fragment] };
        ensure!(ran.bytes == bytes && ran.verdict == if xdp { XDP[0] } else { TC[0] }, "a later fragment was touched");
        ensure!(counted == counts, "a later fragment was counted as {counted:?}");
        return Ok(());
    }
    let (src, dst) = ends(frame, &ran.bytes);
    let dropped = ran.verdict == if xdp { XDP[1] } else { TC[1] };
    let hint = Hint { src, dst, dropped, torn: counted.contains(&Outcome::DroppedTorn) };
    let tcp_flags = if frame.protocol == Protocol::Tcp { frame.tcp_flags } else { 0 };
    let asked = Asked { hook, protocol: frame.protocol, src: frame.src, dst: frame.dst, tcp_flags };
    let expected = decide(world, asked, hint)?;
    let refusal = if expected.fate == Fate::Refuse { frame.refusal() } else { None };
    let unanswerable = expected.fate == Fate::Refuse && refusal.is_none();

    let (verdict, packet) = match expected.fate {
        Fate::Pass => (if xdp { XDP[0] } else { TC[0] }, Some(bytes.to_vec())),
        Fate::Drop => (if xdp { XDP[1] } else { TC[1] }, None),
        Fate::Refuse if unanswerable => (TC[1], None),
        Fate::Refuse => (TC[2], refusal),
        Fate::Rewrite { src, dst, routed } => {
            let verdict = if xdp {
                XDP[0]
            } else if routed {
                TC[2]
            } else {
                TC[0]
            };
            (verdict, Some(Frame { src, dst, ..frame.clone() }.bytes()))
        }
    };
    ensure!(ran.verdict == verdict, "verdict {} instead of {verdict}: expected {expected:?}", ran.verdict);
    if let Some(packet) = packet {
        ensure!(ran.bytes == packet, "expected {expected:?}\n  must be {packet:02x?}\n  but is  {:02x?}", ran.bytes);
    }

    let mut counts = vec![expected.outcome];
    if unanswerable {
        counts.push(Outcome::DroppedRewrite);
    }
    if xdp && expected.outcome == Outcome::Passed {
        counts.clear(); // tc counts it.
    }
    ensure!(counted == counts, "counted {counted:?} instead of {counts:?}");
    compare_stats(&expected, frame.src.ip(), &books.stats)?;
    compare_events(&expected, asked, &books.events)
}

/// Nobody can say what a broken packet means, but it goes unchanged, is dropped, is answered to its sender, or goes to a
/// backend of the service that it asked for; and it is counted.
fn judge_broken(world: &World, hook: Hook, frame: &Frame, bytes: &[u8], ran: &Ran, counts: u64) -> Result<()> {
    let xdp = hook == Hook::Xdp;
    ensure!(if xdp { XDP.contains(&ran.verdict) } else { TC.contains(&ran.verdict) }, "verdict {}", ran.verdict);
    let is_ip = matches!(bytes.get(12..14), Some([0x08, 0x00] | [0x86, 0xdd]));
    ensure!(counts > 0 || xdp || !is_ip, "counted nowhere");
    let dropped = ran.verdict == if xdp { XDP[1] } else { TC[1] };
    if dropped || ran.bytes == bytes {
        return Ok(());
    }
    if ran.verdict == TC[2] && ran.bytes[..6] == bytes[6..12] && ran.bytes[6..12] == bytes[..6] {
        return Ok(()); // Answered to whoever sent it.
    }
    ensure!(ran.bytes.len() == bytes.len(), "another length");
    let (_, asked) = ends(frame, bytes);
    let (_, got) = ends(frame, &ran.bytes);
    let right = world.services.iter().any(|(key, service)| {
        key.0 == asked && service.members.iter().any(|(backend, _)| world.backends[backend].address == got)
    });
    // A flipped header length moves the ports; then the address alone tells.
    let near = world.services.iter().any(|(key, service)| {
        key.0.ip() == asked.ip()
            && service.members.iter().any(|(backend, _)| world.backends[backend].address.ip() == got.ip())
    });
    ensure!(right || near || asked == got, "asked {asked}, sent to {got}");
    Ok(())
}

/// What a packet left behind beside the flows.
struct Books {
    stats: Vec<(StatKey, u64)>,
    events: Vec<Event>,
}

/// A record in the ring for what a user would ask about, and for nothing that every packet does.
fn compare_events(expected: &Expected, asked: Asked, events: &[Event]) -> Result<()> {
    let everyday = matches!(
        expected.outcome,
        Outcome::Passed
            | Outcome::Selected
            | Outcome::Forwarded
            | Outcome::Replied
            | Outcome::DirectTranslated
            | Outcome::HandedToTc
    );
    ensure!(events.len() == usize::from(!everyday), "{} events for {:?}", events.len(), expected.outcome);
    let Some(event) = events.first() else { return Ok(()) };
    let hook = match asked.hook {
        Hook::PodIn => hook::POD_IN,
        Hook::PodOut => hook::POD_OUT,
        Hook::BridgeIn => hook::BRIDGE_IN,
        Hook::NodeIn => hook::NODE_IN,
        Hook::NodeOut => hook::NODE_OUT,
        Hook::Xdp => hook::XDP,
    };
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => [address.octets().as_slice(), &[0; 12]].concat(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let Asked { src, dst, protocol, .. } = asked;
    ensure!(
        event.src[..] == octets(src.ip())
            && event.dst[..] == octets(dst.ip())
            && (event.src_port, event.dst_port) == (src.port(), dst.port())
            && (event.protocol, event.family) == (tables::number(protocol), if src.is_ipv4() { 4 } else { 6 })
            && (event.outcome, event.hook) == (expected.outcome as u8, hook)
            && (event.service, event.backend) == (expected.service, expected.backend),
        "for {expected:?} the event {event:?}"
    );
    Ok(())
}

/// Counted for service and backend what happens seldom in a flow's life.
fn compare_stats(expected: &Expected, family: IpAddr, stats: &[(StatKey, u64)]) -> Result<()> {
    let mut demanded = Vec::new();
    if !matches!(expected.outcome, Outcome::Passed | Outcome::Forwarded | Outcome::Replied | Outcome::HandedToTc) {
        let outcome = expected.outcome as u8;
        let backend_kind = if family.is_ipv4() { stat_kind::BACKEND4 } else { stat_kind::BACKEND6 };
        for (id, kind) in [(expected.service, stat_kind::SERVICE), (expected.backend, backend_kind)] {
            if id != 0 {
                demanded.push((StatKey { id, kind, outcome, pad: 0 }, 1));
            }
        }
    }
    let mut stats = stats.to_vec();
    stats.sort_unstable();
    demanded.sort_unstable();
    ensure!(stats == demanded, "counted {stats:?} instead of {demanded:?}");
    Ok(())
}

/// Source and destination as they stand in the bytes.
fn ends(frame: &Frame, bytes: &[u8]) -> (SocketAddr, SocketAddr) {
    let at = |from: usize| -> Option<u16> { Some(u16::from_be_bytes(bytes.get(from..from + 2)?.try_into().ok()?)) };
    let v4 = |from: usize| -> Option<IpAddr> { Some(<[u8; 4]>::try_from(bytes.get(from..from + 4)?).ok()?.into()) };
    let v6 = |from: usize| -> Option<IpAddr> { Some(<[u8; 16]>::try_from(bytes.get(from..from + 16)?).ok()?.into()) };
    let read = || {
        let ports = 14 + if frame.src.is_ipv4() { 20 + frame.ip_options.len() } else { 40 };
        let (src, dst) = if frame.src.is_ipv4() { (v4(26)?, v4(30)?) } else { (v6(22)?, v6(38)?) };
        Some((SocketAddr::new(src, at(ports)?), SocketAddr::new(dst, at(ports + 2)?)))
    };
    // A packet too short for that is no rewritten one.
    read().unwrap_or((frame.src, frame.dst))
}

fn now_s() -> u32 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("the clock is there");
    u32::try_from(now.tv_sec()).expect("136 years of uptime")
}
