//! Address translation: what is written where. Writing it is `tc::nat` and `xdp::nat`.

use lb_common::abi::UDP;
use lb_common::decide::{Action, Verdict, Work};

use lb_common::parse::Offsets;

/// Which end of the packet a verdict rewrites.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Destination address and port, source port: towards the backend.
    Destination,
    /// Source address and port, destination port: back to the client.
    Source,
}

impl End {
    /// The end that a verdict rewrites, which is one towards the backend or the client.
    #[inline(always)]
    pub fn of<const N: usize>(work: &Work<N>) -> Self {
        if work.verdict.action as u8 == Action::ToBackend as u8 { Self::Destination } else { Self::Source }
    }
}

/// Source and destination address as the verdict says.
#[inline(always)]
pub fn ends<const N: usize>(verdict: &Verdict<N>) -> (&[u8; N], &[u8; N]) {
    if verdict.action as u8 == Action::ToBackend as u8 {
        (&verdict.client, &verdict.address)
    } else {
        (&verdict.address, &verdict.client)
    }
}

/// The rewrite was refused by the kernel; the packet may be half written and must be dropped.
pub struct Refused;

/// What is written where: old and new of the address and of both ports.
pub struct HeaderChange<const N: usize> {
    pub address_at: usize,
    pub old: [u8; N],
    pub new: [u8; N],
    pub ports_at: usize,
    pub checksum_at: usize,
    pub old_ports: [u8; 4],
    pub new_ports: [u8; 4],
}

#[inline(always)]
pub fn change<const N: usize>(offsets: Offsets, work: &Work<N>, end: End) -> HeaderChange<N> {
    let (key, verdict) = (&work.packet.key, &work.verdict);
    let source_at = offsets.network + if N == 4 { 12 } else { 8 };
    let (old_ports, new_ports) = ports(work, end);
    HeaderChange {
        address_at: if end == End::Source { source_at } else { source_at + N },
        old: if end == End::Source { key.src } else { key.dst },
        new: verdict.address,
        ports_at: offsets.transport,
        checksum_at: offsets.transport + if key.protocol == UDP { 6 } else { 16 },
        old_ports,
        new_ports,
    }
}

/// Both ports as they stand in the header, before and after.
#[inline(always)]
pub fn ports<const N: usize>(work: &Work<N>, end: End) -> ([u8; 4], [u8; 4]) {
    let (key, verdict) = (&work.packet.key, &work.verdict);
    let (src_port, dst_port) = match end {
        End::Destination => (verdict.client_port, verdict.port),
        End::Source => (verdict.port, verdict.client_port),
    };
    let bytes = |src: u16, dst: u16| {
        let (src, dst) = (src.to_be_bytes(), dst.to_be_bytes());
        [src[0], src[1], dst[0], dst[1]]
    };
    (bytes(key.src_port, key.dst_port), bytes(src_port, dst_port))
}
