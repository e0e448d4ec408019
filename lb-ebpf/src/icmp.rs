//! ICMP: errors about a flow's packet are translated with what they quote, echo requests to an address of services answered.

use aya_ebpf::bindings::__sk_buff;
use lb_common::abi::{SCTP, TCP, UDP};
use lb_common::checksum;
use lb_common::decide::{self, Action, Hook, IcmpError, Tables, Work};
use lb_common::outcome::Outcome;

use crate::aside::{Spot, foreign, settled};
use crate::count::{self, Counter};
use crate::echo;
use crate::forward::{self, DROP, NEXT};
use crate::fragments::WHOLE;
use crate::headers::{self, Extent, Piece};
use crate::maps::{Family, Rooms};
use crate::masquerade;
use crate::parse::UDP_HEADER;
use crate::rewrite::Refused;
use crate::skb::{load, store_summed};
use crate::steps;
use crate::tables::Kernel;
use crate::{tunnel, tunnel_icmp};

pub const ICMP_HEADER: usize = 8;

/// Types and codes of ICMP (RFC 792) and ICMPv6 (RFC 4443).
mod kind {
    pub const UNREACHABLE4: u8 = 3;
    /// A code of [`UNREACHABLE4`]: the packet was too big and may not be fragmented.
    pub const TOO_BIG4: u8 = 4;
    pub const TIME_EXCEEDED4: u8 = 11;
    pub const PARAMETER4: u8 = 12;
    pub const ECHO_REQUEST4: u8 = 8;
    pub const UNREACHABLE6: u8 = 1;
    pub const TOO_BIG6: u8 = 2;
    pub const PARAMETER6: u8 = 4;
    pub const ECHO_REQUEST6: u8 = 128;
}

/// What a message is to us.
pub enum Kind {
    EchoRequest,
    Error { is_refusal: bool },
    Other,
}

#[inline(always)]
pub fn kind_of<const N: usize>(kind: u8, code: u8) -> Kind {
    match (N, kind) {
        (4, kind::ECHO_REQUEST4) | (16, kind::ECHO_REQUEST6) => Kind::EchoRequest,
        (4, kind::UNREACHABLE4) => Kind::Error { is_refusal: code != kind::TOO_BIG4 },
        (4, kind::TIME_EXCEEDED4 | kind::PARAMETER4) => Kind::Error { is_refusal: false },
        (16, kind::UNREACHABLE6..=kind::PARAMETER6) => Kind::Error { is_refusal: kind == kind::UNREACHABLE6 },
        _ => Kind::Other,
    }
}

/// What the way takes by an error that says so; else 0.
#[inline(always)]
fn mtu_of<const N: usize>(header: &[u8; ICMP_HEADER]) -> u32 {
    let [kind, code, _, _, mtu @ ..] = *header;
    match (N, kind, code) {
        (4, kind::UNREACHABLE4, kind::TOO_BIG4) => u32::from_be_bytes(mtu) & 0xffff,
        (16, kind::TOO_BIG6, _) => u32::from_be_bytes(mtu),
        _ => 0,
    }
}

/// Handles the message that `aside` has found; gives its verdict.
#[inline(always)]
pub fn handle<const N: usize>(skb: *mut __sk_buff, spot: u32) -> i32
where
    Kernel: Family<N>,
{
    let mut verdict = if N == 4 { message4(skb, spot) } else { message6(skb, spot) };
    if verdict == ASK {
        steps::refusal::<N>(skb, Spot::from_number(spot).hook);
        verdict = if N == 4 { judged4(skb, spot) } else { judged6(skb, spot) };
    }
    match verdict {
        TRANSLATE if N == 4 => quoted4(skb, spot),
        TRANSLATE => quoted6(skb, spot),
        ELSEWHERE => tunnel_icmp::elsewhere::<N>(skb, spot),
        OUTER => tunnel_icmp::outer::<N>(skb, spot),
        _ => verdict,
    }
}

/// No verdict at tc: the verdict in the scratch record is to be written into an error.
const TRANSLATE: i32 = -102;

/// No verdict at tc: an error about no flow of this node, from outside; the quoted tuple is noted.
const ELSEWHERE: i32 = -109;

/// No verdict at tc: a packet in an outer header was too big; what is noted is the MTU, where the packet inside begins, and the outer
/// header's addresses.
const OUTER: i32 = -110;

