//! A network namespace by name, and running code in it by threads.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use nix::sched::{CloneFlags, setns};

/// Where code runs: a network namespace and, for host processes, a cgroup. Cheap to clone; keeps the namespace alive.
#[derive(Clone, Debug)]
pub struct NetNs {
    name: Arc<str>,
    namespace: Arc<File>,
    cgroup: Option<PathBuf>,
}

impl NetNs {
    /// Runs `work` on a thread of its own in this place and waits for it. Sockets made there stay there.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                self.enter();
                work()
            });
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs `work` on a thread of its own in this place.
    pub fn spawn<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        let netns = self.clone();
        std::thread::spawn(move || {
            netns.enter();
            work()
        })
    }

    /// Starts a program in this place.
    pub fn start(&self, command: &mut Command) -> std::io::Result<std::process::Child> {
        self.run(|| command.spawn())
    }

    /// Name of the namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Counts new sockets of the namespace to this cgroup.
    #[must_use]
    pub fn in_cgroup(mut self, cgroup: &Path) -> Self {
        self.cgroup = Some(cgroup.to_owned());
        self
    }

    /// Moves the calling thread here for the rest of its life.
    fn enter(&self) {
        setns(&*self.namespace, CloneFlags::CLONE_NEWNET)
            .unwrap_or_else(|error| panic!("entering namespace {}: {error}; are we root?", self.name));
        if let Some(cgroup) = &self.cgroup {
            // "0" is the thread that writes.
            std::fs::write(cgroup.join("cgroup.threads"), "0")
                .unwrap_or_else(|error| panic!("entering cgroup {}: {error}", cgroup.display()));
        }
    }
}

/// A named network namespace, as `ip netns` shows it; deleted when dropped.
#[derive(Debug)]
pub struct Namespace {
    netns: NetNs,
}

impl Namespace {
    /// Makes it.
    pub fn new(name: &str) -> Result<Self> {
        run_ip(&["netns", "add", name], "")?;
        let path = format!("/run/netns/{name}");
        let file = File::open(&path).with_context(|| format!("opening {path}"))?;
        Ok(Self { netns: NetNs { name: name.into(), namespace: Arc::new(file), cgroup: None } })
    }

    /// Its name for `ip -n NAME` and `ip netns exec NAME`.
    pub fn name(&self) -> &str {
        &self.netns.name
    }

    /// Where its code runs.
    pub fn netns(&self) -> &NetNs {
        &self.netns
    }

    /// Runs lines of `ip` commands in it, all or up to the first that fails.
    pub fn ip(&self, lines: &str) -> Result<()> {
        run_ip(&["-n", self.name(), "-batch", "-"], lines).map(drop)
    }

    /// What one `ip` command prints.
    pub fn ip_show(&self, arguments: &[&str]) -> Result<String> {
        let mut all = vec!["-n", self.name()];
        all.extend(arguments);
        run_ip(&all, "")
    }

    /// Sets a value under `/proc/sys`.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        self.netns
            .run(|| std::fs::write(format!("/proc/sys/{key}"), value))
            .with_context(|| format!("sysctl {key}={value} in {}", self.name()))
    }

    /// Removes the name and, with the last process and socket in it, the namespace and its links.
    pub(super) fn delete(name: &str) -> Result<()> {
        run_ip(&["netns", "delete", name], "").map(drop)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Err(error) = Self::delete(self.name()) {
            eprintln!("removing namespace {}: {error:#}", self.name());
        }
    }
}

/// Runs `ip` with `input` on its standard input; an error carries what it said.
pub(super) fn run_ip(arguments: &[&str], input: &str) -> Result<String> {
    let mut ip = Command::new("ip")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting `ip`: install iproute2")?;
    let mut stdin = ip.stdin.take().context("no standard input of `ip`")?;
    stdin.write_all(input.as_bytes())?;
    drop(stdin);
    let output = ip.wait_with_output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("ip {}: {}\n{input}", arguments.join(" "), said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
