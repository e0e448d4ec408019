//! One entry that the old and the new programs have both changed since it was copied: pure.

use super::record::{Field, Record};

/// How changes of one field by both sides become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// The new programs' value stands.
    New,
    /// Bits that one side has set or cleared.
    Bits,
    /// The greater number.
    Latest,
}

/// What merges entries of one layout.
#[derive(Clone, Debug)]
pub(super) struct Merge(Vec<(Field, Rule)>);

impl Merge {
    pub fn new(record: &Record) -> Self {
        let rule = |name: &str| match name.rsplit('.').next() {
            Some("fin" | "opposite_fin" | "flags" | "refused") => Rule::Bits,
            Some("seen_s") => Rule::Latest,
            _ => Rule::New,
        };
        Self(record.fields.iter().map(|(name, field)| (*field, rule(name))).collect())
    }

    /// Carries into `current`, which the new programs have, what the old ones have changed between `copied` and `last`. `copied` is what the
    /// entry was when it was written to the new table; zeroes, if that is not known. True if it changes anything.
    ///
    /// All of them are of the same connection and of one layout.
    pub fn carry_over(&self, copied: &[u8], last: &[u8], current: &mut [u8]) -> bool {
        let mut changes = false;
        for (field, rule) in &self.0 {
            let (Some(copied), Some(last), Some(current)) = (field.of(copied), field.of(last), field.of_mut(current))
            else {
                continue;
            };
            if copied == last || current == last {
                continue;
            }
            let before = current.to_vec();
            match rule {
                _ if current == copied => current.copy_from_slice(last),
                Rule::Bits => {
                    for ((to, copied), last) in current.iter_mut().zip(copied).zip(last) {
                        *to = (*to | last & !copied) & !(copied & !last);
                    }
                }
                Rule::Latest if is_later(last, current) => current.copy_from_slice(last),
                Rule::New | Rule::Latest => {}
            }
            changes |= before != current;
        }
        changes
    }
}

/// Whether a number is greater, least significant byte first.
fn is_later(one: &[u8], other: &[u8]) -> bool {
    one.iter().rev().gt(other.iter().rev())
}

#[cfg(test)]
#[path = "merge_tests.rs"]
mod tests;
