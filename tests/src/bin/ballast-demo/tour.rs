//! The tour: what a load balancer must do, shown one step after the other.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lb_tests::peers::{Datagrams, Stream};
use lb_tests::topology::NetNs;

use crate::fixture::{DNS, EMPTY, Fixture, TCP_PORT, UDP_PORT, WEB};
use crate::report::Report;

/// Connections that show the spread. With three backends, one that got none would be a chance of 1 in 10^11.
const MANY: usize = 60;
/// A lost SYN is repeated after a second: a refusal that takes longer did not answer the first one.
const AT_ONCE: Duration = Duration::from_secs(1);
/// How often a refusal is timed. The middle counts: on a busy machine single ones are late.
const REFUSALS: usize = 5;
/// A drain that ends later than this does not end. Nothing else is asserted by it: the step says when it ended.
const LATE: Duration = Duration::from_mins(1);

/// The whole tour.
pub fn tour(fixture: &mut Fixture, report: &mut Report) {
    report.step("the agent is ready", || Ok(format!("after {:.1} s", fixture.wait_until_ready()?.as_secs_f64())));
    report.step("the manifest's services are in the tables", || programmed(fixture));
    show(fixture, report, "services");
    show(fixture, report, "backends");
    for (name, netns) in fixture.clients() {
        report.step(&format!("TCP from a {name} is spread over three backends"), || spread(netns, WEB, tcp));
        report.step(&format!("UDP from a {name} is spread over three backends"), || spread(netns, DNS, udp));
    }
    report.step("TCP from outside is spread over three backends", || spread(fixture.outside.netns(), WEB, tcp));
    report.step("a backend sees the client pod's own address", || source_kept(fixture));
    for (name, netns) in fixture.clients() {
        report.step(&format!("a service without endpoints refuses a {name} at once"), || refused(netns));
    }
    drained(fixture, report);
    killed(fixture, report);
    agent_killed(fixture, report);
}

/// Prints a table of `ballast get`, for a person.
fn show(fixture: &Fixture, report: &Report, what: &str) {
    if let Ok(table) = fixture.ballast(&["get", what]) {
        report.say(format_args!("\n$ ballast get {what}\n{table}"));
    }
}

fn programmed(fixture: &Fixture) -> Result<String> {
    let (time, count) = fixture.wait_for("services", "the services web, dns and empty", |items| {
        let of = |name: &str| items.iter().filter(|item| item["name"] == *name).count();
        (of("web") == 1 && of("dns") == 1 && of("empty") == 2).then_some(items.len())
    })?;
    for backend in &fixture.backends {
        fixture.wait_until_active(&backend.name)?;
    }
    Ok(format!("{count} service ports after {:.0} ms", time.as_secs_f64() * 1e3))
}

fn tcp(netns: &NetNs, address: IpAddr) -> Result<String> {
    let mut stream = Stream::connect(netns, SocketAddr::new(address, TCP_PORT))?;
    Ok(stream.ask("hello")?.server)
}

fn udp(netns: &NetNs, address: IpAddr) -> Result<String> {
    let socket = Datagrams::connected(netns, 0, SocketAddr::new(address, UDP_PORT))?;
    Ok(socket.ask("hello")?.server)
}

/// Asks many times over both families; every answer counts, and every backend must have given some.
fn spread(netns: &NetNs, service: [IpAddr; 2], ask: fn(&NetNs, IpAddr) -> Result<String>) -> Result<String> {
    let mut text = Vec::new();
    for address in service {
        let counts = answers(netns, address, MANY, ask)?;
        ensure!(counts.len() == 3, "{address}: only {counts:?} answered");
        text.push(format!("{address} {}", list(&counts)));
    }
    Ok(text.join("; "))
}

fn answers(
    netns: &NetNs,
    address: IpAddr,
    count: usize,
    ask: fn(&NetNs, IpAddr) -> Result<String>,
) -> Result<BTreeMap<String, usize>> {
    let mut counts = BTreeMap::new();
    for number in 0..count {
        let server = ask(netns, address).with_context(|| format!("{address}, number {number}"))?;
        *counts.entry(server).or_insert(0) += 1;
    }
    Ok(counts)
}

fn list(counts: &BTreeMap<String, usize>) -> String {
    let parts: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    parts.join(", ")
}

fn source_kept(fixture: &Fixture) -> Result<String> {
    let mut seen = Vec::new();
    for address in WEB {
        let mut stream = Stream::connect(fixture.client.netns(), SocketAddr::new(address, TCP_PORT))?;
        let peer = stream.ask("who am I")?.peer.ip();
        let own = fixture.client.addresses().like(address);
        ensure!(peer == own, "{address}: the backend saw {peer}, the client is {own}");
        seen.push(peer.to_string());
    }
    Ok(seen.join(", "))
}

/// TCP and UDP, both families: refused, and fast.
fn refused(netns: &NetNs) -> Result<String> {
    let mut slowest = Duration::ZERO;
    for address in EMPTY {
        for protocol in ["TCP", "UDP"] {
            let times = (0..REFUSALS).map(|_| refusal(netns, protocol, address));
            let mut times = times.collect::<Result<Vec<_>>>()?;
            times.sort();
            let middle = times[REFUSALS / 2];
            ensure!(middle < AT_ONCE, "{protocol} to {address}: refused only after {times:?}");
            slowest = slowest.max(middle);
        }
    }
    Ok(format!("TCP and UDP, both families, after {:.2} ms at most", slowest.as_secs_f64() * 1e3))
}

