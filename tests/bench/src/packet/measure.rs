//! The measurement: every kind of packet through every program, taking turns, round by round.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, Result, bail};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde::Serialize;

use super::PacketArguments;
use super::frames::{ACK, SYN, tcp, udp};
use super::runner::{Yardstick, run};
use super::subject::Subject;
use crate::statistics::Samples;

/// Packets of one program before the next one's turn: enough that each finds the processor's caches as it left them.
const BLOCK: u32 = 50;
/// Known connections that take turns.
const KNOWN: u16 = 64;
/// Their first port; those of new connections follow behind.
const FIRST_KNOWN: u16 = 2_000;
const FIRST_NEW: u16 = 4_000;
const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

/// One kind of packet through one version.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Figures {
    pub version: &'static str,
    pub family: &'static str,
    pub kind: &'static str,
    /// Nanoseconds of the program, less those of one that does nothing: medians of the rounds.
    pub ns: f64,
    /// Nanoseconds of the program that does the least.
    pub least_ns: f64,
    /// The one by the other, in each round: median and quartiles.
    pub ratio: f64,
    pub quartiles: [f64; 2],
    #[serde(skip)]
    pub ratios: Samples,
}

/// What this version takes of the time of the other one, in each round.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    pub family: &'static str,
    pub kind: &'static str,
    /// Median and quartiles.
    pub ratio: f64,
    pub quartiles: [f64; 2],
}

/// All that was measured.
pub struct Measured {
    pub figures: Vec<Figures>,
    pub comparisons: Vec<Comparison>,
}

/// Samples of one kind through one version.
struct Row {
    version: &'static str,
    family: usize,
    kind: &'static str,
    rounds: Vec<[f64; 2]>,
}

pub fn measure(
    arguments: &PacketArguments,
    yardstick: &mut Yardstick,
    subjects: &[Subject],
    stop: &AtomicBool,
) -> Result<Measured> {
    let (here, there) = two_cpus()?;
    pin_to(here)?;
    for subject in subjects {
        for family in 0..2 {
            yardstick.serve(Subject::service(family), subject.backend(family))?;
            for port in FIRST_KNOWN..FIRST_KNOWN + KNOWN {
                subject.open(family, port)?;
                yardstick.know(subject.client(family, port), Subject::service(family), subject.backend(family))?;
            }
        }
    }
    let mut rows: Vec<Row> = Vec::new();
    let mut bench = Bench { arguments, yardstick, new: 0, there };
    for round in 0..=arguments.rounds() {
        for family in 0..2 {
            for kind in KINDS {
                // One after the other: the ratio of two versions is of the same moment. Each is the first in every other round.
                for turn in 0..subjects.len() {
                    let subject = &subjects[if round % 2 == 1 { turn } else { subjects.len() - 1 - turn }];
                    if stop.load(Ordering::Relaxed) {
                        bail!("interrupted");
                    }
                    let sample = bench.sample(subject, family, kind)?;
                    // The first round warms up.
                    if round > 0 {
                        push(&mut rows, subject.name, family, kind.name, sample);
                    }
                }
            }
        }
    }
    Ok(Measured { figures: rows.iter().map(figures).collect(), comparisons: comparisons(subjects, &rows) })
}

/// A kind of packet, and which program does the least for it.
#[derive(Clone, Copy)]
struct PacketCase {
    name: &'static str,
    least: &'static str,
    packets: Packets,
}

/// What packets are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Packets {
    Known,
    Reply,
    New,
    /// The SYN+ACK of a new one, whose SYN is sent before.
    Answer,
    Foreign,
    /// Known ones, while a flood comes in on the other CPU; compared with the same while the other CPU runs a program that does nothing
    /// with it.
    Flooded(Flood),
}

/// Packets to the service, each from another client that has no connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flood {
    Syns,
    Datagrams,
    Acks,
}

const KINDS: [PacketCase; 8] = [
    PacketCase { name: "known flow, request", least: "known", packets: Packets::Known },
    PacketCase { name: "known flow, reply", least: "known", packets: Packets::Reply },
    PacketCase { name: "new flow", least: "fresh", packets: Packets::New },
    PacketCase { name: "new flow, answer", least: "known", packets: Packets::Answer },
    PacketCase { name: "foreign packet", least: "foreign", packets: Packets::Foreign },
    PacketCase { name: "known flow under a SYN flood / without", least: "", packets: Packets::Flooded(Flood::Syns) },
    PacketCase {
        name: "known flow under a UDP flood / without",
        least: "",
        packets: Packets::Flooded(Flood::Datagrams),
    },
    PacketCase { name: "known flow under an ACK flood / without", least: "", packets: Packets::Flooded(Flood::Acks) },
];

