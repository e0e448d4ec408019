//! `cargo xtask mutate`: breaks the programs on purpose; for each break some test must fail.

mod checkout;
mod failures;
mod generated;
mod host;
mod seeded;
mod table;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use duct::cmd;

pub use self::checkout::Checkout;
pub use self::table::{Mutation, read as read_table};
use crate::compile;
use crate::process::say;
use crate::setup::{Level, setup};
use crate::test::Tally;
use crate::toolchain::Toolchain;
use crate::workspace::{Workspace, is_root};

/// At least so many mutations must be there: a ladder that lost its mutations would pass in silence.
const MUTATIONS_MIN: usize = 10;

/// So many are tried in a run of the ladder. The commit decides which ones: each commit tries others, and the same commit the same
/// ones. `cargo xtask mutate` tries all.
const MUTATIONS_A_RUN: usize = 10;

/// `cargo xtask mutate`
#[derive(Debug, Args)]
pub struct MutateArgs {
    /// Only seeded mutations whose name contains this; with --generated, mutants that this regular expression fits.
    filter: Option<String>,
    /// Only the mutants that cargo-mutants makes; without this and without a filter, the seeded mutations and these.
    #[arg(long)]
    generated: bool,
    /// Only this commit's part of the sample of these, as in the ladder.
    #[arg(long, conflicts_with_all = ["filter", "generated", "minutes", "list"])]
    sample: bool,
    /// How long cargo-mutants may take, in minutes; else until all mutants are tried.
    #[arg(long, value_name = "N")]
    minutes: Option<u64>,
    /// Names of the seeded mutations and what they break, without a run.
    #[arg(long, conflicts_with = "generated")]
    list: bool,
}

/// Runs the command.
pub fn run(workspace: &Workspace, args: &MutateArgs) -> Result<()> {
    let time = args.minutes.map(Duration::from_mins);
    if args.sample {
        host::check_unmutated(workspace)?;
        return conclude(&generated::run_sample(workspace, &commit(workspace))?);
    }
    if args.generated {
        return conclude(&generated::run_all(workspace, args.filter.as_deref(), time)?);
    }
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
    // Rungs that start the agent give it the mutated programs.
    compile::build(workspace, toolchain, false)?;
    host::check_unmutated(workspace)?;
    let mut tally = run_seeded(workspace, toolchain, &mutations);
    if args.filter.is_none() {
        tally += generated::run_all(workspace, None, time)?;
    }
    conclude(&tally)
}

fn conclude(tally: &Tally) -> Result<()> {
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
    let commit = commit(workspace);
    let share = share(mutations, &commit);
    say(&format!("{} of {all} mutations, this commit's share; `cargo xtask mutate` tries all", share.len()));
    host::check_unmutated(workspace)?;
    // The seeded ones are tried even if cargo-mutants cannot be.
    let mut tally = generated::run_sample(workspace, &commit)
        .unwrap_or_else(|error| Tally::one(&format!("mutants of cargo-mutants: {error:#}"), false));
    tally += run_seeded(workspace, toolchain, &share);
    Ok(tally)
}

/// The commit that is checked out; nothing where there is no git.
fn commit(workspace: &Workspace) -> String {
    let head = cmd!("git", "rev-parse", "HEAD").dir(&workspace.root).stderr_null();
    head.read().unwrap_or_default()
}

/// A number below `bound` that the commit decides.
fn chosen(commit: &str, bound: usize) -> usize {
    commit.bytes().fold(0_usize, |sum, byte| (sum * 31 + usize::from(byte)) % bound)
}

/// Every n-th mutation from a start that the commit decides: neighbours in the file, which break like things, are
/// spread over the commits.
fn share(mutations: Vec<Mutation>, commit: &str) -> Vec<Mutation> {
    let step = mutations.len().div_ceil(MUTATIONS_A_RUN).max(1);
    mutations.into_iter().skip(chosen(commit, step)).step_by(step).collect()
}

fn read(workspace: &Workspace) -> Result<Vec<Mutation>> {
    table::read(&workspace.root.join("tests/mutations"))
}

/// A mutation passes if a test noticed it. One that cannot be tried fails, and the others are tried none the less.
fn run_seeded(workspace: &Workspace, toolchain: Toolchain, mutations: &[Mutation]) -> Tally {
    let mut tally = Tally::default();
    // The cheap ones first.
    let (on_host, others): (Vec<_>, Vec<_>) = mutations.iter().partition(|mutation| mutation.is_on_host());
    for mutation in on_host.into_iter().chain(others) {
        let started = Instant::now();
        let (word, noticed) = match seeded::judge(workspace, toolchain, mutation) {
            Ok(Some(noticed)) => (format!("noticed in {} by {}", noticed.rung, noticed.test), true),
            Ok(None) => (format!("went unnoticed: {}", mutation.breaks), false),
            Err(error) => (format!("could not be tried: {error:#}"), false),
        };
        say(&format!("mutation {:?}: {word} in {:.1} s", mutation.name, started.elapsed().as_secs_f64()));
        tally += Tally::one(&format!("mutation {:?} {word}", mutation.name), noticed);
    }
    tally
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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
}
