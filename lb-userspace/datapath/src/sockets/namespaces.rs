//! The network namespaces in which sockets may be that the programs connected.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::os::fd::AsFd as _;

/// How many processes are read, and how many namespaces are found, at most.
const MOST_PROCESSES: usize = 131_072;
const MOST_NAMESPACES: usize = 8_192;

/// The namespaces of all processes that can be seen, each once.
pub fn all(proc: &Path) -> Vec<File> {
    let mut known = BTreeSet::new();
    let mut namespaces = Vec::new();
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    for entry in entries.take(MOST_PROCESSES) {
        let is_process = entry.file_name().to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        // A process may end at any moment.
        let Some(namespace) = is_process.then(|| File::open(entry.path().join("ns/net")).ok()).flatten() else {
            continue;
        };
        let Ok(stat) = namespace.metadata() else { continue };
        if known.insert((stat.dev(), stat.ino())) {
            namespaces.push(namespace);
        }
        if namespaces.len() == MOST_NAMESPACES {
            break;
        }
    }
    namespaces
}

/// Moves the calling thread there. Needs `CAP_SYS_ADMIN` here and there.
pub fn enter(namespace: &File) -> std::io::Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_shared_by_processes_is_found_once() {
        let own = File::open("/proc/self/ns/net").and_then(|file| file.metadata()).expect("readable").ino();
        let found = all(Path::new("/proc"));
        let same = found.iter().filter(|file| file.metadata().is_ok_and(|stat| stat.ino() == own)).count();
        assert_eq!(same, 1);
        assert!(all(Path::new("/nonexistent")).is_empty());
    }
}
