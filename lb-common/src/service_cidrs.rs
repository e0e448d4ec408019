//! A cheap first look at whether an address may be in a service CIDR: most packets of no service are not, and ask no further table.

use crate::abi::sizes::sizes;

/// Value of `service_cidrs`, by [`index`]: the longest prefix that all service CIDRs of one family have in common. It rules addresses out;
/// `networks4` and `networks6` say what is in a CIDR ([`crate::abi::network_flags::SERVICES`]). The agent may replace it while a program
/// reads it: half an update rules out too much or too little for that one packet.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cover {
    /// Network address, an IPv4 one in the first four bytes; bits beyond the prefix are zero.
    pub address: [u8; 16],
    /// Ones where the prefix is.
    pub mask: [u8; 16],
    /// 0: there is no service CIDR of this family.
    pub is_set: u32,
}

/// The element of `service_cidrs` for addresses of `N` bytes.
#[inline(always)]
#[must_use]
pub const fn index<const N: usize>() -> u32 {
    if N == 4 { 0 } else { 1 }
}

/// Elements of `service_cidrs`: IPv4 and IPv6.
pub const FAMILIES: usize = 2;

impl Cover {
    /// The cover of these networks: each an address, and the length of its prefix in bits, at most those of an address.
    #[must_use]
    pub fn of<const N: usize>(networks: impl IntoIterator<Item = ([u8; N], u32)>) -> Self {
        let mut networks = networks.into_iter();
        let Some((first, mut bits)) = networks.next() else { return Self::default() };
        for (address, length) in networks {
            bits = bits.min(length).min(common_bits(&first, &address));
        }
        let mut cover = Self { is_set: 1, ..Self::default() };
        for (at, byte) in first.iter().enumerate() {
            // Bits of the prefix in this byte.
            let inside = bits.saturating_sub(8 * at as u32).min(8);
            cover.mask[at] = !(0xff_u32 >> inside) as u8;
            cover.address[at] = byte & cover.mask[at];
        }
        cover
    }

    /// Whether the address may be in one of the networks. `false`: it is in none.
    #[inline(always)]
    #[must_use]
    pub fn may_hold<const N: usize>(&self, address: &[u8; N]) -> bool {
        if self.is_set == 0 {
            return false;
        }
        let word = |bytes: &[u8], i: usize| u32::from_ne_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        let mut difference = 0;
        let mut i = 0;
        while i + 4 <= N {
            difference |= (word(address, i) ^ word(&self.address, i)) & word(&self.mask, i);
            i += 4;
        }
        difference == 0
    }
}

/// How many of the first bits are the same.
fn common_bits<const N: usize>(a: &[u8; N], b: &[u8; N]) -> u32 {
    let differing = (0..N).find(|at| a[*at] != b[*at]);
    differing.map_or(8 * N as u32, |at| 8 * at as u32 + (a[at] ^ b[at]).leading_zeros())
}

sizes! {
    Cover = 36,
}
