//! Bytes of a terminal to keys. Pure.
//!
//! crossterm reads events, too; its reader (0.29) does not return once the terminal has hung up, and takes a CPU for itself. So the bytes are read
//! by [`super::screen`].

/// A key that `top` knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    /// Ctrl-C, which is no signal while the terminal is in raw mode.
    Interrupt,
    /// Ctrl-L
    Redraw,
    /// Ctrl-Z, which is no signal either
    Suspend,
}

const ESCAPE: u8 = 0x1b;
/// A longer sequence is none that a terminal sends.
const LONGEST_SEQUENCE: usize = 32;

/// Takes the keys from the front of `bytes`. What is left may become a key with the bytes that follow, unless none do (`is_all`).
pub(super) fn take(bytes: &mut Vec<u8>, is_all: bool) -> Vec<Key> {
    let (mut keys, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        match next(&bytes[at..], is_all) {
            Some((key, length)) => {
                keys.extend(key);
                at += length;
            }
            None => break,
        }
    }
    bytes.drain(..at);
    keys
}

/// The first key, if it is one that is known, and its length; `None`: more bytes are needed.
fn next(bytes: &[u8], is_all: bool) -> Option<(Option<Key>, usize)> {
    let key = match bytes[0] {
        ESCAPE => return sequence(bytes, is_all),
        b'\r' | b'\n' => Key::Enter,
        0x7f | 0x08 => Key::Backspace,
        0x03 => Key::Interrupt,
        0x0c => Key::Redraw,
        0x1a => Key::Suspend,
        0x02 => Key::PageUp,
        0x06 => Key::PageDown,
        0x10 => Key::Up,
        0x0e => Key::Down,
        0x00..=0x1f => return Some((None, 1)),
        _ => return character(bytes, is_all),
    };
    Some((Some(key), 1))
}

fn character(bytes: &[u8], is_all: bool) -> Option<(Option<Key>, usize)> {
    let length = match bytes[0] {
        0x00..=0x7f => 1,
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf7 => 4,
        _ => return Some((None, 1)),
    };
    match bytes.get(..length).map(str::from_utf8) {
        Some(Ok(text)) => Some((text.chars().next().map(Key::Char), length)),
        Some(Err(_)) => Some((None, 1)),
        None => is_all.then_some((None, bytes.len())),
    }
}

/// A sequence that begins with Escape. Escape alone is a key once no byte follows.
fn sequence(bytes: &[u8], is_all: bool) -> Option<(Option<Key>, usize)> {
    let Some(introducer) = bytes.get(1) else { return is_all.then_some((Some(Key::Escape), 1)) };
    let end = match introducer {
        b'O' => bytes.get(2).map(|_| 2),
        b'[' => bytes.iter().skip(2).position(|byte| (0x40..=0x7e).contains(byte)).map(|at| at + 2),
        // Alt and a key, or Escape and a key in quick succession.
        _ => return Some((Some(Key::Escape), 1)),
    };
    let Some(end) = end else {
        return (is_all || bytes.len() > LONGEST_SEQUENCE).then_some((None, bytes.len()));
    };
    let key = match (&bytes[2..end], bytes[end]) {
        (_, b'A') => Some(Key::Up),
        (_, b'B') => Some(Key::Down),
        (_, b'H') | (b"1" | b"7", b'~') => Some(Key::Home),
        (_, b'F') | (b"4" | b"8", b'~') => Some(Key::End),
        (b"5", b'~') => Some(Key::PageUp),
        (b"6", b'~') => Some(Key::PageDown),
        (_, b'M') if *introducer == b'O' => Some(Key::Enter),
        _ => None,
    };
    Some((key, end + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keys(bytes: &[u8]) -> Vec<Key> {
        take(&mut bytes.to_vec(), true)
    }

    #[test]
    fn terminals_send_keys_in_several_ways() {
        for (bytes, expected) in [
            (&b"\x1b[A"[..], Key::Up),
            (b"\x1bOA", Key::Up),
            (b"\x1b[1;5B", Key::Down),
            (b"\x1b[5~", Key::PageUp),
            (b"\x1b[6~", Key::PageDown),
            (b"\x1b[H", Key::Home),
            (b"\x1b[1~", Key::Home),
            (b"\x1bOF", Key::End),
            (b"\r", Key::Enter),
            (b"\x7f", Key::Backspace),
            (b"\x1b", Key::Escape),
            (b"\x03", Key::Interrupt),
            ("ü".as_bytes(), Key::Char('ü')),
        ] {
            assert_eq!(keys(bytes), [expected], "{bytes:?}");
        }
        assert_eq!(keys(b"jk/"), [Key::Char('j'), Key::Char('k'), Key::Char('/')]);
        assert_eq!(keys(b"\x1b[200~x"), [Key::Char('x')], "an unknown sequence is no key");
        assert_eq!(keys(b"\x1bq"), [Key::Escape, Key::Char('q')]);
    }

    #[test]
    fn a_sequence_in_two_pieces_is_one_key() {
        let mut bytes = b"\x1b".to_vec();
        assert_eq!(take(&mut bytes, false), []);
        bytes.extend(b"[");
        assert_eq!(take(&mut bytes, false), []);
        bytes.extend(b"5~\xc3");
        assert_eq!(take(&mut bytes, false), [Key::PageUp]);
        bytes.extend(b"\xbc");
        assert_eq!(take(&mut bytes, false), [Key::Char('ü')]);
        assert!(bytes.is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut left = bytes.clone();
            take(&mut left, false);
            prop_assert!(left.len() <= LONGEST_SEQUENCE, "what waits for more is bounded");
            take(&mut left, true);
            prop_assert!(left.is_empty());
        }
    }
}
