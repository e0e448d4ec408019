//! An object of the API in two steps: first what identifies it, then the object alone. What cannot be read stays with its name.

use std::fmt;

use serde::{
    Deserialize,
    de::{DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor},
};
use serde_json::Value;

use super::{failure::Failure, version::Version};
use lb_model::{Mark, ObjectName, shared, uid_hash};
use lb_objects::lean::{ApiKind, Owner};

/// Longest name of an object (Kubernetes API conventions: a DNS subdomain).
const NAME_LENGTH_MAX: usize = 253;

/// Longest reason that is kept, in characters.
const REASON_LENGTH_MAX: usize = 300;

/// An object of a watch or a list.
#[derive(Clone, Debug)]
pub struct Item<K> {
    pub name: ObjectName,
    /// [`uid_hash`]; 0: it has none.
    pub uid: u32,
    pub mark: Mark,
    pub version: Option<Version>,
    /// The object, or why it cannot be read.
    pub object: Result<K, Unreadable>,
}

impl<K> Item<K> {
    /// So many objects of a list without a name that can be read. Any object may be among them.
    pub fn nameless(count: usize) -> Self {
        let reason = format!("a list of the API has {count} objects without a name");
        let object = Err(Unreadable { reason, owner: Owner::Unknown });
        Self { name: ObjectName::unreadable(), uid: 0, mark: Mark::default(), version: None, object }
    }
}

/// Why an object cannot be read, and what is known of it all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    pub reason: String,
    pub owner: Owner,
}

/// What a line of a watch says.
#[derive(Debug)]
pub enum Event<K> {
    Put(Item<K>),
    Deleted(ObjectName, Option<Version>),
    Bookmark(Option<Version>),
    /// The server gives up, and says why.
    Failed(Failure),
    /// It does not say which object it is about.
    Unreadable(String),
}

/// The text of one object, or the beginning of one that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text<'a> {
    Whole(&'a [u8]),
    /// What comes first of a text with more bytes than the limit.
    Head {
        head: &'a [u8],
        limit: usize,
    },
}

impl<'a> Text<'a> {
    fn bytes(self) -> &'a [u8] {
        let (Self::Whole(bytes) | Self::Head { head: bytes, .. }) = self;
        bytes
    }

    fn read<T: DeserializeOwned>(self) -> Result<T, String> {
        match self {
            // An error quotes the text.
            Self::Whole(bytes) => serde_json::from_str(&String::from_utf8_lossy(bytes))
                .map_err(|error: serde_json::Error| error.to_string().chars().take(REASON_LENGTH_MAX).collect()),
            Self::Head { limit, .. } => Err(format!("it has more than {limit} bytes")),
        }
    }
}

/// Reads an item of a list. `None`: it has no name.
pub fn read_item<K: ApiKind>(text: Text<'_>) -> Option<Item<K>> {
    let mut envelope = Envelope::default();
    fill(text, Part::Object(&mut envelope));
    envelope.item(|| text.read())
}

/// Reads a line of a watch.
pub fn read_event<K: ApiKind>(text: Text<'_>) -> Event<K> {
    #[derive(Deserialize)]
    struct Line<K> {
        object: K,
    }
    let mut line = EventEnvelope::default();
    fill(text, Part::Event(&mut line));
    let unreadable = || Event::Unreadable("the API sent an event that names no object".to_owned());
    match line.kind.as_str() {
        "ADDED" | "MODIFIED" => {
            let item = line.object.item(|| text.read::<Line<K>>().map(|line| line.object));
            item.map_or_else(unreadable, Event::Put)
        }
        "DELETED" => {
            line.object.name::<K>().map_or_else(unreadable, |name| Event::Deleted(name, line.object.version()))
        }
        "BOOKMARK" => Event::Bookmark(line.object.version()),
        "ERROR" => {
            let status = text.read::<Line<ApiError>>();
            Event::Failed(status.map_or_else(Failure::without_status, |line| line.object.into()))
        }
        _ => unreadable(),
    }
}

/// The API's `Status`, as far as it says what went wrong.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ApiError {
    code: Option<u16>,
    message: Option<String>,
    reason: Option<String>,
}

