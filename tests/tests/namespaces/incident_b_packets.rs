//! Incident B, the half that lies in the packets: API server and agent are dead when twelve of 77 backends go, and nobody is there
//! to learn of it. Beside it, on a node of its own, the real kube-proxy in the same place. Needs root.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lb_common::outcome::Outcome;
use lb_tests::agent::Agent;
use lb_tests::cluster::objects::Endpoint;
use lb_tests::cluster::{Hosted, KubeProxy, SETTLE_LIMIT};
use lb_tests::incident::{BackendPool, Clients, Counters, Failure};
use lb_tests::peers::eventually;
use lb_tests::topology::{Node, NodeOptions, Pod};

use lb_tests::fixture::{Fixture, Pods};

/// Backends of each service, as in the incident, and how many of them go.
const BACKENDS: u8 = 77;
const GONE: u8 = 12;
/// What clients in pods do: no port twice, all of them below those that the kernel chooses.
const IN_PODS: Clients =
    Clients { connections: 400, at_a_time: 100, patience: Duration::from_secs(5), first_port: None };
/// Their number in the long form.
const MANY: u16 = 1_000;
/// First ports of the rounds.
const FIRST_PORTS: [u16; 3] = [20_000, 21_000, 22_000];
/// Host processes: the socket hook translates their connects, and sees none of their packets, so those that meet a dead backend fail.
const ON_THE_HOST: Clients =
    Clients { connections: 200, at_a_time: 100, patience: Duration::from_secs(5), first_port: None };

