//! Requests to the kernel over netlink, and the attributes in them and in its answers. Every wait is bounded.

use std::io::{self, Read as _};
use std::time::Duration;

use socket2::{Domain, Protocol, Type};

/// How long the kernel may take for a part of an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The kernel writes parts of a list of up to 32 KiB.
const BUFFER: usize = 65_536;
/// How many parts an answer may have.
const MOST_PARTS: usize = 1_000_000;
/// `struct nlmsghdr`.
pub const HEADER: usize = 16;
/// `struct nfgenmsg`: family, version, resource.
const GENERIC: usize = 4;
/// The bits of an attribute's kind that are flags (`NLA_F_NESTED`, `NLA_F_NET_BYTEORDER`).
const TYPE_MASK: u16 = 0x3fff;
const NESTED: u16 = 0x8000;

/// Flags of a request (`linux/netlink.h`).
pub mod flag {
    pub const REQUEST: u16 = 0x001;
    pub const ACK: u16 = 0x004;
    pub const DUMP: u16 = 0x300;
    pub const EXCLUSIVE: u16 = 0x200;
    pub const CREATE: u16 = 0x400;
}

/// A request to nfnetlink under construction.
#[derive(Clone, Debug)]
pub struct Request(Vec<u8>);

impl Request {
    /// `kind`: subsystem and message (`NFNL_SUBSYS_*` << 8 | message). `family`: an address family, or 0 for all of them.
    pub fn nfnetlink(kind: u16, flags: u16, family: u8) -> Self {
        Self::with_resource(kind, flags, family, 0)
    }

    /// The same with the resource number that a batch names its subsystem by.
    pub fn with_resource(kind: u16, flags: u16, family: u8, resource: u16) -> Self {
        let [high, low] = resource.to_be_bytes();
        Self::with_header(kind, flags, &[family, 0, high, low])
    }

    /// A request whose own header is this one, behind that of netlink.
    pub fn with_header(kind: u16, flags: u16, header: &[u8]) -> Self {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((flag::REQUEST | flags).to_ne_bytes());
        // Sequence number and port: one request is under way at a time.
        bytes.extend([0; 8]);
        bytes.extend(header);
        Self(bytes)
    }

    /// Adds flags.
    #[must_use]
    pub fn flagged(mut self, flags: u16) -> Self {
        let before = u16::from_ne_bytes([self.0[6], self.0[7]]);
        self.0[6..8].copy_from_slice(&(before | flags).to_ne_bytes());
        self
    }

    /// Adds an attribute that is a text, with the zero behind it.
    #[must_use]
    pub fn text(self, kind: u16, text: &str) -> Self {
        self.with(kind, &[text.as_bytes(), b"\0"].concat())
    }

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, kind: u16, value: &[u8]) -> Self {
        attribute(&mut self.0, kind, value);
        self
    }

    /// Adds an attribute that consists of others.
    #[must_use]
    pub fn nest(mut self, kind: u16, attributes: &Nest) -> Self {
        attribute(&mut self.0, kind | NESTED, &attributes.0);
        self
    }

    /// The bytes to send.
    pub fn bytes(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0
    }
}

/// Attributes that stand in another one.
#[derive(Clone, Debug, Default)]
pub struct Nest(Vec<u8>);

impl Nest {
    #[must_use]
    pub fn with(mut self, kind: u16, value: &[u8]) -> Self {
        attribute(&mut self.0, kind, value);
        self
    }

    #[must_use]
    pub fn nest(mut self, kind: u16, attributes: &Self) -> Self {
        attribute(&mut self.0, kind | NESTED, &attributes.0);
        self
    }
}

fn attribute(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    // An attribute is shorter than 64 KiB: a longer one would be a mistake of the caller, and the kernel refuses it.
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// The first attribute of this kind among those in `bytes`.
pub fn find(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(kind, value)| (kind == wanted).then_some(value))
}

/// The attributes in `bytes`, each with its kind. One that is cut off ends them.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(half(bytes, 0)?);
        let attribute = (half(bytes, 2)? & TYPE_MASK, bytes.get(4..length)?);
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(attribute)
    })
}

/// The text of an attribute; empty: there is none.
pub fn text(bytes: &[u8], wanted: u16) -> String {
    let text = find(bytes, wanted).unwrap_or_default();
    String::from_utf8_lossy(text.strip_suffix(&[0]).unwrap_or(text)).into_owned()
}

/// A number of 32 bits in the byte order of this machine.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// A number of 32 bits in network order, as nfnetlink has them.
pub fn big32(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?))
}

/// A number of 16 bits in network order.
pub fn big16(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(..2)?.try_into().ok()?))
}

/// A message of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// Of nfnetlink.
    Message {
        /// Subsystem and message.
        kind: u16,
        family: u8,
        attributes: &'a [u8],
    },
    /// The end of an answer, with an error number or 0.
    End(i32),
}

