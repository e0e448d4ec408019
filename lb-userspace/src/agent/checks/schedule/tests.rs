//! Turns, bounds and what becomes of endpoints that come and go, on a clock that stands still unless it is moved.

use std::num::NonZeroU32;

use super::*;
use crate::agent::checks::wanted::Checked;
use lb_model::{CheckMethod, ObjectName, Protocol};

const INTERVAL: Duration = Duration::from_secs(10);

fn limits(per_second: u32, in_flight: u32) -> CheckLimits {
    let number = |number| NonZeroU32::new(number).expect("not zero");
    CheckLimits { per_second: number(per_second), in_flight: number(in_flight) }
}

fn key() -> PortKey {
    PortKey { service: ObjectName::new("demo", "web"), port: 80, protocol: Protocol::Tcp }
}

fn check() -> Check {
    let timeout = Duration::from_secs(1);
    Check { method: CheckMethod::Tcp, port: None, interval: INTERVAL, timeout, failures: 2, successes: 1 }
}

fn address(index: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], index))
}

fn of_namespace(namespace: &str) -> PortKey {
    PortKey { service: ObjectName::new(namespace, "web"), ..key() }
}

fn checked(endpoints: u16, check: Check) -> Checked {
    Checked { check, endpoints: (1..=endpoints).map(address).collect() }
}

fn wanted(endpoints: u16, check: Check) -> Wanted {
    [(key(), checked(endpoints, check))].into()
}

fn schedule(limits: CheckLimits) -> (Schedule, Instant) {
    let now = Instant::now();
    (Schedule::new(limits, Unhealthy::new(), 7, now), now)
}

/// Lets time pass for so long, each check answered at once; when which endpoint was asked.
fn pass(schedule: &mut Schedule, from: Instant, time: Duration, answer: Answer) -> Vec<(Instant, SocketAddr)> {
    let mut asked = Vec::new();
    while let Some(now) = schedule.due().filter(|due| *due <= from + time) {
        while let Some(ask) = schedule.next(now) {
            asked.push((now, ask.target));
            schedule.over(ask.id, answer, now);
        }
    }
    asked
}

#[tokio::test(start_paused = true)]
async fn each_endpoint_is_asked_once_in_its_interval_and_not_all_at_once() {
    let (mut schedule, start) = schedule(limits(1_000, 100));
    schedule.set(&wanted(50, check()), start);
    let asked = pass(&mut schedule, start, 10 * INTERVAL, Answer::Well);
    for index in 1..=50 {
        let times = asked.iter().filter(|(_, target)| *target == address(index)).count();
        assert!((9..=11).contains(&times), "{times} checks in ten intervals");
    }
    let mut moments: Vec<_> = asked.iter().filter(|(at, _)| *at <= start + INTERVAL).map(|(at, _)| *at).collect();
    moments.dedup();
    assert!(moments.len() > 40, "they are spread over the interval: {}", moments.len());
}

#[tokio::test(start_paused = true)]
async fn no_more_are_begun_in_a_second_than_the_limit_says_and_none_is_left_out() {
    let (mut schedule, start) = schedule(limits(20, 100));
    // A hundred a second would be wanted.
    schedule.set(&wanted(1_000, check()), start);
    let asked = pass(&mut schedule, start, 60 * INTERVAL, Answer::Well);
    for window in asked.windows(23) {
        assert!(window[22].0 - window[0].0 >= Duration::from_secs(1), "more than 22 in a second");
    }
    let distinct: BTreeSet<_> = asked.iter().map(|(_, target)| *target).collect();
    assert_eq!(distinct.len(), 1_000, "who waits longest comes first");
    assert!(schedule.late(start + 60 * INTERVAL) > INTERVAL, "and it shows that they are late");
}

#[tokio::test(start_paused = true)]
async fn no_more_are_under_way_than_the_limit_says() {
    let (mut schedule, start) = schedule(limits(1_000, 6));
    schedule.set(&wanted(10, check()), start);
    let now = start + INTERVAL;
    let asked: Vec<_> = std::iter::from_fn(|| schedule.next(now)).collect();
    assert_eq!(
        (asked.len(), schedule.under_way(), schedule.due()),
        (3, 3, None),
        "half of six: the rest is left to others"
    );
    schedule.over(asked[0].id, Answer::Well, now);
    assert!(schedule.next(now).is_some() && schedule.next(now).is_none());
    let many = (0..20).map(|tenant| (of_namespace(&format!("t{tenant}")), checked(4, check())));
    schedule.set(&many.collect(), now);
    let now = now + INTERVAL;
    let more = std::iter::from_fn(|| schedule.next(now)).count();
    assert_eq!((more, schedule.under_way()), (3, 6), "never more than the limit, however many namespaces there are");
}

