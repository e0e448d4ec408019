//! The files that agents leave in their run folder.

use std::path::{Path, PathBuf};

use super::{health_memory, marks, node_memory};
use crate::observe::report_socket::SOCKET;

/// Names of all of them but the lock: the socket, and what the next agent remembers. Each of the latter is first written as `.new`.
pub fn run_files() -> Vec<PathBuf> {
    let memories = [marks::FILE, health_memory::FILE, node_memory::FILE].map(Path::new);
    let written = memories.iter().flat_map(|memory| [memory.to_path_buf(), memory.with_extension("new")]);
    [PathBuf::from(SOCKET), Path::new(marks::FILE).with_extension(marks::UNREAD)].into_iter().chain(written).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use crate::observe::maintenance::Order;
    use lb_model::{Node, ObjectName};
    use lb_plan::plan::{Capacities, HealthCheck, Loaded, restore};

    /// Lets every memory write; the names of the files that are there then.
    fn written(run_dir: &Path) -> BTreeSet<PathBuf> {
        let check = HealthCheck { service: ObjectName::new("demo", "web"), local_ready: 1 };
        // Writes fail where the test wants it.
        let _ = health_memory::Memory::open(run_dir).keep(&[(32_100, check)].into());
        let name = "n1".to_owned();
        let node = Node { name, zone: None, addresses: Vec::new(), pod_cidrs: Vec::new(), is_leaving: false };
        node_memory::NodeMemory::open(run_dir, "n1").keep(&Arc::new(node));
        let tables = restore(Capacities::all(7), Loaded::default());
        let target = "10.0.0.1".parse().expect("an address");
        let _ = marks::Maintenance::open(run_dir, &tables).obey(Order::On(target));
        let files = std::fs::read_dir(run_dir).expect("a folder");
        files.map(|file| file.expect("readable").file_name().into()).collect()
    }

    #[test]
    fn no_memory_leaves_another_file() {
        let (known, dir) = (run_files(), tempfile::tempdir().expect("a temporary folder"));
        let is_known = |found: &BTreeSet<PathBuf>| found.iter().all(|file| known.contains(file));
        std::fs::write(dir.path().join(marks::FILE), "no address").expect("writable");
        let found = written(dir.path());
        assert!(found.len() == 4 && is_known(&found), "{found:?}");
        // A folder in a file's place: what was written stays beside it.
        let dir = tempfile::tempdir().expect("a temporary folder");
        for file in &found {
            std::fs::create_dir(dir.path().join(file)).expect("writable");
        }
        let found = written(dir.path());
        assert!(found.len() == 7 && is_known(&found), "{found:?}");
    }
}
