//! The kernel's list of sockets (socket diagnosis), in the network namespace of the thread that opened the connection.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use lb_common::abi::{TCP, UDP};
use netlink_packet_core::{NetlinkSerializable, parse_u32};
use netlink_packet_sock_diag::{
    AF_INET, AF_INET6, SockDiagDestroy, SockDiagMessage,
    inet::{ExtensionFlags, InetRequest, InetResponse, SocketId, StateFlags, nlas::Nla},
};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;

use lb_netlink::Socket;

/// Why the kernel's list of sockets could not be read, or a socket not be destroyed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}: {source}")]
pub struct DiagError {
    pub(super) action: &'static str,
    pub(super) source: io::Error,
}

/// Places in `struct tcp_info` (`linux/tcp.h`).
mod tcp_info {
    /// `tcpi_probes`: probes of a closed window or of an idle connection that were not answered.
    pub const PROBES: usize = 3;
    /// `tcpi_unacked`: segments under way.
    pub const UNACKED: usize = 24;
    /// `tcpi_last_ack_recv`: milliseconds since an acknowledgement came.
    pub const LAST_ACK_RECEIVED: usize = 56;
}

/// A protocol and an address family, as the kernel lists sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketFamily {
    /// [`lb_common::abi::TCP`] or [`UDP`].
    pub protocol: u8,
    /// Sockets of IPv6, those connected to IPv4-mapped addresses included.
    pub v6: bool,
}

impl SocketFamily {
    /// Those that have a peer: for TCP all but listeners and what only waits for its time to be over.
    fn connected(self) -> StateFlags {
        match self.protocol {
            UDP => StateFlags::ESTABLISHED,
            _ => StateFlags::from_bits_retain(!0).difference(StateFlags::LISTEN | StateFlags::TIME_WAIT),
        }
    }

    /// Those without a peer: listeners, and UDP sockets without a peer.
    fn waiting(self) -> StateFlags {
        if self.protocol == UDP { StateFlags::CLOSE } else { StateFlags::LISTEN }
    }

    fn request(self, states: StateFlags, socket_id: SocketId) -> SockDiagMessage {
        SockDiagMessage::InetRequest(InetRequest {
            family: if self.v6 { AF_INET6 } else { AF_INET },
            protocol: self.protocol,
            extensions: if self.protocol == TCP { ExtensionFlags::INFO } else { ExtensionFlags::empty() },
            states,
            socket_id,
        })
    }
}

/// A socket as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub kind: SocketFamily,
    pub cookie: u64,
    /// An IPv4-mapped address stands as the IPv4 one.
    pub peer: SocketAddr,
    /// What it is bound to; an IPv4-mapped address stands as the IPv4 one.
    pub local: SocketAddr,
    /// Of its owner.
    pub uid: u32,
    /// TCP: for how long it has received nothing, if something that it sent is not acknowledged.
    pub unanswered: Option<Duration>,
    /// As the kernel wrote it, for [`Connection::destroy`].
    id: SocketId,
}

/// A socket for `NETLINK_SOCK_DIAG`.
pub struct Connection(Socket);

impl Connection {
    /// Destroying needs `CAP_NET_ADMIN` in the network namespace.
    pub fn open() -> Result<Self, DiagError> {
        const ACTION: &str = "open a netlink socket for socket diagnosis";
        let missing = || failed(ACTION)(io::Error::from_raw_os_error(libc::EPROTONOSUPPORT));
        Ok(Self(Socket::open(NETLINK_SOCK_DIAG).map_err(failed(ACTION))?.ok_or_else(missing)?))
    }

    /// Passes every socket of this kind that has a peer to `take`.
    pub fn list(&mut self, kind: SocketFamily, take: impl FnMut(Listed)) -> Result<(), DiagError> {
        self.ask(kind, kind.connected(), take)
    }

    /// Passes every socket of this kind without a peer to `take`.
    pub fn holders(&mut self, kind: SocketFamily, take: impl FnMut(Listed)) -> Result<(), DiagError> {
        self.ask(kind, kind.waiting(), take)
    }

    fn ask(&mut self, kind: SocketFamily, states: StateFlags, mut take: impl FnMut(Listed)) -> Result<(), DiagError> {
        let answered = self.0.list(kind.request(states, SocketId::new_v4()), |message| {
            if let SockDiagMessage::InetResponse(response) = message {
                take(listed(*response, kind.protocol));
            }
            None::<()>
        });
        answered.map(drop).map_err(failed("list sockets"))
    }

    /// Destroys a socket; `false`: it is gone already.
    pub fn destroy(&mut self, socket: &Listed) -> Result<bool, DiagError> {
        self.end("destroy a socket", destruction(socket.kind, socket.kind.connected(), socket.id.clone()))
    }

    /// Whether the kernel can destroy sockets of this protocol: it is asked to destroy one that cannot be. No socket has port 0 or cookie 0.
    pub fn probe(&mut self, protocol: u8) -> Result<(), DiagError> {
        let kind = SocketFamily { protocol, v6: false };
        self.ask(kind, StateFlags::empty(), |_| ())?;
        self.end("destroy sockets", destruction(kind, StateFlags::empty(), SocketId::new_v4())).map(drop)
    }

    fn end(&mut self, action: &'static str, destruction: impl NetlinkSerializable) -> Result<bool, DiagError> {
        match self.0.change(0, destruction) {
            Ok(()) => Ok(true),
            // ENOENT: no such socket. ESTALE: another one has its ports now.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)) => Ok(false),
            Err(error) => Err(failed(action)(error)),
        }
    }
}

