//! Kubernetes YAML as text: documents in, objects out; an error says line, column and what was expected.

use std::{collections::BTreeSet, sync::Arc};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use serde_saphyr::{Location, Spanned};

use super::{
    convert,
    lean::{ApiKind as _, EndpointSlice, Node, Owner, Service},
};
use lb_model::{ObjectName, Snapshot, Unread, UnreadKind};

/// A document that is bad, and where.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{path}:{line}:{column}: {reason}; what was known of it stays as it was")]
pub struct ManifestError {
    pub path: String,
    pub line: u64,
    pub column: u64,
    pub reason: String,
}

/// One object of a manifest.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    Service(Box<Service>),
    Slice(Box<EndpointSlice>),
    Node(Box<Node>),
    /// Of a kind that is of no concern here.
    Other(String),
}

#[derive(Deserialize)]
struct Header {
    #[serde(rename = "apiVersion", default)]
    api_version: Option<String>,
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    metadata: Option<Name>,
}

#[derive(Deserialize)]
struct Name {
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    name: Option<String>,
}

#[derive(Deserialize)]
struct List {
    #[serde(default)]
    items: Option<Vec<Spanned<Value>>>,
}

/// What a document is, by its `apiVersion` and `kind`.
enum ManifestKind {
    Service,
    Slice,
    Node,
    /// A list, and the header that its items inherit (`ServiceList`: `v1`, `Service`).
    List(Option<(&'static str, &'static str)>),
    Other,
}

impl Object {
    /// What distinguishes it from others of its kind; `None`: it is of no concern here.
    pub fn identity(&self) -> Option<(&'static str, ObjectName)> {
        match self {
            Self::Service(service) => Some(("Service", convert::object_name(&service.metadata))),
            Self::Slice(slice) => Some(("EndpointSlice", convert::object_name(&slice.metadata))),
            Self::Node(node) => Some(("Node", convert::object_name(&node.metadata))),
            Self::Other(_) => None,
        }
    }
}

/// What a text holds: one document, or one item of a list, that is bad spoils no other.
#[derive(Debug, Default)]
pub struct Parsed {
    pub objects: Vec<Object>,
    pub errors: Vec<ManifestError>,
    /// What is not known by these errors.
    pub unread: BTreeSet<Unread>,
}

impl Parsed {
    /// `value`: what is bad, as far as it can be read at all.
    fn fail(&mut self, path: &str, error: ManifestError, value: Option<&Value>) {
        self.errors.push(error);
        self.unread.extend(unread(path, value).map(|what| Unread { what, uid: 0 }));
    }
}

/// Reads all documents of `text`; `path` is named in errors.
pub fn parse_all(path: &str, text: &str) -> Parsed {
    let mut parsed = Parsed::default();
    for document in documents(path, text) {
        if let Err(error) = parse_document(&document, &mut parsed) {
            let value: Option<Value> = document.read().ok();
            parsed.fail(path, error, value.as_ref());
        }
    }
    parsed
}

/// [`parse_all`] where all of it must be good.
pub fn parse(path: &str, text: &str) -> Result<Vec<Object>, ManifestError> {
    let Parsed { objects, errors, .. } = parse_all(path, text);
    errors.into_iter().next().map_or(Ok(objects), Err)
}

/// The services and slices of a good manifest, for tests of what is done with them.
pub fn snapshot(text: &str) -> Snapshot {
    let mut snapshot = Snapshot { revision: 4, ..Snapshot::default() };
    for object in parse("test", text).expect("a good manifest") {
        match object {
            Object::Service(service) => {
                let object = convert::service(&service).object.expect("a good Service");
                snapshot.services.insert(object.name.clone(), Arc::new(object));
            }
            Object::Slice(slice) => {
                let object = convert::slice(&slice).object.expect("a good EndpointSlice");
                snapshot.slices.insert(object.key(), Arc::new(object));
            }
            Object::Node(_) | Object::Other(_) => {}
        }
    }
    snapshot
}

