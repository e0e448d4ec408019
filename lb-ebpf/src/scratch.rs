//! The scratch record: what the programs that handle one packet hand on to each other. BPF has 512 bytes of stack, and a tail call keeps
//! none of them.

use lb_common::abi::FlowKey;
use lb_common::decide::{Hook, Pick, Step, Work};

use lb_common::parse::{ETHERNET, Offsets};

/// Where a packet is met.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AttachPoint {
    hook: u8,
    /// The number in events.
    pub id: u8,
    has_ethernet: bool,
    /// Whether packets come by the link here, and do not leave by it.
    pub is_ingress: bool,
}

impl AttachPoint {
    pub const fn new(hook: Hook, id: u8, has_ethernet: bool, is_ingress: bool) -> Self {
        Self { hook: hook.0, id, has_ethernet, is_ingress }
    }

    #[inline(always)]
    pub const fn hook(self) -> Hook {
        Hook(self.hook)
    }

    /// Where the network header begins: behind an Ethernet header, or at once on links without one.
    #[inline(always)]
    pub const fn network(self) -> usize {
        if self.has_ethernet { ETHERNET } else { 0 }
    }
}

/// Why a packet is not sent on, and the error that its sender gets.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unsent {
    /// The next hop takes no packet of this size.
    TooBig = 0,
    /// It may come no further.
    Expired,
    PortUnreachable,
    /// It was too big for its way in an outer header, as somebody on that way has said: [`IcmpMessage::mtu`].
    TooBigOuter,
}

/// All zeroes is a valid value of every field.
#[repr(C)]
pub struct Scratch<const N: usize> {
    pub work: Work<N>,
    pub point: AttachPoint,
    /// Where the transport header begins.
    pub transport: u32,
    /// The step of the decision that the next program takes.
    pub step: Step,
    /// Why [`crate::tc::icmp_error`] is called.
    pub unsent: Unsent,
    /// XDP: whether the packet is in an outer header, which is to be taken off.
    pub is_encapsulated: bool,
    /// Of a later fragment: its datagram's identification.
    pub fragment_id: u32,
    pub icmp: IcmpMessage<N>,
}

impl<const N: usize> Scratch<N> {
    /// Notes what the entry program knows, before it calls another one.
    #[inline(always)]
    pub fn enter(&mut self, point: AttachPoint, transport: usize) {
        self.point = point;
        self.transport = transport as u32;
        self.work.packet.is_error = false;
    }

    #[inline(always)]
    pub fn offsets(&self) -> Offsets {
        Offsets { network: self.point.network(), transport: self.transport as usize }
    }
}

/// The scratch record of a call of a socket.
#[repr(C)]
pub struct SocketScratch<const N: usize> {
    /// What is asked for.
    pub key: FlowKey<N>,
    pub pick: Pick<N>,
}

/// An ICMP message and where its parts begin.
#[repr(C)]
pub struct IcmpMessage<const N: usize> {
    /// Its addresses.
    pub src: [u8; N],
    pub dst: [u8; N],
    /// Where its header begins.
    pub header: u32,
    /// Where the packet ends.
    pub end: u32,
    /// Where the transport header of the packet that it quotes begins.
    pub quoted: u32,
    /// The MTU that an error about an outer header names.
    pub mtu: u32,
    /// Its checksum.
    pub sum: [u8; 2],
    pub pad: [u8; 2],
}
