//! A record of one layout made from one of another, field by field, by name.

use super::record::{Element, Field, Record};

/// A value of a field that the other layout has no room for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    pub field: String,
    /// The number, or the bytes in hexadecimal.
    pub value: String,
}

/// A field that is a number in one layout and no number of any size in the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incompatible {
    pub field: String,
    pub old: Field,
    pub new: Field,
}

/// What makes records of one layout from those of another.
#[derive(Clone, Debug)]
pub struct Converter {
    /// A record with nothing in it but the values of fields that are new.
    blank: Vec<u8>,
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
struct Step {
    name: String,
    old: Field,
    new: Field,
}

impl Converter {
    /// `fresh`: the value of a field that only the new layout has, if it is not 0.
    pub fn new(old: &Record, new: &Record, fresh: impl Fn(&str) -> Option<u64>) -> Result<Self, Incompatible> {
        let mut blank = vec![0; new.size as usize];
        let mut steps = Vec::new();
        for (name, field) in &new.fields {
            let Some(from) = old.field(name) else {
                if let (Some(value), Some(to)) = (fresh(name), field.of_mut(&mut blank)) {
                    let bytes = value.to_le_bytes();
                    let length = to.len().min(bytes.len());
                    to[..length].copy_from_slice(&bytes[..length]);
                }
                continue;
            };
            let alike = from.element.is_number() == field.element.is_number() || from.size() == field.size();
            if !alike {
                return Err(Incompatible { field: name.clone(), old: from, new: *field });
            }
            steps.push(Step { name: name.clone(), old: from, new: *field });
        }
        Ok(Self { blank, steps })
    }

    /// Whether a record of zeroes becomes one of zeroes.
    pub fn keeps_zeroes(&self) -> bool {
        self.blank.iter().all(|byte| *byte == 0)
    }

    /// The record in the new layout.
    pub fn convert(&self, old: &[u8]) -> Result<Vec<u8>, Misfit> {
        let mut new = self.blank.clone();
        for step in &self.steps {
            step.apply(old, &mut new)?;
        }
        Ok(new)
    }
}

impl Step {
    fn apply(&self, old: &[u8], new: &mut [u8]) -> Result<(), Misfit> {
        let (Some(from), Some(to)) = (self.old.of(old), self.new.of_mut(new)) else {
            return Err(self.misfit("a record that is cut off".to_owned()));
        };
        if self.old.element == self.new.element || self.old.size() == self.new.size() {
            return self.copy(from, to);
        }
        let sizes = (self.old.element.size() as usize, self.new.element.size() as usize);
        let (mut from, mut to) = (from.chunks_exact(sizes.0.max(1)), to.chunks_exact_mut(sizes.1.max(1)));
        for to in &mut to {
            let Some(from) = from.next() else { break };
            if self.new.element.is_number() {
                let number = number(self.old.element, from);
                to.copy_from_slice(&number.to_le_bytes()[..to.len()]);
                if self::number(self.new.element, to) != number {
                    return Err(self.misfit(number.to_string()));
                }
            } else {
                self.copy(from, to)?;
            }
        }
        from.try_for_each(|rest| self.nothing(rest))
    }

    /// Copies bytes; what does not fit must be zeroes.
    fn copy(&self, from: &[u8], to: &mut [u8]) -> Result<(), Misfit> {
        let length = from.len().min(to.len());
        to[..length].copy_from_slice(&from[..length]);
        self.nothing(&from[length..])
    }

    fn nothing(&self, rest: &[u8]) -> Result<(), Misfit> {
        if rest.iter().all(|byte| *byte == 0) { Ok(()) } else { Err(self.misfit(format!("{rest:02x?}"))) }
    }

    fn misfit(&self, value: String) -> Misfit {
        Misfit { field: self.name.clone(), value }
    }
}

/// A number of at most eight bytes, least significant byte first, as BPF targets of this project and their hosts have it.
fn number(element: Element, bytes: &[u8]) -> i128 {
    let is_negative = matches!(element, Element::Signed(_)) && bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut word = [if is_negative { 0xff } else { 0 }; 16];
    word[..bytes.len()].copy_from_slice(bytes);
    i128::from_le_bytes(word)
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
