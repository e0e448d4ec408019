//! The socket: one request at a time, and the answers of the kernel to it. Every wait is bounded.

use std::io;
use std::ops::ControlFlow::{self, Break, Continue};
use std::time::Duration;

use netlink_packet_core::{
    DecodeError, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkBuffer, NetlinkDeserializable,
    NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable,
};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

/// How long the kernel may take for a part of an answer.
const PART_TIMEOUT: Duration = Duration::from_secs(2);
/// The kernel writes parts of a list of up to 32 KiB.
const PART_BYTES_MAX: usize = 65_536;
/// How many parts an answer may have.
const PARTS_MAX: usize = 1_000_000;
/// How often a list is read that changes meanwhile.
pub(super) const LIST_ATTEMPTS: usize = 8;

/// A netlink socket, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket {
    kernel: netlink_sys::Socket,
    part: Vec<u8>,
    /// Number of the last request. Answers to earlier ones are left out.
    sequence: u32,
}

impl Socket {
    /// A socket for requests to netfilter. `None`: the kernel has no netfilter.
    pub fn netfilter() -> io::Result<Option<Self>> {
        Self::open(netlink_sys::protocols::NETLINK_NETFILTER)
    }

    /// `None`: the kernel has no such protocol of netlink.
    pub fn open(protocol: isize) -> io::Result<Option<Self>> {
        match netlink_sys::Socket::new(protocol) {
            Ok(socket) => {
                set_socket_timeout(&socket, Timeout::Recv, Some(PART_TIMEOUT))?;
                Ok(Some(Self { kernel: socket, part: Vec::with_capacity(PART_BYTES_MAX), sequence: 0 }))
            }
            Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a change. `flags`: `NLM_F_CREATE` and the like.
    pub fn change(&mut self, flags: u16, request: impl NetlinkSerializable) -> io::Result<()> {
        self.transaction([(NLM_F_ACK | flags, request)])
    }

    /// Sends requests as one transaction of netfilter. The kernel answers the first request that fails, or the last one, which needs `NLM_F_ACK`.
    pub fn transaction<R: NetlinkSerializable>(
        &mut self,
        requests: impl IntoIterator<Item = (u16, R)>,
    ) -> io::Result<()> {
        self.send(&mut requests.into_iter().map(request).collect::<Vec<_>>())?;
        self.receive::<Nothing, _>(|_, answer| end(&answer).map_or(Continue(()), Break))?
    }

    /// Makes changes: the kernel makes one after the other at once. Returns the result of each.
    pub fn changes<R: NetlinkSerializable>(&mut self, requests: Vec<(u16, R)>) -> io::Result<Vec<io::Result<()>>> {
        let count = requests.len();
        let mut results = Vec::new();
        let acknowledged = |(flags, change)| request((NLM_F_ACK | flags, change));
        self.send(&mut requests.into_iter().map(acknowledged).collect::<Vec<_>>())?;
        self.receive::<Nothing, _>(|_, answer| {
            results.extend(end(&answer));
            if results.len() < count { Continue(()) } else { Break(()) }
        })?;
        Ok(results)
    }

    /// Asks one question. Returns what `read` makes of the messages of the answer.
    pub fn ask<A: NetlinkDeserializable, T>(
        &mut self,
        question: impl NetlinkSerializable,
        mut read: impl FnMut(A) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        self.send(&mut [request((NLM_F_ACK, question))])?;
        Ok(self.answers(&mut read)?.0)
    }

    /// Lists what the kernel has, and begins again if that changed meanwhile (`NLM_F_DUMP_INTR`). Returns what `read` makes of the messages.
    pub fn list<A: NetlinkDeserializable, T>(
        &mut self,
        question: impl NetlinkSerializable,
        mut read: impl FnMut(A) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        let mut request = [request((NLM_F_DUMP, question))];
        for _ in 0..LIST_ATTEMPTS {
            self.send(&mut request)?;
            let (found, is_whole) = self.answers(&mut read)?;
            if is_whole {
                return Ok(found);
            }
        }
        Err(unsteady())
    }

    /// What `read` makes of the messages up to the end of the answer, and whether the kernel had them all at one time.
    fn answers<A: NetlinkDeserializable, T>(
        &mut self,
        read: &mut impl FnMut(A) -> Option<T>,
    ) -> io::Result<(Vec<T>, bool)> {
        let (mut found, mut is_whole) = (Vec::new(), true);
        self.receive(|flags, answer| {
            is_whole &= flags & NLM_F_DUMP_INTR == 0;
            let end = end(&answer);
            if let NetlinkPayload::InnerMessage(message) = answer {
                found.extend(read(message));
            }
            end.map_or(Continue(()), Break)
        })??;
        Ok((found, is_whole))
    }

    fn send<R: NetlinkSerializable>(&mut self, requests: &mut [NetlinkMessage<R>]) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes: Vec<u8> = requests.iter_mut().flat_map(|request| bytes(request, self.sequence)).collect();
        self.kernel.send(&bytes, 0).map(drop)
    }

    /// Passes the kernel's messages on the last request to `take`, with their flags, until it breaks.
    fn receive<A: NetlinkDeserializable, B>(
        &mut self,
        mut take: impl FnMut(u16, NetlinkPayload<A>) -> ControlFlow<B>,
    ) -> io::Result<B> {
        for _ in 0..PARTS_MAX {
            self.part.clear();
            self.kernel.recv(&mut self.part, 0).map_err(late)?;
            if let Break(taken) = each(&self.part, self.sequence, &mut take).map_err(|error| malformed(&error))? {
                return Ok(taken);
            }
        }
        Err(io::Error::other("the kernel's list does not end"))
    }
}

/// Passes the messages of a part that have this sequence number to `take`, until it breaks.
fn each<A: NetlinkDeserializable, B>(
    mut part: &[u8],
    sequence: u32,
    take: &mut impl FnMut(u16, NetlinkPayload<A>) -> ControlFlow<B>,
) -> Result<ControlFlow<B>, DecodeError> {
    while !part.is_empty() {
        let header = NetlinkBuffer::new_checked(part)?;
        let message = &part[..header.length() as usize];
        if header.sequence_number() == sequence {
            let message = NetlinkMessage::deserialize(message)?;
            if let Break(taken) = take(message.header.flags, message.payload) {
                return Ok(Break(taken));
            }
        }
        part = part.get(message.len().next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(Continue(()))
}

fn request<R>((flags, request): (u16, R)) -> NetlinkMessage<R> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | flags;
    NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request))
}

