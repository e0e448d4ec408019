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

/// Product of two polynomials modulo the polynomial.
const fn multiply(one: u32, mut other: u32) -> u32 {
    let mut product = 0;
    let mut bit = 0;
    while bit < 32 {
        product ^= other & 0_u32.wrapping_sub(one << bit >> 31);
        other = one_bit(other);
        bit += 1;
    }
    product
}

/// The polynomial times x.
const fn one_bit(crc: u32) -> u32 {
    (crc >> 1) ^ (POLYNOMIAL & 0_u32.wrapping_sub(crc & 1))
}

/// What half a byte becomes by the four bits behind it.
static HALF_BYTES: [u32; 16] = {
    let mut table = [0; 16];
    let mut value = 0;
    while value < 16 {
        table[value] = one_bit(one_bit(one_bit(one_bit(value as u32))));
        value += 1;
    }
    table
};

/// Products with x⁸ to the powers of two, by half bytes of the factor. By tables, for loops over single bits are many paths to a
/// verifier that follows both values of a bit.
static PRODUCTS: [[[u32; 16]; 8]; LENGTH_BITS] = {
    let mut tables = [[[0; 16]; 8]; LENGTH_BITS];
    let mut power = 0;
    while power < LENGTH_BITS {
        let mut place = 0;
        while place < 8 {
            let mut value = 0;
            while value < 16 {
                tables[power][place][value] = multiply((value as u32) << (4 * place), POWERS[power]);
                value += 1;
            }
            place += 1;
        }
        power += 1;
    }
    tables
};

/// How the checksum of a packet changes (exclusive or) when its first four bytes change by `difference`. Checksum and `difference` are numbers read
/// in little endian (RFC 9260, appendix A). The packet has `length` bytes, at most 65,535.
#[inline(always)]
#[must_use]
pub fn difference(mut difference: u32, length: u16) -> u32 {
    for (power, table) in PRODUCTS.iter().enumerate() {
        if length >> power & 1 == 1 {
            let mut product = 0;
            for (place, row) in table.iter().enumerate() {
                product ^= row[(difference >> (4 * place) & 0xf) as usize];
            }
            difference = product;
        }
    }
    difference
}

/// The checksum of a short packet of our own, its own place zero; to be written in little endian.
#[inline(always)]
#[must_use]
pub fn full<const N: usize>(bytes: &[u8; N]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        crc = (crc >> 4) ^ HALF_BYTES[(crc & 0xf) as usize];
        crc = (crc >> 4) ^ HALF_BYTES[(crc & 0xf) as usize];
    }
    !crc
}
