//! The source `file`: Kubernetes YAML in one file or in a folder, read again whenever it changes.

mod reading;

use std::{
    collections::{BTreeMap, BTreeSet},
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

use self::reading::{Reader, Texts};
use super::{
    Source, SourceError, SourceStatus, convert,
    manifest::{self, Object},
    objects::{self, Objects},
};
use crate::model::{AllowedAnnotations, Node, Refusal, Refused, Service, Slice, Snapshot, Unread, UnreadKind};

/// Changes that follow each other closer than this are read as one: editors write in several steps.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// A file that changes all the time is believed after this many looks.
const SETTLE_READS: usize = 50;
/// How often the file is read without being told that it changed: not every file system tells (NFS, overlays), and a folder
/// may be replaced as a whole. Each reading proves that the tables hold what the file says.
const REREAD: Duration = Duration::from_secs(2);

/// So many errors of one reading reach the log.
const ERRORS_LOGGED: usize = 20;

/// Follows the file or folder `path` until `stop` is cancelled. Of its Nodes the one named `node_name` counts, of the annotations of its
/// Services those that are `allowed`.
pub fn spawn(path: PathBuf, node_name: String, allowed: AllowedAnnotations, stop: CancellationToken) -> Source {
    let origin = path.display().to_string();
    let (snapshots_to, snapshots) = watch::channel(None);
    let (status_to, status) = watch::channel(SourceStatus { kind: "file", origin, ..SourceStatus::default() });
    let task = tokio::spawn(async move {
        let follow = Follow {
            path,
            node_name,
            allowed,
            reader: Reader::default(),
            read: None,
            known: BTreeMap::new(),
            snapshots: snapshots_to,
            status: status_to,
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = follow.run() => {}
        }
    });
    Source { snapshots, status, task }
}

struct Follow {
    path: PathBuf,
    node_name: String,
    allowed: AllowedAnnotations,
    reader: Reader,
    /// What was read last, good or bad.
    read: Option<Texts>,
    /// What each file held when it was last good, and since.
    known: BTreeMap<PathBuf, Vec<Object>>,
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
                return self.fail(&error.to_string());
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
        let loaded = load(&texts, &mut self.known, &self.node_name, &self.allowed);
        let nothing_known = self.known.values().all(Vec::is_empty) && self.snapshots.borrow().is_none();
        match loaded.errors.first() {
            // Nothing at all is known: an empty snapshot would be taken for the truth.
            Some(error) if nothing_known => self.fail(error),
            _ => self.publish(&loaded),
        }
        self.read = Some(texts);
    }

    /// What is new is believed when it has stood still for a moment: a file that is just being written is empty at first, and
    /// an empty file is the truth.
    async fn read_settled(&mut self) -> Result<Texts, SourceError> {
        let mut texts = self.reader.read(&self.path).await?;
        for _ in 0..SETTLE_READS {
            if self.read.as_ref() == Some(&texts) {
                break;
            }
            sleep(DEBOUNCE).await;
            let again = self.reader.read(&self.path).await?;
            if again == texts {
                break;
            }
            texts = again;
        }
        Ok(texts)
    }

    fn publish(&self, loaded: &Loaded) {
        let revision = self.status.borrow().revision + 1;
        let refused = loaded.services.refusals().chain(loaded.slices.refusals()).chain(&loaded.refusals);
        let refusals = Refused::of(refused);
        // A file names none of either: `--dsr-peers` and `--service-cidr` do.
        let (no_peers, no_cidrs) = (Arc::default(), Arc::default());
        let (services, slices, node) = (&loaded.services, &loaded.slices, loaded.node.as_ref());
        let mut snapshot = objects::snapshot(services, slices, node, Some(&no_peers), Some(&no_cidrs), revision);
        snapshot.unread = Arc::new(loaded.unread.clone());
        self.snapshots.send_replace(Some(Arc::new(snapshot)));
        self.status.send_modify(|status| {
            status.synced = true;
            status.revision = revision;
            status.last_proof.insert("file", Instant::now());
            for error in loaded.errors.iter().take(ERRORS_LOGGED) {
                tracing::error!(source = "file", "{error}");
            }
            status.last_error = loaded.error();
            status.refusals = refusals;
            status.notes.clone_from(&loaded.notes);
        });
    }

    fn fail(&self, error: &str) {
        self.status.send_if_modified(|status| {
            let new = status.last_error.as_deref() != Some(error);
            if new {
                tracing::error!(source = "file", "{error}");
                status.last_error = Some(error.to_owned());
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

/// The objects of all files.
#[derive(Debug, Default)]
pub struct Loaded {
    pub(super) services: Objects<Service>,
    pub(super) slices: Objects<Slice>,
    pub(super) node: Option<Arc<Node>>,
    /// Of the node, and what is there more than once.
    pub(super) refusals: Vec<Refusal>,
    pub(super) notes: Vec<String>,
    /// Files that cannot be read, and documents that are bad.
    pub(super) errors: Vec<String>,
    /// What is not known by these errors.
    pub(super) unread: BTreeSet<Unread>,
}

/// Reads texts into objects. A file that cannot be read, and a document that is bad, are named; what was known of them stays.
fn load(
    texts: &Texts,
    known: &mut BTreeMap<PathBuf, Vec<Object>>,
    node_name: &str,
    allowed: &AllowedAnnotations,
) -> Loaded {
    let mut loaded = Loaded::default();
    known.retain(|path, _| texts.contains_key(path));
    for (path, text) in texts {
        let before = known.remove(path).unwrap_or_default();
        let mut objects = match text {
            Ok(text) => {
                let parsed = manifest::parse_all(&path.display().to_string(), text);
                let is_whole = parsed.errors.is_empty();
                loaded.unread.extend(parsed.unread);
                loaded.errors.extend(parsed.errors.iter().map(ToString::to_string));
                if is_whole {
                    known.insert(path.clone(), parsed.objects);
                    continue;
                }
                parsed.objects
            }
            Err(error) => {
                loaded.errors.push(error.clone());
                let what = UnreadKind::Unknown(path.display().to_string());
                loaded.unread.insert(Unread { what, uid: 0 });
                Vec::new()
            }
        };
        // Which document is the bad one is not known: none of those that are missing is taken for removed.
        let there: BTreeSet<_> = objects.iter().filter_map(Object::identity).collect();
        objects.extend(
            before.into_iter().filter(|object| object.identity().is_some_and(|identity| !there.contains(&identity))),
        );
        known.insert(path.clone(), objects);
    }
    for (path, objects) in known {
        let path = path.display().to_string();
        for object in &*objects {
            loaded.add(&path, object, node_name, allowed);
        }
    }
    loaded
}

impl Loaded {
    /// The first of the errors, and how many more there are.
    fn error(&self) -> Option<String> {
        let first = self.errors.first()?;
        let more = self.errors.len() - 1;
        Some(if more > 0 { format!("{first} (and {more} more)") } else { first.clone() })
    }

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
