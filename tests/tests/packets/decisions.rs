//! The decision in the kernel and the decision on the host: the same, over many random steps.

use std::time::{Duration, Instant};

use anyhow::Result;
use lb_tests::lockstep::{Lockstep, STEPS};
use lb_tests::topology::Topology;

/// Steps that are compared, in the short form and in the long one.
const LEAST: [u64; 2] = [100_000, 10_000_000];
/// More follow until everything that is asked for has come up, at most for so long.
const LIMIT: Duration = Duration::from_mins(10);

/// What must come up among the steps, or too little was asked.
const ASKED: [&str; 35] = [
    "passed",
    "selected",
    "forwarded",
    "replied",
    "refused_no_endpoint",
    "dropped_no_local_endpoint",
    "refused_no_flow",
    "evicted",
    "moved",
    "direct_translated",
    "port_translated",
    "ambiguous_udp",
    "dropped_torn",
    "handed_to_tc",
    "dropped_source_range",
    "refused_unserved",
    "retried",
    "suppressed_refusal",
    "refused_late",
    "refused_client_share",
    "probed",
    "ejected",
    "cleared",
    "masqueraded",
    "dropped_no_address",
    "dropped_martian",
    "tunnelled",
    "selected_by_tuple",
    "resumed",
    "dropped_rate_limit",
    "passed_adoption",
    "adopted",
    "dropped_no_service",
    "held_for_hand_over",
    "passed_hand_over",
];

#[test]
fn kernel_and_host_decide_alike() -> Result<()> {
    let [short, long] = LEAST;
    let (least, first) = (lb_seed::short_or_long(short, long), lb_seed::of_run());
    let topology = Topology::new("decisions")?;
    let node = topology.node()?;
    // The programs ask the routing table of the namespace that the packet is in.
    node.netns().run(|| {
        let mut lockstep = Lockstep::new(None)?;
        let start = Instant::now();
        // A world's own seed replays that world first.
        for seed in first.. {
            if seed % 2 == 0 {
                lockstep.run::<4>(seed, STEPS)?;
            } else {
                lockstep.run::<16>(seed, STEPS)?;
            }
            let tally = &lockstep.tally;
            let is_asked = tally.floods > 0 && ASKED.iter().all(|outcome| tally.outcomes.contains_key(outcome));
            if tally.steps >= least && (is_asked || start.elapsed() > LIMIT) {
                break;
            }
        }
        println!("in {:.1?}: {:#?}", start.elapsed(), lockstep.tally);
        for outcome in ASKED {
            assert!(lockstep.tally.outcomes.contains_key(outcome), "no packet came to {outcome}");
        }
        assert!(lockstep.tally.floods > 0, "no world came to a flood");
        Ok(())
    })
}

/// Packets that `ballast explain` is asked for at least, in the short form and in the long one.
const EXPLAINED: [u64; 2] = [10_000, 1_000_000];

/// What explain must have said at least once.
const EXPLAINED_OUTCOMES: [&str; 19] = [
    "passed",
    "selected",
    "forwarded",
    "replied",
    "refused_no_endpoint",
    "dropped_no_local_endpoint",
    "refused_no_flow",
    "evicted",
    "moved",
    "dropped_torn",
    "dropped_source_range",
    "refused_unserved",
    "retried",
    "refused_client_share",
    "probed",
    "masqueraded",
    "dropped_no_address",
    "dropped_rate_limit",
    "dropped_no_service",
];

#[test]
fn explain_says_before_each_packet_what_the_program_does() -> Result<()> {
    let [short, long] = EXPLAINED;
    let (least, first) = (lb_seed::short_or_long(short, long), lb_seed::of_run());
    let topology = Topology::new("explained")?;
    let node = topology.node()?;
    node.netns().run(|| {
        let mut lockstep = Lockstep::new(Some(&node.bpffs().join("explained")))?;
        let start = Instant::now();
        for seed in first.. {
            if seed % 2 == 0 {
                lockstep.run::<4>(seed, STEPS)?;
            } else {
                lockstep.run::<16>(seed, STEPS)?;
            }
            let explained = &lockstep.tally.explained;
            let is_asked = EXPLAINED_OUTCOMES.iter().all(|outcome| explained.contains_key(outcome));
            if explained.values().sum::<u64>() >= least && (is_asked || start.elapsed() > LIMIT) {
                break;
            }
        }
        println!("in {:.1?}: {:#?}", start.elapsed(), lockstep.tally.explained);
        for outcome in EXPLAINED_OUTCOMES {
            assert!(lockstep.tally.explained.contains_key(outcome), "explain never said {outcome}");
        }
        Ok(())
    })
}
