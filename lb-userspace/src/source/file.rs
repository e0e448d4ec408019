//! The source `file`: Kubernetes YAML in one file or in a folder, read again whenever it changes.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use notify::Watcher;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    Source, SourceError, SourceStatus, convert,
    manifest::{self, Object},
    objects::{self, Objects},
};
use crate::model::{AllowedAnnotations, Node, Refusal, Service, Slice, Snapshot};

/// Changes that follow each other closer than this are read as one: editors write in several steps.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// A file that changes all the time is believed after this many looks.
const SETTLE_READS: usize = 50;
/// How often the file is read without being told that it changed: not every file system tells (NFS, overlays), and a folder
/// may be replaced as a whole. Each reading proves that the tables hold what the file says.
const REREAD: Duration = Duration::from_secs(2);

/// Follows the file or folder `path` until `stop` is cancelled. Of its Nodes the one named `node_name` counts, of the annotations of its
/// Services those that are `allowed`.
pub fn spawn(path: PathBuf, node_name: String, allowed: AllowedAnnotations, stop: CancellationToken) -> Source {
    let origin = path.display().to_string();
    let (snapshots_to, snapshots) = watch::channel(None);
    let (status_to, status) = watch::channel(SourceStatus { kind: "file", origin, ..SourceStatus::default() });
    let task = tokio::spawn(async move {
        let follow = Follow { path, node_name, allowed, read: None, snapshots: snapshots_to, status: status_to };
        tokio::select! {
            () = stop.cancelled() => {}
            () = follow.run() => {}
        }
    });
    Source { snapshots, status, task }
}

/// The text of every file, by path.
type Texts = BTreeMap<PathBuf, String>;

struct Follow {
    path: PathBuf,
    node_name: String,
    allowed: AllowedAnnotations,
    /// What was read last, good or bad.
    read: Option<Texts>,
    snapshots: watch::Sender<Option<Arc<Snapshot>>>,
    status: watch::Sender<SourceStatus>,
}

impl Follow {
    async fn run(mut self) {
        let (changed_to, mut changed) = mpsc::channel(1);
        let _watcher = watch_folder(&self.path, changed_to);
        loop {
            self.reload().await;
            // Either ends the wait; a closed channel means that there is no watcher, so the interval alone counts.
            match timeout(REREAD, changed.recv()).await {
                Ok(Some(())) | Err(_) => {}
                Ok(None) => sleep(REREAD).await,
            }
        }
    }

    async fn reload(&mut self) {
        let texts = match self.read_settled().await {
            Ok(texts) => texts,
            Err(error) => {
                self.read = None;
                return self.fail(&error);
            }
        };
        if self.read.as_ref() == Some(&texts) {
            self.status.send_if_modified(|status| {
                let good = status.last_error.is_none();
                if good {
                    status.last_proof.insert("file", Instant::now());
                }
                good
            });
            return;
        }
        match load(&texts, &self.node_name, &self.allowed) {
            Ok(loaded) => self.publish(&loaded),
            Err(error) => self.fail(&error),
        }
        self.read = Some(texts);
    }

    /// What is new is believed when it has stood still for a moment: a file that is just being written is empty at first, and
    /// an empty file is the truth.
    async fn read_settled(&self) -> Result<Texts, SourceError> {
        let mut texts = self.read_once().await?;
        for _ in 0..SETTLE_READS {
            if self.read.as_ref() == Some(&texts) {
                break;
            }
            sleep(DEBOUNCE).await;
            let again = self.read_once().await?;
            if again == texts {
                break;
            }
            texts = again;
        }
        Ok(texts)
    }

    async fn read_once(&self) -> Result<Texts, SourceError> {
        let path = self.path.clone();
        let unreadable = |source| SourceError::Unreadable { path: self.path.display().to_string(), source };
        tokio::task::spawn_blocking(move || read(&path)).await.map_err(|error| unreadable(io::Error::other(error)))?
    }

    fn publish(&self, loaded: &Loaded) {
        let revision = self.status.borrow().revision + 1;
        let refused = loaded.services.refusals().chain(loaded.slices.refusals()).chain(&loaded.refusals);
        let refusals = refused.cloned().collect();
        // A file names none: `--dsr-peers` does.
        let no_peers = Arc::default();
        let snapshot =
            objects::snapshot(&loaded.services, &loaded.slices, loaded.node.as_ref(), Some(&no_peers), revision);
        self.snapshots.send_replace(Some(Arc::new(snapshot)));
        self.status.send_modify(|status| {
            status.synced = true;
            status.revision = revision;
            status.last_proof.insert("file", Instant::now());
            status.last_error = None;
            status.refusals = refusals;
            status.notes.clone_from(&loaded.notes);
        });
    }