/// Lets time pass: checks of the namespace `black` end by their timeout only, all others at once. When which endpoint was asked.
fn pass_with_black_holes(schedule: &mut Schedule, from: Instant, time: Duration) -> Vec<(Instant, SocketAddr)> {
    let mut asked = Vec::new();
    let mut silent = BTreeSet::new();
    loop {
        let over = silent.first().map(|(at, _)| *at);
        let Some(now) = [schedule.due(), over].into_iter().flatten().min().filter(|now| *now <= from + time) else {
            return asked;
        };
        while let Some(ended) = silent.first().copied().filter(|(at, _)| *at <= now) {
            silent.remove(&ended);
            let (_, id) = ended;
            schedule.over(id, Answer::Failed, now);
        }
        while let Some(ask) = schedule.next(now) {
            if ask.target.port() >= BLACK {
                silent.insert((now + ask.check.timeout, ask.id));
            } else {
                asked.push((now, ask.target));
                schedule.over(ask.id, Answer::Well, now);
            }
        }
    }
}

/// Ports of endpoints that never answer begin here.
const BLACK: u16 = 1_000;

#[tokio::test(start_paused = true)]
async fn black_holed_endpoints_of_one_tenant_delay_no_other_by_more_than_an_interval() {
    let (mut schedule, start) = schedule(CheckLimits::default());
    let second = Duration::from_secs(1);
    let endless = Check { interval: second, timeout: second, ..check() };
    let black = Checked { check: endless, endpoints: (BLACK..BLACK + 1_280).map(address).collect() };
    let wanted = [(of_namespace("black"), black), (of_namespace("demo"), checked(20, check()))].into();
    schedule.set(&wanted, start);
    let asked = pass_with_black_holes(&mut schedule, start, 10 * INTERVAL);
    for index in 1..=20 {
        let mut times = vec![start];
        times.extend(asked.iter().filter(|(_, target)| *target == address(index)).map(|(at, _)| *at));
        times.push(start + 10 * INTERVAL);
        let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(longest < Some(2 * INTERVAL), "endpoint {index} was not asked for {longest:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failing_endpoints_are_told_and_so_are_those_that_are_well_again() {
    let (mut schedule, start) = schedule(limits(100, 10));
    schedule.set(&wanted(1, check()), start);
    pass(&mut schedule, start, 3 * INTERVAL, Answer::Failed);
    assert_eq!(schedule.failing(), [(key(), address(1))].into());
    let now = start + 10 * INTERVAL;
    let ask = schedule.next(now).expect("due");
    let change = schedule.over(ask.id, Answer::Well, now);
    assert_eq!(change, Some(HealthChange { subject: (key(), address(1)), is_failing: false }));
    assert!(schedule.failing().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_no_longer_checked_is_no_longer_kept_out_and_its_late_answer_means_nothing() {
    let (mut schedule, start) = schedule(limits(100, 10));
    schedule.set(&wanted(2, check()), start);
    pass(&mut schedule, start, 3 * INTERVAL, Answer::Failed);
    assert_eq!(schedule.failing().len(), 2);
    let now = start + 10 * INTERVAL;
    let ask = schedule.next(now).expect("due");
    schedule.set(&Wanted::new(), now);
    assert!(schedule.failing().is_empty());
    assert_eq!(schedule.over(ask.id, Answer::Failed, now), None);
    assert_eq!((schedule.len(), schedule.under_way(), schedule.due()), (0, 0, None));
}

#[tokio::test(start_paused = true)]
async fn another_question_begins_anew_another_interval_does_not() {
    let (mut schedule, start) = schedule(limits(100, 10));
    schedule.set(&wanted(1, check()), start);
    pass(&mut schedule, start, 3 * INTERVAL, Answer::Failed);
    schedule.set(&wanted(1, Check { interval: 2 * INTERVAL, ..check() }), start + 3 * INTERVAL);
    assert_eq!(schedule.failing().len(), 1);
    let http = CheckMethod::Http { path: "/".into() };
    schedule.set(&wanted(1, Check { method: http, ..check() }), start + 3 * INTERVAL);
    assert!(schedule.failing().is_empty());
    assert_eq!(schedule.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_before_has_unhealthy_stays_so_until_it_is_well() {
    let now = Instant::now();
    let other = PortKey { port: 81, ..key() };
    let restored = [(key(), address(1)), (other, address(1))].into();
    let mut schedule = Schedule::new(limits(100, 10), restored, 7, now);
    schedule.set(&wanted(2, check()), now);
    assert_eq!(schedule.failing(), [(key(), address(1))].into(), "the other port is not checked any more");
    pass(&mut schedule, now, 2 * INTERVAL, Answer::Well);
    assert!(schedule.failing().is_empty());
}
