//! A sender that never changes its port and never hears an answer. Its datagrams go on to a serving backend, whatever becomes of the one that had
//! them (kube-proxy's "should be able to preserve UDP traffic when server pod cycles").

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lb_tests::agent::{Agent, Endpoint, External, Manifest, Protocol, SOON, Service};
use lb_tests::cluster::{Hosted, SETTLE_LIMIT};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::eventually;
use lb_tests::topology::{NetNs, NodeOptions, Pod};

/// What the standing servers of the fixture do not use.
pub const PORT: u16 = 5454;
pub const NODE_PORT: u16 = 30_054;
/// Between two datagrams.
const BEAT: Duration = Duration::from_millis(10);
/// After so many datagrams one has arrived at the backend, once an event is in the tables. The programs obey at once: the rest, 2 s of a sender, is for
/// a busy machine.
const MOVED: u64 = 200;

/// Counts what arrives, and answers nothing.
struct Sink {
    received: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    worker: Option<JoinHandle<()>>,
}

impl Sink {
    fn at(netns: &NetNs, address: SocketAddr) -> Self {
        let socket = netns.run(|| UdpSocket::bind(address)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let (received, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, over) = (Arc::clone(&received), Arc::clone(&stop));
        let worker = std::thread::spawn(move || {
            let mut buffer = [0; 16];
            while !over.load(Ordering::Relaxed) {
                if socket.recv_from(&mut buffer).is_ok() {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Self { received, stop, worker: Some(worker) }
    }

    fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.worker.take().map(JoinHandle::join);
    }
}

/// Sends to one address from one port until dropped.
struct Sender {
    sent: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    worker: Option<JoinHandle<()>>,
}

impl Sender {
    fn to(netns: &NetNs, to: SocketAddr) -> Self {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let (sent, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, over) = (Arc::clone(&sent), Arc::clone(&stop));
        let worker = netns.spawn(move || {
            let socket = UdpSocket::bind(any).unwrap();
            while !over.load(Ordering::Relaxed) {
                // Nobody may serve at the moment: refused, and sent again.
                let _ = socket.send_to(b"one way", to);
                count.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(BEAT);
            }
        });
        Self { sent, stop, worker: Some(worker) }
    }

    fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.worker.take().map(JoinHandle::join);
    }
}

/// Sinks of all families in each of two backends.
pub struct Sinks(Vec<Vec<(SocketAddr, Sink)>>);

impl Sinks {
    pub fn in_pods(pods: &[Pod], port: u16) -> Self {
        let sink = |pod: &Pod, at: SocketAddr| (at, Sink::at(pod.netns(), at));
        let sinks = |pod: &Pod| pod.ips().into_iter().map(|ip| sink(pod, SocketAddr::new(ip, port))).collect();
        Self(pods.iter().map(sinks).collect())
    }

    fn of(&self, backend: usize, to: SocketAddr) -> &Sink {
        let mut sinks = self.0[backend].iter();
        &sinks.find(|(at, _)| at.is_ipv4() == to.is_ipv4()).expect("a sink of each family").1
    }

    /// Datagrams of the sender arrive at this backend, and then no longer at the other one. Returns after how many.
    fn arrive(&self, backend: usize, to: SocketAddr, sender: &Sender, what: &str) -> u64 {
        let (own, other) = (self.of(backend, to), self.of(1 - backend, to));
        let (sent, before) = (sender.sent(), own.received());
        let took = eventually(&format!("{what}: datagrams to {to} arrive at b{backend}"), SOON, || {
            (own.received() > before).then(|| sender.sent() - sent)
        });
        // What was under way there may still be read: in the end twenty come here while none comes there.
        let mut from = (own.received(), other.received());
        eventually(&format!("{what}: b{} gets no more of {to}", 1 - backend), SOON, || {
            if other.received() != from.1 {
                from = (own.received(), other.received());
            }
            (own.received() >= from.0 + 20).then_some(())
        });
        took
    }

    /// Datagrams arrive at `backend`, in time: the tables hold what sends them there.
    fn move_to(&self, backend: usize, to: SocketAddr, sender: &Sender, what: &str) {
        let took = self.arrive(backend, to, sender, what);
        assert!(took <= MOVED, "{what}: datagrams to {to} arrived at b{backend} after {took} were sent");
    }

    /// Nobody gets any.
    fn silent(&self, to: SocketAddr) {
        let all = || (0..2).map(|backend| self.of(backend, to).received()).sum::<u64>();
        let mut last = (all(), Instant::now());
        eventually("nobody gets any", SOON, || {
            if all() != last.0 {
                last = (all(), Instant::now());
            }
            (last.1.elapsed() > 20 * BEAT).then_some(())
        });
    }
}

pub fn service(fixture: &Fixture, endpoints: Vec<Endpoint>) -> Service {
    let mut service = fixture.web_of(endpoints);
    service.ports.retain(|port| port.protocol == Protocol::Udp);
    service.ports[0].target = PORT;
    service.with(External { node_ports: vec![NODE_PORT], ..External::default() })
}

/// Every event, for a sender to `to`.
pub fn events(fixture: &Fixture, agent: &Agent, sinks: &Sinks, from: &str, netns: &NetNs, to: SocketAddr) {
    let endpoints = fixture.endpoints();
    let only = |index: usize| Manifest::of([service(fixture, vec![endpoints[index].clone()])]);
    let with = |other: Endpoint| Manifest::of([service(fixture, vec![endpoints[1].clone(), other])]);
    let gone = Endpoint::unready(fixture.backends[0].addresses());
    let mut ending = Endpoint::terminating(fixture.backends[0].addresses());
    ending.serving = false;
    agent.write(&only(0)).unwrap();
    let sender = Sender::to(netns, to);
    sinks.arrive(0, to, &sender, "first");
    let cases = [("removed", only(1)), ("unready", with(gone)), ("terminating, no longer serving", with(ending))];
    for (what, next) in cases {
        agent.write(&only(0)).unwrap();
        sinks.arrive(0, to, &sender, "back");
        agent.apply(&next).unwrap();
        sinks.move_to(1, to, &sender, &format!("{from}, {what}"));
    }
    for (what, nothing) in
        [("scaled to zero and back", Manifest::of([service(fixture, vec![])])), ("deleted", Manifest::default())]
    {
        agent.write(&only(0)).unwrap();
        sinks.arrive(0, to, &sender, "back");
        agent.write(&nothing).unwrap();
        sinks.silent(to);
        agent.apply(&only(1)).unwrap();
        sinks.move_to(1, to, &sender, &format!("{from}, {what}"));
    }
}

#[test]
fn datagrams_follow_the_endpoints_from_pods_and_from_the_host() {
    let fixture = Fixture::new("udpmoves", Pods::Routed, 2, NodeOptions::default());
    let agent = fixture.agent(&Manifest::of([service(&fixture, fixture.endpoints())]), &[]);
    let sinks = Sinks::in_pods(&fixture.backends, PORT);
    let node_ports = fixture.node.addresses().both().map(|ip| SocketAddr::new(ip, NODE_PORT));
    let frontends = service(&fixture, vec![]).frontends(Protocol::Udp);
    let places = [("pod", fixture.client.netns()), ("host", fixture.node.netns())];
    for (turn, to) in frontends.into_iter().chain(node_ports).enumerate() {
        for (place, (from, netns)) in places.into_iter().enumerate() {
            // In the short form by turns: each kind of frontend and each family from the one and from the other.
            if lb_seed::short_or_long([0, 1, 1, 0][turn] == place, true) {
                events(&fixture, &agent, &sinks, from, netns, to);
            }
        }
    }
}

#[test]
fn datagrams_of_a_client_outside_follow_through_the_node() {
    let fixture = Fixture::new("udpoutside", Pods::Routed, 2, NodeOptions::default());
    let outside = fixture.topology.outside("client", &fixture.node).unwrap();
    // While there is no such service, the node tells this client of a shorter way to nowhere, for good.
    for (family, link) in [("ipv4", "all"), ("ipv4", "eth0"), ("ipv6", "all"), ("ipv6", "eth0")] {
        outside.namespace().sysctl(&format!("net/{family}/conf/{link}/accept_redirects"), "0").unwrap();
    }
    let agent = fixture.agent(&Manifest::of([service(&fixture, fixture.endpoints())]), &[]);
    let sinks = Sinks::in_pods(&fixture.backends, PORT);
    for to in service(&fixture, vec![]).frontends(Protocol::Udp) {
        events(&fixture, &agent, &sinks, "outside", outside.netns(), to);
    }
}

/// Datagrams follow a real API: pods that cycle, scale to zero and back, a Service that is deleted and made again.
#[test]
fn datagrams_follow_what_the_api_says() -> anyhow::Result<()> {
    let mut fixture = Fixture::new("udpapi", Pods::Routed, 2, NodeOptions::default());
    // The API's pods listen on 5353, where the fixture's servers would answer.
    fixture.servers.clear();
    let host = fixture.topology.outside("api", &fixture.node)?;
    let cluster = Hosted::start(&host)?;
    let mut agent = cluster.agent(&fixture.node, &[])?;
    agent.restart()?;
    let sinks = Sinks::in_pods(&fixture.backends, 5353);
    let [one, two] = [&fixture.backends[0], &fixture.backends[1]];
    let to = SocketAddr::new(cluster.create_service("web")?[0], 53);
    let put = |pods: &[&Pod]| -> anyhow::Result<()> {
        cluster.put_pods("web", pods)?;
        let expected: BTreeSet<String> = pods
            .iter()
            .flat_map(|pod| pod.addresses().both())
            .map(|ip| SocketAddr::new(ip, 5353).to_string())
            .collect();
        eventually("the tables hold the pods", SETTLE_LIMIT, || {
            let states = agent.states().ok()?.into_iter();
            let active = states.filter(|(service, _, state)| service == "web" && state == "active");
            let datagrams = active.map(|(_, target, _)| target).filter(|target| target.ends_with(":5353"));
            (datagrams.collect::<BTreeSet<_>>() == expected).then_some(())
        });
        Ok(())
    };
    put(&[one])?;
    let sender = Sender::to(fixture.client.netns(), to);
    eventually("the first datagram", SETTLE_LIMIT, || (sinks.of(0, to).received() > 0).then_some(()));
    put(&[two])?;
    sinks.move_to(1, to, &sender, "the pod cycled");
    put(&[])?;
    sinks.silent(to);
    put(&[one])?;
    sinks.move_to(0, to, &sender, "scaled to zero and back");
    cluster.delete_service("web")?;
    let again = SocketAddr::new(cluster.create_service("web")?[0], 53);
    put(&[two])?;
    let sender = Sender::to(fixture.client.netns(), again);
    sinks.move_to(1, again, &sender, "deleted and made again");
    Ok(())
}