/// The messages of one part of an answer. A message that is cut off ends it.
pub fn read(mut bytes: &[u8]) -> Vec<Answer<'_>> {
    let mut answers = Vec::new();
    while let (Some(length), Some(kind)) = (word(bytes, 0), half(bytes, 4)) {
        let length = length as usize;
        let Some(body) = bytes.get(HEADER..length) else { break };
        let number = word(body, 0).map(|number| number.cast_signed().saturating_abs());
        match i32::from(kind) {
            // A list that was cut ends with a number, too.
            libc::NLMSG_DONE => answers.push(Answer::End(number.unwrap_or(0))),
            libc::NLMSG_ERROR => answers.push(Answer::End(number.unwrap_or(libc::EPROTO))),
            _ => {
                if let (Some(family), Some(attributes)) = (body.first(), body.get(GENERIC..)) {
                    answers.push(Answer::Message { kind, family: *family, attributes });
                }
            }
        }
        let Some(rest) = bytes.get(length.next_multiple_of(4)..) else { break };
        bytes = rest;
    }
    answers
}

/// A socket for requests to netfilter, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket {
    socket: socket2::Socket,
    buffer: Vec<u8>,
}

impl Socket {
    /// `None`: the kernel has no netfilter.
    pub fn netfilter() -> io::Result<Option<Self>> {
        Self::open(libc::NETLINK_NETFILTER)
    }

    /// `None`: the kernel has no such protocol of netlink.
    pub fn open(protocol: i32) -> io::Result<Option<Self>> {
        let protocol = Protocol::from(protocol);
        match socket2::Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, Some(protocol)) {
            Ok(socket) => {
                socket.set_read_timeout(Some(PATIENCE))?;
                Ok(Some(Self { socket, buffer: vec![0; BUFFER] }))
            }
            Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a request that the kernel answers with an end, and passes every message of the answer to `take`.
    pub fn converse(&mut self, request: &[u8], mut take: impl FnMut(u16, u8, &[u8])) -> io::Result<()> {
        self.socket.send(request)?;
        for _ in 0..MOST_PARTS {
            let length = self.socket.read(&mut self.buffer)?;
            for answer in read(&self.buffer[..length]) {
                match answer {
                    Answer::End(0) => return Ok(()),
                    Answer::End(number) => return Err(io::Error::from_raw_os_error(number)),
                    Answer::Message { kind, family, attributes } => take(kind, family, attributes),
                }
            }
        }
        Err(io::Error::other("the list does not end"))
    }

    /// Sends requests together, each with [`flag::ACK`]: the kernel does one after the other at once. Returns the result of each.
    pub fn converse_all(&mut self, requests: &[Vec<u8>]) -> io::Result<Vec<io::Result<()>>> {
        self.socket.send(&requests.concat())?;
        let mut results = Vec::new();
        while results.len() < requests.len() {
            let length = self.socket.read(&mut self.buffer)?;
            results.extend(read(&self.buffer[..length]).into_iter().filter_map(|answer| match answer {
                Answer::End(0) => Some(Ok(())),
                Answer::End(number) => Some(Err(io::Error::from_raw_os_error(number))),
                Answer::Message { .. } => None,
            }));
        }
        Ok(results)
    }
}

/// Whether the kernel lacks the subsystem that was asked.
pub fn is_without(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOENT | libc::EPROTONOSUPPORT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = u32::try_from(HEADER + body.len()).expect("short").to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(body);
        bytes
    }

    #[test]
    fn a_request_is_read_back_as_it_was_written() {
        let inner = Nest::default().with(1, &7_u32.to_be_bytes()).nest(2, &Nest::default().with(3, b"abc"));
        let request = Request::nfnetlink(0x0101, flag::ACK, 2).with(9, b"name\0").nest(4, &inner).bytes();
        assert_eq!(request.len() % 4, 0);
        let answers = read(&request);
        let [Answer::Message { kind: 0x0101, family: 2, attributes }] = answers[..] else { panic!("{answers:?}") };
        assert_eq!(find(attributes, 9), Some(&b"name\0"[..]));
        let inner = find(attributes, 4).expect("nested");
        assert_eq!(find(inner, 1).and_then(big32), Some(7));
        assert_eq!(find(inner, 2).and_then(|inner| find(inner, 3)), Some(&b"abc"[..]));
        assert_eq!(find(attributes, 5), None);
    }

    #[test]
    fn errors_end_an_answer_and_cut_messages_are_left_out() {
        assert_eq!(read(&message(2, &(-22_i32).to_ne_bytes())), [Answer::End(22)]);
        assert_eq!(read(&message(3, &0_u32.to_ne_bytes())), [Answer::End(0)]);
        let whole = message(0x0a03, &[2, 0, 0, 0]);
        assert_eq!(read(&whole).len(), 1);
        for length in 0..whole.len() {
            assert_eq!(read(&whole[..length]), []);
        }
    }
}
