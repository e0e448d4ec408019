//! What health-check node ports answer: as services, nodes and the agent itself come and go. Needs root and BPF.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use lb_tests::agent::{Agent, SOON};
use lb_tests::peers::{Stream, eventually};
use lb_tests::routed::XdpPass;
use lb_tests::topology::{NetNs, Node, NodeOptions};
use serde_json::{Value, json};

use lb_tests::fixture::health_check_port::manifest;
use lb_tests::fixture::{Fixture, Pods};

const CHECK_PORT: u16 = 32_100;

/// Status, weight and body of a health-check node port.
fn check(node: &Node, port: u16) -> Option<(u16, String, Value)> {
    let at = SocketAddr::new(node.addresses().v4.into(), port);
    let text = node.netns().run(|| -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&at, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    });
    let text = text.ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let header = |line: &str| Some(line.to_lowercase().strip_prefix("x-load-balancing-endpoint-weight: ")?.to_owned());
    let weight = head.lines().find_map(header)?;
    Some((head.split(' ').nth(1)?.parse().ok()?, weight, serde_json::from_str(body).ok()?))
}

fn answers(node: &Node, port: u16, code: u16, weight: &str) {
    let mut last = None;
    let what = format!("health-check node port {port} says {code} with weight {weight}");
    eventually(&what, SOON, || {
        last = check(node, port);
        last.as_ref().filter(|(found, count, _)| *found == code && count == weight).map(|_| ())
    });
}