struct Bench<'a> {
    arguments: &'a PacketArguments,
    yardstick: &'a Yardstick,
    /// New connections so far: each has a tuple of its own.
    new: u32,
    there: usize,
}

impl Bench<'_> {
    /// Medians of a program and of the one that does the least, both less that of one that does nothing.
    fn sample(&mut self, subject: &Subject, family: usize, kind: PacketCase) -> Result<[f64; 2]> {
        if let Packets::Flooded(flood) = kind.packets {
            return self.flooded(subject, family, flood);
        }
        let nothing = self.yardstick.program("nothing")?;
        let suffix = if family == 0 { "4" } else { "6" };
        let least = self.yardstick.program(&format!("{}{suffix}", kind.least))?;
        let first_new = self.new;
        self.new += self.arguments.packets;
        let count = self.arguments.packets;
        subject.within(move || {
            let mut times = [Vec::new(), Vec::new(), Vec::new()];
            for block in 0..count.div_ceil(BLOCK) {
                let of = |kind| -> Vec<Vec<u8>> {
                    (block * BLOCK..(block + 1) * BLOCK).map(|n| packet(subject, family, kind, n, first_new)).collect()
                };
                // For the yardstick a reply is a known packet as any other.
                let is_reply = matches!(kind.packets, Packets::Reply | Packets::Answer);
                let same = of(if is_reply { Packets::Known } else { kind.packets });
                let syns = of(if kind.packets == Packets::Answer { Packets::New } else { kind.packets });
                for (packet, syn) in of(kind.packets).iter().zip(&syns) {
                    if kind.packets == Packets::Answer {
                        subject.request(syn)?;
                    }
                    times[0].push(if is_reply { subject.reply(packet)? } else { subject.request(packet)? }.ns);
                }
                for (program, times) in [least, nothing].into_iter().zip(&mut times[1..]) {
                    for packet in &same {
                        times.push(run(program, packet)?.ns);
                    }
                }
            }
            let [tested, least, nothing] = times.map(|times| times.into_iter().collect::<Samples>().median());
            Ok([tested - nothing, least - nothing])
        })
    }

    /// Known packets on this CPU while the other one takes in a flood, and while it runs another program on the same flood.
    fn flooded(&mut self, subject: &Subject, family: usize, flood: Flood) -> Result<[f64; 2]> {
        let other = self.yardstick.program("nothing")?;
        let nothing = self.yardstick.program("nothing")?;
        let (count, there) = (self.arguments.packets, self.there);
        let mut medians = [0.0; 2];
        for (is_calm, median) in medians.iter_mut().enumerate() {
            let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(u64::from(self.new)));
            *median = std::thread::scope(|scope| {
                let flooding = scope.spawn(|| {
                    subject.within(|| -> Result<()> {
                        pin_to(there)?;
                        while !stop.load(Ordering::Relaxed) {
                            let number = u32::try_from(sent.fetch_add(1, Ordering::Relaxed) & 0xff_ffff)?;
                            let packet = flood_packet(subject, family, flood, number);
                            if is_calm == 0 {
                                subject.request(&packet)?
                            } else {
                                run(other, &packet)?
                            };
                        }
                        Ok(())
                    })
                });
                let measured = subject.within(|| {
                    let mut times = [Vec::new(), Vec::new()];
                    for number in 0..count {
                        let known = packet(subject, family, Packets::Known, number, 0);
                        times[0].push(subject.request(&known)?.ns);
                        times[1].push(run(nothing, &known)?.ns);
                    }
                    let [tested, nothing] = times.map(|times| times.into_iter().collect::<Samples>().median());
                    anyhow::Ok(tested - nothing)
                });
                stop.store(true, Ordering::Relaxed);
                flooding.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                measured
            })?;
            self.new = u32::try_from(sent.load(Ordering::Relaxed) & 0xff_ffff)?;
        }
        Ok(medians)
    }
}

