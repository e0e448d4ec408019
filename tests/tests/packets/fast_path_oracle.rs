//! The fast path, judged packet by packet by a model of its rule. Each packet is translated once over all hooks, and skips the stack exactly when the
//! rule says so.

use aya::maps::{Array, MapData};
use lb_common::abi::{FlowKey, Link, TCP, UDP, backend_flags, fast_path, link_flags, link_role};
use lb_common::decide::Packet;
use lb_common::plain::{Memory, frontend, tuple};
use lb_tests::lockstep::Maps;
use lb_tests::oracle::{self, Frame};
use lb_tests::random::Random;
use lb_tests::test_run::{Hook, LoadedPrograms};
use lb_tests::topology::{Namespace, Topology};

/// Conversations of each family.
const CONVERSATIONS: u64 = 400;
/// Verdicts at tc: left to what comes next, and redirected.
const NEXT: i32 = -1;
const REDIRECT: i32 = 7;
/// Longer than the links take, and shorter.
const LARGE: usize = 1_600;
const SMALL: usize = 1;
const SERVICE_PORT: u16 = 80;
const BACKEND_PORT: u16 = 8080;
/// What the agent permits: nothing, flows between pods, those to other nodes, too.
const KINDS: [u32; 4] = [0, fast_path::PODS, fast_path::PODS | fast_path::NODES, fast_path::PODS | fast_path::NODES];
/// A second of `CLOCK_MONOTONIC` that is long past, and one that no machine sees.
const PAST: u32 = 1;
const NEVER: u32 = u32::MAX >> 2;
/// Where a packet is seen.
type Seen = (Hook, u32);

/// A host of the world, and where the routing table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodLocation {
    /// A pod of this node.
    Pod,
    /// Another node's, by an external link that sends packets of pods on.
    Beyond,
    /// Another node's, by such a link, but its neighbour is not known.
    Unknown,
    /// Another node's, by a link that does not: a tunnel's.
    Tunnel,
}

#[derive(Clone, Copy, Debug)]
struct Host {
    place: PodLocation,
    number: u8,
    link: u32,
}

/// Two clients, and a backend of each kind; the first client is a backend, too. Services have the number of their backend.
struct Fixture {
    programs: LoadedPrograms,
    word: Array<MapData, u32>,
    hosts: Vec<Host>,
    externals: [u32; 3],
    random: Random,
    port: u16,
}

fn address<const N: usize>(net: u8, number: u8) -> [u8; N] {
    let mut address = [0; N];
    (address[0], address[1], address[N - 1]) = (if N == 4 { 10 } else { 0xfd }, net, number);
    address
}

fn text<const N: usize>(address: [u8; N]) -> String {
    let colon = |pair: &[u8]| format!("{:02x}{:02x}", pair[0], pair[1]);
    if N == 4 {
        address.map(|byte| byte.to_string()).join(".")
    } else {
        address.chunks(2).map(colon).collect::<Vec<_>>().join(":")
    }
}

/// Links and routes; gives their indexes, those of the pods first.
fn links<const N: usize>(node: &Namespace) -> Vec<u32> {
    let mut lines = Vec::new();
    let whole = 8 * N;
    for (number, name) in ["p1", "p2", "x1", "x2", "x3"].into_iter().enumerate() {
        lines.push(format!("link add f{N}{name} type veth peer name f{N}{name}e"));
        lines.push(format!("link set f{N}{name} up\nlink set f{N}{name}e up"));
        let host = u8::try_from(number + 1).unwrap();
        let to = text(address::<N>(1, host));
        let neighbour = text(address::<N>(9, host));
        let known =
            |of: &str| format!("neighbour add {of} lladdr 02:00:00:00:09:{host:02x} dev f{N}{name} nud permanent");
        if number < 2 {
            lines.push(format!("route add {to}/{whole} dev f{N}{name}\n{}", known(&to)));
        } else {
            lines.push(format!("route add {neighbour}/{whole} dev f{N}{name}\n{}", known(&neighbour)));
            lines.push(format!("route add {to}/{whole} via {neighbour} dev f{N}{name} onlink"));
        }
    }
    // Beyond the first external link, but nobody knows how to reach its node.
    let (to, next_hop) = (text(address::<N>(1, 6)), text(address::<N>(9, 6)));
    lines.push(format!("route add {next_hop}/{whole} dev f{N}x1"));
    lines.push(format!("route add {to}/{whole} via {next_hop} dev f{N}x1 onlink"));
    node.ip(&lines.join("\n")).unwrap();
    let index =
        |name: &str| node.netns().run(|| nix::net::if_::if_nametoindex(format!("f{N}{name}").as_str())).unwrap();
    ["p1", "p2", "x1", "x2", "x3"].map(index).to_vec()
}

