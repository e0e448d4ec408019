//! Client affinity: a client comes back to its backend for as long as it is remembered, and to no longer than that serves.
//!
//! The services go round robin. A client that is not remembered goes to the backend that its hash names, another one in each period of the timeout.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Endpoint, External, Manifest, Protocol, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::Counters;
use lb_tests::incident::raw_tcp::Flood;
use lb_tests::peers::{Datagrams, Stream, eventually, fresh_port};
use lb_tests::topology::{NetNs, NodeOptions};
use socket2::{Domain, Socket, Type};

const FLAGS: [&str; 2] = ["--scheduler", "round-robin"];

fn tcp(from: &NetNs, to: SocketAddr) -> String {
    Stream::connect(from, to).unwrap().ask("hello").unwrap().server
}

fn udp(from: &NetNs, to: SocketAddr) -> String {
    Datagrams::unconnected(from, fresh_port(), to).unwrap().ask_at(to, "hello").unwrap().server
}

/// A node with three backends, and the services of all scenes on it: each scene changes its own.
struct Scene {
    agent: Agent,
    services: RefCell<Vec<Service>>,
    fixture: Fixture,
}

impl Scene {
    fn new() -> Self {
        let fixture = Fixture::new("affinity", Pods::Routed, 3, NodeOptions::default());
        let agent = fixture.agent(&Manifest::default(), &FLAGS);
        Self { agent, services: RefCell::default(), fixture }
    }

    /// A service that no other scene has.
    fn service(&self, name: &'static str, last: u8) -> Service {
        Service::standard(name, last, self.fixture.endpoints())
    }

    /// The manifest with this state of the service.
    fn with(&self, service: &Service) -> Manifest {
        let mut all = self.services.borrow_mut();
        all.retain(|other| other.name != service.name);
        all.push(service.clone());
        Manifest::of(all.clone())
    }

    fn apply(&self, service: &Service) {
        self.agent.apply(&self.with(service)).unwrap();
    }
}

#[test]
fn clients_come_back_to_their_backends() {
    let mut scene = Scene::new();
    a_client_comes_back_to_its_backend_and_without_affinity_does_not(&scene);
    all_frontends_of_a_service_port_share_it_and_other_ports_do_not(&scene);
    first_connections_that_a_client_makes_at_once_reach_one_backend(&scene);
    a_backend_that_drains_or_rests_is_left_for_good(&scene);
    a_restart_of_the_agent_forgets_nobody(&mut scene);
}

#[test]
fn clients_are_remembered_for_their_time() {
    let scene = Scene::new();
    its_time_begins_anew_with_each_connection(&scene);
    after_its_time_a_client_meets_another_backend_by_chance(&scene);
}

/// Asks from the pod and from the host, by both protocols and families.
fn each_way(fixture: &Fixture, service: &Service, check: impl Fn(&dyn Fn() -> String, &str)) {
    for (netns, whose) in [(fixture.client.netns(), "pod"), (fixture.node.netns(), "host")] {
        for to in service.frontends(Protocol::Tcp) {
            check(&|| tcp(netns, to), &format!("{whose}, tcp {to}"));
        }
        for to in service.frontends(Protocol::Udp) {
            check(&|| udp(netns, to), &format!("{whose}, udp {to}"));
        }
    }
}

fn a_client_comes_back_to_its_backend_and_without_affinity_does_not(scene: &Scene) {
    let (fixture, agent) = (&scene.fixture, &scene.agent);
    let plain = scene.service("sticky", 10);
    let service = plain.clone().remembering(600);
    scene.apply(&plain);
    each_way(fixture, &plain, |ask, way| assert_ne!(ask(), ask(), "{way}"));
    agent.write(&scene.with(&service)).unwrap();
    eventually("the tables hold the affinity", SOON, || {
        let list = agent.json(&["get", "services", "-A"]).ok()?;
        let mut own = list["items"].as_array()?.iter().filter(|port| port["name"] == "sticky");
        own.all(|port| port["affinitySeconds"] == 600).then_some(())
    });
    each_way(fixture, &service, |ask, way| {
        let first = ask();
        for _ in 0..8 {
            assert_eq!(ask(), first, "{way}");
        }
    });
}

fn all_frontends_of_a_service_port_share_it_and_other_ports_do_not(scene: &Scene) {
    let fixture = &scene.fixture;
    let external = External { node_ports: vec![30_080], ..External::default() };
    let service = scene.service("shared", 11).with(external).remembering(600);
    let other = scene.service("other", 12).remembering(600);
    scene.apply(&service);
    scene.apply(&other);
    let client = fixture.client.netns();
    let to = service.frontends(Protocol::Tcp)[0];
    let first = tcp(client, to);
    let node_port = SocketAddr::new(fixture.node.addresses().v4.into(), 30_080);
    assert_eq!(tcp(client, node_port), first, "the node port leads to the same backend");
    let second = tcp(client, other.frontends(Protocol::Tcp)[0]);
    assert_eq!(tcp(client, other.frontends(Protocol::Tcp)[0]), second);
    assert_eq!(tcp(client, to), first);
}

