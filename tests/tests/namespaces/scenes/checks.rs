//! The checks: bodies of other rungs on a node of a scene, and what only other people's rules can break.

use std::net::SocketAddr;

use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, External, Manifest, Port, Protocol, SOON, Service};
use lb_tests::external_client::{client_addresses, far_client};
use lb_tests::fixture::{Ends, Fixture, Pods, held_until_the_deadline, serve_at};
use lb_tests::incident::Counters;
use lb_tests::peers::{Datagrams, PATIENCE, Server, Stream, eventually, fresh_port, reaches_all, refused_at_once};
use lb_tests::routed::{Cell, Family};
use lb_tests::scene::Scene;
use lb_tests::topology::{Families, Namespace, NetNs};

use super::Case;
use crate::node_ports::{self, PLAIN};
use crate::udp_moves::{self, Sinks};
use crate::{attacker, icmp, north_south, pmtu, retry};

/// Where a check runs.
pub enum Run {
    /// On the node that all such checks of a case share, with one agent.
    Shared(fn(&mut Ground)),
    /// On a network of its own.
    Own(fn(Case)),
}

pub struct Check {
    pub name: &'static str,
    pub run: Run,
}

impl Check {
    /// Whether there is such a network with these nodes.
    pub fn is_possible(&self, case: Case) -> bool {
        match self.name {
            // What pods send to another node comes by another link than that which leads back to them, unless they are masqueraded.
            "north_south" => {
                case.families == Families::Both && (case.rp_filter != 1 || case.scene.masquerades_to_nodes())
            }
            "pmtu" => case.families == Families::Both,
            "egress_ports" => case.scene.masquerades(),
            _ => true,
        }
    }
}

const fn shared(name: &'static str, run: fn(&mut Ground)) -> Check {
    Check { name, run: Run::Shared(run) }
}

const fn own(name: &'static str, run: fn(Case)) -> Check {
    Check { name, run: Run::Own(run) }
}

pub const CHECKS: &[Check] = &[
    own("without_agent", without_agent),
    shared("status", status),
    shared("cluster_ip", cluster_ip),
    shared("node_ports", served_node_ports),
    shared("way_out", way_out),
    shared("udp_moves", udp_moves),
    shared("icmp", icmp),
    shared("drain", drain),
    own("retry", retry),
    own("attacker", attacker),
    own("north_south", north_south),
    own("pmtu", pmtu),
    own("egress_ports", egress_ports),
];

/// A node of the scene with pods and an agent, and a host in another network. Fields in the order in which they must end.
pub struct Ground {
    case: Case,
    agent: Agent,
    _servers: Vec<Server>,
    far: Namespace,
    fixture: Fixture,
}

impl Ground {
    pub fn new(case: Case) -> Self {
        let (servers, far, fixture) = network(case);
        let agent = fixture.agent(&manifest(&fixture), &["--drain-period=6s", "--drain-max=0s"]);
        Self { case, agent, _servers: servers, far, fixture }
    }

    /// The services that most checks ask.
    fn serve(&self) {
        self.agent.apply(&manifest(&self.fixture)).unwrap();
    }
}

/// The same without the agent: the node is as people have it.
fn network(case: Case) -> (Vec<Server>, Namespace, Fixture) {
    let pods = if case.scene.is_bridged() { Pods::Bridged } else { Pods::Routed };
    let fixture = Fixture::new(&case.subject("node"), pods, 3, case.options());
    let far = far_client(&fixture.topology);
    let servers = serve_at(far.netns(), case.families.of(client_addresses()), "far");
    leaves(case, &fixture);
    (servers, far, fixture)
}

fn without_agent(case: Case) {
    drop(network(case));
}

fn manifest(fixture: &Fixture) -> Manifest {
    let web = fixture.web().with(node_ports::node_ports(PLAIN));
    Manifest::of([web, fixture.empty()])
}

