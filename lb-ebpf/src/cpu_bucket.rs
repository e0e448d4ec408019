//! Token buckets of this CPU: they bound, for each outcome, what a flood makes the CPU write or send. So a flood of one kind takes nothing from the
//! others, and no lock that CPUs share is taken for what is beyond.

use lb_common::decide::Pace;
use lb_common::limits::{ANSWER_BURST, ANSWERS_PER_SECOND, EVENT_BURST, EVENTS_PER_SECOND, OUTCOMES};
use lb_common::outcome::Outcome;

use crate::features;
use crate::maps::CPU_BUCKETS;

const EVENTS: Pace = Pace::new(EVENTS_PER_SECOND, EVENT_BURST);
const ANSWERS: Pace = Pace::new(ANSWERS_PER_SECOND, ANSWER_BURST);

/// Whether an event of this outcome may be written; if so, it is charged. A call of a socket that another one interrupts here may go uncharged.
#[inline(always)]
pub fn take_event(outcome: Outcome) -> bool {
    let Some(due) = CPU_BUCKETS.get_ptr_mut(outcome as u32) else { return false };
    charge(due, EVENTS)
}

/// Whether an answer of this outcome may be sent; if so, it is charged.
#[inline(always)]
pub fn take_answer(outcome: Outcome) -> bool {
    let Some(due) = CPU_BUCKETS.get_ptr_mut(OUTCOMES + outcome as u32) else { return false };
    charge(due, ANSWERS)
}

/// Whether an answer of this outcome would be sent on this CPU now.
#[inline(always)]
pub fn has_answer(outcome: Outcome) -> bool {
    let Some(due) = CPU_BUCKETS.get_ptr_mut(OUTCOMES + outcome as u32) else { return false };
    // SAFETY: a live map value of this CPU.
    ANSWERS.after(unsafe { *due }, features::coarse_ns()) != 0
}

#[inline(always)]
fn charge(due: *mut u64, pace: Pace) -> bool {
    // SAFETY: a live map value of this CPU.
    unsafe {
        let after_ns = pace.after(*due, features::coarse_ns());
        if after_ns != 0 {
            *due = after_ns;
        }
        after_ns != 0
    }
}
