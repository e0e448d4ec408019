//! The transport header on the slow path: ports, flags and numbers of TCP, UDP and SCTP.

use aya_ebpf::bindings::__sk_buff;
use lb_common::abi::{SCTP, TCP, UDP};
use lb_common::decide::Packet;

use crate::tc::headers::{Headers, Odd, Piece};
use crate::tc::sctp;
use crate::tc::skb::load;
use lb_common::parse::{TCP_HEADER, UDP_HEADER};

/// Reads the transport header into the packet, whose addresses stand there already.
#[inline(always)]
pub fn read<const N: usize>(skb: *mut __sk_buff, headers: &Headers, packet: &mut Packet<N>) -> Result<(), Odd> {
    let room = headers.end.saturating_sub(headers.transport);
    let mut header = [0u8; TCP_HEADER];
    // The shortest header of all; the longest one is read where it matters.
    let mut first = [0u8; UDP_HEADER];
    load(skb, headers.transport, &mut first).map_err(|_| Odd::Malformed)?;
    packet.key.src_port = u16::from_be_bytes([first[0], first[1]]);
    packet.key.dst_port = u16::from_be_bytes([first[2], first[3]]);
    packet.tcp_flags = 0;
    packet.seq = 0;
    packet.ack = 0;
    packet.payload = 0;
    packet.is_error = false;
    packet.pad = [0; 2];
    match headers.protocol {
        TCP => {
            load(skb, headers.transport, &mut header).map_err(|_| Odd::Malformed)?;
            let length = usize::from(header[12] >> 4) * 4;
            if length < TCP_HEADER || length > room {
                return Err(Odd::Malformed);
            }
            packet.seq = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
            packet.ack = u32::from_be_bytes([header[8], header[9], header[10], header[11]]);
            packet.tcp_flags = header[13];
            packet.payload = (room - length) as u32;
        }
        UDP => {
            let length = usize::from(u16::from_be_bytes([first[4], first[5]]));
            // A first fragment's length is that of the whole datagram.
            if length < UDP_HEADER || (headers.piece == Piece::Whole && length > room) {
                return Err(Odd::Malformed);
            }
        }
        SCTP => sctp::read(skb, headers, packet)?,
        _ => return Err(Odd::Foreign),
    }
    Ok(())
}