/// It says whether the fast path is open, and if not, which chains close it.
fn status(ground: &mut Ground) {
    let closed_by = ground.case.scene.forwarded_meet();
    let families: &[&str] =
        if closed_by.iter().any(|it| it.starts_with("firewalld")) { &["inet"] } else { &["ip", "ip6"] };
    let mut expected: Vec<String> = families
        .iter()
        .flat_map(|family| closed_by.iter().map(move |it| format!("nftables chain {family} {it}")))
        .collect();
    expected.sort();
    let told = eventually("the agent has looked", SOON, || {
        let status = ground.agent.json(&["status"]).ok()?;
        let told = status["agent"]["datapath"]["fastPath"].clone();
        let mut skips: Vec<String> =
            told["skips"].as_array()?.iter().filter_map(|it| Some(it.as_str()?.to_owned())).collect();
        skips.sort();
        (skips == expected && told["open"] == expected.is_empty()).then_some(told)
    });
    let text = String::from_utf8(ground.agent.cli(&["status"]).unwrap().stdout).unwrap();
    let line = text.split("Fast path:").nth(1).unwrap_or_else(|| panic!("{text}"));
    let shown = if expected.is_empty() { "on" } else { "off" };
    assert!(line.trim_start().starts_with(shown), "{told}: {text}");
    for chain in &expected {
        assert!(line.contains(&format!("it would skip {chain}\n")), "{chain}: {text}");
    }
}

/// Pods and processes of the node reach every backend; packets of pods take the fast path where it is open, and only there.
fn cluster_ip(ground: &mut Ground) {
    ground.serve();
    let (fixture, web, empty) = (&ground.fixture, ground.fixture.web(), ground.fixture.empty());
    let fast = || Counters::read(ground.agent.bpffs()).unwrap().get(Outcome::FastPath);
    let before = fast();
    for (netns, sees_client) in [(fixture.client.netns(), true), (fixture.node.netns(), false)] {
        reaches_all(netns, &web, 3, sees_client);
        refused_at_once(netns, &empty);
    }
    assert_eq!(fast() > before, ground.case.scene.forwarded_meet().is_empty(), "packets take the fast path");
}

/// From a pod, from the node, and from a host in another network.
fn served_node_ports(ground: &mut Ground) {
    ground.serve();
    for netns in [ground.fixture.client.netns(), ground.fixture.node.netns(), ground.far.netns()] {
        node_ports::serves(&ground.fixture, netns, PLAIN);
    }
}

/// Conversations go on that are older than the node ports whose numbers they have, and others begin.
fn way_out(ground: &mut Ground) {
    let Ground { case, fixture, agent, .. } = &*ground;
    let asker = if case.scene.masquerades() { fixture.client.netns() } else { fixture.node.netns() };
    agent.apply(&Manifest::of([fixture.empty()])).unwrap();
    let [tcp_port, udp_port] = PLAIN;
    let mut older: Vec<_> = case
        .families
        .of(client_addresses())
        .into_iter()
        .map(|address| {
            let stream = Stream::connect_from(asker, tcp_port, SocketAddr::new(address, 8080), PATIENCE).unwrap();
            (stream, Datagrams::connected(asker, udp_port, SocketAddr::new(address, 5353)).unwrap())
        })
        .collect();
    for is_served in [false, true] {
        if is_served {
            ground.serve();
        }
        for (stream, socket) in &mut older {
            for answer in [stream.ask("on"), socket.ask("on")] {
                assert_eq!(answer.unwrap().server, "far", "is served: {is_served}");
            }
        }
    }
    for (stream, _) in older {
        stream.reset().unwrap();
    }
    leaves(ground.case, &ground.fixture);
}

/// Pods reach a host outside, which sees their node if the CNI masquerades them, and so do processes of the node. Source ports are those that the kernel
/// gives, others, and of pods the numbers of node ports.
fn leaves(case: Case, fixture: &Fixture) {
    let node = fixture.node.addresses();
    for address in case.families.of(client_addresses()) {
        let [tcp, udp] = [8080, 5353].map(|port| SocketAddr::new(address, port));
        let ask = |who: &str, netns: &NetNs, [from_tcp, from_udp]: [u16; 2]| {
            let what = format!("{who} from ports {from_tcp}, {from_udp} to {address}");
            let mut stream =
                Stream::connect_from(netns, from_tcp, tcp, PATIENCE).unwrap_or_else(|e| panic!("{what}: tcp: {e}"));
            let by_tcp = stream.ask("out").unwrap_or_else(|e| panic!("{what}: tcp: {e}"));
            // The port is free at once.
            stream.reset().unwrap();
            let socket = Datagrams::connected(netns, from_udp, udp).unwrap();
            let by_udp = socket.ask("out").unwrap_or_else(|e| panic!("{what}: udp: {e}"));
            for answer in [by_tcp, by_udp] {
                assert_eq!((&*answer.server, answer.peer.ip()), ("far", node.like(address)), "{what}");
            }
        };
        for ports in [[0, 0], [fresh_port(), fresh_port()]] {
            ask("the node", fixture.node.netns(), ports);
        }
        if case.scene.masquerades() {
            for ports in [[0, 0], [fresh_port(), fresh_port()], PLAIN] {
                ask("a pod", fixture.client.netns(), ports);
            }
        }
    }
}

