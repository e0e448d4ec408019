//! Random worlds, random changes to them, random packets. Pools are small, so that things collide.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use lb_common::abi::service_flags;

use super::wire::{ACK, FIN, Frame, Protocol, RST, SYN};
use super::world::{Backend, Kind, Life, Range, Service, Torn, World};
use crate::live::Hook;
use crate::random::Random;

const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

/// An address: clients are net 1, backends net 2, frontends net 3, strangers net 4.
fn address(v6: bool, net: u8, host: u8) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0xfd00, u16::from(net), 0, 0xffff, 0x1234, 0, 0, u16::from(host)).into()
    } else {
        Ipv4Addr::new(10, net, 255, host).into()
    }
}

/// Services of one family with backends in all states, no connections yet.
pub fn world(random: &mut Random, v6: bool, now_s: u32) -> World {
    let mut world = World { now_s, ..World::default() };
    for host in 1..=4 {
        for protocol in PROTOCOLS {
            if random.one_in(5) {
                continue;
            }
            let id = u32::try_from(world.services.len()).expect("few") + 1;
            // Every backend of a service has another address; services share them.
            let first = random.below(4);
            for nth in first..=first + random.below(3) {
                let number = u32::try_from(world.backends.len()).expect("few") + 1;
                let backend = backend(random, v6, id, nth % 4);
                world.backends.insert(number, backend);
            }
            let service = Service {
                id,
                kind: if random.one_in(3) { *random.of(&Kind::EXTERNAL) } else { Kind::ClusterIp },
                members: Vec::new(),
                members_outside: Vec::new(),
                drop_if_empty: false,
                retries: true,
                ranges: None,
                other_flags: 0,
                torn: Torn::Whole,
            };
            world.services.insert((SocketAddr::new(address(v6, 3, host), 80), protocol), service);
        }
    }
    let keys: Vec<_> = world.services.keys().copied().collect();
    for key in keys {
        rewrite_service(random, &mut world, key);
    }
    world
}

fn backend(random: &mut Random, v6: bool, service: u32, nth: usize) -> Backend {
    let host = 1 + u8::try_from(nth / 2).expect("few");
    let port = 8080 + u16::try_from(nth % 2).expect("few");
    Backend {
        address: SocketAddr::new(address(v6, 2, host), port),
        service,
        generation: 1 + u32::try_from(random.below(100_000)).expect("few"),
        life: if random.one_in(4) { *random.of(&Life::ALL) } else { Life::Active },
        serving: random.one_in(2),
        local: random.one_in(2),
        deadline_struck: random.one_in(12),
    }
}

/// Networks of which some hold some clients.
fn ranges(random: &mut Random, v6: bool) -> Vec<Range> {
    let whole = if v6 { 128 } else { 32 };
    let (clients, backends, nobody) = (address(v6, 1, 2), address(v6, 2, 0), address(v6, 9, 0));
    let pool = [
        Range { address: clients, bits: whole },
        Range { address: clients, bits: whole - 1 },
        Range { address: address(v6, 1, 0), bits: whole - 8 },
        Range { address: backends, bits: whole - 8 },
        Range { address: nobody, bits: whole - 8 },
        Range { address: if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }, bits: 0 },
    ];
    let count = random.below(3);
    (0..count).map(|_| *random.of(&pool)).collect()
}

/// Gives a service the members that its backends' states allow, or others: the tables are judged as they stand.
pub fn rewrite_service(random: &mut Random, world: &mut World, key: (SocketAddr, Protocol)) {
    let Service { id, kind, .. } = world.services[&key];
    let mut members: Vec<(u32, u32)> = world
        .backends
        .iter()
        .filter(|(_, backend)| backend.service == id && backend.life == Life::Active)
        .map(|(&number, backend)| (number, backend.generation))
        .collect();
    if random.one_in(10) {
        members.clear();
    }
    // A cluster IP has one set for all. Elsewhere the sets may have nothing in common.
    let mut members_outside = members.clone();
    if kind != Kind::ClusterIp {
        members.retain(|_| !random.one_in(4));
        members_outside.retain(|_| !random.one_in(4));
    }
    let has_ranges = matches!(kind, Kind::ExternalIp | Kind::LoadBalancer) && random.one_in(2);
    let ranges = has_ranges.then(|| ranges(random, key.0.is_ipv6()));
    let others = [0, service_flags::NODE_ALLOWED, service_flags::OUTSIDE_LOCAL, service_flags::DROP_OUTSIDE_IF_EMPTY];
    let torn = match random.below(40) {
        0 => Torn::Entry,
        1 => Torn::Generation,
        2 => Torn::Service,
        _ => Torn::Whole,
    };
    let (drop_if_empty, retries, other_flags) = (random.one_in(4), !random.one_in(5), *random.of(&others));
    let service = Service { id, kind, members, members_outside, drop_if_empty, ranges, retries, other_flags, torn };
    world.services.insert(key, service);
}