fn failed(action: &'static str) -> impl FnOnce(io::Error) -> DiagError {
    move |source| DiagError { action, source }
}

fn destruction(kind: SocketFamily, states: StateFlags, id: SocketId) -> SockDiagDestroy {
    SockDiagDestroy::new(kind.request(states, id))
}

fn listed(response: InetResponse, protocol: u8) -> Listed {
    let id = response.header.socket_id;
    // Two words, the lower one first, each as the machine has it.
    let [low, high] = [0, 4].map(|at| u64::from(word(&id.cookie, at).unwrap_or_default()));
    let unanswered = response.nlas.iter().find_map(|found| {
        if let Nla::TcpInfo(info) = found { unanswered(info).filter(|_| protocol == TCP) } else { None }
    });
    let place = |address: IpAddr, port| SocketAddr::new(address.to_canonical(), port);
    Listed {
        kind: SocketFamily { protocol, v6: response.header.family == AF_INET6 },
        cookie: low | high << 32,
        peer: place(id.destination_address, id.destination_port),
        local: place(id.source_address, id.source_port),
        uid: response.header.uid,
        unanswered,
        id,
    }
}

/// What a `tcp_info` says of unanswered segments.
fn unanswered(info: &[u8]) -> Option<Duration> {
    let waits = *info.get(tcp_info::PROBES)? != 0 || word(info, tcp_info::UNACKED)? != 0;
    let received = Duration::from_millis(word(info, tcp_info::LAST_ACK_RECEIVED)?.into());
    waits.then_some(received)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    parse_u32(bytes.get(at..at + 4)?).ok()
}

/// The kinds among which the sockets of a protocol are that talk to an address of this family.
pub fn kinds(protocol: u8, v4: bool) -> Vec<SocketFamily> {
    let v6 = SocketFamily { protocol, v6: true };
    if v4 { vec![SocketFamily { protocol, v6: false }, v6] } else { vec![v6] }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use netlink_packet_core::{NetlinkDeserializable as _, NetlinkHeader};

    use super::*;

    /// A socket to the peer, as the kernel writes it.
    fn answer(family: u8, peer: &[u8], port: u16, cookie: u64) -> Listed {
        let mut body = [0; 72];
        body[0] = family;
        body[6..8].copy_from_slice(&port.to_be_bytes());
        body[24..24 + peer.len()].copy_from_slice(peer);
        body[44..48].copy_from_slice(&u32::try_from(cookie & 0xffff_ffff).expect("masked").to_ne_bytes());
        body[48..52].copy_from_slice(&u32::try_from(cookie >> 32).expect("shifted").to_ne_bytes());
        let mut header = NetlinkHeader::default();
        header.message_type = 20;
        match SockDiagMessage::deserialize(&header, &body).expect("whole") {
            SockDiagMessage::InetResponse(response) => listed(*response, TCP),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_socket_is_read_and_named_as_the_kernel_writes_it() {
        let cookie = 0x0000_0007_ffff_fff0;
        let v4 = answer(AF_INET, &[10, 0, 0, 1], 8080, cookie);
        let v6 = answer(AF_INET6, &"::ffff:10.0.0.1".parse::<Ipv6Addr>().expect("one").octets(), 53, 9);
        assert_eq!((v4.cookie, v4.peer, v4.kind.v6), (cookie, "10.0.0.1:8080".parse().expect("one"), false));
        assert_eq!((v6.cookie, v6.peer, v6.kind.v6), (9, "10.0.0.1:53".parse().expect("one"), true));
        let request = destruction(v4.kind, v4.kind.connected(), v4.id.clone());
        let mut bytes = vec![0; NetlinkSerializable::buffer_len(&request)];
        request.serialize(&mut bytes);
        assert_eq!(
            (bytes.len(), &bytes[10..12], &bytes[28..32]),
            (56, &8080_u16.to_be_bytes()[..], &[10, 0, 0, 1][..])
        );
        assert_eq!(bytes[48..52], 0xffff_fff0_u32.to_ne_bytes(), "the kernel gets its own words back");
    }

    #[test]
    fn only_what_is_under_way_or_probed_is_unanswered() {
        for (probes, under_way, expected) in [(0, 0, None), (0, 3, Some(15_500)), (2, 0, Some(15_500))] {
            let mut info = vec![0; 104];
            info[tcp_info::PROBES] = probes;
            info[tcp_info::UNACKED] = under_way;
            info[tcp_info::LAST_ACK_RECEIVED..][..4].copy_from_slice(&15_500_u32.to_ne_bytes());
            assert_eq!(unanswered(&info), expected.map(Duration::from_millis), "{probes}, {under_way}");
            assert_eq!(unanswered(&info[..40]), None, "cut off");
        }
    }

    #[test]
    fn listeners_and_unconnected_sockets_are_not_asked_for() {
        assert_eq!(SocketFamily { protocol: UDP, v6: false }.connected(), StateFlags::ESTABLISHED);
        let tcp = SocketFamily { protocol: TCP, v6: true }.connected();
        assert!(!tcp.intersects(StateFlags::LISTEN | StateFlags::TIME_WAIT));
        assert!(tcp.contains(StateFlags::ESTABLISHED));
        assert_eq!((kinds(TCP, true).len(), kinds(TCP, false).len()), (2, 1));
    }
}
