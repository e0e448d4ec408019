//! The table of the programs in `docs/src/programs.md`: instructions that the verifier walked and bytes of stack, by kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::kernel::KERNELS;
use crate::workspace::Workspace;

/// The test binary that finds them.
pub const TEST: &str = "guest_programs";
/// How the table is renewed.
const RENEW: &str = "if that is meant, run `cargo xtask vm --test guest_programs --record` and commit the table";
/// A line of the guest's console that tells one: name, instructions, stack, milliseconds.
const REPORT: &str = "guest: report program ";
const HEAD: &str = "| program |";
const NOT_MEASURED: &str = "–";
/// Compilers differ a little: so many hundredths, and so many instructions in small programs, make no difference.
const TOLERANCE_PERCENT: u32 = 5;
const TOLERANCE_INSTRUCTIONS: u32 = 50;
/// Compilers differ a little: so many bytes of stack make no difference.
const TOLERANCE_STACK: u32 = 32;

/// What the verifier says of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Figure {
    instructions: u32,
    stack: u32,
}

impl Figure {
    fn is_like(self, other: Self) -> bool {
        let most = (other.instructions / 100 * TOLERANCE_PERCENT).max(TOLERANCE_INSTRUCTIONS);
        self.instructions.abs_diff(other.instructions) <= most && self.stack.abs_diff(other.stack) <= TOLERANCE_STACK
    }
}

/// Figures by kernel and program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures(BTreeMap<&'static str, BTreeMap<String, Figure>>);

impl Figures {
    /// Takes in one line of a guest's console.
    pub fn read_line(&mut self, kernel: &'static str, line: &str) {
        let Some(words) = line.strip_prefix(REPORT) else { return };
        let mut words = words.split(' ');
        let (Some(name), Some(Ok(instructions)), Some(Ok(stack))) =
            (words.next(), words.next().map(str::parse), words.next().map(str::parse))
        else {
            return;
        };
        self.0.entry(kernel).or_default().insert(name.to_owned(), Figure { instructions, stack });
    }

    /// Takes in those of other kernels.
    pub fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    /// Reads the table.
    pub fn recorded(workspace: &Workspace) -> Result<Self> {
        let path = path(workspace);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} holds no such table", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines().skip_while(|line| !line.starts_with(HEAD));
        let kernels = cells(lines.next().context("a head is missing")?);
        let mut figures = Self::default();
        for row in lines.skip(1).map_while(|line| line.starts_with('|').then(|| cells(line))) {
            let name = row[0].trim_matches('`');
            for (kernel, cell) in kernels.iter().zip(&row).skip(1).filter(|(_, cell)| **cell != NOT_MEASURED) {
                let Some(kernel) = KERNELS.iter().find(|known| known.name == *kernel) else {
                    bail!("no kernel is called {kernel:?}")
                };
                let (instructions, stack) = cell.split_once(" / ").with_context(|| format!("{name}: {cell:?}"))?;
                let figure = Figure { instructions: instructions.parse()?, stack: stack.parse()? };
                figures.0.entry(kernel.name).or_default().insert(name.to_owned(), figure);
            }
        }
        Ok(figures)
    }

    /// What differs from the table, a sentence each; kernels that were not measured do not.
    pub fn differences(&self, recorded: &Self) -> Vec<String> {
        let none = BTreeMap::new();
        let mut found = Vec::new();
        for (kernel, now) in &self.0 {
            let before = recorded.0.get(kernel).unwrap_or(&none);
            let names: BTreeSet<&String> = now.keys().chain(before.keys()).collect();
            for name in names {
                let text = match (now.get(name), before.get(name)) {
                    (Some(now), Some(before)) if now.is_like(*before) => continue,
                    (Some(now), Some(before)) => format!("{}, and the table says {}", now.text(), before.text()),
                    (Some(now), None) => format!("{}, and the table does not have it", now.text()),
                    (None, _) => "no such program, and the table has it".to_owned(),
                };
                found.push(format!("{name} on Linux {kernel}: {text}; {RENEW}"));
            }
        }
        found
    }

    /// Writes the table anew; kernels that were not measured keep their figures.
    pub fn record(mut self, workspace: &Workspace) -> Result<()> {
        let path = path(workspace);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        for (kernel, before) in Self::parse(&text)?.0 {
            self.0.entry(kernel).or_insert(before);
        }
        let is_table = |line: &&str| line.starts_with('|');
        let before = text.lines().take_while(|line| !line.starts_with(HEAD));
        let after = text.lines().skip_while(|line| !line.starts_with(HEAD)).skip_while(is_table);
        let table = self.table();
        let lines: Vec<&str> = before.chain(table.lines()).chain(after).collect();
        fs::write(&path, lines.join("\n") + "\n").with_context(|| format!("cannot write {}", path.display()))
    }

    fn table(&self) -> String {
        let kernels: Vec<_> = KERNELS.iter().filter(|kernel| self.0.contains_key(kernel.name)).collect();
        let names: BTreeSet<&String> = self.0.values().flat_map(BTreeMap::keys).collect();
        let mut text = HEAD.to_owned();
        text.extend(kernels.iter().map(|kernel| format!(" {} |", kernel.name)));
        text += "\n|---|";
        text += &"---:|".repeat(kernels.len());
        for name in names {
            text.extend(["\n| `", name, "` |"]);
            let figures = kernels.iter().map(|kernel| self.0[kernel.name].get(name));
            text.extend(
                figures.map(|figure| format!(" {} |", figure.map_or(NOT_MEASURED.to_owned(), |one| one.text()))),
            );
        }
        text
    }
}

