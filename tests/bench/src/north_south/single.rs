//! Ballast's programs on one frame at a time, less a program of the same kind that does nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};

use super::FAMILIES;
use super::frames::{FIRST_PORT, FLOWS, Segment};
use super::lane::{DSR, FramePath, SNAT};
use super::proxy::{Ballast, Program, run_xdp};
use crate::figures::{Better, Figure};
use crate::packet::frames::{ACK, SYN};
use crate::packet::runner::{Yardstick, run};
use crate::statistics::Samples;
use anyhow::{Result, bail};

/// Frames of one program before the next one's turn.
const BLOCK: u32 = 25;
/// First port of new connections; each has one of its own.
const FIRST_NEW: u32 = 4_000;
/// New connections of a kind in a run at most: a port each.
pub const NEW_MAX: u32 = 24_000;

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Packet {
    Known,
    Reply,
    New,
}

struct PacketCase {
    name: &'static str,
    path: FramePath,
    packet: Packet,
}

const KINDS: [PacketCase; 7] = [
    PacketCase { name: "masquerade: known flow, request", path: FramePath::NodePort(SNAT), packet: Packet::Known },
    PacketCase { name: "masquerade: known flow, reply", path: FramePath::NodePort(SNAT), packet: Packet::Reply },
    PacketCase { name: "masquerade: new flow", path: FramePath::NodePort(SNAT), packet: Packet::New },
    PacketCase {
        name: "direct server return, first node: known flow",
        path: FramePath::NodePort(DSR),
        packet: Packet::Known,
    },
    PacketCase {
        name: "direct server return, first node: new flow",
        path: FramePath::NodePort(DSR),
        packet: Packet::New,
    },
    PacketCase {
        name: "direct server return, backend's node: known flow",
        path: FramePath::Arrival,
        packet: Packet::Known,
    },
    PacketCase {
        name: "direct server return, backend's node: new flow",
        path: FramePath::Arrival,
        packet: Packet::New,
    },
];

/// One kind of frame through one program.
pub struct Row {
    /// Nanoseconds of the program, less those of one that does nothing: median of the rounds.
    ns: f64,
    /// Nanoseconds of the program that does the least for a service flow, at tc.
    least_ns: f64,
    /// The one by the other, round by round.
    pub figure: Figure,
}

