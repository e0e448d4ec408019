//! Backends that are slow, lossy or full: every connect that a patient client could make is made, and the client talks to the backend that
//! has accepted it.
//!
//! A kernel's own client and servers. nftables in a backend's namespace loses its SYNs and SYN+ACKs: its kernel sends a SYN+ACK again after
//! 1 s, 3 s and 7 s. Needs root and `nft`.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use lb_common::outcome::Outcome;
use lb_tests::agent::{Agent, Manifest, Protocol, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::Counters;
use lb_tests::peers::Stream;
use lb_tests::topology::{NodeOptions, Pod};
use socket2::{Domain, Socket, Type};

/// A client gives up after so long.
const PATIENT: Duration = Duration::from_mins(1);
/// For so long SYNs and answers are lost: the kernel sends a client's first five SYNs by then. Later ones arrive, as chance may lose all of a
/// client's in any time.
const LOSSY: Duration = Duration::from_millis(4_500);
/// Clients of each family, all at once.
const CLIENTS: usize = 15;
/// Port of the servers.
const PORT: u16 = 8080;

/// Services of the same backends `b0`, `b1`…: what the programs have learnt of a backend by one they do not know by another. Fields in the order in
/// which they must end.
struct Scenario {
    agent: Agent,
    services: Vec<Service>,
    fixture: Fixture,
}

/// Names of services.
const NAMES: [&str; 4] = ["one", "two", "three", "four"];
/// SYNs that a client's kernel sends again at most until the backend has answered: the longest delay is 5 s, and it sends again every second at first.
const SENT_AGAIN: u32 = 8;

impl Scenario {
    fn new(subject: &str, backends: usize, services: usize) -> Self {
        let fixture = Fixture::new(subject, Pods::Routed, backends, NodeOptions::default());
        let names = NAMES.into_iter().zip(10..).take(services);
        let services: Vec<Service> =
            names.map(|(name, last)| Service::standard(name, last, fixture.endpoints())).collect();
        let agent = fixture.agent(&Manifest::of(services.clone()), &[]);
        Self { agent, services, fixture }
    }

    fn pod(&self, number: usize) -> &Pod {
        &self.fixture.backends[number]
    }

    /// Clients of a service that connect at once, and ask who has accepted them. The names, and how often the one that waited longest has sent its SYN
    /// again.
    fn connect(&self, service: usize) -> Result<(Vec<String>, u32)> {
        let frontends = self.services[service].frontends(Protocol::Tcp);
        let netns = self.fixture.client.netns();
        let one = |to: SocketAddr| {
            let from = netns.clone();
            netns.spawn(move || {
                let mut stream = Stream::connect_from(&from, 0, to, PATIENT)?;
                let sent_again = stream.sent_again()?;
                std::io::Result::Ok((stream.ask("who")?.server, sent_again))
            })
        };
        let clients: Vec<_> = (0..CLIENTS).flat_map(|_| frontends.iter().map(|to| (*to, one(*to)))).collect();
        let names = clients.into_iter().map(|(to, client)| {
            let name = client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            name.with_context(|| format!("a client of {to}"))
        });
        let (names, sent_again): (Vec<String>, Vec<u32>) = names.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        Ok((names, sent_again.into_iter().max().unwrap_or_default()))
    }

    fn counters(&self) -> Counters {
        Counters::read(self.fixture.node.bpffs()).unwrap()
    }

    /// Connections that the backend's server has accepted.
    fn accepted(&self, number: usize) -> u32 {
        self.fixture.servers[number].iter().map(lb_tests::peers::Server::accepted).sum()
    }

    /// Nobody has taken the backend out.
    fn is_not_ejected(&self, number: usize) -> Result<()> {
        let list = self.agent.json(&["get", "backends", "-A"])?;
        let own = self.pod(number).ips();
        let is_own = |item: &&serde_json::Value| {
            item["address"].as_str().and_then(|text| text.parse().ok()).is_some_and(|ip| own.contains(&ip))
        };
        let all: Vec<_> = list["items"].as_array().context("a list")?.iter().filter(is_own).collect();
        ensure!(!all.is_empty(), "the backend is not in {list}");
        ensure!(all.iter().all(|item| item["ejectedSeconds"].is_null()), "ejected: {all:?}");
        Ok(())
    }
}

/// Loads these rules in the pod's namespace, in place of those before: for what reaches its kernel, and for what leaves its link.
fn rules(pod: &Pod, input: &str, egress: &str) -> Result<()> {
    let text = format!(
        "table inet slow\ndelete table inet slow\ntable inet slow {{\n\
         chain input {{\ntype filter hook input priority 0;\n{input}\n}}\n}}\n\
         table netdev slow\ndelete table netdev slow\ntable netdev slow {{\n\
         chain egress {{\ntype filter hook egress device \"eth0\" priority 0;\n{egress}\n}}\n}}\n"
    );
    let mut command = std::process::Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped());
    let mut child = pod.netns().start(&mut command).context("starting `nft`: install nftables")?;
    child.stdin.take().context("piped")?.write_all(text.as_bytes())?;
    ensure!(child.wait()?.success(), "nft refuses {text}");
    Ok(())
}

/// Where a packet is lost on its way: its sender believes that it was sent. One that is dropped at egress or output was not: the kernel then
/// forgets the request that a SYN+ACK was for.
const LOST: &str = "fwd to \"lo\"";

