//! Whether the other end of a pair completes the checksums of what it sends: found in its own network namespace.

use std::{
    fs::File,
    io,
    os::fd::{AsFd as _, AsRawFd as _},
};

use netlink_packet_route::{
    RouteNetlinkMessage,
    nsid::{NsidAttribute, NsidMessage},
};
use netlink_sys::protocols::NETLINK_ROUTE;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::net::name_of;
use lb_netlink::Socket;

/// `ETHTOOL_GTXCSUM` of include/uapi/linux/ethtool.h: whether checksums are left to the card.
const GET_TX_CHECKSUM: u32 = 0x16;

/// What is known of the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Complete,
    /// It leaves them to a card; its name.
    Partial(String),
    /// Its namespace is not to be found from here.
    Unseen,
}

/// `struct ethtool_value`
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// Asks the other end of a link: its index, and its namespace by the id that this one has for it. It is here or in one of these namespaces.
pub(super) fn of_peer(peer: Option<u32>, netns_id: i32, namespaces: &[File]) -> Peer {
    let Some(peer) = peer else { return Peer::Unseen };
    let asked = match netns_id {
        // Both ends are here.
        id if id < 0 => ask(peer),
        id => match namespaces.iter().find(|file| id_of(file).is_ok_and(|found| found == Some(id))) {
            Some(file) => within(file, || ask(peer)),
            None => return Peer::Unseen,
        },
    };
    match asked {
        Ok((_, false)) => Peer::Complete,
        Ok((name, true)) => Peer::Partial(name),
        Err(_) => Peer::Unseen,
    }
}

/// Runs on a thread of that namespace.
fn within<T: Send>(file: &File, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
            work()
        });
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Id of a namespace in this one (`RTM_GETNSID`).
fn id_of(file: &File) -> io::Result<Option<i32>> {
    let Some(mut socket) = Socket::open(NETLINK_ROUTE)? else { return Ok(None) };
    let mut question = NsidMessage::default();
    question.attributes.extend(u32::try_from(file.as_raw_fd()).ok().map(NsidAttribute::Fd));
    let found = socket.ask(RouteNetlinkMessage::GetNsId(question), |message| {
        let RouteNetlinkMessage::NewNsId(answered) = message else { return None };
        answered.attributes.iter().find_map(|it| if let NsidAttribute::Id(id) = it { Some(*id) } else { None })
    })?;
    Ok(found.last().copied())
}

/// Name of a link of the thread's namespace, and whether it leaves checksums to a card.
fn ask(ifindex: u32) -> io::Result<(String, bool)> {
    let name = name_of(ifindex).ok_or(io::ErrorKind::NotFound)?;
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").or_else(|_| std::net::UdpSocket::bind("[::]:0"))?;
    let mut value = EthtoolValue { command: GET_TX_CHECKSUM, data: 0 };
    // SAFETY: an all-zero ifreq is valid: plain numbers and a union of them.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The kernel's own name of a link fits, with the zero behind it.
    for (to, from) in request.ifr_name.iter_mut().zip(name.as_bytes()) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the request holds a name that ends with a zero, and a pointer to a value that lives across the call; the command
    // writes a `struct ethtool_value`.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as _, &raw mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((name, value.data != 0))
}
