//! What a command waits for, on standard error, where that is a terminal and the command takes longer than a second.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use super::output::Format;
use crate::agent::clock;

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
        let mut what = what.to_owned();
        let thread = std::thread::spawn(move || {
            let (started, mut is_there) = (clock::monotonic(), false);
            loop {
                match receiver.recv_timeout(TICK) {
                    Ok(next) => what = next,
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                let passed = clock::monotonic().since(started);
                if passed >= PATIENCE {
                    is_there = true;
                    write(&format!("{ERASE}{what}: {} s", passed.as_secs()));
                }
            }
            if is_there {
                write(ERASE);
            }
        });
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

/// A terminal that is gone shows nothing.
fn write(text: &str) {
    let mut terminal = io::stderr().lock();
    let _ = terminal.write_all(text.as_bytes()).and_then(|()| terminal.flush());
}
