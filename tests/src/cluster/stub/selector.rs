//! What a list or watch asks for: query parameters, label selectors, field selectors.

use std::collections::BTreeMap;

use serde_json::Value;

/// The parameters of a request.
#[derive(Debug, Default)]
pub struct Query(BTreeMap<String, String>);

impl Query {
    /// Reads `a=b&c=d`, percent-decoded.
    pub fn parse(text: &str) -> Self {
        let pair = |part: &str| {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            (decode(key), decode(value))
        };
        Self(text.split('&').filter(|part| !part.is_empty()).map(pair).collect())
    }

    /// A parameter.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Whether a switch is on.
    pub fn is(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| value == "true" || value == "1")
    }

    /// Which objects are asked for.
    pub fn selector(&self) -> Selector {
        let terms = |key: &str| self.get(key).unwrap_or_default().split(',').filter_map(Term::parse).collect();
        Selector { labels: terms("labelSelector"), fields: terms("fieldSelector") }
    }
}

fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        if let Some(byte) = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            decoded.push(byte);
            at += 3;
        } else {
            decoded.push(if bytes[at] == b'+' { b' ' } else { bytes[at] });
            at += 1;
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// Label and field selectors; all terms must hold.
#[derive(Debug, Default)]
pub struct Selector {
    labels: Vec<Term>,
    fields: Vec<Term>,
}

impl Selector {
    /// Whether the object is asked for.
    pub fn admits(&self, object: &Value) -> bool {
        let label = |key: &str| object["metadata"]["labels"].get(key);
        let field = |key: &str| object.pointer(&format!("/{}", key.replace('.', "/")));
        self.labels.iter().all(|term| term.holds(label(term.key())))
            && self.fields.iter().all(|term| term.holds(field(term.key())))
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Term {
    Absent(String),
    Present(String),
    Equal(String, String),
    NotEqual(String, String),
}

impl Term {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.is_empty() {
            return None;
        }
        let both = |key: &str, value: &str| (key.trim().to_owned(), value.trim_start_matches('=').trim().to_owned());
        Some(if let Some((key, value)) = text.split_once("!=") {
            let (key, value) = both(key, value);
            Self::NotEqual(key, value)
        } else if let Some((key, value)) = text.split_once('=') {
            let (key, value) = both(key, value);
            Self::Equal(key, value)
        } else if let Some(key) = text.strip_prefix('!') {
            Self::Absent(key.to_owned())
        } else {
            Self::Present(text.to_owned())
        })
    }

    fn key(&self) -> &str {
        match self {
            Self::Absent(key) | Self::Present(key) | Self::Equal(key, _) | Self::NotEqual(key, _) => key,
        }
    }

    fn holds(&self, value: Option<&Value>) -> bool {
        let text = value.and_then(Value::as_str);
        match self {
            Self::Absent(_) => text.is_none(),
            Self::Present(_) => text.is_some(),
            Self::Equal(_, wanted) => text == Some(wanted),
            Self::NotEqual(_, unwanted) => text != Some(unwanted),
        }
    }
}
