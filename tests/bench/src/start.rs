//! `start`: cold starts from a file, in turns with another version: until the first connection, and how long other processes stall.
//!
//! The kernel verifies programs without a pause for others where it has no preemption. A thread on each CPU that sleeps 1 ms at a time
//! shows how long a process of the node can be kept from running.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lb_tests::peers::{Server, Stream};
use lb_tests::topology::{Pod, Topology};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde_json::json;

use crate::control::agents::Ballast;
use crate::figures::{Better, Figure, Part};
use crate::machine::{load, machine};
use crate::statistics::Samples;

const TARGET: u16 = 8080;
/// How long a start may take.
const LIMIT: Duration = Duration::from_mins(2);
/// How long an attempt to connect waits.
const ATTEMPT: Duration = Duration::from_millis(100);
/// What a sleeper sleeps.
const NAP: Duration = Duration::from_millis(1);
/// How long the sleepers go on after the first connection: programs that are loaded later stall others as well.
const AFTER: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, clap::Args)]
pub struct StartArguments {
    /// The agent of another version, which takes turns with this one.
    #[arg(long, value_name = "PATH")]
    before: Option<PathBuf>,
    /// How often each version is started; the result is the median.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Services in the file.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u16).range(1..=60_000))]
    services: u16,
}

/// Seconds until the first connection, and the longest stall of any CPU in milliseconds.
#[derive(Debug, Default)]
struct Starts {
    connected_s: Vec<f64>,
    stall_ms: Vec<f64>,
}

/// Measures and prints.
pub fn run(arguments: &StartArguments, agent: &Path, stop: &AtomicBool) -> Result<Part> {
    let load_before = load();
    let topology = Topology::new("start")?;
    let node = topology.node()?;
    let (client, server) = (node.pod("client")?, node.pod("server")?);
    let _server = Server::tcp(server.netns(), "echo", SocketAddr::new(server.addresses().v4.into(), TARGET))?;
    let manifest = topology.directory().join("manifest.yaml");
    std::fs::write(&manifest, services(arguments.services, server.addresses().v4))?;
    let flags = [format!("--source=file={}", manifest.display())];
    let to = SocketAddr::new(IpAddr::V4(cluster_ip(arguments.services - 1)), 80);
    let versions: Vec<&Path> = [agent].into_iter().chain(arguments.before.as_deref()).collect();
    let mut starts: Vec<Starts> = versions.iter().map(|_| Starts::default()).collect();
    for round in 0..arguments.rounds {
        eprintln!("==> start {} of {}", round + 1, arguments.rounds);
        for (program, starts) in versions.iter().zip(&mut starts) {
            ensure!(!stop.load(Ordering::Relaxed), "interrupted");
            let ballast = Ballast { program, node: &node, log: topology.directory().join("agent.log") };
            ballast.clean_up()?;
            let sleepers = Sleepers::start()?;
            let begun = Instant::now();
            let process = ballast.start(&flags)?;
            connect(&client, to).with_context(|| format!("{}:\n{}", program.display(), process.tail()))?;
            starts.connected_s.push(begun.elapsed().as_secs_f64());
            std::thread::sleep(AFTER);
            starts.stall_ms.push(sleepers.longest()?.as_secs_f64() * 1_000.0);
            drop(process);
            ballast.clean_up()?;
        }
    }
    let details =
        json!({"machine": machine()?, "loadBefore": load_before, "loadAfter": load(), "services": arguments.services});
    let figures = figures(starts, arguments.services);
    for figure in &figures {
        println!("{}: {}", figure.name, figure.text());
    }
    Ok(Part { bench: "start", figures, details, left_out: Vec::new() })
}

fn figures(mut starts: Vec<Starts>, services: u16) -> Vec<Figure> {
    let before = (starts.len() > 1).then(|| starts.pop()).flatten();
    let Some(now) = starts.pop() else { return Vec::new() };
    let median = |values: &[f64]| values.iter().copied().collect::<Samples>().median();
    let mut figures = vec![
        Figure::single(
            format!("start with {services} services: first connection"),
            median(&now.connected_s),
            "s",
            Better::Less,
        ),
        Figure::single("start: longest stall of a sleeping thread", median(&now.stall_ms), "ms", Better::Less),
    ];
    if let Some(before) = before {
        let ratio = |now: &[f64], before: &[f64]| now.iter().zip(before).map(|(now, before)| now / before).collect();
        figures.extend([
            Figure::ratio(
                "start: first connection, to before",
                &ratio(&now.connected_s, &before.connected_s),
                Better::Less,
            ),
            Figure::ratio("start: longest stall, to before", &ratio(&now.stall_ms, &before.stall_ms), Better::Less),
            Figure::single("before: longest stall of a sleeping thread", median(&before.stall_ms), "ms", Better::Less),
        ]);
    }
    figures
}

/// Connects until it is answered.
fn connect(client: &Pod, to: SocketAddr) -> Result<()> {
    let begun = Instant::now();
    while Stream::connect_from(client.netns(), 0, to, ATTEMPT).and_then(|mut stream| stream.ask("first")).is_err() {
        ensure!(begun.elapsed() < LIMIT, "{to} is not served within {LIMIT:?}");
        std::thread::sleep(NAP);
    }
    Ok(())
}

/// Threads that sleep, one bound to each CPU.
struct Sleepers {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Duration>>,
}

impl Sleepers {
    fn start() -> Result<Self> {
        let allowed = sched_getaffinity(Pid::from_raw(0)).context("asking for our CPUs")?;
        let stop = Arc::new(AtomicBool::new(false));
        let cpus = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false));
        let threads = cpus.map(|cpu| {
            let mut only = CpuSet::new();
            only.set(cpu).context("choosing a CPU")?;
            let stop = Arc::clone(&stop);
            Ok(std::thread::spawn(move || {
                // A thread that cannot be bound shows stalls as well, only fewer of them.
                let _ = sched_setaffinity(Pid::from_raw(0), &only);
                let mut longest = Duration::ZERO;
                while !stop.load(Ordering::Relaxed) {
                    let asleep = Instant::now();
                    std::thread::sleep(NAP);
                    longest = longest.max(asleep.elapsed().saturating_sub(NAP));
                }
                longest
            }))
        });
        Ok(Self { threads: threads.collect::<Result<_>>()?, stop })
    }

    /// The longest time that one of them overslept.
    fn longest(self) -> Result<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        let ended: Option<Vec<Duration>> = self.threads.into_iter().map(|thread| thread.join().ok()).collect();
        ended.and_then(|all| all.into_iter().max()).context("a sleeper has ended")
    }
}

fn cluster_ip(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(10, 97, high, low)
}

/// So many services of one backend.
fn services(count: u16, backend: Ipv4Addr) -> String {
    let mut yaml = String::new();
    for number in 0..count {
        // Writing to a string cannot fail.
        let _ = write!(
            yaml,
            "---\napiVersion: v1\nkind: Service\nmetadata: {{namespace: bench, name: s{number}}}\n\
             spec: {{clusterIPs: [\"{}\"], ports: [{{port: 80, targetPort: {TARGET}, protocol: TCP}}]}}\n\
             ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{namespace: bench, name: s{number}-1, labels: {{kubernetes.io/service-name: s{number}}}}}\n\
             addressType: IPv4\nports: [{{name: \"\", port: {TARGET}, protocol: TCP}}]\n\
             endpoints: [{{addresses: [\"{backend}\"], conditions: {{ready: true}}}}]\n",
            cluster_ip(number)
        );
    }
    yaml
}
