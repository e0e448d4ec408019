//! The source `file`: Kubernetes YAML in one file or in a folder, read again whenever it changes.

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
    reading::{Reader, Texts},
    watching::Watch,
};
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
            is_read: false,
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

/// What is known of a file, by its text as it was read last.
#[derive(Debug, Default)]
struct Known {
    text: Option<Result<String, String>>,
    /// What it held when it was last good, and since.
    objects: Vec<Object>,
    /// That it cannot be read, or documents that are bad.
    errors: Vec<String>,
    /// What is not known by these errors.
    unread: BTreeSet<Unread>,
}

struct Follow {
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

impl Follow {
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
        read_anew(texts, &mut self.known);
        let loaded = load(&self.known, &self.node_name, &self.allowed);
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

    /// What is new is believed when it has stood still for a moment: a file that is just being written is empty at first, and
    /// an empty file is the truth.
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

/// Watches the folder that holds `path`, or `path` if it is a folder. `None` where the kernel cannot tell; the file is then only read
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

/// Takes in what the files hold now. Only a file with another text than before is parsed.
fn read_anew(texts: Texts, known: &mut BTreeMap<PathBuf, Arc<Known>>) {
    known.retain(|path, _| texts.contains_key(path));
    for (path, text) in texts {
        let before = known.entry(path.clone()).or_default();
        if before.text.as_ref() != Some(&text) {
            *before = Arc::new(Known::of(&path, text, &before.objects));
        }
    }
}

impl Known {
    /// Reads a text into objects. A file that cannot be read, and a document that is bad, are named; what was known of them stays.
    fn of(path: &Path, text: Result<String, String>, before: &[Object]) -> Self {
        let path = path.display().to_string();
        let mut known = match &text {
            Ok(text) => {
                let parsed = manifest::parse_all(&path, text);
                let errors = parsed.errors.iter().map(ToString::to_string).collect();
                Self { text: None, objects: parsed.objects, errors, unread: parsed.unread }
            }
            Err(error) => {
                let unread = Unread { what: UnreadKind::Unknown(path), uid: 0 };
                Self { errors: vec![error.clone()], unread: [unread].into(), ..Self::default() }
            }
        };
        if !known.errors.is_empty() {
            // Which document is the bad one is not known: none of those that are missing is taken for removed.
            let there: BTreeSet<_> = known.objects.iter().filter_map(Object::identity).collect();
            let is_missing = |object: &&Object| object.identity().is_some_and(|identity| !there.contains(&identity));
            let missing: Vec<Object> = before.iter().filter(is_missing).cloned().collect();
            known.objects.extend(missing);
        }
        Self { text: Some(text), ..known }
    }
}

/// The objects of all files.
fn load(known: &BTreeMap<PathBuf, Arc<Known>>, node_name: &str, allowed: &AllowedAnnotations) -> Loaded {
    let mut loaded = Loaded::default();
    for (path, known) in known {
        let path = path.display().to_string();
        loaded.errors.extend(known.errors.iter().cloned());
        loaded.unread.extend(known.unread.iter().cloned());
        for object in &known.objects {
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
