//! Values of options, read from the same text on the command line and in YAML.

mod annotations;
pub mod list;
pub mod named;
mod nodeports;
mod slot_shares;

pub use nodeports::NodePortAddresses;

/// A value that was not understood: what was given, and what would be.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{given:?} is not {what}: expected {expected}")]
pub struct ValueError {
    pub given: String,
    pub what: &'static str,
    pub expected: &'static str,
}

/// One of several words, read from text: an enum with the words of its values.
#[macro_export]
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident, $what:literal, $expected:literal, { $($(#[$variant_doc:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_doc])* $variant),* }

        impl $name {
            /// As written on the command line.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text),* }
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::ValueError;

            fn from_str(text: &str) -> Result<Self, $crate::ValueError> {
                match text {
                    $($text => Ok(Self::$variant),)*
                    _ => Err($crate::ValueError { given: text.into(), what: $what, expected: $expected }),
                }
            }
        }
    };
}

/// Makes an option of a type that is a list and has `from_parts`. `expected`: what it is, for the error about any other type.
#[macro_export]
macro_rules! list_option {
    ($name:ty, $expected:literal) => {
        impl ::std::str::FromStr for $name {
            type Err = $crate::ValueError;

            fn from_str(text: &str) -> Result<Self, $crate::ValueError> {
                Self::from_parts(&$crate::values::list::parts(text))
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::values::list::deserialize(deserializer, $expected, Self::from_parts)
            }
        }
    };
}

/// Makes an option of a type that is [`Named`](named::Named).
#[macro_export]
macro_rules! named_option {
    ($name:ty) => {
        impl ::std::str::FromStr for $name {
            type Err = $crate::NamedError;

            fn from_str(text: &str) -> Result<Self, $crate::NamedError> {
                $crate::values::named::parse(text)
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $name {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::values::named::deserialize(deserializer)
            }
        }
    };
}
