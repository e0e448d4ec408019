//! A flood of SYNs on a node port that native XDP serves. No established flow is evicted, and real clients get through, even if half-open entries
//! live for less than a client's round trip. Needs root.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Endpoint, External, Manifest, Service};
use lb_tests::external_client;
use lb_tests::fixture;
use lb_tests::incident::raw_tcp::{ACK, Flood, RST, RawTcp, SYN, Segment};
use lb_tests::incident::{Clients, Counters};
use lb_tests::peers::{Server, Stream};
use lb_tests::routed::XdpPass;
use lb_tests::topology::{Namespace, Node, NodeOptions, Pod, Topology};

/// Node ports: of the service that is flooded, whose backends are on the node itself, and of one whose backend is on another node.
const FLOODED: u16 = 30_080;
const REMOTE: u16 = 30_081;
/// Open before the flood, and to be open after it, of each service.
const ESTABLISHED: usize = 100;
/// A slow machine gets this long.
const LIMIT: Duration = Duration::from_mins(2);
/// Bytes of data with which a client shows that it has seen the answer.
const DATA: u32 = 10;
/// Their clients' first number.
const ISN: u32 = 7_000;

/// Fields in the order in which they must end.
struct Scenario {
    agent: Agent,
    _servers: Vec<Server>,
    _pods: Vec<Pod>,
    client: Namespace,
    _passing: XdpPass,
    nodes: [Node; 2],
    _topology: Topology,
}

impl Scenario {
    /// With half-open tables of so many entries.
    fn new(subject: &str, half_open: u64) -> Self {
        let topology = Topology::new(subject).expect("a topology: needs root");
        let options = NodeOptions { rp_filter: 2, ..NodeOptions::default() };
        let nodes = [(); 2].map(|()| topology.node_with(options).unwrap());
        nodes[0].route_to(&nodes[1]).unwrap();
        nodes[1].route_to(&nodes[0]).unwrap();
        let client = external_client::far_client(&topology);
        // The flood forges addresses of an unused network; slow clients are made by hand, at addresses that no kernel answers for.
        let wire = topology.wire();
        for scope in ["all", "far0"] {
            wire.sysctl(&format!("net/ipv4/conf/{scope}/rp_filter"), "0").unwrap();
        }
        wire.ip("route add blackhole 198.19.0.0/17\nroute add 198.19.128.0/17 via 198.51.100.2").unwrap();
        let passing = XdpPass::attach(wire, &nodes[0].port()).unwrap();
        let pods: Vec<Pod> = [&nodes[0], &nodes[0], &nodes[1]]
            .into_iter()
            .zip(["b0", "b1", "far"])
            .map(|(node, name)| node.pod(name).unwrap())
            .collect();
        let servers = pods.iter().flat_map(|pod| fixture::serve(pod, "server")).collect();
        let service = |name, number, port, pods: &[Pod], on: &Node| {
            let endpoints = pods.iter().map(|pod| Endpoint::ready(pod.addresses()).on(&on.node_name())).collect();
            let external = External { node_ports: vec![port, port + 1_000], ..External::default() };
            Service::standard(name, number, endpoints).with(external)
        };
        let manifest = Manifest::of([
            service("flooded", 11, FLOODED, &pods[..2], &nodes[0]),
            service("remote", 12, REMOTE, &pods[2..], &nodes[1]),
        ]);
        let sizes = format!("--map-sizes=half_open={half_open},flows4=65536,flows6=4096");
        let agent = Agent::start_with(&nodes[0], &manifest, &[&sizes, "--xdp-mode=native"]).unwrap();
        Self { agent, _servers: servers, _pods: pods, client, _passing: passing, nodes, _topology: topology }
    }

    fn node_port(&self, port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(self.nodes[0].addresses().v4, port)
    }

    fn both(&self) -> [SocketAddr; 2] {
        [FLOODED, REMOTE].map(|port| self.node_port(port).into())
    }

    fn counters(&self) -> Counters {
        Counters::read(self.agent.bpffs()).unwrap()
    }

    fn established(&self) -> Vec<Stream> {
        let open = |to| {
            let mut stream = Stream::connect(self.client.netns(), to).unwrap();
            stream.ask("before").unwrap();
            stream
        };
        self.both().into_iter().flat_map(|to| (0..ESTABLISHED).map(move |_| to)).map(open).collect()
    }
}

/// A flood that goes on until it is stopped.
struct Flooding {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Flooding {
    fn start(scenario: &Scenario) -> Self {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&sent));
        let to = scenario.node_port(FLOODED);
        let thread = scenario.client.netns().spawn(move || {
            let flood = Flood::new().unwrap();
            for number in 0..u32::MAX {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let [.., third, fourth] = (number % 32_000).to_be_bytes();
                flood.syn(Ipv4Addr::new(198, 19, third, fourth), number, to);
                counted.store(u64::from(number) + 1, Ordering::Relaxed);
            }
        });
        Self { stop, sent, thread }
    }

    /// Until so many more were sent.
    fn wait(&self, more: u64) {
        let (start, until) = (Instant::now(), self.sent.load(Ordering::Relaxed) + more);
        while self.sent.load(Ordering::Relaxed) < until {
            assert!(start.elapsed() < LIMIT, "the flood has ceased");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        self.sent.load(Ordering::Relaxed)
    }
}

fn selected(counters: &Counters, before: &Counters) -> u64 {
    [Outcome::Selected, Outcome::SelectedByTuple].map(|outcome| counters.since(before, outcome)).iter().sum()
}

