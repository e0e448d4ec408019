//! The agent step by step: each system call that changes something beside its memory, and the agent killed before one of them.
//!
//! A filter of the kernel (seccomp) stops the agent at such calls alone, and this process traces it (ptrace), so neither the agent
//! nor its speed is another one. Killed at a step, the agent never makes that call. Held before a step, it makes the call later.

mod describe;
mod filter;

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::str::FromStr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::topology::NetNs;

/// A step, by what the call does and how often the same was done before: `update slots#2` is the second of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Step {
    pub what: String,
    /// From 1.
    pub nth: usize,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.what, self.nth)
    }
}

impl FromStr for Step {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (what, nth) = text.rsplit_once('#').context("a step is written as `update slots#2`")?;
        Ok(Self { what: what.to_owned(), nth: nth.parse()? })
    }
}

/// A process is held at most so long before one step.
const LONGEST_HOLD: Duration = Duration::from_mins(1);

/// The steps before which a process is held, one after the other. Dropped, the process runs on.
#[derive(Debug)]
pub struct Held {
    steps: Receiver<Step>,
    go: Sender<()>,
}

impl Held {
    /// Waits until the process is held, does the work, and lets the process go. `None`: nothing holds it within `limit`, or it has ended.
    pub fn at_next<T>(&self, limit: Duration, work: impl FnOnce(&Step) -> T) -> Option<T> {
        let step = match self.steps.recv_timeout(limit) {
            Ok(step) => step,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
        };
        let done = work(&step);
        self.go.send(()).ok();
        Some(done)
    }
}

/// Where a process is held, and the other end of a [`Held`].
#[derive(Debug)]
struct Hold {
    begins: &'static [&'static str],
    steps: Sender<Step>,
    go: Arc<Mutex<Receiver<()>>>,
}

/// What becomes of a process at a step.
enum Fate {
    Goes,
    Ends,
    /// It waits for a word, or for the end of the one who would give it.
    Waits(Arc<Mutex<Receiver<()>>>),
}

#[derive(Debug, Default)]
struct Seen {
    steps: Vec<Step>,
    counts: BTreeMap<String, usize>,
    kill_at: Option<Step>,
    hold: Option<Hold>,
    /// It was killed at the step that was asked for.
    is_reached: bool,
}

impl Seen {
    /// Takes a step down.
    fn add(&mut self, what: String) -> Fate {
        let count = self.counts.entry(what.clone()).or_default();
        *count += 1;
        let step = Step { what, nth: *count };
        self.is_reached = self.kill_at.as_ref() == Some(&step);
        self.steps.push(step.clone());
        let hold = self.hold.as_ref().filter(|hold| hold.begins.iter().any(|begin| step.what.starts_with(begin)));
        match hold {
            _ if self.is_reached => Fate::Ends,
            Some(hold) if hold.steps.send(step).is_ok() => Fate::Waits(Arc::clone(&hold.go)),
            _ => Fate::Goes,
        }
    }
}

/// A traced process. Dropped, it is killed.
#[derive(Debug)]
pub struct Stepped {
    pid: Pid,
    seen: Arc<Mutex<Seen>>,
    tracer: Option<JoinHandle<Result<()>>>,
}

impl Stepped {
    /// Starts a program in a place; it is killed at a step, if one is given.
    pub fn start(netns: &NetNs, mut command: Command, kill_at: Option<Step>) -> Result<Self> {
        let seen = Arc::new(Mutex::new(Seen { kill_at, ..Seen::default() }));
        let (tell, started) = std::sync::mpsc::channel();
        let kept = Arc::clone(&seen);
        // The thread that starts a traced process is the one that traces it.
        let tracer = netns.spawn(move || {
            let pid = match begin(&mut command) {
                Ok(pid) => pid,
                Err(error) => {
                    tell.send(Err(error)).ok();
                    return Ok(());
                }
            };
            tell.send(Ok(pid)).ok();
            follow(pid, &kept)
        });
        let pid = started.recv().context("the tracer ended")??;
        Ok(Self { pid, seen, tracer: Some(tracer) })
    }

