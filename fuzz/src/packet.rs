//! Bytes as a packet: the programs' parser reads what the bytes hold, and nothing beyond their end.

use std::alloc::{Layout, alloc, dealloc};

use lb_common::abi::{FlowKey, TCP, UDP};
use lb_common::decide::Packet;

use lb_common::parse::{Bytes, ETHERNET, Other, parse};

/// A packet in memory of its very own size, its network header on a word's boundary as network drivers place it.
struct Placed {
    memory: *mut u8,
    layout: Layout,
    start: usize,
}

impl Placed {
    fn new(bytes: &[u8], network: usize) -> Self {
        let gap = (4 - network % 4) % 4;
        let layout = Layout::from_size_align(gap + bytes.len().max(1), 4).expect("a packet is small");
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc(layout) };
        assert!(!memory.is_null(), "out of memory");
        // SAFETY: so much was allocated behind the gap.
        unsafe { memory.add(gap).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Self { memory, layout, start: memory as usize + gap }
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once.
        unsafe { dealloc(self.memory, self.layout) };
    }
}

/// Parses the bytes as the first of them says; panics where the parser and the words of the standards differ.
pub fn check(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else { return };
    let network = if kind & 2 == 0 { ETHERNET } else { 0 };
    if kind & 1 == 0 { compare::<4>(bytes, network) } else { compare::<16>(bytes, network) }
}

fn compare<const N: usize>(bytes: &[u8], network: usize) {
    let placed = Placed::new(bytes, network);
    let length = u32::try_from(bytes.len()).expect("a packet is small");
    let view = Bytes { start: placed.start, end: placed.start + bytes.len(), length };
    let key = FlowKey { src: [0; N], dst: [0; N], src_port: 0, dst_port: 0, protocol: 0, pad: [0; 3] };
    let mut packet = Packet::new(key, 0);
    let parsed = match parse(view, network, &mut packet) {
        Ok(offsets) => {
            assert_eq!(offsets.network, network);
            Ok((packet, offsets.transport))
        }
        Err(Other::Short) => Err(true),
        Err(Other::Aside) => Err(false),
    };
    assert_eq!(parsed, read::<N>(bytes, network), "kinds of error: true for short, false for aside");
}

/// The packet's fields, read with nothing but slices. `Err(true)`: it ends too early; `Err(false)`: it is none to be read here.
fn read<const N: usize>(bytes: &[u8], network: usize) -> Result<(Packet<N>, usize), bool> {
    let at = |from: usize, count: usize| bytes.get(from..from + count).ok_or(true);
    let half = |from: usize| Ok::<u16, bool>(u16::from_be_bytes(at(from, 2)?.try_into().expect("two bytes")));
    let word = |from: usize| Ok::<u32, bool>(u32::from_be_bytes(at(from, 4)?.try_into().expect("four bytes")));
    let header = at(network, if N == 4 { 20 } else { 40 })?;
    let (version, protocol) = (header[0] >> 4, header[if N == 4 { 9 } else { 6 }]);
    let (header_length, total, addresses, whole) = if N == 4 {
        // A flag that does not matter, one that says whether it may be cut, then what tells a piece.
        let fragment = half(network + 6)?;
        (usize::from(header[0] & 15) * 4, usize::from(half(network + 2)?), 12, fragment << 2 == 0)
    } else {
        (40, 40 + usize::from(half(network + 4)?), 8, true)
    };
    let right = usize::from(version) == if N == 4 { 4 } else { 6 } && header_length >= header.len().min(20);
    if !right || !whole || (protocol != TCP && protocol != UDP) {
        return Err(false);
    }
    let transport = network + header_length;
    at(transport, if protocol == TCP { 16 } else { 8 })?;
    let own_length = if protocol == TCP {
        usize::from(at(transport + 12, 1)?[0] >> 4) * 4
    } else {
        usize::from(half(transport + 4)?)
    };
    let least = if protocol == TCP { 20 } else { 8 };
    if own_length < least || header_length + own_length > total || total > bytes.len() - network {
        return Err(false);
    }
    let key = FlowKey {
        src: header[addresses..addresses + N].try_into().expect("an address"),
        dst: header[addresses + N..addresses + 2 * N].try_into().expect("an address"),
        src_port: half(transport)?,
        dst_port: half(transport + 2)?,
        protocol,
        pad: [0; 3],
    };
    let mut packet = Packet::new(key, 0);
    // What the packet says of itself: a link may have padded the frame.
    packet.length = u32::try_from(total).expect("a packet is small");
    if protocol == TCP {
        (packet.seq, packet.ack) = (word(transport + 4)?, word(transport + 8)?);
        packet.tcp_flags = at(transport + 13, 1)?[0];
        packet.payload = u32::try_from(total - header_length - own_length).expect("a packet is small");
    }
    Ok((packet, transport))
}