impl ApiError {
    pub fn text(self) -> Option<String> {
        self.message.filter(|text| !text.is_empty()).or(self.reason)
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        let status = error.code;
        Self { status, ..Self::without_status(error.text().unwrap_or_else(|| "the API gives no reason".to_owned())) }
    }
}

/// What identifies an object. What is of another type than expected counts as absent.
#[derive(Debug, Default)]
struct Envelope {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    version: Option<String>,
    owner: Owner,
}

impl Envelope {
    fn name<K: ApiKind>(&self) -> Option<ObjectName> {
        let is_good = |name: &&str| !name.is_empty() && name.len() <= NAME_LENGTH_MAX;
        let name = self.name.as_deref().filter(is_good)?;
        let namespace = self.namespace.as_deref().filter(|_| K::IS_NAMESPACED).filter(is_good).unwrap_or("default");
        Some(ObjectName::new(shared(namespace), name))
    }

    fn version(&self) -> Option<Version> {
        Version::parse(self.version.as_deref())
    }

    fn item<K: ApiKind>(&self, object: impl FnOnce() -> Result<K, String>) -> Option<Item<K>> {
        let name = self.name::<K>()?;
        let uid = self.uid.as_deref().filter(|uid| !uid.is_empty()).map_or(0, uid_hash);
        let mark = self.mark(K::NAME, &name);
        let object = object().map_err(|reason| Unreadable { reason, owner: self.owner.clone() });
        Some(Item { name, uid, mark, version: self.version(), object })
    }

    fn mark(&self, kind: &str, name: &ObjectName) -> Mark {
        let of = |text: &Option<String>| text.as_deref().unwrap_or_default().to_owned();
        Mark::of(kind, name, &of(&self.uid), &of(&self.version))
    }
}

#[derive(Debug, Default)]
struct EventEnvelope {
    kind: String,
    object: Envelope,
}

/// Fills in the fields of the text before it ends, or before something in it that is no JSON.
fn fill(text: Text<'_>, part: Part<'_>) {
    let text = String::from_utf8_lossy(text.bytes());
    // What was filled in stays, whatever is wrong behind it.
    let _ = part.deserialize(&mut serde_json::Deserializer::from_str(&text));
}

