//! Random models, and random changes to them. Pools are small, so that things collide.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use lb_common::abi::service_flags;

use super::model::{AddressKind, Backend, BackendState, Drain, Model, Range, Service, Torn, Whose};
use super::wire::Protocol;
use crate::random::Random;

/// What services speak.
pub const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

/// An address: clients are net 1, backends net 2, frontends net 3, others net 4, external clients net 5, this node net 6.
pub fn address(v6: bool, net: u8, host: u8) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0xfd00, u16::from(net), 0, 0xffff, 0x1234, 0, 0, u16::from(host)).into()
    } else {
        Ipv4Addr::new(10, net, 255, host).into()
    }
}

/// Services of one family with backends in all states, no connections yet.
pub fn model(random: &mut Random, v6: bool, now_s: u32) -> Model {
    let mut model = Model { now_s, ..Model::default() };
    for host in 1..=4 {
        for protocol in PROTOCOLS {
            if random.one_in(5) {
                continue;
            }
            let id = u32::try_from(model.services.len()).expect("few") + 1;
            // Every backend of a service has another address; services share them.
            let first = random.below(4);
            for nth in first..=first + random.below(3) {
                let number = u32::try_from(model.backends.len()).expect("few") + 1;
                let backend = backend(random, v6, id, nth % 5);
                model.backends.insert(number, backend);
            }
            let service = Service {
                id,
                kind: if random.one_in(2) { *random.of(&AddressKind::EXTERNAL) } else { AddressKind::ClusterIp },
                members: Vec::new(),
                members_outside: Vec::new(),
                drop_if_empty: false,
                drop_outside_if_empty: false,
                retries: true,
                ranges: None,
                other_flags: 0,
                torn: Torn::Whole,
            };
            model.services.insert((SocketAddr::new(address(v6, 3, host), 80), protocol), service);
        }
    }
    let keys: Vec<_> = model.services.keys().copied().collect();
    for key in keys {
        rewrite_service(random, &mut model, key);
    }
    model
}

/// Most do not drain.
fn drain(random: &mut Random) -> Drain {
    *random.of(&[Drain::None, Drain::None, Drain::None, Drain::Goes, Drain::Over, Drain::Over])
}

fn backend(random: &mut Random, v6: bool, service: u32, nth: usize) -> Backend {
    let host = 1 + u8::try_from(nth / 2).expect("few");
    let port = 8080 + u16::try_from(nth % 2).expect("few");
    Backend {
        address: SocketAddr::new(address(v6, 2, host), port),
        service,
        generation: 1 + u32::try_from(random.below(100_000)).expect("few"),
        life: if random.one_in(4) { *random.of(&BackendState::ALL) } else { BackendState::Active },
        serving: random.one_in(2),
        local: random.one_in(2),
        is_evictable: random.one_in(12),
        drain: drain(random),
    }
}

/// What is known of addresses: whose they are, which are services' alone, and which ones this node masquerades by.
pub fn set_addresses(random: &mut Random, v6: bool, model: &mut Model, links: [u32; 3]) {
    let whole = if v6 { 128 } else { 32 };
    let network = |net, host, bits| Range { address: address(v6, net, host), bits };
    let peculiar = *random.of(&[Whose::Peer, Whose::Node, Whose::Pods]);
    // A longer one within a shorter one says otherwise.
    let pool = [
        (network(1, 0, whole - 8), Whose::Pods, 4),
        (network(2, 0, whole - 8), Whose::Pods, 4),
        (network(5, 0, whole - 8), Whose::Peer, 1),
        (network(1, 2, whole), peculiar, 2),
        (network(2, 2, whole), Whose::Node, 2),
        (network(2, 1, whole), Whose::Peer, 1),
        (network(3, 4, whole), Whose::Node, 3),
        (network(3, 0, whole - 8), Whose::Services, 3),
    ];
    let known = pool.into_iter().filter(|(.., of_five)| random.below(5) < *of_five);
    model.networks = known.map(|(network, whose, _)| (network, whose)).collect();
    for host in 1..=4 {
        if random.one_in(2) {
            model.vips.insert(address(v6, 3, host), random.one_in(2));
        }
    }
    // A service may be reached by the very address that masqueraded packets come from.
    if !random.one_in(5) {
        model.own_addresses.insert(0, vec![*random.of(&[address(v6, 6, 1), address(v6, 3, 4)])]);
    }
    for (host, link) in (11..).zip(links) {
        if random.one_in(2) {
            model.own_addresses.insert(link, vec![address(v6, 6, host)]);
        }
    }
    // Those to go on to when the ports of one are used up.
    for (all, net) in model.own_addresses.values_mut().zip(20..) {
        all.extend((1..=3).take(random.below(4)).map(|host| address(v6, net, host)));
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
pub fn rewrite_service(random: &mut Random, model: &mut Model, key: (SocketAddr, Protocol)) {
    let Service { id, kind, .. } = model.services[&key];
    let mut members: Vec<(u32, u32)> = model
        .backends
        .iter()
        .filter(|(_, backend)| backend.service == id && backend.life == BackendState::Active)
        .map(|(&number, backend)| (number, backend.generation))
        .collect();
    if random.one_in(10) {
        members.clear();
    }
    // A cluster IP has one set for all. Elsewhere the sets may have nothing in common.
    let mut members_outside = members.clone();
    if kind != AddressKind::ClusterIp {
        members.retain(|_| !random.one_in(4));
        members_outside.retain(|_| !random.one_in(4));
    }
    let has_ranges = matches!(kind, AddressKind::ExternalIp | AddressKind::LoadBalancer) && random.one_in(2);
    let ranges = has_ranges.then(|| ranges(random, key.0.is_ipv6()));
    let others = [0, service_flags::NODE_ALLOWED, service_flags::OUTSIDE_LOCAL, service_flags::INSIDE_LOCAL];
    let torn = match random.below(40) {
        0 => Torn::Entry,
        1 => Torn::Generation,
        2 => Torn::Service,
        _ => Torn::Whole,
    };
    let (retries, other_flags) = (!random.one_in(5), *random.of(&others));
    let (drop_if_empty, drop_outside_if_empty) = (random.one_in(4), random.one_in(4));
    let sets = Service {
        id,
        kind,
        members,
        members_outside,
        drop_if_empty,
        drop_outside_if_empty,
        ranges: None,
        retries,
        other_flags,
        torn,
    };
    model.services.insert(key, Service { ranges, ..sets });
}

/// Something that the agent does to a backend.
pub fn change_backend(random: &mut Random, backend: &mut Backend) {
    match random.below(5) {
        0 => backend.generation += 1 + u32::try_from(random.below(3)).expect("few"),
        1 => backend.is_evictable = !backend.is_evictable,
        4 => backend.drain = drain(random),
        2 => backend.serving = !backend.serving,
        _ => backend.life = *random.of(&BackendState::ALL),
    }
}