impl Fixture {
    fn new<const N: usize>(node: &Namespace) -> Self
    where
        LoadedPrograms: Maps<N>,
    {
        let links = links::<N>(node);
        let mut programs = node.netns().run(LoadedPrograms::load).unwrap();
        let at = |place, number: u8, link: usize| Host { place, number, link: links[link] };
        let hosts = vec![
            at(PodLocation::Pod, 1, 0),
            at(PodLocation::Pod, 2, 1),
            at(PodLocation::Beyond, 3, 2),
            at(PodLocation::Beyond, 4, 3),
            at(PodLocation::Tunnel, 5, 4),
            at(PodLocation::Unknown, 6, 2),
        ];
        let roles = [
            (link_role::POD, link_flags::FAST_PATH),
            (link_role::POD, link_flags::FAST_PATH),
            (link_role::EXTERNAL, link_flags::SENDS_ON),
            (link_role::EXTERNAL, link_flags::SENDS_ON),
            (link_role::TUNNEL, 0),
        ];
        for (index, (role, flags)) in links.iter().zip(roles) {
            programs.set_link(*index, Link { peer_netns_id: -1, role, flags }).unwrap();
        }
        let mut tables = Memory::<N>::empty();
        for host in &hosts {
            let id = u32::from(host.number);
            for protocol in [TCP, UDP] {
                let key = frontend(protocol, (address(3, host.number), SERVICE_PORT));
                tables.serve(id, 2 * id, key, &[address(1, host.number)], BACKEND_PORT);
            }
        }
        tables.backends.values_mut().for_each(|backend| backend.flags &= !backend_flags::LOCAL);
        programs.fill(&tables).unwrap();
        let word = programs.take_map("fast_path").unwrap().try_into().unwrap();
        let externals = [links[2], links[3], links[4]];
        Self { programs, word, hosts, externals, random: Random::new(lb_seed::of_run() + N as u64), port: 1_024 }
    }

    /// Runs a program at a link.
    fn run(&mut self, (hook, link): Seen, packet: &[u8]) -> (i32, Vec<u8>) {
        let ran = self.programs.run_at(hook, link, packet).unwrap().unwrap();
        (ran.verdict, ran.bytes)
    }
}

/// A conversation, and what the rule says of it.
struct Conversation<const N: usize> {
    asked: FlowKey<N>,
    client: Host,
    backend: Host,
    /// Where the client's packets come by: another pod's link, if somebody speaks in its name.
    by: u32,
    /// The bit of the word that its packets need; 0: they never pass the stack by.
    kind: u32,
}

/// What of a packet matters to the rule.
#[derive(Clone, Copy, Debug)]
struct Make {
    hops: u8,
    payload: usize,
}

impl Make {
    fn any(random: &mut Random) -> Self {
        let hops = if random.one_in(6) { 1 } else { 64 };
        Self { hops, payload: if random.one_in(6) { LARGE } else { SMALL } }
    }

    const fn fits(self) -> bool {
        self.hops > 1 && self.payload == SMALL
    }
}

const fn hops_at<const N: usize>() -> usize {
    14 + if N == 4 { 8 } else { 7 }
}

fn packet<const N: usize>(key: FlowKey<N>, flags: u8, numbers: (u32, u32), make: Make) -> Vec<u8> {
    let flags = if key.protocol == TCP { flags } else { 0 };
    let frame = Frame::of(&Packet { seq: numbers.0, ack: numbers.1, ..Packet::new(key, flags) });
    Frame { hops: make.hops, payload: vec![b'x'; make.payload], ..frame }.bytes()
}

impl<const N: usize> Conversation<N> {
    fn begin(fixture: &mut Fixture) -> (Self, u32) {
        let random = &mut fixture.random;
        fixture.port += 1;
        let client = fixture.hosts[random.below(2)];
        let by = if random.one_in(8) { fixture.hosts[usize::from(client.number == 1)].link } else { client.link };
        let backend = loop {
            let backend = *random.of(&fixture.hosts);
            if backend.number != client.number {
                break backend;
            }
        };
        let open = *random.of(&KINDS);
        let kind = match backend.place {
            PodLocation::Pod => fast_path::PODS,
            PodLocation::Beyond | PodLocation::Unknown => fast_path::NODES,
            PodLocation::Tunnel => 0,
        };
        // In both directions or in neither, from the first packet on.
        let kind = if open & kind != 0 && by == client.link { kind } else { 0 };
        let (src, dst) = ((address(1, client.number), fixture.port), (address(3, backend.number), SERVICE_PORT));
        let asked = tuple(*random.of(&[TCP, UDP]), src, dst);
        (Self { asked, client, backend, by, kind }, open)
    }

    fn translated(&self) -> FlowKey<N> {
        FlowKey { dst: address(1, self.backend.number), dst_port: BACKEND_PORT, ..self.asked }
    }

