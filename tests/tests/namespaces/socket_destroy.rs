//! Sockets of host processes end when their backend is gone: no program sees their packets, so the agent has the kernel do it.

use lb_common::map;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lb_tables::Pinned;
use lb_tests::agent::{Agent, Endpoint, Manifest, Protocol, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Datagrams, Stream, eventually, mapped};
use lb_tests::topology::{NetNs, NodeOptions};

/// After so many datagrams of a socket that was ended one has arrived at a live backend, once the event is in the tables. The agent ends the socket
/// right after it wrote them: the rest, 2 s, is for a busy machine.
const MOVED: u32 = 100;

fn destroyed(agent: &Agent, protocol: &str) -> u64 {
    let report = agent.json(&["status"]).unwrap();
    assert_eq!(report["agent"]["sockets"]["failures"], 0, "{report}");
    assert!(report["agent"]["sockets"]["problem"].is_null(), "{report}");
    report["agent"]["sockets"]["destroyed"][protocol].as_u64().unwrap()
}

/// Connections to a server of this name by the service, as many as asked for.
fn connections(netns: &NetNs, to: SocketAddr, server: &str, count: usize) -> Vec<Stream> {
    let mut held = Vec::new();
    while held.len() < count {
        let mut stream = Stream::connect(netns, to).unwrap();
        if stream.ask("who").unwrap().server == server {
            held.push(stream);
        }
    }
    held
}

/// A connected socket to this server, from this port (0: any).
fn datagrams(netns: &NetNs, port: u16, to: SocketAddr, server: &str) -> Datagrams {
    loop {
        let socket = Datagrams::connected(netns, port, to).unwrap();
        if socket.ask("who").unwrap().server == server {
            return socket;
        }
    }
}

/// The agent counts them after it has ended the last one.
fn all_are_counted(agent: &Agent, protocol: &str, count: u64) {
    eventually("all that were ended are counted", SOON, || (destroyed(agent, protocol) == count).then_some(()));
}

fn aborted(stream: &mut Stream) -> Option<()> {
    let error = stream.ask("still").err()?;
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
    Some(())
}

#[test]
fn connections_of_host_processes_end_at_the_deadline_and_no_others() {
    const PERIOD: Duration = Duration::from_secs(8);
    let fixture = Fixture::new("ends", Pods::Routed, 2, NodeOptions::default());
    let service = fixture.web();
    let agent = fixture.agent(&Manifest::of([service.clone()]), &["--drain-period=8s", "--drain-max=0s"]);
    let host = fixture.node.netns();
    let frontends = service.frontends(Protocol::Tcp);
    let asked = [frontends[0], frontends[1], mapped(frontends[0])];
    let mut ending: Vec<_> = asked.iter().flat_map(|to| connections(host, *to, "b1", 2)).collect();
    let mut staying: Vec<_> = asked.iter().flat_map(|to| connections(host, *to, "b0", 1)).collect();
    // Somebody who talks to the same address without the service.
    let direct = fixture.backends[1].addresses().both().map(|address| SocketAddr::new(address, 8080));
    staying.extend(direct.map(|to| Stream::connect(host, to).unwrap()));
    let began = Instant::now();
    agent.apply(&Manifest::of([Service::web(fixture.endpoints()[..1].to_vec())])).unwrap();
    // On a slow machine the period may be over by now.
    if began.elapsed() + Duration::from_secs(3) < PERIOD {
        for stream in &mut ending {
            assert_eq!(stream.ask("draining").unwrap().server, "b1");
        }
        assert_eq!(destroyed(&agent, "tcp"), 0, "not before the deadline");
    }
    for stream in &mut ending {
        eventually("a connection ends", SOON, || aborted(stream));
    }
    for stream in &mut staying {
        stream.ask("after").unwrap();
    }
    assert!(began.elapsed() >= PERIOD, "not before the deadline: {:?}", began.elapsed());
    all_are_counted(&agent, "tcp", ending.len() as u64);
    let metrics = agent.metrics().unwrap();
    let line = format!("ballast_sockets_destroyed_total{{protocol=\"tcp\"}} {}", ending.len());
    assert!(metrics.contains(&line), "{line} is not in {metrics}");
    // Only those that live have entries: no socket keeps the backend's id from being used again.
    let maps = Pinned::open(&agent.bpffs().join("ballast/tables")).unwrap();
    assert_eq!(
        maps.of::<map::Sockets<4>>().read().unwrap().len() + maps.of::<map::Sockets<16>>().read().unwrap().len(),
        asked.len()
    );
}

