//! Programs for frames on their way, attached by clsact or by TCX.

use aya_ebpf::bindings::TC_ACT_UNSPEC;
use aya_ebpf::bindings::xdp_action::XDP_PASS;
use aya_ebpf::btf_maps::Array;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use aya_ebpf::macros::{btf_map, classifier, xdp};
use aya_ebpf::programs::{TcContext, XdpContext};

use crate::keys::{Key, flow};
use crate::tables::{LRU4, Table};

const ADDRESSES: usize = 26;
const PORTS: usize = 34;
/// A mark that no frame has.
const NEVER: u32 = 0xdead_beef;

/// Looks up the frame's own flow, and keeps it.
#[classifier]
pub fn live_find(context: TcContext) -> i32 {
    let (start, end) = (context.data(), context.data_end());
    if start + PORTS + 4 > end {
        return TC_ACT_UNSPEC;
    }
    // SAFETY: within the packet. BPF loads whole words from anywhere.
    let word = |at: usize| unsafe { ((start + at) as *const u32).read_volatile() };
    let key = Key { src: [word(ADDRESSES)], dst: [word(ADDRESSES + 4)], ports: word(PORTS), protocol: 6 };
    if !LRU4.find(&key) {
        LRU4.put(&key, &flow(&key));
    }
    TC_ACT_UNSPEC
}

/// Writes into no frame, but might: so the kernel makes each one's bytes its own before.
#[classifier]
pub fn live_might_write(context: TcContext) -> i32 {
    // SAFETY: reads the context.
    if unsafe { (*context.skb.skb).mark } == NEVER {
        let (start, end) = (context.data(), context.data_end());
        if start + PORTS <= end {
            // SAFETY: within the packet.
            unsafe { (start as *mut u8).write_volatile(0) };
        }
    }
    TC_ACT_UNSPEC
}

/// When the first frame came, and one of the last.
#[repr(C)]
pub struct Clock {
    frames: u64,
    first_ns: u64,
    /// That of the last frame whose number [`EVERY`] divides.
    last_ns: u64,
}

/// A power of two.
const EVERY: u64 = 256;

#[btf_map(name = "a_clock")]
pub static CLOCK: Array<Clock, 1> = Array::new();

/// Before the hook of all arms: notes the time, seldom, and gives the frame to the stack.
#[xdp]
pub fn live_pass(_: XdpContext) -> u32 {
    let Some(clock) = CLOCK.get_ptr_mut(0) else { return XDP_PASS };
    // SAFETY: one thread receives; the element is of this type. A helper without arguments.
    unsafe {
        let frames = (*clock).frames + 1;
        (*clock).frames = frames;
        if frames == 1 {
            (*clock).first_ns = bpf_ktime_get_ns();
        }
        if frames & (EVERY - 1) == 0 {
            (*clock).last_ns = bpf_ktime_get_ns();
        }
    }
    XDP_PASS
}
