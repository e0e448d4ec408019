//! The source `file`: Kubernetes YAML in one file or in a folder, read again whenever it changes.

mod known;
mod reading;
mod watching;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use self::{
    known::{Known, Object, What, read_anew},
    reading::{Reader, Texts},
    watching::Watch,
};
use super::{Source, SourceError, SourceStatus, api_requests::ApiRequests};
use lb_model::{AllowedAnnotations, Node, Refusal, Refused, Service, Slice, Snapshot, Unread};
use lb_objects::objects::{self, Identity, Objects};

/// Changes that follow each other closer than this are read as one: editors write in several steps.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// A file that changes all the time is believed after this many looks.
const SETTLE_READS: usize = 50;
/// How often the file is read without a notification: not every file system sends them (NFS, overlays), and a folder
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
        let watcher = FileWatcher {
            path,
            node_name,
            allowed,
            reader: Reader::default(),
            is_read: false,
            known: BTreeMap::new(),
            snapshots: snapshots_to,
            status: status_to,
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = watcher.run() => {}
        }
    });
    Source { snapshots, status, task, api: None, requests: ApiRequests::default() }
}

struct FileWatcher {
    path: PathBuf,
    node_name: String,
    allowed: AllowedAnnotations,
    reader: Reader,
    /// Whether the last reading gave texts, which `known` holds.
    is_read: bool,
    known: BTreeMap<PathBuf, Arc<Known>>,
    snapshots: watch::Sender<Option<Arc<Snapshot>>>,
    status: watch::Sender<SourceStatus>,
}

impl FileWatcher {
    async fn run(mut self) {
        let mut watch = watch_folder(&self.path);
        loop {
            self.reload().await;
            match &watch {
                None => sleep(REREAD).await,
                // Either ends the wait.
                Some(watching) => {
                    if let Ok(Err(error)) = timeout(REREAD, watching.changed()).await {
                        tracing::warn!("{} is watched no longer: {error}", self.path.display());
                        watch = None;
                    }
                }
            }
        }
    }

    async fn reload(&mut self) {
        let texts = match self.read_settled().await {
            Ok(texts) => texts,
            Err(error) => {
                self.is_read = false;
                return self.fail(&error.to_string());
            }
        };
        if self.has_read(&texts) {
            self.status.send_if_modified(|status| {
                let good = status.last_error.is_none();
                if good {
                    status.last_proof.insert("file", Instant::now());
                }
                good
            });
            return;
        }
        read_anew(texts, &mut self.known, &self.node_name, &self.allowed);
        let loaded = load(&self.known);
        let nothing_known =
            self.known.values().all(|known| known.objects.is_empty()) && self.snapshots.borrow().is_none();
        match loaded.errors.first() {
            // Nothing at all is known: an empty snapshot would be taken for the truth.
            Some(error) if nothing_known => self.fail(error),
            _ => self.publish(&loaded),
        }
        self.is_read = true;
    }

    fn has_read(&self, texts: &Texts) -> bool {
        let known = || self.known.iter().map(|(path, known)| (path, known.text.as_ref()));
        self.is_read && known().eq(texts.iter().map(|(path, text)| (path, Some(text))))
    }

    /// A change is believed when the file has not changed for a moment. A file that is just being written is empty at first, and an empty file is the
    /// truth.
    async fn read_settled(&mut self) -> Result<Texts, SourceError> {
        let mut texts = self.reader.read(&self.path).await?;
        for _ in 0..SETTLE_READS {
            if self.has_read(&texts) {
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

/// Watches the folder that holds `path`, or `path` if it is a folder. `None` where the kernel has no notifications; the file is then only read
/// at intervals.
fn watch_folder(path: &Path) -> Option<Watch> {
    // A mounted ConfigMap changes by a rename in its folder: the file's own inode never does.
    let folder =
        if path.is_dir() { path } else { path.parent().filter(|p| *p != Path::new("")).unwrap_or(Path::new(".")) };
    Watch::of(folder)
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

/// The objects of all files.
fn load(known: &BTreeMap<PathBuf, Arc<Known>>) -> Loaded {
    let mut loaded = Loaded::default();
    for (path, known) in known {
        let path = path.display().to_string();
        loaded.errors.extend(known.errors.iter().cloned());
        loaded.unread.extend(known.unread.iter().cloned());
        for object in &known.objects {
            loaded.add(&path, object);
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

    fn add(&mut self, path: &str, object: &Object) {
        let Some((kind, name)) = &object.identity else {
            if let What::Ignored(what) = &object.what {
                let read = "only Service, EndpointSlice and Node are read";
                self.notes.push(format!("{path}: {what} is ignored: {read}"));
            }
            return;
        };
        match &object.what {
            What::Service(service) if !self.services.contains(name) => {
                return self.services.put(name.clone(), Identity::default(), service.clone());
            }
            What::Slice(slice) if !self.slices.contains(name) => {
                return self.slices.put(name.clone(), Identity::default(), slice.clone());
            }
            What::Node(node) if self.node.is_none() => {
                self.node.clone_from(&node.object);
                return self.refusals.extend(node.refusals.iter().cloned());
            }
            What::OtherNode | What::Ignored(_) => return,
            What::Service(_) | What::Slice(_) | What::Node(_) => {}
        }
        let duplicate = if *kind == "Node" { format!("Node {}", name.name) } else { format!("{kind} {name}") };
        let reason = format!("it is there more than once, again in {path}; the first is served");
        self.refusals.push(Refusal::new(duplicate, reason, "remove one of them"));
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
