//! The link that the routing table of this network namespace leads to an address by.

use crate::netlink::{Request, Socket, find, flag};

/// `RTM_GETROUTE`.
const GET_ROUTE: u16 = 26;
/// `RTA_DST`, `RTA_OIF`.
const DESTINATION: u16 = 1;
const OUTPUT_LINK: u16 = 4;
/// What is left of `struct rtmsg` behind the four bytes that a netlink message's reader takes off.
const REST_OF_HEADER: usize = 8;

/// Index of the link; `None`: there is no route, or the kernel gives no answer.
pub fn link_to<const N: usize>(address: &[u8; N]) -> Option<u32> {
    let family = u8::try_from(if N == 4 { libc::AF_INET } else { libc::AF_INET6 }).ok()?;
    // `struct rtmsg`: family, length of the destination's prefix, then nothing that matters for a question.
    let mut header = [0; 12];
    (header[0], header[1]) = (family, u8::try_from(8 * N).ok()?);
    let request = Request::with_header(GET_ROUTE, flag::ACK, &header).with(DESTINATION, address).bytes();
    let mut link = None;
    let mut socket = Socket::open(libc::NETLINK_ROUTE).ok()??;
    let answered = socket.converse(&request, |_, _, attributes| {
        let found = attributes.get(REST_OF_HEADER..).and_then(|rest| find(rest, OUTPUT_LINK));
        link = found.and_then(|bytes| Some(u32::from_ne_bytes(bytes.try_into().ok()?)));
    });
    answered.ok().and(link)
}
