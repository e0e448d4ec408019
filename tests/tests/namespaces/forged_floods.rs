//! Floods of forged SYNs, ACKs and datagrams of both families, ten times each table, from a pod and from a host outside at once. No established
//! connection is lost. Legitimate clients get their connections and the answers to their DNS queries. Needs root.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lb_common::outcome::Outcome;
use lb_tests::agent::{Endpoint, External, Manifest, Port, Protocol, Service};
use lb_tests::fixture::{Fixture, Pods, serve};
use lb_tests::incident::forger::{Forger, datagram};
use lb_tests::incident::raw_tcp::{ACK, Segment};
use lb_tests::incident::{Attempt, Clients, Counters};
use lb_tests::peers::{Datagrams, Server, Stream};
use lb_tests::topology::{NetNs, NodeOptions, Pod};

/// Entries of each table: a connection or UDP flow takes two.
const TABLE: u64 = 4096;
/// Packets of each kind and family: each would make two entries.
const TEN_TABLES: u64 = 10 * TABLE / 2;
/// Node ports of TCP and UDP.
const NODE_PORTS: [u16; 2] = [30_080, 30_053];
/// The port that DNS is served at by the legitimate clients' service, and its node port.
const DNS: u16 = 53;
const DNS_NODE_PORT: u16 = 31_053;
/// Open before the floods, and to be open after them, of each client and family.
const IDLE: usize = 20;
/// What each client does in each family meanwhile.
const LEGITIMATE: Clients =
    Clients { connections: 250, at_a_time: 4, patience: Duration::from_secs(10), first_port: None };
/// DNS queries of each client and family in a round, one after the other: a moment in which the machine stands still costs few of them.
const QUERIES: usize = 1_000;
/// The floods last at least so long: the sweep comes by meanwhile.
const LENGTH: Duration = Duration::from_secs(6);
/// A slow machine gets this long.
const LIMIT: Duration = Duration::from_mins(2);

/// A flood from one place that goes on until it is stopped.
struct Flood {
    /// Rounds: one packet of each kind and family.
    rounds: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Flood {
    /// Towards these frontends of TCP and UDP; `number` makes its senders differ from those of others.
    fn start(netns: &NetNs, number: u8, tcp: Vec<SocketAddr>, udp: Vec<SocketAddr>, stop: &Arc<AtomicBool>) -> Self {
        let forger = Forger::new(netns).unwrap();
        let (stop, rounds) = (Arc::clone(stop), Arc::new(AtomicU64::new(0)));
        let counted = Arc::clone(&rounds);
        let thread = netns.spawn(move || {
            for round in 0_u32.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                for to in &tcp {
                    let from = forged(number, round, to.ip());
                    forger.send(&Segment::syn(from, *to, round).bytes(), to.ip());
                    let segment = Segment { flags: ACK, ack: round, ..Segment::syn(from, *to, round ^ 0x5555_5555) };
                    forger.send(&Segment { from: other_port(from), ..segment }.bytes(), to.ip());
                }
                for to in &udp {
                    forger.send(&datagram(forged(number, round, to.ip()), *to, b"query"), to.ip());
                }
                counted.store(u64::from(round) + 1, Ordering::Relaxed);
            }
        });
        Self { rounds, thread }
    }

    fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }
}

/// A client that nobody is, in networks that lead nowhere.
fn forged(number: u8, round: u32, like: IpAddr) -> SocketAddr {
    let [.., third, fourth] = round.to_be_bytes();
    let address: IpAddr = if like.is_ipv4() {
        Ipv4Addr::new(198, 18 + number, third, fourth).into()
    } else {
        Ipv6Addr::new(0x2001, 0xdb8, 0x200 + u16::from(number), u16::from(third), 0, 0, 0, u16::from(fourth)).into()
    };
    SocketAddr::new(address, 1_024 + u16::try_from(round % 60_000).unwrap())
}

fn other_port(from: SocketAddr) -> SocketAddr {
    SocketAddr::new(from.ip(), from.port() + 1)
}

fn connected(netns: &NetNs, to: SocketAddr) -> Stream {
    let mut stream = Stream::connect(netns, to).unwrap();
    stream.ask("before").unwrap();
    stream
}

/// Queries as those of a stub resolver: each from a new port, sent once. What went wrong, one for each query.
fn queries(netns: &NetNs, to: SocketAddr) -> Vec<Option<std::io::Error>> {
    let from = netns.clone();
    let asking = netns.spawn(move || {
        let query = |number| Datagrams::unconnected(&from, 0, to)?.ask_at(to, &format!("query {number}"));
        (0..QUERIES).map(|number| query(number).err()).collect()
    });
    asking.join().unwrap()
}

/// At most one of a thousand failed.
#[track_caller]
fn nearly_all_succeed(what: &str, all: usize, errors: &[&std::io::Error]) {
    assert!(errors.len() * 1000 <= all, "{} of {all} {what} failed, the first: {:?}", errors.len(), errors.first());
}