/// Leads the client away from the backend that its hash names, so that only its affinity keeps it at another one. Returns both.
fn lead_away(apply: impl Fn(&Service), service: &Service, ask: impl Fn() -> String) -> [String; 2] {
    let named = ask();
    let index: usize = named[1..].parse().unwrap();
    let mut without = service.clone();
    without.endpoints.remove(index);
    apply(&without);
    let other = ask();
    assert_ne!(named, other);
    apply(service);
    assert_eq!(ask(), other, "it stays where it is now");
    [named, other]
}

fn its_time_begins_anew_with_each_connection(scene: &Scene) {
    const TIME: Duration = Duration::from_secs(4);
    let service = scene.service("timeout", 10).remembering(4);
    scene.apply(&service);
    let client = scene.fixture.client.netns();
    for (to, ask) in [
        (service.frontends(Protocol::Tcp)[0], tcp as fn(&NetNs, SocketAddr) -> String),
        (service.frontends(Protocol::Udp)[1], udp),
    ] {
        let [_, other] = lead_away(|service| scene.apply(service), &service, || ask(client, to));
        let mut last = Instant::now();
        // Together longer than its time.
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(900));
            let begun = Instant::now();
            let server = ask(client, to);
            // On a busy machine its time may have passed between two of them; then nothing is to be said.
            if last.elapsed() < TIME {
                assert_eq!(server, other, "{to}");
            }
            last = begun;
        }
    }
}

/// The first word of a server's answer to this client.
fn tcp_as(client: Ipv4Addr, to: SocketAddr) -> String {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((client, 0)).into()).unwrap();
    socket.connect_timeout(&to.into(), SOON).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream.write_all(b"hello\n").unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.split(' ').next().unwrap().to_owned()
}

/// The first word of a server's answer to a datagram of this client.
fn udp_as(client: Ipv4Addr, to: SocketAddr) -> String {
    let (socket, mut answer) = (UdpSocket::bind((client, 0)).unwrap(), [0; 256]);
    socket.set_read_timeout(Some(SOON)).unwrap();
    socket.connect(to).unwrap();
    socket.send(b"hello").unwrap();
    let length = socket.recv(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[..length]).split(' ').next().unwrap().to_owned()
}

/// As the end-to-end test of Kubernetes "should have session affinity timeout work", for cluster IP and node port. There one client asks again and again,
/// until it meets another backend. Here 20 clients ask once after their time. Nobody meets another one of the three by chance: by 3^-20, 3 in 10^10.
fn after_its_time_a_client_meets_another_backend_by_chance(scene: &Scene) {
    const TIME: Duration = Duration::from_secs(2);
    const CLIENTS: u8 = 20;
    let fixture = &scene.fixture;
    let addresses = [0, 1, 2].map(|way| (1..=CLIENTS).map(move |last| Ipv4Addr::new(10, 77, way, last)));
    let lines = addresses.iter().cloned().flatten().map(|client| format!("address add {client}/32 dev lo\n"));
    fixture.client.namespace().ip(&lines.collect::<String>()).unwrap();
    fixture.node.namespace().ip(&format!("route add 10.77.0.0/16 dev {}", fixture.client.link())).unwrap();
    let external = External { node_ports: vec![30_080], ..External::default() };
    let service = scene.service("free", 11).with(external).remembering(2);
    scene.apply(&service);
    let node_port = SocketAddr::new(fixture.node.addresses().v4.into(), 30_080);
    let ways = [
        (service.frontends(Protocol::Tcp)[0], tcp_as as fn(Ipv4Addr, SocketAddr) -> String),
        (node_port, tcp_as),
        (service.frontends(Protocol::Udp)[0], udp_as),
    ];
    let ask_all = || {
        fixture.client.netns().run(|| {
            let all = ways.iter().zip(&addresses);
            all.map(|((to, ask), clients)| clients.clone().map(|client| ask(client, *to)).collect())
                .collect::<Vec<Vec<String>>>()
        })
    };
    let (begun, first) = (Instant::now(), ask_all());
    let again = ask_all();
    // On a busy machine the time of some may have passed; then nothing is to be said.
    if begun.elapsed() < TIME {
        assert_eq!(again, first, "within their time");
    }
    // A tenth of a second is what the tables count in; a second is what is promised.
    std::thread::sleep(TIME + Duration::from_secs(1));
    let later = ask_all();
    for (((to, _), before), after) in ways.iter().zip(&again).zip(&later) {
        assert_ne!(before, after, "{to}: each client meets the same backend as before");
    }
}

