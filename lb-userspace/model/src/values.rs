//! Values of options, read from the same text on the command line and in YAML.

mod annotations;
pub mod list;
pub mod named;
mod slot_shares;

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
