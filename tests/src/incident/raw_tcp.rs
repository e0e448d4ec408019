//! Raw TCP segments: a pod sends and receives them one by one, at addresses that its kernel does not own.

use std::io::{Error, Result};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use rustix::time::{ClockId, clock_gettime};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::topology::{Addresses, NetNs, Node, Pod};

/// Longest packet.
const PACKET: usize = 65_535;
/// `PACKET_OUTGOING`: what this host sent itself.
const OUTGOING: u8 = 4;
/// Packets that wait to be read.
const RECEIVE_BYTES: libc::c_int = 64 << 20;
/// `SIOCGSTAMPNS`: the time of the last packet that was read.
const SIOCGSTAMPNS: libc::Ioctl = 0x8907;
/// How long one look at the link may wait.
const TICK: Duration = Duration::from_millis(20);

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;

/// A TCP segment, with as much of it as the tests look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub flags: u8,
    pub seq: u32,
    pub ack: u32,
    /// Bytes of data.
    pub length: usize,
}

impl Segment {
    /// The first segment of a connection.
    pub fn syn(from: SocketAddr, to: SocketAddr, isn: u32) -> Self {
        Self { from, to, flags: SYN, seq: isn, ack: 0, length: 0 }
    }

    /// An answer to this segment, from whom it was for.
    #[must_use]
    pub fn answer(&self, flags: u8, seq: u32) -> Self {
        let taken = u32::try_from(self.length).unwrap_or(u32::MAX) + u32::from(self.flags & (SYN | FIN) != 0);
        Self { from: self.to, to: self.from, flags, seq, ack: self.seq.wrapping_add(taken), length: 0 }
    }

    /// With so many bytes of data.
    #[must_use]
    pub fn with_data(self, length: usize) -> Self {
        Self { length, ..self }
    }

    pub fn is(&self, flags: u8) -> bool {
        self.flags & (FIN | SYN | RST | ACK) == flags
    }

    /// The packet, from its IP header on.
    pub fn bytes(&self) -> Vec<u8> {
        let ip = match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::ipv4(from.octets(), to.octets(), 64),
            (IpAddr::V6(from), IpAddr::V6(to)) => PacketBuilder::ipv6(from.octets(), to.octets(), 64),
            _ => panic!("{} and {} are of two families", self.from, self.to),
        };
        let mut tcp = ip.tcp(self.from.port(), self.to.port(), self.seq, 64_240);
        for (bit, set) in [(FIN, 0), (SYN, 1), (RST, 2)] {
            if self.flags & bit != 0 {
                tcp = match set {
                    0 => tcp.fin(),
                    1 => tcp.syn(),
                    _ => tcp.rst(),
                };
            }
        }
        if self.flags & ACK != 0 {
            tcp = tcp.ack(self.ack);
        }
        let mut bytes = Vec::with_capacity(tcp.size(self.length));
        tcp.write(&mut bytes, &vec![b'x'; self.length]).expect("a buffer takes every write");
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let packet = SlicedPacket::from_ip(bytes).ok()?;
        let (from, to): (IpAddr, IpAddr) = match packet.net? {
            NetSlice::Ipv4(ip) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
            NetSlice::Ipv6(ip) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
            NetSlice::Arp(_) => return None,
        };
        let Some(TransportSlice::Tcp(tcp)) = packet.transport else { return None };
        let flags = [(FIN, tcp.fin()), (SYN, tcp.syn()), (RST, tcp.rst()), (ACK, tcp.ack())];
        Some(Self {
            from: SocketAddr::new(from, tcp.source_port()),
            to: SocketAddr::new(to, tcp.destination_port()),
            flags: flags.iter().filter(|(_, set)| *set).map(|(bit, _)| bit).sum(),
            seq: tcp.sequence_number(),
            ack: tcp.acknowledgment_number(),
            length: tcp.payload().len(),
        })
    }
}

