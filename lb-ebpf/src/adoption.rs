//! The adoption window: until when segments of unknown connections are left to the host's stack. Asked only where one is to be refused.

use crate::maps::ADOPTION;

/// Whether the window is open at this second of `CLOCK_MONOTONIC`.
///
/// A function of its own: off the stack of those that ask.
#[inline(never)]
pub fn is_open(now_s: u32) -> bool {
    // An element of an array, one whole word, which the agent writes before the programs are attached.
    ADOPTION.get(0).is_some_and(|until_s| now_s < *until_s)
}
