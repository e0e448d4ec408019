//! The cgroup v2 root whose processes get socket load balancing.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io,
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
    is_asked: bool,
}

/// Opens the asked folder, or finds the root of the cgroup v2 hierarchy (hybrid hosts mount it beside v1).
pub(super) fn open(asked: Option<&Path>) -> Result<CgroupRoot, DatapathError> {
    let path = if let Some(path) = asked {
        path.to_owned()
    } else {
        let mounts = Process::myself().and_then(|process| process.mountinfo()).map_err(|error| refuse(&error))?;
        find(&mounts.0, |path| fs::metadata(path).ok().map(|folder| folder.ino()))
            .ok_or_else(|| refuse("only cgroup v1 is mounted"))?
    };
    let stat = rustix::fs::statfs(&path).map_err(|error| refuse(&format!("{}: {error}", path.display())))?;
    if stat.f_type != CGROUP2_SUPER_MAGIC {
        return Err(refuse(&format!("{} is not on a cgroup v2 file system", path.display())));
    }
    let folder = File::open(&path).map_err(DatapathError::file("open", &path))?;
    let id = folder.metadata().map_err(DatapathError::file("stat", &path))?.ino();
    let root = CgroupRoot { path, folder, id, is_asked: asked.is_some() };
    if let Some(warning) = root.outside() {
        tracing::warn!("{warning}");
    }
    Ok(root)
}

impl CgroupRoot {
    /// Which processes are not served, where this is not the root of the hierarchy: those of this network namespace that can be seen outside it. If it
    /// was not asked for, also where none can be seen.
    pub fn outside(&self) -> Option<String> {
        if self.id == ROOT_INODE {
            return None;
        }
        let outside = outside(&self.path).unwrap_or_default();
        let who = match outside.first() {
            None if self.is_asked => return None,
            None => "processes outside it".to_owned(),
            Some(first) => format!("{} processes of the node, such as {first}, are outside it, and", outside.len()),
        };
        Some(format!(
            "{} is not the root of the cgroup hierarchy: {who} reach no node port at addresses of this node, and other services by packets alone; \
             mount the host's /sys/fs/cgroup into the container, and name that by --cgroup-root",
            self.path.display()
        ))
    }
}

/// Names and ids of other processes of this network namespace that are in no cgroup of this folder. One that ends meanwhile is none.
fn outside(root: &Path) -> io::Result<Vec<String>> {
    let network = |process: &str| fs::read_link(format!("/proc/{process}/ns/net"));
    let own = network("self")?;
    let mut inside = BTreeSet::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        inside.extend(fs::read_to_string(folder.join("cgroup.procs"))?.lines().map(str::to_owned));
        let below = fs::read_dir(&folder)?.filter_map(Result::ok);
        folders
            .extend(below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()));
    }
    let me = std::process::id().to_string();
    let others = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let others =
        others.filter(|pid| pid.bytes().all(|byte| byte.is_ascii_digit()) && *pid != me && !inside.contains(pid));
    let others = others.filter(|pid| network(pid).is_ok_and(|found| found == own));
    Ok(others
        .filter_map(|pid| Some(format!("{} ({pid})", fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim())))
        .collect())
}

/// The mount of the hierarchy's own root, or any other one. In a cgroup namespace, `/` is the root of that namespace.
fn find(mounts: &[MountInfo], inode: impl Fn(&Path) -> Option<u64>) -> Option<PathBuf> {
    let v2 = || mounts.iter().filter(|mount| mount.fs_type == "cgroup2");
    let root = v2().find(|mount| inode(&mount.mount_point) == Some(ROOT_INODE));
    root.or_else(|| v2().next()).map(|mount| mount.mount_point.clone())
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
        assert_eq!(find(&hybrid, |_| None), Some("/sys/fs/cgroup/unified".into()));
    }

    #[test]
    fn the_hierarchys_own_root_is_found_from_a_cgroup_namespace() {
        let nested = mounts(&[
            "31 30 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
            "32 30 0:28 /../../.. /host/cgroup rw - cgroup2 cgroup2 rw",
        ]);
        let inode = |path: &Path| Some(if path == Path::new("/host/cgroup") { ROOT_INODE } else { 4711 });
        assert_eq!(find(&nested, inode), Some("/host/cgroup".into()));
        assert_eq!(find(&nested, |_| Some(4711)), Some("/sys/fs/cgroup".into()));
    }

    #[test]
    fn v1_only_is_refused_with_the_remedy() {
        assert_eq!(find(&mounts(&["31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu"]), |_| None), None);
        let error = refuse("only cgroup v1 is mounted").to_string();
        assert!(error.contains("cgroup v1") && error.contains("--socket-lb off"), "{error}");
        let not_v2 = tempfile::tempdir().expect("a temporary folder");
        assert!(open(Some(not_v2.path())).is_err());
    }
}
