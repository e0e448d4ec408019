//! SCTP's checksum.

use lb_common::crc32c::{difference, full};
use proptest::prelude::*;

/// The polynomial, bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

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

fn replace(checksum: u32, old: [u8; 4], new: [u8; 4], length: u16) -> u32 {
    checksum ^ difference(u32::from_le_bytes(old) ^ u32::from_le_bytes(new), length)
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
    #![proptest_config(lb_seed::property(file!(), 256))]

    #[test]
    fn by_difference_equals_in_full(mut bytes in prop::collection::vec(any::<u8>(), 4..1500), new: [u8; 4]) {
        let before = by_definition(&bytes);
        let old = [bytes[0], bytes[1], bytes[2], bytes[3]];
        bytes[..4].copy_from_slice(&new);
        let length = u16::try_from(bytes.len()).expect("short");
        prop_assert_eq!(replace(before, old, new, length), by_definition(&bytes));
    }
}
