//! Waits of the demo: as long as a busy machine needs, while the user sees what is awaited.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The longest wait. Nothing is asserted by it: a machine that compiles meanwhile needs a minute to load all programs.
pub const LIMIT: Duration = Duration::from_mins(3);
/// A wait shorter than this is not worth a line.
const SILENT: Duration = Duration::from_secs(1);
/// How often a wait says that it goes on.
const REPEAT: Duration = Duration::from_secs(5);
/// How often the awaited thing is checked.
const LOOK: Duration = Duration::from_millis(20);

/// Waits, and says so.
#[derive(Debug)]
pub struct Waiting {
    /// Nothing on the way: the output is for a program.
    pub quiet: bool,
    /// Set by a signal: every wait ends.
    pub interrupted: Arc<AtomicBool>,
}

impl Waiting {
    /// Calls `look` until it finds what is awaited. Else it returns what is missing, for the user; an error of it ends the wait.
    pub fn until<T>(&self, what: &str, mut look: impl FnMut() -> Result<Result<T, String>>) -> Result<(Duration, T)> {
        let started = Instant::now();
        let (mut said, mut next) = (String::new(), SILENT);
        loop {
            let missing = match look()? {
                Ok(found) => return Ok((started.elapsed(), found)),
                Err(missing) => missing,
            };
            let waited = started.elapsed();
            if self.interrupted.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            if waited > LIMIT {
                bail!("{what}: not within {} s: {missing}", LIMIT.as_secs());
            }
            if waited >= next || (waited >= SILENT && missing != said) {
                self.say(&format!("     waiting for {what} ({:.0} s): {missing}", waited.as_secs_f64()));
                (said, next) = (missing, waited + REPEAT);
            }
            sleep(LOOK);
        }
    }

    fn say(&self, line: &str) {
        if !self.quiet {
            println!("{line}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(interrupted: bool) -> Waiting {
        Waiting { quiet: true, interrupted: Arc::new(AtomicBool::new(interrupted)) }
    }

    #[test]
    fn a_wait_ends_with_what_it_found() {
        let mut looks = 0;
        let found = waiting(false).until("three looks", || {
            looks += 1;
            Ok(if looks < 3 { Err(format!("{looks} of 3")) } else { Ok(looks) })
        });
        assert_eq!(found.expect("found").1, 3);
    }

    #[test]
    fn a_signal_or_an_error_ends_a_wait() {
        let wait = |interrupted, look: fn() -> Result<Result<(), String>>| {
            let error = waiting(interrupted).until("nothing", look).expect_err("it never comes");
            error.to_string()
        };
        assert_eq!(wait(true, || Ok(Err("still".into()))), "interrupted");
        assert_eq!(wait(false, || bail!("the agent ended")), "the agent ended");
    }
}
