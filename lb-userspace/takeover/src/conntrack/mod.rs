//! The host's connection tracking (conntrack), asked and changed over ctnetlink.
//!
//! Only connections of the default zone count: kube-proxy has no other.

mod message;
pub mod nat_hooks;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use lb_common::abi::{SCTP, TCP};

use lb_netlink::{Socket, unless};

pub use lb_netlink::Family;
pub use message::{status, tcp_state};

/// SCTP: the association has never been, or is over (`SCTP_CONNTRACK_CLOSED`).
const SCTP_CLOSED: u8 = 1;

/// Why conntrack could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum ConntrackError {
    #[error("this kernel has no connection tracking that can be asked (nf_conntrack_netlink)")]
    Missing,
    #[error("conntrack: {action} failed: {source}; it needs CAP_NET_ADMIN")]
    Failed { action: &'static str, source: io::Error },
}

impl ConntrackError {
    fn of(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| match source.raw_os_error() {
            // nfnetlink knows no such subsystem.
            Some(libc::EINVAL | libc::EOPNOTSUPP) if action == message::LIST => Self::Missing,
            _ => Self::Failed { action, source },
        }
    }
}

/// The tuple of the packets of one direction. Both addresses are of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tuple {
    pub src: SocketAddr,
    pub dst: SocketAddr,
    /// [`lb_common::abi::TCP`], [`lb_common::abi::UDP`] or [`lb_common::abi::SCTP`].
    pub protocol: u8,
}

impl Tuple {
    /// The tuple of untranslated answers.
    #[must_use]
    pub fn reversed(&self) -> Self {
        Self { src: self.dst, dst: self.src, protocol: self.protocol }
    }

    pub fn family(&self) -> Family {
        Family::of(self.src.ip())
    }
}

/// A connection as conntrack has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub original: Tuple,
    /// As the host receives the answers: before they are translated back.
    pub reply: Tuple,
    /// Bits of [`status`].
    pub status: u32,
    /// TCP and SCTP: the state in numbers of the kernel ([`tcp_state`]).
    pub state: Option<u8>,
    /// How long the entry lives without a packet.
    pub timeout: Duration,
}

impl Entry {
    /// Whether the destination is translated, as kube-proxy does with services.
    pub fn is_translated(&self) -> bool {
        self.status & status::DST_NAT != 0 && self.original.dst != self.reply.src
    }

    /// Whether conntrack would take a SYN on the connection's tuple for a new one.
    pub fn is_over(&self) -> bool {
        match (self.original.protocol, self.state) {
            (TCP, Some(state)) => matches!(state, tcp_state::TIME_WAIT | tcp_state::CLOSE),
            (SCTP, Some(state)) => state == SCTP_CLOSED,
            _ => false,
        }
    }

    /// Whether IPVS translates the destination: it changes the reply tuple, and no bit of the status.
    pub fn is_of_ipvs(&self) -> bool {
        self.status & status::DST_NAT == 0 && self.original.dst != self.reply.src
    }
}

/// A connection that conntrack is to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewEntry {
    pub original: Tuple,
    /// DNAT: where the packets go. That of the tuple: it is not translated.
    pub backend: SocketAddr,
    /// SNAT: the source that the backend sees. `None`: the client's own.
    pub source: Option<SocketAddr>,
    /// Whether the other end has answered: the connection is established.
    pub is_answered: bool,
    pub timeout: Duration,
}

/// A conversation with ctnetlink, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Conntrack(Socket);

impl Conntrack {
    pub fn open() -> Result<Self, ConntrackError> {
        let socket = Socket::netfilter().map_err(ConntrackError::of("opening a netlink socket"))?;
        socket.map(Self).ok_or(ConntrackError::Missing)
    }

    /// All connections of TCP, UDP and SCTP with all of these bits of [`status`]. Kernels from 5.15 on look for them by themselves; of older ones all
    /// connections are read.
    ///
    /// A connection that began or ended meanwhile may be missing, and the list may name a connection twice.
    pub fn list(&mut self, family: Family, status: u32) -> Result<Vec<Entry>, ConntrackError> {
        let has_status = |entry: &Entry| entry.status & status == status;
        let listed = self.0.list(message::list(family, status), |message| message::entry(&message).filter(has_status));
        listed.map_err(ConntrackError::of(message::LIST))
    }

    /// The connection with this tuple of either direction.
    pub fn get(&mut self, tuple: &Tuple) -> Result<Option<Entry>, ConntrackError> {
        match self.0.ask(message::get(tuple), |message| message::entry(&message)) {
            Ok(found) => Ok(found.last().copied()),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(ConntrackError::of("asking for a connection")(error)),
        }
    }

    /// Makes an entry. `false`: one of the tuples is another connection's.
    ///
    /// NAT hooks must stay in the kernel for packets to be translated ([`nat_hooks::keep`]).
    pub fn insert(&mut self, entry: &NewEntry) -> Result<bool, ConntrackError> {
        let inserted = self.0.change(message::INSERT, message::insert(entry));
        unless(libc::EEXIST, inserted).map_err(ConntrackError::of("making a connection"))
    }

    /// Makes entries without NAT, or changes what is known of their tuples. Returns the result of each. The kernel holds an answer for each until it is
    /// read, in room for some 200.
    pub fn put(&mut self, entries: &[NewEntry]) -> Result<Vec<io::Result<()>>, ConntrackError> {
        let requests = entries.iter().map(|entry| (message::PUT, message::insert(entry))).collect();
        self.0.changes(requests).map_err(ConntrackError::of("making connections"))
    }

    /// Puts an entry in the place of the one with the same original tuple, if there is one. The kernel does both steps at one request. `false`: one of
    /// the tuples is another connection's.
    pub fn replace(&mut self, entry: &NewEntry) -> Result<bool, ConntrackError> {
        let both = vec![(0, message::delete(&entry.original)), (message::INSERT, message::insert(entry))];
        let mut results = self.0.changes(both).map_err(ConntrackError::of("replacing a connection"))?.into_iter();
        let [deleted, inserted] = [(); 2].map(|()| results.next().unwrap_or(Ok(())));
        unless(libc::ENOENT, deleted).map_err(ConntrackError::of("removing a connection"))?;
        unless(libc::EEXIST, inserted).map_err(ConntrackError::of("making a connection"))
    }

    /// Removes the connection with this tuple of either direction. `false`: there is none.
    pub fn delete(&mut self, tuple: &Tuple) -> Result<bool, ConntrackError> {
        let deleted = self.0.change(0, message::delete(tuple));
        unless(libc::ENOENT, deleted).map_err(ConntrackError::of("removing a connection"))
    }
}
