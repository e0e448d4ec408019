//! Packets to an address of services that no frontend is for: ports refused, echo answered, and what no service has dropped.
//!
//! Such an address is no node's own, so that nobody but us could answer; sent on, the packet would leave by the default route and
//! might come back by it.

use super::packet::Hook;
use super::tables::Tables;
use super::work::Work;
use crate::abi::{TCP, VipKey, network_flags, vip_flags};
use crate::outcome::Outcome;
use crate::state;

/// Refuses a packet whose destination no frontend has. `true`: the verdict stands.
///
/// Not for a port whose frontend does not serve this client, which is left alone. Later segments of TCP cost no look-up at a client's own
/// link: a client without a flow to begin with sends none. Those that come from the wire, or leave by it, might go round.
#[inline(always)]
pub(super) fn unserved<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> bool {
    let key = &work.packet.key;
    let begins = key.protocol != TCP || state::opens(work.packet.tcp_flags);
    if !(begins || hook.has(Hook::FROM_OUTSIDE | Hook::ROUTED)) || !ends_here(tables, &key.dst, hook) {
        return unallocated(tables, work);
    }
    work.verdict.refuse(&work.packet, Outcome::RefusedUnserved);
    true
}

/// Drops a packet, of any kind, to an address of a service CIDR that no service has: by the default route it would leave the cluster.
/// `true`: the verdict stands. The source of the rule is kube-proxy's nftables mode, whose chain `cluster-ips-check` drops new connections
/// (`ct state new`) to addresses in the API's ServiceCIDRs (KEP-1880) that no service has.
#[inline(always)]
pub(super) fn unallocated<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>) -> bool {
    let address = &work.packet.key.dst;
    let is_nobodys = tables.may_be_in_service_cidr(address)
        && tables.vip(&VipKey { address: *address }).is_none()
        && tables.network(address) & network_flags::SERVICES != 0;
    if is_nobodys {
        work.verdict.drop(Outcome::DroppedNoService);
    }
    is_nobodys
}

/// Whether a packet to this address that nothing serves goes no further. One from the wire never does where the address is services': we
/// are who it was sent to, and by the routing table it would go back. A client of this node may reach the other ports of an external IP:
/// it may be somebody's own.
#[inline(always)]
pub(super) fn ends_here<const N: usize, T: Tables<N>>(tables: &mut T, address: &[u8; N], hook: Hook) -> bool {
    let any = hook.has(Hook::FROM_OUTSIDE);
    hook.has(Hook::REQUESTS) && if any { is_vip(tables, address) } else { is_unserved(tables, address) }
}

/// Whether a port that no frontend has is refused at this address.
#[inline(always)]
pub fn is_unserved<const N: usize, T: Tables<N>>(tables: &mut T, address: &[u8; N]) -> bool {
    has(tables, address, vip_flags::REFUSE_UNSERVED)
}

/// Whether an ICMP echo request to this address is answered in its name.
#[inline(always)]
pub fn echoes<const N: usize, T: Tables<N>>(tables: &mut T, address: &[u8; N]) -> bool {
    has(tables, address, vip_flags::ECHO)
}

/// Whether services are reached by this address, and no node has it.
#[inline(always)]
pub fn is_vip<const N: usize, T: Tables<N>>(tables: &mut T, address: &[u8; N]) -> bool {
    has(tables, address, vip_flags::ECHO | vip_flags::REFUSE_UNSERVED)
}

/// Whether the address has one of these flags.
#[inline(always)]
fn has<const N: usize, T: Tables<N>>(tables: &mut T, address: &[u8; N], flags: u32) -> bool {
    tables.vip(&VipKey { address: *address }).is_some_and(|vip| vip.flags & flags != 0)
}
