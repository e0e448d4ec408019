//! A node goes from the real kube-proxy to Ballast, and none of its connections is lost. Needs root, BPF and `nft`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_common::outcome::Outcome;
use lb_takeover::conntrack::{Conntrack, Family, nat_hooks, status};
use lb_tests::agent::{Agent, Manifest, Protocol, SOON, Service};
use lb_tests::cluster::{Hosted, KubeProxy, Process, SETTLE_LIMIT, binary};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::Counters;
use lb_tests::peers::{Datagrams, Stream, eventually};
use lb_tests::topology::{NetNs, NodeOptions, Outside};
use serde_json::json;

/// TCP and UDP.
const NODE_PORTS: [u16; 2] = [30_080, 30_053];
/// TCP connections from each place in each family: three places, two families, more than 500 in all.
const EACH: usize = 84;
/// UDP flows from each place in each family.
const EACH_UDP: usize = 6;
/// Pause of the busy connections between two rounds of questions.
const PACE: Duration = Duration::from_millis(20);

/// A node that kube-proxy serves. Fields in the order in which they must end.
struct Node {
    kube_proxy: Option<Process>,
    service: Service,
    cluster: Hosted,
    _host: Outside,
    client: Outside,
    fixture: Fixture,
}

/// From where to where a group of connections goes.
struct ConnectionGroup {
    name: String,
    from: NetNs,
    tcp: SocketAddr,
    udp: SocketAddr,
}

impl Node {
    fn new(mode: &str) -> Result<Self> {
        let fixture = Fixture::new("adopt", Pods::Routed, 2, NodeOptions::default());
        let client = fixture.topology.outside("client", &fixture.node)?;
        let host = fixture.topology.outside("api", &fixture.node)?;
        let cluster = Hosted::start(&host)?;
        let mut service = fixture.web();
        service.external.node_ports = NODE_PORTS.into();
        cluster.create(&Manifest::of([service.clone()]))?;
        cluster.create_node(&fixture.node)?;
        let mut node = Self { kube_proxy: None, service, cluster, _host: host, client, fixture };
        node.kube_proxy = Some(node.kube_proxy().start_with(&json!({
            "mode": mode, "clusterCIDR": node.fixture.node.pod_nets().join(","), "detectLocalMode": "ClusterCIDR",
            // Ballast has the usual ones.
            "healthzBindAddress": "127.0.0.1:11256", "metricsBindAddress": "127.0.0.1:11249",
            "iptables": {"minSyncPeriod": "100ms"}, "nftables": {"minSyncPeriod": "100ms"},
        }))?);
        for ConnectionGroup { name, from, tcp, udp } in node.groups() {
            eventually(&format!("kube-proxy serves {name}"), SETTLE_LIMIT, || {
                Stream::connect_from(&from, 0, tcp, Duration::from_secs(1)).ok()?.ask("there?").ok()?;
                Datagrams::connected(&from, 0, udp).ok()?.ask("there?").ok()
            });
        }
        Ok(node)
    }

    fn kube_proxy(&self) -> KubeProxy<'_> {
        let kubeconfig = self.cluster.kubeconfig().display().to_string();
        KubeProxy { node: &self.fixture.node, kubeconfig, folder: self.fixture.node.run_dir().to_owned() }
    }

    /// Of a pod, of a process of the node, and of an external client, in both families.
    fn groups(&self) -> Vec<ConnectionGroup> {
        let node = &self.fixture.node;
        let inside = self.service.frontends(Protocol::Tcp).into_iter().zip(self.service.frontends(Protocol::Udp));
        let near = inside.flat_map(|(tcp, udp)| {
            [("pod", self.fixture.client.netns()), ("process", node.netns())].map(|(name, from)| ConnectionGroup {
                name: format!("{name} to {tcp}"),
                from: from.clone(),
                tcp,
                udp,
            })
        });
        let far = node.ips().into_iter().map(|address| {
            let [tcp, udp] = NODE_PORTS.map(|port| SocketAddr::new(address, port));
            ConnectionGroup { name: format!("client to {tcp}"), from: self.client.netns().clone(), tcp, udp }
        });
        near.chain(far).collect()
    }

    fn connect(&self, each: usize, each_udp: usize) -> Result<Connections> {
        let mut connections = Connections::default();
        for group in self.groups() {
            for number in 0..each {
                let stream = Stream::connect(&group.from, group.tcp).with_context(|| group.name.clone())?;
                connections.tcp.push((format!("TCP {number} of {}", group.name), stream));
            }
            for number in 0..each_udp {
                let socket = Datagrams::connected(&group.from, 0, group.udp).with_context(|| group.name.clone())?;
                connections.udp.push((format!("UDP {number} of {}", group.name), socket));
            }
        }
        connections.ask("hello")?;
        Ok(connections)
    }

    /// Ends kube-proxy and removes what it has left, by its own command.
    fn remove_kube_proxy(&mut self) -> Result<()> {
        self.kube_proxy = None;
        let mut command = Command::new(binary("kube-proxy")?);
        let output = self.fixture.node.netns().run(|| command.arg("--cleanup").output())?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let rules = self.fixture.node.netns().run(|| Command::new("nft").args(["list", "ruleset"]).output())?;
        let rules = String::from_utf8_lossy(&rules.stdout).into_owned();
        for left in ["kube-proxy", "KUBE-SERVICES", "dnat to", "DNAT"] {
            ensure!(!rules.contains(left), "kube-proxy has left {left}: {rules}");
        }
        Ok(())
    }
}

#[derive(Default)]
struct Connections {
    tcp: Vec<(String, Stream)>,
    udp: Vec<(String, Datagrams)>,
}

