//! Ping to an address of services: answered in its name. The request itself becomes the answer.

use aya_ebpf::bindings::__sk_buff;
use lb_common::checksum;
use lb_common::decide::{self, Hook, Work};
use lb_common::outcome::Outcome;

use crate::counters::{self, Counter};
use crate::kernel::Kernel;
use crate::nat::Refused;
use crate::scratch::AttachPoint;
use crate::tc::forward::{self, DROP};
use crate::tc::skb::{load, resum, store_summed};
use lb_common::parse::{HOPS, ICMP_HEADER};

/// Type of an echo reply (RFC 792), and of one of ICMPv6 (RFC 4443, section 4.2).
const REPLY4: u8 = 0;
const REPLY6: u8 = 129;

/// Whether an echo request is to an address of services.
#[inline(always)]
pub fn is_ours<const N: usize>(tables: &mut Kernel, work: &Work<N>, point: AttachPoint) -> bool {
    point.hook().has(Hook::REQUESTS) && decide::echoes(tables, &work.packet.key.dst)
}

/// Answers an echo request, if this CPU may.
#[inline(always)]
pub fn answer<const N: usize>(
    skb: *mut __sk_buff,
    work: &Work<N>,
    transport: usize,
    header: &[u8; ICMP_HEADER],
    point: AttachPoint,
) -> i32 {
    if !counters::may_answer(Outcome::EchoReplied) {
        return DROP;
    }
    if turn(skb, work, transport, header, point.network()).is_err() {
        return forward::lost();
    }
    counters::outcome(Outcome::EchoReplied, Counter::Packet);
    forward::back(skb, point)
}

/// Addresses trade places, which no sum notices; the type changes, and the hop limit begins anew.
#[inline(always)]
fn turn<const N: usize>(
    skb: *mut __sk_buff,
    work: &Work<N>,
    transport: usize,
    header: &[u8; ICMP_HEADER],
    network: usize,
) -> Result<(), Refused> {
    let key = &work.packet.key;
    let kind = [if N == 4 { REPLY4 } else { REPLY6 }, header[1]];
    let old = [header[0], header[1]];
    let sum =
        checksum::replace(u16::from_be_bytes([header[2], header[3]]), checksum::add(0, &old), checksum::add(0, &kind));
    store_summed(skb, transport, &[kind[0], kind[1], sum.to_be_bytes()[0], sum.to_be_bytes()[1]])?;
    let source_at = network + if N == 4 { 12 } else { 8 };
    store_summed(skb, source_at, &key.dst)?;
    store_summed(skb, source_at + N, &key.src)?;
    if N == 4 {
        let mut hops = [0u8; 2];
        load(skb, network + 8, &mut hops)?;
        resum(skb, network + 10, checksum::add(0, &hops), checksum::add(0, &[HOPS, hops[1]]))?;
        store_summed(skb, network + 8, &[HOPS])
    } else {
        store_summed(skb, network + 7, &[HOPS])
    }
}
