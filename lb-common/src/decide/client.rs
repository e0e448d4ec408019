//! Who asks for a service, and whether a frontend serves it.

use super::{Hook, Tables};
use crate::abi::{FlowKey, Service, frontend_kind, service_flags};

/// Who asks, as far as the hook can know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// A pod, at its own link: known by its address.
    Pod,
    /// A process in a socket call, when its address is not known yet: by the bit of [`Service::flags`] that admits it where source
    /// ranges are, 0 for none.
    Process(u8),
    /// Somebody outside, or a pod whose link has no program.
    Outside,
}

impl Client {
    /// The client of a packet at this hook.
    #[inline(always)]
    pub const fn at(hook: Hook) -> Self {
        if hook.has(Hook::FROM_CLIENT) { Self::Pod } else { Self::Outside }
    }
}

/// What a frontend is for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Served,
    /// No service here: the packet, or the call, is left as it is.
    NotServed,
    /// The client is in none of the service's source ranges.
    Denied,
}

/// Node ports, addresses of load balancers and external IPs serve clients inside only. Source ranges hold for whoever comes by a
/// frontend that has them, before it is asked whether the service has an endpoint.
#[inline(always)]
pub(super) fn admission<const N: usize, T: Tables<N>>(
    tables: &mut T,
    service: &Service,
    key: &FlowKey<N>,
    client: Client,
) -> Admission {
    let admitted = match client {
        // A cluster IP has no source ranges.
        Client::Outside if service.kind == frontend_kind::CLUSTER_IP => true,
        Client::Outside => return Admission::NotServed,
        _ if service.flags & service_flags::SOURCE_RANGES == 0 => true,
        Client::Process(bit) => service.flags & bit != 0,
        Client::Pod => tables.admitted(service.id, &key.src),
    };
    if admitted { Admission::Served } else { Admission::Denied }
}
