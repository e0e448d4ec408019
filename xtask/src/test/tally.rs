//! Counts of tests, read from what the runners print.

use std::ops::AddAssign;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How many tests passed and failed, which failed, and how long each took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    pub passed: u64,
    pub failed: u64,
    pub failures: Vec<String>,
    /// Of tests that ran one after the other.
    pub times: Vec<(Duration, String)>,
}

/// The name of the test that this line of libtest's output ends.
pub fn ended_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.split_once(" ... ").map(|(name, _)| name)
}

impl Tally {
    /// One thing that passed or failed.
    pub fn one(name: &str, good: bool) -> Self {
        let failures = if good { Vec::new() } else { vec![name.to_owned()] };
        Self { passed: u64::from(good), failed: u64::from(!good), failures, times: Vec::new() }
    }

    /// Takes in one line of libtest's output.
    pub fn read_line(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("test result: ") {
            for part in rest.split(['.', ';']) {
                if let Some((count, word)) = part.trim().split_once(' ') {
                    match (count.parse::<u64>(), word) {
                        (Ok(count), "passed") => self.passed += count,
                        (Ok(count), "failed") => self.failed += count,
                        _ => {}
                    }
                }
            }
        } else if let Some(name) = line.strip_prefix("test ").and_then(|l| l.strip_suffix(" ... FAILED")) {
            self.failures.push(name.to_owned());
        }
    }

    /// A runner that failed without a failed test (it did not build, or died) is a failure all the same.
    pub fn close(&mut self, name: &str, succeeded: bool) {
        if !succeeded && self.failed == 0 {
            self.failed = 1;
            self.failures.push(format!("{name}: did not build or did not finish"));
        }
    }

    /// The closing line that CI reads.
    pub fn line(&self) -> String {
        format!("{} passed, {} failed", self.passed, self.failed)
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.failures.extend(other.failures);
        self.times.extend(other.times);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_names_come_from_the_runner() {
        let mut tally = Tally::default();
        for line in [
            "running 3 tests",
            "test plan::tests::a ... ok",
            "test plan::tests::b ... FAILED",
            "test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "test result: ok. 40 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out; finished in 1.50s",
        ] {
            tally.read_line(line);
        }
        tally.close("unit", false);
        assert_eq!((tally.passed, tally.failed), (42, 1));
        assert_eq!(tally.failures, ["plan::tests::b"]);
        assert_eq!(tally.line(), "42 passed, 1 failed");
    }

    #[test]
    fn a_line_names_the_test_that_it_ends() {
        assert_eq!(ended_test("test drain::a ... ok"), Some("drain::a"));
        assert_eq!(ended_test("test result: ok. 2 passed"), None);
        assert_eq!(ended_test("running 3 tests"), None);
    }

    #[test]
    fn a_build_failure_is_a_failure() {
        let mut tally = Tally::default();
        tally.read_line("error: could not compile `lb-userspace`");
        tally.close("unit", false);
        assert_eq!(tally.failed, 1);
        assert!(tally.failures[0].starts_with("unit"));
    }

    #[test]
    fn tallies_add_up() {
        let mut total = Tally::one("format", true);
        total += Tally::one("clippy", false);
        assert_eq!(total.line(), "1 passed, 1 failed");
        assert_eq!(total.failures, ["clippy"]);
    }
}
