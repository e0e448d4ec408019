//! How long the tests of a run take, and the seed of its random ones: fresh in each run, printed, and replayed on request.
//!
//! All random tests of a process use one seed. A failed test shows it: `BALLAST_TEST_SEED=<seed>` before the same command replays the run.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::OnceLock;

use proptest::test_runner::{Config, FileFailurePersistence, RngSeed};

/// The variable that asks for a seed.
pub const VARIABLE: &str = "BALLAST_TEST_SEED";

/// The variable that asks for the long form: large numbers of random cases, a kill at every step, silences in real time.
pub const FORM: &str = "BALLAST_FORM";

/// What this run asks for: the first in the short form, the second in the long one.
///
/// # Panics
///
/// If the variable [`FORM`] is set to anything but `short` or `long`.
pub fn short_or_long<T>(short: T, long: T) -> T {
    match std::env::var(FORM).as_deref() {
        Err(_) | Ok("short") => short,
        Ok("long") => long,
        Ok(other) => panic!("{FORM}={other}: it is `short` or `long`"),
    }
}

/// The seed of this run, printed for the test that asks: the one that [`VARIABLE`] asks for, else a fresh one.
///
/// Tests that count seeds up from here have room to do so: a fresh seed is below 2^48.
///
/// # Panics
///
/// If the variable is set to anything but a number.
pub fn of_run() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    let seed = *SEED.get_or_init(|| parse(std::env::var(VARIABLE).ok().as_deref()));
    // Not to stderr: the test harness shows stdout of failed tests alone.
    println!("{VARIABLE}={seed} replays this run");
    seed
}

fn parse(asked: Option<&str>) -> u64 {
    match asked {
        Some(text) => text.parse().unwrap_or_else(|error| panic!("{VARIABLE}={text}: {error}")),
        None => RandomState::new().hash_one(std::process::id()) >> 16,
    }
}

/// Settings of a property test with this run's seed. `source`: the test's own `file!()`, beside which failures are kept as
/// `*.proptest-regressions`; they are replayed before anything else.
pub fn property(source: &'static str, cases: u32) -> Config {
    Config {
        cases,
        source_file: Some(source),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))),
        rng_seed: RngSeed::Fixed(of_run()),
        ..Config::default()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use proptest::prelude::any;
    use proptest::test_runner::TestRunner;

    use super::*;

    #[test]
    fn a_seed_is_replayed_on_request_and_else_fresh() {
        assert_eq!(parse(Some("17")), 17);
        assert_ne!(parse(None), parse(None));
        assert!((0..100).all(|_| parse(None) < 1 << 48));
        assert_eq!(of_run(), of_run(), "one seed for a process");
    }

    #[test]
    #[should_panic(expected = "BALLAST_TEST_SEED=x: invalid digit")]
    fn a_seed_that_is_no_number_is_refused() {
        parse(Some("x"));
    }

    /// What a property test with these settings is asked, in order.
    fn asked(source: &'static str, seed: u64) -> Vec<u64> {
        let all = RefCell::new(Vec::new());
        let config = Config { rng_seed: RngSeed::Fixed(seed), ..property(source, 20) };
        TestRunner::new(config)
            .run(&any::<u64>(), |number| {
                all.borrow_mut().push(number);
                Ok(())
            })
            .expect("nothing is asserted");
        all.into_inner()
    }

    #[test]
    fn equal_seeds_ask_the_same_and_what_is_kept_is_asked_first_whatever_the_seed() {
        let (one, other) = (asked(file!(), 1), asked(file!(), 2));
        assert_eq!(one, asked(file!(), 1));
        assert_eq!(one.len(), 21, "twenty, and the one that is kept in lib.proptest-regressions");
        assert_eq!(one[0], other[0], "the one that is kept");
        assert!(one[1..].iter().all(|number| !other[1..].contains(number)));
    }
}
