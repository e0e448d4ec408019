//! The verifier's log: the figures at its end, and the lines that tell why it refused a program.

use anyhow::{Context, Result};

/// So many lines tell why a program was refused.
const LINES: usize = 25;

/// What the log says of a program that the kernel took.
#[derive(Debug, PartialEq, Eq)]
pub struct Statistics {
    pub instructions: u32,
    /// Stack of each function in bytes, in the order of the code.
    pub stack: Vec<u32>,
}

impl Statistics {
    /// Reads `stack depth 64+0+8` and `processed 123 insns (limit 1000000) …`.
    pub fn parse(log: &str) -> Result<Self> {
        let field = |before: &str| log.lines().find_map(|line| line.strip_prefix(before));
        let stack = field("stack depth ").context("no line `stack depth`")?;
        let instructions =
            field("processed ").and_then(|rest| rest.split(' ').next()).context("no line `processed`")?;
        Ok(Self {
            instructions: instructions.parse().context("instructions are no number")?,
            stack: stack.split('+').map(str::parse).collect::<Result<_, _>>().context("stack depths are no numbers")?,
        })
    }
}

/// The end of the verifier's trace, and the reason, which a log without trace holds alone.
pub fn last_lines(reason: &str, trace: &str) -> Vec<String> {
    let lines: Vec<&str> = trace.lines().filter(|line| !line.is_empty()).collect();
    let trace = lines.iter().skip(lines.len().saturating_sub(LINES)).copied();
    let reason = reason.lines().filter(|line| !line.is_empty());
    trace.chain(["reason:"]).chain(reason).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_from_the_log() {
        let log = "verification time 12 usec\nstack depth 64+0+8\nprocessed 123 insns (limit 1000000) max_states_per_insn 1\n";
        let found = Statistics::parse(log).unwrap();
        assert_eq!(found, Statistics { instructions: 123, stack: vec![64, 0, 8] });
        assert!(Statistics::parse("stack depth 64+0+8\n").is_err());
    }
}
