//! The drain period ends the connections that their backend leaves unanswered, and no others: those go on until `--drain-max`.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lb_tests::agent::{Agent, Manifest, Protocol, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Server, Stream, eventually};
use lb_tests::topology::{Namespace, NodeOptions};

const PERIOD: Duration = Duration::from_secs(2);
/// A client's segment may stay unanswered for so long.
const ANSWER: Duration = Duration::from_secs(15);

/// When a client's next segment has come after [`ANSWER`], and the longest drain.
#[derive(Clone, Copy)]
struct Limits {
    next_segment: Duration,
    max: Duration,
}

impl Limits {
    /// From Linux 6.15 on, a client's TCP can be told to send again every two seconds. Before, it sends 12.6 s and 25.4 s after the first time, if that
    /// was 0.2 s before the second. The longest drain lies well after that: a busy machine is late.
    fn of(client: &Namespace) -> Self {
        let is_quick = client.sysctl("net/ipv4/tcp_rto_max_ms", "2000").is_ok();
        let (next_segment, max) = if is_quick { (20, 34) } else { (28, 40) };
        Self { next_segment: Duration::from_secs(next_segment), max: Duration::from_secs(max) }
    }
}

/// A connection to the server of this name.
fn connect(fixture: &Fixture, to: SocketAddr, server: &str) -> Stream {
    eventually("a connection to the server", SOON, || {
        let mut stream = Stream::connect(fixture.client.netns(), to).ok()?;
        (stream.ask("who").ok()?.server == server).then_some(stream)
    })
}

fn wait_until(moment: Instant) {
    std::thread::sleep(moment.saturating_duration_since(Instant::now()));
}

