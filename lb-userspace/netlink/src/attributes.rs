//! Attributes of netlink messages, as the kernel writes and reads them.

use std::ops::Deref;

use netlink_packet_core::{
    DefaultNla, Emitable as _, NLA_F_NESTED, NLA_HEADER_SIZE, NlasIterator, parse_u16_be, parse_u32_be,
};

/// Attributes one after the other, as the bytes of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes(Vec<u8>);

impl Attributes {
    /// Adds an attribute. Its value is shorter than 64 KiB.
    #[must_use]
    pub fn with(mut self, kind: u16, value: &[u8]) -> Self {
        let attribute = DefaultNla::new(kind, value.to_vec());
        let start = self.0.len();
        self.0.resize(start + attribute.buffer_len(), 0);
        attribute.emit(&mut self.0[start..]);
        self
    }

    /// Adds an attribute that is a text, with the zero behind it.
    #[must_use]
    pub fn text(self, kind: u16, text: &str) -> Self {
        self.with(kind, &[text.as_bytes(), b"\0"].concat())
    }

    /// Adds an attribute that consists of others.
    #[must_use]
    pub fn nest(self, kind: u16, attributes: &[u8]) -> Self {
        self.with(kind | NLA_F_NESTED, attributes)
    }
}

impl From<&[u8]> for Attributes {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl Deref for Attributes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// The attributes in `bytes`, each with its kind. An attribute that is cut off ends them.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let all = NlasIterator::new(bytes).map_while(Result::ok);
    all.map(|found| (found.kind(), &found.into_inner()[NLA_HEADER_SIZE..usize::from(found.length())]))
}

/// The first attribute of this kind among those in `bytes`.
pub fn find(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(kind, value)| (kind == wanted).then_some(value))
}

/// The text of an attribute; empty: there is none.
pub fn text(bytes: &[u8], wanted: u16) -> String {
    let text = find(bytes, wanted).unwrap_or_default();
    String::from_utf8_lossy(text.strip_suffix(&[0]).unwrap_or(text)).into_owned()
}

/// The number of 32 bits in an attribute, in network order, as nfnetlink has them.
pub fn big32(bytes: &[u8], wanted: u16) -> Option<u32> {
    parse_u32_be(find(bytes, wanted)?).ok()
}

/// The number of 16 bits in an attribute, in network order.
pub fn big16(bytes: &[u8], wanted: u16) -> Option<u16> {
    parse_u16_be(find(bytes, wanted)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_back_as_they_were_written() {
        let inner = Attributes::default().with(1, &7_u32.to_be_bytes()).nest(2, &Attributes::default().text(3, "abc"));
        let all = Attributes::default().text(9, "name").nest(4, &inner);
        assert_eq!(all.len() % 4, 0);
        assert_eq!((find(&all, 9), text(&all, 9)), (Some(&b"name\0"[..]), "name".to_owned()));
        let inner = find(&all, 4).expect("nested");
        assert_eq!(big32(inner, 1), Some(7));
        assert_eq!(find(inner, 2).map(|inner| text(inner, 3)), Some("abc".to_owned()));
        assert_eq!((find(&all, 5), text(&all, 5)), (None, String::new()));
    }

    #[test]
    fn an_attribute_that_is_cut_off_ends_them() {
        let all = Attributes::default().with(1, &[1]).with(2, &7_u16.to_be_bytes());
        for length in 0..14 {
            assert_eq!(big16(&all[..length], 2), None);
        }
        assert_eq!(big16(&all[..14], 2), Some(7));
    }
}
