//! What the decision reads and writes.

use super::connection::Connection;
use super::pick::Pick;
use super::rate::Pace;
use super::work::Work;
use crate::abi::{
    Affinity, AffinityKey, Backend, BucketKey, Endpoint, EndpointKey, Flow, FlowKey, HalfOpen, Health, Service,
    ServiceKey, Slot, Vip, VipKey,
};
use crate::outcome::Outcome;
use crate::state::SourcePorts;

/// What the decision reads, and what it notes beside the connections. Implemented by the eBPF maps and by plain hash maps.
pub trait Tables<const N: usize> {
    /// Names a flow entry that was found, for [`FlowTables::touch`].
    type FlowRef: Copy;

    /// `CLOCK_MONOTONIC` in nanoseconds.
    fn now_ns(&mut self) -> u64;
    fn random(&mut self) -> u32;
    /// Copies the frontend under this key to `into`; `false`: there is none.
    fn service(&mut self, key: &ServiceKey<N>, into: &mut Service) -> bool;
    fn slot(&mut self, index: u32) -> Option<Slot>;
    fn backend(&mut self, id: u32) -> Option<Backend<N>>;
    /// Copies a backend's record to `into`; `false`: there is no such id.
    fn copy_backend(&mut self, id: u32, into: &mut Backend<N>) -> bool;
    /// Copies the entry under this key to its place in the connection ([`Connection::read`]).
    fn connection(&mut self, key: &FlowKey<N>, into: &mut Connection<N>) -> Option<Self::FlowRef>;
    /// Copies the entry under this key to `into`, its tag checked.
    fn flow(&mut self, key: &FlowKey<N>, into: &mut Flow<N>) -> Option<Self::FlowRef>;
    /// Whether a source range of this service port holds the address.
    fn admitted(&mut self, service: u32, address: &[u8; N]) -> bool;
    /// Whether the address is certainly no service's: of no frontend, and no other one that packets are refused at. `false`: it may be one.
    fn is_ruled_out(&mut self, address: &[u8; N]) -> bool;
    /// Whether the address may be in a service CIDR. `false`: it is in none.
    fn may_be_in_service_cidr(&mut self, address: &[u8; N]) -> bool;
    /// Whether there may be a half-open entry under this key.
    fn may_be_half_open(&mut self, key: &FlowKey<N>) -> bool;
    /// Whether there is a half-open entry under this key that is retained ([`crate::state::is_retained`]).
    fn is_retained(&mut self, key: &FlowKey<N>) -> bool;
    /// Copies the half-open entry under this key to `into`, its tag checked; `false`: there is none.
    fn half_open(&mut self, key: &FlowKey<N>, into: &mut HalfOpen<N>) -> bool;
    /// Takes one new flow from a bucket. `false`: there is none in it.
    fn take(&mut self, key: &BucketKey, pace: Pace) -> bool;
    /// A half-open flow was made.
    fn begun(&mut self, now_s: u32);
    /// A half-open flow has become an open one.
    fn opened(&mut self, now_s: u32);
    /// Whether half-open flows are made faster than their table holds them for [`crate::limits::HALF_OPEN_HELD_S`].
    fn is_flood(&mut self) -> bool;
    /// Whether that was so within [`crate::limits::AFTER_FLOOD_S`]: flows that were made by rule alone may have lost their entries.
    fn is_after_flood(&mut self) -> bool;
    /// Whether the adoption window is open: connections may be known to the host's NAT that were made before the node's first start.
    fn adopts(&mut self, now_s: u32) -> bool;
    /// Whether connections are given to another proxy, which gets all new ones.
    fn hands_over(&mut self) -> bool;
    /// What was seen of a backend; zeroes, if that was an earlier one of its id. `None`: there is no such id.
    fn health(&mut self, backend: u32, generation: u32) -> Option<Health>;
    /// Writes what was seen of a backend, but for its connections.
    fn set_health(&mut self, backend: u32, health: &Health);
    /// Adds to the connections of a backend; what an earlier one of its id had counts as zero.
    fn count_connection(&mut self, backend: u32, generation: u32, change: i32);
    /// Established connections that fit, of all clients.
    fn flow_room(&mut self) -> u32;
    /// The key of the hashes of [`crate::client_shares`].
    fn client_key(&mut self) -> u32;
    /// A counter of [`crate::client_shares`].
    fn client_share(&mut self, counter: u32) -> u32;
    /// Adds to it.
    fn count_client_share(&mut self, counter: u32, change: i32);
    /// The affinity of a client, its tag checked.
    fn affinity(&mut self, key: &AffinityKey<N>) -> Option<Affinity>;
    fn set_affinity(&mut self, key: &AffinityKey<N>, affinity: &Affinity);
    /// Looks at one slot in search of a backend, as [`try_slot`](super::try_slot) does: the programs call a function of their own.
    fn try_slot(&mut self, key: &FlowKey<N>, pick: &mut Pick<N>, how: u32, now_ds: u32) -> bool;
    /// As [`leaves_half`](super::leaves_half): the programs call a function of their own.
    fn leaves_half(&mut self, base: u32, count: u32, id: u32) -> bool;
    /// As [`note_tried`](super::note_tried): the programs call a function of their own.
    fn note_tried(&mut self, work: &mut Work<N>, now_ds: u32);
    /// As [`is_out`](super::is_out): the programs call a function of their own.
    fn is_out(&mut self, index: u32, id: u32) -> bool;
    /// The next number of a service port's turn (wrapping). Callers at the same moment may be given the same one.
    fn turn(&mut self, service: u32) -> u32;
    fn vip(&mut self, key: &VipKey<N>) -> Option<Vip>;
    /// What is known of a client's address: bits of [`crate::abi::network_flags`]; 0: nothing.
    fn network(&mut self, address: &[u8; N]) -> u32;
    /// Writes the address of this node that packets to `backend` are to come from, if they cannot come from the client, to `into`;
    /// `false`: there is none. `turn`: how many were tried in vain ([`crate::abi::Masquerade::address`]).
    fn masquerade(&mut self, backend: &[u8; N], turn: u32, into: &mut [u8; N]) -> bool;
    /// The backend of this node that another node has chosen.
    fn endpoint(&mut self, key: &EndpointKey<N>) -> Option<Endpoint>;
    fn source_ports(&mut self) -> SourcePorts;
    /// Index of the link that the packet is seen at.
    fn link(&mut self) -> u32 {
        0
    }
    /// The link to the backend ([`Flow::link`]), if packets of a new flow of the client at [`Tables::link`] may go there past the host's stack,
    /// and answers to the client's; else 0.
    fn fast_link(&mut self, _client: &[u8; N], _backend: &[u8; N]) -> u32 {
        0
    }
    /// Whether this answer may be handed over at the other end of the client's link ([`Flow::link`]) now.
    fn is_fast(&mut self, _link: u32, _protocol: u8) -> bool {
        false
    }
    /// Seconds without a packet after which a flow in this state is forgotten.
    fn timeout_s(&mut self, protocol: u8, state: u8) -> u32;
    /// This moment in ticks of [`crate::connect_times`]; 0: connect times are not measured.
    fn connect_clock(&mut self) -> u32 {
        0
    }
    /// Counts a connect time of a backend, in ticks.
    fn count_connect_time(&mut self, _backend: u32, _ticks: u32) {}
    /// Counts what the decision learnt about a backend beside its verdict.
    fn note(&mut self, backend: u32, outcome: Outcome);
    /// Whether the client (a local one) has a live TCP connection of its own whose answers have `work.connection.reply_key`.
    fn direct_connection(&mut self, work: &mut Work<N>) -> bool;
    /// Whether a socket of this node takes packets with `work.connection.reply_key`: a live TCP connection, or a bound UDP socket. No kernel
    /// has such a look-up for SCTP.
    fn node_socket(&mut self, work: &mut Work<N>) -> bool;
    /// Whether this node has sent the packet itself: it came by no link.
    fn is_from_node(&mut self) -> bool;
}

