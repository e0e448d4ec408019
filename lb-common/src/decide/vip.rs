//! Packets to an address of services that no frontend is for: ports refused, echo answered.
//!
//! Such an address is no node's own, so that nobody but us could answer; sent on, the packet would leave by the default route and
//! might come back by it.

use super::{Action, Hook, Tables, Work};
use crate::abi::{TCP, VipKey, vip_flags};
use crate::outcome::Outcome;
use crate::state;

/// Refuses a packet that would begin a flow, and whose destination no frontend has. `true`: the verdict stands.
///
/// Not for a port whose frontend does not serve this client, which is left alone. Later segments of TCP cost no look-up: whoever had no flow to
/// begin with sends none.
#[inline(always)]
pub(super) fn unserved<const N: usize, T: Tables<N>>(tables: &mut T, work: &mut Work<N>, hook: Hook) -> bool {
    let key = &work.packet.key;
    let begins = key.protocol != TCP || state::opens(work.packet.tcp_flags);
    if !begins || !hook.has(Hook::REQUESTS) || !is_unserved(tables, &key.dst) {
        return false;
    }
    work.settle(Action::Refuse, Outcome::RefusedUnserved);
    true
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
