//! Clients, pods and a network that loses, doubles and reorders, around the decision: who accepted a connection keeps it.
//!
//! The ends speak enough TCP to notice what goes wrong: three-way handshake, retransmits, challenge ACKs, RSTs, ports used again.
//! Pods die silently, refuse, answer late; the agent drains them, rests them, gives their addresses to others.

// Tests may unwrap: a panic is a failed test.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod agent;
mod client;
mod hooks;
mod pod;
mod segment;
mod simulation;
mod watch;

use std::cell::RefCell;

use client::{Ending, Over, Plan, State};
use lb_common::abi::service_flags;
use pod::Mode;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use simulation::{Act, Network, Simulation};
use watch::Seen;

/// Nothing of a scenario goes on for longer.
const LONGEST_MS: u64 = 900_000;

#[derive(Clone, Debug)]
struct Scenario {
    network: Network,
    seed: u64,
    no_retry: bool,
    affinity_timeout_s: u32,
    pods: Vec<Mode>,
    plans: Vec<Plan>,
    acts: Vec<(u64, Act)>,
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![
        5 => Just(Mode::Live),
        2 => Just(Mode::Silent),
        2 => Just(Mode::Refusing),
        2 => (500_u64..9_000).prop_map(Mode::Slow),
    ]
}

fn plan() -> impl Strategy<Value = Plan> {
    let ending = prop_oneof![3 => Just(Ending::Fin), 1 => Just(Ending::Rst), 1 => Just(Ending::Vanish)];
    (0..60_000_u64, 0..4_u16, 0..2_usize, 0..5_u32, 1..20_000_u64, ending).prop_map(
        |(start_ms, port, vip, bytes, pause_ms, ending)| Plan {
            start_ms,
            port: 40_000 + port,
            vip,
            bytes,
            pause_ms,
            ending,
        },
    )
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => (0..6_usize, 100..30_000_u64).prop_map(|(pod, period)| Act::Drain(pod, period)),
        2 => (0..6_usize, any::<bool>()).prop_map(|(pod, rests)| Act::Rest(pod, rests)),
        2 => (0..6_usize).prop_map(Act::Replace),
        4 => (0..6_usize, mode()).prop_map(|(pod, mode)| Act::Mode(pod, mode)),
        1 => mode().prop_map(Act::Add),
    ]
}

fn network() -> impl Strategy<Value = Network> {
    (0..20_u8, 0..20_u8, 0..20_u8, 1..4_000_u64, prop::bool::weighted(0.2))
        .prop_map(|(loss, double, late, late_ms, catch_all)| Network { loss, double, late, late_ms, catch_all })
}

fn scenario() -> impl Strategy<Value = Scenario> {
    (
        network(),
        any::<u64>(),
        prop::bool::weighted(0.2),
        prop_oneof![3 => Just(0_u32), 1 => Just(20_u32)],
        prop::collection::vec(mode(), 1..6),
        prop::collection::vec(plan(), 1..12),
        prop::collection::vec((0..70_000_u64, act()), 0..8),
    )
        .prop_map(|(network, seed, no_retry, affinity_timeout_s, pods, plans, acts)| Scenario {
            network,
            seed,
            no_retry,
            affinity_timeout_s,
            pods,
            plans,
            acts,
        })
}

fn play(scenario: &Scenario) -> Result<Simulation, String> {
    let flags = if scenario.no_retry { service_flags::NO_RETRY } else { 0 };
    let mut simulation = Simulation::new(scenario.network, scenario.seed, flags, scenario.affinity_timeout_s);
    for mode in &scenario.pods {
        simulation.add_pod(*mode);
    }
    for plan in &scenario.plans {
        simulation.plan(*plan);
    }
    for (at_ms, act) in &scenario.acts {
        simulation.act(*at_ms, *act);
    }
    simulation.run(LONGEST_MS)?;
    Ok(simulation)
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { max_shrink_iters: 20_000, ..lb_seed::property(file!(), cases) }
}

#[test]
fn no_segment_reaches_a_pod_that_did_not_accept_its_connection() {
    let seen = RefCell::new(Seen::default());
    let played = TestRunner::new(config(lb_seed::short_or_long(2_000, 20_000))).run(&scenario(), |scenario| {
        let simulation = play(&scenario).map_err(TestCaseError::fail)?;
        prop_assert!(simulation.undead().is_empty(), "open to pods whose drain is over: {:?}", simulation.undead());
        seen.borrow_mut().add(&simulation.watch.seen);
        Ok(())
    });
    let seen = seen.into_inner();
    println!("{seen:#?}");
    if let Err(error) = played {
        panic!("{error}");
    }
    for outcome in
        ["retried", "suppressed_refusal", "refused_late", "ejected", "cleared", "probed", "evicted", "port_translated"]
    {
        assert!(seen.outcomes.contains_key(outcome), "no packet came to {outcome}: too little was asked");
    }
    assert!(seen.passed_answers * 100 <= seen.late_answers, "{seen:?}");
    assert!(seen.late_answers > 100 && seen.slow_answers > 100, "{seen:?}");
}

/// Pods of which so many are dead in either way, and one connection at a time from fresh ports.
fn through_the_dead(dead: usize, live: usize, seed: u64, apart_ms: u64) -> Simulation {
    let network = Network { loss: 0, double: 5, late: 10, late_ms: 100, catch_all: false };
    let mut simulation = Simulation::new(network, seed, 0, 0);
    for number in 0..dead {
        simulation.add_pod(if number % 2 == 0 { Mode::Silent } else { Mode::Refusing });
    }
    for _ in 0..live {
        simulation.add_pod(Mode::Live);
    }
    for number in 0..40_u16 {
        let start_ms = u64::from(number) * apart_ms;
        let plan = Plan { start_ms, port: 41_000 + number, vip: 0, bytes: 2, pause_ms: 10, ending: Ending::Fin };
        simulation.plan(plan);
    }
    simulation.run(LONGEST_MS).unwrap();
    simulation
}

#[test]
fn a_client_with_a_live_pod_in_reach_is_connected_by_its_retransmits() {
    for (dead, live) in [(1, 1), (2, 1), (3, 1), (3, 3), (2, 5)] {
        for seed in 0..20 {
            for apart_ms in [0, 300] {
                let simulation = through_the_dead(dead, live, seed, apart_ms);
                for connection in &simulation.connections {
                    let state = connection.state;
                    assert_eq!(
                        state,
                        State::Over(Over::Done),
                        "{dead} dead, {live} live, seed {seed}, {apart_ms} ms apart"
                    );
                }
            }
        }
    }
}
