//! The wall clock jumps by an hour while connections, a drain, affinity, flow timeouts and watches run: no timeout changes.
//!
//! It sets the clock of the machine that it runs on, so it runs in a virtual machine only (`cargo xtask vm --test guest_clock`).

// Tests may unwrap: a panic is a failed test.
#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use lb_tests::agent::{Agent, Manifest, Protocol, SOON, Service};
use lb_tests::cluster::stub::StubApi;
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Stream, eventually};
use lb_tests::topology::NodeOptions;
use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};
use serde_json::Value;

const HOUR_S: i64 = 3600;
/// Longer than everything that happens between the begin of a drain and the jump.
const DRAIN: Duration = Duration::from_secs(25);
/// Client affinity that both jumps would end, or keep for too long, if it followed the wall clock.
const AFFINITY_S: u32 = 600;
/// Client affinity whose end is waited for.
const SHORT_AFFINITY_S: u32 = 5;
/// An open connection is forgotten after ten minutes without a packet, a closed one after some seconds.
const TIMEOUTS: &str = "--flow-timeouts=open=10m,closing=3s";
/// An emulated machine is slow: what is due may be seen so much later.
const LATE: Duration = Duration::from_secs(10);
/// A watch that is silent for so long is asked for, so that freshness is proven again after each jump.
const SILENCE: &str = "--watch-silence=3s";
/// No proof of freshness may be older: `--watch-silence`, and time for the answer.
const AGE_MAX_S: f64 = 30.0;

/// Sets the wall clock forward or back.
fn jump(seconds: i64) {
    assert!(
        std::env::var_os("BALLAST_GUEST").is_some(),
        "this test sets the clock of its machine: run it by `cargo xtask vm --test guest_clock`"
    );
    let now = clock_gettime(ClockId::Realtime);
    clock_settime(ClockId::Realtime, Timespec { tv_sec: now.tv_sec + seconds, ..now }).unwrap();
}

/// A node whose agent follows a stub of the API.
struct Scenario {
    agent: Agent,
    api: StubApi,
    web: Service,
    sticky: Service,
    brief: Service,
    fixture: Fixture,
}

impl Scenario {
    fn new() -> Self {
        let fixture = Fixture::new("clock", Pods::Routed, 2, NodeOptions::default());
        let web = fixture.web();
        let sticky = Service::standard("sticky", 11, fixture.endpoints()).remembering(AFFINITY_S);
        let brief = Service::standard("brief", 12, fixture.endpoints()).remembering(SHORT_AFFINITY_S);
        let api = StubApi::start(Some(fixture.node.namespace().netns()), Ipv4Addr::LOCALHOST.into()).unwrap();
        let url = format!("--api-server={}", api.url());
        let drain = format!("--drain-period={}s", DRAIN.as_secs());
        let flags = ["--source=kube", &url, &drain, "--drain-max=0s", TIMEOUTS, SILENCE, "--scheduler=round-robin"];
        let mut agent = Agent::prepare(&fixture.node, &flags).unwrap();
        put(&api, &Manifest::of([web.clone(), sticky.clone(), brief.clone()]));
        agent.restart().unwrap();
        let scenario = Self { agent, api, web, sticky, brief, fixture };
        scenario.wait_for(&scenario.web);
        scenario
    }

    /// Waits until the tables hold the service like this.
    fn wait_for(&self, wanted: &Service) {
        let expected = Manifest::of([wanted.clone()]).states();
        eventually("the tables hold the service", SOON, || {
            let mut shown = self.agent.states().ok()?;
            shown.retain(|(service, _, state)| service == wanted.name && state == "active");
            (shown == expected).then_some(())
        });
    }

    /// Changes one service.
    fn apply(&self, service: &Service) {
        put(&self.api, &Manifest::of([service.clone()]));
        self.wait_for(service);
    }

    /// Leads the client away from the backend that its hash names, so that only its affinity keeps it at another one. Returns both.
    fn lead_away(&self, service: &Service) -> [String; 2] {
        let (_, named) = self.connect(service);
        let mut without = service.clone();
        without.endpoints.remove(named[1..].parse().unwrap());
        self.apply(&without);
        let (_, other) = self.connect(service);
        assert_ne!(named, other);
        self.apply(service);
        [named, other]
    }

    fn connect(&self, service: &Service) -> (Stream, String) {
        let to = service.frontends(Protocol::Tcp)[0];
        let mut stream = Stream::connect(self.fixture.client.netns(), to).unwrap();
        let server = stream.ask("who").unwrap().server;
        (stream, server)
    }

