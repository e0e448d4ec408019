//! The Internet checksum by its difference (RFC 1624), for hooks where the kernel has no helper for it, and in full for
//! packets that we make ourselves (RFC 1071).

/// Adds the 16-bit words of `bytes` (network order, an odd last byte padded with 0) to a running sum.
#[inline(always)]
pub const fn add<const N: usize>(mut sum: u32, bytes: &[u8; N]) -> u32 {
    let mut i = 0;
    while i + 1 < N {
        sum += (bytes[i] as u32) << 8 | bytes[i + 1] as u32;
        i += 2;
    }
    if i < N {
        sum += (bytes[i] as u32) << 8;
    }
    sum
}

/// Folds a running sum to 16 bits. Four folds are enough for any 32-bit sum; two would do, the rest costs nothing.
#[inline(always)]
pub const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    sum as u16
}

/// The checksum after some words of what it covers changed: `!(!checksum + !old + new)`.
///
/// `old` and `new` are running sums of the words before and after (by [`add`]), folded by this function.
#[inline(always)]
pub const fn replace(checksum: u16, old: u32, new: u32) -> u16 {
    !fold((!checksum) as u32 + (!fold(old)) as u32 + fold(new) as u32)
}
