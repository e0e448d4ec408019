//! Ends a run in which nothing goes on any more, and says where it was: a test that hangs, or a kernel that does, would say nothing.

use std::collections::BTreeMap;
use std::fs;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use duct::cmd;

/// No rung takes so long: the slowest ones take fifteen minutes on two busy cores, most of it for building an agent.
const LONGEST_RUNG: Duration = Duration::from_mins(30);
/// How often the rungs are looked at.
const EVERY: Duration = Duration::from_secs(5);

/// The rungs under way.
#[derive(Clone, Debug, Default)]
pub struct Running(Arc<Mutex<BTreeMap<String, At>>>);

#[derive(Clone, Debug)]
struct At {
    since: Instant,
    /// What the rung has printed last.
    line: String,
}

/// Watches until it is dropped.
#[derive(Debug)]
pub struct Watch(#[expect(dead_code, reason = "its end is what counts")] Sender<()>);

impl Running {
    fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<String, At>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A rung begins.
    pub fn begin(&self, rung: &str) {
        self.with(|all| all.insert(rung.to_owned(), At { since: Instant::now(), line: String::new() }));
    }

    /// A rung has printed a line.
    pub fn line(&self, rung: &str, line: &str) {
        self.with(|all| {
            if let Some(at) = all.get_mut(rung) {
                line.clone_into(&mut at.line);
            }
        });
    }

    /// A rung has ended.
    pub fn end(&self, rung: &str) {
        self.with(|all| all.remove(rung));
    }

    /// The rungs that should have ended, as lines; none while all goes well.
    fn stalled(&self, now: Instant) -> Vec<String> {
        let line = |(rung, at): (&String, &At)| {
            let minutes = now.saturating_duration_since(at.since).as_secs() / 60;
            format!("rung {rung} has run for {minutes} min; its last line: {}", at.line)
        };
        self.with(|all| {
            let is_late = |at: &At| now.saturating_duration_since(at.since) > LONGEST_RUNG;
            if all.values().any(is_late) { all.iter().map(line).collect() } else { Vec::new() }
        })
    }

    /// Ends this process with a report once a rung takes longer than any does.
    pub fn watch(&self) -> Watch {
        let (watch, ended) = channel();
        let running = self.clone();
        thread::spawn(move || {
            while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                let stalled = running.stalled(Instant::now());
                if !stalled.is_empty() {
                    report(&stalled);
                    kill_descendants();
                    println!("0 passed, {} failed", stalled.len());
                    std::process::exit(1);
                }
            }
        });
        Watch(watch)
    }
}

fn report(stalled: &[String]) {
    println!("\nthe run has stalled and ends here:");
    for line in stalled {
        println!("  {line}");
    }
    println!("\nprocesses under way (state, time, where in the kernel):");
    let processes = cmd!("ps", "-eo", "pid,ppid,stat,etimes,wchan:32,args", "--sort=etimes").unchecked().read();
    println!("{}", processes.unwrap_or_default());
    println!("\nthe kernel's log:");
    let log = cmd!("dmesg").stderr_null().unchecked().read().unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    println!("{}", lines[lines.len().saturating_sub(40)..].join("\n"));
}

/// Kills what this process has started. What the kernel does not let go of stays.
fn kill_descendants() {
    for pid in descendants(std::process::id(), &parents()) {
        if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

/// Each process and its parent.
fn parents() -> Vec<(u32, u32)> {
    let of = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // After the name, which may hold anything: the state and the parent.
        let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
        Some((pid, parent))
    };
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(of).collect()
}

fn descendants(of: u32, parents: &[(u32, u32)]) -> Vec<u32> {
    let mut found = vec![of];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(parents.iter().filter(|(_, its)| *its == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.split_off(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rung_that_takes_too_long_is_named_with_its_last_line() {
        let (running, now) = (Running::default(), Instant::now());
        running.begin("packet");
        running.begin("drain");
        running.line("drain", "test drain::one ... ok");
        assert_eq!(running.stalled(now + LONGEST_RUNG / 2), Vec::<String>::new());
        running.end("packet");
        let [line] = &running.stalled(now + LONGEST_RUNG * 2)[..] else { panic!("one is under way") };
        assert!(line.starts_with("rung drain has run for") && line.ends_with("test drain::one ... ok"), "{line}");
        running.end("drain");
        assert_eq!(running.stalled(now + LONGEST_RUNG * 2), Vec::<String>::new());
    }

    #[test]
    fn descendants_are_children_and_their_children() {
        assert_eq!(descendants(1, &[(2, 1), (3, 2), (4, 9), (5, 1)]), [2, 5, 3]);
        let own = std::process::id();
        assert!(parents().iter().any(|(pid, _)| *pid == own));
    }
}
