//! Options that are several values by name: `NAME=VALUE,…` on the command line, in YAML also a mapping.

use std::marker::PhantomData;

use serde::de::{self, Deserializer, MapAccess, Visitor};

/// One of several values was not understood: what was given, and what would be.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{given:?} is not {what}: expected {expected}")]
pub struct NamedError {
    given: String,
    what: &'static str,
    expected: String,
}

impl NamedError {
    pub fn new(given: &str, what: &'static str, expected: &str) -> Self {
        Self { given: given.into(), what, expected: expected.into() }
    }
}

/// Values by name; those that are not named keep their default.
pub trait Named: Default {
    /// What one of them is, and how it is written.
    const WHAT: &'static str;
    const WRITTEN: &'static str;

    /// Takes one value as it is written.
    fn set(&mut self, name: &str, value: &str) -> Result<(), NamedError>;
}

/// Reads `NAME=VALUE,…`.
pub fn parse<T: Named>(text: &str) -> Result<T, NamedError> {
    let mut values = T::default();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let wrong = || NamedError::new(part, T::WHAT, T::WRITTEN);
        let (name, value) = part.split_once('=').ok_or_else(wrong)?;
        values.set(name.trim(), value.trim())?;
    }
    Ok(values)
}

/// Reads either way of writing it.
pub fn deserialize<'de, T: Named, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    struct TextOrMap<T>(PhantomData<T>);
    impl<'de, T: Named> Visitor<'de> for TextOrMap<T> {
        type Value = T;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "{}: {}, or a mapping", T::WHAT, T::WRITTEN)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            parse(text).map_err(E::custom)
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
            let mut values = T::default();
            // Numbers and durations are read from the same text as on the command line.
            while let Some((name, value)) = map.next_entry::<String, Scalar>()? {
                values.set(&name, &value.0).map_err(de::Error::custom)?;
            }
            Ok(values)
        }
    }
    deserializer.deserialize_any(TextOrMap(PhantomData))
}

/// A number or text, as text.
struct Scalar(String);

impl<'de> de::Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = Scalar;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number or text")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar(text.to_owned()))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Scalar, E> {
                Ok(Scalar(number.to_string()))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Scalar, E> {
                Ok(Scalar(number.to_string()))
            }
        }
        deserializer.deserialize_any(Any)
    }
}
