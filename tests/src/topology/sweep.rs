//! Removes what a run that died left behind: namespaces, mounts, directories, cgroups.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use nix::mount::{MntFlags, umount2};

use super::{Namespace, PREFIX, RUN_ROOT, cgroup};
use crate::limits;

/// Pause between two runs whose programs go with their file system. Linux 6.18 can hang for good when more than about 1,000 BPF programs are freed
/// at once. The worker that frees them then holds `pack_mutex`, and waits for a work item behind it in its queue.
const BETWEEN: Duration = Duration::from_secs(1);

/// Removes everything whose name carries the pid of a process that is no more. Idempotent; leaves live runs alone.
pub fn sweep() -> Result<()> {
    if let Ok(root) = cgroup::root() {
        for name in dead_entries(&root) {
            remove_cgroup(&root.join(name));
        }
    }
    limits::sweep(is_dead);
    for name in dead_entries(Path::new("/run/netns")) {
        Namespace::delete(&name)?;
    }
    for (index, name) in dead_entries(Path::new(RUN_ROOT)).into_iter().enumerate() {
        if index > 0 {
            thread::sleep(BETWEEN);
        }
        remove_directory(&Path::new(RUN_ROOT).join(name));
    }
    Ok(())
}

/// Unmounts what is mounted below, the deepest first, and removes the directory.
pub(super) fn remove_directory(path: &Path) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut below: Vec<&Path> = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .map(Path::new)
        .filter(|mount| mount.starts_with(path))
        .collect();
    below.sort();
    for mount in below.into_iter().rev() {
        if let Err(error) = umount2(mount, MntFlags::MNT_DETACH) {
            eprintln!("unmounting {}: {error}", mount.display());
            return; // Nothing is deleted through a mount.
        }
    }
    if let Err(error) = fs::remove_dir_all(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        eprintln!("removing {}: {error}", path.display());
    }
    // The last one out also removes the common directory; it fails while others are there, as it should.
    fs::remove_dir(RUN_ROOT).ok();
}

/// Ends the processes that are left in a dead run's cgroups (agents), and removes the cgroups.
fn remove_cgroup(path: &Path) {
    // Since Linux 5.14; older than that, an agent of a dead run must be ended by hand.
    fs::write(path.join("cgroup.kill"), "1").ok();
    let children = fs::read_dir(path).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir());
    for child in children {
        cgroup::remove_patiently(&child.path());
    }
    cgroup::remove_patiently(path);
}

/// Names in a directory that are ours and carry the pid of no living process.
fn dead_entries(directory: &Path) -> Vec<String> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| is_dead(name))
        .collect()
}

/// Whether a name is ours, and carries the pid of no living process.
fn is_dead(name: &str) -> bool {
    pid_of(name).is_some_and(|pid| !lives(pid))
}

/// Whether the process runs: a killed one that nobody waited for (a container without an init) is dead.
fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the program's name, which stands in parentheses and may hold anything.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// The pid in a name of ours.
fn pid_of(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{lives, pid_of};

    #[test]
    fn only_names_of_ours_carry_a_pid() {
        assert_eq!(pid_of("blt123-0-basic-wire"), Some(123));
        assert_eq!(pid_of("blt77"), Some(77));
        assert_eq!(pid_of("blt-1"), None);
        assert_eq!(pid_of("cni-123"), None);
    }

    #[test]
    fn a_process_that_nobody_waited_for_is_dead() {
        assert!(lives(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().expect("true is there");
        let pid = child.id();
        while lives(pid) {
            std::thread::yield_now();
        }
        assert!(std::path::Path::new(&format!("/proc/{pid}")).exists(), "not waited for yet");
        child.wait().expect("waited for");
        assert!(!lives(pid));
    }
}
