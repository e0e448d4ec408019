//! Host sockets that were translated at connect.

use super::sizes::sizes;

/// Key of `sockets4` / `sockets6`: a host socket and the address that it knows or that answers it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketKey<const N: usize> {
    pub cookie_low: u32,
    pub cookie_high: u32,
    pub address: [u8; N],
    pub port: u16,
    pub protocol: u8,
    /// [`socket_direction`].
    pub direction: u8,
}

/// Values of [`SocketKey::direction`].
pub mod socket_direction {
    /// The key holds the service's address; the value the backend's.
    pub const FORWARD: u8 = 0;
    /// The key holds the backend's address; the value the service's.
    pub const REPLY: u8 = 1;
}

/// Value of `sockets4` / `sockets6`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketPeer<const N: usize> {
    pub address: [u8; N],
    pub port: u16,
    pub pad: u16,
    pub backend: u32,
    pub backend_generation: u32,
    pub service: u32,
}

/// How many pairs of addresses a socket's own record names. A socket that uses more leaves entries to the LRU maps' own eviction.
pub const SOCKET_PAIRS: usize = 8;

/// Value of `socket_entries`, the storage of one socket: which entries of `sockets4` and `sockets6` go with it when it is closed.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketEntries {
    pub pairs: [SocketPair; SOCKET_PAIRS],
    /// How many were noted so far; the next one stands at this number modulo [`SOCKET_PAIRS`].
    pub noted: u32,
    pub pad: u32,
}

/// The keys of a socket's two entries. IPv4 addresses stand in the first word.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketPair {
    /// What the process asked for: the key of the forward entry.
    pub service: [u32; 4],
    /// What it got: the key of the reply entry.
    pub backend: [u32; 4],
    pub service_port: u16,
    pub backend_port: u16,
    pub protocol: u8,
    /// 4 or 6; 0: none.
    pub family: u8,
    pub pad: u16,
}

sizes! {
    SocketKey<N> = 16 | 28,
    SocketPeer<N> = 20 | 32,
    SocketEntries = 328,
    SocketPair = 40,
}
