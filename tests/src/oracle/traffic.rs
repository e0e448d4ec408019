//! Random packets for a model: of its connections, for its services, for neither, and malformed ones.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::connection::{Connection, Half};
use super::generate::{PROTOCOLS, address};
use super::model::Model;
use super::wire::{ACK, FIN, Frame, Protocol, RST, SYN};
use crate::random::Random;
use crate::test_run::Hook;

/// A packet that may or may not concern a service or a connection of the model, and a hook that it comes by.
pub fn packet(random: &mut Random, v6: bool, model: &Model) -> (Hook, Frame) {
    let (hook, mut frame) = any_packet(random, v6, model);
    // Few SYNs have data: such ones are not retried.
    if frame.protocol == Protocol::Tcp && frame.tcp_flags & (SYN | ACK) == SYN && !random.one_in(8) {
        frame.payload.clear();
    }
    (hook, frame)
}

fn any_packet(random: &mut Random, v6: bool, model: &Model) -> (Hook, Frame) {
    let anywhere = *random.of(&Hook::ALL);
    let connection = (!model.connections.is_empty()).then(|| random.of(&model.connections).clone());
    // A SYN that nobody has answered is sent again at the client's own link: only there it is retried.
    if !model.adopted.is_empty() && random.one_in(9) {
        let it = random.of(&model.adopted).clone();
        let ends = if random.one_in(3) { (it.answerer, it.seen_client) } else { (it.client, it.target) };
        let mut frame = shaped(random, v6, it.protocol, ends.0, ends.1);
        frame.tcp_flags = *random.of(&[SYN, SYN, ACK, FIN | ACK, RST, RST | ACK, SYN | ACK]);
        return (if random.one_in(2) { anywhere } else { Hook::PodIn }, frame);
    }
    let awaits = |it: &&Connection| {
        it.forward.is_some() && it.opening.as_ref().is_some_and(|opening| opening.moves && opening.answers.is_none())
    };
    let awaiting: Vec<&Connection> = model.connections.iter().filter(awaits).collect();
    if !awaiting.is_empty() && random.one_in(6) {
        let it = *random.of(&awaiting);
        let mut frame = shaped(random, v6, it.protocol, it.client, it.target);
        (frame.tcp_flags, frame.sequence) = (SYN, it.isn);
        return (Hook::PodIn, frame);
    }
    // The backend that a SYN went on to accepts it.
    let is_moved = |it: &&&Connection| it.opening.as_ref().is_some_and(|opening| opening.moved != 0);
    if let Some(moved) = awaiting.iter().find(is_moved)
        && random.one_in(2)
    {
        let mut frame = shaped(random, v6, moved.protocol, moved.answerer, moved.seen_client);
        (frame.tcp_flags, frame.sequence, frame.acknowledgement) = (SYN | ACK, 700, moved.isn.wrapping_add(1));
        return (Hook::PodOut, frame);
    }
    // Of a SYN that went on to another backend.
    let is_tried = |it: &&Connection| it.opening.is_some() && it.forward.is_none();
    let tried: Vec<&Connection> = model.connections.iter().filter(is_tried).collect();
    // Few connections have lost, so those say more.
    let is_lost = |it: &&&Connection| it.opening.as_ref().is_some_and(|opening| opening.lost);
    let lost = tried.iter().find(is_lost).copied().filter(|_| random.one_in(2));
    if lost.is_some() || (!tried.is_empty() && random.one_in(3)) {
        let tried = lost.unwrap_or_else(|| *random.of(&tried));
        let mut frame = shaped(random, v6, tried.protocol, tried.answerer, tried.seen_client);
        answers(random, &mut frame, tried.isn);
        return (if random.one_in(3) { anywhere } else { Hook::PodOut }, frame);
    }
    if model.has_few_ports() && !random.one_in(3) {
        // Many clients of few backends use them up.
        let hook = *random.of(&[Hook::NodeIn, Hook::Xdp]);
        let (client, protocol) = (client(random, v6, model, hook), *random.of(&PROTOCOLS));
        let mut frame = shaped(random, v6, protocol, client, SocketAddr::new(address(v6, 3, 1), 80));
        frame.tcp_flags = SYN;
        return (hook, frame);
    }
    match (connection, random.below(14)) {
        (Some(connection), 0..=7) => known(random, v6, &connection),
        (connection, roll) => {
            let known = connection.filter(|_| !random.one_in(3));
            first(random, v6, model, known, roll)
        }
    }
}