fn first_connections_that_a_client_makes_at_once_reach_one_backend(scene: &Scene) {
    let fixture = &scene.fixture;
    let names = ["s0", "s1", "s2", "s3", "s4", "s5"].into_iter().zip(20..);
    let services: Vec<Service> = names.map(|(name, last)| scene.service(name, last).remembering_long()).collect();
    for service in &services {
        scene.apply(service);
    }
    let mut met = BTreeSet::new();
    for netns in [fixture.client.netns(), fixture.node.netns()] {
        for service in &services {
            for to in service.frontends(Protocol::Tcp) {
                let servers: BTreeSet<String> = std::thread::scope(|scope| {
                    let all: Vec<_> = (0..32).map(|_| scope.spawn(|| tcp(netns, to))).collect();
                    all.into_iter().map(|one| one.join().unwrap()).collect()
                });
                assert_eq!(servers.len(), 1, "{to}: {servers:?}");
                met.extend(servers);
            }
        }
    }
    assert!(met.len() > 1, "all clients of all services meet {met:?}");
}

/// A pod that may send any packet forges SYNs from ten times as many addresses as the table of affinity has room for.
#[test]
fn a_flood_of_syns_takes_no_client_from_its_backend() {
    const CLIENTS: u32 = 1_024;
    // Nothing but the programs stands between the attacker and the others.
    let options = NodeOptions { rp_filter: 0, ..NodeOptions::default() };
    let fixture = Fixture::new("flood", Pods::Routed, 3, options);
    let attacker = fixture.pod("attacker");
    let service = fixture.web().remembering(600);
    let sizes = format!("--map-sizes=affinity={CLIENTS}");
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[FLAGS[0], FLAGS[1], &sizes]);
    let to = service.frontends(Protocol::Tcp)[0];
    let SocketAddr::V4(target) = to else { panic!("the first frontend is IPv4") };
    let places = [fixture.client.netns(), fixture.node.netns()];
    let apply = |service: &Service| agent.apply(&Manifest::of([service.clone()])).unwrap();
    let before = places.map(|netns| lead_away(apply, &service, || tcp(netns, to)));
    let counted = Counters::read(agent.bpffs()).unwrap();
    let flooding = attacker.netns().spawn(move || {
        let flood = Flood::new().unwrap();
        for number in 0..10 * CLIENTS {
            flood.syn(Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 200, 0, 0)) + number), number, target);
        }
    });
    flooding.join().unwrap();
    let selected = || Counters::read(agent.bpffs()).unwrap().since(&counted, Outcome::Selected);
    eventually("the flood is selected for", SOON, || (selected() >= u64::from(9 * CLIENTS)).then_some(()));
    for (netns, [named, other]) in places.into_iter().zip(before) {
        assert_eq!(tcp(netns, to), other, "its hash names {named}");
    }
}

fn a_backend_that_drains_or_rests_is_left_for_good(scene: &Scene) {
    let fixture = &scene.fixture;
    let service = scene.service("leave", 13).remembering(600);
    scene.apply(&service);
    each_way(fixture, &service, |ask, way| {
        for rests in [false, true] {
            let first = ask();
            let index: usize = first[1..].parse().unwrap();
            let mut without = service.clone();
            if rests {
                without.endpoints[index] =
                    Endpoint::unready(fixture.backends[index].addresses()).on(&fixture.node.node_name());
            } else {
                without.endpoints.remove(index);
            }
            scene.apply(&without);
            let second = ask();
            assert_ne!(first, second, "{way}, rests: {rests}");
            assert_eq!(ask(), second, "{way}, rests: {rests}");
            scene.apply(&service);
            assert_eq!(ask(), second, "{way}, rests: {rests}: it stays where it is now");
        }
    });
}

fn a_restart_of_the_agent_forgets_nobody(scene: &mut Scene) {
    let service = scene.service("restart", 14).remembering(600);
    scene.apply(&service);
    let all: RefCell<VecDeque<String>> = RefCell::default();
    each_way(&scene.fixture, &service, |ask, _| all.borrow_mut().push_back(ask()));
    scene.agent.kill();
    let same = |at: &str| {
        let left = RefCell::new(all.borrow().clone());
        each_way(&scene.fixture, &service, |ask, way| {
            assert_eq!(Some(ask()), left.borrow_mut().pop_front(), "{at}: {way}");
        });
    };
    same("agent dead");
    scene.agent.restart().unwrap();
    same("restarted");
}
