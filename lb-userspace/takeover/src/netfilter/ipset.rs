//! ipsets: their names, and their removal, by netlink.

use std::io;

use lb_netlink::{Attributes, Message, Socket, is_without, text};

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
    let Some(mut socket) = Socket::netfilter()? else { return Ok(Vec::new()) };
    let question = message(LIST, Attributes::default().with(FLAGS, &NAMES_ONLY.to_be_bytes()));
    let listed =
        socket.list(question, |message: Message| Some(text(&message.attributes, NAME)).filter(|name| !name.is_empty()));
    // A kernel where nobody has used sets yet.
    if listed.as_ref().is_err_and(is_without) { Ok(Vec::new()) } else { listed }
}

/// Destroys a set. One that a rule uses is busy.
pub fn destroy(name: &str) -> io::Result<()> {
    let Some(mut socket) = Socket::netfilter()? else { return Ok(()) };
    socket.change(0, message(DESTROY, Attributes::default().text(NAME, name)))
}

fn message(kind: u16, attributes: Attributes) -> Message {
    Message::nfnetlink(SUBSYSTEM | kind, 2, attributes.with(PROTOCOL, &[VERSION]))
}
