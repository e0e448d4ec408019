//! Packets that no service is for, sent as they are; and whether they go on to the router, the gateway of all hosts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};

use anyhow::{Result, ensure};
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, recvfrom, socket};
use socket2::{Domain, Protocol, Socket, Type};

use crate::topology::{NetNs, Topology};

/// Protocol number of GRE, which is not balanced.
pub const GRE: i32 = 47;
/// Flags of TCP.
pub const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// Everything that arrives at the gateway of all hosts.
#[derive(Debug)]
pub struct Gateway {
    socket: OwnedFd,
    link: usize,
}

impl Gateway {
    /// Notes what arrives from here on.
    pub fn watch(topology: &Topology) -> Result<Self> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        topology.wire().netns().run(|| {
            Ok(Self {
                socket: socket(AddressFamily::Packet, SockType::Datagram, flags, SockProtocol::EthAll)?,
                link: usize::try_from(if_nametoindex("br0")?)?,
            })
        })
    }

    /// Destinations and protocols of what has come since the last call.
    pub fn seen(&self) -> Vec<(IpAddr, i32)> {
        let mut seen = Vec::new();
        let mut packet = [0u8; 128];
        while let Ok((_, Some(from))) = recvfrom::<LinkAddr>(self.socket.as_raw_fd(), &mut packet) {
            if from.ifindex() != self.link {
                continue;
            }
            let destination4: [u8; 4] = packet[16..20].try_into().expect("four bytes");
            let destination6: [u8; 16] = packet[24..40].try_into().expect("sixteen bytes");
            match packet[0] >> 4 {
                4 => seen.push((Ipv4Addr::from(destination4).into(), i32::from(packet[9]))),
                6 => seen.push((Ipv6Addr::from(destination6).into(), i32::from(packet[6]))),
                _ => {}
            }
        }
        seen
    }
}

/// Sends this as the payload of a packet of the protocol.
pub fn send(from: &NetNs, to: IpAddr, protocol: i32, payload: &[u8]) -> Result<()> {
    from.run(|| {
        let domain = if to.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
        let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(protocol)))?;
        match socket.send_to(payload, &SocketAddr::new(to, 0).into()) {
            // The node's own packet, dropped on its way out.
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => Ok(()),
            sent => {
                ensure!(sent? == payload.len(), "a packet was cut off");
                Ok(())
            }
        }
    })
}

/// A TCP header from port 4000 to port 81, which nobody serves, with these flags.
pub fn segment(flags: u8) -> [u8; 20] {
    let mut header = [0; 20];
    header[..4].copy_from_slice(&[0x0f, 0xa0, 0, 81]);
    (header[12], header[13]) = (0x50, flags);
    header
}

/// One of each: protocol and payload. Nothing at the address is for any of them.
pub fn strays(to: IpAddr) -> Vec<(i32, Vec<u8>)> {
    let datagram = [0x0f, 0xa0, 0, 81, 0, 8, 0, 0];
    // A timestamp request (RFC 792), an unassigned type; then an error that quotes nothing.
    let (icmp, other, error) = if to.is_ipv4() { (libc::IPPROTO_ICMP, 13, 3) } else { (libc::IPPROTO_ICMPV6, 200, 1) };
    vec![
        (libc::IPPROTO_TCP, segment(ACK).to_vec()),
        (libc::IPPROTO_TCP, segment(RST).to_vec()),
        (libc::IPPROTO_UDP, datagram.to_vec()),
        (GRE, vec![0; 8]),
        (icmp, [&[other, 0, 0, 0], &[0; 16][..]].concat()),
        (icmp, [&[error, 1, 0, 0], &[0; 4][..]].concat()),
    ]
}
