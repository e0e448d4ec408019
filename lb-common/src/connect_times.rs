//! Connect times: from the first SYN that a backend gets of a connection to its SYN+ACK, as this node sees both, in buckets of powers of two.

/// Nanoseconds of a tick, the unit of connect times: about a microsecond. A power of two, as a division would cost more than the rest.
pub const TICK_NS: u64 = 1 << TICK_SHIFT;
const TICK_SHIFT: u32 = 10;

/// Buckets of a histogram. Each but the last has times below its [`bound`].
pub const BUCKETS: usize = 16;
/// The first bucket has times of less than so many bits: 64 ticks, 65.536 µs.
const FIRST_BITS: u32 = 6;

/// This moment of `CLOCK_MONOTONIC` in ticks. They wrap after 73 minutes, which no handshake lasts. Never 0, which says that no time is noted.
#[inline(always)]
#[must_use]
pub const fn ticks(now_ns: u64) -> u32 {
    (now_ns >> TICK_SHIFT) as u32 | 1
}

/// The bucket of a time in ticks.
#[inline(always)]
#[must_use]
pub const fn bucket(ticks: u32) -> usize {
    let bits = u32::BITS - (ticks >> FIRST_BITS).leading_zeros();
    if bits as usize >= BUCKETS { BUCKETS - 1 } else { bits as usize }
}

/// Times in this bucket are less than so many nanoseconds; `None`: it is the last one.
#[must_use]
pub const fn bound_ns(bucket: usize) -> Option<u64> {
    if bucket + 1 >= BUCKETS { None } else { Some(TICK_NS << FIRST_BITS << bucket) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_has_what_is_below_its_bound() {
        for index in 0..BUCKETS - 1 {
            let bound = u32::try_from(bound_ns(index).unwrap() / TICK_NS).unwrap();
            assert_eq!((bucket(bound - 1), bucket(bound)), (index, index + 1));
        }
        assert_eq!((bucket(0), bucket(u32::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn bounds_reach_from_tens_of_microseconds_to_a_second() {
        assert_eq!(bound_ns(0), Some(65_536));
        assert_eq!(bound_ns(BUCKETS - 2), Some(1_073_741_824));
        assert_eq!(bound_ns(BUCKETS - 1), None);
    }

    #[test]
    fn no_moment_is_zero_and_differences_outlast_the_wrap() {
        assert_eq!((ticks(0), ticks(TICK_NS)), (1, 1));
        let wraps = TICK_NS << 32;
        assert_eq!(ticks(wraps + 400 * TICK_NS).wrapping_sub(ticks(wraps - 600 * TICK_NS)), 1000);
    }
}