    /// A connection to this backend.
    fn connect_to(&self, service: &Service, backend: &str) -> Stream {
        eventually(backend, SOON, || Some(self.connect(service)).filter(|(_, server)| server == backend)).0
    }

    /// Whether `brief` would lead the client to where it was last.
    fn is_remembered(&self, client: SocketAddr) -> bool {
        let to = self.brief.frontends(Protocol::Tcp)[0].to_string();
        let explained = self.agent.json(&["explain", &client.ip().to_string(), &to]).unwrap();
        explained["affinity"]["used"].as_bool().unwrap()
    }

    /// Connections of a client's port that `get connections` shows.
    fn connections_from(&self, client: SocketAddr) -> usize {
        let list = self.agent.json(&["get", "connections", "-A"]).unwrap();
        let of_client = |item: &&Value| {
            item["clientAddress"] == client.ip().to_string() && item["clientPort"] == u64::from(client.port())
        };
        list["items"].as_array().unwrap().iter().filter(of_client).count()
    }

    /// The agent is fresh and healthy, and no age follows the wall clock.
    fn is_fresh(&self) {
        let status = self.agent.json(&["status"]).unwrap();
        let source = &status["agent"]["source"];
        assert!(source["stale"].is_null(), "{source:#}");
        let ages = source["ageSeconds"].as_object().unwrap();
        assert!(ages.contains_key("services") && ages.contains_key("endpointslices"), "{source:#}");
        for (resource, age) in ages {
            // The own Node is proven more rarely, and the stub has none.
            assert!(resource == "nodes" || (0.0..AGE_MAX_S).contains(&age.as_f64().unwrap()), "{resource}: {source:#}");
        }
        for path in ["/readyz", "/healthz", "/livez"] {
            let (code, body) = self.agent.health(path).unwrap();
            assert_eq!(code, 200, "{path}: {body}");
        }
    }

    /// The clock jumps while all of it runs. `sticky`: where affinity keeps the client.
    fn jumps(&self, seconds: i64, sticky: &str) {
        let (mut idle, _) = self.connect(&self.sticky);
        let (closed, _) = self.connect(&self.web);
        let closed_port = closed.local().unwrap();
        let mut draining = self.connect_to(&self.web, "b1");
        let brief = self.connect(&self.brief).0.local().unwrap();
        drop(closed);
        assert_eq!(self.connections_from(idle.local().unwrap()), 1);

        let begun = Instant::now();
        let without = Service { endpoints: self.web.endpoints[..1].to_vec(), ..self.web.clone() };
        self.apply(&without);
        let drains = Instant::now();
        jump(seconds);

        self.is_fresh();
        assert_eq!(self.connections_from(idle.local().unwrap()), 1, "an idle connection is remembered");
        idle.ask("after the jump").unwrap();
        assert_eq!(self.connect(&self.sticky).1, sticky, "affinity is kept");
        // The promise is a second; five are over with it.
        std::thread::sleep(Duration::from_secs(u64::from(SHORT_AFFINITY_S) + 1));
        assert!(!self.is_remembered(brief), "affinity ends in its time");
        eventually("a closed connection is forgotten in its time", LATE, || {
            (self.connections_from(closed_port) == 0).then_some(())
        });
        let error = loop {
            std::thread::sleep(Duration::from_millis(100));
            match draining.ask("still") {
                Ok(answer) => assert_eq!(answer.server, "b1"),
                Err(error) => break error,
            }
            assert!(drains.elapsed() < DRAIN + LATE, "the deadline did not pass");
        };
        assert!(begun.elapsed() >= DRAIN, "the deadline passed after {:?}: {error}", begun.elapsed());
        self.is_fresh();
        idle.ask("after all").unwrap();
        self.apply(&self.web);
    }
}

fn put(api: &StubApi, manifest: &Manifest) {
    manifest.documents().into_iter().for_each(|object| api.put(object));
}

#[test]
fn no_timeout_follows_a_wall_clock_that_jumps() {
    let mut scenario = Scenario::new();
    let pid = scenario.agent.pid();
    let [_, sticky] = scenario.lead_away(&scenario.sticky);
    scenario.jumps(HOUR_S, &sticky);
    scenario.jumps(-HOUR_S, &sticky);
    assert!(scenario.agent.alive() && scenario.agent.pid() == pid, "{}", scenario.agent.log());
}
