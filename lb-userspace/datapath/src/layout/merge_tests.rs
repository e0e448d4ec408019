use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// One byte for each field.
fn record() -> Record {
    let names = ["flow.fin", "flags", "flow.seen_s", "flow.state", "flow.next"];
    let fields: BTreeMap<String, Field> =
        (0..).zip(names).map(|(at, name)| (name.to_owned(), format!("u8@{at}").parse().unwrap())).collect();
    Record { size: 5, fields }
}

fn merged(copied: [u8; 5], last: [u8; 5], current: [u8; 5]) -> [u8; 5] {
    let mut result = current;
    let changes = Merge::new(&record()).carry_over(&copied, &last, &mut result);
    assert_eq!(changes, result != current);
    result
}

#[test]
fn what_one_side_alone_has_changed_is_kept() {
    let (before, after) = ([0, 1, 10, 2, 7], [1, 3, 11, 4, 8]);
    assert_eq!(merged(before, after, before), after, "the old programs");
    assert_eq!(merged(before, before, after), after, "the new programs");
    assert_eq!(merged(before, after, after), after, "both alike");
}

#[test]
fn what_both_have_changed_is_joined_by_the_field() {
    let copied = [0, 0b0011, 10, 2, 7];
    let last = [1, 0b0110, 12, 4, 8];
    let current = [2, 0b1011, 11, 3, 9];
    assert_eq!(
        merged(copied, last, current),
        [3, 0b1110, 12, 3, 9],
        "FINs of both, bits of both, the later time, the rest as it is"
    );
}

#[test]
fn without_knowing_what_was_copied_nothing_is_taken_away() {
    assert_eq!(merged([0; 5], [1, 2, 9, 2, 7], [2, 1, 10, 2, 0]), [3, 3, 10, 2, 7]);
}

proptest! {
    #![proptest_config(lb_seed::property(file!(), 1000))]

    /// No FIN is lost, no time goes back, and carrying over twice is carrying over once.
    #[test]
    fn nothing_that_a_side_has_seen_is_lost(copied: [u8; 5], last: [u8; 5], current: [u8; 5]) {
        let once = merged(copied, last, current);
        prop_assert_eq!(once[0] & (last[0] & !copied[0]), last[0] & !copied[0]);
        let own = current[0] & !copied[0];
        prop_assert_eq!(once[0] & own, own);
        prop_assert!(last[2] == copied[2] || once[2] >= last[2].min(current[2]));
        for (at, now) in once.iter().enumerate().skip(3) {
            prop_assert!([last[at], current[at]].contains(now));
        }
        prop_assert_eq!(merged(copied, last, once), once);
    }
}
