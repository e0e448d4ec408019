//! A node with an agent behind a faulty proxy to its API, a client, two backends, and what must hold at every moment.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use lb_seed::short_or_long;
use lb_tests::agent::Agent;
use lb_tests::cluster::{FaultyProxy, Hosted, SETTLE_LIMIT};
use lb_tests::peers::{Datagrams, Stream, eventually};
use lb_tests::topology::{NetNs, NodeOptions};

use lb_tests::fixture::{Fixture, Pods};

/// How long a watch may be silent before the agent asks.
pub const SILENCE: &str = "--watch-silence=3s";
/// From the moment at which the API can be reached again, or a working watch falls silent, until all is well. The long form runs on a quiet
/// machine.
const RECOVERY_LIMIT: Duration = Duration::from_secs(45);
pub const ASK_EVERY: Duration = Duration::from_millis(50);

/// A node with an agent, a client, two backends of which one serves `web`, and a connection that is held all along.
pub struct Scenario {
    pub agent: Agent,
    held: Stream,
    cluster_ips: Vec<IpAddr>,
    pub proxy: FaultyProxy,
    pub cluster: Hosted,
    pub fixture: Fixture,
    /// Which of the backends serves.
    serving: usize,
}

impl Scenario {
    /// The agent has these credentials.
    pub fn new(subject: &str, kubeconfig: impl FnOnce(&Hosted) -> Result<PathBuf>) -> Result<Self> {
        let fixture = Fixture::new(subject, Pods::Routed, 2, NodeOptions::default());
        let host = fixture.topology.outside("api", &fixture.node)?;
        let cluster = Hosted::start(&host)?;
        let proxy = cluster.proxy()?;
        let api_server = format!("--api-server=https://{}", proxy.address());
        let mut agent = Hosted::agent_by(&kubeconfig(&cluster)?, &fixture.node, &[&api_server, SILENCE])?;
        agent.restart()?;
        let cluster_ips = cluster.create_service("web")?;
        cluster.put_pods("web", &[&fixture.backends[0]])?;
        let client = fixture.client.netns();
        eventually("web serves", SETTLE_LIMIT, || asked(client, &cluster_ips).ok());
        let held = Stream::connect(client, SocketAddr::new(cluster_ips[0], 80))?;
        Ok(Self { agent, held, cluster_ips, proxy, cluster, fixture, serving: 0 })
    }

    /// What must hold at every moment: connections go on, new ones are made, only what was deleted is gone.
    pub fn serves(&mut self) -> Result<()> {
        self.held.ask("held").context("an established connection")?;
        let servers = asked(self.fixture.client.netns(), &self.cluster_ips).context("new connections")?;
        ensure!(servers.iter().all(|server| server.starts_with('b')), "{servers:?}");
        let active: BTreeSet<String> = self
            .agent
            .states()?
            .into_iter()
            .filter(|(.., state)| state == "active")
            .map(|(service, ..)| service)
            .collect();
        ensure!(active.contains("web") && active.contains("kubernetes"), "removed without need: {active:?}");
        ensure!(self.agent.alive(), "the agent ended:\n{}", self.agent.log());
        Ok(())
    }

    /// Asks again until a probe of the agent's health has the status; [`Self::serves`] all along, and so does `also`.
    pub fn until(
        &mut self,
        path: &str,
        status: u16,
        also: impl Fn(&Agent) -> Result<()>,
    ) -> Result<(Duration, String)> {
        let start = Instant::now();
        loop {
            let (now, body) = self.agent.health(path)?;
            if now == status {
                return Ok((start.elapsed(), body));
            }
            let limit = short_or_long(SETTLE_LIMIT, RECOVERY_LIMIT);
            ensure!(start.elapsed() < limit, "{path} not {status}: {body}\n{}", self.agent.log());
            self.serves()?;
            also(&self.agent)?;
            std::thread::sleep(ASK_EVERY);
        }
    }

    /// The oldest proof of freshness, as `status` shows it.
    pub fn age(&self) -> Result<f64> {
        let status = self.agent.json(&["status"])?;
        let ages = status["agent"]["source"]["ageSeconds"].as_object().context("no ages")?;
        ages.values().filter_map(serde_json::Value::as_f64).reduce(f64::max).context("no age")
    }

    /// Changes are followed: the other backend serves from now on.
    pub fn follows(&mut self) -> Result<()> {
        self.serving = 1 - self.serving;
        self.cluster.put_pods("web", &[&self.fixture.backends[self.serving]])?;
        let (client, cluster_ips, name) =
            (self.fixture.client.netns(), &self.cluster_ips, format!("b{}", self.serving));
        eventually("the other backend serves", SETTLE_LIMIT, || {
            asked(client, cluster_ips).ok()?.iter().all(|server| *server == name).then_some(())
        });
        self.held.ask("held").context("a connection whose backend drains")?;
        self.held = Stream::connect(client, SocketAddr::new(cluster_ips[0], 80))?;
        Ok(())
    }
}

/// Names of the servers that answer at each cluster IP, TCP and UDP.
fn asked(client: &NetNs, cluster_ips: &[IpAddr]) -> std::io::Result<Vec<String>> {
    let mut servers = Vec::new();
    for &address in cluster_ips {
        servers.push(Stream::connect(client, SocketAddr::new(address, 80))?.ask("hello")?.server);
        servers.push(Datagrams::connected(client, 0, SocketAddr::new(address, 53))?.ask("hello")?.server);
    }
    Ok(servers)
}
