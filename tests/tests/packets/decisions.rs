//! The decision in the kernel and the decision on the host: the same, over the scripts that the fuzzer kept, and random ones made of these.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use lb_seed::short_or_long;
use lb_tests::lockstep::{Lockstep, Room};
use lb_tests::random::Random;
use lb_tests::test_run;
use lb_tests::topology::Topology;

/// What must come up among the steps, or too little was asked.
const ASKED: [&str; 34] = [
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
    "dropped_rate_limit",
    "passed_adoption",
    "adopted",
    "dropped_no_service",
    "held_for_hand_over",
    "passed_hand_over",
];

/// The scripts that the fuzzer kept: they come to nearly everything.
fn corpus() -> Result<Vec<Vec<u8>>> {
    let folder = test_run::workspace().join("fuzz/corpus/decide");
    let mut paths = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    paths.sort();
    paths.into_iter().map(|path| Ok(std::fs::read(path)?)).collect()
}

/// The begin of one script and the end of another, a few bytes of it other ones.
fn mixed(random: &mut Random, corpus: &[Vec<u8>]) -> Vec<u8> {
    let (one, other) = (random.of(corpus), random.of(corpus));
    let mut script = one[..=random.below(one.len())].to_vec();
    script.extend(&other[random.below(other.len())..]);
    for _ in 0..random.below(4) {
        let at = random.below(script.len());
        script[at] = random.byte();
    }
    script
}

/// Plays the corpus, and so many random scripts, with much room and with little.
fn play(subject: &str, asks_explain: bool, random_scripts: u64) -> Result<[BTreeMap<&'static str, u64>; 2]> {
    let (first, corpus) = (lb_seed::of_run(), corpus()?);
    let topology = Topology::new(subject)?;
    let node = topology.node()?;
    // The programs ask the routing table of the namespace that the packet is in.
    node.netns().run(|| {
        let (mut outcomes, mut explained) = (BTreeMap::new(), BTreeMap::new());
        for room in [Room::Plenty, Room::Little] {
            let pins = node.bpffs().join(format!("{room:?}"));
            let mut lockstep = Lockstep::new(room, asks_explain.then_some(&*pins))?;
            for (seed, script) in (0..).zip(&corpus) {
                lockstep.run(script, seed)?;
            }
            for seed in first..first + random_scripts {
                lockstep.run(&mixed(&mut Random::new(seed), &corpus), seed)?;
            }
            println!("{room:?}: {:#?}", lockstep.tally);
            if let Room::Little = room {
                assert!(lockstep.tally.floods > 0, "no script came to a flood");
            }
            for (all, counted) in [(&mut outcomes, lockstep.tally.outcomes), (&mut explained, lockstep.tally.explained)]
            {
                for (outcome, count) in counted {
                    *all.entry(outcome).or_default() += count;
                }
            }
        }
        Ok([outcomes, explained])
    })
}

#[test]
fn kernel_and_host_decide_alike() -> Result<()> {
    let [outcomes, _] = play("decisions", false, short_or_long(2_000, 50_000))?;
    let missed: Vec<&str> = ASKED.into_iter().filter(|outcome| !outcomes.contains_key(outcome)).collect();
    assert!(missed.is_empty(), "no packet came to {missed:?}");
    Ok(())
}

/// What no explanation can come to: XDP counts it, it is learnt beside the verdict, or it takes two packets at once.
const NOT_EXPLAINED: [&str; 3] = ["handed_to_tc", "ejected", "cleared"];

#[test]
fn explain_says_before_each_packet_what_the_program_does() -> Result<()> {
    let [_, explained] = play("explained", true, short_or_long(300, 20_000))?;
    let asked = ASKED.into_iter().filter(|outcome| !NOT_EXPLAINED.contains(outcome));
    let missed: Vec<&str> = asked.filter(|outcome| !explained.contains_key(outcome)).collect();
    assert!(missed.is_empty(), "explain never said {missed:?}");
    Ok(())
}
