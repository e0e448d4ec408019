//! What all comparisons of programs that make up their keys have in common.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use aya::programs::SchedClassifier;

use super::REPEAT;
use super::programs::{PACKET, Programs, Task, Tasks, run};
use crate::packet::measure::pin_to;

/// One run of the bench. This thread is on the first of the two CPUs.
pub struct Bench<'a> {
    pub programs: &'a Programs,
    pub tasks: &'a mut Tasks,
    pub rounds: u32,
    pub cpus: (usize, usize),
    pub stop: &'a AtomicBool,
}

impl Bench<'_> {
    /// Inserts these keys, one after the other.
    pub fn fill(&mut self, program: &str, base: u32, count: u32) -> Result<()> {
        self.tasks.set(Task { base, mask: u32::MAX, scatter: 0, turn: 0 })?;
        run(self.programs.tc(program)?, PACKET, count).map(drop)
    }
}

/// Measures, while another CPU, if one is given, runs the program.
pub fn beside_another(
    there: Option<usize>,
    program: &SchedClassifier,
    measure: impl FnOnce() -> Result<f64>,
) -> Result<f64> {
    let Some(there) = there else { return measure() };
    let is_over = AtomicBool::new(false);
    let has_begun = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| -> Result<()> {
            pin_to(there)?;
            while !is_over.load(Ordering::Relaxed) {
                let ran = run(program, PACKET, REPEAT);
                has_begun.store(true, Ordering::Relaxed);
                ran?;
            }
            Ok(())
        });
        while !has_begun.load(Ordering::Relaxed) && !other.is_finished() {
            std::hint::spin_loop();
        }
        let measured = measure();
        is_over.store(true, Ordering::Relaxed);
        other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        measured
    })
}
