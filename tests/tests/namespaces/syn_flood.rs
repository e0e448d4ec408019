//! A flood of SYNs, ten times what the half-open table holds: no established flow is evicted, and real clients get through.
//! Needs root.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lb_common::outcome::Outcome;
use lb_tests::agent::{Endpoint, Manifest, Protocol, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::incident::raw_tcp::{Flood, lend};
use lb_tests::incident::{Clients, Counters, Round};
use lb_tests::peers::Stream;
use lb_tests::topology::NodeOptions;

/// The half-open table for this test, in entries: a flow takes two.
const HALF_OPEN: u64 = 4096;
/// The table of answered flows: room for every connection that is meant, and for none of a flood.
const FLOWS: u64 = 16 * HALF_OPEN;
/// SYNs of the flood: each makes two entries.
const FLOOD: u64 = 10 * HALF_OPEN;
/// Connections that are open before the flood, and must be open after it.
const ESTABLISHED: usize = 200;
/// Connections that are made meanwhile; one of a thousand may fail.
const LEGITIMATE: Clients =
    Clients { connections: 1000, at_a_time: 8, patience: Duration::from_secs(10), first_port: None };

/// What became of one flood.
struct Flooded {
    sent: u64,
    lost: usize,
    round: Round,
    selected: u64,
}

/// Floods one service, while connections to another one are open, and others are made.
fn flood(subject: &str, is_answered: bool) -> Flooded {
    let fixture = Fixture::new(subject, Pods::Routed, 2, NodeOptions::default());
    let (attacker, dead) = (fixture.pod("attacker"), fixture.pod("dead"));
    // Nobody at the attacker's takes an answer, and nobody at the dead pod's gives one.
    let from: Vec<_> = lend(&fixture.node, &attacker, 64..126).unwrap().iter().map(|addresses| addresses.v4).collect();
    let silent = lend(&fixture.node, &dead, 0..2).unwrap().into_iter().map(Endpoint::ready).collect();
    let target = Service::standard("target", 11, if is_answered { fixture.endpoints() } else { silent });
    let service = fixture.web();
    let sizes = format!("--map-sizes=half_open={HALF_OPEN},flows4={FLOWS},flows6=4096");
    let _agent = fixture.agent(&Manifest::of([service.clone(), target.clone()]), &[&sizes]);
    let to = service.frontends(Protocol::Tcp)[0];
    let mut established: Vec<Stream> = (0..ESTABLISHED).map(|_| opened(&fixture, to)).collect();

    let before = Counters::read(fixture.node.bpffs()).unwrap();
    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&sent));
    let SocketAddr::V4(target) = target.frontends(Protocol::Tcp)[0] else { panic!("the first frontend is IPv4") };
    let flooding = attacker.netns().spawn(move || {
        let flood = Flood::new().unwrap();
        // It goes on as long as the others connect, and in any case until it is ten tables long.
        for number in 0.. {
            if stopped.load(Ordering::Relaxed) && u64::from(number) >= FLOOD {
                break;
            }
            flood.syn(from[number as usize % from.len()], number, target);
            counted.store(u64::from(number) + 1, Ordering::Relaxed);
        }
    });
    // Connections are made until the flood is over.
    let mut round = LEGITIMATE.run(fixture.client.netns(), to);
    while sent.load(Ordering::Relaxed) < FLOOD {
        round.attempts.extend(LEGITIMATE.run(fixture.client.netns(), to).attempts);
    }
    stop.store(true, Ordering::Relaxed);
    flooding.join().unwrap();
    let after = Counters::read(fixture.node.bpffs()).unwrap();
    let sent = sent.load(Ordering::Relaxed);
    let lost = established.iter_mut().filter_map(|stream| stream.ask("still there?").err()).count();
    println!(
        "{subject}: {sent} SYNs against a half-open table of {HALF_OPEN} entries; counted: {}\n  \
         legitimate connections meanwhile: {}; {lost} of {ESTABLISHED} established ones lost",
        after.line_since(&before),
        round.line()
    );
    Flooded { sent, lost, round, selected: after.since(&before, Outcome::Selected) }
}

fn opened(fixture: &Fixture, to: SocketAddr) -> Stream {
    let mut stream = Stream::connect(fixture.client.netns(), to).unwrap();
    stream.ask("before").unwrap();
    stream
}

fn endured(subject: &str, is_answered: bool) {
    let Flooded { sent, lost, round, selected } = flood(subject, is_answered);
    assert!(selected >= FLOOD && sent >= FLOOD, "the flood reached the service");
    assert_eq!(lost, 0, "established connections lost");
    assert!(round.failed() * 1000 <= round.attempts.len(), "{}; the first: {:?}", round.line(), round.first_error());
}

#[test]
fn a_flood_that_nobody_answers_evicts_no_established_flow_and_keeps_nobody_out() {
    endured("flood", false);
}

/// Backends answer every SYN that their kernels take, by SYN cookies in the end. None of the flood's senders has seen an answer.
#[test]
fn a_flood_that_backends_answer_evicts_no_established_flow_and_keeps_nobody_out() {
    endured("flooda", true);
}
