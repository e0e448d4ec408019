//! The life of a flow and of a backend as one packet sees it: pure functions of state, event and time.

use crate::abi::{
    Backend, BackendState, Flow, LoadSettings, UDP, backend_flags, backend_state, fin, flow_flags, flow_state,
};
use crate::limits::{
    ADOPTED_TIMEOUT_S, LOCAL_PORT_FIRST, LOCAL_PORT_LAST, NODE_PORT_FIRST, NODE_PORT_LAST, REUSED_PORT_COUNT,
    REUSED_PORT_FIRST, SOURCE_PORT_COUNT, SOURCE_PORT_FIRST, TCP_CLOSING_TIMEOUT_S, TCP_HALF_OPEN_TIMEOUT_S,
    TCP_IDLE_TIMEOUT_S, TCP_OPEN_TIMEOUT_S, TUPLE_REST_S, UDP_REPLIED_TIMEOUT_S, UDP_STREAM_TIMEOUT_S,
    UDP_UNREPLIED_TIMEOUT_S,
};

/// TCP flag bits as they stand in the header's fourteenth byte (RFC 9293, section 3.1).
pub mod tcp_flag {
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
}

/// A TCP segment that opens a connection: SYN without ACK, RST or FIN.
#[inline(always)]
pub const fn opens(tcp_flags: u8) -> bool {
    tcp_flags & (tcp_flag::SYN | tcp_flag::ACK | tcp_flag::RST | tcp_flag::FIN) == tcp_flag::SYN
}

/// A TCP segment that accepts a connection: SYN and ACK, neither RST nor FIN.
#[inline(always)]
pub const fn accepts(tcp_flags: u8) -> bool {
    tcp_flags & (tcp_flag::FIN | tcp_flag::SYN | tcp_flag::RST | tcp_flag::ACK) == tcp_flag::SYN | tcp_flag::ACK
}

/// A TCP segment that ends a connection: FIN or RST.
#[inline(always)]
pub const fn closes(tcp_flags: u8) -> bool {
    tcp_flags & (tcp_flag::FIN | tcp_flag::RST) != 0
}

/// Seconds without a packet after which a flow is forgotten. Set when the programs are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    pub half_open_s: u32,
    /// TCP, open: while the table is more than half full. Before, it is at least [`TCP_IDLE_TIMEOUT_S`].
    pub open_s: u32,
    pub closing_s: u32,
    pub udp_unreplied_s: u32,
    pub udp_replied_s: u32,
    pub udp_stream_s: u32,
}

impl Timeouts {
    pub const DEFAULT: Self = Self {
        half_open_s: TCP_HALF_OPEN_TIMEOUT_S,
        open_s: TCP_OPEN_TIMEOUT_S,
        closing_s: TCP_CLOSING_TIMEOUT_S,
        udp_unreplied_s: UDP_UNREPLIED_TIMEOUT_S,
        udp_replied_s: UDP_REPLIED_TIMEOUT_S,
        udp_stream_s: UDP_STREAM_TIMEOUT_S,
    };

    /// As noted in the tables by who loaded the programs; the default where nothing is. While the tables have room ([`Self::with_room`]), as in the
    /// programs.
    pub const fn noted(settings: &LoadSettings) -> Self {
        const fn or(noted_s: u32, default_s: u32) -> u32 {
            if noted_s == 0 { default_s } else { noted_s }
        }
        let noted = Self {
            half_open_s: or(settings.half_open_s, Self::DEFAULT.half_open_s),
            open_s: or(settings.open_s, Self::DEFAULT.open_s),
            closing_s: or(settings.closing_s, Self::DEFAULT.closing_s),
            udp_unreplied_s: or(settings.udp_unreplied_s, Self::DEFAULT.udp_unreplied_s),
            udp_replied_s: or(settings.udp_replied_s, Self::DEFAULT.udp_replied_s),
            udp_stream_s: or(settings.udp_stream_s, Self::DEFAULT.udp_stream_s),
        };
        noted.with_room()
    }

    /// What is to be noted of these in the tables.
    pub const fn note(&self, flow_counters: bool, client_key: u32) -> LoadSettings {
        LoadSettings {
            half_open_s: self.half_open_s,
            open_s: self.open_s,
            closing_s: self.closing_s,
            udp_unreplied_s: self.udp_unreplied_s,
            udp_replied_s: self.udp_replied_s,
            udp_stream_s: self.udp_stream_s,
            flow_counters: flow_counters as u32,
            client_key,
        }
    }

