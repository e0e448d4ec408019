//! How far a command is with what it installs and builds: which step, how long so far, about how long yet.

use std::io::{IsTerminal as _, Write as _};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::process::say;

/// How often a running step is shown: in place on a terminal, as lines in a log.
const ON_TERMINAL: Duration = Duration::from_secs(1);
const IN_LOG: Duration = Duration::from_secs(30);
/// How much faster or slower than estimated the steps so far may make the rest look.
const FACTOR: [f64; 2] = [0.3, 4.0];

/// One step, and about how long it takes on two processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub name: String,
    pub estimate: Duration,
}

/// All steps of a command, and those that are done.
#[derive(Debug)]
pub struct Progress {
    steps: Vec<Step>,
    /// What the done steps took.
    times: Vec<Duration>,
}

impl Progress {
    pub fn new(steps: Vec<Step>) -> Self {
        Self { steps, times: Vec::new() }
    }

    /// Runs the next step and shows it meanwhile. `quiet`: the step shows nothing of its own, so its time is shown.
    pub fn step<T>(&mut self, quiet: bool, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        say(&self.line(Duration::ZERO));
        let started = Instant::now();
        let outcome = if quiet { self.shown(started, work) } else { work() };
        let (name, took) = (&self.steps[self.times.len()].name, started.elapsed());
        if outcome.is_ok() {
            say(&format!("{name}: done in {:.1} s", took.as_secs_f64()));
        }
        self.times.push(took);
        outcome
    }

    /// The steps that are done, and what they took.
    pub fn done(&self) -> impl Iterator<Item = (&str, Duration)> {
        self.steps.iter().map(|step| &*step.name).zip(self.times.iter().copied())
    }

    /// Shows the step's time while `work` runs.
    fn shown<T>(&self, started: Instant, work: impl FnOnce() -> T) -> T {
        let terminal = std::io::stderr().is_terminal();
        let (end, ended) = channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                let every = if terminal { ON_TERMINAL } else { IN_LOG };
                while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                    let line = self.line(started.elapsed());
                    if terminal {
                        eprint!("\r\x1b[K    {line}");
                        std::io::stderr().flush().ok();
                    } else {
                        say(&line);
                    }
                }
                if terminal {
                    eprint!("\r\x1b[K");
                }
            });
            let outcome = work();
            drop(end);
            outcome
        })
    }

    /// `step 3 of 7: kube-apiserver, 35 s so far; about 4 min left in all`
    fn line(&self, elapsed: Duration) -> String {
        let (number, all) = (self.times.len() + 1, self.steps.len());
        let so_far = if elapsed.is_zero() { String::new() } else { format!(", {} s so far", elapsed.as_secs()) };
        let left = match self.this_step().checked_sub(elapsed) {
            Some(this) => format!("about {} left in all", about(this + self.later_steps())),
            None if number == all => "longer than estimated".to_owned(),
            None => format!("longer than estimated; about {} for the steps after it", about(self.later_steps())),
        };
        format!("step {number} of {all}: {}{so_far}; {left}", self.steps[self.times.len()].name)
    }

    /// How long the running step takes in all, at the pace of the steps before it.
    fn this_step(&self) -> Duration {
        self.steps[self.times.len()].estimate.mul_f64(self.pace())
    }

    fn later_steps(&self) -> Duration {
        let estimates: Duration = self.steps[self.times.len() + 1..].iter().map(|step| step.estimate).sum();
        estimates.mul_f64(self.pace())
    }

    fn pace(&self) -> f64 {
        let estimated: Duration = self.steps[..self.times.len()].iter().map(|step| step.estimate).sum();
        if estimated.is_zero() {
            return 1.0;
        }
        let took: Duration = self.times.iter().sum();
        (took.as_secs_f64() / estimated.as_secs_f64()).clamp(FACTOR[0], FACTOR[1])
    }
}

/// A duration as precise as an estimate is.
fn about(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..90 => format!("{} s", (seconds.max(1)).next_multiple_of(5)),
        seconds => format!("{} min", (seconds + 30) / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps() -> Progress {
        let step = |name: &str, seconds| Step { name: name.into(), estimate: Duration::from_secs(seconds) };
        Progress::new(vec![step("one", 40), step("two", 200), step("three", 60)])
    }

    #[test]
    fn a_line_says_which_step_and_what_is_left() {
        let mut progress = steps();
        assert_eq!(progress.line(Duration::ZERO), "step 1 of 3: one; about 5 min left in all");
        progress.times = vec![Duration::from_secs(40), Duration::from_secs(200)];
        let line = progress.line(Duration::from_secs(50));
        assert_eq!(line, "step 3 of 3: three, 50 s so far; about 10 s left in all");
        assert_eq!(progress.line(Duration::from_secs(500)), "step 3 of 3: three, 500 s so far; longer than estimated");
        progress.times.pop();
        let late = progress.line(Duration::from_secs(500));
        assert!(late.ends_with("longer than estimated; about 60 s for the steps after it"), "{late}");
    }

    #[test]
    fn a_slow_machine_makes_the_rest_longer() {
        let mut progress = steps();
        progress.step(true, || Ok(())).expect("does nothing");
        assert_eq!(progress.done().map(|(name, _)| name).collect::<Vec<_>>(), ["one"]);
        progress.times[0] = Duration::from_secs(80);
        assert_eq!((progress.this_step(), progress.later_steps()), (Duration::from_secs(400), Duration::from_mins(2)));
        progress.times[0] = Duration::ZERO;
        assert_eq!((progress.this_step(), progress.later_steps()), (Duration::from_mins(1), Duration::from_secs(18)));
    }

    #[test]
    fn a_failed_step_is_an_error() {
        assert!(steps().step(true, || -> anyhow::Result<()> { anyhow::bail!("no") }).is_err());
    }
}
