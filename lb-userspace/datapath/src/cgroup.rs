//! The cgroup v2 root whose processes get socket load balancing.

use std::{
    fs::File,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use procfs::process::{MountInfo, Process};

use super::DatapathError;

const CGROUP2_SUPER_MAGIC: i64 = 0x6367_7270;
/// The kernel gives the root of the hierarchy this inode number.
const ROOT_INODE: u64 = 1;

/// An opened cgroup v2 folder.
#[derive(Debug)]
pub(super) struct CgroupRoot {
    pub path: PathBuf,
    pub folder: File,
    /// The kernel's id of the cgroup, as bpf links report it.
    pub id: u64,
}

/// Opens the asked folder, or finds the root of the cgroup v2 hierarchy (hybrid hosts mount it beside v1).
pub(super) fn open(asked: Option<&Path>) -> Result<CgroupRoot, DatapathError> {
    let path = if let Some(path) = asked {
        path.to_owned()
    } else {
        let mounts = Process::myself().and_then(|process| process.mountinfo()).map_err(|error| refuse(&error))?;
        find(&mounts.0).ok_or_else(|| refuse("only cgroup v1 is mounted"))?
    };
    let stat = rustix::fs::statfs(&path).map_err(|error| refuse(&format!("{}: {error}", path.display())))?;
    if stat.f_type != CGROUP2_SUPER_MAGIC {
        return Err(refuse(&format!("{} is not on a cgroup v2 file system", path.display())));
    }
    let folder = File::open(&path).map_err(DatapathError::file("open", &path))?;
    let id = folder.metadata().map_err(DatapathError::file("stat", &path))?.ino();
    if asked.is_none() && id != ROOT_INODE {
        tracing::warn!(cgroup = %path.display(), "this is not the root of the hierarchy: processes outside it are not served");
    }
    Ok(CgroupRoot { path, folder, id })
}

fn find(mounts: &[MountInfo]) -> Option<PathBuf> {
    let v2 = || mounts.iter().filter(|mount| mount.fs_type == "cgroup2");
    let whole = v2().find(|mount| mount.root == "/");
    whole.or_else(|| v2().next()).map(|mount| mount.mount_point.clone())
}

fn refuse(reason: &(impl ToString + ?Sized)) -> DatapathError {
    DatapathError::NoCgroup2 {
        reason: reason.to_string(),
        remedy: "mount one (`mount -t cgroup2 none DIR`) and give it as --cgroup-root DIR, or use --socket-lb off \
                 (host processes are then not served)"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounts(lines: &[&str]) -> Vec<MountInfo> {
        lines.iter().map(|line| MountInfo::from_line(line).expect("a line of mountinfo")).collect()
    }

    #[test]
    fn hybrid_hosts_have_it_beside_v1() {
        let hybrid = mounts(&[
            "30 20 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw",
            "31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu",
            "32 30 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
        ]);
        assert_eq!(find(&hybrid), Some("/sys/fs/cgroup/unified".into()));
    }

    #[test]
    fn a_mount_of_the_whole_hierarchy_is_preferred() {
        let nested = mounts(&[
            "31 30 0:28 /kubepods/pod1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
            "32 30 0:28 / /host/cgroup rw - cgroup2 cgroup2 rw",
        ]);
        assert_eq!(find(&nested), Some("/host/cgroup".into()));
    }

    #[test]
    fn v1_only_is_refused_with_the_remedy() {
        assert_eq!(find(&mounts(&["31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu"])), None);
        let error = refuse("only cgroup v1 is mounted").to_string();
        assert!(error.contains("cgroup v1") && error.contains("--socket-lb off"), "{error}");
        let not_v2 = tempfile::tempdir().expect("a temporary folder");
        assert!(open(Some(not_v2.path())).is_err());
    }
}
