//! What the ordinary path leaves aside: ICMP, fragments, extension headers, SCTP, headers that contradict each other.
//!
//! A *global* function, as the steps are, called by the entry point and not from the ordinary path: it has a stack of its own.

use aya_ebpf::bindings::__sk_buff;
use lb_common::abi::{SCTP, TCP, UDP};
use lb_common::decide::{self, Action, Hook, Tables, Work};

use crate::count;
use crate::forward::{DROP, NEXT};
use crate::headers::{self, Extent, Headers, Odd, Piece};
use crate::maps::{Family, Fragments, Rooms};
use crate::tables::Kernel;
use crate::tc::Place;
use crate::{fragments, icmp, tunnel};

pub const ICMP4: u8 = 1;
pub const ICMP6: u8 = 58;
/// No transport header begins before this offset, and no verdict is as large.
pub const LEAST_TRANSPORT: i32 = 20;

/// Where a packet is met: a [`Place`] as a value.
#[derive(Clone, Copy)]
pub struct Spot {
    pub hook: Hook,
    pub id: u8,
    pub network: usize,
    pub ingress: bool,
}

impl Spot {
    /// The number of a place that is known at compile time.
    #[inline(always)]
    pub const fn number<P: Place>() -> u32 {
        Self { hook: P::HOOK, id: P::ID, network: P::NETWORK, ingress: P::INGRESS }.as_number()
    }

    /// As a number that crosses the border between two functions of the programs.
    #[inline(always)]
    pub const fn as_number(self) -> u32 {
        self.hook.0 as u32 | (self.id as u32) << 8 | (self.network as u32) << 16 | (self.ingress as u32) << 24
    }

    #[inline(always)]
    pub const fn from_number(number: u32) -> Self {
        Self {
            hook: Hook(number as u8),
            id: (number >> 8) as u8,
            network: (number >> 16 & 0xff) as usize,
            ingress: number >> 24 != 0,
        }
    }
}

/// Handles the packet, and gives its verdict; or reads it, leaves it in the scratch record for the ordinary path, and gives the offset
/// of its transport header.
#[inline(always)]
pub fn handle<const N: usize>(skb: *mut __sk_buff, spot: u32) -> i32
where
    Kernel: Family<N>,
{
    let verdict = if N == 4 { aside4(skb, spot) } else { aside6(skb, spot) };
    if verdict == ICMP { icmp::handle::<N>(skb, spot) } else { verdict }
}

/// No verdict at tc: an ICMP message, whose place is noted.
const ICMP: i32 = -101;

/// No verdict at tc: a packet in another one, whose addresses are noted.
pub const TUNNEL: i32 = -108;

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn aside4(skb: *mut __sk_buff, spot: u32) -> i32 {
    read::<4>(skb, Spot::from_number(spot))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn aside6(skb: *mut __sk_buff, spot: u32) -> i32 {
    read::<16>(skb, Spot::from_number(spot))
}

#[inline(always)]
fn read<const N: usize>(skb: *mut __sk_buff, spot: Spot) -> i32
where
    Kernel: Family<N> + Tables<N> + Fragments<N> + Rooms<N>,
{
    let Some(work) = <Kernel as Family<N>>::work() else { return NEXT };
    // SAFETY: reads the context.
    let (length, ifindex) = unsafe { ((*skb).len, (*skb).ifindex) };
    work.packet.length = length.saturating_sub(spot.network as u32);
    let mut tables = Kernel::at(skb.cast(), ifindex);
    let found = headers::network(skb, spot.network, Extent::Packet(length as usize), &mut work.packet.key);
    let found = found.and_then(|headers| {
        if headers.piece != Piece::Later && matches!(headers.protocol, TCP | UDP | SCTP) {
            headers::transport(skb, &headers, &mut work.packet)?;
        }
        Ok(headers)
    });
    let headers = match found {
        Ok(headers) => headers,
        Err(Odd::Foreign) => return foreign(&mut tables, work, spot),
        Err(Odd::Malformed) => {
            decide::malformed(&mut tables, work);
            return settled(work, spot, ifindex);
        }
    };
    dispatch(skb, &mut tables, work, &headers, spot)
}

#[inline(always)]
pub const fn is_icmp<const N: usize>(protocol: u8) -> bool {
    protocol == if N == 4 { ICMP4 } else { ICMP6 }
}

#[inline(always)]
fn dispatch<const N: usize>(
    skb: *mut __sk_buff,
    tables: &mut Kernel,
    work: &mut Work<N>,
    headers: &Headers,
    spot: Spot,
) -> i32
where
    Kernel: Family<N> + Tables<N> + Fragments<N> + Rooms<N>,
{
    let is_icmp = is_icmp::<N>(headers.protocol);
    match headers.protocol {
        TCP | UDP | SCTP if headers.piece != Piece::Later => {
            if headers.piece == Piece::First {
                fragments::remember(tables, work, headers);
            }
            headers.transport as i32
        }
        // An ICMP message in pieces: no error is as long, and no echo of it is answered.
        _ if headers.piece == Piece::Later || (is_icmp && headers.piece == Piece::First) => {
            if fragments::recall(tables, &mut work.packet.key, headers) {
                decide::later_fragment(tables, work, spot.hook);
            } else {
                decide::stray_fragment(tables, work);
            }
            fragments::act(skb, work, spot)
        }
        _ if is_icmp => {
            let Some(message) = <Kernel as Rooms<N>>::message() else { return NEXT };
            message.icmp = headers.transport as u32;
            message.end = headers.end as u32;
            ICMP
        }
        // What is taken out may lead back here, but not out of another one.
        protocol
            if protocol == tunnel::inside::<N>()
                && spot.hook.has(Hook::FROM_OUTSIDE)
                && headers.piece == Piece::Whole
                && headers.transport == spot.network + tunnel::overhead::<N>()
                && !work.is_chosen() =>
        {
            TUNNEL
        }
        _ => foreign(tables, work, spot),
    }
}

/// Leaves a packet alone that no flow is meant by, unless it would go round.
#[inline(always)]
pub fn foreign<const N: usize>(tables: &mut Kernel, work: &mut Work<N>, spot: Spot) -> i32
where
    Kernel: Family<N> + Tables<N>,
{
    decide::foreign(tables, work, spot.hook);
    settled(work, spot, tables.ifindex)
}

/// A verdict that changes nothing of the packet, counted.
#[inline(always)]
pub fn settled<const N: usize>(work: &Work<N>, spot: Spot, ifindex: u32) -> i32
where
    Kernel: Family<N>,
{
    count::packet(work, spot.id, ifindex, work.packet.length);
    if work.verdict.action == Action::Drop { DROP } else { NEXT }
}
