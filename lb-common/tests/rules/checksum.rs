//! Checksums of the Internet.

use lb_common::checksum::{add, fold, replace};
use proptest::prelude::*;

fn full(words: &[[u8; 2]]) -> u16 {
    !fold(words.iter().fold(0, add))
}

#[test]
fn example_of_rfc_1071() {
    assert_eq!(fold(add(0, &[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7])), 0xddf2);
}

#[test]
fn an_odd_last_byte_is_the_upper_one_of_its_word() {
    assert_eq!(add(1, &[0x12, 0x34, 0x56]), 1 + 0x1234 + 0x5600);
    assert_eq!(add(0, &[0x12]), 0x1200);
}

#[test]
fn what_the_first_fold_carries_is_folded_again() {
    assert_eq!([fold(0x0001_ffff), fold(0xffff_ffff), fold(0xffff)], [1, 0xffff, 0xffff]);
}

proptest! {
    #![proptest_config(lb_seed::property(file!(), 256))]

    #[test]
    fn by_difference_equals_in_full(mut words in prop::collection::vec(any::<[u8; 2]>(), 2..40), at in any::<prop::sample::Index>(), new: [u8; 2]) {
        // RFC 1624, section 3: the all-zero packet is the one case where +0 and -0 differ; headers are never all zero.
        words[0] = [0x45, 0x00];
        let at = 1 + at.index(words.len() - 1);
        let before = full(&words);
        let old = words[at];
        words[at] = new;
        prop_assert_eq!(replace(before, add(0, &old), add(0, &new)), full(&words));
    }
}