/// No verdict at tc: a refusal that may be a half-open flow's.
const ASK: i32 = -103;

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn judged4(skb: *mut __sk_buff, spot: u32) -> i32 {
    judged::<4>(skb, Spot::from_number(spot))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn judged6(skb: *mut __sk_buff, spot: u32) -> i32 {
    judged::<16>(skb, Spot::from_number(spot))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn message4(skb: *mut __sk_buff, spot: u32) -> i32 {
    serve::<4>(skb, Spot::from_number(spot))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn message6(skb: *mut __sk_buff, spot: u32) -> i32 {
    serve::<16>(skb, Spot::from_number(spot))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn quoted4(skb: *mut __sk_buff, spot: u32) -> i32 {
    translate::<4>(skb, Spot::from_number(spot))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn quoted6(skb: *mut __sk_buff, spot: u32) -> i32 {
    translate::<16>(skb, Spot::from_number(spot))
}

#[inline(always)]
fn serve<const N: usize>(skb: *mut __sk_buff, spot: Spot) -> i32
where
    Kernel: Family<N> + Tables<N> + Rooms<N>,
{
    let (Some(work), Some(message)) = (<Kernel as Family<N>>::work(), <Kernel as Rooms<N>>::message()) else {
        return NEXT;
    };
    // SAFETY: reads the context.
    let ifindex = unsafe { (*skb).ifindex };
    let mut tables = Kernel::at(skb.cast(), ifindex);
    let mut header = [0u8; ICMP_HEADER];
    if message.icmp + ICMP_HEADER as u32 > message.end || load(skb, message.icmp as usize, &mut header).is_err() {
        decide::malformed(&mut tables, work);
        return settled(work, spot, ifindex);
    }
    let is_refusal = match kind_of::<N>(header[0], header[1]) {
        Kind::EchoRequest => return echo::answer(skb, &mut tables, work, message.icmp as usize, &header, spot),
        Kind::Error { is_refusal } => is_refusal,
        Kind::Other => return foreign(&mut tables, work, spot),
    };
    message.src = work.packet.key.src;
    message.dst = work.packet.key.dst;
    message.sum = [header[2], header[3]];
    let Some(sequence) = quotation(skb, message, work) else {
        message.sequence = mtu_of::<N>(&header);
        let is_outer = message.quoted != 0 && work.packet.key.protocol == tunnel::inside::<N>();
        if is_outer && message.sequence != 0 && spot.hook.has(Hook::FROM_OUTSIDE) && !work.is_chosen() {
            return OUTER;
        }
        // Nothing that could be translated is quoted.
        work.packet.key.dst = message.dst;
        return foreign(&mut tables, work, spot);
    };
    message.sequence = sequence;
    message.is_refusal = u8::from(is_refusal);
    if is_refusal && work.packet.key.protocol == TCP {
        decide::as_refusal(work, sequence);
        return ASK;
    }
    decided(skb, work, message, spot)
}

/// What the steps for half-open flows made of a refusal; if nothing, it is an error like any other.
#[inline(always)]
fn judged<const N: usize>(skb: *mut __sk_buff, spot: Spot) -> i32
where
    Kernel: Family<N> + Tables<N> + Rooms<N>,
{
    let (Some(work), Some(message)) = (<Kernel as Family<N>>::work(), <Kernel as Rooms<N>>::message()) else {
        return NEXT;
    };
    if !decide::refused(work) {
        work.packet.tcp_flags = 0;
        return decided(skb, work, message, spot);
    }
    // SAFETY: reads the context.
    let ifindex = unsafe { (*skb).ifindex };
    if work.verdict.action != Action::ToClient {
        return settled(work, spot, ifindex);
    }
    count::packet(work, spot.id, ifindex, work.packet.length);
    TRANSLATE
}

/// Decides over an error about a flow.
#[inline(always)]
fn decided<const N: usize>(skb: *mut __sk_buff, work: &mut Work<N>, message: &IcmpMessage<N>, spot: Spot) -> i32
where
    Kernel: Family<N> + Tables<N>,
{
    // SAFETY: reads the context.
    let ifindex = unsafe { (*skb).ifindex };
    let mut tables = Kernel::at(skb.cast(), ifindex);
    let error = IcmpError {
        is_refusal: message.is_refusal != 0,
        from_destination: message.src == work.packet.key.src,
        sequence: message.sequence,
    };
    decide::quoted(&mut tables, work, spot.hook, error);
    match work.verdict.action {
        action @ (Action::ToBackend | Action::ToClient) => {
            count::packet(work, spot.id, ifindex, work.packet.length);
            if action == Action::ToBackend && work.verdict.port == 0 { WHOLE } else { TRANSLATE }
        }
        Action::Pass if work.verdict.outcome == Outcome::Passed && spot.hook.has(Hook::FROM_OUTSIDE) => ELSEWHERE,
        Action::Pass => {
            work.packet.key.dst = message.dst;
            foreign(&mut tables, work, spot)
        }
        _ => settled(work, spot, ifindex),
    }
}

/// A message and where its parts begin.
#[repr(C)]
pub struct IcmpMessage<const N: usize> {
    /// Its addresses.
    src: [u8; N],
    pub dst: [u8; N],
    /// Where its header begins.
    pub icmp: u32,
    /// Where the packet ends.
    pub end: u32,
    /// Where the transport header of the packet that it quotes begins.
    pub quoted: u32,
    /// [`IcmpError::sequence`]; of an error about an outer header the MTU that it tells.
    pub sequence: u32,
    /// Its checksum.
    sum: [u8; 2],
    /// [`IcmpError::is_refusal`], as a number.
    is_refusal: u8,
    pad: u8,
}

/// Reads the quotation; `work.packet` gets its tuple reversed. `None`: it quotes no packet with ports.
#[inline(always)]
pub fn quotation<const N: usize>(skb: *mut __sk_buff, message: &mut IcmpMessage<N>, work: &mut Work<N>) -> Option<u32> {
    let key = &mut work.packet.key;
    message.quoted = 0;
    let extent = Extent::Quotation(message.end as usize);
    let headers = headers::network(skb, message.icmp as usize + ICMP_HEADER, extent, key).ok()?;
    let protocol = headers.protocol;
    message.quoted = headers.transport as u32;
    if headers.piece == Piece::Later || !matches!(protocol, TCP | UDP | SCTP) {
        return None;
    }
    let mut first = [0u8; UDP_HEADER];
    if headers.transport + UDP_HEADER > headers.end || load(skb, headers.transport, &mut first).is_err() {
        return None;
    }
    key.src_port = u16::from_be_bytes([first[0], first[1]]);
    key.dst_port = u16::from_be_bytes([first[2], first[3]]);
    *key = key.reversed();
    work.packet.tcp_flags = 0;
    let number = u32::from_be_bytes([first[4], first[5], first[6], first[7]]);
    Some(if protocol == UDP { 0 } else { number })
}

/// Does as the verdict says: the error goes the way of the flow.
#[inline(always)]
fn translate<const N: usize>(skb: *mut __sk_buff, spot: Spot) -> i32
where
    Kernel: Family<N> + Rooms<N>,
{
    let (Some(work), Some(message)) = (<Kernel as Family<N>>::work(), <Kernel as Rooms<N>>::message()) else {
        return DROP;
    };
    let turns_back = work.verdict.turns_back(&work.packet.key);
    let error = Error { skb, spot, message };
    if error.rewrite(work).is_err() {
        count::outcome(Outcome::DroppedRewrite, Counter::Packet);
        return DROP;
    }
    if !work.verdict.route {
        return NEXT;
    }
    if turns_back {
        return forward::back(skb, spot.network, spot.ingress);
    }
    let key = &work.packet.key;
    forward::route(skb, key, work.packet.length, spot)
}

/// An error under translation.
struct Error<'a, const N: usize> {
    skb: *mut __sk_buff,
    spot: Spot,
    message: &'a IcmpMessage<N>,
}

impl<const N: usize> Error<'_, N> {
    /// Writes the verdict into the quotation, reversed, and into the error's own header. The key gets the error's addresses as they
    /// are then.
    #[inline(always)]
    fn rewrite(&self, work: &mut Work<N>) -> Result<(), Refused> {
        let (skb, message) = (self.skb, self.message);
        let (key, verdict) = (&work.packet.key, &work.verdict);
        let to_backend = verdict.action == Action::ToBackend;
        let inner = message.icmp as usize + ICMP_HEADER;
        let source_at = if N == 4 { 12 } else { 8 };
        let old_ports = ports(key.dst_port, key.src_port);
        let new_ports = if to_backend {
            ports(verdict.port, verdict.client_port)
        } else {
            ports(verdict.client_port, verdict.port)
        };
        // The quotation goes the other way than the error: its source is where the error goes to.
        let (new_src, new_dst) = masquerade::ends(verdict);
        store_summed(skb, inner + source_at, new_dst)?;
        store_summed(skb, inner + source_at + N, new_src)?;
        let (old_src_sum, new_src_sum) = (checksum::add(0, &key.src), checksum::add(0, new_src));
        let (old_dst_sum, new_dst_sum) = (checksum::add(0, &key.dst), checksum::add(0, new_dst));
        let (old_addresses, new_addresses) = (old_src_sum + old_dst_sum, new_src_sum + new_dst_sum);
        // What changes of all that the error's checksum covers. The quoted IPv4 header makes up for its addresses itself.
        let (mut before, mut after) = (checksum::add(0, &old_ports), checksum::add(0, &new_ports));
        let sums = self.transport_sum(key.protocol, (old_addresses + before, new_addresses + after))?;
        store_summed(skb, message.quoted as usize, &new_ports)?;
        before += sums.0;
        after += sums.1;
        if N == 4 {
            resum(skb, inner + 10, old_addresses, new_addresses)?;
        } else {
            before += old_addresses;
            after += new_addresses;
        }
        // The error's own addresses: it goes to where the quotation came from; it may be the other end's own, or a router's. Who talks
        // to another address than the packet's own may have no way to the router, or none that its filters believe: it hears of the
        // error from whom it talks to, as by the translation of Linux.
        let network = self.spot.network;
        let is_own = verdict.masquerade || key.src == message.src;
        let (src, dst) = if is_own { (new_src, new_dst) } else { (&message.src, new_dst) };
        let (mut old_outer, mut new_outer) = (old_dst_sum, new_dst_sum);
        if is_own {
            old_outer += checksum::add(0, &message.src);
            new_outer += new_src_sum;
        }
        if N == 4 {
            resum(skb, network + 10, old_outer, new_outer)?;
        } else {
            // ICMPv6 sums up the addresses, too.
            before += old_outer;
            after += new_outer;
        }
        store_summed(skb, network + source_at, src)?;
        store_summed(skb, network + source_at + N, dst)?;
        let (src, dst) = (*src, *dst);
        let sum = checksum::replace(u16::from_be_bytes(message.sum), before, after);
        work.packet.key.src = src;
        work.packet.key.dst = dst;
        store_summed(skb, message.icmp as usize + 2, &sum.to_be_bytes())
    }

    /// Brings the quoted packet's own checksum along, if it is quoted; gives its sum before and after.
    #[inline(always)]
    fn transport_sum(&self, protocol: u8, (before, after): (u32, u32)) -> Result<(u32, u32), Refused> {
        let at = self.message.quoted as usize + if protocol == UDP { 6 } else { 16 };
        let mut sum = [0u8; 2];
        // SCTP's is no sum, and covers more than is quoted.
        if protocol == SCTP || at + 2 > self.message.end as usize || load(self.skb, at, &mut sum).is_err() {
            return Ok((0, 0));
        }
        let old = u16::from_be_bytes(sum);
        if protocol == UDP && old == 0 {
            return Ok((0, 0));
        }
        let new = checksum::replace(old, before, after);
        let new = if protocol == UDP && new == 0 { 0xffff } else { new };
        store_summed(self.skb, at, &new.to_be_bytes())?;
        Ok((u32::from(old), u32::from(new)))
    }
}

/// Brings an IPv4 header's checksum along.
#[inline(always)]
pub fn resum(skb: *mut __sk_buff, at: usize, before: u32, after: u32) -> Result<(), Refused> {
    let mut sum = [0u8; 2];
    load(skb, at, &mut sum)?;
    let new = checksum::replace(u16::from_be_bytes(sum), before, after);
    store_summed(skb, at, &new.to_be_bytes())
}

#[inline(always)]
fn ports(src: u16, dst: u16) -> [u8; 4] {
    let (src, dst) = (src.to_be_bytes(), dst.to_be_bytes());
    [src[0], src[1], dst[0], dst[1]]
}
