//! A server process that lives no longer than its owner, however that ends.

use std::fs::File;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use crate::topology::NetNs;

/// How often the keeper looks whether its process ended by itself.
const LOOK: Duration = Duration::from_millis(20);
/// How much of a log is shown.
const TAIL_BYTES: usize = 4096;

/// A running process; dropped, it is killed and waited for. If the test itself is killed, the kernel kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: Pid,
    log: PathBuf,
    ended: Arc<OnceLock<ExitStatus>>,
    /// Dropping it tells the keeper to stop.
    stop: Option<Sender<()>>,
    keeper: Option<JoinHandle<()>>,
}

impl Process {
    /// Starts it in `netns` (else in the namespace of the test), with everything that it says going to the file `log`.
    pub fn start(mut command: Command, log: &Path, netns: Option<&NetNs>) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let file = File::options().create(true).append(true).open(log).with_context(|| log.display().to_string())?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        // SAFETY: between fork and exec this makes one system call and allocates nothing.
        unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) };
        let ended = Arc::new(OnceLock::new());
        let (stop, stopped) = channel();
        let (started, outcome) = channel();
        let set = Arc::clone(&ended);
        // The death signal follows the thread that forked: it stays as long as the process.
        let keep = move || match command.spawn() {
            Ok(child) => {
                started.send(Ok(child.id())).ok();
                keep(child, &stopped, &set);
            }
            Err(error) => {
                started.send(Err(error)).ok();
            }
        };
        let keeper = match netns {
            Some(netns) => netns.spawn(keep),
            None => std::thread::spawn(keep),
        };
        let outcome = outcome.recv().map_err(|_| anyhow!("the thread of {name} ended"))?;
        let pid = outcome.with_context(|| format!("starting {name}"))?;
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).context("a process has a pid")?;
        Ok(Self { name, pid, log: log.to_owned(), ended, stop: Some(stop), keeper: Some(keeper) })
    }

    /// Its number, as long as it runs.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// The error to show if it ended by itself.
    pub fn check(&self) -> Result<()> {
        match self.ended.get() {
            None => Ok(()),
            Some(status) => {
                let how = status.signal().map_or_else(|| status.to_string(), |signal| format!("signal {signal}"));
                Err(anyhow!("{} ended by itself ({how}):\n{}", self.name, self.tail()))
            }
        }
    }

    /// Stops it as it is (SIGSTOP): its connections stay open and nothing is answered.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    pub fn thaw(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        self.check()?;
        // Its keeper has not waited for it, so the pid is still its own.
        kill_process(self.pid, signal).with_context(|| format!("{signal:?} to {}", self.name))
    }

    /// The end of what it said.
    pub fn tail(&self) -> String {
        let said = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&said[said.len().saturating_sub(TAIL_BYTES)..]).into_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(keeper) = self.keeper.take() {
            keeper.join().ok();
        }
    }
}

fn keep(mut child: Child, stopped: &Receiver<()>, ended: &OnceLock<ExitStatus>) {
    while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        if let Ok(Some(status)) = child.try_wait() {
            ended.set(status).ok();
            stopped.recv().ok();
            return;
        }
    }
    child.kill().ok();
    child.wait().ok();
}