/// Past the drain period the agent ends what the backend leaves unanswered for 15 s, found in a round of 5 s; all others at the eviction deadline.
#[test]
fn past_the_drain_period_connections_that_are_answered_go_on_until_the_longest_drain() {
    const ANSWER: Duration = Duration::from_secs(15);
    const MAX: Duration = Duration::from_secs(32);
    let fixture = Fixture::new("hostlong", Pods::Routed, 3, NodeOptions::default());
    let service = fixture.web();
    let agent = fixture.agent(&Manifest::of([service.clone()]), &["--drain-period=2s", "--drain-max=32s"]);
    let each = |server| {
        let to = service.frontends(Protocol::Tcp);
        to.into_iter().flat_map(|to| connections(fixture.node.netns(), to, server, 1)).collect::<Vec<_>>()
    };
    let (mut talking, mut idle, mut dead) = (each("b1"), each("b1"), each("b2"));
    let began = Instant::now();
    agent.apply(&Manifest::of([Service::web(fixture.endpoints()[..1].to_vec())])).unwrap();
    fixture.backends[2].namespace().ip("link set eth0 down").unwrap();
    let asked = Instant::now();
    for stream in &mut dead {
        stream.say("anybody").unwrap();
    }
    while destroyed(&agent, "tcp") < dead.len() as u64 {
        assert!(began.elapsed() < MAX, "the dead backend's connections end before the longest drain");
        for stream in &mut talking {
            assert_eq!(stream.ask("still").unwrap().server, "b1");
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(asked.elapsed() >= ANSWER, "not before its time: {:?}", asked.elapsed());
    for stream in &mut dead {
        assert_eq!(stream.read_line().expect_err("it is ended").kind(), ErrorKind::ConnectionAborted);
    }
    if began.elapsed() + Duration::from_secs(2) < MAX {
        for stream in talking.iter_mut().chain(&mut idle) {
            assert_eq!(stream.ask("after a long silence").unwrap().server, "b1");
        }
    }
    for stream in talking.iter_mut().chain(&mut idle) {
        eventually("the longest drain ends it", SOON, || {
            std::thread::sleep(Duration::from_millis(200));
            aborted(stream)
        });
    }
    assert!(began.elapsed() + Duration::from_secs(1) >= MAX, "{:?}", began.elapsed());
    all_are_counted(&agent, "tcp", (talking.len() + idle.len() + dead.len()) as u64);
}

#[test]
fn sockets_are_ended_at_once_where_their_backend_is_another_pod_or_gone() {
    let fixture = Fixture::new("atonce", Pods::Routed, 2, NodeOptions::default());
    let mut agent = fixture.agent(&Manifest::of([fixture.web()]), &[]);
    a_connected_udp_sender_is_told_at_once_and_finds_another_backend_from_the_same_port(&fixture, &agent);
    a_udp_socket_that_waits_for_an_answer_is_woken(&fixture, &agent);
    an_address_that_comes_back_as_another_pod_ends_the_connections_to_the_old_one(&fixture, &agent);
    let service = fixture.web();
    agent.apply(&Manifest::of([service.clone()])).unwrap();
    agent.restart_with(&fixture.node, &["--drain-period=1s", "--drain-max=0s"]).unwrap();
    an_idle_unconnected_socket_holds_no_backend_that_is_gone(&fixture, &agent);
    agent.apply(&Manifest::of([service])).unwrap();
    a_deadline_that_passed_while_no_agent_ran_is_made_up_for(&fixture, &mut agent);
}

fn an_address_that_comes_back_as_another_pod_ends_the_connections_to_the_old_one(fixture: &Fixture, agent: &Agent) {
    let endpoint = fixture.endpoints().remove(0);
    let first = Service::web(vec![endpoint.clone().pod("aaaa")]);
    agent.apply(&Manifest::of([first.clone()])).unwrap();
    let host = fixture.node.netns();
    let mut old: Vec<_> =
        first.frontends(Protocol::Tcp).into_iter().map(|to| Stream::connect(host, to).unwrap()).collect();
    agent.write(&Manifest::of([Service::web(vec![endpoint.pod("bbbb")])])).unwrap();
    for stream in &mut old {
        eventually("the old connection ends", SOON, || aborted(stream));
    }
    for to in first.frontends(Protocol::Tcp) {
        Stream::connect(host, to).unwrap().ask("new").unwrap();
    }
}

fn a_deadline_that_passed_while_no_agent_ran_is_made_up_for(fixture: &Fixture, agent: &mut Agent) {
    let to = fixture.web().frontends(Protocol::Tcp)[0];
    let mut held = connections(fixture.node.netns(), to, "b1", 1).remove(0);
    agent.apply(&Manifest::of([Service::web(fixture.endpoints()[..1].to_vec())])).unwrap();
    agent.kill();
    agent.restart().unwrap();
    eventually("the connection ends", SOON, || aborted(&mut held));
}

fn a_connected_udp_sender_is_told_at_once_and_finds_another_backend_from_the_same_port(
    fixture: &Fixture,
    agent: &Agent,
) {
    const PORT: u16 = 45_353;
    let service = fixture.web();
    let host = fixture.node.netns();
    let frontends = service.frontends(Protocol::Udp);
    for (round, to) in [frontends[0], frontends[1], mapped(frontends[0])].into_iter().enumerate() {
        agent.apply(&Manifest::of([service.clone()])).unwrap();
        let mut sender = datagrams(host, PORT, to, "b1");
        // One that names its peer each time moves by itself, and is not ended.
        let unconnected = Datagrams::unconnected(host, 0, to).unwrap();
        unconnected.ask_at(to, "before").unwrap();
        let other = datagrams(host, 0, to, "b0");
        let [left, gone] = [fixture.endpoints().remove(0), Endpoint::unready(fixture.backends[1].addresses())];
        agent.apply(&Manifest::of([Service::web(vec![left, gone])])).unwrap();
        let mut sent = 0;
        let received = || -> u32 { fixture.servers[0].iter().map(lb_tests::peers::Server::answers).sum() };
        let before = received();
        // It only sends, and looks at nothing but what its own calls return.
        eventually("datagrams arrive at a live backend", SOON, || {
            sent += 1;
            if let Err(error) = sender.send_at(to, "one way") {
                // The socket has no peer any more; a call that was under way may tell that it was aborted.
                let told = error.raw_os_error();
                assert!(matches!(told, Some(libc::EDESTADDRREQ | libc::ECONNABORTED)), "round {round}: {error}");
                sender = Datagrams::connected(host, PORT, to).unwrap();
            }
            (received() > before).then_some(())
        });
        assert!(sent <= MOVED, "{to}: a live backend heard of the sender after {sent} datagrams");
        assert_eq!(sender.ask("and back").unwrap().server, "b0");
        assert_eq!(unconnected.ask_at(to, "after").unwrap().server, "b0");
        assert_eq!(other.ask("after").unwrap().server, "b0");
        all_are_counted(agent, "udp", round as u64 + 1);
    }
}

fn an_idle_unconnected_socket_holds_no_backend_that_is_gone(fixture: &Fixture, agent: &Agent) {
    let maps = Pinned::open(&agent.bpffs().join("ballast/tables")).unwrap();
    eventually("earlier sockets have no entries", SOON, || {
        maps.of::<map::Sockets<4>>().read().unwrap().is_empty().then_some(())
    });
    let to = fixture.web().frontends(Protocol::Udp)[0];
    let sockets: Vec<_> = (0..8).map(|_| Datagrams::unconnected(fixture.node.netns(), 0, to).unwrap()).collect();
    let servers: Vec<_> = sockets.iter().map(|socket| socket.ask_at(to, "before").unwrap().server).collect();
    agent.apply(&Manifest::of([Service::web(fixture.endpoints()[..1].to_vec())])).unwrap();
    let live = 2 * servers.iter().filter(|server| *server == "b0").count();
    eventually("the entries of the others are gone", SOON, || {
        (maps.of::<map::Sockets<4>>().read().unwrap().len() == live).then_some(())
    });
    for socket in &sockets {
        assert_eq!(socket.ask_at(to, "after").unwrap().server, "b0");
    }
    assert_eq!(destroyed(agent, "udp"), 0, "no unconnected socket is destroyed");
}

fn a_udp_socket_that_waits_for_an_answer_is_woken(fixture: &Fixture, agent: &Agent) {
    let service = fixture.web();
    for to in service.frontends(Protocol::Udp) {
        agent.apply(&Manifest::of([service.clone()])).unwrap();
        let socket = datagrams(fixture.node.netns(), 0, to, "b0");
        agent.apply(&Manifest::of([Service::web(vec![])])).unwrap();
        socket.set_patience(SOON).unwrap();
        assert_eq!(socket.receive().unwrap_err().kind(), ErrorKind::ConnectionAborted);
    }
}

#[test]
fn with_all_processes_served_the_sockets_of_pods_end_too() {
    let options = NodeOptions { rp_filter: 2, ..NodeOptions::default() };
    let fixture = Fixture::new("everywhere", Pods::Routed, 2, options);
    let service = fixture.web();
    let agent =
        fixture.agent(&Manifest::of([service.clone()]), &["--socket-lb", "all", "--drain-period=2s", "--drain-max=0s"]);
    let pod = fixture.client.netns().clone().in_cgroup(fixture.node.cgroup());
    // A namespace is found by a process in it.
    let mut process = pod.start(std::process::Command::new("sleep").arg("600")).unwrap();
    let mut held = Vec::new();
    for netns in [&pod, fixture.node.netns()] {
        for to in service.frontends(Protocol::Tcp) {
            held.extend(connections(netns, to, "b1", 1));
        }
    }
    agent.apply(&Manifest::of([Service::web(fixture.endpoints()[..1].to_vec())])).unwrap();
    for stream in &mut held {
        eventually("a connection ends", SOON, || aborted(stream));
    }
    all_are_counted(&agent, "tcp", held.len() as u64);
    process.kill().unwrap();
    process.wait().unwrap();
}
