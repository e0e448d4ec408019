//! What a closed socket leaves behind: nothing. Its entries are noted in the socket's own storage, and go with it.

use aya_ebpf::bindings::{BPF_SK_STORAGE_GET_F_CREATE, bpf_sock, bpf_sock_addr};
use aya_ebpf::helpers::generated::{bpf_get_socket_cookie, bpf_sk_storage_get};
use core::ffi::c_void;
use lb_common::abi::{SOCKET_PAIRS, SocketEntries, SocketKey, SocketPair, V4, socket_direction};
use lb_common::map;

use crate::maps::{self, SOCKET_ENTRIES};
use crate::socket::address::Peer;

/// Notes that the socket has entries for this service and this backend. Without memory for it, they stay until their room is
/// needed.
///
/// A function of its own: off the stack of those that call it.
#[inline(never)]
pub fn note<const N: usize>(context: *mut bpf_sock_addr, protocol: u8, service: &Peer<N>, backend: &Peer<N>) {
    let pair = SocketPair {
        service: words(&service.address),
        backend: words(&backend.address),
        service_port: service.port,
        backend_port: backend.port,
        protocol,
        family: if N == V4 { 4 } else { 6 },
        pad: 0,
    };
    // SAFETY: a word of the context, read as a word: the socket, never null in this hook.
    let socket = unsafe { (&raw const (*context).__bindgen_anon_1.sk).read_volatile() };
    let Some(entries) = storage(socket.cast(), BPF_SK_STORAGE_GET_F_CREATE) else { return };
    for known in &entries.pairs {
        if is_same(known, &pair) {
            return;
        }
    }
    let place = entries.noted as usize % SOCKET_PAIRS;
    entries.noted = entries.noted.wrapping_add(1);
    entries.pairs[place] = pair;
}

/// The socket is closed: its entries go.
#[inline(always)]
pub fn release(socket: *mut bpf_sock) {
    let Some(entries) = storage(socket.cast(), 0) else { return };
    // SAFETY: a helper on the program's own context.
    let cookie = unsafe { bpf_get_socket_cookie(socket.cast()) };
    for pair in &entries.pairs {
        match pair.family {
            4 => forget::<4>(cookie, pair, [pair.service[0].to_ne_bytes(), pair.backend[0].to_ne_bytes()]),
            6 => forget::<16>(cookie, pair, [bytes(&pair.service), bytes(&pair.backend)]),
            _ => {}
        }
    }
}

#[inline(always)]
fn forget<const N: usize>(cookie: u64, pair: &SocketPair, [service, backend]: [[u8; N]; 2]) {
    let key = |address, port, direction| SocketKey {
        cookie_low: cookie as u32,
        cookie_high: (cookie >> 32) as u32,
        address,
        port,
        protocol: pair.protocol,
        direction,
    };
    maps::remove::<map::Sockets<N>>(&key(backend, pair.backend_port, socket_direction::REPLY));
    maps::remove::<map::Sockets<N>>(&key(service, pair.service_port, socket_direction::FORWARD));
}

#[inline(always)]
fn storage(socket: *mut c_void, flags: u32) -> Option<&'static mut SocketEntries> {
    // SAFETY: a helper on the hook's socket; a new value is all zeroes, which is a valid one. The kernel holds the socket's lock
    // in every hook that changes it, so there is one user at a time.
    unsafe {
        let map = (&raw const SOCKET_ENTRIES).cast_mut().cast();
        bpf_sk_storage_get(map, socket, core::ptr::null_mut(), u64::from(flags)).cast::<SocketEntries>().as_mut()
    }
}

/// One comparison, so that the verifier sees one branch.
#[inline(always)]
fn is_same(a: &SocketPair, b: &SocketPair) -> bool {
    let mut different = 0;
    for i in 0..4 {
        different |= a.service[i] ^ b.service[i] | a.backend[i] ^ b.backend[i];
    }
    different |= u32::from(a.service_port ^ b.service_port) | u32::from(a.backend_port ^ b.backend_port);
    different |= u32::from(a.protocol ^ b.protocol) | u32::from(a.family ^ b.family);
    different == 0
}

#[inline(always)]
fn words<const N: usize>(address: &[u8; N]) -> [u32; 4] {
    let mut words = [0; 4];
    for (i, word) in words.iter_mut().enumerate() {
        if i * 4 + 4 <= N {
            *word = u32::from_ne_bytes([address[i * 4], address[i * 4 + 1], address[i * 4 + 2], address[i * 4 + 3]]);
        }
    }
    words
}

#[inline(always)]
fn bytes(words: &[u32; 4]) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (i, word) in words.iter().enumerate() {
        bytes[i * 4..i * 4 + 4].copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}
