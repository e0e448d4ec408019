//! Copies and comparisons by words.

use lb_common::abi::FlowKey;
use lb_common::plain::tuple;
use lb_common::words::{copy, same};

#[test]
fn a_copy_is_whole_and_every_byte_is_compared() {
    let from = tuple(6, ([7; 16], 1), ([9; 16], 2));
    let mut into = FlowKey { src: [0; 16], dst: [0; 16], src_port: 0, dst_port: 0, protocol: 0, pad: [1; 3] };
    copy(&from, &mut into);
    assert_eq!(from, into);
    for i in 0..16 {
        let mut other = from.src;
        other[i] ^= 0x80;
        assert!(same(&from.src, &from.src) && !same(&from.src, &other), "{i}");
    }
}
