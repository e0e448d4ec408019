//! Which tests failed on mutated programs, as libtest reports it, and whether the kernel had loaded the programs.

use anyhow::{Result, bail};

/// Texts of a test that had no programs: aya's error and the agent's where the kernel refused them, and that of tests which edit them.
const REFUSALS: [&str; 4] =
    ["BPF_PROG_LOAD", "LoadError", "the kernel refused program", "the edited programs do not build"];

/// The failed tests of one run.
#[derive(Debug, Default)]
pub struct Failures(Vec<Failure>);

#[derive(Debug)]
struct Failure {
    test: String,
    /// What it said about the programs that it did not get.
    refusal: Option<String>,
}

impl Failures {
    /// Takes in one line. Libtest prints what a failed test said below a line with its name.
    pub fn read_line(&mut self, line: &str) {
        if let Some(test) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
            self.0.push(Failure { test: test.to_owned(), refusal: None });
        } else if let Some(last) = self.0.last_mut()
            && REFUSALS.iter().any(|text| line.contains(text))
        {
            last.refusal.get_or_insert_with(|| line.trim().to_owned());
        }
    }

    /// The first test that failed. An error: no test says why the run failed, or one failed because its programs were not loaded.
    pub fn first(self, what: &str, succeeded: bool) -> Result<Option<String>> {
        if let Some(Failure { test, refusal: Some(refusal) }) = self.0.iter().find(|failure| failure.refusal.is_some())
        {
            bail!("{what}: {test} had no programs: {refusal}");
        }
        match self.0.into_iter().next() {
            Some(failure) => Ok(Some(failure.test)),
            None if succeeded => Ok(None),
            None => bail!("{what}: failed, and no test did: it did not build, or did not finish"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Failures {
        let mut failures = Failures::default();
        for line in lines {
            failures.read_line(line);
        }
        failures
    }

    #[test]
    fn a_failed_test_is_named() {
        let lines =
            ["test packet::a ... ok", "test packet::b ... FAILED", "", "failures:", "", "---- packet::b stdout ----"];
        let failures = read(&[&lines[..], &["assertion failed: left == right"]].concat());
        assert_eq!(failures.first("packet", false).expect("named"), Some("packet::b".into()));
        assert_eq!(read(&["test packet::a ... ok"]).first("packet", true).expect("passed"), None);
    }

    #[test]
    fn a_run_that_ends_without_a_failed_test_shows_nothing() {
        for lines in [&["error: could not compile `lb-tests`"][..], &["test packet::a ... "]] {
            let error = read(lines).first("packet", false).expect_err("no name").to_string();
            assert!(error.contains("did not build"), "{error}");
        }
    }

    #[test]
    fn programs_that_are_not_loaded_are_noticed_by_no_test() {
        let lines =
            ["---- drain::a stdout ----", "error: the kernel refused program pod_in: ...", "---- drain::b stdout ----"];
        let error = read(&lines).first("drain", false).expect_err("not loaded").to_string();
        assert!(error.contains("drain::a") && error.contains("pod_in"), "{error}");
        let lines = ["---- decisions::a stdout ----", "Error: the edited programs do not build: \"driven\""];
        let error = read(&lines).first("decisions", false).expect_err("not built").to_string();
        assert!(error.contains("decisions::a") && error.contains("driven"), "{error}");
    }
}
