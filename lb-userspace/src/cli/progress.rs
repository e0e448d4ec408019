//! What a command waits for, on standard error, where that is a terminal and the command takes longer than a second.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use super::output::Format;
use crate::agent::clock;
use lb_model::Monotonic;

/// Before this time nothing is shown.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often the line is written again.
const TICK: Duration = Duration::from_millis(250);
/// Back to the begin of the line, which is erased.
const ERASE: &str = "\r\x1b[2K";

/// A line that shows what is done, and for how long. Dropped, it is erased.
#[derive(Debug)]
pub(super) struct Progress {
    /// `None`: nothing is shown.
    shown: Option<(Sender<String>, JoinHandle<()>)>,
}

impl Progress {
    /// For a command whose output may be for a program: then nothing is shown.
    pub fn of(format: Format, what: &str) -> Self {
        if matches!(format, Format::Table | Format::Wide) { Self::start(what) } else { Self { shown: None } }
    }

    pub fn start(what: &str) -> Self {
        let takes_lines = std::env::var("TERM").is_ok_and(|term| !matches!(term.as_str(), "" | "dumb"));
        if !io::stderr().is_terminal() || !takes_lines {
            return Self { shown: None };
        }
        let (sender, receiver) = mpsc::channel();
        let what = what.to_owned();
        let thread = std::thread::spawn(move || show(&receiver, what, clock::monotonic, write));
        Self { shown: Some((sender, thread)) }
    }

    /// What is done now.
    pub fn say(&self, what: String) {
        if let Some((sender, _)) = &self.shown {
            // A thread that has ended shows nothing any more.
            let _ = sender.send(what);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.shown.take() {
            drop(sender);
            // A panic of it is of no concern to the command.
            let _ = thread.join();
        }
    }
}

/// Writes the line until all senders are gone, and erases it then. Before [`PATIENCE`] is over it writes nothing.
fn show(said: &Receiver<String>, mut what: String, now: impl Fn() -> Monotonic, mut write: impl FnMut(&str)) {
    let (started, mut is_there) = (now(), false);
    loop {
        match said.recv_timeout(TICK) {
            Ok(next) => what = next,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        let passed = now().since(started);
        if passed >= PATIENCE {
            is_there = true;
            write(&format!("{ERASE}{what}: {} s", passed.as_secs()));
        }
    }
    if is_there {
        write(ERASE);
    }
}

/// A terminal that is gone shows nothing.
fn write(text: &str) {
    let mut terminal = io::stderr().lock();
    let _ = terminal.write_all(text.as_bytes()).and_then(|()| terminal.flush());
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// What a terminal gets while a command does this, one step in each 400 ms of a clock that the test sets.
    fn shown(steps: &[&str]) -> Vec<String> {
        let (sender, receiver) = mpsc::channel();
        for step in steps {
            sender.send((*step).to_owned()).expect("it is received below");
        }
        drop(sender);
        let (readings, mut terminal) = (Cell::new(0), Vec::new());
        let now = || {
            let before = readings.replace(readings.get() + 1);
            Monotonic::from_duration(Duration::from_millis(400) * before)
        };
        show(&receiver, "asking the agents".to_owned(), now, |text| terminal.push(text.to_owned()));
        terminal
    }

    #[test]
    fn after_a_second_the_line_says_what_is_done_and_for_how_long() {
        let asked = ["1 of 4 agents asked", "2 of 4 agents asked", "3 of 4 agents asked", "4 of 4 agents asked"];
        let lines = ["3 of 4 agents asked: 1 s", "4 of 4 agents asked: 1 s"].map(|line| format!("{ERASE}{line}"));
        assert_eq!(shown(&asked), [&lines[..], &[ERASE.to_owned()]].concat(), "the line is erased at the end");
    }

    #[test]
    fn a_command_that_takes_no_second_shows_nothing() {
        assert_eq!(shown(&["1 of 2 agents asked", "2 of 2 agents asked"]), [""; 0]);
    }

    #[test]
    fn output_for_a_program_comes_without_a_line() {
        assert!(Progress::of(Format::Json, "asking the agents").shown.is_none());
    }
}
