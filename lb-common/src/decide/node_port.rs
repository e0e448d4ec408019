//! Node ports as the node's own sockets meet them: at any of its addresses, and taken when a process wants to bind them.

use super::client::is_loopback;
use super::select::is_whole;
use super::{Asker, Tables};
use crate::abi::{Service, ServiceKey, frontend_kind};
use crate::limits::SERVICE_LOOKUPS;

/// Whether this is the address that a process asks for when it means its own node: a loopback one, or none (which the kernel takes
/// for loopback).
#[inline(always)]
pub const fn is_this_node<const N: usize>(address: &[u8; N]) -> bool {
    is_loopback(address) || is_unspecified(address)
}

/// `0.0.0.0` and `::`.
#[inline(always)]
pub const fn is_unspecified<const N: usize>(address: &[u8; N]) -> bool {
    let mut i = 0;
    while i < N {
        if address[i] != 0 {
            return false;
        }
        i += 1;
    }
    true
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

/// Whether the frontend serves whoever asks: one of the node's sockets is for no packet.
#[inline(always)]
pub(super) fn serves(service: &Service, asker: Asker) -> bool {
    service.kind != frontend_kind::HOST_SOCKET || matches!(asker, Asker::Process(_))
}

/// The service whose node port this is, by its id; 0: it is none.
#[inline(always)]
pub fn node_port<const N: usize, T: Tables<N>>(tables: &mut T, key: &ServiceKey<N>, into: &mut Service) -> u32 {
    for _ in 0..SERVICE_LOOKUPS {
        if !tables.service(key, into) {
            return 0;
        }
        if is_whole(key, into) {
            let is_one = matches!(into.kind, frontend_kind::NODE_PORT | frontend_kind::HOST_SOCKET);
            return if is_one { into.id } else { 0 };
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_means_its_own_node_by_loopback_or_by_no_address() {
        let mut one = [0; 16];
        one[15] = 1;
        for own in [[127, 0, 0, 1], [127, 255, 0, 9], [0; 4]] {
            assert!(is_this_node(&own), "{own:?}");
        }
        assert!(is_this_node(&one) && is_this_node(&[0; 16]));
        one[0] = 0xfd;
        assert!(!is_this_node(&one) && !is_this_node(&[10, 0, 0, 1]) && !is_this_node(&[0, 0, 0, 1]));
        assert_eq!((loopback::<4>(), loopback::<16>()[15]), ([127, 0, 0, 1], 1));
    }
}
