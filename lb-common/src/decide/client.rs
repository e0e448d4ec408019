//! Who asks for a service, whether a frontend serves it, and from which of its sets.

use super::packet::Hook;
use super::tables::Tables;
use super::vip::is_vip;
use crate::abi::{FlowKey, Service, frontend_kind, network_flags, service_flags};

/// Who asks, as far as the hook can know.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// A pod or a process of this node: what answers it passes here by itself.
    Near = 0,
    /// A pod of another node: in the cluster for cluster IPs, outside for everything else.
    Pod,
    /// Somebody outside.
    Outside,
    /// A process of another node, which is outside in all but one: what it asks for must not come to its own node under its own address.
    Peer,
    /// Nobody: packets with this source cannot come from the wire.
    Martian,
}

impl Client {
    /// Whether the client as a number, of [`Pick`](super::Pick), is no pod and no process of this node.
    #[inline(always)]
    pub(super) const fn is_outside(client: u32) -> bool {
        client >= Self::Outside as u32
    }
}

/// Who asks, before anything was looked up about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// Who sends a packet that is seen at this hook.
    Packet(Hook),
    /// A process in a socket call, when its address is not known yet: by the bit of [`Service::flags`] that admits it where source
    /// ranges are, 0 for none.
    Process(u8),
}

impl Asker {
    #[inline(always)]
    pub(super) fn client<const N: usize, T: Tables<N>>(self, tables: &mut T, address: &[u8; N]) -> Client {
        match self {
            Self::Packet(hook) if hook.has(Hook::FROM_OUTSIDE) => from_outside(tables, address),
            Self::Packet(_) | Self::Process(_) => Client::Near,
        }
    }
}

/// Whose address this is, where it comes from the wire.
#[inline(never)]
fn from_outside<const N: usize, T: Tables<N>>(tables: &mut T, address: &[u8; N]) -> Client {
    let network = tables.network(address);
    if network & network_flags::NODE != 0 || is_loopback(address) || is_vip(tables, address) {
        Client::Martian
    } else if network & network_flags::PODS != 0 {
        Client::Pod
    } else if network & network_flags::PEER != 0 {
        Client::Peer
    } else {
        Client::Outside
    }
}

/// 127.0.0.0/8 and `::1` (RFC 1122, section 3.2.1.3; RFC 4291, section 2.5.3).
#[inline(never)]
pub(super) const fn is_loopback<const N: usize>(address: &[u8; N]) -> bool {
    if N == 4 {
        return address[0] == 127;
    }
    // One comparison, so that the verifier sees one branch. A function of its own: off the stack of those that ask.
    let (mut other, mut i) = (address[N - 1] ^ 1, 0);
    while i < N - 1 {
        other |= address[i];
        i += 1;
    }
    other == 0
}

/// Whether the service admits the client. Source ranges hold for every client of a frontend that has them, before it is asked whether
/// the service has an endpoint.
#[inline(always)]
pub(super) fn admits<const N: usize, T: Tables<N>>(
    tables: &mut T,
    service: &Service,
    key: &FlowKey<N>,
    asker: Asker,
) -> bool {
    match asker {
        _ if service.flags & service_flags::SOURCE_RANGES == 0 => true,
        Asker::Process(bit) => service.flags & bit != 0,
        Asker::Packet(_) => tables.admitted(service.id, &key.src),
    }
}

/// Makes the set that serves external clients the service's first one, where the client is one of these. For the external policy only this
/// node's own pods and processes are internal, as upstream e2e checks.
#[inline(always)]
pub(super) fn serve_from(service: &mut Service, client: Client) {
    // A cluster IP has one set for all.
    if client == Client::Near || service.kind == frontend_kind::CLUSTER_IP {
        return;
    }
    service.slot_base = service.external_base;
    service.slot_count = service.external_count;
    let flags = service.flags;
    let local = flags & service_flags::OUTSIDE_LOCAL != 0;
    let drops = flags & service_flags::DROP_OUTSIDE_IF_EMPTY != 0;
    service.flags = flags & !(service_flags::INSIDE_LOCAL | service_flags::DROP_IF_EMPTY)
        | if local { service_flags::INSIDE_LOCAL } else { 0 }
        | if drops { service_flags::DROP_IF_EMPTY } else { 0 };
}
