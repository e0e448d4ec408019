//! A cheap first look at whether an address may be in a service CIDR: most packets of no service are not, and ask no further table.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_covered_where_there_is_no_network() {
        let none = Cover::of::<4>([]);
        assert_eq!(none, Cover::default());
        assert!(!none.may_hold(&[0; 4]) && !none.may_hold(&[10, 96, 0, 1]) && !none.may_hold(&[0; 16]));
    }

    #[test]
    fn one_network_is_its_own_cover() {
        let cover = Cover::of([([10, 96, 0, 0], 12)]);
        assert_eq!((&cover.address[..4], &cover.mask[..4]), (&[10, 96, 0, 0][..], &[255, 240, 0, 0][..]));
        assert!(cover.may_hold(&[10, 96, 0, 0]) && cover.may_hold(&[10, 111, 255, 255]));
        assert!(!cover.may_hold(&[10, 95, 255, 255]) && !cover.may_hold(&[10, 112, 0, 0]));
        let v6 = |last: u8, eleventh: u8| {
            let mut address = [0; 16];
            (address[0], address[1], address[12], address[15]) = (0xfd, 0x96, eleventh, last);
            address
        };
        let cover = Cover::of([(v6(0, 0), 108)]);
        assert!(cover.may_hold(&v6(255, 0)) && cover.may_hold(&v6(1, 0)) && !cover.may_hold(&v6(1, 1)));
        let host = Cover::of([([192, 0, 2, 1], 32)]);
        assert!(host.may_hold(&[192, 0, 2, 1]) && !host.may_hold(&[192, 0, 2, 0]));
    }

    /// By the definition: the cover holds each network, and has no longer prefix that does.
    #[test]
    fn several_networks_share_the_longest_prefix_around_them() {
        let networks = [([10, 96, 0, 0], 16), ([10, 112, 4, 0], 24), ([10, 127, 0, 0], 16)];
        let cover = Cover::of(networks);
        assert_eq!((&cover.address[..4], &cover.mask[..4]), (&[10, 96, 0, 0][..], &[255, 224, 0, 0][..]));
        for (address, _) in networks {
            assert!(cover.may_hold(&address));
        }
        assert!(!cover.may_hold(&[10, 128, 0, 0]) && !cover.may_hold(&[10, 64, 0, 0]));
        let all = Cover::of([([10, 96, 0, 0], 16), ([192, 168, 0, 0], 16)]);
        assert!(all.may_hold(&[1, 1, 1, 1]) && all.may_hold(&[255; 4]), "they have no bit in common");
        assert_eq!(Cover::of([([10, 0, 0, 0], 8), ([10, 96, 0, 0], 16)]), Cover::of([([10, 0, 0, 0], 8)]));
    }
}
