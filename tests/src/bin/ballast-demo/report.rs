//! What the tour did: each step with what it saw, for a person as it happens, or for a program as JSON in the end.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Result, bail};
use serde::Serialize;

/// One step of the tour.
#[derive(Debug, Serialize)]
pub struct Step {
    /// What should be so.
    #[serde(rename = "step")]
    pub name: String,
    pub ok: bool,
    /// What was seen, or what went wrong.
    pub saw: String,
    pub seconds: f64,
}

/// The steps so far.
#[derive(Debug, Default)]
pub struct Report {
    pub steps: Vec<Step>,
    /// Nothing on the way, JSON in the end.
    pub json: bool,
    /// Set by a signal: no further step begins.
    pub interrupted: Arc<AtomicBool>,
}

impl Report {
    /// Runs a step; `work` returns what it saw. A failed step does not end the tour.
    pub fn step(&mut self, name: &str, work: impl FnOnce() -> Result<String>) {
        if self.interrupted.load(Ordering::Relaxed) {
            return;
        }
        let started = Instant::now();
        let outcome = work();
        // A step that a signal ended shows nothing.
        if outcome.is_err() && self.interrupted.load(Ordering::Relaxed) {
            return;
        }
        let seconds = (started.elapsed().as_secs_f64() * 100.0).round() / 100.0;
        let (ok, saw) = match outcome {
            Ok(saw) => (true, saw),
            Err(error) => (false, format!("{error:#}")),
        };
        self.say(format_args!("{} {name}: {saw} ({seconds:.1} s)", if ok { "ok  " } else { "FAIL" }));
        self.steps.push(Step { name: name.to_owned(), ok, saw, seconds });
    }

    /// A line for a person.
    pub fn say(&self, line: impl Display) {
        if !self.json {
            println!("{line}");
        }
    }

    /// The whole, for a program.
    pub fn print_json(&self) -> Result<()> {
        if self.json {
            let failed = self.failed();
            let whole = serde_json::json!({ "ok": failed == 0, "failed": failed, "steps": self.steps });
            println!("{}", serde_json::to_string_pretty(&whole)?);
        }
        Ok(())
    }

    /// An error if any step failed.
    pub fn verdict(&self) -> Result<()> {
        match self.failed() {
            0 => Ok(()),
            failed => bail!("{failed} of {} steps did not do what they say", self.steps.len()),
        }
    }

    fn failed(&self) -> usize {
        self.steps.iter().filter(|step| !step.ok).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_is_told_and_the_tour_goes_on() {
        let mut report = Report { json: true, ..Report::default() };
        report.step("one", || bail!("no answer"));
        report.step("two", || Ok("3 of 3".into()));
        assert_eq!((report.steps[0].ok, report.steps[0].saw.as_str()), (false, "no answer"));
        assert!(report.steps[1].ok);
        let error = report.verdict().expect_err("one failed").to_string();
        assert!(error.starts_with("1 of 2"), "{error}");
    }

    #[test]
    fn after_an_interrupt_no_step_begins() {
        let mut report = Report { json: true, ..Report::default() };
        report.interrupted.store(true, Ordering::Relaxed);
        report.step("one", || panic!("begun"));
        assert!(report.steps.is_empty());
        report.interrupted.store(false, Ordering::Relaxed);
        let interrupted = Arc::clone(&report.interrupted);
        report.step("ended by a signal", || {
            interrupted.store(true, Ordering::Relaxed);
            bail!("interrupted")
        });
        assert!(report.steps.is_empty(), "{:?}", report.steps);
    }
}