fn none_is_lost(mut established: Vec<Stream>) {
    let lost = established.iter_mut().filter_map(|stream| stream.ask("still there?").err()).count();
    assert_eq!(lost, 0, "established connections lost");
}

#[test]
fn a_flood_on_a_node_port_evicts_no_established_flow_and_keeps_nobody_out() {
    const HALF_OPEN: u64 = 4096;
    const LEGITIMATE: Clients =
        Clients { connections: 500, at_a_time: 8, patience: Duration::from_secs(20), first_port: None };
    let scenario = Scenario::new("npflood", HALF_OPEN);
    let established = scenario.established();
    let before = scenario.counters();
    let flooding = Flooding::start(&scenario);
    let (start, mut attempts) = (Instant::now(), Vec::new());
    while attempts.is_empty() || selected(&scenario.counters(), &before) < 10 * HALF_OPEN {
        assert!(start.elapsed() < LIMIT, "no flood");
        for to in scenario.both() {
            attempts.extend(LEGITIMATE.run(scenario.client.netns(), to).attempts);
        }
    }
    let sent = flooding.end();
    let after = scenario.counters();
    let errors: Vec<_> = attempts.iter().filter_map(|attempt| attempt.error.as_ref()).collect();
    println!(
        "{sent} SYNs against a half-open table of {HALF_OPEN} entries; counted: {}\n  failed: {} of {}",
        after.line_since(&before),
        errors.len(),
        attempts.len()
    );
    assert!(errors.len() * 1000 <= attempts.len(), "the first of {}: {:?}", errors.len(), errors.first());
    assert!(after.since(&before, Outcome::SelectedByTuple) > 0);
    none_is_lost(established);
}

/// Who answers what it got only after the table was filled several times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slow {
    Asks,
    Answered(Segment),
    Refused,
    Served,
}

/// Client and node port.
type Pair = (SocketAddr, SocketAddr);

/// Each client says what it has to say until there is nothing: what is lost is sent again.
fn exchange(raw: &RawTcp, all: &mut HashMap<Pair, Slow>, says: impl Fn(&Pair, &Slow) -> Option<Segment>) {
    let start = Instant::now();
    loop {
        let waiting: Vec<Segment> = all.iter().filter_map(|(pair, client)| says(pair, client)).collect();
        if waiting.is_empty() {
            return;
        }
        assert!(start.elapsed() < LIMIT, "{} of {} got no answer: {:?}", waiting.len(), all.len(), waiting.first());
        for segment in &waiting {
            raw.send(segment);
        }
        while let Some(got) = raw.receive(Duration::from_millis(300), |got| all.contains_key(&(got.to, got.from))) {
            let client = all.get_mut(&(got.to, got.from)).unwrap();
            *client = match *client {
                _ if got.flags & RST != 0 => Slow::Refused,
                Slow::Asks if got.is(SYN | ACK) => Slow::Answered(got),
                // What the server acknowledges is the data.
                Slow::Answered(answer) if got.is(ACK) && got.ack == answer.ack + DATA => Slow::Served,
                other => other,
            };
        }
    }
}

#[test]
fn clients_whose_entries_live_for_less_than_a_round_trip_get_through() {
    const HALF_OPEN: u64 = 512;
    const BATCHES: u8 = 20;
    const OF_FLOODED: u16 = 50;
    const OF_REMOTE: u16 = 5;
    let scenario = Scenario::new("npslow", HALF_OPEN);
    let established = scenario.established();
    let before = scenario.counters();
    let raw = RawTcp::new(scenario.client.netns()).unwrap();
    let flooding = Flooding::start(&scenario);
    flooding.wait(HALF_OPEN);
    let (mut clients, mut refused) = ([0_u64; 2], [0_u64; 2]);
    for batch in 1..=BATCHES {
        let from = |at| SocketAddr::from(([198, 19, 200, batch], 40_000 + at));
        let [flooded, remote] = scenario.both();
        let pairs = (0..OF_FLOODED).map(|at| (from(at), flooded)).chain((0..OF_REMOTE).map(|at| (from(at), remote)));
        let mut all: HashMap<Pair, Slow> = pairs.map(|pair| (pair, Slow::Asks)).collect();
        exchange(&raw, &mut all, |(from, to), client| (*client == Slow::Asks).then(|| Segment::syn(*from, *to, ISN)));
        // So much for the round trip.
        flooding.wait(4 * HALF_OPEN);
        exchange(&raw, &mut all, |_, client| match client {
            Slow::Answered(answer) => Some(answer.answer(ACK, answer.ack).with_data(DATA as usize)),
            _ => None,
        });
        for ((_, to), client) in &all {
            let at = usize::from(*to == remote);
            clients[at] += 1;
            refused[at] += u64::from(*client == Slow::Refused);
        }
        // They go as they came: at once.
        for (from, to) in all.keys() {
            raw.send(&Segment { from: *from, to: *to, flags: RST, seq: ISN + 1 + DATA, ack: 0, length: 0 });
        }
    }
    let sent = flooding.end();
    let after = scenario.counters();
    println!(
        "{sent} SYNs against a half-open table of {HALF_OPEN} entries; counted: {}\n  refused: {refused:?} of {clients:?}",
        after.line_since(&before)
    );
    assert!(refused[0] * 1000 <= clients[0], "{refused:?} of {clients:?} refused");
    // Whose port of the node another flow held at the SYN, and no more at the ACK, is sent on from another one.
    assert!(refused[1] * 10 <= clients[1], "{refused:?} of {clients:?} refused");
    assert!(after.since(&before, Outcome::Resumed) >= clients.iter().sum::<u64>() / 2, "{}", after.line_since(&before));
    none_is_lost(established);
}