    /// These, while the table of established connections has room.
    #[inline(always)]
    #[must_use]
    pub const fn with_room(self) -> Self {
        let open_s = if self.open_s < TCP_IDLE_TIMEOUT_S { TCP_IDLE_TIMEOUT_S } else { self.open_s };
        Self { open_s, ..self }
    }

    /// The one of a flow in this state. SCTP has those of TCP.
    #[inline(always)]
    #[must_use]
    pub const fn of(&self, protocol: u8, state: u8) -> u32 {
        match (protocol == UDP, state) {
            (false, flow_state::HALF_OPEN) => self.half_open_s,
            (false, flow_state::OPEN) => self.open_s,
            (false, _) => self.closing_s,
            (true, flow_state::STREAM) => self.udp_stream_s,
            (true, flow_state::OPEN) => self.udp_replied_s,
            (true, _) => self.udp_unreplied_s,
        }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The source ports of masqueraded and of translated flows. Set when the programs are loaded.
///
/// A port of the range is given away once its tuple has rested. If there is none, one of a few that rest will do. Of a tuple that was reused so, the
/// backend may still know the connection before: only packets to these few ports are looked up for it ([`Self::is_reused`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourcePorts {
    /// First port of the range that translated ports are taken from (`--snat-ports`).
    pub first: u16,
    /// How many it holds; not 0.
    pub count: u16,
    /// First of the ports that may be reused while their tuple rests: all of them are in the range, or may be kept ([`Self::keeps`]).
    pub reused_first: u16,
    /// How many these are; not 0.
    pub reused_count: u16,
    /// The ports that this node's kernel gives to its own sockets.
    pub local_first: u16,
    pub local_last: u16,
}

impl SourcePorts {
    pub const DEFAULT: Self = Self {
        first: SOURCE_PORT_FIRST,
        count: SOURCE_PORT_COUNT,
        reused_first: REUSED_PORT_FIRST,
        reused_count: REUSED_PORT_COUNT,
        local_first: LOCAL_PORT_FIRST,
        local_last: LOCAL_PORT_LAST,
    };

    /// A range of which the last ports may be reused while they rest.
    #[must_use]
    pub const fn of_range(first: u16, count: u16) -> Self {
        let reused_count = if count < REUSED_PORT_COUNT { count } else { REUSED_PORT_COUNT };
        let reused_first = first + (count - reused_count);
        Self { first, count, reused_first, reused_count, ..Self::DEFAULT }
    }

    /// How many ports these are.
    #[must_use]
    pub const fn total(&self) -> u16 {
        let is_within = self.reused_first.wrapping_sub(self.first) < self.count;
        if is_within { self.count } else { self.count + self.reused_count }
    }

    /// Whether a masqueraded flow may keep its client's port: not one that a socket of this node may take, or a frontend has.
    #[inline(always)]
    #[must_use]
    pub const fn keeps(&self, port: u16) -> bool {
        const FIRST_UNPRIVILEGED: u16 = 1024;
        port >= FIRST_UNPRIVILEGED
            && !(port >= self.local_first && port <= self.local_last)
            && !(port >= NODE_PORT_FIRST && port <= NODE_PORT_LAST)
    }

    /// Whether a masqueraded flow may have this port: its client's own one, or one of these.
    #[inline(always)]
    #[must_use]
    pub const fn may_have(&self, port: u16) -> bool {
        self.keeps(port) || port.wrapping_sub(self.first) < self.count
    }

    /// Whether the port may be reused while its tuple rests.
    #[inline(always)]
    #[must_use]
    pub const fn is_reused(&self, port: u16) -> bool {
        port.wrapping_sub(self.reused_first) < self.reused_count
    }

