//! The bytes of a script, read one after the other.

/// Reads a script to its end.
#[derive(Debug)]
pub struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    /// How the script is read, by its first byte: whether its packets are of IPv6, and whether its scene is a wide one.
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Option<(bool, bool, Self)> {
        let (kind, script) = bytes.split_first()?;
        Some((kind & 1 != 0, kind & 2 != 0, Self(script)))
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn one_of<T: Copy>(&mut self, choices: &[T]) -> Option<T> {
        let at = usize::from(self.byte()?) % choices.len();
        Some(choices[at])
    }
}
