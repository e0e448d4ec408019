//! A node's cgroup: what a node's host processes belong to, for programs attached to it.
//!
//! The node's processes are threads of the test here, so each node has a *threaded* cgroup below one of this process.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result};

use super::PREFIX;

/// How many nodes of this process have one, and where the process came from.
static USERS: Mutex<Users> = Mutex::new(Users { count: 0, origin: None });

struct Users {
    count: usize,
    origin: Option<PathBuf>,
}

/// A threaded cgroup, removed when dropped.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes it; the process moves to its parent.
    pub fn new(name: &str) -> Result<Self> {
        let root = root()?;
        let parent = process_cgroup(&root, std::process::id());
        let mut users = USERS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if users.count == 0 {
            users.origin = Some(current(&root)?);
            fs::create_dir_all(&parent).with_context(|| format!("cgroup {}", parent.display()))?;
            fs::write(parent.join("cgroup.procs"), "0").with_context(|| format!("moving to {}", parent.display()))?;
        }
        users.count += 1;
        let this = Self { path: parent.join(name) };
        fs::create_dir(&this.path).with_context(|| format!("cgroup {}", this.path.display()))?;
        fs::write(this.path.join("cgroup.type"), "threaded").context("making the node's cgroup threaded")?;
        Ok(this)
    }

    /// Its directory, for `--cgroup-root`.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        remove_patiently(&self.path);
        let mut users = USERS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        users.count -= 1;
        if users.count == 0
            && let Some(origin) = users.origin.take()
        {
            if let Err(error) = fs::write(origin.join("cgroup.procs"), "0") {
                eprintln!("moving back to {}: {error}", origin.display());
            }
            if let Some(parent) = self.path.parent() {
                remove_patiently(parent);
            }
        }
    }
}

/// The cgroup2 mount: the unified one, or the one beside a v1 hierarchy.
pub fn root() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|fields| fields.get(2) == Some(&"cgroup2"))
        .and_then(|fields| fields.get(1).map(PathBuf::from))
        .context("no cgroup2 is mounted: `mount -t cgroup2 none /sys/fs/cgroup/unified`")
}

/// The cgroup of a test process, parent of its nodes' ones.
pub fn process_cgroup(root: &Path, pid: u32) -> PathBuf {
    root.join(format!("{PREFIX}{pid}"))
}

fn current(root: &Path) -> Result<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup")?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::/")).context("this process has no cgroup2")?;
    Ok(root.join(path))
}

/// A cgroup is busy until its last thread or process is reaped, which may take a moment.
pub fn remove_patiently(path: &Path) {
    for _ in 0..100 {
        match fs::remove_dir(path) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                eprintln!("removing cgroup {}: {error}", path.display());
                return;
            }
            _ => return,
        }
    }
    eprintln!("cgroup {} is still in use", path.display());
}
