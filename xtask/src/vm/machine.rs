//! One run of a virtual machine: QEMU without hardware virtualisation, a serial console, an end within bounds.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use duct::cmd;

/// More of them cost an emulated machine more than they bring: guests run beside each other instead.
const PROCESSORS: &str = "1";
/// As its first process says (see `ballast-guest`).
const BEGUN: &str = "guest: begun";
const DONE: &str = "guest: done";
/// The kernel's own last word, if it is one.
const PANIC: &str = "Kernel panic";

/// A machine whose output is its console's.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    pub image: &'a Path,
    pub files: &'a Path,
    pub memory_mib: u32,
    /// How long it may run, boot and all.
    pub limit: Duration,
}

impl Machine<'_> {
    /// Runs it until it switches itself off; every line of its console goes to `each`.
    ///
    /// An error: it did not boot, did not come to its end, or took too long.
    pub fn run(&self, mut each: impl FnMut(&str)) -> Result<()> {
        let started = Instant::now();
        let machine = self
            .command()
            .stdin_null()
            .stderr_to_stdout()
            .unchecked()
            .reader()
            .context("qemu-system-x86_64 cannot be started")?;
        let machine = std::sync::Arc::new(machine);
        let (send, lines) = channel();
        let reader = std::sync::Arc::clone(&machine);
        let worker = std::thread::spawn(move || {
            use std::io::{BufRead as _, BufReader};
            let mut bytes = Vec::new();
            let mut console = BufReader::new(&*reader);
            while console.read_until(b'\n', &mut bytes).is_ok_and(|length| length > 0) {
                // A closed channel: nobody waits any more.
                if send.send(String::from_utf8_lossy(&bytes).trim_end().to_owned()).is_err() {
                    return;
                }
                bytes.clear();
            }
        });
        let mut progress = Progress::default();
        let ended = loop {
            match lines.recv_timeout(self.limit.saturating_sub(started.elapsed())) {
                Ok(line) => {
                    progress.read_line(&line);
                    each(&line);
                }
                Err(RecvTimeoutError::Disconnected) => break true,
                Err(RecvTimeoutError::Timeout) => break false,
            }
        };
        machine.kill().context("the machine cannot be ended")?;
        worker.join().ok();
        progress.judge(ended, self.limit)
    }

    fn command(&self) -> duct::Expression {
        let memory = format!("{}M", self.memory_mib);
        // A panic restarts the machine, and a restart ends it.
        let line = "console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on";
        cmd!(
            "qemu-system-x86_64",
            // Hardware virtualisation is not everywhere, and hangs in some places where it seems to be.
            "-accel",
            "tcg",
            "-cpu",
            "max",
            // The guest's clock counts the instructions that it runs, two nanoseconds each (2^shift), and skips the time in which it is idle. A busy
            // machine takes longer, and no deadline of a test comes nearer.
            "-icount",
            "shift=1,sleep=off",
            "-rtc",
            "clock=vm",
            "-smp",
            PROCESSORS,
            "-m",
            memory,
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
            "-serial",
            "stdio",
            "-kernel",
            self.image,
            "-initrd",
            self.files,
            "-append",
            line
        )
    }
}

/// How far a machine came, by its console.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Progress {
    begun: bool,
    done: bool,
    panicked: bool,
}

impl Progress {
    fn read_line(&mut self, line: &str) {
        self.begun |= line.ends_with(BEGUN);
        self.done |= line == DONE;
        self.panicked |= line.contains(PANIC);
    }

    fn judge(self, ended: bool, limit: Duration) -> Result<()> {
        match self {
            Self { panicked: true, .. } => bail!("the guest's kernel panicked"),
            _ if !ended => bail!("the guest did not end within {} s", limit.as_secs()),
            Self { begun: false, .. } => bail!("the guest did not boot"),
            Self { done: false, .. } => bail!("the guest ended before its tests did"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(lines: &[&str], ended: bool) -> Result<()> {
        let mut progress = Progress::default();
        for line in lines {
            progress.read_line(line);
        }
        progress.judge(ended, Duration::from_secs(9))
    }

    #[test]
    fn only_a_guest_that_came_to_its_end_counts() {
        // The loader may leave something on the first line.
        judged(&["\u{1b}c guest: begun", "test a ... ok", "guest: done"], true).expect("came to its end");
        for (lines, ended, reason) in [
            (&["guest: begun", "guest: done"][..], false, "within 9 s"),
            (&["guest: begun", "test a ... ok"], true, "before its tests"),
            (&["Booting"], true, "did not boot"),
            (&["guest: begun", "[    1.0] Kernel panic - not syncing"], true, "panicked"),
        ] {
            let error = judged(lines, ended).expect_err("did not").to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
