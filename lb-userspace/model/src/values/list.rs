//! Options that are lists: separated by commas on the command line; in YAML the same text, or a list.

use std::fmt::{self, Display};

use serde::de::{self, Deserializer, SeqAccess, Visitor};

/// The parts of a text; empty ones are left out.
pub fn parts(text: &str) -> Vec<&str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// Reads either way of writing it. `expected`: what it is, for the error about any other type.
pub fn deserialize<'de, D, T, E>(
    deserializer: D,
    expected: &'static str,
    parse: fn(&[&str]) -> Result<T, E>,
) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    E: Display,
{
    struct TextOrList<T, E> {
        expected: &'static str,
        parse: fn(&[&str]) -> Result<T, E>,
    }
    impl<'de, T, E: Display> Visitor<'de> for TextOrList<T, E> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.expected)
        }

        fn visit_str<F: de::Error>(self, text: &str) -> Result<T, F> {
            (self.parse)(&parts(text)).map_err(F::custom)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<T, A::Error> {
            let mut parts = Vec::new();
            while let Some(part) = list.next_element::<String>()? {
                parts.push(part);
            }
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            (self.parse)(&parts).map_err(de::Error::custom)
        }
    }
    deserializer.deserialize_any(TextOrList { expected, parse })
}