/// The writes to the flow tables. `commit` alone calls them.
pub trait FlowTables<const N: usize>: Tables<N> {
    /// Sets time, state and flags of an entry in place, if it still is the one with this tag.
    fn touch(&mut self, entry: Self::FlowRef, tag: u32, seen_s: u32, state: u8, flags: u8);
    /// Sets [`Flow::next`] and [`Flow::ack`] in place, as [`FlowTables::touch`] does.
    fn set_numbers(&mut self, entry: Self::FlowRef, tag: u32, next: u32, ack: u32);
    /// Sets [`Flow::fin`] in place, as [`FlowTables::touch`] does.
    fn set_fin(&mut self, entry: Self::FlowRef, tag: u32, fin: u8);
    /// Sets [`Flow::opposite_fin`] in place, as [`FlowTables::touch`] does.
    fn set_opposite_fin(&mut self, entry: Self::FlowRef, tag: u32, fin: u8);
    /// Writes an entry; without `replace` an existing one is left alone and refused.
    fn insert_flow(&mut self, key: &FlowKey<N>, flow: &Flow<N>, replace: bool) -> Result<(), NotInserted>;
    fn remove_flow(&mut self, key: &FlowKey<N>);
    /// Writes a half-open entry; without `replace` an existing one is left alone and refused.
    fn insert_half_open(&mut self, key: &FlowKey<N>, entry: &HalfOpen<N>, replace: bool) -> Result<(), NotInserted>;
    fn remove_half_open(&mut self, key: &FlowKey<N>);
    /// Notes in place, in a half-open entry of this backend, that its client has asked again: how often, and when. `false`: it is another
    /// backend's, or not there.
    fn ask_again(&mut self, key: &FlowKey<N>, backend: u32, segments: u8, now_s: u32) -> bool;
    /// Marks a half-open entry of this backend as answered in place, by these numbers ([`HalfOpen::answers`]). `false`: it is another
    /// backend's, or not there.
    fn mark_answered(&mut self, key: &FlowKey<N>, backend: u32, answers: [u32; 2]) -> bool;
    /// Sets [`HalfOpen::refused`] in place in a half-open entry of this backend.
    fn mark_refused(&mut self, key: &FlowKey<N>, backend: u32, refused: u8);
    /// Sets bits of [`HalfOpen::flags`] in place in a half-open entry of this backend.
    fn mark(&mut self, key: &FlowKey<N>, backend: u32, flags: u8);
    /// Makes what this CPU has written visible to others before it reads on.
    fn fence(&mut self);
    /// Reserves the reply tuple of a connection, as [`reserve`](super::reserve) does: the programs call a function of their own.
    fn reserve(&mut self, work: &mut Work<N>, port: u32, now_s: u32) -> Reserved;
    /// Notes an answer, as [`accept`](super::accept) does: the programs call a function of their own.
    fn accept(&mut self, work: &mut Work<N>, now_s: u32) -> Accepted;
    /// Establishes a connection, as [`establish`](super::establish) does: the programs call a function of their own.
    fn establish(&mut self, work: &mut Work<N>, link: u32, generation: u32, now_s: u32) -> Established;
    /// Keeps both entries alike or removes them, as [`keep_entries`](super::keep_entries) does: the programs call a function of their own.
    fn keep_entries(&mut self, work: &mut Work<N>, is_over: bool);
}