    /// A port of the range by any number, or one of those that may be reused.
    #[inline(always)]
    #[must_use]
    pub const fn pick(&self, number: u32, reuses: bool) -> u16 {
        let (first, count) = if reuses { (self.reused_first, self.reused_count) } else { (self.first, self.count) };
        first.wrapping_add((((number >> 16) * count as u32) >> 16) as u16)
    }
}

impl Default for SourcePorts {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Timeouts {
    /// The one of this flow. A direction that has ended, and has heard that the opposite one has, waits for nothing but a lost
    /// acknowledgement.
    #[inline(always)]
    #[must_use]
    pub const fn of_flow<const N: usize>(&self, protocol: u8, flow: &Flow<N>) -> u32 {
        if flow.state == flow_state::ADOPTED { ADOPTED_TIMEOUT_S } else { self.of(protocol, lasts_as(flow)) }
    }
}

/// The state whose timeout holds for the flow.
#[inline(always)]
#[must_use]
pub const fn lasts_as<const N: usize>(flow: &Flow<N>) -> u8 {
    if flow.fin == fin::ALL && flow.state < flow_state::CLOSING { flow_state::CLOSING } else { flow.state }
}

/// Whether a flow has been silent for longer than this.
#[inline(always)]
pub const fn expired<const N: usize>(flow: &Flow<N>, timeout_s: u32, now_s: u32) -> bool {
    now_s.wrapping_sub(flow.seen_s) > timeout_s && now_s > flow.seen_s
}

/// The state of an answered flow after a packet of its client: a UDP flow that asks again is a stream.
#[inline(always)]
pub const fn after_forward(state: u8, protocol: u8) -> u8 {
    if protocol == UDP && state == flow_state::OPEN { flow_state::STREAM } else { state }
}

/// Whether the entry is a client's, to a service, in the table of handshakes though its handshake is over.
#[inline(always)]
pub const fn is_retained<const N: usize>(flow: &Flow<N>) -> bool {
    flow.state != flow_state::HALF_OPEN && flow.flags & (flow_flags::REPLY | flow_flags::DIRECT) == 0
}

/// Whether the tuple of an ended connection is still kept from others.
#[inline(always)]
pub const fn rests<const N: usize>(flow: &Flow<N>, now_s: u32) -> bool {
    flow.state == flow_state::CLOSING && !expired(flow, TUPLE_REST_S, now_s)
}

/// Whether a flow no longer needs its tuple: it is over, or nobody remembers it.
#[inline(always)]
pub const fn yields<const N: usize>(flow: &Flow<N>, timeout_s: u32, now_s: u32) -> bool {
    flow.state == flow_state::CLOSING || expired(flow, timeout_s, now_s)
}

/// Whether this limit of a backend is reached. Both limits are in the table, so they hold with the agent dead.
#[inline(always)]
const fn is_reached(limit_ds: u32, now_ds: u32) -> bool {
    limit_ds != 0 && now_ds >= limit_ds
}

/// Whether established connections of TCP and SCTP may still be forwarded to this backend, as long as it answers them.
#[inline(always)]
pub const fn lasts<const N: usize>(backend: &Backend<N>, now_ds: u32) -> bool {
    backend.state != backend_state::FREE
        && backend.state != backend_state::GONE
        && !is_reached(backend.deadline_ds, now_ds)
}

/// Whether the drain period of its backend ends the flow, not the eviction deadline: a handshake, UDP, or a connection that is encapsulated on its
/// way here or from here. Of that one this node, or the other one, does not see the backend's answers.
#[inline(always)]
pub const fn ends_with_drain_period<const N: usize>(protocol: u8, flow: &Flow<N>) -> bool {
    let is_encapsulated = flow.port == 0 || flow.flags & flow_flags::ENCAPSULATED != 0;
    protocol == UDP || flow.state == flow_state::HALF_OPEN || is_encapsulated
}

/// Whether any flow may still be forwarded to this backend: its drain period is not over.
#[inline(always)]
pub const fn keeps_flows<const N: usize>(backend: &Backend<N>, now_ds: u32) -> bool {
    lasts(backend, now_ds) && !is_reached(backend.drain_ds, now_ds)
}

/// Whether a new flow may be sent to this backend: one that is in no set takes none, whatever slots still lead to it.
#[inline(always)]
pub const fn takes_flows<const N: usize>(backend: &Backend<N>, now_ds: u32) -> bool {
    const IN_SETS: u8 = backend_flags::IN_CLUSTER_SET | backend_flags::IN_LOCAL_SET;
    backend.flags & IN_SETS != 0 && keeps_flows(backend, now_ds)
}

/// Whether a UDP flow should leave this backend at its next packet (it has no connection that would break).
#[inline(always)]
pub const fn udp_moves<const N: usize>(backend: &Backend<N>) -> bool {
    match BackendState::from_number(backend.state) {
        Some(BackendState::Draining) => true,
        Some(BackendState::Unready | BackendState::Terminating) => backend.flags & backend_flags::SERVING == 0,
        Some(BackendState::Free | BackendState::Active | BackendState::Maintenance | BackendState::Gone) | None => {
            false
        }
    }
}