/// How long one refusal took. Any other end is an error.
fn refusal(netns: &NetNs, protocol: &str, address: IpAddr) -> Result<Duration> {
    let started = Instant::now();
    let outcome = if protocol == "TCP" {
        Stream::connect(netns, SocketAddr::new(address, TCP_PORT)).map(drop)
    } else {
        Datagrams::connected(netns, 0, SocketAddr::new(address, UDP_PORT)).and_then(|s| s.ask("hello").map(drop))
    };
    match outcome {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(started.elapsed()),
        Err(error) => bail!("{protocol} to {address}: expected a refusal, got: {error}"),
        Ok(()) => bail!("{protocol} to {address}: expected a refusal, got an answer"),
    }
}

/// A connection of each family that is on this backend.
fn long_connections(fixture: &Fixture, server: &str) -> Result<Vec<Stream>> {
    let mut found = Vec::new();
    for address in WEB {
        for _ in 0..MANY {
            let mut stream = Stream::connect(fixture.client.netns(), SocketAddr::new(address, TCP_PORT))?;
            if stream.ask("hello")?.server == server {
                found.push(stream);
                break;
            }
        }
    }
    ensure!(found.len() == WEB.len(), "no connection to {server} in {MANY} tries");
    Ok(found)
}

fn drained(fixture: &mut Fixture, report: &mut Report) {
    let mut long = Vec::new();
    let mut other = Vec::new();
    report.step("long connections to web-2 and web-1 are open, both families", || {
        long = long_connections(fixture, "web-2")?;
        other = long_connections(fixture, "web-1")?;
        Ok(format!("{} of them", long.len() + other.len()))
    });
    let mut removed = Instant::now();
    report.step("web-2 leaves the manifest: it drains and takes no new connection", || {
        removed = Instant::now();
        fixture.without(&["web-2"])?;
        let time = fixture.wait_until_draining("web-2")?;
        let counts = answers(fixture.client.netns(), WEB[0], MANY, tcp)?;
        ensure!(!counts.contains_key("web-2") && counts.len() == 2, "{}", list(&counts));
        Ok(format!("draining after {:.0} ms; new ones: {}", time.as_secs_f64() * 1e3, list(&counts)))
    });
    show(fixture, report, "backends");
    let period = fixture.setting.drain_period;
    report.step("its long connections go on until the deadline, then get a RST", || {
        let ends = long.drain(..).map(|stream| until_reset(stream, removed, period + LATE));
        let ends = ends.collect::<Result<Vec<Duration>>>()?;
        let (first, last) = (ends.iter().min().copied(), ends.iter().max().copied());
        let (first, last) = first.zip(last).context("no connection was open")?;
        // The deadline counts from the moment the agent read the file; a tenth of a second is the record's precision.
        ensure!(
            first + Duration::from_millis(200) >= period,
            "a connection ended early, after {first:.1?} of {period:?}"
        );
        Ok(format!("reset after {:.1} s; the drain period is {} s", last.as_secs_f64(), period.as_secs()))
    });
    report.step("the long connections to web-1 never noticed", || still_answer(&mut other));
    report.step("web-2 comes back and takes new connections", || {
        fixture.without(&[])?;
        fixture.wait_until_active("web-2")?;
        let counts = answers(fixture.client.netns(), WEB[1], MANY, tcp)?;
        ensure!(counts.contains_key("web-2"), "{}", list(&counts));
        Ok(list(&counts))
    });
}

/// Asks until the connection is reset; returns when, counted from `since`. Any other end is an error.
fn until_reset(mut stream: Stream, since: Instant, limit: Duration) -> Result<Duration> {
    loop {
        match stream.ask("still there?") {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(since.elapsed()),
            Err(error) => bail!("after {:.1?}: expected a RST, got: {error}", since.elapsed()),
        }
        ensure!(since.elapsed() < limit, "still answered after {:.1?}", since.elapsed());
        sleep(Duration::from_millis(50));
    }
}

fn still_answer(streams: &mut [Stream]) -> Result<String> {
    ensure!(!streams.is_empty(), "no connection was open");
    for stream in streams.iter_mut() {
        stream.ask("still there?").context("the connection broke")?;
    }
    Ok(format!("{} of them answered", streams.len()))
}

fn killed(fixture: &mut Fixture, report: &mut Report) {
    report.step("web-3 is killed and leaves the manifest: every new connection works", || {
        fixture.without(&["web-3"])?;
        fixture.wait_until_draining("web-3")?;
        fixture.kill_backend("web-3");
        let mut text = Vec::new();
        for (name, netns) in fixture.clients() {
            for address in WEB {
                let counts = answers(netns, address, MANY, tcp)?;
                ensure!(counts.len() == 2, "{name}: {}", list(&counts));
                text.push(format!("{name} {}", list(&counts)));
            }
        }
        Ok(text.join("; "))
    });
}

fn agent_killed(fixture: &mut Fixture, report: &mut Report) {
    let mut long = Vec::new();
    report.step("the agent is killed: connections go on, new ones work", || {
        long = long_connections(fixture, "web-1")?;
        fixture.kill_agent();
        let told = still_answer(&mut long)?;
        for (_, netns) in fixture.clients() {
            for address in WEB {
                answers(netns, address, MANY, tcp)?;
            }
        }
        let services = fixture.get("services")?.len();
        Ok(format!("{told}; {} new ones; `ballast get` still lists {services} service ports", 4 * MANY))
    });
    report.step("a new agent takes over: the same connections go on", || {
        fixture.start_agent()?;
        fixture.wait_until_ready()?;
        fixture.without(&["web-3", "web-2"])?;
        let time = fixture.wait_until_draining("web-2")?;
        fixture.without(&["web-3"])?;
        fixture.wait_until_active("web-2")?;
        Ok(format!("it followed the manifest after {:.0} ms; {}", time.as_secs_f64() * 1e3, still_answer(&mut long)?))
    });
}