    /// What it has done so far.
    pub fn steps(&self) -> Vec<Step> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).steps.clone()
    }

    /// Forgets what it has done, counts from here, and kills it at this step.
    pub fn kill_at(&self, step: Option<Step>) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Seen { kill_at: step, ..Seen::default() };
    }

    /// Holds it before each step that begins so.
    pub fn hold_at(&self, begins: &'static [&'static str]) -> Held {
        let ((steps, held), (go, word)) = (channel(), channel());
        let hold = Hold { begins, steps, go: Arc::new(Mutex::new(word)) };
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).hold = Some(hold);
        Held { steps: held, go }
    }

    /// Whether it still runs.
    pub fn is_alive(&self) -> bool {
        self.tracer.as_ref().is_some_and(|tracer| !tracer.is_finished())
    }

    /// Kills it now, and says whether it had been killed at its step before.
    pub fn end(mut self) -> Result<bool> {
        self.stop()?;
        Ok(self.seen.lock().unwrap_or_else(PoisonError::into_inner).is_reached)
    }

    fn stop(&mut self) -> Result<()> {
        let Some(tracer) = self.tracer.take() else { return Ok(()) };
        if !tracer.is_finished() {
            kill(self.pid, Signal::SIGKILL).ok();
        }
        tracer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for Stepped {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("the tracer: {error:#}");
        }
    }
}

/// Starts the program up to its first instruction.
fn begin(command: &mut Command) -> Result<Pid> {
    // SAFETY: between fork and exec only two system calls are made, which allocate nothing.
    unsafe {
        command.pre_exec(|| {
            ptrace::traceme()?;
            filter::install()
        });
    }
    let child = command.spawn()?;
    let pid = Pid::from_raw(i32::try_from(child.id())?);
    let status = waitpid(pid, Some(WaitPidFlag::__WALL))?;
    ensure!(matches!(status, WaitStatus::Stopped(_, Signal::SIGTRAP)), "it did not start: {status:?}");
    let options = ptrace::Options::PTRACE_O_TRACESECCOMP
        | ptrace::Options::PTRACE_O_TRACECLONE
        | ptrace::Options::PTRACE_O_EXITKILL;
    ptrace::setoptions(pid, options)?;
    ptrace::cont(pid, None)?;
    Ok(pid)
}

/// Takes down every step until the process ends.
fn follow(pid: Pid, seen: &Mutex<Seen>) -> Result<()> {
    let mut describer = describe::Describer::new(pid);
    // Threads of this one alone: others start programs, too.
    let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
    loop {
        let status = match waitpid(None, Some(flags)) {
            Ok(status) => status,
            Err(nix::Error::ECHILD) => return Ok(()),
            Err(nix::Error::EINTR) => continue,
            Err(error) => bail!("waiting for steps: {error}"),
        };
        let (thread, signal) = match status {
            WaitStatus::PtraceEvent(thread, _, event) => {
                if event == libc::PTRACE_EVENT_SECCOMP
                    && let Some(what) = describer.step(thread)
                {
                    let fate = seen.lock().unwrap_or_else(PoisonError::into_inner).add(what);
                    match fate {
                        Fate::Goes => {}
                        Fate::Ends => kill(pid, Signal::SIGKILL)?,
                        Fate::Waits(go) => {
                            go.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(LONGEST_HOLD).ok();
                        }
                    }
                }
                (thread, None)
            }
            // How a new thread begins.
            WaitStatus::Stopped(thread, Signal::SIGSTOP | Signal::SIGTRAP) => (thread, None),
            WaitStatus::Stopped(thread, signal) => (thread, Some(signal)),
            _ => continue,
        };
        match ptrace::cont(thread, signal) {
            // It was killed meanwhile.
            Ok(()) | Err(nix::Error::ESRCH) => {}
            Err(error) => bail!("continuing a step: {error}"),
        }
    }
}
