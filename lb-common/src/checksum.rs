//! The Internet checksum by its difference (RFC 1624), for hooks where the kernel has no helper for it, and in full for
//! packets that we make ourselves (RFC 1071).

/// Adds the 16-bit words of `bytes` (network order, an odd last byte padded with 0) to a running sum.
#[inline(always)]
pub const fn add<const N: usize>(mut sum: u32, bytes: &[u8; N]) -> u32 {
    let mut i = 0;
    while i + 1 < N {
        sum += (bytes[i] as u32) << 8 | bytes[i + 1] as u32;
        i += 2;
    }
    if i < N {
        sum += (bytes[i] as u32) << 8;
    }
    sum
}

/// Folds a running sum to 16 bits. Four folds are enough for any 32-bit sum; two would do, the rest costs nothing.
#[inline(always)]
pub const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// The checksum after some words of what it covers changed: `!(!checksum + !old + new)`.
///
/// `old` and `new` are running sums of the words before and after (by [`add`]), folded by this function.
#[inline(always)]
pub const fn replace(checksum: u16, old: u32, new: u32) -> u16 {
    !fold((!checksum) as u32 + (!fold(old)) as u32 + fold(new) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
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
}
