//! A flood of SYNs to a port that no service has: it gets few answers and few event records. Other clients, and their events, notice
//! nothing. Needs root.

use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lb_common::limits::{ANSWER_BURST, ANSWERS_PER_SECOND, EVENT_BURST, EVENTS_PER_SECOND};
use lb_common::outcome::Outcome;
use lb_tests::agent::{Manifest, Protocol};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::raw_tcp::Flood;
use lb_tests::incident::{Clients, Counters};
use lb_tests::peers::{Stream, eventually};
use lb_tests::topology::NodeOptions;

/// Of the service's address.
const CLOSED: u16 = 8_081;
/// SYNs at least.
const FLOOD: u64 = 50_000;
/// The most that are sent.
const MOST: u32 = 2_000_000;
/// Connections that are made meanwhile to a service, and to one without endpoints.
const CLIENTS: Clients =
    Clients { connections: 200, at_a_time: 4, patience: Duration::from_secs(10), first_port: None };
const REFUSED: u64 = 5;
/// A slow machine gets this long.
const LIMIT: Duration = Duration::from_mins(1);

fn opened(fixture: &Fixture, to: SocketAddr) -> Stream {
    let mut stream = Stream::connect(fixture.client.netns(), to).unwrap();
    stream.ask("before").unwrap();
    stream
}

#[test]
fn a_flood_to_a_closed_port_leaves_other_clients_and_their_events_alone() {
    let fixture = Fixture::new("refused", Pods::Routed, 2, NodeOptions::default());
    let (attacker, service, empty) = (fixture.pod("attacker"), fixture.web(), fixture.empty());
    let agent = fixture.agent(&Manifest::of([service.clone(), empty.clone()]), &[]);
    let (to, nowhere) = (service.frontends(Protocol::Tcp)[0], empty.frontends(Protocol::Tcp)[0]);
    let mut established: Vec<Stream> = (0..20).map(|_| opened(&fixture, to)).collect();
    let told = |outcome: Outcome| {
        let records = agent.metric("ballast_events_total", &format!("outcome=\"{}\"", outcome.name()));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // A counter, below 2^53.
        records.map_or(0, |records| records as u64)
    };
    assert_eq!((told(Outcome::RefusedUnserved), told(Outcome::RefusedNoEndpoint)), (0, 0));

    let before = Counters::read(agent.bpffs()).unwrap();
    let counted = |outcome| Counters::read(agent.bpffs()).unwrap().since(&before, outcome);
    let (stop, start) = (Arc::new(AtomicBool::new(false)), Instant::now());
    let (stopped, from) = (Arc::clone(&stop), attacker.addresses().v4);
    let closed = SocketAddrV4::new(service.cluster_ips.v4, CLOSED);
    let flooding = attacker.netns().spawn(move || {
        let flood = Flood::new().unwrap();
        (0..MOST).take_while(|_| !stopped.load(Ordering::Relaxed)).for_each(|number| flood.syn(from, number, closed));
    });
    let mut attempts = Vec::new();
    while counted(Outcome::RefusedUnserved) < FLOOD {
        assert!(start.elapsed() < LIMIT, "no flood");
        attempts.extend(CLIENTS.run(fixture.client.netns(), to).attempts);
    }
    for _ in 0..REFUSED {
        let error = Stream::connect(fixture.client.netns(), nowhere).expect_err("it has no endpoint");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{error}");
    }
    stop.store(true, Ordering::Relaxed);
    flooding.join().unwrap();
    let seconds = start.elapsed().as_secs() + 1;

    let after = Counters::read(agent.bpffs()).unwrap();
    println!("in {seconds} s: {}", after.line_since(&before));
    let failed: Vec<_> = attempts.iter().filter_map(|attempt| attempt.error.as_ref()).collect();
    assert!(failed.is_empty(), "{} of {} failed: {:?}", failed.len(), attempts.len(), failed.first());
    let lost = established.iter_mut().filter_map(|stream| stream.ask("still there?").err()).count();
    assert_eq!(lost, 0, "established connections lost");
    let cpus = std::thread::available_parallelism().unwrap().get() as u64;
    let bound = |burst: u32, rate: u32| cpus * (u64::from(burst) + u64::from(rate) * seconds);
    let answered = after.since(&before, Outcome::RefusedUnserved) - after.since(&before, Outcome::AnswerLimited);
    assert!(answered <= bound(ANSWER_BURST, ANSWERS_PER_SECOND), "{answered} answers in {seconds} s");
    // The reader of the ring has seen all that were written.
    let others = || (told(Outcome::RefusedNoEndpoint) >= REFUSED).then_some(());
    eventually("the events of others are told", LIMIT, others);
    // A busy machine may still have some of the flood under way.
    let written = eventually("each that was written is told", LIMIT, || {
        let written = counted(Outcome::RefusedUnserved) - counted(Outcome::EventLost);
        (told(Outcome::RefusedUnserved) == written).then_some(written)
    });
    assert!((1..=bound(EVENT_BURST, EVENTS_PER_SECOND)).contains(&written), "{written} records in {seconds} s");
    // The flood is over: every client is refused at once.
    eventually("refused again", LIMIT, || {
        let error = Stream::connect(fixture.client.netns(), closed.into()).expect_err("nobody serves");
        (error.kind() == std::io::ErrorKind::ConnectionRefused).then_some(())
    });
}
