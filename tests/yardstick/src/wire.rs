//! The ends of a wire, at XDP: who sends frames as fast as a program can, who takes them in, and who only passes them on.

use aya_ebpf::bindings::xdp_action::{XDP_ABORTED, XDP_DROP, XDP_PASS};
use aya_ebpf::bindings::xdp_md;
use aya_ebpf::btf_maps::Array;
use aya_ebpf::helpers::generated::bpf_redirect;
use aya_ebpf::macros::{btf_map, xdp};
use aya_ebpf::programs::XdpContext;

/// Words of a frame: all frames are as long, 136 bytes.
const WORDS: usize = 34;
/// No offset of a frame needs more bits.
const OFFSET_MASK: usize = 0xff;

/// The frame to send, and how the frames of its flows differ.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Template {
    /// The link to send by.
    ifindex: u32,
    /// Flows, a power of two less one.
    mask: u32,
    /// Source port of the first flow, and where it stands in the frame.
    first_port: u32,
    port_at: u32,
    /// Where the port's complement stands: so every flow has the same checksum.
    balance_at: u32,
    /// Frames so far.
    turn: u32,
    words: [u32; WORDS],
}

#[btf_map(name = "y_template")]
pub static TEMPLATE: Array<Template, 1> = Array::new();

/// Where `hop` sends to: the link, and the frame's new addresses.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Onward {
    ifindex: u32,
    addresses: [u16; 6],
}

#[btf_map(name = "y_onward")]
pub static ONWARD: Array<Onward, 1> = Array::new();

/// Writes the next frame over the one that it was given, and sends it: the kernel reuses frames, which others have changed.
#[xdp]
pub fn send(context: XdpContext) -> u32 {
    let Some(template) = TEMPLATE.get_ptr_mut(0) else { return XDP_ABORTED };
    let Some(frame) = at::<[u32; WORDS]>(&context, 0) else { return XDP_ABORTED };
    // SAFETY: one thread sends; the element is of this type, and the frame as long as it is.
    let (ifindex, port, port_at, balance_at) = unsafe {
        frame.write_unaligned((*template).words);
        let turn = (*template).turn;
        (*template).turn = turn.wrapping_add(1);
        let port = (*template).first_port.wrapping_add(turn & (*template).mask) as u16;
        ((*template).ifindex, port, (*template).port_at as usize, (*template).balance_at as usize)
    };
    for (offset, value) in [(port_at, port), (balance_at, !port)] {
        let Some(place) = at::<[u8; 2]>(&context, offset & OFFSET_MASK) else { return XDP_ABORTED };
        // SAFETY: within the frame, as `at` has checked.
        unsafe { place.write_unaligned(value.to_be_bytes()) };
    }
    // SAFETY: a helper that reads its arguments.
    unsafe { bpf_redirect(ifindex, 0) as u32 }
}

/// Sends a frame on without looking at it: what no forwarding can be cheaper than.
#[xdp]
pub fn hop(context: XdpContext) -> u32 {
    let Some(onward) = ONWARD.get(0) else { return XDP_PASS };
    let Some(addresses) = at::<[u16; 6]>(&context, 0) else { return XDP_PASS };
    // SAFETY: within the frame, as `at` has checked; a helper that reads its arguments.
    unsafe {
        addresses.write_unaligned(onward.addresses);
        bpf_redirect(onward.ifindex, 0) as u32
    }
}

/// Takes everything in.
#[xdp]
pub fn sink(_: XdpContext) -> u32 {
    XDP_DROP
}

/// Nothing: what is measured with it is the measurement.
#[xdp]
pub fn idle(_: XdpContext) -> u32 {
    XDP_PASS
}

#[inline(always)]
fn at<T>(context: &XdpContext, offset: usize) -> Option<*mut T> {
    let context: *mut xdp_md = context.ctx;
    // SAFETY: reads the context.
    let (start, end) = unsafe { ((*context).data as usize, (*context).data_end as usize) };
    if start + offset + size_of::<T>() > end {
        return None;
    }
    Some((start + offset) as *mut T)
}