    /// The client sends: through all hooks on the way.
    fn request(&self, fixture: &mut Fixture, by: u32, open: u32, flags: u8, numbers: (u32, u32), make: Make) {
        let sent = packet(self.asked, flags, numbers, make);
        let (verdict, got) = fixture.run((Hook::PodIn, by), &sent);
        let is_own = by == self.client.link;
        let fast = open & self.kind != 0 && is_own && make.fits() && self.backend.place != PodLocation::Unknown;
        let what = format!("{:?} by {by}, {make:?}, open {open}, kind {}", self.asked, self.kind);
        assert_eq!(verdict, if fast { REDIRECT } else { NEXT }, "request {what}");
        assert_eq!(oracle::tuple(&got), Some(self.translated()), "request {what}");
        assert_eq!(got[hops_at::<N>()], make.hops - u8::from(fast), "request {what}");
        // Past the stack into a pod: that is the end. Else by the link that leads there.
        if fast && self.backend.place == PodLocation::Pod {
            return;
        }
        let way =
            (if self.backend.place == PodLocation::Pod { Hook::PodOut } else { Hook::NodeOut }, self.backend.link);
        assert_eq!(fixture.run(way, &got), (NEXT, got.clone()), "translated once: {what}");
    }

    /// The backend sends.
    fn answer(&self, fixture: &mut Fixture, open: u32, flags: u8, numbers: (u32, u32), make: Make) {
        let own =
            if self.backend.place == PodLocation::Pod { vec![self.backend.link] } else { fixture.externals.to_vec() };
        let link = if fixture.random.one_in(2) { self.backend.link } else { *fixture.random.of(&own) };
        let key = self.translated().reversed();
        let back = FlowKey { src: self.asked.dst, src_port: SERVICE_PORT, ..key };
        let sent = packet(key, flags, numbers, make);
        let hook = if self.backend.place == PodLocation::Pod { Hook::PodIn } else { Hook::NodeIn };
        let (verdict, got) = fixture.run((hook, link), &sent);
        let fast = open & self.kind != 0 && make.fits() && link == self.backend.link;
        let what = format!("{key:?} by {link}, {make:?}, open {open}, kind {}", self.kind);
        assert_eq!(verdict, if fast { REDIRECT } else { NEXT }, "answer {what}");
        if fast {
            assert_eq!(oracle::tuple(&got), Some(back), "answer {what}");
            assert_eq!(got[hops_at::<N>()], make.hops - 1, "answer {what}");
            return;
        }
        assert_eq!(got, sent, "left to the client's link: {what}");
        let (verdict, got) = fixture.run((Hook::PodOut, self.client.link), &got);
        assert_eq!((verdict, oracle::tuple(&got)), (NEXT, Some(back)), "translated once: {what}");
    }
}

fn converse<const N: usize>(fixture: &mut Fixture) -> bool {
    const SYN: u8 = 2;
    const ACK: u8 = 16;
    let (conversation, mut open) = Conversation::<N>::begin(fixture);
    let plain = Make { hops: 64, payload: SMALL };
    let first = Make { payload: SMALL, ..Make::any(&mut fixture.random) };
    let by = conversation.by;
    fixture.word.set(0, fast_path::until(open, NEVER), 0).unwrap();
    conversation.request(fixture, by, open, SYN, (1_000, 0), first);
    conversation.answer(fixture, open, SYN | ACK, (5_000, 1_001), plain);
    conversation.request(fixture, by, open, ACK, (1_001, 5_001), plain);
    for _ in 0..12 {
        // The permission changes while the flow lives, or expires.
        if fixture.random.one_in(3) {
            let (kinds, is_over) = (*fixture.random.of(&KINDS), fixture.random.one_in(4));
            open = if is_over { 0 } else { kinds };
            fixture.word.set(0, fast_path::until(kinds, if is_over { PAST } else { NEVER }), 0).unwrap();
        }
        let make = Make::any(&mut fixture.random);
        if fixture.random.one_in(2) {
            // Now and then somebody at the other pod's link speaks in the client's name.
            let by = if fixture.random.one_in(4) { fixture.hosts[fixture.random.below(2)].link } else { by };
            conversation.request(fixture, by, open, ACK, (1_001, 5_001), make);
        } else {
            conversation.answer(fixture, open, ACK, (5_001, 1_001), make);
        }
    }
    conversation.kind != 0
}

fn examine<const N: usize>(subject: &str)
where
    LoadedPrograms: Maps<N>,
{
    let topology = Topology::new(subject).unwrap();
    let node = topology.node().unwrap();
    let mut fixture = Fixture::new::<N>(node.namespace());
    let fast = node.netns().run(|| (0..CONVERSATIONS).filter(|_| converse::<N>(&mut fixture)).count());
    assert!(fast > 100, "{fast} conversations were for the fast path");
}

#[test]
fn each_packet_is_translated_once_and_passes_the_stack_by_as_the_rule_says() {
    examine::<4>("fastrule4");
    examine::<16>("fastrule6");
}
