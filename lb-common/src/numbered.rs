//! Enums whose values cross a border as numbers: the border between programs and agent, or the one between two functions of the programs.
//!
//! One declaration states the variants, their numbers and their names. Code that decides by such a number takes the enum, so that a `match` is
//! exhaustive, and a new variant is handled wherever it matters.

/// Declares an enum with its numbers.
///
/// * With a module, records hold the number, which may be any. `from_number` gives `None` for one that no variant has. The module has the numbers
///   as constants, and `name` is what users see.
/// * With `else`, the number comes from the programs' own code. `from_number` gives the variant after `else` for any other number.
macro_rules! numbered {
    (
        $(#[$meta:meta])* $name:ident: $number:ident, $module:ident {
            $($(#[$doc:meta])* $variant:ident, $constant:ident = $value:literal, $text:literal;)*
        }
    ) => {
        numbered! { @ $(#[$meta])* $name: $number { $($(#[$doc])* $variant = $value;)* } }

        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: [Self; [$($value),*].len()] = [$(Self::$variant),*];

            /// The one with this number.
            #[inline(always)]
            #[must_use]
            pub const fn from_number(number: $number) -> Option<Self> {
                match number {
                    $($value => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The number, as records have it.
            #[inline(always)]
            #[must_use]
            pub const fn number(self) -> $number {
                self as $number
            }

            /// Name in JSON, metrics and tables.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.name())
            }
        }

        #[doc = concat!("Numbers of [`", stringify!($name), "`](super::", stringify!($name), ").")]
        pub mod $module {
            $($(#[$doc])* pub const $constant: $number = $value;)*
        }
    };
    (
        $(#[$meta:meta])* $name:ident: $number:ident, else $unknown:ident {
            $($(#[$doc:meta])* $variant:ident = $value:literal;)*
        }
    ) => {
        numbered! { @ $(#[$meta])* $name: $number { $($(#[$doc])* $variant = $value;)* } }

        impl $name {
            #[doc = concat!("The one with this number; [`Self::", stringify!($unknown), "`] for any other.")]
            #[inline(always)]
            #[must_use]
            pub const fn from_number(number: $number) -> Self {
                match number {
                    $($value => Self::$variant,)*
                    _ => Self::$unknown,
                }
            }
        }
    };
    (@ $(#[$meta:meta])* $name:ident: $number:ident { $($(#[$doc:meta])* $variant:ident = $value:literal;)* }) => {
        $(#[$meta])*
        #[repr($number)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$doc])* $variant = $value,)*
        }
    };
}

pub(crate) use numbered;
