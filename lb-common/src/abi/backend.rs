//! Backends: the endpoints of service ports, and what the programs have seen of them.

use super::sizes::sizes;
use crate::numbered::numbered;

/// Value of `backends4` / `backends6`: one endpoint of one service port. Index 0 is never used.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Backend<const N: usize> {
    pub address: [u8; N],
    pub port: u16,
    /// [`BackendState`] as a number.
    pub state: u8,
    /// [`backend_flags`].
    pub flags: u8,
    /// Changes each time the id is given to another backend, and when the backend is gone. Never 0 once used.
    pub generation: u32,
    /// Id of the service port.
    pub service: u32,
    /// The eviction deadline: when its last connections end, in tenths of a second of `CLOCK_MONOTONIC`; 0: never. Not before
    /// [`Self::drain_ds`].
    pub deadline_ds: u32,
    /// When its drain period ends, by the same clock; 0: it does not drain. From then on only established connections of TCP and SCTP go on,
    /// as long as it answers them.
    pub drain_ds: u32,
    /// Hash of the pod's UID, so that an address that comes back as another pod is known as a new backend. 0: no UID known.
    pub uid_hash: u32,
    pub weight: u16,
    pub pad: u16,
}

numbered! {
    /// Where a backend is in its life: [`Backend::state`].
    BackendState: u8, backend_state {
        /// The id is not in use.
        Free, FREE = 0, "free";
        /// Takes new flows.
        Active, ACTIVE = 1, "active";
        /// In the API, not ready: no new flows.
        Unready, UNREADY = 2, "unready";
        /// In the API, terminating: no new flows.
        Terminating, TERMINATING = 3, "terminating";
        /// Gone from every slice: its established connections stay until the eviction deadline, as long as it answers.
        Draining, DRAINING = 4, "draining";
        /// Taken out by hand: no new flows.
        Maintenance, MAINTENANCE = 5, "maintenance";
        /// Past the eviction deadline, or replaced by another pod: nothing is forwarded any more.
        Gone, GONE = 6, "gone";
    }
}

/// Bits of [`Backend::flags`].
pub mod backend_flags {
    /// The endpoint is on this node: the API says so, or its address is one of this node's.
    pub const LOCAL: u8 = 1;
    /// The endpoint serves (EndpointSlice condition `serving`): UDP flows may stay while it rests or terminates.
    pub const SERVING: u8 = 2;
    /// Its active checks fail: no new flows, no probe.
    pub const UNHEALTHY: u8 = 4;
    /// It takes new flows of the set of the whole cluster.
    pub const IN_CLUSTER_SET: u8 = 8;
    /// It takes new flows of this node's set.
    pub const IN_LOCAL_SET: u8 = 16;
}

/// Key of `endpoints4` / `endpoints6`: a backend of this node, as the node that chose it names it.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointKey<const N: usize> {
    pub address: [u8; N],
    /// Id of the service port.
    pub service: u32,
}

/// Value of `endpoints4` / `endpoints6`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Id of the backend.
    pub backend: u32,
    /// The backend's generation.
    pub generation: u32,
}

/// Value of `health4` / `health6`, by backend id: what the programs have seen of a backend. Written by the programs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Health {
    /// The backend's generation; with another one, all of this is about an earlier backend and counts as zero.
    pub generation: u32,
    /// When it last answered a flow's first packet, seconds of `CLOCK_MONOTONIC`; 0: never.
    pub answered_s: u32,
    /// Since when it is ejected: two clients have evidence against it; 0: it is not.
    pub ejected_s: u32,
    /// When a new flow was last sent there to see whether it answers again.
    pub probe_s: u32,
    /// UDP: the first new flow since it last answered one, and those that other clients than [`evidence_client`](Health::evidence_client) began since.
    pub unanswered: u32,
    /// Connections counted for [`scheduler::LEAST_CONNECTIONS`]; recounted by the agent.
    pub connections: u32,
    /// A hash of the client whose evidence there is: the backend left its connection unanswered, or refused it, and another one answered it.
    /// UDP: the client that asked first since the backend last answered. 0: there is none.
    pub evidence_client: u32,
    /// Since when there is that evidence; it counts for [`EVIDENCE_S`](crate::limits::EVIDENCE_S).
    pub evidence_s: u32,
}

sizes! {
    Backend<N> = 32 | 44,
    EndpointKey<N> = 8 | 20,
    Endpoint = 8,
    Health = 32,
}
