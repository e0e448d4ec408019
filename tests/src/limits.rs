//! Limits of a running process: memory and CPU by a cgroup of version 1 or 2, descriptors and address space by its own limits.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::topology::{PREFIX, remove_cgroup_patiently};

/// A process in a cgroup of its own. Dropped, it is let out again.
#[derive(Debug)]
pub struct Limited {
    group: PathBuf,
    outside: PathBuf,
}

impl Limited {
    /// What the process allocates from now on is at most so many bytes; beyond that the kernel kills it.
    pub fn memory(pid: u32, bytes: u64) -> Result<Self> {
        Self::new("memory", pid, ("memory.limit_in_bytes", "memory.max"), &bytes.to_string(), &bytes.to_string())
    }

    /// The process runs for so many microseconds in each tenth of a second, at least 1000.
    pub fn cpu(pid: u32, micros: u32) -> Result<Self> {
        Self::new("cpu", pid, ("cpu.cfs_quota_us", "cpu.max"), &micros.to_string(), &format!("{micros} 100000"))
    }

    fn new(controller: &str, pid: u32, files: (&str, &str), v1: &str, v2: &str) -> Result<Self> {
        let (outside, is_v2) = hierarchy(controller)?;
        if is_v2 {
            let enable = format!("+{controller}");
            fs::write(outside.join("cgroup.subtree_control"), enable)
                .with_context(|| format!("enabling {controller}"))?;
        }
        let group = outside.join(format!("{PREFIX}{}-{controller}-{pid}", std::process::id()));
        fs::create_dir(&group).with_context(|| format!("cgroup {}", group.display()))?;
        let this = Self { group, outside };
        let (file, value) = if is_v2 { (files.1, v2) } else { (files.0, v1) };
        fs::write(this.group.join(file), value).with_context(|| format!("{file} of {}", this.group.display()))?;
        fs::write(this.group.join("cgroup.procs"), pid.to_string()).context("moving the process")?;
        Ok(this)
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let inside = fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default();
        for pid in inside.lines() {
            // One that has ended needs no way out.
            fs::write(self.outside.join("cgroup.procs"), pid).ok();
        }
        remove_cgroup_patiently(&self.group);
    }
}

/// Where a controller is: the root of its hierarchy of version 1, or that of version 2.
fn hierarchy(controller: &str) -> Result<(PathBuf, bool)> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let fields: Vec<Vec<&str>> = mounts.lines().map(|line| line.split(' ').collect()).collect();
    let v1 = fields.iter().find(|fields| fields[2] == "cgroup" && fields[3].split(',').any(|word| word == controller));
    if let Some(fields) = v1 {
        return Ok((PathBuf::from(fields[1]), false));
    }
    let has = |root: &str| fs::read_to_string(Path::new(root).join("cgroup.controllers")).unwrap_or_default();
    let v2 = fields.iter().filter(|fields| fields[2] == "cgroup2");
    let v2 = v2.map(|fields| fields[1]).find(|root| has(root).split_whitespace().any(|word| word == controller));
    Ok((v2.with_context(|| format!("no cgroup hierarchy has the controller {controller}"))?.into(), true))
}

/// Removes what runs that died have left.
pub fn sweep(is_dead: impl Fn(&str) -> bool) {
    for controller in ["memory", "cpu"] {
        let Ok((root, _)) = hierarchy(controller) else { continue };
        let names = fs::read_dir(&root).into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        for name in names.filter(|name| name.contains(&format!("-{controller}-")) && is_dead(name)) {
            remove_cgroup_patiently(&root.join(name));
        }
    }
}