fn parse_document(document: &Document<'_>, parsed: &mut Parsed) -> Result<(), ManifestError> {
    // A document of comments alone is null.
    let Some(header) = document.yaml::<Option<Spanned<Header>>>()? else { return Ok(()) };
    match kind_of(document.path, document.place(header.referenced), &header.value)? {
        ManifestKind::Service => parsed.objects.push(Object::Service(Box::new(document.yaml()?))),
        ManifestKind::Slice => parsed.objects.push(Object::Slice(Box::new(document.yaml()?))),
        ManifestKind::Node => parsed.objects.push(Object::Node(Box::new(document.yaml()?))),
        ManifestKind::Other => parsed.objects.push(other(&header.value)),
        ManifestKind::List(inherited) => {
            for item in document.yaml::<List>()?.items.unwrap_or_default() {
                let (place, value) = (document.place(item.referenced), with_header(item.value, inherited));
                match parse_item(document.path, place, &value) {
                    Ok(object) => parsed.objects.push(object),
                    Err(error) => parsed.fail(document.path, error, Some(&value)),
                }
            }
        }
    }
    Ok(())
}

/// What is not known where an object cannot be read; `None`: nothing that matters to services.
fn unread(path: &str, value: Option<&Value>) -> Option<UnreadKind> {
    let unknown = || UnreadKind::Unknown(path.to_owned());
    let text = |pointer: &str| value?.pointer(pointer)?.as_str().filter(|text| !text.is_empty());
    let Some(kind) = text("/kind") else { return Some(unknown()) };
    if !["Service", "EndpointSlice"].contains(&kind) {
        return kind.ends_with("List").then(unknown);
    }
    let Some(name) = text("/metadata/name") else { return Some(unknown()) };
    let namespace = match value.and_then(|value| value.pointer("/metadata/namespace")) {
        None | Some(Value::Null) => "default",
        Some(Value::String(namespace)) => namespace,
        // YAML takes a bare `n` or `1` for no text.
        Some(_) => return Some(unknown()),
    };
    let name = ObjectName::new(namespace, name);
    if kind == "Service" {
        return Service::unread(&name, &Owner::Nobody);
    }
    let labels = value.and_then(|value| value.pointer("/metadata/labels"));
    EndpointSlice::unread(&name, &Owner::of(labels.unwrap_or(&Value::Null)))
}

/// An item of a list that says what its items are.
fn with_header(mut value: Value, inherited: Option<(&'static str, &'static str)>) -> Value {
    if let (Some((api_version, kind)), Some(map)) = (inherited, value.as_object_mut()) {
        map.entry("apiVersion").or_insert_with(|| api_version.into());
        map.entry("kind").or_insert_with(|| kind.into());
    }
    value
}

fn parse_item(path: &str, place: (u64, u64), value: &Value) -> Result<Object, ManifestError> {
    let header: Header = json(path, place, value)?;
    match kind_of(path, place, &header)? {
        ManifestKind::Service => Ok(Object::Service(Box::new(json(path, place, value)?))),
        ManifestKind::Slice => Ok(Object::Slice(Box::new(json(path, place, value)?))),
        ManifestKind::Node => Ok(Object::Node(Box::new(json(path, place, value)?))),
        ManifestKind::List(_) => Err(error(path, place, "a list in a list: expected an object")),
        ManifestKind::Other => Ok(other(&header)),
    }
}

fn other(header: &Header) -> Object {
    let mut kind = header.kind.clone().unwrap_or_default();
    if let ("Service" | "EndpointSlice" | "Node", Some(version)) = (kind.as_str(), &header.api_version) {
        kind = format!("{version} {kind}");
    }
    let name = header.metadata.as_ref().and_then(|meta| meta.name.as_deref()).unwrap_or("(no name)");
    let namespace = header.metadata.as_ref().and_then(|meta| meta.namespace.as_deref());
    Object::Other(namespace.map_or_else(|| format!("{kind} {name}"), |namespace| format!("{kind} {namespace}/{name}")))
}

fn kind_of(path: &str, place: (u64, u64), header: &Header) -> Result<ManifestKind, ManifestError> {
    let (Some(version), Some(kind)) = (header.api_version.as_deref(), header.kind.as_deref()) else {
        return Err(error(path, place, "expected a Kubernetes object with apiVersion and kind"));
    };
    match (version, kind) {
        ("v1", "Service") => Ok(ManifestKind::Service),
        ("discovery.k8s.io/v1", "EndpointSlice") => Ok(ManifestKind::Slice),
        ("v1", "Node") => Ok(ManifestKind::Node),
        ("v1", "List") => Ok(ManifestKind::List(None)),
        ("v1", "ServiceList") => Ok(ManifestKind::List(Some(("v1", "Service")))),
        ("discovery.k8s.io/v1", "EndpointSliceList") => {
            Ok(ManifestKind::List(Some(("discovery.k8s.io/v1", "EndpointSlice"))))
        }
        ("v1", "NodeList") => Ok(ManifestKind::List(Some(("v1", "Node")))),
        // With a group of its own it is another kind of the same name: Knative has a Service.
        (version, kind @ ("Service" | "Node")) if !version.contains('/') => {
            Err(error(path, place, &format!("{kind} of apiVersion {version:?}: expected v1")))
        }
        (version, "EndpointSlice") if version.starts_with("discovery.k8s.io/") => {
            Err(error(path, place, &format!("EndpointSlice of apiVersion {version:?}: expected discovery.k8s.io/v1")))
        }
        _ => Ok(ManifestKind::Other),
    }
}

