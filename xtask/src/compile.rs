//! Builds the eBPF object, then the agent that embeds it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use duct::{Expression, Handle, cmd};
use object::{Object as _, ObjectSection as _};

use crate::process::{run_shown, say};
use crate::progress::Step;
use crate::toolchain::{DEBIAN_LLVM, Toolchain, clean_cargo_env};
use crate::workspace::{Workspace, which};

/// File name of the object as cargo leaves it.
const BUILT_NAME: &str = "ballast";

/// Builds the programs of `source` (the folder `lb-ebpf` or a copy of it) and puts the object at `object`.
pub fn build_programs(
    workspace: &Workspace,
    toolchain: Toolchain,
    source: &Path,
    target: &Path,
    object: &Path,
) -> Result<()> {
    if !source.join("Cargo.toml").exists() {
        bail!("the eBPF programs are not where they should be: {} is missing", source.join("Cargo.toml").display());
    }
    begin_with_built_crates(workspace, target)?;
    run_shown("building the eBPF programs", &toolchain.build(workspace, source, target))?;
    let built = strip(&target.join("bpfel-unknown-none/release").join(BUILT_NAME))?;
    let folder = object.parent().context("the object has a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let fresh = fs::read(&built).with_context(|| format!("no object at {}", built.display()))?;
    let lost = tail_calls(&functions(&fresh)?);
    ensure!(
        lost == 0,
        "{lost} tail calls in functions of the eBPF programs: the verdict of one that fails is lost (ADR 0030)"
    );
    // Cargo rebuilds the agent when the file changes: leave it alone if it would stay the same.
    if fs::read(object).is_ok_and(|old| old == fresh) {
        return Ok(());
    }
    fs::write(object, &fresh).with_context(|| format!("cannot write {}", object.display()))?;
    say(&format!("eBPF object: {} ({} bytes)", object.display(), fresh.len()));
    Ok(())
}

/// A new target folder begins as a copy of that of the programs themselves: the crates below them are not compiled again, which takes two
/// thirds of the time.
fn begin_with_built_crates(workspace: &Workspace, target: &Path) -> Result<()> {
    let built = target_of_the_programs(workspace);
    if target.exists() || !built.exists() {
        return Ok(());
    }
    let part = target.with_extension("part");
    run_shown("copying the crates below the programs", &cmd!("cp", "-a", "--no-target-directory", &built, &part))?;
    fs::rename(&part, target).with_context(|| format!("cannot make {}", target.display()))
}

fn target_of_the_programs(workspace: &Workspace) -> PathBuf {
    workspace.target().join("ebpf")
}

/// Takes the DWARF out: four fifths of the object, and the kernel reads line numbers and types from BTF. An LLVM without
/// its strip leaves it in, which costs memory and nothing else.
fn strip(built: &Path) -> Result<PathBuf> {
    let debian = Path::new(DEBIAN_LLVM).join("bin/llvm-strip");
    let Some(strip) = debian.exists().then_some(debian).or_else(|| which("llvm-strip")) else {
        return Ok(built.to_path_buf());
    };
    let stripped = built.with_extension("stripped");
    run_shown("stripping the eBPF object", &cmd!(strip, "--strip-debug", "-o", &stripped, built))?;
    Ok(stripped)
}

/// The code of the functions that programs call. Programs have sections of their own.
fn functions(object: &[u8]) -> Result<Vec<u8>> {
    let elf = object::File::parse(object).context("the eBPF object is no ELF file")?;
    let section = elf.section_by_name(".text").context("the eBPF object has no functions")?;
    Ok(section.data()?.to_vec())
}

/// How many instructions of this code are tail calls.
fn tail_calls(code: &[u8]) -> usize {
    /// `BPF_JMP | BPF_CALL` of a helper, and `bpf_tail_call` (`enum bpf_func_id`).
    const CALL: [u8; 2] = [0x85, 0];
    const TAIL_CALL: i32 = 12;
    let (instructions, _) = code.as_chunks::<8>();
    let is_tail_call = |[code, registers, _, _, constant @ ..]: &&[u8; 8]| {
        [*code, registers >> 4] == CALL && i32::from_le_bytes(*constant) == TAIL_CALL
    };
    instructions.iter().filter(is_tail_call).count()
}

/// Builds the programs and the agent.
pub fn build(workspace: &Workspace, toolchain: Toolchain, release: bool) -> Result<()> {
    Build::Programs.run(workspace, toolchain)?;
    Build::agent(release).run(workspace, toolchain)
}

/// What a command has to compile before it starts, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    Programs,
    Agent,
    /// The agent with optimisation.
    Release,
    /// The agent and the demo, which plays on the topology of the tests, and so lives in their package.
    Tour,
}

