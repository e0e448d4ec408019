//! Resource versions of the API: opaque text, but for decimal numbers, which may be compared (KEP-5504).

use std::collections::BTreeMap;

use lb_model::ObjectName;
use std::{cmp::Ordering, fmt};

/// The version of an object, a list or a place in a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Version {
    Number(u64),
    Text(Box<str>),
}

impl Version {
    /// `None` where there is none.
    pub fn parse(text: Option<&str>) -> Option<Self> {
        let text = text.filter(|text| !text.is_empty())?;
        Some(text.parse().map_or_else(|_| Self::Text(text.into()), Self::Number))
    }

    /// Whether it is certainly the older one.
    pub fn is_before(&self, other: &Self) -> bool {
        self < other
    }

    /// Of an object without one: it equals no other but itself.
    pub fn unknown() -> Self {
        Self::Text("".into())
    }
}

/// Only numbers have an order.
impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Number(one), Self::Number(other)) => Some(one.cmp(other)),
            _ => (self == other).then_some(Ordering::Equal),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// The names held, and in what version.
pub type Known = BTreeMap<ObjectName, Version>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_as_numbers_and_text_not_at_all() {
        let version = |text| Version::parse(Some(text)).unwrap();
        assert!(version("9") < version("10"));
        assert_eq!(version("a").partial_cmp(&version("b")), None);
        assert!(version("a") <= version("a") && version("7").to_string() == "7");
        assert_eq!((Version::parse(Some("")), Version::parse(None)), (None, None));
    }
}