/// A pod's link: segments are sent as they are, and those that arrive are seen.
#[derive(Debug)]
pub struct RawTcp {
    link: Link,
    senders: [Socket; 2],
}

impl RawTcp {
    /// On the link `eth0` of a pod.
    pub fn new(netns: &NetNs) -> Result<Self> {
        netns.run(|| {
            let sender = |domain| Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)));
            Ok(Self { link: Link(link()?), senders: [sender(Domain::IPV4)?, sender(Domain::IPV6)?] })
        })
    }

    pub fn send(&self, segment: &Segment) {
        let to = SocketAddr::new(segment.to.ip(), 0);
        let sender = &self.senders[usize::from(to.is_ipv6())];
        let sent = sender.send_to(&segment.bytes(), &SockAddr::from(to));
        sent.unwrap_or_else(|error| panic!("sending {segment:?}: {error}"));
    }

    /// The next segment that `wanted` says yes to, within `limit`; others are forgotten.
    pub fn receive(&self, limit: Duration, wanted: impl Fn(&Segment) -> bool) -> Option<Segment> {
        let start = Instant::now();
        loop {
            if let Some(segment) = self.link.next().filter(&wanted) {
                return Some(segment);
            }
            if start.elapsed() >= limit {
                return None;
            }
        }
    }

    /// Forgets what has arrived so far.
    pub fn drain(&self) {
        while receive(&self.link.0, true).is_some() {}
    }
}

/// The receiving half alone.
#[derive(Debug)]
pub struct Link(OwnedFd);

impl Link {
    /// Of `eth0` of a pod.
    pub fn open(netns: &NetNs) -> Result<Self> {
        netns.run(link).map(Self)
    }

    /// The next segment; `None`: no TCP came within a moment.
    fn next(&self) -> Option<Segment> {
        receive(&self.0, false).and_then(|bytes| Segment::parse(&bytes))
    }

    /// The next segment, and the kernel's time of its arrival in nanoseconds of `CLOCK_MONOTONIC`.
    pub fn next_timed(&self) -> Option<(Segment, u64)> {
        let segment = self.next()?;
        // The kernel stamps packets by the wall clock. What both clocks say now tells what the other one said then.
        let (arrived, wall, monotonic) = (self.stamp()?, clock_ns(ClockId::Realtime), clock_ns(ClockId::Monotonic));
        Some((segment, monotonic.saturating_sub(wall.saturating_sub(arrived))))
    }

    /// When the last packet arrived, by the wall clock.
    fn stamp(&self) -> Option<u64> {
        let mut stamp = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the request writes one `timespec`.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), SIOCGSTAMPNS, &raw mut stamp) };
        let (s, ns) = (u64::try_from(stamp.tv_sec).ok()?, u64::try_from(stamp.tv_nsec).ok()?);
        (done == 0).then_some(s * 1_000_000_000 + ns)
    }
}

fn clock_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let (s, ns) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    s * 1_000_000_000 + ns
}

/// The bytes of a packet from its IP header on; empty for one that this host sent. `None`: nothing within a tick.
fn receive(link: &OwnedFd, at_once: bool) -> Option<Vec<u8>> {
    let mut bytes = vec![0; PACKET];
    // SAFETY: zeroes are a valid address of this plain record.
    let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut size = libc::socklen_t::try_from(size_of_val(&from)).expect("a small record");
    let flags = if at_once { libc::MSG_DONTWAIT } else { 0 };
    // SAFETY: buffer and address are valid for writes of the sizes given.
    let length = unsafe {
        libc::recvfrom(
            link.as_raw_fd(),
            bytes.as_mut_ptr().cast(),
            bytes.len(),
            flags,
            (&raw mut from).cast(),
            &raw mut size,
        )
    };
    bytes.truncate(usize::try_from(length).ok()?);
    if from.sll_pkttype == OUTGOING {
        bytes.clear();
    }
    Some(bytes)
}

