//! Services: frontends, their slots and names.

use super::hash::{mix, mix_address};
use super::sizes::sizes;
use crate::numbered::numbered;

/// Key of `services4` / `services6`: one frontend.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceKey<const N: usize> {
    pub address: [u8; N],
    pub port: u16,
    pub protocol: u8,
    pub pad: u8,
}

/// Value of `services4` / `services6`: the one entry whose replacement makes an update visible.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Service {
    /// Id of the service port, the key of `names`. Several frontends share it. Never 0.
    pub id: u32,
    /// Changes with every new slot range; the slots of both ranges carry the same number.
    pub generation: u32,
    /// First slot of the set that serves internal clients: pods and processes of this node.
    pub slot_base: u32,
    /// How many slots. 0: no endpoint, refuse (or drop, see [`service_flags::DROP_IF_EMPTY`]).
    pub slot_count: u32,
    /// First slot of the set that serves everybody else, pods of other nodes too; for a cluster IP the same set.
    pub external_base: u32,
    /// How many slots. 0: no endpoint, refuse (or drop, see [`service_flags::DROP_OUTSIDE_IF_EMPTY`]).
    pub external_count: u32,
    /// [`seal`] of the key and the fields above: a reader that sees another one met a recycled element or half a write.
    pub seal: u32,
    /// Seconds of client affinity; 0: none.
    pub affinity_timeout_s: u32,
    /// [`Scheduler`] as a number.
    pub scheduler: u8,
    /// [`service_flags`].
    pub flags: u8,
    /// [`FrontendKind`] as a number.
    pub kind: u8,
    pub pad: u8,
    /// New flows in a second that each network of external clients may make, on average; 0: any number.
    pub rate: u32,
    /// How many of them may come at once. With [`Service::rate`] at least 1.
    pub burst: u32,
}

impl Service {
    /// All zeroes: no service.
    // SAFETY: plain numbers.
    pub const NONE: Self = unsafe { core::mem::zeroed() };
}

/// Bits of [`Service::flags`].
pub mod service_flags {
    /// Endpoints exist, but none that clients inside may use (`internalTrafficPolicy: Local`): drop instead of refuse.
    pub const DROP_IF_EMPTY: u8 = 1;
    /// Endpoints exist, but none that external clients may use (`externalTrafficPolicy: Local`): drop instead of refuse.
    pub const DROP_OUTSIDE_IF_EMPTY: u8 = 2;
    /// Only clients in `sources4` / `sources6` may pass (`loadBalancerSourceRanges`).
    pub const SOURCE_RANGES: u8 = 4;
    /// With [`SOURCE_RANGES`]: an address of this node is among them, so its own processes may pass.
    pub const NODE_ALLOWED: u8 = 8;
    /// `externalTrafficPolicy: Local`: an external client keeps its address.
    pub const OUTSIDE_LOCAL: u8 = 16;
    /// Connections that nobody answers stay with their backend, and refusals are passed at once.
    pub const NO_RETRY: u8 = 32;
    /// Clients inside are served by the endpoints of this node alone (`internalTrafficPolicy: Local`).
    pub const INSIDE_LOCAL: u8 = 64;
    /// Direct server return: packets of external clients go whole to the backend's node, in an outer header, and are answered from there.
    pub const DSR: u8 = 128;
}

numbered! {
    /// What a frontend is: [`Service::kind`].
    FrontendKind: u8, frontend_kind {
        ClusterIp, CLUSTER_IP = 0, "ClusterIP";
        ExternalIp, EXTERNAL_IP = 1, "ExternalIP";
        LoadBalancer, LOAD_BALANCER = 2, "LoadBalancer";
        NodePort, NODE_PORT = 3, "NodePort";
        /// A node port as sockets of the node's own processes see it, by no packet: loopback leads to it, and nobody may bind it. Its
        /// address is the unspecified one, and stands for all of the node's.
        HostSocket, HOST_SOCKET = 4, "HostSocket";
    }
}

/// Value of `slots`: one position in a service's range.
///
/// A range may be written again while a reader is between its two words of eight bytes, which the kernel copies one by one. Each word has a field
/// that identifies the range, so that no mix of two passes for one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Id of the backend: the index into `backends4` / `backends6`. Never 0 in a range.
    pub backend: u32,
    /// Generation of the range, as in [`Service::generation`].
    pub generation: u32,
    /// Id of the service port that the range belongs to.
    pub service: u32,
    /// The backend's generation when the slot was written.
    pub backend_generation: u32,
}

/// Value of `names`, by service port id. Text is NUL-terminated; `i8` is shown as text by `bpftool`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServiceName {
    pub namespace: [i8; 64],
    pub name: [i8; 64],
    pub port_name: [i8; 16],
    pub port: u16,
    pub protocol: u8,
    pub pad: u8,
}

/// A number that changes with every byte of a frontend and of its slot range.
///
/// Hash elements are recycled without a grace period, so a pointer held across a recycle may show another frontend's value, or
/// half of each. A reader copies the value, computes this over its copy and its own key, and looks up again on a mismatch.
#[inline(always)]
pub fn seal<const N: usize>(key: &ServiceKey<N>, service: &Service) -> u32 {
    let mut hash = mix_address(0x9e37_79b9, &key.address);
    hash = mix(hash, (key.port as u32) << 16 | key.protocol as u32);
    hash = mix(hash, service.id);
    hash = mix(hash, service.generation);
    hash = mix(hash, service.slot_base);
    hash = mix(hash, service.slot_count);
    hash = mix(hash, service.external_base);
    hash = mix(hash, service.external_count);
    // What decides over admission must not come from another entry either.
    hash = mix(hash, (service.flags as u32) << 8 | service.kind as u32);
    hash = mix(hash, service.rate);
    mix(hash, service.burst)
}

sizes! {
    ServiceKey<N> = 8 | 20,
    Service = 44,
    Slot = 16,
    ServiceName = 148,
}