/// Something that the agent does to a backend.
pub fn change_backend(random: &mut Random, backend: &mut Backend) {
    match random.below(4) {
        0 => backend.generation += 1 + u32::try_from(random.below(3)).expect("few"),
        1 => backend.deadline_struck = !backend.deadline_struck,
        2 => backend.serving = !backend.serving,
        _ => backend.life = *random.of(&Life::ALL),
    }
}

/// A packet that may or may not concern a service or a connection of the world, and a hook that it comes by.
pub fn packet(random: &mut Random, v6: bool, world: &World) -> (Hook, Frame) {
    let anywhere = *random.of(&Hook::ALL);
    let connection = (!world.connections.is_empty()).then(|| random.of(&world.connections).clone());
    let left = (!world.left.is_empty() && random.one_in(3)).then(|| random.of(&world.left).clone());
    if let Some(left) = left {
        let mut frame = shaped(random, v6, left.protocol, left.answerer, left.seen_client);
        answers(random, &mut frame, left.isn);
        return (if random.one_in(3) { anywhere } else { Hook::PodOut }, frame);
    }
    let roll = random.below(12);
    if let (Some(connection), 0..=7) = (&connection, roll) {
        let protocol = connection.protocol;
        if roll <= 3 {
            // A connection goes on, or its tuple is used again.
            let mut frame = shaped(random, v6, protocol, connection.client, connection.target);
            let second =
                world.seconds.iter().find(|it| (it.client, it.target) == (connection.client, connection.target));
            let isn = second.filter(|_| !random.one_in(3)).map_or(connection.isn, |second| second.isn);
            asks(random, &mut frame, isn);
            return (if random.one_in(3) { anywhere } else { Hook::PodIn }, frame);
        }
        // It is answered.
        let mut frame = shaped(random, v6, protocol, connection.answerer, connection.seen_client());
        let second = world.seconds.iter().find(|it| (it.client, it.target) == (connection.client, connection.target));
        let isn = second.filter(|_| random.one_in(2)).map_or(connection.isn, |second| second.isn);
        answers(random, &mut frame, isn);
        return (if random.one_in(3) { anywhere } else { Hook::PodOut }, frame);
    }
    let client_host = 1 + u8::try_from(random.below(2)).expect("few");
    let client_port = 4000 + u16::try_from(random.below(3)).expect("few");
    let client = SocketAddr::new(address(v6, 1, client_host), client_port);
    let backends: Vec<SocketAddr> = world.backends.values().map(|backend| backend.address).collect();
    let somebody = |random: &mut Random| {
        if backends.is_empty() { SocketAddr::new(address(v6, 4, 1), 80) } else { *random.of(&backends) }
    };
    let service = |random: &mut Random| {
        let host = 1 + u8::try_from(random.below(4)).expect("few");
        SocketAddr::new(address(v6, 3, host), 80)
    };
    let known = connection.filter(|_| !random.one_in(3));
    let protocol = known.as_ref().map_or_else(|| *random.of(&PROTOCOLS), |connection| connection.protocol);
    let (src, dst) = match (roll, known) {
        // A client talks to a backend directly, one that answers it as a service meanwhile before all.
        (8, Some(connection)) => (connection.client, connection.answerer),
        (8, None) => (client, somebody(random)),
        // A client that has a connection asks another service from the same port.
        (9, Some(connection)) => (connection.client, service(random)),
        (9, None) => (somebody(random), client),
        (10, _) if random.one_in(4) => (somebody(random), client),
        // Nothing to do with any service.
        (10, _) if random.one_in(3) => (client, SocketAddr::new(address(v6, 3, 1), 81)),
        (10, _) if random.one_in(2) => (client, SocketAddr::new(address(v6, 4, 1), 80)),
        // A client asks a service.
        _ => (client, service(random)),
    };
    (if random.one_in(2) { anywhere } else { Hook::PodIn }, shaped(random, v6, protocol, src, dst))
}

/// The same SYN again, or what follows it; now and then another number.
fn asks(random: &mut Random, frame: &mut Frame, isn: u32) {
    if random.one_in(3) {
        frame.tcp_flags = SYN;
    }
    if random.one_in(5) {
        return;
    }
    frame.sequence = if frame.tcp_flags & SYN != 0 { isn } else { isn.wrapping_add(1 + u32::from(random.byte())) };
}

/// What answers a SYN, or follows the answer; now and then another number.
fn answers(random: &mut Random, frame: &mut Frame, isn: u32) {
    match random.below(5) {
        0 | 1 => frame.tcp_flags = SYN | ACK,
        2 => frame.tcp_flags = RST | ACK,
        _ => {}
    }
    if !random.one_in(6) {
        frame.acknowledgement = isn.wrapping_add(1);
    }
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
        hops: 1 + random.byte() % 255,
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
