//! Sends the RST that ends one side of a connection, in the name of the other side, through the host's routing.

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;

use lb_common::abi::TCP;
use lb_common::checksum;
use lb_common::parse::{HOPS, IPV4_HEADER, IPV6_HEADER, TCP_HEADER};
use lb_common::state::tcp_flag;
use nix::sys::socket::{setsockopt, sockopt::SndBufForce};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Bytes of segments that may wait for the address of a neighbour. Of one neighbour about 0.2 MB wait at most (`unres_qlen_bytes`).
const SEND_BUFFER: usize = 8 << 20;
/// [`TCP_HEADER`], which is all of the segment.
const SEGMENT: u8 = 20;

/// Raw sockets, which receive nothing.
#[derive(Debug)]
pub struct ResetSender {
    v4: Option<Socket>,
    v6: Option<Socket>,
}

impl ResetSender {
    /// For the caller's network namespace. Needs `CAP_NET_RAW`.
    pub fn open() -> Result<Self> {
        Ok(Self { v4: raw(Domain::IPV4)?, v6: raw(Domain::IPV6)? })
    }

    /// Sends a RST from one address to another one, by its sequence and acknowledgement number. Does not wait: [`is_full`] says that it may succeed
    /// later.
    pub fn send(&self, from: SocketAddr, to: SocketAddr, seq: u32, ack: u32) -> Result<()> {
        let segment = |sum| segment([from.port(), to.port()], [seq, ack], sum);
        let sent = match (from, to) {
            (SocketAddr::V4(from), SocketAddr::V4(to)) => {
                let (from, to) = (from.ip().octets(), to.ip().octets());
                let packet = [&header4(from, to)[..], &segment(pseudo_header(&from, &to))].concat();
                self.v4.as_ref().map(|socket| socket.send_to(&packet, &port_0(to)))
            }
            (SocketAddr::V6(from), SocketAddr::V6(to)) => {
                let (from, to) = (from.ip().octets(), to.ip().octets());
                let packet = [&header6(from, to)[..], &segment(pseudo_header(&from, &to))].concat();
                self.v6.as_ref().map(|socket| socket.send_to(&packet, &port_0(to)))
            }
            (SocketAddr::V4(_), SocketAddr::V6(_)) | (SocketAddr::V6(_), SocketAddr::V4(_)) => None,
        };
        sent.unwrap_or_else(|| Err(ErrorKind::Unsupported.into())).map(drop)
    }
}

/// Whether the segment was not sent because too many wait.
pub fn is_full(error: &Error) -> bool {
    error.kind() == ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS)
}

/// `None`: the kernel has no such family. With this protocol the packets have their network header.
fn raw(family: Domain) -> Result<Option<Socket>> {
    let socket = match Socket::new(family, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW))) {
        Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => return Ok(None),
        socket => socket?,
    };
    socket.set_nonblocking(true)?;
    setsockopt(&socket, SndBufForce, &SEND_BUFFER)?;
    Ok(Some(socket))
}

/// The socket takes the port for a protocol: there is none.
fn port_0<const N: usize>(to: [u8; N]) -> SockAddr
where
    std::net::IpAddr: From<[u8; N]>,
{
    SocketAddr::new(to.into(), 0).into()
}

fn pseudo_header<const N: usize>(from: &[u8; N], to: &[u8; N]) -> u32 {
    let sum = u32::from(TCP) + u32::from(SEGMENT);
    checksum::add(checksum::add(sum, from), to)
}

/// RST and ACK: filters that keep state compare the acknowledgement number as well. `sum` is that of the pseudo-header.
fn segment([from, to]: [u16; 2], [seq, ack]: [u32; 2], sum: u32) -> [u8; TCP_HEADER] {
    let mut header = [0; TCP_HEADER];
    header[0..2].copy_from_slice(&from.to_be_bytes());
    header[2..4].copy_from_slice(&to.to_be_bytes());
    header[4..8].copy_from_slice(&seq.to_be_bytes());
    header[8..12].copy_from_slice(&ack.to_be_bytes());
    header[12..14].copy_from_slice(&[5 << 4, tcp_flag::RST | tcp_flag::ACK]);
    let sum = !checksum::fold(checksum::add(sum, &header));
    header[16..18].copy_from_slice(&sum.to_be_bytes());
    header
}

/// The kernel sets the identification and the checksum.
fn header4(from: [u8; 4], to: [u8; 4]) -> [u8; IPV4_HEADER] {
    const DONT_FRAGMENT: u8 = 0x40;
    let mut header = [0; IPV4_HEADER];
    header[0] = 0x45;
    header[3] = 20 + SEGMENT;
    (header[6], header[8], header[9]) = (DONT_FRAGMENT, HOPS, TCP);
    header[12..16].copy_from_slice(&from);
    header[16..20].copy_from_slice(&to);
    header
}

fn header6(from: [u8; 16], to: [u8; 16]) -> [u8; IPV6_HEADER] {
    let mut header = [0; IPV6_HEADER];
    header[0] = 0x60;
    (header[5], header[6], header[7]) = (SEGMENT, TCP, HOPS);
    header[8..24].copy_from_slice(&from);
    header[24..40].copy_from_slice(&to);
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of all words of what a checksum covers, the checksum included, is all ones.
    fn is_right(sum: u32, bytes: &[u8; TCP_HEADER]) -> bool {
        checksum::fold(checksum::add(sum, bytes)) == u16::MAX
    }

    #[test]
    fn a_segment_has_its_numbers_its_flags_and_a_right_checksum() {
        let sum = pseudo_header(&[10, 96, 0, 1], &[10, 0, 0, 9]);
        let segment = segment([80, 40_000], [0x0102_0304, 0xfffe_fdfc], sum);
        let rest = [1, 2, 3, 4, 0xff, 0xfe, 0xfd, 0xfc, 0x50, 0x14, 0, 0];
        assert_eq!(segment[..4], [0, 80, 0x9c, 0x40]);
        assert_eq!(segment[4..16], rest);
        assert!(is_right(sum, &segment) && segment[16..18] != [0, 0]);
        assert!(!is_right(sum + 1, &segment));
    }

    #[test]
    fn headers_have_lengths_protocol_and_addresses() {
        let header = header4([10, 96, 0, 1], [10, 0, 0, 9]);
        assert_eq!(header, [0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 96, 0, 1, 10, 0, 0, 9]);
        let header = header6([1; 16], [2; 16]);
        assert_eq!(header[..8], [0x60, 0, 0, 0, 0, 20, 6, 64]);
        assert_eq!((&header[8..24], &header[24..]), (&[1; 16][..], &[2; 16][..]));
    }

    #[test]
    fn a_full_queue_is_no_failure() {
        assert!(is_full(&Error::from_raw_os_error(libc::EAGAIN)) && is_full(&Error::from_raw_os_error(libc::ENOBUFS)));
        assert!(!is_full(&Error::from_raw_os_error(libc::EPERM)), "a packet filter has dropped it");
    }
}
