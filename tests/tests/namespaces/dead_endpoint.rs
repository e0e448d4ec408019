//! A dead endpoint beside a live one, which nobody removes: clients by each way in, to endpoints near and far, refused and left unanswered. A kernel's
//! own clients and servers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lb_common::limits::EVIDENCE_S;
use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Endpoint, External, Manifest, Protocol, Service};
use lb_tests::fixture::serve;
use lb_tests::peers::{Server, Stream};
use lb_tests::topology::{NetNs, Node, NodeOptions, Outside, Pod, Topology};

/// Connects by each way to each service, one after the other, in the short form and in the long one.
const CONNECTS: [usize; 2] = [100, 1_000];
/// Node port of the first service; the others have the next ones.
const NODE_PORT: u16 = 30_080;
/// A client gives up after so long: several of its SYNs are sent again by then.
const PATIENT: Duration = Duration::from_secs(10);

/// Who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    Pod,
    Host,
    Outside,
}

/// What becomes of a SYN to the dead endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    Refuses,
    Silent,
}

/// Where both endpoints are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Near,
    Far,
}

/// The four services, by the endpoints that they have.
const SERVICES: [(&str, Place, Death); 4] = [
    ("near-refuses", Place::Near, Death::Refuses),
    ("near-silent", Place::Near, Death::Silent),
    ("far-refuses", Place::Far, Death::Refuses),
    ("far-silent", Place::Far, Death::Silent),
];

/// Connects to a frontend of a service that failed: the number of each, and why.
type Connects = (&'static str, SocketAddr, Vec<(usize, std::io::Error)>);

/// Fields in the order in which they must end.
struct Scene {
    agent: Agent,
    services: Vec<Service>,
    _servers: Vec<Vec<Server>>,
    _endpoints: Vec<Pod>,
    pod: Pod,
    outside: Outside,
    nodes: [Node; 2],
    _topology: Topology,
}

impl Scene {
    fn new(subject: &str, flags: &[&str]) -> Self {
        let topology = Topology::new(subject).unwrap();
        let options = NodeOptions { rp_filter: 0, ..NodeOptions::default() };
        let nodes = [(); 2].map(|()| topology.node_with(options).unwrap());
        nodes[0].route_to(&nodes[1]).unwrap();
        nodes[1].route_to(&nodes[0]).unwrap();
        let outside = topology.outside("outside", &nodes[0]).unwrap();
        let pod = nodes[0].pod("client").unwrap();
        let (mut services, mut servers, mut endpoints) = (Vec::new(), Vec::new(), Vec::new());
        for ((name, place, death), number) in SERVICES.into_iter().zip(0_u8..) {
            let node = &nodes[usize::from(place == Place::Far)];
            let [live, dead] = ["live", "dead"].map(|what| node.pod(&format!("{what}{number}")).unwrap());
            servers.push(serve(&live, "live"));
            for family in ["-4", "-6"].into_iter().filter(|_| death == Death::Silent) {
                // It hears, and no word of it gets out.
                dead.namespace().ip_show(&[family, "rule", "add", "pref", "1", "blackhole"]).unwrap();
            }
            let ready = [&live, &dead].map(|pod| Endpoint::ready(pod.addresses()).on(&node.node_name()));
            let external = External { node_ports: vec![NODE_PORT + u16::from(number)], ..External::default() };
            services.push(Service::standard(name, 10 + number, ready.to_vec()).with(external));
            endpoints.extend([live, dead]);
        }
        let agent = Agent::start_with(&nodes[0], &Manifest::of(services.clone()), flags).unwrap();
        Self { agent, services, _servers: servers, _endpoints: endpoints, pod, outside, nodes, _topology: topology }
    }

    fn netns(&self, client: Client) -> &NetNs {
        match client {
            Client::Pod => self.pod.netns(),
            Client::Host => self.nodes[0].netns(),
            Client::Outside => self.outside.netns(),
        }
    }

    /// Where the client asks for the service: at its cluster IPs, from outside at its node port.
    fn frontends(&self, client: Client, number: usize) -> Vec<SocketAddr> {
        let port = NODE_PORT + u16::try_from(number).unwrap();
        match client {
            Client::Outside => self.nodes[0].addresses().both().map(|ip| SocketAddr::new(ip, port)).to_vec(),
            Client::Pod | Client::Host => self.services[number].frontends(Protocol::Tcp),
        }
    }

    /// The client connects to each frontend over and over, to all at the same time. Of those to each: which failed, and why.
    fn failed_connects(&self, client: Client) -> Vec<Connects> {
        let [short, long] = CONNECTS;
        let netns = self.netns(client);
        let connect = |to| {
            let answer = Stream::connect_from(netns, 0, to, PATIENT)?.ask("hello")?;
            assert_eq!(answer.server, "live");
            Ok(())
        };
        let connects =
            |to| (0..lb_seed::short_or_long(short, long)).filter_map(|at| Some((at, connect(to).err()?))).collect();
        std::thread::scope(|scope| {
            let all = SERVICES
                .into_iter()
                .zip(0..)
                .flat_map(|((name, ..), number)| self.frontends(client, number).into_iter().map(move |to| (name, to)));
            let running: Vec<_> = all.map(|(name, to)| (name, to, scope.spawn(move || connects(to)))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join().expect("the right server answers");
            running.into_iter().map(|(name, to, thread)| (name, to, join(thread))).collect()
        })
    }
}

/// Each client on nodes of its own: what one has met would keep the others away.
#[test]
fn by_packets_no_connect_of_any_client_fails() {
    let by_tc = ["--socket-lb=off", "--xdp-mode=off"].as_slice();
    let by_xdp = ["--xdp-mode=generic"].as_slice();
    for (client, flags) in
        [(Client::Pod, by_tc), (Client::Host, by_tc), (Client::Outside, by_tc), (Client::Outside, by_xdp)]
    {
        let scene = Scene::new("dead", flags);
        for (name, to, failed) in scene.failed_connects(client) {
            assert!(failed.is_empty(), "{client:?} to {name} at {to}, {flags:?}: {failed:?}");
        }
        assert!(scene.agent.counted(Outcome::Retried).unwrap() >= 8, "{client:?}, {flags:?}: met no dead endpoint");
    }
}

/// A connect that was translated before its first packet cannot be moved: one a minute shows whether the endpoint is dead.
#[test]
fn by_the_socket_hook_one_connect_of_a_process_fails_and_no_other() {
    let (scene, start) = (Scene::new("dead-hook", &[]), Instant::now());
    let failed = scene.failed_connects(Client::Host);
    let most = 1 + start.elapsed().as_secs() / u64::from(EVIDENCE_S);
    for (name, to, failed) in failed {
        assert!(failed.len() as u64 <= most, "to {name} at {to}: {failed:?}");
    }
}