impl Connections {
    /// Asks on each of them.
    fn ask(&mut self, text: &str) -> Result<()> {
        for (name, stream) in &mut self.tcp {
            stream.ask(text).with_context(|| format!("{text}: {name}"))?;
        }
        for (name, socket) in &self.udp {
            socket.ask(text).with_context(|| format!("{text}: {name}"))?;
        }
        Ok(())
    }

    /// Every other one of them.
    fn split(self) -> [Self; 2] {
        let mut halves = [Self::default(), Self::default()];
        self.tcp.into_iter().enumerate().for_each(|(index, stream)| halves[index % 2].tcp.push(stream));
        self.udp.into_iter().enumerate().for_each(|(index, socket)| halves[index % 2].udp.push(socket));
        halves
    }
}

/// Connections that ask without a pause, until they are taken back.
struct Busy {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    worker: JoinHandle<Result<Connections>>,
}

impl Busy {
    fn start(mut connections: Connections) -> Self {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (is_over, counter) = (stop.clone(), rounds.clone());
        let worker = std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                connections.ask(&format!("round {}", counter.fetch_add(1, Ordering::Relaxed)))?;
                std::thread::sleep(PACE);
            }
            Ok(connections)
        });
        Self { stop, rounds, worker }
    }

    /// Waits until each has asked and been answered at least twice more.
    fn goes_on(&self) {
        let before = self.rounds.load(Ordering::Relaxed);
        eventually("busy connections go on", SOON, || {
            let is_on = self.rounds.load(Ordering::Relaxed) > before + 2 || self.worker.is_finished();
            is_on.then_some(())
        });
        assert!(!self.worker.is_finished(), "a busy connection is lost");
    }

    fn end(self) -> Result<Connections> {
        self.stop.store(true, Ordering::Relaxed);
        self.worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// How many connections are adopted, and whether the adoption window is closed, by `ballast status`.
fn adopted(agent: &Agent) -> Option<(u64, bool)> {
    let status = agent.json(&["status"]).ok()?;
    let problem = &status["agent"]["adoption"]["problem"];
    assert!(problem.is_null(), "{problem}");
    Some((status["tables"]["adopted"].as_u64()?, status["adoption"].is_null()))
}

/// Conntrack forgets all that is translated.
fn forget(node: &Node) -> Result<()> {
    node.fixture.node.netns().run(|| {
        let mut conntrack = Conntrack::open()?;
        for family in Family::ALL {
            for entry in conntrack.list(family, status::DST_NAT)? {
                conntrack.delete(&entry.original)?;
            }
        }
        Ok(())
    })
}

fn no_connection_is_lost(mode: &str) -> Result<()> {
    let mut node = Node::new(mode)?;
    let connections = node.connect(EACH, EACH_UDP)?;
    let expected = (connections.tcp.len() + connections.udp.len()) as u64;
    let [mut idle, busy] = connections.split();
    let busy = Busy::start(busy);
    busy.goes_on();

    let mut agent = node.cluster.agent(&node.fixture.node, &[])?;
    agent.restart()?;
    eventually("the connections are adopted", SETTLE_LIMIT, || {
        let (count, is_closed) = adopted(&agent)?;
        (is_closed && count >= expected).then_some(())
    });
    let text = String::from_utf8(agent.cli(&["status"])?.stdout)?;
    assert!(text.contains("Adopted:"), "{text}");
    busy.goes_on();
    let mut new = node.connect(2, 1).context("new connections beside kube-proxy's rules")?;

    node.remove_kube_proxy()?;
    busy.goes_on();
    idle.ask("without kube-proxy")?;
    new.ask("without kube-proxy")?;
    let mut later = node.connect(2, 1).context("new connections without kube-proxy's rules")?;

    agent.kill();
    busy.goes_on();
    idle.ask("while no agent runs")?;
    agent.restart()?;
    busy.goes_on();
    idle.ask("after a restart")?;
    later.ask("after a restart")?;

    let counters = Counters::read(agent.bpffs())?;
    let counted = |outcome: Outcome| (outcome.name(), counters.get(outcome));
    let counts = [Outcome::Adopted, Outcome::RefusedNoFlow, Outcome::RefusedUnserved, Outcome::Evicted].map(counted);
    let counts: BTreeMap<_, _> = counts.into();
    assert!(counts["adopted"] > expected, "{counts:?}");
    assert_eq!(counts.values().sum::<u64>(), counts["adopted"], "{counts:?}");
    let mut busy = busy.end()?;
    busy.ask("at last")?;
    println!("{mode}: {expected} connections, none of them lost; {counts:?}");

    let is_kept = || node.fixture.node.netns().run(nat_hooks::is_kept);
    assert!(is_kept()?, "NAT must stay for them");
    for (name, stream) in idle.tcp.into_iter().chain(busy.tcp) {
        stream.end().with_context(|| format!("{name} does not end in order"))?;
    }
    drop((idle.udp, busy.udp));
    // Sooner than by its timeouts.
    forget(&node)?;
    eventually("the last adopted connection has ended", SOON, || (adopted(&agent)?.0 == 0).then_some(()));
    eventually("NAT is not kept any more", SOON, || (!is_kept().ok()?).then_some(()));
    later.ask("Ballast's own go on")?;
    Ok(())
}

#[test]
fn no_connection_of_kube_proxy_with_nftables_is_lost() -> Result<()> {
    no_connection_is_lost("nftables")
}

#[test]
fn no_connection_of_kube_proxy_with_iptables_is_lost() -> Result<()> {
    no_connection_is_lost("iptables")
}
