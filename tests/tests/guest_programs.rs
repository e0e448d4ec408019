//! Every program is loaded and verified by this kernel, one by one, with the constants that the agent would set here.
//!
//! The figures go to xtask, which compares them with the table in `docs/src/programs.md` (`cargo xtask vm`).

// Tests may unwrap: a panic is a failed test.
#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::fs;

use lb_datapath::{DatapathSettings, as_loaded};
use lb_tests::verifier::{Verified, Verifier};

/// Verification takes time in proportion, and so does the start of the agent. The kernel takes one million.
const INSTRUCTIONS_MAX: u32 = 55_000;
/// Bytes of the longest chain of calls. The kernel takes 512 by its own way of rounding.
const STACK_MAX: u32 = 480;
/// Names the file whose lines the guest's first process prints for xtask: see `ballast-guest`.
const REPORT: &str = "BALLAST_GUEST_REPORT";

#[test]
fn the_kernel_takes_every_program() {
    let (elf, constants) = as_loaded(&DatapathSettings::default()).unwrap();
    let verifier = Verifier::open(&elf, &constants).unwrap();
    let (mut report, mut faults) = (String::new(), Vec::new());
    for name in verifier.names() {
        match verifier.verify(name).unwrap() {
            Ok(Verified { instructions, stack, time, .. }) => {
                writeln!(report, "program {name} {instructions} {stack} {}", time.as_millis()).unwrap();
                if instructions > INSTRUCTIONS_MAX || stack > STACK_MAX {
                    faults.push(format!("{name} is too large: {instructions} instructions, {stack} bytes of stack"));
                }
            }
            Err(refused) => {
                faults.push(format!("{name} is refused: {}\n    {}", refused.error, refused.log.join("\n    ")));
            }
        }
    }
    if let Some(path) = std::env::var_os(REPORT) {
        fs::write(path, report).unwrap();
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
