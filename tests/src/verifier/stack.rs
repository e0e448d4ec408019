//! The longest chain of calls of a program, by the stack that it takes.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use aya_obj::generated::bpf_insn;

/// `BPF_JMP | BPF_CALL`
const CALL: u8 = 0x85;
/// `BPF_PSEUDO_CALL` in the source register: a function of the program, not a helper.
const OF_PROGRAM: u8 = 1;
/// Kernels before 6.8 round each function's stack up to so many bytes, whatever runs the program (`check_max_stack_depth`).
const ROUNDED_TO: u32 = 32;

/// Bytes of stack that the longest chain of calls takes. `functions`: where each begins in the code. `stack`: bytes of each.
pub fn deepest(code: &[bpf_insn], functions: &[u32], stack: &[u32]) -> Result<u32> {
    // A program of one function may have no record of it.
    let functions = if functions.is_empty() { &[0] } else { functions };
    ensure!(functions.len() == stack.len(), "{} functions, and {} stack depths", functions.len(), stack.len());
    let mut callees: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (at, insn) in code.iter().enumerate().filter(|(_, insn)| insn.code == CALL && insn.src_reg() == OF_PROGRAM) {
        let from = functions.partition_point(|begin| *begin as usize <= at) - 1;
        // A compiled program shows the distance there, of which the kernel keeps 16 bits.
        let distance = |begin: &u32| i64::from(*begin) - i64::try_from(at).unwrap_or(i64::MAX) - 1;
        let to = functions.iter().position(|begin| (distance(begin) - i64::from(insn.off)) % (1 << 16) == 0);
        callees.entry(from).or_default().push(to.with_context(|| format!("instruction {at} calls no function"))?);
    }
    Ok(below(0, &callees, stack))
}

/// The kernel refuses recursion, so this ends.
fn below(function: usize, callees: &BTreeMap<usize, Vec<usize>>, stack: &[u32]) -> u32 {
    let own = stack[function].max(1).next_multiple_of(ROUNDED_TO);
    let deepest = callees.get(&function).into_iter().flatten().map(|callee| below(*callee, callees, stack)).max();
    own + deepest.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insn(code: u8, source: u8, off: i16) -> bpf_insn {
        bpf_insn { code, _bitfield_align_1: [], _bitfield_1: bpf_insn::new_bitfield_1(0, source), off, imm: 0 }
    }

    #[test]
    fn the_longest_chain_counts_and_helpers_do_not() {
        let exit = insn(0x95, 0, 0);
        // The first calls both others, the second calls the third, and the third a helper.
        let code = [
            insn(CALL, OF_PROGRAM, 2),
            insn(CALL, OF_PROGRAM, 3),
            exit,
            insn(CALL, OF_PROGRAM, 1),
            exit,
            insn(CALL, 0, 7),
            exit,
        ];
        assert_eq!(deepest(&code, &[0, 3, 5], &[40, 0, 32]).unwrap(), 64 + 32 + 32);
        assert!(deepest(&code, &[0, 3, 5], &[40, 0]).is_err(), "a function has no depth");
        assert!(deepest(&code, &[0, 3], &[40, 0]).is_err(), "a call leads nowhere");
        assert_eq!(deepest(&[exit], &[], &[0]).unwrap(), 32);
    }
}