/// A pod's own way out from the numbers of 500 node ports, and from others, while their Service comes and goes; by tc and by XDP.
fn egress_ports(case: Case) {
    const NUMBERS: std::ops::Range<u16> = 30_100..30_350;
    let (_servers, far, fixture) = network(case);
    let ports = NUMBERS.flat_map(|number| {
        [Protocol::Tcp, Protocol::Udp].map(|protocol| Port {
            name: format!("{protocol:?}-{number}").to_lowercase().leak(),
            protocol,
            port: number,
            target: 8080,
        })
    });
    let node_ports = NUMBERS.flat_map(|number| [number; 2]).collect();
    let many = Service { ports: ports.collect(), ..Service { name: "many", ..fixture.web() } };
    let served = Manifest::of([many.with(External { node_ports, ..External::default() })]);
    let empty = Manifest::of([fixture.empty()]);
    let targets: Vec<_> = case
        .families
        .of(client_addresses())
        .into_iter()
        .map(|address| [8080, 5353].map(|port| SocketAddr::new(address, port)))
        .collect();
    for mode in ["off", "native"] {
        let agent = fixture.agent(&served, &[&format!("--xdp-mode={mode}")]);
        let mut wrong = Vec::new();
        let rounds = lb_seed::short_or_long(1, 10);
        for (at, number) in (0..rounds).flat_map(|_| NUMBERS.flat_map(|number| [number, 0])).enumerate() {
            if at % 100 == 0 {
                agent.write(if at / 100 % 2 == 0 { &served } else { &empty }).unwrap();
            }
            for &[tcp, udp] in &targets {
                let asked =
                    Stream::connect_from(fixture.client.netns(), number, tcp, PATIENCE).and_then(|mut stream| {
                        stream.ask("out")?;
                        stream.reset()
                    });
                let answered = Datagrams::connected(fixture.client.netns(), number, udp).unwrap().ask("out");
                wrong.extend(
                    [asked.err(), answered.err()].into_iter().flatten().map(|e| format!("{mode}: {number}: {e}")),
                );
            }
        }
        assert!(wrong.is_empty(), "{}: {wrong:#?}", wrong.len());
    }
    drop(far);
}

/// A sender that hears nothing, in a pod and in another network.
fn udp_moves(ground: &mut Ground) {
    let (fixture, agent) = (&ground.fixture, &ground.agent);
    let empty = Manifest::of([udp_moves::service(fixture, vec![])]);
    agent.write(&empty).unwrap();
    let sinks = Sinks::in_pods(&fixture.backends[..2], udp_moves::PORT);
    let cluster_ip = empty.services[0].frontends(Protocol::Udp)[0];
    udp_moves::events(fixture, agent, &sinks, "pod", fixture.client.netns(), cluster_ip);
    if lb_seed::short_or_long(false, true) {
        let node = fixture.node.addresses().v6.into();
        let node_port = SocketAddr::new(node, udp_moves::NODE_PORT);
        udp_moves::events(fixture, agent, &sinks, "far", ground.far.netns(), node_port);
    }
}

fn icmp(ground: &mut Ground) {
    icmp::closed_ports_are_told(&ground.fixture, &ground.agent);
    icmp::gone_clients_are_told(&ground.fixture, &ground.agent);
    if !ground.case.scene.is_bridged() {
        icmp::narrow_links_are_told(&ground.fixture, &ground.agent);
    }
}

fn drain(ground: &mut Ground) {
    // Its rules for the host's own packets to a pod drop what connection tracking does not know.
    let ends = if ground.case.scene == Scene::Netpol { Ends::Speaking } else { Ends::Idle };
    held_until_the_deadline(&ground.fixture, &mut ground.agent, ends);
}

fn retry(case: Case) {
    retry::Hands::new(case.options()).get_around();
}

fn attacker(case: Case) {
    attacker::forged_syns_end_no_connection(&case.subject("attack"), case.options());
}

/// A part of the cells that the rung of this name has in this form.
fn north_south(case: Case) {
    let cells: Vec<Cell> = north_south::chosen().into_iter().step_by(lb_seed::short_or_long(9, 3)).collect();
    north_south::right_cells(&case.subject("ns"), "off", Family::V4, case.options(), &cells);
}

fn pmtu(case: Case) {
    pmtu::every_narrow_place_is_told(&case.subject("narrow"), case.options());
}
