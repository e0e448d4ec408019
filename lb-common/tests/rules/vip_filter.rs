//! The filter that rules addresses out.

use std::collections::BTreeSet;

use lb_common::limits::VIP_FILTER_BITS;
use lb_common::vip_filter::{WORDS, bit, place};

#[test]
fn every_address_has_a_place_in_the_table() {
    for address in [[0; 4], [255; 4], [10, 96, 0, 1], [1, 0, 0, 0]] {
        let (word, mask) = place(bit(&address));
        assert!(word < WORDS && mask.is_power_of_two(), "{address:?}");
    }
    assert!(bit(&[255; 16]) < VIP_FILTER_BITS && bit(&[0; 16]) == 0);
}

#[test]
fn addresses_that_count_up_share_no_bit() {
    let v4 = (0..=u16::MAX).map(u16::to_be_bytes).map(|[high, low]| bit(&[10, 96, high, low]));
    assert_eq!(v4.collect::<BTreeSet<u32>>().len(), 1 << 16);
    let v6 = |[high, low]: [u8; 2]| bit(&[0xfd, 0, 0, 0x96, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, high, low]);
    assert_eq!((0..=u16::MAX).map(u16::to_be_bytes).map(v6).collect::<BTreeSet<u32>>().len(), 1 << 16);
}

#[test]
fn few_other_addresses_share_a_bit_with_a_hundred_thousand_services() {
    let services: BTreeSet<u32> = (0..100_000_u32).map(|n| bit(&(0x0a60_0000 + n).to_be_bytes())).collect();
    let pods = (0..60_000_u32).filter(|n| services.contains(&bit(&(0x0af4_0000 + n).to_be_bytes()))).count();
    assert!(pods < 60_000 / 20, "{pods} of 60000 pods");
    // Addresses of the Internet.
    let others = (1..60_000_u32).filter(|n| services.contains(&bit(&n.wrapping_mul(0x0101_6f3b).to_be_bytes())));
    assert!(others.count() < 60_000 / 20);
}
