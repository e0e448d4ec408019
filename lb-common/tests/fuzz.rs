//! What the fuzz targets (`fuzz/`) do, as plain tests: over their corpus, and over random bytes.

// Tests may unwrap: a panic is a failed test.
#![allow(clippy::unwrap_used)]

#[path = "../../fuzz/src/decide/mod.rs"]
mod decide;
#[path = "../../fuzz/src/packet.rs"]
mod packet;

use std::collections::BTreeSet;
use std::path::Path;

use lb_common::outcome::Outcome;
use proptest::prelude::*;

/// What the scripts of the corpus come to.
const DECIDED: [Outcome; 38] = [
    Outcome::Passed,
    Outcome::Selected,
    Outcome::Forwarded,
    Outcome::Replied,
    Outcome::RefusedNoEndpoint,
    Outcome::DroppedNoLocalEndpoint,
    Outcome::RefusedNoFlow,
    Outcome::Evicted,
    Outcome::Moved,
    Outcome::DirectTranslated,
    Outcome::PortTranslated,
    Outcome::AmbiguousUdp,
    Outcome::DroppedTableFull,
    Outcome::DroppedTorn,
    Outcome::DroppedMalformed,
    Outcome::Fragment,
    Outcome::DroppedSourceRange,
    Outcome::Retried,
    Outcome::SuppressedRefusal,
    Outcome::RefusedLate,
    Outcome::Probed,
    Outcome::RefusedUnserved,
    Outcome::IcmpTranslated,
    Outcome::FragmentFollowed,
    Outcome::DroppedFragment,
    Outcome::Masqueraded,
    Outcome::DroppedMartian,
    Outcome::Tunnelled,
    Outcome::DroppedNotHere,
    Outcome::SelectedByTuple,
    Outcome::Resumed,
    Outcome::DroppedNoAddress,
    Outcome::DroppedNoService,
    Outcome::PassedAdoption,
    Outcome::Adopted,
    Outcome::HeldForHandOver,
    Outcome::PassedHandOver,
    Outcome::SecondHandshake,
];

/// Every file that the fuzzer kept for a target.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let mut paths: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "no corpus in {}", folder.display());
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// A packet as senders make them, of either family and protocol; some of its bytes are then overwritten.
fn nearly_a_packet() -> impl Strategy<Value = Vec<u8>> {
    let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    (0..4_u8, any::<bool>(), 0..40_usize, edits, any::<prop::sample::Index>(), any::<bool>()).prop_map(
        |(kind, tcp, payload, edits, cut, whole)| {
            let transport = if tcp { 20 } else { 8 } + payload;
            let mut bytes = vec![kind];
            bytes.extend(vec![7; if kind & 2 == 0 { 14 } else { 0 }]);
            let length = |more: usize| u16::try_from(transport + more).unwrap().to_be_bytes();
            let protocol = if tcp { 6 } else { 17 };
            if kind & 1 == 0 {
                let [high, low] = length(20);
                bytes.extend([0x45, 0, high, low, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            } else {
                let [high, low] = length(0);
                bytes.extend([0x60, 0, 0, 0, high, low, protocol, 64]);
                bytes.extend(1..33);
            }
            let [high, low] = length(0);
            bytes.extend([0x0f, 0xa0, 0, 80]);
            bytes.extend(if tcp {
                vec![0, 0, 0, 1, 0, 0, 0, 2, 0x50, 2, 0, 9, 1, 2, 0, 0]
            } else {
                vec![high, low, 1, 2]
            });
            bytes.extend(vec![3; payload]);
            for (at, byte) in edits {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if !whole {
                bytes.truncate(cut.index(bytes.len()) + 1);
            }
            bytes
        },
    )
}

#[test]
fn scripts_of_the_corpus_break_no_rule_and_meet_nearly_every_outcome() {
    let met: BTreeSet<Outcome> = corpus("decide").iter().flat_map(|bytes| decide::play(bytes)).collect();
    let missed: Vec<Outcome> = DECIDED.into_iter().filter(|outcome| !met.contains(outcome)).collect();
    assert!(missed.is_empty(), "no packet came to {missed:?}: too little was asked");
}

#[test]
fn packets_of_the_corpus_are_read_as_they_are() {
    for bytes in corpus("packet") {
        packet::check(&bytes);
    }
}

proptest! {
    #![proptest_config(lb_seed::property(file!(), 2_000))]

    #[test]
    fn random_scripts_break_no_rule(script in prop::collection::vec(any::<u8>(), 0..2_000)) {
        let _ = decide::play(&script);
    }
}

proptest! {
    #![proptest_config(lb_seed::property(file!(), 100_000))]

    #[test]
    fn nearly_right_packets_are_read_as_they_are(bytes in nearly_a_packet()) {
        packet::check(&bytes);
    }
}
