//! What the API last said of this Node, in a file of the run folder: it holds over restarts of the agent, until the API says otherwise.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use lb_model::Node;

/// Name of the file in the run folder.
pub(super) const FILE: &str = "node.json";
/// Of the file's layout: a file of another one is ignored.
const VERSION: u32 = 1;

/// The file's content.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    name: String,
    zone: Option<String>,
    addresses: Vec<IpAddr>,
    /// In CIDR notation.
    pod_cidrs: Vec<String>,
    leaving: bool,
}

/// The file and what it holds.
#[derive(Debug)]
pub(super) struct NodeMemory {
    file: PathBuf,
    known: Option<Arc<Node>>,
    /// Whether the last write failed, which is logged once.
    failed: bool,
}

impl NodeMemory {
    /// What an agent before this one knew of the Node with this name. A file that cannot be used is ignored.
    pub fn open(run_dir: &Path, node_name: &str) -> Self {
        let file = run_dir.join(FILE);
        let known = read(&file, node_name).unwrap_or_else(|reason| {
            tracing::warn!(file = %file.display(), "what was known of the Node is ignored: {reason}");
            None
        });
        Self { file, known: known.map(Arc::new), failed: false }
    }

    pub fn known(&self) -> Option<&Arc<Node>> {
        self.known.as_ref()
    }

    /// Writes the facts down where they differ from those in the file. A failure is logged: the next call tries again.
    pub fn keep(&mut self, node: &Arc<Node>) {
        if self.known.as_deref() == Some(node) {
            return;
        }
        match write(&self.file, node) {
            Ok(()) => (self.known, self.failed) = (Some(node.clone()), false),
            Err(error) => {
                if !std::mem::replace(&mut self.failed, true) {
                    tracing::warn!(file = %self.file.display(), "the Node's facts cannot be written down: {error}");
                }
            }
        }
    }
}

fn read(file: &Path, node_name: &str) -> Result<Option<Node>, String> {
    let text = match std::fs::read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|error| error.to_string())?,
    };
    let content: Content = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    if content.version != VERSION {
        return Err(format!("its version is {}: expected {VERSION}", content.version));
    }
    if content.name != node_name {
        return Err(format!("it is of Node {}: expected {node_name}", content.name));
    }
    let pod_cidrs: Result<Vec<IpNet>, _> = content.pod_cidrs.iter().map(|text| text.parse()).collect();
    Ok(Some(Node {
        name: content.name,
        zone: content.zone,
        addresses: content.addresses,
        pod_cidrs: pod_cidrs.map_err(|error| error.to_string())?,
        is_leaving: content.leaving,
    }))
}

/// In one step: a reader sees the old facts or the new ones.
fn write(file: &Path, node: &Node) -> io::Result<()> {
    let content = Content {
        version: VERSION,
        name: node.name.clone(),
        zone: node.zone.clone(),
        addresses: node.addresses.clone(),
        pod_cidrs: node.pod_cidrs.iter().map(ToString::to_string).collect(),
        leaving: node.is_leaving,
    };
    let new = file.with_extension("new");
    std::fs::write(&new, serde_json::to_vec(&content)?)?;
    std::fs::rename(&new, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Arc<Node> {
        Arc::new(Node {
            name: "n1".into(),
            zone: Some("a".into()),
            addresses: vec!["192.0.2.1".parse().expect("valid"), "2001:db8::1".parse().expect("valid")],
            pod_cidrs: vec!["10.244.1.0/24".parse().expect("valid")],
            is_leaving: true,
        })
    }

    fn known(run_dir: &Path) -> Option<Arc<Node>> {
        NodeMemory::open(run_dir, "n1").known
    }

    #[test]
    fn the_next_agent_knows_what_was_known() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut memory = NodeMemory::open(dir.path(), "n1");
        assert_eq!(memory.known(), None);
        memory.keep(&node());
        assert_eq!(known(dir.path()), Some(node()));
        let other = Arc::new(Node { zone: None, is_leaving: false, ..(*node()).clone() });
        memory.keep(&other);
        assert_eq!(known(dir.path()), Some(other));
    }

    #[test]
    fn a_damaged_or_foreign_file_is_ignored_and_written_anew() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        NodeMemory::open(dir.path(), "n1").keep(&node());
        let file = dir.path().join(FILE);
        let whole = std::fs::read_to_string(&file).expect("written");
        for (from, to) in
            [("\"version\":1", "\"version\":2"), ("\"n1\"", "\"n2\""), ("10.244.1.0/24", "10.244"), ("}", "")]
        {
            let damaged = whole.replacen(from, to, 1);
            assert_ne!(damaged, whole, "{from}");
            std::fs::write(&file, damaged).expect("writable");
            assert_eq!(known(dir.path()), None, "{from}");
        }
        NodeMemory::open(dir.path(), "n1").keep(&node());
        assert_eq!(known(dir.path()), Some(node()));
    }

    #[test]
    fn a_write_that_fails_is_tried_again() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let run_dir = dir.path().join("late");
        let mut memory = NodeMemory::open(&run_dir, "n1");
        memory.keep(&node());
        assert_eq!(known(&run_dir), None);
        std::fs::create_dir(&run_dir).expect("writable");
        memory.keep(&node());
        assert_eq!(known(&run_dir), Some(node()));
    }
}
