//! Messages of the kernel's socket diagnosis (`linux/sock_diag.h`, `linux/inet_diag.h`): asked and read as bytes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use lb_common::abi::{TCP, UDP};

/// Why the kernel's list of sockets could not be read, or a socket not be destroyed.
#[derive(Debug, thiserror::Error)]
pub enum DiagError {
    #[error("the netlink socket for {action} failed: {source}")]
    Socket { action: &'static str, source: io::Error },
    #[error("the kernel's answer to {action} is cut off or no answer at all")]
    Malformed { action: &'static str },
    #[error("the kernel refused to {action}: {source}")]
    Refused { action: &'static str, source: io::Error },
    #[error("the list of sockets did not end within {limit} sockets: it was read up to there")]
    Endless { limit: usize },
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;

/// Address families, as one byte of a message has them.
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// `struct nlmsghdr`.
const HEADER: usize = 16;
/// `struct inet_diag_sockid`.
const ID: usize = 48;
/// `struct inet_diag_req_v2`.
const REQUEST: usize = 8 + ID;
/// `struct inet_diag_msg` up to the end of the id.
const ANSWER: usize = 4 + ID;
/// Its `idiag_uid`: after the id come three other words.
const UID: usize = ANSWER + 12;

/// `struct inet_diag_msg`: its attributes follow.
const MESSAGE: usize = ANSWER + 20;
/// The attribute that is a `struct tcp_info`, and its bit in a request.
const INET_DIAG_INFO: u16 = 2;
const WITH_INFO: u8 = 1 << (INET_DIAG_INFO - 1);

/// Places in `struct tcp_info` (`linux/tcp.h`).
mod tcp_info {
    /// `tcpi_probes`: probes of a closed window or of an idle connection that were not answered.
    pub const PROBES: usize = 3;
    /// `tcpi_unacked`: segments under way.
    pub const UNACKED: usize = 24;
    /// `tcpi_last_ack_recv`: milliseconds since an acknowledgement came.
    pub const LAST_ACK_RECEIVED: usize = 56;
}

/// Kernel numbers of socket states (`net/tcp_states.h`).
const ESTABLISHED: u32 = 1;
const TIME_WAIT: u32 = 6;
const CLOSE: u32 = 7;
const LISTEN: u32 = 10;

/// A protocol and an address family, as the kernel lists sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketFamily {
    /// [`lb_common::abi::TCP`] or [`UDP`].
    pub protocol: u8,
    /// Sockets of IPv6, those connected to IPv4-mapped addresses included.
    pub v6: bool,
}

impl SocketFamily {
    fn family(self) -> u8 {
        if self.v6 { AF_INET6 } else { AF_INET }
    }

    /// Those that have a peer: for TCP all but listeners and what only waits for its time to be over.
    fn states(self) -> u32 {
        match self.protocol {
            UDP => 1 << ESTABLISHED,
            _ => !(1 << LISTEN | 1 << TIME_WAIT),
        }
    }
}

/// A socket as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub kind: SocketFamily,
    pub cookie: u64,
    /// An IPv4-mapped address stands as the IPv4 one.
    pub peer: SocketAddr,
    /// The same of what it is bound to.
    pub local: SocketAddr,
    /// Of its owner.
    pub uid: u32,
    /// TCP: for how long it has received nothing, if something that it sent is not acknowledged.
    pub unanswered: Option<Duration>,
    /// As the kernel wrote it, for [`destroy`].
    id: [u8; ID],
}

/// Asks for all sockets of a kind. `only_probe`: for none of them, to see whether the kernel answers.
pub fn list(kind: SocketFamily, only_probe: bool) -> Vec<u8> {
    let states = if only_probe { 0 } else { kind.states() };
    request(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, kind, states, &[0; ID])
}

/// Asks for the sockets without a peer: listeners, and UDP sockets without a peer.
pub fn list_waiting(kind: SocketFamily) -> Vec<u8> {
    let states = if kind.protocol == UDP { 1 << CLOSE } else { 1 << LISTEN };
    request(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, kind, states, &[0; ID])
}

/// Asks to destroy a socket.
pub fn destroy(socket: &Listed) -> Vec<u8> {
    request(SOCK_DESTROY, NLM_F_ACK, socket.kind, socket.kind.states(), &socket.id)
}

/// Asks to destroy a socket that cannot be: no socket has port 0 or cookie 0. The kernel says `ENOENT` if it is able to.
pub fn destroy_none(protocol: u8) -> Vec<u8> {
    request(SOCK_DESTROY, NLM_F_ACK, SocketFamily { protocol, v6: false }, 0, &[0; ID])
}

fn request(kind: u16, flags: u16, of: SocketFamily, states: u32, id: &[u8; ID]) -> Vec<u8> {
    let length = HEADER + REQUEST;
    let mut bytes = Vec::with_capacity(length);
    bytes.extend(u32::try_from(length).unwrap_or(0).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    // Sequence number and port: one request is under way at a time.
    bytes.extend([0; 8]);
    let extensions = if kind == SOCK_DIAG_BY_FAMILY && of.protocol == TCP { WITH_INFO } else { 0 };
    bytes.extend([of.family(), of.protocol, extensions, 0]);
    bytes.extend(states.to_ne_bytes());
    bytes.extend(id);
    bytes
}

/// One message of an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Message {
    Socket(Listed),
    /// The end of a list, or the kernel's word on a request: 0, or a number of errno.
    End(i32),
}

/// The messages in what was received at once. `None`: it is cut off, or not such an answer.
pub fn read(mut bytes: &[u8], protocol: u8) -> Option<Vec<Message>> {
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let length = usize::try_from(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?)).ok()?;
        let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
        let body = bytes.get(HEADER..length)?;
        match kind {
            NLMSG_ERROR | NLMSG_DONE => {
                let error = body.get(..4).map_or(Some(0), |error| Some(i32::from_ne_bytes(error.try_into().ok()?)))?;
                messages.push(Message::End(error.checked_neg()?));
            }
            SOCK_DIAG_BY_FAMILY => messages.push(Message::Socket(listed(body, protocol)?)),
            _ => {}
        }
        // Messages begin at multiples of four.
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(messages)
}

fn listed(body: &[u8], protocol: u8) -> Option<Listed> {
    let v6 = *body.first()? == AF_INET6;
    let id: [u8; ID] = body.get(4..ANSWER)?.try_into().ok()?;
    let uid = u32::from_ne_bytes(body.get(UID..UID + 4)?.try_into().ok()?);
    let (local, peer) = (place(&id, v6, 0, 4)?, place(&id, v6, 2, 20)?);
    // Two words, the lower one first, each as the machine has it.
    let word = |at: usize| Some(u64::from(u32::from_ne_bytes(id.get(at..at + 4)?.try_into().ok()?)));
    let cookie = word(40)? | word(44)? << 32;
    let unanswered = if protocol == TCP { unanswered(body.get(MESSAGE..).unwrap_or_default()) } else { None };
    Some(Listed { kind: SocketFamily { protocol, v6 }, cookie, peer, local, uid, unanswered, id })
}

/// What the `tcp_info` among these attributes says of unanswered segments.
fn unanswered(mut attributes: &[u8]) -> Option<Duration> {
    loop {
        let length = usize::from(u16::from_ne_bytes(attributes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(attributes.get(2..4)?.try_into().ok()?);
        let info = attributes.get(4..length)?;
        if kind != INET_DIAG_INFO {
            attributes = attributes.get(length.next_multiple_of(4)..)?;
            continue;
        }
        let word = |at: usize| Some(u32::from_ne_bytes(info.get(at..at + 4)?.try_into().ok()?));
        let waits = *info.get(tcp_info::PROBES)? != 0 || word(tcp_info::UNACKED)? != 0;
        return Some(Duration::from_millis(word(tcp_info::LAST_ACK_RECEIVED)?.into())).filter(|_| waits);
    }
}

/// The port and the address that begin there.
fn place(id: &[u8; ID], v6: bool, port: usize, address: usize) -> Option<SocketAddr> {
    let port = u16::from_be_bytes(id.get(port..port + 2)?.try_into().ok()?);
    let address = if v6 {
        let octets: [u8; 16] = id.get(address..address + 16)?.try_into().ok()?;
        Ipv6Addr::from(octets).to_canonical()
    } else {
        let octets: [u8; 4] = id.get(address..address + 4)?.try_into().ok()?;
        IpAddr::V4(Ipv4Addr::from(octets))
    };
    Some(SocketAddr::new(address, port))
}

/// The kinds among which the sockets of a protocol are that talk to an address of this family.
pub fn kinds(protocol: u8, v4: bool) -> Vec<SocketFamily> {
    let v6 = SocketFamily { protocol, v6: true };
    if v4 { vec![SocketFamily { protocol, v6: false }, v6] } else { vec![v6] }
}

#[cfg(test)]
mod tests {
    use lb_common::abi::TCP;

    use super::*;

    /// An answer with one socket to the peer, as the kernel writes it.
    fn answer(family: u8, peer: &[u8], port: u16, cookie: u64) -> Vec<u8> {
        let mut id = [0; ID];
        id[2..4].copy_from_slice(&port.to_be_bytes());
        id[20..20 + peer.len()].copy_from_slice(peer);
        id[40..44].copy_from_slice(&u32::try_from(cookie & 0xffff_ffff).expect("masked").to_ne_bytes());
        id[44..48].copy_from_slice(&u32::try_from(cookie >> 32).expect("shifted").to_ne_bytes());
        let mut body = vec![family, 1, 0, 0];
        body.extend(id);
        body.extend([0; 20]);
        message(SOCK_DIAG_BY_FAMILY, &body)
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = u32::try_from(HEADER + body.len()).expect("small").to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(body);
        bytes
    }

    #[test]
    fn a_list_is_read_to_its_end() {
        let cookie = 0x0000_0007_ffff_fff0;
        let mut bytes = answer(AF_INET, &[10, 0, 0, 1], 8080, cookie);
        bytes.extend(answer(AF_INET6, &"::ffff:10.0.0.1".parse::<Ipv6Addr>().expect("one").octets(), 53, 9));
        bytes.extend(message(NLMSG_DONE, &0_i32.to_ne_bytes()));
        let messages = read(&bytes, TCP).expect("whole");
        let [Message::Socket(v4), Message::Socket(v6), Message::End(0)] = messages.as_slice() else {
            panic!("{messages:?}")
        };
        assert_eq!((v4.cookie, v4.peer, v4.kind.v6), (cookie, "10.0.0.1:8080".parse().expect("one"), false));
        assert_eq!((v6.cookie, v6.peer, v6.kind.v6), (9, "10.0.0.1:53".parse().expect("one"), true));
        let request = destroy(v4);
        assert_eq!(&request[HEADER + 8..], &v4.id, "the kernel gets its own words back");
    }

    #[test]
    fn only_what_is_under_way_or_probed_is_unanswered() {
        for (probes, under_way, expected) in [(0, 0, None), (0, 3, Some(15_500)), (2, 0, Some(15_500))] {
            let mut info = vec![0; 104];
            info[tcp_info::PROBES] = probes;
            info[tcp_info::UNACKED] = under_way;
            info[tcp_info::LAST_ACK_RECEIVED..][..4].copy_from_slice(&15_500_u32.to_ne_bytes());
            let attribute = |kind: u16, value: &[u8]| {
                let length = u16::try_from(4 + value.len()).expect("small").to_ne_bytes();
                [&length, &kind.to_ne_bytes(), value].concat()
            };
            // One of another kind comes first, padded to words.
            let mut attributes = attribute(8, &[0]);
            attributes.resize(8, 0);
            attributes.extend(attribute(INET_DIAG_INFO, &info));
            assert_eq!(unanswered(&attributes), expected.map(Duration::from_millis), "{probes}, {under_way}");
            assert_eq!(unanswered(&attributes[..40]), None, "cut off");
        }
    }

    #[test]
    fn a_refusal_is_an_error_number() {
        let mut body = (-libc::EOPNOTSUPP).to_ne_bytes().to_vec();
        body.extend(destroy_none(TCP));
        assert_eq!(read(&message(NLMSG_ERROR, &body), TCP), Some(vec![Message::End(libc::EOPNOTSUPP)]));
    }

    #[test]
    fn nothing_cut_off_is_read() {
        let whole = answer(AF_INET, &[10, 0, 0, 1], 8080, 1);
        for length in 1..whole.len() {
            assert_eq!(read(&whole[..length], TCP), None, "{length} bytes");
        }
    }

    #[test]
    fn listeners_and_unconnected_sockets_are_not_asked_for() {
        assert_eq!(SocketFamily { protocol: UDP, v6: false }.states(), 1 << ESTABLISHED);
        let tcp = SocketFamily { protocol: TCP, v6: true }.states();
        assert_eq!(tcp & (1 << LISTEN | 1 << TIME_WAIT), 0);
        assert_ne!(tcp & 1 << ESTABLISHED, 0);
        assert_eq!((kinds(TCP, true).len(), kinds(TCP, false).len()), (2, 1));
    }
}