/// A service for each kind of failure and each kind of client. Findings about a service's backends stay with that service, so none of the rounds is
/// warmed up by another one.
struct Services(Vec<(Failure, &'static str, SocketAddr)>);

impl Services {
    fn create(cluster: &Hosted) -> Result<Self> {
        let endpoints: Vec<Endpoint> =
            (0..BACKENDS).map(|number| Endpoint::ready(BackendPool::address(number).into())).collect();
        let mut made = Vec::new();
        for failure in Failure::ALL {
            for client in ["pod", "host"] {
                let name = name(failure, client);
                let address = cluster.create_service(&name)?[0];
                cluster.put_endpoints(&name, &endpoints)?;
                made.push((failure, client, SocketAddr::new(address, 80)));
            }
        }
        Ok(Self(made))
    }

    fn address(&self, failure: Failure, client: &str) -> SocketAddr {
        let found = self.0.iter().find(|(of, by, _)| *of == failure && *by == client);
        found.map(|(.., address)| *address).expect("a service for each")
    }
}

fn name(failure: Failure, client: &str) -> String {
    format!("{}-{client}", failure.name())
}

/// Whether the tables hold all backends of all services.
fn is_told(agent: &Agent, expected: &BTreeSet<IpAddr>) -> Option<()> {
    let states = agent.states().ok()?;
    let complete = |service: &str| {
        let of_service = states.iter().filter(|(of, _, state)| of == service && state == "active");
        let targets = of_service.filter_map(|(_, target, _)| target.parse::<SocketAddr>().ok());
        let found: BTreeSet<IpAddr> =
            targets.filter(|target| target.port() == 8080).map(|target| target.ip()).collect();
        found == *expected
    };
    Failure::ALL
        .iter()
        .all(|failure| complete(&name(*failure, "pod")) && complete(&name(*failure, "host")))
        .then_some(())
}

/// Whether kube-proxy's rules hold all of them.
fn kube_proxy_is_told(node: &Node) -> Option<()> {
    let list = || Command::new("nft").args(["list", "table", "ip", "kube-proxy"]).output();
    let output = node.netns().run(list).ok()?;
    let rules = String::from_utf8_lossy(&output.stdout);
    let choice = format!("mod {BACKENDS} ");
    let chooses = |service: String| {
        let chain =
            rules.split("\tchain service-").find(|chain| chain.contains(&format!("-default/{service}/tcp/tcp {{")));
        chain.is_some_and(|chain| chain.contains(&choice))
    };
    let complete = |client: &str| Failure::ALL.iter().all(|failure| chooses(name(*failure, client)));
    (complete("pod") && complete("host")).then_some(())
}

/// The node of kube-proxy: the same addresses of the same pool, in namespaces of its own.
struct Contrast {
    client: Pod,
    pool: BackendPool,
    node: Node,
}

impl Contrast {
    fn new(fixture: &Fixture) -> Result<Self> {
        let node = fixture.topology.node()?;
        let client = node.pod("client")?;
        Ok(Self { pool: BackendPool::new(&node, BACKENDS)?, client, node })
    }
}

#[test]
fn with_api_and_agent_dead_no_connection_fails_because_twelve_backends_go() -> Result<()> {
    let fixture = Fixture::new("incident-bp", Pods::Routed, 0, NodeOptions::default());
    let pool = BackendPool::new(&fixture.node, BACKENDS)?;
    let contrast = Contrast::new(&fixture)?;
    for node in [&fixture.node, &contrast.node] {
        // Every client learns that there is no route, not just a few.
        node.namespace().sysctl("net/ipv4/icmp_ratemask", "0")?;
    }
    let host = fixture.topology.outside("api", &fixture.node)?;
    let mut cluster = Hosted::start(&host)?;
    cluster.create_node(&contrast.node)?;
    let mut agent = cluster.agent(&fixture.node, &[])?;
    agent.restart()?;
    let folder = fixture.topology.directory().to_owned();
    let kube_proxy = KubeProxy {
        node: &contrast.node,
        kubeconfig: cluster.kubeconfig().display().to_string(),
        folder: folder.clone(),
    };
    let kube_proxy = kube_proxy.start()?;
    let services = Services::create(&cluster)?;
    let expected: BTreeSet<IpAddr> = (0..BACKENDS).map(|number| BackendPool::address(number).into()).collect();
    eventually("Ballast serves all of them", SETTLE_LIMIT, || is_told(&agent, &expected));
    let begun = Instant::now();
    while kube_proxy_is_told(&contrast.node).is_none() {
        kube_proxy.check()?;
        ensure!(begun.elapsed() < SETTLE_LIMIT, "kube-proxy does not serve all of them:\n{}", kube_proxy.tail());
        std::thread::sleep(Duration::from_millis(200));
    }

    // Nobody is left who could learn of it.
    cluster.stop();
    agent.kill();
    drop(kube_proxy);
    let mut failed = Vec::new();
    for (failure, first_port) in Failure::ALL.into_iter().zip(FIRST_PORTS) {
        let connections = lb_seed::short_or_long(IN_PODS.connections, MANY);
        let in_pods = Clients { connections, first_port: Some(first_port), ..IN_PODS };
        pool.vanish(&fixture.node, 0..GONE, failure)?;
        contrast.pool.vanish(&contrast.node, 0..GONE, failure)?;
        let before = Counters::read(fixture.node.bpffs())?;
        let to = services.address(failure, "pod");
        let pod = in_pods.run(fixture.client.netns(), to);
        let after = Counters::read(fixture.node.bpffs())?;
        let on_host = ON_THE_HOST.run(fixture.node.netns(), services.address(failure, "host"));
        let other = in_pods.run(contrast.client.netns(), to);
        if pod.failed() > 0 {
            failed.push(format!("{}: {}, the first: {:?}", failure.name(), pod.line(), pod.first_error()));
        }
        if after.since(&before, Outcome::Retried) == 0 {
            let counted = after.line_since(&before);
            failed.push(format!("{}: no connection was moved, so none of the dead was met: {counted}", failure.name()));
        }
        // As many as there are dead ones among the backends. Twice that is six standard deviations of a random choice more.
        if on_host.failed() * usize::from(BACKENDS) > 2 * on_host.attempts.len() * usize::from(GONE) {
            failed.push(format!(
                "{}, host processes: {}, the first: {:?}",
                failure.name(),
                on_host.line(),
                on_host.first_error()
            ));
        }
        // The contrast is one only if kube-proxy's node met the same.
        // Where the node has no route, a client's stack goes on for as long as it waits for a neighbour: few of its connections fail.
        assert!(failure == Failure::NoRoute || other.failed() > 0, "kube-proxy, {}: {}", failure.name(), other.line());
        pool.return_to(&fixture.node, 0..GONE, failure)?;
        contrast.pool.return_to(&contrast.node, 0..GONE, failure)?;
    }
    assert!(failed.is_empty(), "connections failed:\n{}", failed.join("\n"));
    drop(agent);
    Ok(())
}