/// The backend hears nothing.
fn dies(pod: &Pod) -> Result<()> {
    rules(pod, &format!("tcp dport {PORT} drop"), "")
}

/// The backend accepts, but says so only later.
fn holds_its_answers(pod: &Pod) -> Result<()> {
    rules(pod, "", &format!("tcp flags & (syn | ack) == syn | ack {LOST}"))
}

/// Of the SYNs to it, and of its SYN+ACKs, so many in a hundred are lost.
fn loses(pod: &Pod, percent: u32) -> Result<()> {
    rules(
        pod,
        &format!("tcp dport {PORT} tcp flags & (syn | ack) == syn numgen random mod 100 < {percent} drop"),
        &format!("tcp flags & (syn | ack) == syn | ack numgen random mod 100 < {percent} {LOST}"),
    )
}

#[test]
fn a_slow_backend_beside_a_dead_one_serves_every_client() -> Result<()> {
    let scenario = Scenario::new("slow", 2, 4);
    dies(scenario.pod(1))?;
    for (service, delay_ms) in [0, 400, 2_300, 5_000].into_iter().enumerate() {
        let before = scenario.counters();
        holds_its_answers(scenario.pod(0))?;
        let (names, sent_again) = std::thread::scope(|scope| {
            let connecting = scope.spawn(|| scenario.connect(service));
            std::thread::sleep(Duration::from_millis(delay_ms));
            rules(scenario.pod(0), "", "")?;
            connecting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        assert!(names.iter().all(|name| name == "b0"), "{delay_ms} ms: {names:?}");
        assert!(sent_again <= SENT_AGAIN, "{delay_ms} ms: {sent_again} SYNs were sent again");
        let after = scenario.counters();
        assert!(after.since(&before, Outcome::Retried) > 0, "{delay_ms} ms: {}", after.line_since(&before));
        scenario.is_not_ejected(0)?;
    }
    Ok(())
}

#[test]
fn of_two_slow_backends_the_one_that_answers_first_serves_and_the_other_has_no_connection() -> Result<()> {
    let scenario = Scenario::new("slow2", 2, 1);
    let before = scenario.counters();
    holds_its_answers(scenario.pod(0))?;
    holds_its_answers(scenario.pod(1))?;
    let (names, _) = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| scenario.connect(0));
        std::thread::sleep(Duration::from_millis(2_300));
        rules(scenario.pod(0), "", "")?;
        connecting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    assert!(names.iter().all(|name| name == "b0"), "{names:?}");
    rules(scenario.pod(1), "", "")?;
    // The other one's SYN+ACKs come until they are answered.
    let late = |counters: &Counters| counters.since(&before, Outcome::RefusedLate);
    lb_tests::peers::eventually("late answers are refused", SOON, || (late(&scenario.counters()) > 0).then_some(()));
    assert_eq!(scenario.accepted(1), 0, "no connection that its client does not use");
    scenario.is_not_ejected(0)
}

#[test]
fn lost_syns_and_answers_keep_no_client_from_its_connection() -> Result<()> {
    let scenario = Scenario::new("lossy", 3, 3);
    dies(scenario.pod(2))?;
    for (service, percent) in [1, 10, 30].into_iter().enumerate() {
        let before = scenario.counters();
        let accepted_before = scenario.accepted(0) + scenario.accepted(1);
        loses(scenario.pod(0), percent)?;
        loses(scenario.pod(1), percent)?;
        let (names, sent_again) = std::thread::scope(|scope| {
            let connecting = scope.spawn(|| scenario.connect(service));
            std::thread::sleep(LOSSY);
            rules(scenario.pod(0), "", "")?;
            rules(scenario.pod(1), "", "")?;
            connecting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
        .with_context(|| format!("{percent} % lost"))?;
        assert!(names.iter().all(|name| name == "b0" || name == "b1"), "{names:?}");
        let accepted = scenario.accepted(0) + scenario.accepted(1) - accepted_before;
        assert_eq!(
            accepted as usize,
            names.len(),
            "no connection that its client does not use; {sent_again} SYNs again"
        );
        let after = scenario.counters();
        assert!(after.since(&before, Outcome::Retried) > 0, "{percent} %: {}", after.line_since(&before));
        scenario.is_not_ejected(0)?;
        scenario.is_not_ejected(1)?;
    }
    Ok(())
}

#[test]
fn a_backend_whose_accept_queue_is_full_keeps_no_client_from_another_one() -> Result<()> {
    let mut scenario = Scenario::new("full", 2, 1);
    // Another server at the first backend: it never accepts.
    scenario.fixture.servers[0].clear();
    let mut full = Vec::new();
    for ip in scenario.pod(0).ips() {
        let address = SocketAddr::new(ip, PORT);
        let listener = scenario.pod(0).netns().run(|| {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            socket.bind(&address.into())?;
            socket.listen(0)?;
            anyhow::Ok(socket)
        })?;
        // Its queue takes one more than its limit.
        let first = scenario.pod(0).netns().run(|| TcpStream::connect_timeout(&address, Duration::from_secs(2)))?;
        full.push((listener, first));
    }
    let (names, sent_again) = scenario.connect(0)?;
    assert!(names.iter().all(|name| name == "b1"), "{names:?}");
    assert!(sent_again <= SENT_AGAIN, "{sent_again} SYNs were sent again");
    Ok(())
}
