//! SCTP's checksum (CRC32c, RFC 9260, appendix A) by its difference: what it becomes when the header's first word changes.
//!
//! A CRC is linear: that of two messages of one length differs by that of their difference, which here is a word followed by
//! zeroes. A zero byte multiplies the polynomial by x⁸, so *n* of them by x⁸ⁿ, put together from the powers of two in *n*.

/// The polynomial, bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;
/// The polynomial 1.
const ONE: u32 = 1 << 31;
/// How many bits a packet's length has.
const LENGTH_BITS: usize = 16;

/// x⁸ to the powers of two.
const POWERS: [u32; LENGTH_BITS] = {
    // x⁸
    let mut powers = [ONE >> 8; LENGTH_BITS];
    let mut i = 1;
    while i < LENGTH_BITS {
        powers[i] = multiply(powers[i - 1], powers[i - 1]);
        i += 1;
    }
    powers
};

/// Product of two polynomials modulo the polynomial. Branches on no data: a verifier walks it once.
#[inline(always)]
const fn multiply(one: u32, mut other: u32) -> u32 {
    let mut product = 0;
    let mut bit = 0;
    while bit < 32 {
        product ^= other & 0_u32.wrapping_sub(one << bit >> 31);
        other = (other >> 1) ^ (POLYNOMIAL & 0_u32.wrapping_sub(other & 1));
        bit += 1;
    }
    product
}

/// The checksum, as a number read in little endian (RFC 9260, appendix A), of a packet of `length` bytes, at most 65,535, whose first
/// four bytes changed from `old` to `new`.
#[inline(always)]
#[must_use]
pub const fn replace(checksum: u32, old: [u8; 4], new: [u8; 4], length: u16) -> u32 {
    let mut difference = u32::from_le_bytes(old) ^ u32::from_le_bytes(new);
    let mut bit = 0;
    while bit < LENGTH_BITS {
        let is_set = 0_u32.wrapping_sub((length as u32 >> bit) & 1);
        difference = multiply(difference, (POWERS[bit] & is_set) | (ONE & !is_set));
        bit += 1;
    }
    checksum ^ difference
}

/// The checksum of a short packet of our own, its own place zero; to be written in little endian.
#[inline(always)]
#[must_use]
pub const fn full<const N: usize>(bytes: &[u8; N]) -> u32 {
    let mut crc = u32::MAX;
    let mut i = 0;
    while i < N {
        crc ^= bytes[i] as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc >> 1) ^ (POLYNOMIAL & 0_u32.wrapping_sub(crc & 1));
            bit += 1;
        }
        i += 1;
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bit by bit, as the definition has it.
    fn by_definition(bytes: &[u8]) -> u32 {
        let mut crc = u32::MAX;
        for byte in bytes {
            crc ^= u32::from(*byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
            }
        }
        !crc
    }

    #[test]
    fn check_value_of_the_polynomial() {
        // The catalogue's check value of CRC-32/ISCSI.
        assert_eq!(by_definition(b"123456789"), 0xe306_9283);
        assert_eq!(full(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn the_longest_packet() {
        let mut bytes = vec![7_u8; 65_535];
        let before = by_definition(&bytes);
        bytes[..4].copy_from_slice(&[1, 2, 3, 4]);
        assert_eq!(replace(before, [7; 4], [1, 2, 3, 4], 65_535), by_definition(&bytes));
    }

    proptest! {
        #[test]
        fn by_difference_equals_in_full(mut bytes in prop::collection::vec(any::<u8>(), 4..1500), new: [u8; 4]) {
            let before = by_definition(&bytes);
            let old = [bytes[0], bytes[1], bytes[2], bytes[3]];
            bytes[..4].copy_from_slice(&new);
            let length = u16::try_from(bytes.len()).expect("short");
            prop_assert_eq!(replace(before, old, new, length), by_definition(&bytes));
        }
    }
}
