//! Thousands of random tables and packets through the loaded programs, judged by an independent model.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use lb_tests::oracle::{OracleRun, Routes};
use lb_tests::topology::{Families, NodeOptions, Topology};

/// Test cases for each family, in the short form and in the long one: tables, and packets that come one after the other.
const CASES: [u64; 2] = [120, 2_000];
/// More follow until everything that is asked for has come up, at most so many times as many.
const LIMIT: u64 = 50;
/// Asks for another number, where the machine is slow.
const CASES_VARIABLE: &str = "BALLAST_PACKET_CASES";
/// Packets in each.
const PACKETS: usize = 60;

/// What must come up among the packets of all cases.
const ASKED: [&str; 30] = [
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
    "suppressed_refusal",
    "refused_late",
    "refused_client_share",
    "probed",
    "ejected",
    "cleared",
    "refused_unserved",
    "masqueraded",
    "dropped_no_address",
    "dropped_martian",
    "dropped_hop_limit",
    "passed_adoption",
    "adopted",
    "dropped_no_service",
];

/// What must come up in a few cases as well.
const ASKED_OF_FEW_CASES: [&str; 3] = ["passed", "selected", "forwarded"];

/// What must come up where there are few ports to translate to.
const ASKED_OF_FEW_PORTS: [&str; 2] = ["masqueraded", "dropped_no_port"];

/// Loads the programs.
type Load = fn(Routes) -> Result<OracleRun>;

fn run(
    subject: &str,
    families: Families,
    load: Load,
    must_come_up: &[&str],
    ask: impl Fn(&mut OracleRun, u64) -> Result<()> + Sync,
) -> Result<()> {
    let (cases, is_slow) = cases();
    let must_come_up = if is_slow && !must_come_up.is_empty() { &ASKED_OF_FEW_CASES } else { must_come_up };
    let topology = Topology::new(subject)?;
    let node = topology.node_with(NodeOptions { families, ..NodeOptions::default() })?;
    // The programs ask the routing table of the namespace that the packet is in.
    let routes = Routes::make(node.namespace())?;
    node.netns().run(|| {
        let mut run = load(routes)?;
        let result = ask_all(&mut run, cases, must_come_up, &ask);
        FAILED.fetch_or(result.is_err(), Ordering::Relaxed);
        println!("{subject}: {:#?}", run.tally());
        result
    })
}

/// How many are asked for, and whether that is because the machine is slow.
fn cases() -> (u64, bool) {
    let [short, long] = CASES;
    match std::env::var(CASES_VARIABLE) {
        Ok(text) => (text.parse().unwrap_or_else(|error| panic!("{CASES_VARIABLE}={text}: {error}")), true),
        Err(_) => (lb_seed::short_or_long(short, long), false),
    }
}

/// Some run of this run failed: the others need not go on, which saves the mutations most of their time.
static FAILED: AtomicBool = AtomicBool::new(false);

fn ask_all(
    run: &mut OracleRun,
    cases: u64,
    must_come_up: &[&str],
    ask: impl Fn(&mut OracleRun, u64) -> Result<()>,
) -> Result<()> {
    let mut missing = must_come_up.to_vec();
    // A case's own seed replays that case first.
    for (case, seed) in (0..LIMIT * cases).zip(lb_seed::of_run()..) {
        missing.retain(|outcome| !run.tally().outcomes.contains_key(outcome));
        if case >= cases && missing.is_empty() {
            break;
        }
        ensure!(!FAILED.load(Ordering::Relaxed), "given up, as another run failed");
        ask(run, seed)?;
    }
    missing.retain(|outcome| !run.tally().outcomes.contains_key(outcome));
    ensure!(missing.is_empty(), "no packet came to {missing:?}");
    Ok(())
}

#[test]
fn ipv4_packets_become_what_the_model_says() -> Result<()> {
    run("packets4", Families::Both, OracleRun::new, &ASKED, |run, seed| run.random_packets(seed, false, PACKETS))
}

#[test]
fn ipv6_packets_become_what_the_model_says() -> Result<()> {
    // The node has no IPv4.
    run("packets6", Families::Ipv6, OracleRun::new, &ASKED, |run, seed| run.random_packets(seed, true, PACKETS))
}

#[test]
fn broken_packets_are_never_misdelivered() -> Result<()> {
    run("broken", Families::Both, OracleRun::new, &[], |run, seed| run.broken(seed, seed % 2 == 1, PACKETS))
}

#[test]
fn used_up_ports_are_found_out_and_counted() -> Result<()> {
    // A quarter of the cases.
    run("few-ports", Families::Both, OracleRun::with_few_ports, &ASKED_OF_FEW_PORTS, |run, seed| match seed % 4 {
        0 => run.random_packets(seed, seed % 8 == 0, PACKETS),
        _ => Ok(()),
    })
}
