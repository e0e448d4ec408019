//! The bytes of a packet at XDP, and the outer header around them.

use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::bpf_xdp_adjust_head;

use crate::nat::Refused;
use crate::outer_header;
use lb_common::parse::{Bytes, ETHERNET};

#[inline(always)]
pub fn bytes(context: *mut xdp_md) -> Bytes {
    // SAFETY: reads the context.
    let (start, end) = unsafe { ((*context).data as usize, (*context).data_end as usize) };
    Bytes { start, end, length: end.wrapping_sub(start) as u32 }
}

/// Whether this is a whole outer header of ours, without options.
#[inline(always)]
pub fn is_outer<const N: usize>(frame: Bytes) -> bool {
    if N == 4 {
        let Some(header) = frame.read::<[u8; 10]>(ETHERNET) else { return false };
        header[0] == 0x45
            && u16::from_be_bytes([header[6], header[7]]) & 0x3fff == 0
            && header[9] == outer_header::protocol::<N>()
    } else {
        let Some(header) = frame.read::<[u8; 7]>(ETHERNET) else { return false };
        header[0] >> 4 == 6 && header[6] == outer_header::protocol::<N>()
    }
}

/// Takes the outer header off.
#[inline(always)]
pub fn take_off<const N: usize>(context: *mut xdp_md) -> Result<(), Refused> {
    let frame = bytes(context).read::<[u8; ETHERNET]>(0).ok_or(Refused)?;
    // SAFETY: a helper on the program's own packet.
    if unsafe { bpf_xdp_adjust_head(context, outer_header::length::<N>() as i32) } != 0 {
        return Err(Refused);
    }
    let header = bytes(context).at::<[u8; ETHERNET]>(0).ok_or(Refused)?;
    // SAFETY: within the packet, as `at` has checked.
    unsafe { *header = frame };
    Ok(())
}
