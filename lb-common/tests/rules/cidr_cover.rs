//! The cover of all service CIDRs.

use lb_common::service_cidrs::Cover;

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