/// Asks every half second until the moment, as a client of a long-lived connection does.
fn talk(streams: &mut [Stream], until: Instant) {
    while Instant::now() < until {
        for stream in &mut *streams {
            assert_eq!(stream.ask("still").unwrap().server, "b1", "it talks, and its backend answers");
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Waits for the RST that the client gets.
fn reset(stream: &mut Stream, limit: Duration) {
    let error = eventually("the client gets a RST", limit, || {
        stream.read_line().err().filter(|error| !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
    });
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
}

/// `get drains` shows both limits.
fn limits_are_shown(agent: &Agent, max: Duration) {
    let drains = agent.json(&["get", "drains"]).unwrap();
    let items = drains["items"].as_array().unwrap();
    assert!(!items.is_empty(), "{drains}");
    for item in items {
        let seconds = |name: &str| Duration::from_secs(item[name].as_u64().unwrap());
        // Begun tenths and seconds count as whole ones.
        let rounding = Duration::from_secs(1);
        assert!(seconds("drainSeconds") <= PERIOD + rounding, "{item}");
        assert!(seconds("deadlineSeconds") <= max + rounding && seconds("deadlineSeconds") > PERIOD, "{item}");
    }
}

/// `b1` and `b2` are gone from the API; `b1` still answers, `b2` is dead.
fn long_lived_connections_outlive_the_period(subject: &str, left: impl Fn(&Fixture) -> Manifest, agent_dies: bool) {
    let fixture = Fixture::new(subject, Pods::Routed, 3, NodeOptions::default());
    let service = fixture.web();
    let Limits { next_segment, max } = Limits::of(fixture.client.namespace());
    let flags = ["--drain-period=2s", &format!("--drain-max={}s", max.as_secs())];
    let mut agent = fixture.agent(&Manifest::of([service.clone()]), &flags);
    let frontends = service.frontends(Protocol::Tcp);
    let each = |server: &str| frontends.iter().map(|to| connect(&fixture, *to, server)).collect::<Vec<_>>();
    let (mut talking, mut idle, mut dead) = (each("b1"), each("b1"), each("b2"));
    let began = Instant::now();
    agent.apply(&left(&fixture)).unwrap();
    limits_are_shown(&agent, max);
    if agent_dies {
        agent.kill();
    }
    fixture.backends[2].namespace().ip("link set eth0 down").unwrap();
    let asked = Instant::now();
    for stream in &mut dead {
        stream.say("anybody").unwrap();
    }
    talk(&mut talking, began + 3 * PERIOD);
    std::thread::scope(|scope| {
        let ends: Vec<_> = dead
            .iter_mut()
            .map(|stream| {
                scope.spawn(|| {
                    reset(stream, next_segment);
                    asked.elapsed()
                })
            })
            .collect();
        talk(&mut talking, asked + next_segment);
        for end in ends {
            let after = end.join().unwrap();
            assert!(after >= ANSWER, "not before its time: {after:?}");
        }
    });
    for stream in &mut idle {
        assert_eq!(stream.ask("after a long silence").unwrap().server, "b1");
    }
    let broken = || fixture.servers[1].iter().map(Server::broken).sum::<u32>();
    assert_eq!(broken(), 0, "no connection to the backend that answers has ended");
    wait_until(began + max + Duration::from_secs(1));
    // Without an agent an end has to send for its RST.
    for stream in talking.iter_mut().chain(&mut idle) {
        if agent_dies {
            stream.say("past the longest drain").ok();
        }
        reset(stream, SOON);
    }
    let all = u32::try_from(2 * frontends.len()).unwrap();
    eventually("the backend gets a RST, too", SOON, || {
        if agent_dies {
            fixture.servers[1].iter().for_each(|server| server.push("anybody?"));
        }
        (broken() == all).then_some(())
    });
    if agent_dies {
        agent.restart().unwrap();
    }
    eventually("the drains are over", 2 * SOON, || {
        let drains = agent.json(&["get", "drains"]).ok()?;
        drains["items"].as_array()?.is_empty().then_some(())
    });
}

#[test]
fn after_a_change_of_the_selector() {
    let left = |fixture: &Fixture| Manifest::of([fixture.web_of(fixture.endpoints()[..1].to_vec())]);
    long_lived_connections_outlive_the_period("selector", left, false);
}

#[test]
fn after_the_deletion_of_the_service_and_with_the_agent_dead() {
    long_lived_connections_outlive_the_period("nolonger", |_| Manifest::default(), true);
}

/// The period is over, and the old pod's connection goes on; then its address is another pod's.
#[test]
fn an_address_that_another_pod_gets_after_the_period_ends_the_connection_at_once() {
    let fixture = Fixture::new("anew", Pods::Routed, 1, NodeOptions::default());
    let endpoint = fixture.endpoints().remove(0);
    let first = Service::web(vec![endpoint.clone().pod("aaaa")]);
    let agent = fixture.agent(&Manifest::of([first.clone()]), &["--drain-period=1s"]);
    let to = first.frontends(Protocol::Tcp)[0];
    let mut old = connect(&fixture, to, "b0");
    let (mut idle, began) = (connect(&fixture, to, "b0"), Instant::now());
    agent.apply(&Manifest::of([Service::web(vec![])])).unwrap();
    wait_until(began + Duration::from_secs(3));
    assert_eq!(old.ask("the period is over").unwrap().server, "b0");
    let second = Service::web(vec![endpoint.pod("bbbb")]);
    agent.apply(&Manifest::of([second])).unwrap();
    for stream in [&mut old, &mut idle] {
        reset(stream, SOON);
    }
    assert_eq!(connect(&fixture, to, "b0").ask("new").unwrap().server, "b0");
    eventually("the drain is replaced", SOON, || (super::ends(&agent, "replaced") >= 1).then_some(()));
}

/// Nobody waits for a backend that has no connection left.
#[test]
fn a_drain_without_connections_ends_with_the_period() {
    let fixture = Fixture::new("nobody", Pods::Routed, 1, NodeOptions::default());
    let agent = fixture.agent(&Manifest::of([fixture.web()]), &["--drain-period=1s"]);
    agent.apply(&Manifest::of([Service::web(vec![])])).unwrap();
    eventually("the drains are over", 3 * SOON, || (super::ends(&agent, "empty") == 4).then_some(()));
}