fn bytes<R: NetlinkSerializable>(request: &mut NetlinkMessage<R>, sequence: u32) -> Vec<u8> {
    request.header.sequence_number = sequence;
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    bytes
}

/// The result of a request, if the message is the end of its answer.
#[allow(clippy::wildcard_enum_match_arm, reason = "payloads of the library")]
fn end<A>(answer: &NetlinkPayload<A>) -> Option<io::Result<()>> {
    let number = match answer {
        // A list that was cut ends with an error number, too.
        NetlinkPayload::Done(done) => done.code,
        NetlinkPayload::Error(error) => error.raw_code(),
        _ => return None,
    };
    Some(if number == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(number.saturating_abs())) })
}

/// A message that is left out.
struct Nothing;

impl NetlinkDeserializable for Nothing {
    type Error = DecodeError;

    fn deserialize(_: &NetlinkHeader, _: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self)
    }
}

/// A list changed at each of [`LIST_ATTEMPTS`].
pub(super) fn unsteady() -> io::Error {
    io::Error::other(format!("the list changed while it was read, {LIST_ATTEMPTS} times"))
}

fn late(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock {
        let text = format!("the kernel has not answered within {PART_TIMEOUT:?}");
        return io::Error::new(io::ErrorKind::TimedOut, text);
    }
    error
}

fn malformed(error: &DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the kernel's answer cannot be read: {error}"))
}

/// `false`: the kernel answered with this error number.
pub fn unless(number: i32, result: io::Result<()>) -> io::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(number) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the kernel lacks the subsystem that was asked.
pub fn is_without(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOENT | libc::EPROTONOSUPPORT))
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::{NLMSG_DONE, NLMSG_ERROR};

    use super::super::{Attributes, Message};
    use super::*;

    fn message(kind: u16, header: [u8; 4]) -> Vec<u8> {
        bytes(&mut request((0, Message { kind, header, attributes: Attributes::default().text(1, "name") })), 7)
    }

    /// The messages, and the error number of the end or 0.
    fn read(part: &[u8], sequence: u32) -> Result<(Vec<Message>, Option<i32>), DecodeError> {
        let mut messages = Vec::new();
        let ended = each(part, sequence, &mut |_, answer| {
            let end = end(&answer);
            if let NetlinkPayload::InnerMessage(message) = answer {
                messages.push(message);
            }
            end.map_or(Continue(()), Break)
        })?;
        let number = |end: io::Result<()>| end.err().and_then(|error| error.raw_os_error()).unwrap_or(0);
        let end = if let Break(end) = ended { Some(number(end)) } else { None };
        Ok((messages, end))
    }

    #[test]
    fn an_answer_is_read_up_to_its_end() {
        let (first, last) = (message(0x0a03, [2, 0, 0, 0]), message(NLMSG_DONE, [0; 4]));
        let (messages, end) = read(&[&first[..], &first, &last, &first].concat(), 7).expect("whole");
        assert_eq!((messages.len(), messages[0].kind, messages[0].family(), end), (2, 0x0a03, 2, Some(0)));
        let refused = message(NLMSG_ERROR, (-22_i32).to_ne_bytes());
        assert_eq!(read(&refused, 7).expect("whole").1, Some(22));
    }

    #[test]
    fn answers_to_earlier_requests_are_left_out() {
        assert_eq!(read(&message(NLMSG_DONE, [0; 4]), 8).expect("whole"), (Vec::new(), None));
    }

    #[test]
    fn nothing_that_is_cut_off_is_read() {
        let whole = message(0x0a03, [2, 0, 0, 0]);
        for length in 1..whole.len() {
            assert!(read(&whole[..length], 7).is_err(), "{length} bytes");
        }
    }
}
