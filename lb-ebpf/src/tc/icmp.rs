//! ICMP: errors about a flow's packet are translated with what they quote, echo requests to an address of services answered.

use aya_ebpf::bindings::__sk_buff;
use lb_common::abi::{SCTP, TCP, UDP};
use lb_common::checksum;
use lb_common::decide::{self, Action, Hook, Step, Work};
use lb_common::outcome::Outcome;
use lb_common::stages::TcStage;

use crate::kernel::Kernel;
use crate::maps;
use crate::nat::{Refused, ends};
use crate::outer_header;
use crate::scratch::{IcmpMessage, Scratch};
use crate::tail_call;
use crate::tc::forward::{self, DROP, NEXT};
use crate::tc::headers::{self, Extent, Piece};
use crate::tc::skb::{load, resum, store_summed};
use crate::tc::slow_path::unrelated;
use crate::tc::{echo, verdict};
use lb_common::parse::{ICMP_HEADER, UDP_HEADER};

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
pub enum IcmpClass {
    EchoRequest,
    Error { is_refusal: bool },
    Other,
}

#[inline(always)]
pub fn kind_of<const N: usize>(kind: u8, code: u8) -> IcmpClass {
    match (N, kind) {
        (4, kind::ECHO_REQUEST4) | (16, kind::ECHO_REQUEST6) => IcmpClass::EchoRequest,
        (4, kind::UNREACHABLE4) => IcmpClass::Error { is_refusal: code != kind::TOO_BIG4 },
        (4, kind::TIME_EXCEEDED4 | kind::PARAMETER4) => IcmpClass::Error { is_refusal: false },
        (16, kind::UNREACHABLE6..=kind::PARAMETER6) => IcmpClass::Error { is_refusal: kind == kind::UNREACHABLE6 },
        _ => IcmpClass::Other,
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

/// [`TcStage::Icmp`]: answers an echo request, or reads what an error quotes.
#[inline(always)]
pub fn run<const N: usize>(skb: *mut __sk_buff) -> i32 {
    let Some(scratch) = maps::scratch::<N>() else { return NEXT };
    // SAFETY: reads the context.
    let mut tables = Kernel::at(skb.cast(), unsafe { (*skb).ifindex });
    let (work, message) = (&mut scratch.work, &mut scratch.icmp);
    let mut header = [0u8; ICMP_HEADER];
    if message.header + ICMP_HEADER as u32 > message.end || load(skb, message.header as usize, &mut header).is_err() {
        decide::malformed(&mut tables, work);
        return tail_call::tc::<N>(skb, TcStage::Verdict, NEXT);
    }
    let stage = match kind_of::<N>(header[0], header[1]) {
        IcmpClass::EchoRequest if echo::is_ours(&mut tables, work, scratch.point) => {
            return echo::answer(skb, work, message.header as usize, &header, scratch.point);
        }
        IcmpClass::EchoRequest | IcmpClass::Other => unrelated(&mut tables, scratch),
        IcmpClass::Error { is_refusal } => error(skb, &mut tables, scratch, &header, is_refusal),
    };
    tail_call::tc::<N>(skb, stage, NEXT)
}

/// Reads an error, and says which program goes on.
#[inline(always)]
fn error<const N: usize>(
    skb: *mut __sk_buff,
    tables: &mut Kernel,
    scratch: &mut Scratch<N>,
    header: &[u8; ICMP_HEADER],
    is_refusal: bool,
) -> TcStage {
    let (work, message) = (&mut scratch.work, &mut scratch.icmp);
    message.src = work.packet.key.src;
    message.dst = work.packet.key.dst;
    message.sum = [header[2], header[3]];
    let Some(sequence) = quoted_packet(skb, message, work) else {
        message.mtu = mtu_of::<N>(header);
        let is_outer = message.quoted != 0 && work.packet.key.protocol == outer_header::protocol::<N>();
        if is_outer && message.mtu != 0 && scratch.point.hook().has(Hook::FROM_OUTSIDE) && !work.is_chosen() {
            return TcStage::DsrIcmpOuter;
        }
        // Nothing that could be translated is quoted.
        work.packet.key.dst = message.dst;
        return unrelated(tables, scratch);
    };
    if !is_refusal || work.packet.key.protocol != TCP {
        return TcStage::IcmpVerdict;
    }
    decide::as_refusal(work, sequence);
    scratch.step = Step::Handshake;
    TcStage::Handshake
}

/// [`TcStage::IcmpVerdict`]: decides over an error about a connection, unless that was done for the refusal that it stands for.
#[inline(always)]
pub fn verdict<const N: usize>(skb: *mut __sk_buff) -> i32 {
    let Some(scratch) = maps::scratch::<N>() else { return NEXT };
    // SAFETY: reads the context.
    let mut tables = Kernel::at(skb.cast(), unsafe { (*skb).ifindex });
    let (point, work, message) = (scratch.point, &mut scratch.work, &scratch.icmp);
    let was_refusal = core::mem::replace(&mut work.packet.is_error, false);
    if !was_refusal || !decide::refused(work) {
        work.packet.tcp_flags = 0;
        decide::quoted(&mut tables, work, point.hook());
    }
    let stage = match work.verdict.action {
        action @ (Action::ToBackend | Action::ToClient) => {
            verdict::count(skb, work, point);
            // The sender of an error hears no error.
            scratch.transport = 0;
            let is_dsr = action == Action::ToBackend && work.verdict.port == 0;
            if is_dsr { TcStage::Encapsulate } else { TcStage::IcmpNat }
        }
        // The host's NAT translates it with what it quotes.
        Action::Pass if work.verdict.outcome == Outcome::Adopted => TcStage::Verdict,
        Action::Pass if work.verdict.outcome == Outcome::Passed && point.hook().has(Hook::FROM_OUTSIDE) => {
            TcStage::DsrIcmp
        }
        Action::Pass => {
            work.packet.key.dst = message.dst;
            unrelated(&mut tables, scratch)
        }
        Action::Refuse | Action::Drop => TcStage::Verdict,
    };
    tail_call::tc::<N>(skb, stage, DROP)
}

/// Reads the quoted packet; `work.packet` gets its tuple reversed. `None`: it quotes no packet with ports.
#[inline(always)]
pub fn quoted_packet<const N: usize>(
    skb: *mut __sk_buff,
    message: &mut IcmpMessage<N>,
    work: &mut Work<N>,
) -> Option<u32> {
    let key = &mut work.packet.key;
    message.quoted = 0;
    let extent = Extent::Quoted(message.end as usize);
    let headers = headers::network(skb, message.header as usize + ICMP_HEADER, extent, key).ok()?;
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

/// [`TcStage::IcmpNat`]: does as the verdict says: the error goes the way of the connection.
#[inline(always)]
pub fn translate<const N: usize>(skb: *mut __sk_buff) -> i32 {
    let Some(scratch) = maps::scratch::<N>() else { return DROP };
    let (point, work) = (scratch.point, &mut scratch.work);
    let turns_back = work.verdict.turns_back(&work.packet.key);
    let error = Error { skb, network: point.network(), message: &scratch.icmp };
    if error.rewrite(work).is_err() {
        return forward::lost();
    }
    if !work.verdict.route {
        return NEXT;
    }
    if turns_back {
        return forward::back(skb, point);
    }
    let key = &work.packet.key;
    forward::route(skb, (&key.src, &key.dst), key.protocol, work.packet.length, point)
}

/// An error under translation.
struct Error<'a, const N: usize> {
    skb: *mut __sk_buff,
    /// Where the network header begins.
    network: usize,
    message: &'a IcmpMessage<N>,
}

impl<const N: usize> Error<'_, N> {
    /// Writes the verdict into the quoted packet, reversed, and into the error's own header. The key gets the error's addresses as they
    /// are then.
    #[inline(always)]
    fn rewrite(&self, work: &mut Work<N>) -> Result<(), Refused> {
        let (skb, message) = (self.skb, self.message);
        let (key, verdict) = (&work.packet.key, &work.verdict);
        let to_backend = verdict.action == Action::ToBackend;
        let inner = message.header as usize + ICMP_HEADER;
        let source_at = if N == 4 { 12 } else { 8 };
        let old_ports = ports(key.dst_port, key.src_port);
        let new_ports = if to_backend {
            ports(verdict.port, verdict.client_port)
        } else {
            ports(verdict.client_port, verdict.port)
        };
        // The quoted packet has the opposite direction: its source is the destination of the error.
        let (new_src, new_dst) = ends(verdict);
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
        // The error's own addresses: it goes to where the quoted packet came from; it may be the other end's own, or a router's. A client that knows its
        // peer by another address may have no route to the router, or none that its filters believe. It gets the error from its peer's address, as
        // with Linux's own NAT.
        let network = self.network;
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
        store_summed(skb, message.header as usize + 2, &sum.to_be_bytes())
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

#[inline(always)]
fn ports(src: u16, dst: u16) -> [u8; 4] {
    let (src, dst) = (src.to_be_bytes(), dst.to_be_bytes());
    [src[0], src[1], dst[0], dst[1]]
}