/// A packet of a connection.
fn known(random: &mut Random, v6: bool, connection: &Connection) -> (Hook, Frame) {
    let anywhere = *random.of(&Hook::ALL);
    if random.one_in(2) {
        // It goes on, or its tuple is used again.
        let mut frame = shaped(random, v6, connection.protocol, connection.client, connection.target);
        asks(random, &mut frame, connection.isn);
        goes_on(random, &mut frame, connection.forward, connection.reply);
        if let Some(answers) = connection.opening.as_ref().and_then(|opening| opening.answers)
            && !random.one_in(4)
        {
            let answer = *random.of(&answers);
            opens(random, &mut frame, connection.isn, answer);
        }
        return (if random.one_in(3) { anywhere } else { connection.hook }, frame);
    }
    // It is answered.
    let mut frame = shaped(random, v6, connection.protocol, connection.answerer, connection.seen_client);
    answers(random, &mut frame, connection.isn);
    goes_on(random, &mut frame, connection.reply, connection.forward);
    let expected = if connection.behind_node {
        *random.of(&[Hook::NodeIn, Hook::Xdp, Hook::PodIn])
    } else if connection.masqueraded || connection.hook == Hook::PodIn {
        Hook::PodOut
    } else {
        *random.of(&[Hook::NodeOut, Hook::PodIn])
    };
    (if random.one_in(3) { anywhere } else { expected }, frame)
}

/// A client asks a service, or somebody something.
fn first(random: &mut Random, v6: bool, model: &Model, known: Option<Connection>, roll: usize) -> (Hook, Frame) {
    let hook = match random.below(6) {
        0 | 1 => Hook::PodIn,
        2 => Hook::NodeIn,
        3 => Hook::Xdp,
        _ => *random.of(&Hook::ALL),
    };
    let client = client(random, v6, model, hook);
    let backends: Vec<SocketAddr> = model.backends.values().map(|backend| backend.address).collect();
    let somebody = |random: &mut Random| {
        if backends.is_empty() { SocketAddr::new(address(v6, 4, 1), 80) } else { *random.of(&backends) }
    };
    let service = |random: &mut Random| {
        let host = 1 + u8::try_from(random.below(4)).expect("few");
        SocketAddr::new(address(v6, 3, host), 80)
    };
    let protocol = known.as_ref().map_or_else(|| *random.of(&PROTOCOLS), |connection| connection.protocol);
    let (src, dst) = match (roll, known) {
        // A client talks to a backend directly, one that answers it as a service meanwhile before all.
        (8, Some(connection)) => (connection.client, connection.answerer),
        (8, None) => (client, somebody(random)),
        // A client that has a connection asks another service from the same port.
        (9 | 12 | 13, Some(connection)) => (connection.client, service(random)),
        (9, None) => (somebody(random), client),
        (10, _) if random.one_in(4) => (somebody(random), client),
        // Nothing to do with any service.
        (10, _) if random.one_in(3) => (client, SocketAddr::new(address(v6, 3, 1), 81)),
        (10, _) if random.one_in(2) => (client, SocketAddr::new(address(v6, 4, 1), 80)),
        // A client asks a service.
        _ => (client, service(random)),
    };
    (hook, shaped(random, v6, protocol, src, dst))
}

/// Somebody who may ask at this hook.
fn client(random: &mut Random, v6: bool, model: &Model, hook: Hook) -> SocketAddr {
    /// Some that a client behind an address of this node may keep, and some that it may not.
    const PORTS: [u16; 10] = [80, 1_023, 1_024, 29_999, 30_000, 32_767, 32_768, 60_999, 61_000, 65_535];
    let port = if model.has_few_ports() {
        // None that may be kept.
        *random.of(&[80, 30_000, 32_767, 32_768, 60_999])
    } else if random.one_in(6) {
        *random.of(&PORTS)
    } else {
        4_000 + u16::try_from(random.below(3)).expect("few")
    };
    let host = 1 + u8::try_from(random.below(2)).expect("few");
    let loopback = if v6 { Ipv6Addr::LOCALHOST.into() } else { IpAddr::from([127, 1, 2, 3]) };
    let address = match (hook, random.below(12)) {
        (Hook::NodeIn | Hook::Xdp, 0..=6) => address(v6, 5, host),
        (Hook::NodeIn | Hook::Xdp, 7) => address(v6, 3, host),
        (Hook::NodeIn | Hook::Xdp, 8) => loopback,
        (_, 9) => address(v6, 2, host),
        (_, 10) => address(v6, 1, 3),
        _ => address(v6, 1, host),
    };
    SocketAddr::new(address, port)
}

/// The SYN again, or what follows it; now and then another number.
fn asks(random: &mut Random, frame: &mut Frame, isn: u32) {
    if random.one_in(3) {
        frame.tcp_flags = SYN;
    }
    if random.one_in(5) {
        return;
    }
    frame.sequence = if frame.tcp_flags & SYN != 0 { isn } else { isn.wrapping_add(1 + u32::from(random.byte())) };
}

