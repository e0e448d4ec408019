//! The layout of a record: where each field is, by name.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A key or a value of a map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Bytes.
    pub size: u32,
    /// By path: `backend`, `flow.backend`, `pairs[3].family`. A record that is one number or one array has one field, [`Record::WHOLE`].
    pub fields: BTreeMap<String, Field>,
}

impl Record {
    /// Name of the field that is the whole record.
    pub const WHOLE: &str = "";

    pub fn field(&self, name: &str) -> Option<Field> {
        self.fields.get(name).copied()
    }
}

/// Where a field is and what it consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Field {
    /// Bytes from the start of the record.
    pub offset: u32,
    pub element: Element,
    /// How many elements, one after the other.
    pub count: u32,
}

/// What a field consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// A number of so many bytes, in the order of this machine.
    Unsigned(u32),
    /// A number of so many bytes that may be negative.
    Signed(u32),
    /// So many bytes that are no number: an address, text, padding.
    Bytes(u32),
}

impl Element {
    /// Bytes of one element.
    pub const fn size(self) -> u32 {
        match self {
            Self::Unsigned(size) | Self::Signed(size) | Self::Bytes(size) => size,
        }
    }

    /// Whether it is a number.
    pub const fn is_number(self) -> bool {
        !matches!(self, Self::Bytes(_))
    }
}

impl Field {
    /// Bytes of all elements.
    pub const fn size(self) -> u32 {
        self.element.size().saturating_mul(self.count)
    }

    /// The bytes of the field in a record. `None`: the record is too short.
    pub fn of(self, record: &[u8]) -> Option<&[u8]> {
        let start = self.offset as usize;
        record.get(start..start + self.size() as usize)
    }

    /// The bytes of the field, to be written.
    pub fn of_mut(self, record: &mut [u8]) -> Option<&mut [u8]> {
        let start = self.offset as usize;
        record.get_mut(start..start + self.size() as usize)
    }

    /// The field as one number of at most eight bytes, without a sign.
    pub fn number(self, record: &[u8]) -> Option<u64> {
        let bytes = self.of(record)?;
        let mut word = [0; 8];
        word.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(word))
    }
}

/// `u32@8`: a number at offset 8. `u32[3]@8`: three of them. `u8[16]@8`: sixteen bytes. `u8[16][4]@8`: four times sixteen bytes.
impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.element {
            Element::Unsigned(size) => write!(f, "u{}", size * 8)?,
            Element::Signed(size) => write!(f, "i{}", size * 8)?,
            Element::Bytes(size) => write!(f, "u8[{size}]")?,
        }
        if self.count != 1 {
            write!(f, "[{}]", self.count)?;
        }
        write!(f, "@{}", self.offset)
    }
}

impl From<Field> for String {
    fn from(field: Field) -> Self {
        field.to_string()
    }
}

impl TryFrom<String> for Field {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Field {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text)
            .ok_or_else(|| format!("{text:?} is no field: expected one as u32@8, u32[3]@8, u8[16]@8 or u8[16][4]@8"))
    }
}

fn parse(text: &str) -> Option<Field> {
    let (kind, offset) = text.split_once('@')?;
    let mut parts = kind.split('[');
    let base = parts.next()?;
    let mut counts = parts.map(|part| part.strip_suffix(']')?.parse::<u32>().ok());
    let bits: u32 = base.get(1..)?.parse().ok()?;
    let size = bits / 8;
    let is_size = bits.is_multiple_of(8) && matches!(size, 1 | 2 | 4 | 8);
    let element = match base.get(..1)? {
        "u" if bits == 8 && kind.contains('[') => Element::Bytes(counts.next()??),
        "u" if is_size => Element::Unsigned(size),
        "i" if is_size => Element::Signed(size),
        _ => return None,
    };
    let count = counts.next().map_or(Some(1), |count| count)?;
    let field = Field { offset: offset.parse().ok()?, element, count };
    // A record is never that large; beyond it, places could overflow.
    let end = field.element.size().checked_mul(count).and_then(|size| size.checked_add(field.offset))?;
    (counts.next().is_none() && end <= MOST_BYTES).then_some(field)
}

/// The largest record that is believed.
const MOST_BYTES: u32 = 1 << 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_field_is_read_back() {
        for (text, element, count, offset) in [
            ("u8@3", Element::Unsigned(1), 1, 3),
            ("u64@0", Element::Unsigned(8), 1, 0),
            ("i32@4", Element::Signed(4), 1, 4),
            ("u32[3]@8", Element::Unsigned(4), 3, 8),
            ("u8[16]@8", Element::Bytes(16), 1, 8),
            ("u8[16][4]@8", Element::Bytes(16), 4, 8),
        ] {
            let field = Field { offset, element, count };
            assert_eq!(text.parse(), Ok(field));
            assert_eq!(field.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_field_is_refused() {
        for text in
            ["", "u32", "u32@", "u7@0", "u128@0", "x8@0", "u32[3@0", "u8[4][4][4]@0", "u32[4294967295]@8", "é8@0"]
        {
            assert!(text.parse::<Field>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_field_beyond_its_record_is_not_read() {
        let field: Field = "u16@2".parse().unwrap();
        assert_eq!(field.number(&[0, 0, 1, 2]), Some(0x0201));
        assert_eq!(field.number(&[0, 0, 1]), None);
    }
}
