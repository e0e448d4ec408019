//! Thousands of random tables and packets through the live programs, judged by an independent model.

use anyhow::{Context as _, Result};
use lb_tests::oracle::Exam;
use lb_tests::topology::Topology;

/// Worlds for each family.
const WORLDS: u64 = 300;
/// Packets in each.
const PACKETS: usize = 60;

fn exam(subject: &str, ask: impl Fn(&mut Exam, u64) -> Result<()> + Sync) -> Result<()> {
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
        println!("{:#?}", exam.tally());
        Ok(())
    })
}

#[test]
fn ipv4_packets_become_what_the_model_says() -> Result<()> {
    exam("packets4", |exam, seed| exam.world(seed, false, PACKETS))
}

#[test]
fn ipv6_packets_become_what_the_model_says() -> Result<()> {
    exam("packets6", |exam, seed| exam.world(seed, true, PACKETS))
}

#[test]
fn broken_packets_are_never_misdelivered() -> Result<()> {
    exam("broken", |exam, seed| exam.broken(seed, seed % 2 == 1, PACKETS))
}