/// Why [`FlowTables::insert_flow`] wrote nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotInserted {
    Exists,
    Full,
}

/// What became of a reply tuple that was to be reserved.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// A live connection holds the tuple.
    Taken = 0,
    Yes,
    /// The table has no room for it.
    Full,
}

impl Reserved {
    /// From the number that crosses the border between two functions of the programs.
    #[inline(always)]
    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        match number {
            1 => Self::Yes,
            2 => Self::Full,
            _ => Self::Taken,
        }
    }
}

/// What an answer of the backend found.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// Noted in both entries, for the first time.
    First = 0,
    /// Noted in both entries once more.
    Again,
    /// The original entry is missing, and is to be restored.
    Missing,
    /// The connection is established already.
    Established,
    /// The tuple is another connection's, or the connection has another backend.
    Late,
    /// The table has no room for the claim.
    Full,
}

impl Accepted {
    /// From the number that crosses the border between two functions of the programs.
    #[inline(always)]
    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        match number {
            0 => Self::First,
            1 => Self::Again,
            2 => Self::Missing,
            3 => Self::Established,
            5 => Self::Full,
            _ => Self::Late,
        }
    }
}

/// What became of a handshake that was to become an established connection.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Established {
    Yes = 0,
    /// The tuple is another connection's by now.
    Late,
    /// The table has no room for it.
    Full,
}

impl Established {
    /// From the number that crosses the border between two functions of the programs.
    #[inline(always)]
    #[must_use]
    pub const fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Yes,
            1 => Self::Late,
            _ => Self::Full,
        }
    }
}
