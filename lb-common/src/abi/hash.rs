//! Hashes of keys.

/// A number that tells one address from another.
#[inline(always)]
pub fn address_tag<const N: usize>(address: &[u8; N]) -> u32 {
    mix_address(0x1656_67b1, address)
}

#[inline(always)]
pub(super) fn mix_address<const N: usize>(hash: u32, address: &[u8; N]) -> u32 {
    mix_bytes(hash, address, 0, N)
}

/// Mixes the words of an address from one byte up to another one.
#[inline(always)]
pub(crate) const fn mix_bytes<const N: usize>(mut hash: u32, address: &[u8; N], from: usize, end: usize) -> u32 {
    let mut i = from;
    while i + 4 <= end {
        hash = mix(hash, u32::from_ne_bytes([address[i], address[i + 1], address[i + 2], address[i + 3]]));
        i += 4;
    }
    hash
}

#[inline(always)]
pub(crate) const fn mix(hash: u32, word: u32) -> u32 {
    let product = (hash ^ word).wrapping_mul(0x9e37_79b1);
    product ^ (product >> 15)
}