fn json<T: DeserializeOwned>(path: &str, place: (u64, u64), value: &Value) -> Result<T, ManifestError> {
    T::deserialize(value).map_err(|problem| error(path, place, &format!("in this list item: {problem}")))
}

fn error(path: &str, (line, column): (u64, u64), reason: &str) -> ManifestError {
    ManifestError { path: path.to_owned(), line, column, reason: reason.to_owned() }
}

/// One document of a file.
struct Document<'a> {
    path: &'a str,
    /// How many lines of the file stand before it.
    lines_before: usize,
    text: String,
}

impl Document<'_> {
    /// As [`Self::yaml`]; an error names lines of the document.
    fn read<T: DeserializeOwned>(&self) -> Result<T, serde_saphyr::Error> {
        serde_saphyr::from_str_with_options(&self.text, options())
    }

    fn yaml<T: DeserializeOwned>(&self) -> Result<T, ManifestError> {
        let mut problem = match self.read() {
            Ok(value) => return Ok(value),
            Err(problem) => problem,
        };
        if self.lines_before > 0 {
            // Errors name lines in their text, too: behind as many empty lines these are lines of the file.
            let text = "\n".repeat(self.lines_before) + &self.text;
            problem = serde_saphyr::from_str_with_options::<T>(&text, options()).err().unwrap_or(problem);
        }
        let problem = problem.without_snippet();
        let place = problem.location().map_or((1, 1), |at| (at.line(), at.column()));
        // The reader's own advice is for programmers.
        let reason = problem.to_string().replace(", set DuplicateKeyPolicy in Options if acceptable", "");
        Err(error(self.path, place, &reason))
    }

    /// A place in this document as line and column of the file.
    fn place(&self, location: Location) -> (u64, u64) {
        (location.line() + self.lines_before as u64, location.column())
    }
}

/// How many nodes aliases may expand to in one document. Manifests that programs write have no aliases; the reader copies what an alias
/// expands to into every anchor around it.
const ALIAS_EVENTS_MAX: usize = 10_000;

/// A list of all services of a large cluster is one document, so its size has no bound but the reader's own 256 MB; what aliases
/// may expand to has.
fn options() -> serde_saphyr::Options {
    let budget = serde_saphyr::budget! { max_nodes: usize::MAX, max_events: usize::MAX };
    let alias_limits = serde_saphyr::alias_limits! { max_total_replayed_events: ALIAS_EVENTS_MAX };
    serde_saphyr::options! { budget: budget, alias_limits: alias_limits }
}

/// The documents of a file.
///
/// A line that begins with `---` or `...` always ends a document (YAML 1.2, 9.1.2), whatever it stands in.
fn documents<'a>(path: &'a str, text: &str) -> Vec<Document<'a>> {
    let mut documents = Vec::new();
    let mut current = Document { path, lines_before: 0, text: String::new() };
    let mut used = false;
    for (number, line) in text.lines().enumerate() {
        let rest = ["---", "..."].iter().find_map(|marker| after_marker(line, marker));
        if rest.is_some() {
            let next = Document { path, lines_before: number, text: String::new() };
            let ended = std::mem::replace(&mut current, next);
            if used {
                documents.push(ended);
            }
            used = false;
        }
        match rest {
            // What follows the marker on its line belongs to the next document.
            Some(rest) => {
                current.text.push_str("   ");
                current.text.push_str(rest);
                used = has_content(rest);
            }
            // A directive (`%YAML 1.2`) stands before a document.
            None if line.starts_with('%') && !used => {}
            None => {
                current.text.push_str(line);
                used |= has_content(line);
            }
        }
        current.text.push('\n');
    }
    if used {
        documents.push(current);
    }
    documents
}

fn after_marker<'a>(line: &'a str, marker: &str) -> Option<&'a str> {
    line.strip_prefix(marker).filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r']))
}

fn has_content(line: &str) -> bool {
    let text = line.trim();
    !text.is_empty() && !text.starts_with('#')
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
