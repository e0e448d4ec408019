//! Node ports as the node's own sockets meet them: at any of its addresses, and taken when a process wants to bind them.

use super::client::{Asker, is_loopback};
use super::frontend::frontend;
use super::tables::Tables;
use crate::abi::{Service, ServiceKey, frontend_kind};

/// Whether this is the address that a process asks for when it means its own node: a loopback one, or none (which the kernel takes
/// for loopback).
#[inline(always)]
pub const fn is_this_node<const N: usize>(address: &[u8; N]) -> bool {
    is_loopback(address) || is_unspecified(address)
}

/// `0.0.0.0` and `::`.
#[inline(never)]
pub const fn is_unspecified<const N: usize>(address: &[u8; N]) -> bool {
    // One comparison, so that the verifier sees one branch. A function of its own: off the stack of those that ask.
    let (mut any, mut i) = (0, 0);
    while i < N {
        any |= address[i];
        i += 1;
    }
    any == 0
}

/// `127.0.0.1` and `::1`.
#[inline(always)]
pub const fn loopback<const N: usize>() -> [u8; N] {
    let mut address = [0; N];
    if N == 4 {
        address[0] = 127;
    }
    address[N - 1] = 1;
    address
}

/// Whether the frontend serves this client: a frontend of the node's sockets serves no packet.
#[inline(always)]
pub(super) fn serves(service: &Service, asker: Asker) -> bool {
    service.kind != frontend_kind::HOST_SOCKET || matches!(asker, Asker::Process(_))
}

/// The service whose node port this is, by its id; 0: it is none.
#[inline(always)]
pub fn node_port<const N: usize, T: Tables<N>>(tables: &mut T, key: &ServiceKey<N>, into: &mut Service) -> u32 {
    let is_one =
        frontend(tables, key, into) && matches!(into.kind, frontend_kind::NODE_PORT | frontend_kind::HOST_SOCKET);
    if is_one { into.id } else { 0 }
}