/// Which part of a text is read.
enum Part<'a> {
    Event(&'a mut EventEnvelope),
    Object(&'a mut Envelope),
    Metadata(&'a mut Envelope),
}

impl<'de> DeserializeSeed<'de> for Part<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Part<'_> {
    type Value = ();

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        let mut has_labels = false;
        while let Some(key) = map.next_key::<String>()? {
            has_labels |= key == "labels";
            match (&mut self, key.as_str()) {
                (Self::Event(event), "type") => event.kind = text(&mut map)?.unwrap_or_default(),
                (Self::Event(event), "object") => map.next_value_seed(Part::Object(&mut event.object))?,
                (Self::Object(envelope), "metadata") => map.next_value_seed(Part::Metadata(envelope))?,
                (Self::Metadata(envelope), "name") => envelope.name = text(&mut map)?,
                (Self::Metadata(envelope), "namespace") => envelope.namespace = text(&mut map)?,
                (Self::Metadata(envelope), "uid") => envelope.uid = text(&mut map)?,
                (Self::Metadata(envelope), "resourceVersion") => envelope.version = text(&mut map)?,
                (Self::Metadata(envelope), "labels") => envelope.owner = Owner::of(&map.next_value()?),
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        if let (Self::Metadata(envelope), false) = (&mut self, has_labels) {
            envelope.owner = Owner::Nobody;
        }
        Ok(())
    }
}

fn text<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<String>, A::Error> {
    Ok(if let Value::String(text) = map.next_value()? { Some(text) } else { None })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use lb_objects::lean::{EndpointSlice, Node, Service};

    fn event(text: &str) -> Event<Service> {
        read_event(Text::Whole(text.as_bytes()))
    }

    #[test]
    fn an_object_that_cannot_be_read_keeps_its_name_uid_and_version() {
        let object =
            json!({"metadata": {"name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "7"}, "spec": 5});
        let Event::Put(item) = event(&json!({"type": "ADDED", "object": object}).to_string()) else {
            panic!("a change")
        };
        assert_eq!((item.name, item.uid), (ObjectName::new("shop", "web"), uid_hash("u")));
        assert_eq!(item.version, Some(Version::Number(7)));
        assert!(item.object.expect_err("no service").reason.contains("invalid type: integer `5`"));
        let Event::Deleted(name, version) = event(&json!({"type": "DELETED", "object": object}).to_string()) else {
            panic!("a change")
        };
        assert_eq!((name, version), (ObjectName::new("shop", "web"), Some(Version::Number(7))));
        let item = read_item::<Service>(Text::Whole(object.to_string().as_bytes())).expect("a name");
        assert!(item.object.is_err() && item.name == ObjectName::new("shop", "web"));
    }

    #[test]
    fn an_object_that_cannot_be_read_names_its_service() {
        let owner = |metadata: &str, behind: &str| {
            let text = format!(r#"{{"metadata":{{"name":"web-1"{metadata}}},"endpoints":5{behind}"#);
            read_item::<EndpointSlice>(Text::Whole(text.as_bytes()))
                .expect("a name")
                .object
                .expect_err("no slice")
                .owner
        };
        let labelled = r#","labels":{"a":"b","kubernetes.io/service-name":"web"}"#;
        assert_eq!(owner(labelled, "}"), Owner::Service("web".to_owned()));
        assert_eq!(owner(labelled, ""), Owner::Service("web".to_owned()), "what follows is cut off");
        for metadata in ["", r#","labels":null"#, r#","labels":{"a":"b"}"#] {
            assert_eq!(owner(metadata, "}"), Owner::Nobody);
        }
        for metadata in [r#","labels":5"#, r#","labels":{"kubernetes.io/service-name":5}"#] {
            assert_eq!(owner(metadata, "}"), Owner::Unknown);
        }
        let cut = Text::Head { head: br#"{"metadata":{"name":"web-1","labels":{"#, limit: 9 };
        assert_eq!(read_item::<EndpointSlice>(cut).expect("a name").object.expect_err("cut").owner, Owner::Unknown);
    }

    #[test]
    fn the_beginning_of_a_huge_object_names_it() {
        let text = r#"{"type":"MODIFIED","object":{"kind":"Service","metadata":{"name":"web","namespace":"shop","resourceVersion":"7","annot"#;
        let Event::Put(item) = read_event::<Service>(Text::Head { head: text.as_bytes(), limit: 9 }) else {
            panic!("a change")
        };
        assert_eq!((&*item.name.name, item.version), ("web", Some(Version::Number(7))));
        assert_eq!(item.object.expect_err("too long").reason, "it has more than 9 bytes");
    }

    #[test]
    fn an_event_without_a_name_tells_nothing() {
        let bad = [
            "",
            "{",
            "null",
            "[]",
            r#"{"type":"ADDED"}"#,
            r#"{"type":"ADDED","object":{"metadata":5}}"#,
            r#"{"type":"ADDED","object":{"metadata":{"name":5}}}"#,
            r#"{"type":5,"object":{"metadata":{"name":"web"}}}"#,
            r#"{"type":"NEW","object":{"metadata":{"name":"web"}}}"#,
            r#"{"type":"ADDED","object":{"metadata":{"name":""}}}"#,
        ];
        for text in bad {
            assert!(matches!(event(text), Event::Unreadable(_)), "{text}");
        }
        assert!(matches!(
            event(r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}"#),
            Event::Bookmark(Some(Version::Number(9)))
        ));
        let Event::Failed(failure) = event(r#"{"type":"ERROR","object":{"code":410,"message":"too old"}}"#) else {
            panic!("a failure")
        };
        assert_eq!((failure.status, failure.reason.as_str()), (Some(410), "too old"));
    }

    #[test]
    fn bytes_that_are_no_text_spoil_at_most_their_own_object() {
        let text =
            b"{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"n1\",\"annotations\":{\"\xff\":\"\xff\"}}}}";
        let Event::Put(item) = read_event::<Node>(Text::Whole(text)) else { panic!("a change") };
        assert!(item.object.is_ok());
    }
}
