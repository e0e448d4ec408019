//! What the decision runs over in the kernel: the maps, and the context of one packet or call. [`crate::tables`] has its look-ups.

use core::ffi::c_void;

use crate::fast_path;
use crate::features;

/// The maps as the programs of packets see them.
pub type Kernel = KernelOf<false>;
/// The maps as socket hooks see them.
pub type SocketKernel = KernelOf<true>;

/// The maps, and the context that helpers want.
pub struct KernelOf<const IN_SOCKET: bool> {
    pub context: *mut c_void,
    pub ifindex: u32,
    /// Where this packet is handed over, once the decision has asked whether it may be.
    pub peer: fast_path::Peer,
    /// The time of this packet, once it was read; else 0.
    pub now_ns: u64,
}

impl<const IN_SOCKET: bool> KernelOf<IN_SOCKET> {
    /// The maps, as a program of this context sees them at a link.
    #[inline(always)]
    pub const fn at(context: *mut c_void, ifindex: u32) -> Self {
        Self { context, ifindex, peer: fast_path::Peer::NONE, now_ns: 0 }
    }

    /// The time that the decision has read, or that of now. As of the last tick: nothing here is measured finer.
    #[inline(always)]
    pub fn clock_ns(&mut self) -> u64 {
        if self.now_ns == 0 {
            self.now_ns = features::coarse_ns();
        }
        self.now_ns
    }
}
