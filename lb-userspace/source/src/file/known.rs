//! What is known of each file: its objects, converted once for each text.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::reading::Texts;
use lb_model::{AllowedAnnotations, Node, ObjectName, Service, Slice, Unread, UnreadKind};
use lb_objects::{
    convert, manifest,
    objects::{self, Shared},
};

/// What is known of a file, by its text as it was read last.
#[derive(Debug, Default)]
pub struct Known {
    pub text: Option<Result<String, String>>,
    /// What it held when it was last good, and since.
    pub objects: Vec<Object>,
    /// That it cannot be read, or documents that are bad.
    pub errors: Vec<String>,
    /// What is not known by these errors.
    pub unread: BTreeSet<Unread>,
}

/// An object of a file.
#[derive(Clone, Debug)]
pub struct Object {
    /// See [`manifest::Object::identity`].
    pub identity: Option<(&'static str, ObjectName)>,
    pub what: What,
}

/// What is served of it.
#[derive(Clone, Debug)]
pub enum What {
    Service(Shared<Service>),
    Slice(Shared<Slice>),
    /// The own one.
    Node(Shared<Node>),
    OtherNode,
    /// Of a kind that is of no concern here.
    Ignored(String),
}

/// Takes in what the files hold now. Only a file with another text than before is parsed, and its objects converted.
pub fn read_anew(
    texts: Texts,
    known: &mut BTreeMap<PathBuf, Arc<Known>>,
    node_name: &str,
    allowed: &AllowedAnnotations,
) {
    known.retain(|path, _| texts.contains_key(path));
    for (path, text) in texts {
        let before = known.entry(path.clone()).or_default();
        if before.text.as_ref() != Some(&text) {
            let convert = |object: &manifest::Object| Object::of(object, node_name, allowed);
            *before = Arc::new(Known::of(&path, text, &before.objects, convert));
        }
    }
}

impl Known {
    /// Reads a text into objects. A file that cannot be read, and a document that is bad, are named; what was known of them stays.
    fn of(
        path: &Path,
        text: Result<String, String>,
        before: &[Object],
        convert: impl Fn(&manifest::Object) -> Object,
    ) -> Self {
        let path = path.display().to_string();
        let mut known = match &text {
            Ok(text) => {
                let parsed = manifest::parse_all(&path, text);
                let errors = parsed.errors.iter().map(ToString::to_string).collect();
                let objects = parsed.objects.iter().map(convert).collect();
                Self { text: None, objects, errors, unread: parsed.unread }
            }
            Err(error) => {
                let unread = Unread { what: UnreadKind::Unknown(path), uid: 0 };
                Self { errors: vec![error.clone()], unread: [unread].into(), ..Self::default() }
            }
        };
        if !known.errors.is_empty() {
            // Which document is the bad one is not known: none of those that are missing is taken for removed.
            let there: BTreeSet<_> = known.objects.iter().filter_map(|object| object.identity.clone()).collect();
            let is_missing =
                |object: &&Object| object.identity.as_ref().is_some_and(|identity| !there.contains(identity));
            let missing: Vec<Object> = before.iter().filter(is_missing).cloned().collect();
            known.objects.extend(missing);
        }
        Self { text: Some(text), ..known }
    }
}

impl Object {
    fn of(object: &manifest::Object, node_name: &str, allowed: &AllowedAnnotations) -> Self {
        use manifest::Object as Read;
        let what = match object {
            Read::Service(service) => What::Service(objects::service(service, allowed)),
            Read::Slice(slice) => What::Slice(convert::slice(slice).into()),
            Read::Node(node) if node.metadata.name.as_deref() != Some(node_name) => What::OtherNode,
            Read::Node(node) => What::Node(convert::node(node).into()),
            Read::Other(what) => What::Ignored(what.clone()),
        };
        Self { identity: object.identity(), what }
    }
}