/// What an end says that knows where the connection is; now and then something near it.
fn goes_on(random: &mut Random, frame: &mut Frame, own: Option<Half>, other: Option<Half>) {
    let (Some(own), Some(other)) = (own, other) else { return };
    if frame.protocol == Protocol::Udp || own.said.next == 0 || random.one_in(3) {
        return;
    }
    frame.tcp_flags = *random.of(&[ACK, ACK, ACK, FIN | ACK, FIN | ACK, RST, RST | ACK, ACK | RST | FIN, FIN]);
    let resets = frame.tcp_flags & RST != 0;
    frame.sequence = if resets && random.one_in(2) { other.said.heard } else { own.said.next };
    frame.acknowledgement = if random.one_in(3) { own.said.heard } else { other.said.next };
    if random.one_in(4) {
        // On and beyond the borders of what follows.
        let far = *random.of(&[1, (1 << 17) - 1, 1 << 17, (1 << 17) + 1]);
        let back = random.one_in(2);
        frame.sequence = if back { frame.sequence.wrapping_sub(far) } else { frame.sequence.wrapping_add(far) };
    }
}

/// What the client says that has this answer.
fn opens(random: &mut Random, frame: &mut Frame, isn: u32, answer: u32) {
    frame.tcp_flags = *random.of(&[ACK, ACK, ACK, ACK, FIN | ACK, RST]);
    (frame.sequence, frame.acknowledgement) = (isn.wrapping_add(1), answer.wrapping_add(1));
}

/// What answers a SYN, or follows the answer; now and then another number.
fn answers(random: &mut Random, frame: &mut Frame, isn: u32) {
    match random.below(5) {
        0 | 1 => frame.tcp_flags = SYN | ACK,
        2 => frame.tcp_flags = RST | ACK,
        _ => {}
    }
    if !random.one_in(6) {
        let data = if random.one_in(8) { u32::from(random.byte()) } else { 0 };
        frame.acknowledgement = isn.wrapping_add(1 + data);
    }
    // Answers are sent again, and some differ.
    frame.sequence = *random.of(&[700, 700, 700, 701, u32::MAX]);
}

/// A packet with everything that must not matter chosen at random.
fn shaped(random: &mut Random, v6: bool, protocol: Protocol, src: SocketAddr, dst: SocketAddr) -> Frame {
    let words = |random: &mut Random, most: usize| {
        let count = if random.one_in(4) { 4 * random.below(most + 1) } else { 0 };
        random.bytes(count)
    };
    let ip_options = if v6 { Vec::new() } else { words(random, 10) };
    let length = match random.below(5) {
        0 => 0,
        1 => random.below(4),
        2 => 1000 + random.below(400),
        _ => random.below(100),
    };
    Frame {
        protocol,
        src,
        dst,
        tcp_flags: tcp_flags(random),
        sequence: u32::from_le_bytes(random.any().to_le_bytes()[..4].try_into().expect("4 bytes")),
        acknowledgement: u32::from_le_bytes(random.any().to_le_bytes()[..4].try_into().expect("4 bytes")),
        ip_options,
        tcp_options: words(random, 10),
        payload: random.bytes(length),
        hops: if random.one_in(10) { 1 } else { 1 + random.byte() % 255 },
        identification: u16::from(random.byte()) << 8 | u16::from(random.byte()),
        dont_fragment: random.one_in(2),
        more_fragments: !v6 && random.one_in(30),
        fragment_offset: if !v6 && random.one_in(30) { 1 + u16::from(random.byte()) } else { 0 },
        without_checksum: !v6 && random.one_in(6),
        checksum_error: if random.one_in(10) { u16::from(random.byte()) << 3 } else { 0 },
        padding: if random.one_in(6) { random.below(20) } else { 0 },
        macs: ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]),
    }
}

fn tcp_flags(random: &mut Random) -> u8 {
    match random.below(10) {
        0..=3 => SYN,
        4 => SYN | 0xc0,
        5 | 6 => ACK,
        7 => SYN | ACK,
        8 => *random.of(&[FIN | ACK, RST, RST | ACK, FIN]),
        _ => random.byte(),
    }
}

/// Breaks a packet: cut short, lengths that lie, headers that contradict each other, bits flipped.
pub fn broken(random: &mut Random, frame: &Frame) -> Vec<u8> {
    let mut bytes = frame.bytes();
    let transport = 14 + if frame.src.is_ipv4() { 20 + frame.ip_options.len() } else { 40 };
    match random.below(6) {
        0 => bytes.truncate(14 + random.below(bytes.len() - 13)),
        1 => bytes.truncate(14 + random.below((transport + 21).min(bytes.len()) - 13)),
        2 => bytes[14] = random.byte(),
        // IPv4 total length, IPv6 payload length.
        3 => bytes[if frame.src.is_ipv4() { 16 } else { 18 } + random.below(2)] = random.byte(),
        // TCP data offset, UDP length.
        4 => bytes[transport + if frame.protocol == Protocol::Tcp { 12 } else { 4 }] = random.byte(),
        _ => {
            for _ in 0..=random.below(8) {
                let at = 12 + random.below((bytes.len() - 12).min(60));
                bytes[at] ^= 1 << random.below(8);
            }
        }
    }
    bytes
}
