//! `ballast monitor` prints what becomes of packets, and ends as a command in a pipe should. Needs root and BPF.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, SocketAddrV4};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, channel};

use lb_tests::agent::{Agent, Manifest, Protocol, SOON};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::raw_tcp::Flood;
use lb_tests::peers::{Stream, eventually};
use lb_tests::topology::NodeOptions;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// Readers that an agent has at most.
const READERS: usize = 4;

/// A `ballast monitor`, and its lines as they come.
struct Monitor {
    child: Child,
    lines: Receiver<String>,
}

impl Monitor {
    fn start(agent: &Agent, arguments: &[&str]) -> Self {
        let mut child = agent.start_cli(&[&["monitor"], arguments].concat()).unwrap();
        let (output, (to, lines)) = (child.stdout.take().unwrap(), channel());
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = String::new();
            while output.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
                if to.send(std::mem::take(&mut line)).is_err() {
                    // Its pipe is closed.
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// One that prints a table: after the header it misses nothing.
    fn table(agent: &Agent, filters: &[&str]) -> Self {
        let mut monitor = Self::start(agent, filters);
        let header = monitor.line();
        assert!(header.starts_with("TIME ") && header.contains(" CLIENT "), "{header}");
        monitor
    }

    fn line(&mut self) -> String {
        match self.lines.recv_timeout(SOON) {
            Ok(line) if line.ends_with('\n') => line,
            other => panic!("no line, but {other:?}; {:?}", self.ended()),
        }
    }

    /// The exit code, and what it said on standard error.
    fn ended(&mut self) -> (Option<i32>, String) {
        let status = eventually("the monitor ends", SOON, || self.child.try_wait().unwrap());
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (status.code(), errors)
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Connects to what refuses, from a new port. The client's address.
fn refused(fixture: &Fixture, to: SocketAddr) -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(23_000);
    let from = NEXT.fetch_add(1, Ordering::Relaxed);
    Stream::connect_from(fixture.client.netns(), from, to, SOON).expect_err("it is refused");
    SocketAddr::new(fixture.client.addresses().like(to.ip()), from)
}

#[test]
fn a_refusal_is_shown_with_its_service_and_its_client() {
    let fixture = Fixture::new("monitor", Pods::Routed, 1, NodeOptions::default());
    let empty = fixture.empty();
    let agent = fixture.agent(&Manifest::of([fixture.web(), empty.clone()]), &[]);
    let frontends = empty.frontends(Protocol::Tcp);
    let mut of_service = Monitor::table(&agent, &["--service", "test/empty"]);
    let mut of_outcome = Monitor::table(&agent, &["--outcome", "refused_unserved,retried"]);
    for to in &frontends {
        // A port that is no service's comes first, and is for the other monitor.
        let unserved = refused(&fixture, SocketAddr::new(to.ip(), 81));
        let client = refused(&fixture, *to);
        let line = of_service.line();
        for shown in ["refused_no_endpoint", "pod_in", "test/empty:80", &format!("TCP {client} → {to}")] {
            assert!(line.contains(shown), "{shown}: {line}");
        }
        let line = of_outcome.line();
        assert!(line.contains("refused_unserved") && line.contains(&unserved.to_string()), "{line}");
    }
    for to in frontends {
        let client = fixture.client.addresses().like(to.ip()).to_string();
        let of_client = Monitor::start(&agent, &["-o", "json", "--client", &client]);
        let mut sent = Vec::new();
        let line = eventually("the monitor has begun", SOON, || {
            sent.push(refused(&fixture, to));
            of_client.lines.try_recv().ok()
        });
        let event: Value = serde_json::from_str(&line).unwrap();
        let source = sent.iter().find(|source| event["clientPort"] == source.port()).unwrap();
        let expected = json!({
            "time": event["time"], "outcome": "refused_no_endpoint", "hook": "pod_in", "interface": event["interface"],
            "namespace": "test", "service": "empty", "servicePort": 80,
            "clientAddress": client, "clientPort": source.port(), "backendAddress": null, "backendPort": null,
            "protocol": "TCP", "source": source.to_string(), "destination": to.to_string(),
        });
        assert_eq!(event, expected);
        assert!(event["interface"].is_string() && event["time"].as_str().unwrap().ends_with('Z'), "{event}");
    }
}

#[test]
fn a_backend_that_refuses_is_shown_with_its_address() {
    let mut fixture = Fixture::new("monback", Pods::Routed, 2, NodeOptions::default());
    // Each backend in its turn: the second connection, if not the first, meets the one that refuses.
    let web = fixture.web().annotated("scheduler", "round-robin");
    let agent = fixture.agent(&Manifest::of([web.clone()]), &[]);
    fixture.servers[0].clear();
    for to in web.frontends(Protocol::Tcp) {
        let backend = SocketAddr::new(fixture.backends[0].addresses().like(to.ip()), 8080).to_string();
        let other = fixture.backends[1].addresses().like(to.ip()).to_string();
        let mut monitor = Monitor::table(&agent, &["--backend", &backend, "--outcome", "suppressed_refusal"]);
        let mut quiet = Monitor::table(&agent, &["--backend", &other, "--outcome", "suppressed_refusal"]);
        let mut clients = Vec::new();
        for _ in 0..2 {
            let stream = Stream::connect(fixture.client.netns(), to).unwrap();
            clients.push(stream.local().unwrap().to_string());
        }
        let line = monitor.line();
        assert!(line.contains("suppressed_refusal") && line.contains("test/web:80"), "{line}");
        assert!(clients.iter().any(|client| line.contains(&format!("{client}  "))), "{clients:?}: {line}");
        assert!(line.contains(&format!("TCP {backend} → ")), "{line}");
        quiet.signal(Signal::SIGINT);
        assert_eq!(quiet.ended(), (Some(0), String::new()));
        assert!(quiet.lines.recv().is_err(), "the other backend refused nothing");
    }
}

#[test]
fn a_monitor_ends_with_its_reader_its_agent_or_a_signal() {
    let fixture = Fixture::new("monend", Pods::Routed, 1, NodeOptions::default());
    let mut agent = fixture.agent(&Manifest::of([fixture.web()]), &[]);
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut monitor = Monitor::table(&agent, &[]);
        monitor.signal(signal);
        assert_eq!(monitor.ended(), (Some(0), String::new()), "{signal}");
    }
    // As in `ballast monitor | head -1`, without an event that could not be written.
    let mut child = agent.start_cli(&["monitor"]).unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut String::new()).unwrap();
    drop(output);
    let status = eventually("it ends with its reader", SOON, || child.try_wait().unwrap());
    assert!(status.success(), "{status}");

    let mut monitors: Vec<Monitor> = (0..READERS)
        .map(|_| {
            // The place of the one before is free within a second or so.
            eventually("there is a place", SOON, || {
                let monitor = Monitor::start(&agent, &[]);
                monitor.lines.recv_timeout(SOON).ok().map(|_| monitor)
            })
        })
        .collect();
    let (code, errors) = Monitor::start(&agent, &[]).ended();
    assert_eq!(code, Some(2));
    assert!(errors.contains("4 readers of events"), "{errors}");
    assert!(agent.json(&["status"]).unwrap()["agent"].is_object(), "other questions are answered");

    agent.kill();
    for monitor in &mut monitors {
        let (code, errors) = monitor.ended();
        assert_eq!(code, Some(2));
        assert!(errors.contains("the agent has ended"), "{errors}");
    }
    let (code, errors) = Monitor::start(&agent, &[]).ended();
    assert_eq!(code, Some(2));
    assert!(errors.contains("no agent is running"), "{errors}");
}

/// Events that are more than what the agent keeps for a reader (1,024), with what the reader's socket takes.
const FLOOD: f64 = 2_000.0;

#[test]
fn a_reader_that_stops_holds_up_nobody_and_gets_the_number_of_lost_events() {
    let fixture = Fixture::new("monslow", Pods::Routed, 1, NodeOptions::default());
    let (attacker, web, empty) = (fixture.pod("attacker"), fixture.web(), fixture.empty());
    let agent = fixture.agent(&Manifest::of([web.clone(), empty.clone()]), &[]);
    let nowhere = empty.frontends(Protocol::Tcp)[0];
    let mut stopped = Monitor::start(&agent, &["-o", "json"]);
    let mut quick = Monitor::table(&agent, &["--service", "test/empty"]);
    eventually("the monitor has begun", SOON, || {
        refused(&fixture, nowhere);
        stopped.lines.try_recv().ok()
    });
    stopped.signal(Signal::SIGSTOP);
    let (stop, from) = (Arc::new(AtomicBool::new(false)), attacker.addresses().v4);
    let (ends, closed) = (Arc::clone(&stop), SocketAddrV4::new(web.cluster_ips.v4, 81));
    let flooding = attacker.netns().spawn(move || {
        let flood = Flood::new().unwrap();
        (0..u32::MAX).take_while(|_| !ends.load(Ordering::Relaxed)).for_each(|number| flood.syn(from, number, closed));
    });
    eventually("the agent reads the events", SOON, || {
        let read = agent.metric("ballast_events_total", "outcome=\"refused_unserved\"");
        (read.unwrap_or_default() >= FLOOD).then_some(())
    });
    stop.store(true, Ordering::Relaxed);
    flooding.join().unwrap();
    let latest = refused(&fixture, nowhere).to_string();
    while !quick.line().contains(&latest) {}
    stopped.signal(Signal::SIGCONT);
    let mut lost: BTreeMap<String, u64> = BTreeMap::new();
    let mut is_latest_seen = false;
    // The programs are asked once a second for what they did not write.
    while !is_latest_seen || lost.len() < 2 {
        let line: Value = serde_json::from_str(&stopped.line()).unwrap();
        is_latest_seen |= line["source"] == latest;
        if let Some(number) = line["lost"].as_u64() {
            *lost.entry(line["reason"].as_str().unwrap().to_owned()).or_default() += number;
        }
    }
    println!("{lost:?}");
    assert!(lost["slow-reader"] > 0 && lost["not-written"] > 0, "{lost:?}");
}