impl Figure {
    fn text(self) -> String {
        format!("{} / {}", self.instructions, self.stack)
    }
}

fn path(workspace: &Workspace) -> PathBuf {
    workspace.root.join("docs/src/programs.md")
}

fn cells(row: &str) -> Vec<&str> {
    row.trim_matches('|').split('|').map(str::trim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in `tests/tests/guest_programs.rs`.
    const INSTRUCTIONS_MAX: u32 = 55_000;
    const TABLE: &str = "\
| program | 6.1 | 6.12 |
|---|---:|---:|
| `connect4` | – | 500 / 96 |
| `pod_in` | 2000 / 64 | 1000 / 64 |";

    fn measured(lines: &[&str]) -> Figures {
        let mut figures = Figures::default();
        for line in lines {
            figures.read_line("6.12", line);
        }
        figures
    }

    #[test]
    fn a_table_is_read_as_it_is_written() {
        let figures = Figures::parse(&format!("# Programs\n\n{TABLE}\n\nMore.\n")).expect("a table");
        assert_eq!(figures.table(), TABLE);
        assert!(Figures::parse("# Programs\n").is_err());
    }

    #[test]
    fn what_differs_by_more_than_a_compiler_does_is_named_with_the_remedy() {
        let recorded = Figures::parse(TABLE).expect("a table");
        let same = measured(&["guest: report program pod_in 1049 64 8", "guest: report program connect4 460 128 1"]);
        assert_eq!(same.differences(&recorded), Vec::<String>::new());
        let other = measured(&["guest: report program pod_in 1100 64 8", "guest: report program pod_out 1 32 1"]);
        let differences = other.differences(&recorded);
        assert_eq!(differences.len(), 3, "{differences:?}");
        assert!(differences[0].starts_with("connect4 on Linux 6.12: no such program"), "{differences:?}");
        assert!(differences[1].contains("1100 / 64, and the table says 1000 / 64"), "{differences:?}");
        assert!(differences[2].contains("does not have it") && differences[2].contains("--record"), "{differences:?}");
    }

    #[test]
    fn the_committed_table_is_read() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout");
        let workspace = Workspace { root: root.to_owned(), tools: root.to_owned(), cache: root.to_owned() };
        let recorded = Figures::recorded(&workspace).expect("a table");
        for kernel in KERNELS.iter().filter(|kernel| kernel.proven) {
            assert!(recorded.0.contains_key(kernel.name), "no figures of Linux {}", kernel.name);
        }
        for (kernel, programs) in &recorded.0 {
            for (name, Figure { instructions, .. }) in programs {
                assert!(*instructions <= INSTRUCTIONS_MAX, "{name} on Linux {kernel}: {instructions} instructions");
            }
        }
    }
}
