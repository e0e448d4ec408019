//! The records in the maps: every key and value, `repr(C)`, explicit padding, sizes asserted.
//!
//! Addresses are bytes in network order, as they stand in a packet. Ports are numbers in host order, so that
//! `bpftool map dump` shows 80 as 80; `packet` converts at the edge. No bool, enum or Option crosses: only plain numbers.
//! Keys are aligned to words: BPF has no unaligned access that the compiler would trust, and copies byte by byte otherwise.
//! Times are `CLOCK_MONOTONIC` (what `bpf_ktime_get_ns` reads, and `bpf_ktime_get_coarse_ns` as of the last tick), never the wall clock.
//!
//! A change of any record here is a change of [`ABI_VERSION`].

mod backend;
mod client;
mod flow;
mod handshake;
pub(crate) mod hash;
pub mod map_name;
mod network;
mod report;
mod schedulers;
mod service;
pub(crate) mod sizes;
mod socket;

pub use backend::*;
pub use client::*;
pub use flow::*;
pub use handshake::*;
pub use hash::address_tag;
pub use network::*;
pub use report::*;
pub use schedulers::*;
pub use service::*;
pub use socket::*;

/// Version of everything in this module; compared before any pinned map is reused.
pub const ABI_VERSION: u32 = 13;

/// Bytes of an IPv4 address.
pub const V4: usize = 4;
/// Bytes of an IPv6 address.
pub const V6: usize = 16;

/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;
/// IP protocol number of SCTP.
pub const SCTP: u8 = 132;
