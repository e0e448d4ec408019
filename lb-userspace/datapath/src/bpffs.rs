//! The bpf file system: checked, and mounted where that is safe.

use std::{fs, path::Path};

use caps::Capability;
use procfs::process::{MountInfo, MountOptFields, Process};
use rustix::mount::MountFlags;

use super::{DatapathError, features};

const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// Makes sure that `dir` is a bpf file system: mounts one on an empty folder if the mount outlives this process.
pub(super) fn ensure(dir: &Path) -> Result<(), DatapathError> {
    if judge(dir)? {
        return Ok(());
    }
    rustix::mount::mount("bpf", dir, "bpf", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, c"mode=0700")
        .map_err(|error| DatapathError::file("mount a bpf file system on", dir)(error.into()))?;
    tracing::info!(dir = %dir.display(), "mounted a bpf file system");
    Ok(())
}

/// Whether `dir` is a bpf file system; `false`: one may be mounted on it. Changes nothing.
pub(super) fn judge(dir: &Path) -> Result<bool, DatapathError> {
    if is_bpffs(dir) {
        return Ok(true);
    }
    let refuse = |reason: &str| {
        let make = if dir.is_dir() { String::new() } else { format!("mkdir -p {} && ", dir.display()) };
        DatapathError::NoBpffs {
            dir: dir.to_owned(),
            reason: reason.to_owned(),
            remedy: format!("run `{make}mount -t bpf bpf {}` on the host, or give another --bpffs", dir.display()),
        }
    };
    if !dir.is_dir() {
        return Err(refuse("there is no such folder"));
    }
    if fs::read_dir(dir).map_err(DatapathError::file("read", dir))?.next().is_some() {
        return Err(refuse("it holds other files"));
    }
    if !features::has(Capability::CAP_SYS_ADMIN) {
        return Err(refuse("it is an empty folder, and mounting needs CAP_SYS_ADMIN"));
    }
    if !outlives_us(dir) {
        return Err(refuse(
            "a mount made in this process's own mount namespace would vanish with it, and with it every pin",
        ));
    }
    Ok(false)
}

/// Whether `dir` lies on a bpf file system.
pub(super) fn is_bpffs(dir: &Path) -> bool {
    rustix::fs::statfs(dir).is_ok_and(|stat| stat.f_type == BPF_FS_MAGIC)
}

/// Whether a mount made on `dir` stays when this process ends: the mount is shared with other namespaces, or another process lives in the same mount
/// namespace. That process outlives this one: it is the first one, or the one that started us.
fn outlives_us(dir: &Path) -> bool {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let ours = namespace("self");
    let first = if std::process::id() == 1 { None } else { namespace("1") };
    let parent = namespace(&std::os::unix::process::parent_id().to_string());
    if ours.is_some() && (ours == first || ours == parent) {
        return true;
    }
    let mounts = Process::myself().and_then(|process| process.mountinfo()).map(|mounts| mounts.0).unwrap_or_default();
    is_shared(&mounts, dir)
}

fn is_shared(mounts: &[MountInfo], dir: &Path) -> bool {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    // Of mounts on one folder the last hides the others.
    let covering = mounts.iter().filter(|mount| dir.starts_with(&mount.mount_point));
    let covering = covering.max_by_key(|mount| mount.mount_point.as_os_str().len());
    covering.is_some_and(|mount| mount.opt_fields.iter().any(|field| matches!(field, MountOptFields::Shared(_))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_mount_says_whether_it_is_shared() {
        let mounts: Vec<MountInfo> = [
            "1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw",
            "2 1 0:5 / /sys rw - sysfs sysfs rw",
            "3 2 0:6 / /sys/fs/shared rw shared:7 - tmpfs tmpfs rw",
        ]
        .iter()
        .map(|line| MountInfo::from_line(line).expect("a line of mountinfo"))
        .collect();
        assert!(!is_shared(&mounts, Path::new("/sys/fs/bpf")));
        assert!(is_shared(&mounts, Path::new("/sys/fs/shared/bpf")));
        assert!(is_shared(&mounts, Path::new("/run/bpf")));
    }

    #[test]
    fn a_missing_and_a_used_folder_are_refused_with_the_remedy() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let missing = ensure(&dir.path().join("no")).expect_err("missing").to_string();
        assert!(missing.contains("no such folder") && missing.contains("`mkdir -p "), "{missing}");
        assert!(missing.contains("&& mount -t bpf bpf"), "{missing}");
        fs::write(dir.path().join("file"), "").expect("writable");
        let used = ensure(dir.path()).expect_err("used").to_string();
        assert!(used.contains("other files"), "{used}");
    }
}