    fn fail(&self, error: &SourceError) {
        let text = error.to_string();
        self.status.send_if_modified(|status| {
            let new = status.last_error.as_ref() != Some(&text);
            if new {
                tracing::error!(source = "file", "{text}");
                status.last_error = Some(text);
            }
            new
        });
    }
}

/// Tells of changes in the folder that holds `path`, or in `path` if it is a folder. `None` where the kernel cannot tell;
/// the file is then only read at intervals.
fn watch_folder(path: &Path, changed: mpsc::Sender<()>) -> Option<notify::RecommendedWatcher> {
    let tell = move |event: notify::Result<notify::Event>| {
        // Reading a file is an event, too; telling of it would never end.
        if event.is_ok_and(|event| !event.kind.is_access()) {
            // A full channel already tells of a change.
            let _ = changed.try_send(());
        }
    };
    // A mounted ConfigMap changes by a rename in its folder: the file's own inode never does.
    let folder =
        if path.is_dir() { path } else { path.parent().filter(|p| *p != Path::new("")).unwrap_or(Path::new(".")) };
    let watching = notify::recommended_watcher(tell).and_then(|mut watcher| {
        watcher.watch(folder, notify::RecursiveMode::NonRecursive)?;
        Ok(watcher)
    });
    watching
        .inspect_err(|error| {
            tracing::warn!(
                "{} cannot be watched: {error}; it is read every {} s instead (raise fs.inotify.max_user_watches or \
                 max_user_instances)",
                folder.display(),
                REREAD.as_secs()
            );
        })
        .ok()
}

fn read(path: &Path) -> Result<Texts, SourceError> {
    let unreadable =
        |path: &Path, source: io::Error| SourceError::Unreadable { path: path.display().to_string(), source };
    let mut texts = Texts::new();
    let mut paths = vec![path.to_owned()];
    if fs::metadata(path).map_err(|error| unreadable(path, error))?.is_dir() {
        paths.clear();
        for entry in fs::read_dir(path).map_err(|error| unreadable(path, error))? {
            let found = entry.map_err(|error| unreadable(path, error))?.path();
            if is_manifest(&found) {
                paths.push(found);
            }
        }
    }
    for path in paths {
        let text = fs::read_to_string(&path).map_err(|error| unreadable(&path, error))?;
        texts.insert(path, text);
    }
    Ok(texts)
}

fn is_manifest(path: &Path) -> bool {
    let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    let known = path.extension().is_some_and(|end| ["yaml", "yml", "json"].iter().any(|known| end == *known));
    known && !hidden && !path.is_dir()
}

/// The objects of all files.
#[derive(Debug, Default)]
pub struct Loaded {
    pub(super) services: Objects<Service>,
    pub(super) slices: Objects<Slice>,
    pub(super) node: Option<Arc<Node>>,
    /// Of the node, and what is there more than once.
    pub(super) refusals: Vec<Refusal>,
    pub(super) notes: Vec<String>,
}

/// Reads texts into objects; one text that is no YAML spoils all, one object that is bad only itself.
fn load(texts: &Texts, node_name: &str, allowed: &AllowedAnnotations) -> Result<Loaded, SourceError> {
    let mut loaded = Loaded::default();
    for (path, text) in texts {
        let path = path.display().to_string();
        for object in manifest::parse(&path, text)? {
            loaded.add(&path, &object, node_name, allowed);
        }
    }
    Ok(loaded)
}

impl Loaded {
    fn add(&mut self, path: &str, object: &Object, node_name: &str, allowed: &AllowedAnnotations) {
        let duplicate = match object {
            Object::Service(service) => {
                let name = convert::object_name(&service.metadata);
                if !self.services.contains(&name) {
                    return self.services.put_service(service, 0, allowed);
                }
                format!("Service {name}")
            }
            Object::Slice(slice) => {
                let name = convert::object_name(&slice.metadata);
                if !self.slices.contains(&name) {
                    return self.slices.put_slice(slice, 0);
                }
                format!("EndpointSlice {name}")
            }
            Object::Node(node) if node.metadata.name.as_deref() != Some(node_name) => return,
            Object::Node(node) => {
                if self.node.is_none() {
                    let converted = convert::node(node);
                    self.node = converted.object.map(Arc::new);
                    return self.refusals.extend(converted.refusals);
                }
                format!("Node {node_name}")
            }
            Object::Other(what) => {
                let read = "only Service, EndpointSlice and Node are read";
                self.notes.push(format!("{path}: {what} is ignored: {read}"));
                return;
            }
        };
        let reason = format!("it is there more than once, again in {path}; the first is served");
        self.refusals.push(Refusal::new(duplicate, reason, "remove one of them"));
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
