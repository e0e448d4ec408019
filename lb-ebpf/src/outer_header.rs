//! The outer header of direct server return (RFC 2003, RFC 2473): it names the backend.

use lb_common::checksum;

use crate::fib::LONGEST;
use lb_common::parse::{HOPS, IPV4_HEADER, IPV6_HEADER};

/// Length of the outer header.
#[inline(always)]
pub const fn length<const N: usize>() -> usize {
    if N == 4 { IPV4_HEADER } else { IPV6_HEADER }
}

/// Protocol number of a packet of the same family inside (RFC 2003; RFC 2473).
#[inline(always)]
pub const fn protocol<const N: usize>() -> u8 {
    if N == 4 { 4 } else { 41 }
}

/// The length field of a header: of segments joined beyond what it can tell, 0.
#[inline(always)]
fn field(length: u32) -> [u8; 2] {
    (if length > LONGEST { 0 } else { length as u16 }).to_be_bytes()
}

/// The outer header of a packet of so many bytes: never fragmented, as its sender knows what fits.
#[inline(always)]
pub fn v4<const N: usize>(length: u32, src: &[u8; N], dst: &[u8; N]) -> [u8; IPV4_HEADER] {
    let mut header = [0u8; IPV4_HEADER];
    header[0] = 0x45;
    let [high, low] = field(length + IPV4_HEADER as u32);
    (header[2], header[3]) = (high, low);
    header[6] = 0x40;
    (header[8], header[9]) = (HOPS, protocol::<4>());
    let mut i = 0;
    while i < 4 {
        header[12 + i] = src[i];
        header[16 + i] = dst[i];
        i += 1;
    }
    let [high, low] = (!checksum::fold(checksum::add(0, &header))).to_be_bytes();
    (header[10], header[11]) = (high, low);
    header
}

/// The outer IPv6 header.
#[inline(always)]
pub fn v6<const N: usize>(length: u32, src: &[u8; N], dst: &[u8; N]) -> [u8; IPV6_HEADER] {
    let mut header = [0u8; IPV6_HEADER];
    header[0] = 0x60;
    let [high, low] = field(length);
    (header[4], header[5]) = (high, low);
    (header[6], header[7]) = (protocol::<16>(), HOPS);
    let mut i = 0;
    while i < 16 {
        header[8 + i] = src[i];
        header[24 + i] = dst[i];
        i += 1;
    }
    header
}