#[test]
fn health_check_node_ports_follow_services_nodes_and_restarts() -> Result<()> {
    let fixture = Fixture::new("health-check", Pods::Routed, 0, NodeOptions::default());
    let (node, here) = (&fixture.node, fixture.node.node_name());
    let mut agent = Agent::prepare(node, &[])?;
    let two = [("10.1.0.2", here.as_str(), true), ("10.1.0.3", here.as_str(), true), ("10.1.0.4", "elsewhere", true)];
    agent.write_text(&manifest(node, CHECK_PORT, &two, false))?;
    agent.restart()?;
    answers(node, CHECK_PORT, 200, "2");
    let (_, _, body) = check(node, CHECK_PORT).context("an answer")?;
    let expected = json!({
        "service": {"namespace": "demo", "name": "web"}, "localEndpoints": 2, "serviceProxyHealthy": true,
    });
    assert_eq!(body, expected);

    let unready = [("10.1.0.2", here.as_str(), false), ("10.1.0.4", "elsewhere", true)];
    agent.write_text(&manifest(node, CHECK_PORT, &unready, false))?;
    answers(node, CHECK_PORT, 503, "0");
    agent.write_text(&manifest(node, CHECK_PORT + 1, &two, false))?;
    answers(node, CHECK_PORT + 1, 200, "2");
    assert!(check(node, CHECK_PORT).is_none(), "the old port is closed");

    agent.kill();
    assert!(check(node, CHECK_PORT + 1).is_none());
    agent.restart()?;
    answers(node, CHECK_PORT + 1, 200, "2");

    agent.write_text(&manifest(node, CHECK_PORT + 1, &two, true))?;
    let (code, body) =
        eventually("/healthz fails", SOON, || agent.health("/healthz").ok().filter(|(code, _)| *code == 503));
    assert!(body.contains(r#""nodeEligible":false"#) && body.contains(r#""healthy":true"#), "{code} {body}");
    answers(node, CHECK_PORT + 1, 200, "2");
    assert_eq!(agent.health("/livez")?.0, 200);
    Ok(())
}

#[test]
fn a_health_check_node_port_in_use_is_told_and_opened_when_it_is_free() -> Result<()> {
    let fixture = Fixture::new("health-taken", Pods::Routed, 0, NodeOptions::default());
    let (node, here) = (&fixture.node, fixture.node.node_name());
    let taken = node.netns().run(|| std::net::TcpListener::bind(("0.0.0.0", CHECK_PORT)))?;
    let mut agent = Agent::prepare(node, &[])?;
    agent.write_text(&manifest(node, CHECK_PORT, &[("10.1.0.2", &here, true)], false))?;
    agent.restart()?;
    let problem = || {
        let status = agent.json(&["status"]).ok()?;
        status["agent"]["tables"]["healthChecks"][CHECK_PORT.to_string()]["problem"].as_str().map(str::to_owned)
    };
    let told = eventually("the port is told", SOON, problem);
    assert!(told.contains("demo/web") && told.contains("32100"), "{told}");
    let metrics = agent.metrics()?;
    assert!(metrics.lines().any(|line| line.trim_end_matches(".0") == "ballast_health_check_problems 1"), "{metrics}");
    assert_eq!(agent.health("/healthz")?.0, 200, "one service's port is not the node's fault");
    drop(taken);
    answers(node, CHECK_PORT, 200, "1");
    assert!(problem().is_none());
    Ok(())
}

/// The packets are tc's then, and no load balancer has a reason to take the node out.
#[test]
fn somebody_elses_xdp_program_fails_no_check_and_is_named() -> Result<()> {
    let fixture = Fixture::new("health-xdp", Pods::Routed, 1, NodeOptions::default());
    let (node, here) = (&fixture.node, fixture.node.node_name());
    let outside = fixture.topology.outside("client", node)?;
    let _theirs = XdpPass::attach(node.namespace(), "eth0")?;
    let mut agent = Agent::prepare(node, &["--xdp-mode=native"])?;
    let backend = fixture.backends[0].addresses().v4.to_string();
    agent.write_text(&manifest(node, CHECK_PORT, &[(&backend, &here, true)], false))?;
    agent.launch()?;
    eventually("status names what is in the way", SOON, || {
        let status = String::from_utf8(agent.cli(&["status"]).ok()?.stdout).ok()?;
        let parts = ["eth0 by tc", "eth0 (xdp)", "another program is attached there"];
        parts.iter().all(|part| status.contains(part)).then_some(())
    });
    answers(node, CHECK_PORT, 200, "1");
    for probe in ["/healthz", "/readyz"] {
        assert_eq!(agent.health(probe)?.0, 200, "{probe}");
    }
    let node_port = SocketAddr::new(node.addresses().v4.into(), 30_080);
    Stream::connect(outside.netns(), node_port)?.ask("by tc")?;
    Ok(())
}

/// Asks the port all the time, until told to end; the longest time between two answers. Nothing else is ever answered.
fn longest_silence(node: &Node, ends: &AtomicBool, code: u16, weight: &str) -> Duration {
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    while !ends.load(Ordering::Relaxed) {
        if let Some((found, count, _)) = check(node, CHECK_PORT) {
            assert_eq!((found, count.as_str()), (code, weight), "a restart makes no other answer");
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    longest.max(last.elapsed())
}

/// The longest silence of the port while `restart` goes on.
fn silence_during(node: &Node, restart: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| longest_silence(node, &ends, 200, "2"));
        let restarted = restart();
        ends.store(true, Ordering::Relaxed);
        let silence = asker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        restarted.map(|()| silence)
    })
}

#[test]
fn a_restart_costs_a_bounded_silence_and_no_wrong_answer() -> Result<()> {
    let fixture = Fixture::new("health-gap", Pods::Routed, 0, NodeOptions::default());
    let (node, here) = (&fixture.node, fixture.node.node_name());
    let mut agent = Agent::prepare(node, &[])?;
    let two = [("10.1.0.2", here.as_str(), true), ("10.1.0.3", here.as_str(), true)];
    agent.write_text(&manifest(node, CHECK_PORT, &two, false))?;
    agent.restart()?;
    answers(node, CHECK_PORT, 200, "2");
    let killed = silence_during(node, || {
        agent.kill();
        agent.restart()?;
        answers(node, CHECK_PORT, 200, "2");
        Ok(())
    })?;
    let replaced = silence_during(node, || {
        agent.stop()?;
        agent.restart()?;
        answers(node, CHECK_PORT, 200, "2");
        Ok(())
    })?;
    assert!(killed < SOON && replaced < SOON, "silent for {killed:?} over SIGKILL, {replaced:?} over SIGTERM");
    Ok(())
}

#[test]
fn an_agent_whose_source_is_silent_answers_as_the_one_before_it() -> Result<()> {
    let fixture = Fixture::new("health-mute", Pods::Routed, 0, NodeOptions::default());
    let (node, here) = (&fixture.node, fixture.node.node_name());
    let mut agent = Agent::prepare(node, &[])?;
    let one = [("10.1.0.2", here.as_str(), true)];
    agent.write_text(&manifest(node, CHECK_PORT, &one, false))?;
    agent.restart()?;
    answers(node, CHECK_PORT, 200, "1");
    agent.kill();
    agent.write_text("kind: Service\n  name: [\n")?;
    agent.launch()?;
    answers(node, CHECK_PORT, 200, "1");
    // It knows no more than the one before, and follows as soon as it does.
    agent.write_text(&manifest(node, CHECK_PORT, &[], false))?;
    answers(node, CHECK_PORT, 503, "0");
    agent.write_text(&manifest(node, CHECK_PORT + 1, &one, false))?;
    answers(node, CHECK_PORT + 1, 200, "1");
    assert!(check(node, CHECK_PORT).is_none(), "the old port is closed");
    Ok(())
}

const HEALTH_PORT: u16 = 10_256;
const METRICS_PORT: u16 = 10_249;
/// Many more than the agent admits.
const SLOW_CLIENTS: usize = 400;

/// Connections that send half a header and wait. A connection that the agent closes meanwhile is no error.
fn slow_clients(netns: &NetNs, to: SocketAddr) -> Vec<TcpStream> {
    netns.run(|| {
        let connect = |_| {
            let mut stream = TcpStream::connect_timeout(&to, SOON).expect("the agent accepts connections");
            let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: no");
            stream
        };
        (0..SLOW_CLIENTS).map(connect).collect()
    })
}

/// Body of an answer to a client at this place.
fn body(netns: &NetNs, to: SocketAddr, path: &str) -> Result<String> {
    let text = netns.run(|| -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&to, SOON)?;
        stream.set_read_timeout(Some(SOON))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    })?;
    Ok(text.split_once("\r\n\r\n").with_context(|| format!("no answer at {to}: {text:?}"))?.1.to_owned())
}

