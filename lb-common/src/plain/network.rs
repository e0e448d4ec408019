//! Networks of addresses.

/// Whether the network of so many bits holds the address.
pub(super) fn holds<const N: usize>(network: &[u8; N], bits: u32, address: &[u8; N]) -> bool {
    let bit = |address: &[u8; N], at: u32| address[at as usize / 8] >> (7 - at % 8) & 1;
    (0..bits).all(|at| bit(network, at) == bit(address, at))
}
