//! `cargo xtask mutate`: breaks the programs on purpose; for each break some test must fail.

mod table;

use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use duct::cmd;

use self::table::Mutation;
use crate::compile::build_programs;
use crate::process::say;
use crate::setup::{Level, setup};
use crate::test::{Tally, run_on_object};
use crate::toolchain::Toolchain;
use crate::workspace::{Workspace, is_root};

/// At least so many mutations must be there: a ladder that lost its mutations would pass in silence.
const MUTATIONS_MIN: usize = 10;

/// So many are tried in a run of the ladder, each of which costs a build of the programs. Which ones, the commit decides:
/// each commit tries others, and the same commit the same ones. `cargo xtask mutate` tries all.
const MUTATIONS_A_RUN: usize = 16;

/// `cargo xtask mutate`
#[derive(Debug, Args)]
pub struct MutateArgs {
    /// Only mutations whose name contains this.
    filter: Option<String>,
    /// Names and what they break, without a run.
    #[arg(long)]
    list: bool,
}

/// Runs the command.
pub fn run(workspace: &Workspace, args: &MutateArgs) -> Result<()> {
    let mut mutations = read(workspace)?;
    mutations.retain(|m| args.filter.as_ref().is_none_or(|filter| m.name.contains(filter)));
    if args.list {
        for mutation in &mutations {
            println!("{}: {}", mutation.name, mutation.breaks);
        }
        return Ok(());
    }
    if !is_root() {
        bail!("the tests load eBPF programs: run this as root, as in `sudo -E cargo xtask mutate`");
    }
    let toolchain = setup(workspace, Level::Test)?;
    let tally = run_each(workspace, toolchain, &mutations);
    println!("\n{}", tally.line());
    if tally.failed > 0 {
        bail!("{} mutations: {}", tally.failed, tally.failures.join("; "));
    }
    Ok(())
}

/// Runs this commit's share of the mutations, as a rung of the ladder.
pub fn run_share(workspace: &Workspace, toolchain: Toolchain) -> Result<Tally> {
    let mutations = read(workspace)?;
    if mutations.len() < MUTATIONS_MIN {
        bail!("{} mutations in tests/mutations, expected at least {MUTATIONS_MIN}", mutations.len());
    }
    let all = mutations.len();
    let share = share(mutations, &commit(workspace));
    say(&format!("{} of {all} mutations, this commit's share; `cargo xtask mutate` tries all", share.len()));
    Ok(run_each(workspace, toolchain, &share))
}

/// The commit that is checked out; nothing where there is no git.
fn commit(workspace: &Workspace) -> String {
    let head = cmd!("git", "rev-parse", "HEAD").dir(&workspace.root).stderr_null();
    head.read().unwrap_or_default()
}

/// Every n-th mutation from a start that the commit decides: neighbours in the file, which break like things, are
/// spread over the commits.
fn share(mutations: Vec<Mutation>, commit: &str) -> Vec<Mutation> {
    let step = mutations.len().div_ceil(MUTATIONS_A_RUN).max(1);
    let start = commit.bytes().fold(0_usize, |sum, byte| (sum * 31 + usize::from(byte)) % step);
    mutations.into_iter().skip(start).step_by(step).collect()
}

fn read(workspace: &Workspace) -> Result<Vec<Mutation>> {
    table::read(&workspace.root.join("tests/mutations"))
}

/// A mutation passes if a test noticed it. One that cannot be tried fails, and the others are tried none the less.
fn run_each(workspace: &Workspace, toolchain: Toolchain, mutations: &[Mutation]) -> Tally {
    let mut tally = Tally::default();
    for mutation in mutations {
        let started = Instant::now();
        let (word, noticed) = match run_one(workspace, toolchain, mutation) {
            Ok(Some(test)) => (format!("noticed by {test}"), true),
            Ok(None) => (format!("went unnoticed: {}", mutation.breaks), false),
            Err(error) => (format!("could not be tried: {error:#}"), false),
        };
        say(&format!("mutation {:?}: {word} in {:.1} s", mutation.name, started.elapsed().as_secs_f64()));
        tally += Tally::one(&format!("mutation {:?} {word}", mutation.name), noticed);
    }
    tally
}

/// Builds the mutated programs in a scratch folder and runs the tests on them; the first test that failed, if any.
fn run_one(workspace: &Workspace, toolchain: Toolchain, mutation: &Mutation) -> Result<Option<String>> {
    let scratch = workspace.target().join("mutations");
    let copy = scratch.join("checkout");
    copy_programs(&workspace.root, &copy)?;
    for edit in &mutation.edits {
        table::apply(&copy, edit)?;
    }
    let object = scratch.join("mutated.o");
    // A target folder of its own, kept between mutations: the crates below the programs are built once.
    build_programs(workspace, toolchain, &copy.join("lb-ebpf"), &scratch.join("target"), &object)?;
    for test in &mutation.tests {
        let tally = run_on_object(workspace, test, &object)?;
        if let Some(failure) = tally.failures.first() {
            return Ok(Some(failure.clone()));
        }
    }
    Ok(None)
}

/// Copies what the programs are built from. The workspace file comes along, for lb-common inherits from it; it names
/// lb-common alone.
fn copy_programs(root: &Path, copy: &Path) -> Result<()> {
    if copy.exists() {
        fs::remove_dir_all(copy).with_context(|| format!("cannot clear {}", copy.display()))?;
    }
    for folder in ["lb-ebpf", "lb-common"] {
        copy_folder(&root.join(folder), &copy.join(folder))?;
    }
    let text = fs::read_to_string(root.join("Cargo.toml")).context("cannot read the workspace's Cargo.toml")?;
    let mut manifest: toml::Table = text.parse().context("the workspace's Cargo.toml is not TOML")?;
    let workspace = manifest.get_mut("workspace").and_then(toml::Value::as_table_mut).context("no [workspace]")?;
    workspace.insert("members".into(), vec!["lb-common"].into());
    workspace.remove("default-members");
    fs::write(copy.join("Cargo.toml"), manifest.to_string()).context("cannot write the copied Cargo.toml")
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_name() == "target" {
            continue;
        }
        if entry.file_type()?.is_dir() {
            copy_folder(&source, &target)?;
        } else {
            fs::copy(&source, &target).with_context(|| format!("cannot copy {}", source.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_all_commits_are_all_mutations() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/mutations");
        let all = || table::read(&folder).expect("the table");
        let mut missed: Vec<String> = all().into_iter().map(|mutation| mutation.name).collect();
        for commit in 0..64 {
            let share = share(all(), &format!("{commit:x}"));
            assert!(
                share.len() <= MUTATIONS_A_RUN && share.len() + 1 >= MUTATIONS_A_RUN / 2,
                "{} in a share",
                share.len()
            );
            missed.retain(|name| share.iter().all(|mutation| mutation.name != *name));
        }
        assert!(missed.is_empty(), "no commit tries {missed:?}");
    }

    #[test]
    fn the_copy_holds_the_programs_and_a_workspace_of_lb_common_alone() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout");
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let copy = scratch.path().join("checkout");
        copy_programs(root, &copy).expect("copied");
        copy_programs(root, &copy).expect("copied again over the first");
        assert!(copy.join("lb-ebpf/Cargo.lock").exists() && copy.join("lb-common/src/abi.rs").exists());
        assert!(!copy.join("lb-ebpf/target").exists());
        let manifest = fs::read_to_string(copy.join("Cargo.toml")).expect("written");
        assert!(manifest.contains("members = [\"lb-common\"]"), "{manifest}");
        assert!(manifest.contains("edition"), "what lb-common inherits is there: {manifest}");
    }
}
