//! What a guest's console says of its subjects: one counts only if it printed a result and its exit status agrees.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::test::Tally;

/// Lines of the guest's first process (see `ballast-guest`) around the output of each subject.
const RUNNING: &str = "guest: running ";
const PREFIX: &str = "guest: ";
const ENDED: &str = " ended with ";
/// How [`std::process::ExitStatus`] prints success.
const SUCCESS: &str = "exit status: 0";

/// Reads a console and counts.
#[derive(Debug)]
pub struct Console {
    total: Tally,
    /// The subject that runs now, since when, and its tests so far.
    running: Option<(String, Instant, Tally)>,
    /// Subjects that did not end yet.
    missing: BTreeSet<String>,
}

impl Console {
    /// Each of these subjects must run to its end.
    pub fn expecting<'a>(subjects: impl IntoIterator<Item = &'a str>) -> Self {
        let missing = subjects.into_iter().map(str::to_owned).collect();
        Self { total: Tally::default(), running: None, missing }
    }

    /// Takes in one line.
    pub fn read_line(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix(RUNNING) {
            self.running = Some((name.to_owned(), Instant::now(), Tally::default()));
        } else if let Some((name, since, tally)) = &mut self.running {
            let ended = line.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix(name.as_str()));
            if let Some(status) = ended.and_then(|rest| rest.strip_prefix(ENDED)) {
                self.missing.remove(name);
                tally.times.push((since.elapsed(), name.clone()));
                self.total += judged(name, std::mem::take(tally), status);
                self.running = None;
            } else {
                tally.read_line(line);
            }
        }
    }

    /// The sum; a subject that did not end is a failure.
    pub fn finish(mut self) -> Tally {
        for name in self.missing {
            self.total += Tally::one(&format!("{name}: did not end"), false);
        }
        self.total
    }
}

/// The tests of a subject, and a failure more if they do not account for how it ended.
fn judged(name: &str, mut tally: Tally, status: &str) -> Tally {
    let problem = if tally.passed + tally.failed == 0 {
        format!("{name}: {status}, and no result")
    } else if status != SUCCESS && tally.failed == 0 {
        format!("{name}: {status}, though no test failed")
    } else {
        return tally;
    };
    tally += Tally::one(&problem, false);
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tally of the subject `guest_a`, whose console says this.
    fn tally(lines: &[&str]) -> Tally {
        let mut console = Console::expecting(["guest_a"]);
        for line in lines {
            console.read_line(line);
        }
        console.finish()
    }

    fn of_subject(output: &[&str], status: &str) -> Tally {
        let ended = format!("guest: guest_a ended with {status}");
        let mut lines = vec!["guest: begun", "guest: running guest_a"];
        lines.extend(output);
        lines.extend([ended.as_str(), "guest: done"]);
        tally(&lines)
    }

    #[test]
    fn results_of_a_subject_that_ended_well_are_counted() {
        let output = ["test a ... ok", "test result: ok. 2 passed; 0 failed; 0 ignored"];
        let tally = of_subject(&output, "exit status: 0");
        assert_eq!((tally.passed, tally.failed), (2, 0));
    }

    #[test]
    fn a_failed_test_is_counted_once() {
        let output = ["test a ... FAILED", "test result: FAILED. 1 passed; 1 failed; 0 ignored"];
        let tally = of_subject(&output, "exit status: 101");
        assert_eq!((tally.passed, tally.failed), (1, 1));
        assert_eq!(tally.failures, ["a"]);
    }

    #[test]
    fn a_subject_that_aborts_or_is_killed_fails() {
        for status in ["signal: 6 (SIGABRT) (core dumped)", "signal: 9 (SIGKILL)", "exit status: 101"] {
            let tally = of_subject(&["running 2 tests", "test a ... ok"], status);
            assert_eq!(tally.failed, 1, "{status}");
            assert_eq!(tally.failures, [format!("guest_a: {status}, and no result")]);
        }
    }

    #[test]
    fn a_subject_that_fails_after_its_result_fails() {
        for status in ["signal: 11 (SIGSEGV)", "exit status: 1"] {
            let tally = of_subject(&["test result: ok. 2 passed; 0 failed; 0 ignored"], status);
            assert_eq!((tally.passed, tally.failed), (2, 1), "{status}");
            assert_eq!(tally.failures, [format!("guest_a: {status}, though no test failed")]);
        }
    }

    #[test]
    fn a_subject_that_prints_no_result_or_runs_no_test_fails() {
        assert_eq!(of_subject(&[], "exit status: 0").failed, 1);
        assert_eq!(of_subject(&["test result: ok. 0 passed; 0 failed; 0 ignored"], "exit status: 0").failed, 1);
    }

    #[test]
    fn a_subject_that_does_not_end_fails() {
        let lines = ["guest: running guest_a", "test result: ok. 2 passed; 0 failed; 0 ignored"];
        for lines in [&lines[..], &[]] {
            assert_eq!(tally(lines).failures, ["guest_a: did not end"]);
        }
    }

    #[test]
    fn a_result_counts_for_the_subject_that_printed_it() {
        let mut console = Console::expecting(["guest_a", "guest_b"]);
        for line in [
            "guest: running guest_a",
            "guest: guest_a ended with signal: 6 (SIGABRT)",
            "guest: running guest_b",
            "test result: ok. 3 passed; 0 failed; 0 ignored",
            "guest: guest_b ended with exit status: 0",
        ] {
            console.read_line(line);
        }
        let tally = console.finish();
        assert_eq!((tally.passed, tally.failed), (3, 1));
        assert_eq!(tally.failures, ["guest_a: signal: 6 (SIGABRT), and no result"]);
    }
}