/// A packet socket on `eth0` of the thread's namespace.
fn link() -> Result<OwnedFd> {
    let every = u16::try_from(libc::ETH_P_ALL).expect("16 bits").to_be();
    // SAFETY: makes a descriptor, which is owned from here on.
    let link = unsafe {
        let raw = libc::socket(libc::AF_PACKET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, i32::from(every));
        if raw < 0 {
            return Err(Error::last_os_error());
        }
        OwnedFd::from_raw_fd(raw)
    };
    // SAFETY: the name is NUL-terminated.
    let index = unsafe { libc::if_nametoindex(c"eth0".as_ptr()) };
    // SAFETY: zeroes are a valid address of this plain record.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = u16::try_from(libc::AF_PACKET).expect("16 bits");
    address.sll_protocol = every;
    address.sll_ifindex = i32::try_from(index).map_err(Error::other)?;
    let size = libc::socklen_t::try_from(size_of_val(&address)).expect("a small record");
    // SAFETY: the address is valid for its size.
    if unsafe { libc::bind(link.as_raw_fd(), (&raw const address).cast(), size) } < 0 {
        return Err(Error::last_os_error());
    }
    socket2::SockRef::from(&link).set_read_timeout(Some(TICK))?;
    // What is not read in time is lost: a busy machine shall not make a connection's first packet one of those.
    let size: libc::c_int = RECEIVE_BYTES;
    let length = libc::socklen_t::try_from(size_of_val(&size)).expect("a small number");
    // SAFETY: the option's value is valid for its size.
    unsafe {
        let value = (&raw const size).cast();
        libc::setsockopt(link.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, value, length);
    }
    Ok(link)
}

/// Sends SYNs that nobody means, as fast as it can.
#[derive(Debug)]
pub struct Flood(Socket);

impl Flood {
    /// From the calling thread's namespace.
    pub fn new() -> Result<Self> {
        Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW))).map(Self)
    }

    /// One from this address; each number is another port and initial sequence number.
    pub fn syn(&self, from: Ipv4Addr, number: u32, to: SocketAddrV4) {
        let port = 1_024 + u16::try_from(number % 60_000).expect("below 60000");
        let syn = Segment::syn(SocketAddr::new(from.into(), port), to.into(), number);
        // A full queue loses one, as a wire would.
        self.0.send_to(&syn.bytes(), &SockAddr::from(SocketAddr::new((*to.ip()).into(), 0))).ok();
    }
}

/// Addresses that a pod's link carries and that its kernel does not know, so that it answers nothing for them.
pub fn lend(node: &Node, pod: &Pod, numbers: std::ops::Range<u8>) -> anyhow::Result<Vec<Addresses>> {
    let mac = super::backend_pool::mac_of(pod.namespace())?;
    let (mut lines, mut lent) = (Vec::new(), Vec::new());
    for number in numbers {
        let addresses =
            Addresses { v4: super::BackendPool::address(number), v6: format!("fd00:244:1:9::{number:x}").parse()? };
        for (address, bits) in addresses.both().into_iter().zip([32, 128]) {
            lines.push(format!("route add {address}/{bits} dev {}", pod.link()));
            lines.push(format!("neigh replace {address} lladdr {mac} dev {} nud permanent", pod.link()));
        }
        lent.push(addresses);
    }
    node.namespace().ip(&lines.join("\n"))?;
    Ok(lent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_survives_its_bytes() {
        for [from, to] in [["10.0.0.1:5", "10.0.0.2:80"], ["[fd00::1]:5", "[fd00::2]:80"]] {
            let syn = Segment::syn(from.parse().unwrap(), to.parse().unwrap(), u32::MAX);
            assert_eq!(Segment::parse(&syn.bytes()), Some(syn));
            let answer = syn.answer(SYN | ACK, 7);
            assert_eq!((answer.from, answer.ack), (syn.to, 0), "a SYN takes one number");
            let data = answer.with_data(3);
            assert_eq!(Segment::parse(&data.bytes()), Some(data));
        }
    }
}
