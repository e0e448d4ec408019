//! Which destinations are certainly no service's: one bit for each hash of an address, so that most packets need no look-up of a frontend.
//!
//! A bit that is set says that no frontend and no address of services has this hash. A cleared one says nothing, and all are cleared in
//! a table that nobody has written yet: forgotten bits cost time, never a packet.

use crate::limits::VIP_FILTER_BITS;

/// Bits of a word.
const WORD: u32 = u64::BITS;
/// Words of the table.
pub const WORDS: usize = (VIP_FILTER_BITS / WORD) as usize;

/// An odd factor for each word of an address: of addresses that count up, as those of services do, no two of a range share a bit.
const FACTORS: [u32; 4] = [0x9e37_79b1, 0x85eb_ca77, 0xc2b2_ae3d, 0x27d4_eb2f];

/// The bit of an address.
#[inline(always)]
#[must_use]
pub fn bit<const N: usize>(address: &[u8; N]) -> u32 {
    bit_by_words::<N>(|i| {
        u32::from_ne_bytes([address[4 * i], address[4 * i + 1], address[4 * i + 2], address[4 * i + 3]])
    })
}

/// The bit of an address of `N` bytes, its words given by their number, as they stand in memory.
#[inline(always)]
#[must_use]
pub fn bit_by_words<const N: usize>(word: impl Fn(usize) -> u32) -> u32 {
    let mut hash = 0_u32;
    let mut i = 0;
    while i < N / 4 {
        hash = hash.wrapping_add(word(i).wrapping_mul(FACTORS[N / 4 - 1 - i]));
        i += 1;
    }
    hash >> (u32::BITS - VIP_FILTER_BITS.trailing_zeros())
}

/// Where a bit stands: its word, and the word with this bit alone.
#[inline(always)]
#[must_use]
pub const fn place(bit: u32) -> (usize, u64) {
    ((bit / WORD) as usize % WORDS, 1 << (bit % WORD))
}
