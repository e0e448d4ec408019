//! What a round's count says of the programs' own: how far that has drifted, and no more than is certain.

/// What to add to the programs' count of a backend's connections.
///
/// `before` and `after` are that count at the start and at the end of a round, `counted` what the round saw. Connections came and went meanwhile,
/// some before and some after the round passed their entries. So `counted` may lie anywhere between the two without any drift, and is corrected only
/// outside. Connections that come while the correction is made are kept, as it is added.
pub fn correction(before: u32, after: u32, counted: u32) -> i32 {
    let (low, high) = (before.min(after), before.max(after));
    let bounded = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    if counted > high { bounded(counted - high) } else { -bounded(low.saturating_sub(counted)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_certain_is_corrected() {
        assert_eq!(correction(5, 5, 5), 0);
        assert_eq!(correction(5, 5, 3), -2, "two were evicted from the table");
        assert_eq!(correction(5, 5, 9), 4, "four were forgotten by a fault");
        assert_eq!((correction(5, 8, 6), correction(8, 5, 6)), (0, 0), "they came and went meanwhile");
        assert_eq!((correction(5, 8, 4), correction(5, 8, 10)), (-1, 2));
        assert_eq!(correction(u32::MAX, u32::MAX, 0), -i32::MAX);
    }

    /// A quiet minute sets it right, whatever was before.
    #[test]
    fn a_round_without_changes_ends_at_the_truth() {
        for truth in [0, 1, 40] {
            for drifted in [0_u32, 1, 39, 41, 1000] {
                assert_eq!(drifted.saturating_add_signed(correction(drifted, drifted, truth)), truth);
            }
        }
    }
}
