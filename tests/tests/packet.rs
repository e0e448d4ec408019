//! Thousands of random tables and packets through the live programs, judged by an independent model.

use anyhow::{Context as _, Result};
use lb_tests::oracle::Exam;
use lb_tests::topology::Topology;

/// Worlds for each family.
const WORLDS: u64 = 400;
/// Packets in each.
const PACKETS: usize = 60;

/// What must come up among the packets, or the examination asked too little.
const ASKED: [&str; 21] = [
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
    "retried",
    "withheld_refusal",
    "refused_late",
    "probed",
    "suspected",
    "cleared",
];

fn exam(subject: &str, must_come_up: &[&str], ask: impl Fn(&mut Exam, u64) -> Result<()> + Sync) -> Result<()> {
    // `BALLAST_TEST_SEED` repeats one world.
    let seeds: Vec<u64> = match std::env::var("BALLAST_TEST_SEED") {
        Ok(seed) => vec![seed.parse().context("BALLAST_TEST_SEED")?],
        Err(_) => (0..WORLDS).collect(),
    };
    let topology = Topology::new(subject)?;
    let node = topology.node()?;
    // The programs ask the routing table of the namespace that the packet is in.
    node.place().run(|| {
        let mut exam = Exam::new()?;
        for seed in &seeds {
            ask(&mut exam, *seed)?;
        }
        println!("{subject}: {:#?}", exam.tally());
        for outcome in must_come_up.iter().filter(|_| seeds.len() > 1) {
            assert!(exam.tally().outcomes.contains_key(outcome), "no packet came to {outcome}");
        }
        Ok(())
    })
}

#[test]
fn ipv4_packets_become_what_the_model_says() -> Result<()> {
    exam("packets4", &ASKED, |exam, seed| exam.world(seed, false, PACKETS))
}

#[test]
fn ipv6_packets_become_what_the_model_says() -> Result<()> {
    exam("packets6", &ASKED, |exam, seed| exam.world(seed, true, PACKETS))
}

#[test]
fn broken_packets_are_never_misdelivered() -> Result<()> {
    exam("broken", &[], |exam, seed| exam.broken(seed, seed % 2 == 1, PACKETS))
}