impl Build {
    /// The agent, with optimisation or without.
    pub fn agent(release: bool) -> Self {
        if release { Self::Release } else { Self::Agent }
    }

    /// About how long it takes: the first time all crates are compiled, later what changed.
    pub fn step(self, workspace: &Workspace) -> Step {
        let (name, seconds, again, product) = match self {
            Self::Programs => ("eBPF programs", 30, 5, workspace.object()),
            Self::Agent => ("agent", 120, 10, workspace.agent(false)),
            Self::Release => ("optimised agent", 370, 60, workspace.agent(true)),
            Self::Tour => ("agent and demo", 150, 20, workspace.demo()),
        };
        let seconds = if product.exists() { again } else { seconds };
        Step { name: format!("compiling {name}"), estimate: Duration::from_secs(seconds) }
    }

    pub fn run(self, workspace: &Workspace, toolchain: Toolchain) -> Result<()> {
        if self == Self::Programs {
            let (source, target) = (workspace.root.join("lb-ebpf"), target_of_the_programs(workspace));
            return build_programs(workspace, toolchain, &source, &target, &workspace.object());
        }
        run_shown("building the agent", &self.command(workspace, &[]))?;
        say(&format!("agent: {}", workspace.agent(self == Self::Release).display()));
        Ok(())
    }

    /// Begins to compile the crates below the agent, while other things are installed. The agent embeds the programs: until they are there
    /// cargo ends before the agent itself.
    pub fn begin(self, workspace: &Workspace) -> Result<Option<Handle>> {
        if self == Self::Programs || workspace.object().exists() {
            return Ok(None);
        }
        let command = self.command(workspace, &["--keep-going"]).stderr_to_stdout().unchecked();
        command.stdout_path(workspace.logs()?.join("crates.log")).start().map(Some).context("starting cargo")
    }

    fn command(self, workspace: &Workspace, more: &[&str]) -> Expression {
        // With the features that the tests need, so that cargo compiles the library once for the agent and for them.
        let how: &[&str] = match self {
            Self::Release => &["--profile", "release"],
            Self::Tour => &["-p", "lb-tests", "--bin", "ballast-demo"],
            Self::Programs | Self::Agent => &["-p", "lb-tests"],
        };
        let words = ["build", "--locked", "-p", "lb-userspace", "--bin", "ballast"].iter().chain(how).chain(more);
        let command = cmd("cargo", words).env("BALLAST_EBPF_OBJECT", workspace.object()).dir(&workspace.root);
        // Standard output belongs to what the commands produce.
        clean_cargo_env(command.stdout_to_stderr())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Each package in the tree of these arguments, with its version and features.
    #[test]
    fn tail_calls_are_told_from_other_calls() {
        let (tail_call, helper, function) =
            ([0x85, 0, 0, 0, 12, 0, 0, 0], [0x85, 0, 0, 0, 13, 0, 0, 0], [0x85, 0x10, 0, 0, 12, 0, 0, 0]);
        assert_eq!(tail_calls(&[helper, tail_call, function, tail_call].concat()), 2);
        assert_eq!(tail_calls(&[helper, function].concat()), 0);
    }

    fn tree(arguments: &[&str]) -> BTreeSet<String> {
        let fixed = ["tree", "--locked", "--offline", "--prefix=none", "--no-dedupe", "--format={p} {f}"];
        let command = cmd("cargo", fixed.iter().chain(arguments)).dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        clean_cargo_env(command)
            .read()
            .expect("cargo tree")
            .lines()
            .map(|line| line.trim_end_matches(" (*)").to_owned())
            .collect()
    }

    /// Else cargo compiles the library of the agent, which takes most of the time, once for each set of features.
    #[test]
    fn the_agent_and_all_tests_have_one_set_of_features() {
        let agent = tree(&["-p=lb-userspace", "-p=lb-tests", "-e=normal"]);
        let package = |line: &str| line.split(' ').take(2).map(str::to_owned).collect::<Vec<_>>();
        let packages: BTreeSet<_> = tree(&["-p=lb-userspace", "-e=normal"]).iter().map(|line| package(line)).collect();
        let of_the_agent = |all: BTreeSet<String>| -> BTreeSet<String> {
            all.into_iter().filter(|line| packages.contains(&package(line))).collect()
        };
        let agent = of_the_agent(agent);
        assert!(agent.len() > 100, "{agent:?}");
        for tests in [&["-e=normal,dev"][..], &["-p=lb-tests", "-e=normal,dev"]] {
            let others = of_the_agent(tree(tests));
            let different: Vec<_> = agent.symmetric_difference(&others).collect();
            assert!(different.is_empty(), "{tests:?}: {different:?}");
        }
    }
}