#[test]
fn clients_that_never_finish_a_request_hold_up_no_other() -> Result<()> {
    let fixture = Fixture::new("health-slow", Pods::Routed, 0, NodeOptions::default());
    let (node, here, pod) = (&fixture.node, fixture.node.node_name(), fixture.client.netns());
    let mut agent = Agent::prepare(node, &["--health-bind=[::]:10256"])?;
    agent.write_text(&manifest(node, CHECK_PORT, &[("10.1.0.2", &here, true)], false))?;
    agent.restart()?;
    answers(node, CHECK_PORT, 200, "1");
    let descriptors =
        || -> Result<usize> { Ok(std::fs::read_dir(format!("/proc/{}/fd", agent.pid().context("it runs")?))?.count()) };
    let before = descriptors()?;

    let (local, address) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from(node.addresses().v4));
    let mut held = Vec::new();
    for (netns, at, port) in [
        (node.netns(), local, HEALTH_PORT),
        (node.netns(), local, METRICS_PORT),
        (node.netns(), local, CHECK_PORT),
        (pod, address, HEALTH_PORT),
        (pod, address, CHECK_PORT),
    ] {
        held.push(slow_clients(netns, SocketAddr::new(at, port)));
        assert_eq!(agent.health("/healthz")?.0, 200);
        assert!(agent.metrics()?.contains("ballast_healthy 1"));
        let (code, ..) = check(node, CHECK_PORT).context("the port answers")?;
        assert_eq!(code, 200);
        assert!(body(pod, SocketAddr::new(address, HEALTH_PORT), "/healthz")?.contains("nodeEligible"));
    }
    let (open, clients) = (descriptors()?.saturating_sub(before), held.iter().map(Vec::len).sum::<usize>());
    assert!(open < clients / 3, "{open} of {clients} connections are held open");

    // A source that cannot be read: where it is and why is the administrators' business.
    agent.write_text("kind: Service\n  name: [\n")?;
    eventually("not ready", SOON, || (agent.health("/readyz").ok()?.0 == 503).then_some(()));
    let (own, public) = (agent.health("/readyz")?.1, body(pod, SocketAddr::new(address, HEALTH_PORT), "/readyz")?);
    assert!(own.contains("manifest"), "{own}");
    assert!(public.contains("the source is stale\""), "{public}");
    Ok(())
}
