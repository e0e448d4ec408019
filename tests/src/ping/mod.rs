//! Echo requests by a raw socket.

use std::io::ErrorKind;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::topology::NetNs;
use socket2::{Domain, Socket, Type};

/// Sends an echo request with this payload; whether it is answered, from the address that was asked.
pub fn pings(netns: &NetNs, to: IpAddr, payload: usize) -> std::io::Result<bool> {
    let (domain, protocol, request, reply) = match to {
        IpAddr::V4(_) => (Domain::IPV4, socket2::Protocol::ICMPV4, 8, 0),
        IpAddr::V6(_) => (Domain::IPV6, socket2::Protocol::ICMPV6, 128, 129),
    };
    netns.run(|| {
        let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
        socket.set_read_timeout(Some(Duration::from_secs(3)))?;
        socket.connect(&SocketAddr::new(to, 0).into())?;
        let mut message = vec![request, 0, 0, 0, 0x12, 0x34, 0, 1];
        message.extend((0..payload).map(|at| u8::try_from(at % 251).expect("below 251")));
        if to.is_ipv4() {
            let sum = internet_checksum(&message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        socket.send(&message)?;
        let mut room = [MaybeUninit::uninit(); 2048];
        loop {
            let length = match socket.recv(&mut room) {
                Ok(length) => length,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            };
            // SAFETY: the kernel wrote so many bytes.
            let got: Vec<u8> = room[..length].iter().map(|byte| unsafe { byte.assume_init() }).collect();
            // A raw socket of IPv4 is given the network header, too.
            let got = if to.is_ipv4() { &got[20..] } else { &got[..] };
            if got[0] == reply && got[4..] == message[4..] {
                return Ok(true);
            }
        }
    })
}

/// RFC 1071.
fn internet_checksum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((sum & 0xffff) + (sum >> 16)).expect("folded to 16 bits")
}