#[test]
fn floods_of_every_kind_from_a_pod_and_from_outside_lose_no_connection_and_keep_nobody_out() {
    let options = NodeOptions { rp_filter: 0, ..NodeOptions::default() };
    let fixture = Fixture::new("floods", Pods::Routed, 2, options);
    let (node, topology) = (&fixture.node, &fixture.topology);
    let pod = fixture.pod("attacker");
    let [outside, client] = ["outside", "client"].map(|name| topology.outside(name, node).unwrap());
    // A backend of another node: external clients are masqueraded there.
    let other = topology.node_with(options).unwrap();
    node.route_to(&other).unwrap();
    other.route_to(node).unwrap();
    let far = other.pod("far").unwrap();
    let _servers = serve(&far, "far");
    // The flood's datagrams fill no buffer of these.
    let pods = fixture.backends.iter().chain([&far]);
    let resolver = |pod: &Pod, ip: IpAddr| Server::udp(pod.netns(), "dns", SocketAddr::new(ip, DNS)).unwrap();
    let _resolvers: Vec<_> = pods.flat_map(|pod| pod.ips().into_iter().map(move |ip| resolver(pod, ip))).collect();
    // Answers to forged clients leave the node, and are lost on the wire.
    topology.wire().ip("route add blackhole 198.18.0.0/15\nroute add blackhole 2001:db8:200::/39").unwrap();
    let mut endpoints = fixture.endpoints();
    endpoints.push(Endpoint::ready(far.addresses()).on(&other.node_name()));
    let dns = Service {
        ports: vec![Port { name: "dns", protocol: Protocol::Udp, port: DNS, target: DNS }],
        external: External { node_ports: vec![DNS_NODE_PORT], ..External::default() },
        ..Service::standard("dns", 11, endpoints.clone())
    };
    let web = Service::web(endpoints).with(External { node_ports: NODE_PORTS.to_vec(), ..External::default() });
    let sizes = ["flows4", "flows6", "udp_flows", "half_open"].map(|table| format!("{table}={TABLE}"));
    let sizes = format!("--map-sizes={}", sizes.join(","));
    // Segments of no connection are refused from the start, as later.
    let agent = fixture.agent(&Manifest::of([web.clone(), dns.clone()]), &[&sizes, "--adoption-window=0s"]);
    let at_node = |port: u16| node.addresses().both().map(|ip| SocketAddr::new(ip, port)).to_vec();
    let node_ports = NODE_PORTS.map(at_node);
    let [tcp, udp] = [Protocol::Tcp, Protocol::Udp].map(|protocol| web.frontends(protocol));
    let places = [fixture.client.netns(), client.netns()];
    let from_both = |frontends: [Vec<SocketAddr>; 2]| -> Vec<(&NetNs, SocketAddr)> {
        let pairs = places.into_iter().zip(frontends);
        pairs.flat_map(|(netns, to)| to.into_iter().map(move |to| (netns, to))).collect()
    };
    let clients = from_both([tcp.clone(), node_ports[0].clone()]);
    let resolvers = from_both([dns.frontends(Protocol::Udp), at_node(DNS_NODE_PORT)]);
    let mut idle: Vec<Stream> =
        clients.iter().flat_map(|(netns, to)| (0..IDLE).map(move |_| connected(netns, *to))).collect();

    let before = Counters::read(agent.bpffs()).unwrap();
    let (start, stop) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let floods = [
        Flood::start(pod.netns(), 0, tcp, udp, &stop),
        Flood::start(outside.netns(), 1, node_ports[0].clone(), node_ports[1].clone(), &stop),
    ];
    let (mut attempts, mut asked): (Vec<Attempt>, Vec<_>) = (Vec::new(), Vec::new());
    while start.elapsed() < LENGTH || floods.iter().any(|flood| flood.rounds() < TEN_TABLES) {
        assert!(start.elapsed() < LIMIT, "no flood");
        std::thread::scope(|scope| {
            let run = |(netns, to): &(&NetNs, SocketAddr)| LEGITIMATE.run(netns, *to).attempts;
            let all: Vec<_> = clients.iter().map(|client| scope.spawn(move || run(client))).collect();
            let asking: Vec<_> = resolvers.iter().map(|(netns, to)| scope.spawn(|| queries(netns, *to))).collect();
            asked.extend(asking.into_iter().flat_map(|resolver| resolver.join().unwrap()));
            attempts.extend(all.into_iter().flat_map(|client| client.join().unwrap()));
        });
    }
    stop.store(true, Ordering::Relaxed);
    let rounds = floods.map(|flood| {
        flood.thread.join().unwrap();
        flood.rounds.load(Ordering::Relaxed)
    });
    let after = Counters::read(agent.bpffs()).unwrap();
    let lost = idle.iter_mut().filter_map(|stream| stream.ask("still there?").err()).count();
    let errors: Vec<_> = attempts.iter().filter_map(|attempt| attempt.error.as_ref()).collect();
    let unanswered: Vec<_> = asked.iter().flatten().collect();
    println!(
        "{rounds:?} packets of each kind and family in {:?}; counted: {}\n  \
         {lost} of {} idle connections lost, {} of {} new ones failed, \
         {} of {} queries",
        start.elapsed(),
        after.line_since(&before),
        idle.len(),
        errors.len(),
        attempts.len(),
        unanswered.len(),
        asked.len()
    );
    assert_eq!(lost, 0, "idle connections lost");
    nearly_all_succeed("connects", attempts.len(), &errors);
    nearly_all_succeed("DNS queries", asked.len(), &unanswered);
    let refused = [Outcome::DroppedTableFull, Outcome::RefusedClientShare, Outcome::Evicted, Outcome::Ejected];
    assert_eq!(refused.map(|outcome| after.since(&before, outcome)), [0; 4], "{refused:?}");
}