/// A packet of this kind.
fn packet(subject: &Subject, family: usize, kind: Packets, number: u32, first_new: u32) -> Vec<u8> {
    let service = Subject::service(family);
    let known = FIRST_KNOWN + u16::try_from(number % u32::from(KNOWN)).expect("below a u16");
    let client = subject.client(family, known);
    match kind {
        Packets::Known | Packets::Flooded(_) => tcp(client, service, ACK, 1_001, 9_001),
        Packets::Reply => tcp(subject.backend(family), client, ACK, 9_001, 1_005),
        Packets::Foreign => tcp(client, SocketAddr::new(subject.backend(family).ip(), 9), ACK, 1, 1),
        Packets::Answer => {
            let number = first_new.wrapping_add(number);
            let answer = SYN | ACK;
            tcp(subject.backend(family), new_client(subject, family, number), answer, 9_000, number.wrapping_add(1))
        }
        Packets::New => flood_packet(subject, family, Flood::Syns, first_new.wrapping_add(number)),
    }
}

/// A packet of a client of its own for each number.
fn flood_packet(subject: &Subject, family: usize, flood: Flood, number: u32) -> Vec<u8> {
    let service = Subject::service(family);
    let client = new_client(subject, family, number);
    match flood {
        Flood::Syns => tcp(client, service, SYN, number, 0),
        Flood::Datagrams => udp(client, service),
        Flood::Acks => tcp(client, service, ACK, number, number),
    }
}

/// The client of this number. Ports run out: the address goes on. Nobody routes back to it, and nothing has to.
fn new_client(subject: &Subject, family: usize, number: u32) -> SocketAddr {
    let (port, turn) = (number % 60_000, number / 60_000);
    let port = FIRST_NEW + u16::try_from(port).expect("below a u16");
    SocketAddr::new(moved(subject.client(family, port).ip(), turn), port)
}

/// Another address for each turn.
fn moved(address: std::net::IpAddr, turn: u32) -> std::net::IpAddr {
    match address {
        std::net::IpAddr::V4(address) => std::net::Ipv4Addr::from(u32::from(address).wrapping_add(turn << 16)).into(),
        std::net::IpAddr::V6(address) => {
            std::net::Ipv6Addr::from(u128::from(address).wrapping_add(u128::from(turn) << 16)).into()
        }
    }
}

fn push(rows: &mut Vec<Row>, version: &'static str, family: usize, kind: &'static str, sample: [f64; 2]) {
    let is_this = |row: &&mut Row| row.version == version && row.family == family && row.kind == kind;
    match rows.iter_mut().find(is_this) {
        Some(row) => row.rounds.push(sample),
        None => rows.push(Row { version, family, kind, rounds: vec![sample] }),
    }
}

fn figures(row: &Row) -> Figures {
    let ratio: Samples = row.rounds.iter().map(|[tested, least]| tested / least).collect();
    let median = |index: usize| row.rounds.iter().map(|sample| sample[index]).collect::<Samples>().median();
    Figures {
        version: row.version,
        family: FAMILIES[row.family],
        kind: row.kind,
        ns: median(0),
        least_ns: median(1),
        ratio: ratio.median(),
        quartiles: ratio.quartiles(),
        ratios: ratio,
    }
}

/// The first version by the second, if there is one.
fn comparisons(subjects: &[Subject], rows: &[Row]) -> Vec<Comparison> {
    let [now, before] = subjects else { return Vec::new() };
    let of = |subject: &Subject| rows.iter().filter(|row| row.version == subject.name).collect::<Vec<_>>();
    let pairs = of(now).into_iter().zip(of(before));
    let compare = |(now, before): (&Row, &Row)| {
        let ratios: Samples = now.rounds.iter().zip(&before.rounds).map(|(now, before)| now[0] / before[0]).collect();
        let (family, kind) = (FAMILIES[now.family], now.kind);
        Comparison { family, kind, ratio: ratios.median(), quartiles: ratios.quartiles() }
    };
    pairs.map(compare).collect()
}

/// Two CPUs that this process may use.
pub fn two_cpus() -> Result<(usize, usize)> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    let mut cpus = (0..CpuSet::count()).rev().filter(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    cpus.next().zip(cpus.next()).context("a flood beside the measurement needs two CPUs")
}

/// From now on the calling thread is on this CPU.
pub fn pin_to(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}
