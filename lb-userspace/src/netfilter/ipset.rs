//! ipsets: their names, and their removal, by netlink.

use std::io;

use crate::netlink::{Request, Socket, flag, is_without, text};

/// Of include/uapi/linux/netfilter/ipset/ip_set.h.
const SUBSYSTEM: u16 = 6 << 8;
const DESTROY: u16 = 3;
const LIST: u16 = 7;
const PROTOCOL: u16 = 1;
const NAME: u16 = 2;
const FLAGS: u16 = 6;
/// The kernel accepts it since 2.6.39.
const VERSION: u8 = 6;
/// `IPSET_FLAG_LIST_SETNAME`: names and nothing else.
const NAMES_ONLY: u32 = 1 << 1;

/// The names of all sets of this network namespace.
pub fn names() -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    let Some(mut socket) = Socket::netfilter()? else { return Ok(names) };
    let request = request(LIST, flag::DUMP).with(FLAGS, &NAMES_ONLY.to_be_bytes()).bytes();
    let listed = socket.converse(&request, |_, _, attributes| names.push(text(attributes, NAME)));
    names.retain(|name| !name.is_empty());
    // A kernel where nobody has used sets yet.
    if listed.as_ref().is_err_and(is_without) { Ok(Vec::new()) } else { listed.map(|()| names) }
}

/// Destroys a set. One that a rule uses is busy.
pub fn destroy(name: &str) -> io::Result<()> {
    let Some(mut socket) = Socket::netfilter()? else { return Ok(()) };
    socket.converse(&request(DESTROY, flag::ACK).text(NAME, name).bytes(), |_, _, _| ())
}

fn request(kind: u16, flags: u16) -> Request {
    Request::nfnetlink(SUBSYSTEM | kind, flags, 2).with(PROTOCOL, &[VERSION])
}
