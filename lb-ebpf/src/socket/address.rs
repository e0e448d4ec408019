//! Addresses in the context of a socket hook, where the verifier allows only whole words.

use aya_ebpf::bindings::bpf_sock_addr;

/// The address in a socket call.
#[derive(Clone, Copy)]
pub struct Peer<const N: usize> {
    pub address: [u8; N],
    pub port: u16,
}

/// `::ffff:0:0/96` as it stands in the third word (RFC 4291, section 2.5.5.2).
const MAPPED: u32 = 0xffff_u32.to_be();

#[inline(always)]
pub fn port(context: *mut bpf_sock_addr) -> u16 {
    // SAFETY: a word of the context, read as a word.
    u16::from_be(unsafe { (&raw const (*context).user_port).read_volatile() } as u16)
}

#[inline(always)]
fn set_port(context: *mut bpf_sock_addr, port: u16) {
    // SAFETY: a word of the context, written as a word.
    unsafe { (&raw mut (*context).user_port).write_volatile(u32::from(port.to_be())) };
}

#[inline(always)]
pub fn v4(context: *mut bpf_sock_addr) -> Peer<4> {
    // SAFETY: a word of the context, read as a word.
    let address = unsafe { (&raw const (*context).user_ip4).read_volatile() }.to_ne_bytes();
    Peer { address, port: port(context) }
}

#[inline(always)]
pub fn set_v4(context: *mut bpf_sock_addr, peer: Peer<4>) {
    // SAFETY: a word of the context, written as a word.
    unsafe { (&raw mut (*context).user_ip4).write_volatile(u32::from_ne_bytes(peer.address)) };
    set_port(context, peer.port);
}

#[inline(always)]
fn word(context: *mut bpf_sock_addr, index: usize) -> u32 {
    // SAFETY: a word of the context, read as a word; `index` is a constant below 4.
    unsafe { (&raw const (*context).user_ip6[index]).read_volatile() }
}

#[inline(always)]
fn set_word(context: *mut bpf_sock_addr, index: usize, word: u32) {
    // SAFETY: as for `word`.
    unsafe { (&raw mut (*context).user_ip6[index]).write_volatile(word) };
}

/// The IPv4 address in an IPv4-mapped IPv6 one.
#[inline(always)]
pub fn mapped(context: *mut bpf_sock_addr) -> Option<Peer<4>> {
    if word(context, 0) != 0 || word(context, 1) != 0 || word(context, 2) != MAPPED {
        return None;
    }
    Some(Peer { address: word(context, 3).to_ne_bytes(), port: port(context) })
}

#[inline(always)]
pub fn set_mapped(context: *mut bpf_sock_addr, peer: Peer<4>) {
    set_word(context, 3, u32::from_ne_bytes(peer.address));
    set_port(context, peer.port);
}

#[inline(always)]
pub fn v6(context: *mut bpf_sock_addr) -> Peer<16> {
    let mut address = [0u8; 16];
    address[0..4].copy_from_slice(&word(context, 0).to_ne_bytes());
    address[4..8].copy_from_slice(&word(context, 1).to_ne_bytes());
    address[8..12].copy_from_slice(&word(context, 2).to_ne_bytes());
    address[12..16].copy_from_slice(&word(context, 3).to_ne_bytes());
    Peer { address, port: port(context) }
}

#[inline(always)]
pub fn set_v6(context: *mut bpf_sock_addr, peer: Peer<16>) {
    let a = &peer.address;
    set_word(context, 0, u32::from_ne_bytes([a[0], a[1], a[2], a[3]]));
    set_word(context, 1, u32::from_ne_bytes([a[4], a[5], a[6], a[7]]));
    set_word(context, 2, u32::from_ne_bytes([a[8], a[9], a[10], a[11]]));
    set_word(context, 3, u32::from_ne_bytes([a[12], a[13], a[14], a[15]]));
    set_port(context, peer.port);
}