pub fn measure(
    subjects: &[(&'static str, Ballast); 2],
    yardstick: &mut Yardstick,
    rounds: u32,
    packets: u32,
    stop: &AtomicBool,
) -> Result<Vec<Row>> {
    for family in 0..FAMILIES.len() {
        let lane = &subjects[0].1.lane;
        let segment = lane.segment(FramePath::NodePort(SNAT), family);
        let backend = lane.segment(FramePath::Plain, family).to;
        yardstick.serve(segment.to, backend)?;
        for port in FIRST_PORT..FIRST_PORT + FLOWS {
            yardstick.know(segment.at_port(port).from, segment.to, backend)?;
        }
    }
    let mut rows: Vec<Vec<[f64; 2]>> = vec![Vec::new(); FAMILIES.len() * subjects.len() * KINDS.len()];
    let all: Vec<(usize, usize, usize)> = (0..FAMILIES.len())
        .flat_map(|family| (0..KINDS.len()).flat_map(move |kind| (0..2).map(move |subject| (family, kind, subject))))
        .collect();
    let mut next = FIRST_NEW;
    for round in 0..=rounds {
        for (row, &(family, kind, subject)) in rows.iter_mut().zip(&all) {
            if stop.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            let new = New { first: next, turn: u8::try_from(kind * subjects.len() + subject)? };
            let sample = sample(yardstick, &subjects[subject].1, family, &KINDS[kind], packets, new)?;
            // The first round warms up.
            if round > 0 {
                row.push(sample);
            }
        }
        next += packets.next_multiple_of(BLOCK);
    }
    let figures = all.into_iter().zip(rows).map(|((family, kind, subject), rounds)| {
        let ratio: Samples = rounds.iter().map(|[tested, least]| tested / least).collect();
        let median = |at: usize| rounds.iter().map(|sample| sample[at]).collect::<Samples>().median();
        let (family, hook, kind) = (FAMILIES[family], subjects[subject].0, KINDS[kind].name);
        let name = format!("north-south, {family}, {hook}: {kind}, one frame / the least");
        Row { ns: median(0), least_ns: median(1), figure: Figure::ratio(name, &ratio, Better::Less) }
    });
    Ok(figures.collect())
}

/// The result for people.
pub fn table(rows: &[Row]) -> String {
    let line = |row: &Row| {
        let Row { ns, least_ns, figure } = row;
        format!("| {} | {ns:.0} | {least_ns:.0} | {} |\n", figure.name, figure.text())
    };
    let lines: String = rows.iter().map(line).collect();
    format!("| frame | ns | the least, ns | ratio |\n|---|---:|---:|---:|\n{lines}")
}

/// Medians of the program and of the one that does the least, both less that of one that does nothing. They take turns, there and
/// back.
fn sample(
    yardstick: &Yardstick,
    ballast: &Ballast,
    family: usize,
    kind: &PacketCase,
    packets: u32,
    new: New,
) -> Result<[f64; 2]> {
    let least = if kind.packet == Packet::New { "fresh" } else { "known" };
    let least = yardstick.program(&format!("{least}{}", if family == 0 { 4 } else { 6 }))?;
    let (nothing, idle) = (yardstick.program("nothing")?, yardstick.idle()?);
    let ifindex = ballast.index(if kind.packet == Packet::Reply { "far0" } else { "lan0" })?;
    let mut frames = Vec::new();
    for number in 0..packets.next_multiple_of(BLOCK) {
        frames.push(pair(ballast, family, kind, number, new)?);
    }
    let run_idle = |frame: &[u8]| match &ballast.from_outside {
        Program::Xdp(_) => run_xdp(idle, ifindex, frame),
        Program::Tc(_) => run(nothing, frame),
    };
    ballast.within(|| {
        let mut times = [const { Vec::new() }; 4];
        for (number, block) in frames.chunks(BLOCK as usize).enumerate() {
            for arm in if number % 2 == 0 { [0, 1, 2, 3] } else { [3, 2, 1, 0] } {
                for (tested, same) in block {
                    let ran = match arm {
                        0 => ballast.from_outside.run(ifindex, tested),
                        1 => run_idle(tested),
                        2 => run(least, same),
                        _ => run(nothing, same),
                    };
                    times[arm].push(ran?.ns);
                }
            }
        }
        let [tested, idle, least, nothing] = times.map(|times| times.into_iter().collect::<Samples>().median());
        Ok([tested - idle, least - nothing])
    })
}

/// New connections of one sample.
#[derive(Clone, Copy)]
struct New {
    /// Port of the first one.
    first: u32,
    /// Which kind through which program: the one that does the least has one table for all.
    turn: u8,
}

/// A frame for Ballast, and one for the program that does the least: it knows requests to the node port.
fn pair(ballast: &Ballast, family: usize, kind: &PacketCase, number: u32, new: New) -> Result<(Vec<u8>, Vec<u8>)> {
    let known = FIRST_PORT + u16::try_from(number % u32::from(FLOWS))?;
    let is_new = kind.packet == Packet::New;
    let port = if is_new { u16::try_from(new.first + number)? } else { known };
    let flags = if is_new { SYN } else { ACK };
    let request = |path| Segment { flags, ..ballast.lane.segment(path, family).at_port(port) };
    let tested =
        if kind.packet == Packet::Reply { ballast.reply(kind.path, family, port)? } else { request(kind.path) };
    let mut least = request(FramePath::NodePort(SNAT));
    if is_new {
        least.from.set_ip(another(least.from.ip(), new.turn));
    }
    Ok((tested.bytes()?, least.bytes()?))
}

/// Another client for each turn.
fn another(client: IpAddr, turn: u8) -> IpAddr {
    match client {
        IpAddr::V4(client) => Ipv4Addr::from(u32::from(client) + (u32::from(turn) << 8)).into(),
        IpAddr::V6(client) => Ipv6Addr::from(u128::from(client) + (u128::from(turn) << 8)).into(),
    }
}
