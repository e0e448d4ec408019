//! Cuts what the API sends into the texts of objects: a watch into its lines, a list into its items. No text is kept that is longer
//! than an object may be.

use super::{bounds::OBJECT_BYTES_MAX, item::Text};

/// How much is kept of a text that is too long: what identifies an object comes first in it.
const HEAD_BYTES: usize = 16 * 1024;
/// Longest text of a list without its items.
const LIST_BYTES_MAX: usize = 64 * 1024;

/// The text of one object, as far as it came.
#[derive(Debug, Default)]
struct Piece {
    text: Vec<u8>,
    is_too_long: bool,
}

impl Piece {
    fn push(&mut self, bytes: &[u8]) {
        if self.is_too_long {
            return;
        }
        if self.text.len() + bytes.len() > OBJECT_BYTES_MAX {
            self.is_too_long = true;
            let missing = HEAD_BYTES.saturating_sub(self.text.len()).min(bytes.len());
            self.text.extend_from_slice(&bytes[..missing]);
            self.text.truncate(HEAD_BYTES);
            self.text.shrink_to_fit();
            return;
        }
        self.text.extend_from_slice(bytes);
    }

    /// The whole text, or its beginning; `None`: there is none. The next one begins.
    fn take<T>(&mut self, read: impl FnOnce(Text<'_>) -> T) -> Option<T> {
        let read = match (self.text.trim_ascii(), self.is_too_long) {
            ([], _) => None,
            (whole, false) => Some(read(Text::Whole(whole))),
            (head, true) => Some(read(Text::Head { head, limit: OBJECT_BYTES_MAX })),
        };
        self.text.clear();
        // One large object must not hold its memory for as long as a watch is open.
        self.text.shrink_to(HEAD_BYTES);
        self.is_too_long = false;
        read
    }
}

/// Lines of a watch.
#[derive(Debug, Default)]
pub struct Lines(Piece);

impl Lines {
    /// Reads the lines that end in these bytes.
    pub fn feed<T>(&mut self, mut bytes: &[u8], mut read: impl FnMut(Text<'_>) -> T) -> Vec<T> {
        let mut lines = Vec::new();
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.0.push(&bytes[..end]);
            lines.extend(self.0.take(&mut read));
            bytes = &bytes[end + 1..];
        }
        self.0.push(bytes);
        lines
    }
}

/// Items of a list, and the list without them.
#[derive(Debug, Default)]
pub struct Items {
    item: Piece,
    /// The text outside the items, without white space.
    rest: Vec<u8>,
    /// How many braces and brackets are open.
    depth: u32,
    is_in_array: bool,
    is_in_string: bool,
    is_escaped: bool,
    /// How many bytes came.
    length: usize,
}

/// The items are elements of an array in an object.
const ITEM_DEPTH: u32 = 2;

impl Items {
    /// Reads the items that end in these bytes.
    pub fn feed<T>(&mut self, bytes: &[u8], mut read: impl FnMut(Text<'_>) -> T) -> Vec<T> {
        let mut items = Vec::new();
        self.length += bytes.len();
        // From where on the bytes belong to the item that is open.
        let mut begin = 0;
        for (at, &byte) in bytes.iter().enumerate() {
            let was_in_items = self.is_in_array;
            let ends_item = self.step(byte);
            if ends_item {
                self.item.push(&bytes[begin..at]);
                items.extend(self.item.take(&mut read));
            }
            if ends_item || was_in_items != self.is_in_array {
                begin = at + 1;
            }
        }
        if self.is_in_array {
            self.item.push(&bytes[begin..]);
        }
        items
    }

    /// Whether the byte is behind the end of an item.
    fn step(&mut self, byte: u8) -> bool {
        let was_in_items = self.is_in_array;
        if self.is_in_string {
            self.is_in_string = self.is_escaped || byte != b'"';
            self.is_escaped = !self.is_escaped && byte == b'\\';
        } else {
            match byte {
                b'"' => self.is_in_string = true,
                b'{' | b'[' => {
                    self.is_in_array |= byte == b'[' && self.depth == 1 && self.rest.ends_with(br#""items":"#);
                    self.depth += 1;
                }
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.is_in_array &= self.depth >= ITEM_DEPTH;
                }
                b',' if was_in_items && self.depth == ITEM_DEPTH => return true,
                byte if byte.is_ascii_whitespace() => return false,
                _ => {}
            }
        }
        let is_outside = !was_in_items || !self.is_in_array;
        if is_outside && self.rest.len() <= LIST_BYTES_MAX {
            self.rest.push(byte);
        }
        was_in_items && !self.is_in_array
    }

    /// The list with an empty array of items; `None`: it has more text besides them than a list has.
    pub fn rest(&self) -> Option<&[u8]> {
        (self.rest.len() <= LIST_BYTES_MAX).then_some(&self.rest)
    }

    /// Bytes of the whole list.
    pub fn length(&self) -> usize {
        self.length
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn texts(text: Text<'_>) -> String {
        let Text::Whole(text) = text else { panic!("too long") };
        String::from_utf8(text.to_vec()).expect("text")
    }

    fn split(text: &str, chunk: usize) -> (Vec<String>, Vec<u8>) {
        let mut items = Items::default();
        let found = text.as_bytes().chunks(chunk).flat_map(|bytes| items.feed(bytes, texts)).collect();
        assert_eq!(items.length(), text.len());
        (found, items.rest().expect("short").to_vec())
    }

    #[test]
    fn a_list_is_cut_into_its_items_however_it_is_written_and_arrives() {
        let items = [
            json!({"a": ["x", {"items": [1, 2]}]}),
            json!(null),
            json!("],}\\\"[{"),
            json!({"metadata": {"continue": "no"}}),
        ];
        let list =
            json!({"kind": "List", "metadata": {"continue": "c", "items": [5]}, "items": items, "z": "\"items\":"});
        for text in [list.to_string(), serde_json::to_string_pretty(&list).expect("JSON")] {
            for chunk in [1, 2, 7, text.len()] {
                let (found, rest) = split(&text, chunk);
                let found: Vec<Value> = found.iter().map(|text| serde_json::from_str(text).expect("JSON")).collect();
                assert_eq!(found, items);
                let rest: Value = serde_json::from_slice(&rest).expect("JSON");
                assert_eq!((&rest["metadata"]["continue"], &rest["items"]), (&json!("c"), &json!([])));
            }
        }
        for none in [r#"{"items": null}"#, r#"{"items": []}"#, r#"{"items": [ ]}"#, "{}", "null", "[[1]]", ""] {
            assert!(split(none, 1).0.is_empty(), "{none}");
        }
    }

    #[test]
    fn lines_are_put_together_and_empty_ones_are_none() {
        let mut lines = Lines::default();
        assert_eq!(lines.feed(b"one\ntw", texts), ["one"]);
        assert_eq!(lines.feed(b"o\n\r\n\nthree", texts), ["two"]);
        assert_eq!(lines.feed(b"\n", texts), ["three"]);
    }

    #[test]
    fn of_a_text_that_is_too_long_the_beginning_is_kept_and_the_next_one_is_whole() {
        let mut lines = Lines::default();
        let chunk = vec![b'x'; 1024 * 1024];
        for _ in 0..=OBJECT_BYTES_MAX / chunk.len() {
            assert!(lines.feed(&chunk, |_| ()).is_empty());
        }
        assert!(lines.0.text.capacity() <= HEAD_BYTES, "{}", lines.0.text.capacity());
        let length = |text: Text<'_>| match text {
            Text::Whole(text) => Ok(text.len()),
            Text::Head { head, limit } => Err((head.len(), limit)),
        };
        assert_eq!(lines.feed(b"\nnext\n", length), [Err((HEAD_BYTES, OBJECT_BYTES_MAX)), Ok(4)]);
    }

    proptest! {
        #![proptest_config(lb_seed::property(file!(), 256))]

        #[test]
        fn no_bytes_make_it_panic_or_keep_much(bytes in proptest::collection::vec(any::<u8>(), 0..200), chunk in 1..50_usize) {
            let (mut items, mut lines) = (Items::default(), Lines::default());
            for part in bytes.chunks(chunk) {
                items.feed(part, |_| ());
                lines.feed(part, |_| ());
            }
            prop_assert!(items.rest.len() <= bytes.len() && items.item.text.len() <= bytes.len());
        }
    }
}
