//! `cargo xtask mutate`: breaks the programs on purpose; for each break some test must fail.

mod checkout;
mod failures;
mod generated;
mod seeded;
mod table;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

pub use self::checkout::{Checkout, remove};
pub use self::generated::{Part, USERSPACE};
pub use self::table::{Mutation, read as read_table};
use crate::compile;
use crate::process::say;
use crate::setup::{Level, setup};
use crate::test::{Built, Tally, module_of, rung_and_filter};
use crate::toolchain::Toolchain;
use crate::workspace::{Workspace, is_root};

/// At least so many mutations must be there: a ladder that lost its mutations would pass in silence.
const MUTATIONS_MIN: usize = 10;

/// So many are in the share of a run of the ladder. Each commit tries the same ones, so that none fails by chance. `cargo xtask mutate` tries all.
const MUTATIONS_A_RUN: usize = 3;

/// The binaries whose tests judge mutations of the programs.
pub const JUDGES: [&str; 3] = ["core", "packets", "namespaces"];

/// Random tests ask the same in each run: a mutation that they notice stays noticed, here and elsewhere.
const SEED: (&str, &str) = ("BALLAST_TEST_SEED", "1");

/// `cargo xtask mutate`
#[derive(Debug, Args)]
pub struct MutateArgs {
    /// Only seeded mutations whose name contains this; with --generated, mutants that this regular expression fits.
    filter: Option<String>,
    /// Only seeded mutations that edit this file, or one in this folder.
    #[arg(long, value_name = "PATH", conflicts_with = "generated")]
    file: Option<String>,
    /// Only seeded mutations from this one on, in the order of a run: to go on where one stopped.
    #[arg(long, value_name = "NAME", conflicts_with = "generated")]
    from: Option<String>,
    /// Only the mutants that cargo-mutants makes; without this and without a choice, the seeded mutations and these.
    #[arg(long)]
    generated: bool,
    /// Only one of N equal parts of the mutants that cargo-mutants makes: the K-th one, from 1 on.
    #[arg(long, value_name = "K/N", value_parser = Part::parse, conflicts_with = "list")]
    part: Option<Part>,
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
    if args.generated {
        return conclude(&generated::run_all(workspace, args.filter.as_deref(), args.part, time)?);
    }
    let mutations = selected(read(workspace)?, args)?;
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
    let built = Built::build(workspace, &judges(&workspace.root, &mutations)?)?;
    let mut tally = run_seeded(workspace, toolchain, &built, &mutations);
    if args.filter.is_none() && args.file.is_none() && args.from.is_none() {
        tally += generated::run_all(workspace, None, args.part, time)?;
    }
    conclude(&tally)
}

/// The seeded mutations that the arguments choose.
fn selected(mut mutations: Vec<Mutation>, args: &MutateArgs) -> Result<Vec<Mutation>> {
    if let Some(from) = &args.from {
        let first = mutations.iter().position(|mutation| mutation.name == *from);
        mutations.drain(..first.with_context(|| format!("no mutation is called {from:?}"))?);
    }
    mutations.retain(|mutation| {
        args.filter.as_ref().is_none_or(|filter| mutation.name.contains(filter))
            && args.file.as_ref().is_none_or(|path| mutation.edits.iter().any(|edit| edit.file.starts_with(path)))
    });
    if mutations.is_empty() {
        bail!("the arguments choose no mutation; see `cargo xtask mutate --list`");
    }
    Ok(mutations)
}

fn conclude(tally: &Tally) -> Result<()> {
    println!("\n{}", tally.line());
    if tally.failed > 0 {
        bail!("{} mutations: {}", tally.failed, tally.failures.join("; "));
    }
    Ok(())
}

/// Runs a share of the seeded mutations, as a rung of the ladder.
pub fn run_share(workspace: &Workspace, toolchain: Toolchain, built: &Built) -> Result<Tally> {
    let mutations = read(workspace)?;
    let all = mutations.len();
    let share = spread(mutations);
    say(&format!("{} of {all} mutations; `cargo xtask mutate` tries all", share.len()));
    Ok(run_seeded(workspace, toolchain, built, &share))
}

/// Tries a part of all mutations, seeded ones and those of cargo-mutants.
pub fn run_part(workspace: &Workspace, toolchain: Toolchain, built: &Built, part: Part) -> Result<Tally> {
    let seeded = part.of(read(workspace)?.into_iter());
    let mut tally = run_seeded(workspace, toolchain, built, &seeded);
    tally += generated::run_all(workspace, None, Some(part), None)?;
    Ok(tally)
}

/// The binaries that judge these mutations.
fn judges(root: &Path, mutations: &[Mutation]) -> Result<Vec<&'static str>> {
    let tests = mutations.iter().flat_map(|mutation| &mutation.tests);
    let all: BTreeSet<_> =
        tests.map(|tests| Ok(module_of(root, rung_and_filter(tests).0)?.binary)).collect::<Result<_>>()?;
    Ok(all.into_iter().collect())
}

/// Every n-th mutation, from the middle of the first n on: neighbours in the file break like things.
fn spread(mutations: Vec<Mutation>) -> Vec<Mutation> {
    let step = mutations.len().div_ceil(MUTATIONS_A_RUN).max(1);
    mutations.into_iter().skip(step / 2).step_by(step).collect()
}

fn read(workspace: &Workspace) -> Result<Vec<Mutation>> {
    let mutations = table::read(&workspace.root.join("tests/mutations"))?;
    ensure!(
        mutations.len() >= MUTATIONS_MIN,
        "{} mutations in tests/mutations, expected at least {MUTATIONS_MIN}",
        mutations.len()
    );
    Ok(mutations)
}

/// A mutation passes if a test noticed it. One that cannot be tried fails, and the others are tried none the less.
fn run_seeded(workspace: &Workspace, toolchain: Toolchain, built: &Built, mutations: &[Mutation]) -> Tally {
    let mut tally = Tally::default();
    for mutation in mutations {
        let started = Instant::now();
        let (word, noticed) = match seeded::judge(workspace, toolchain, built, mutation) {
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
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        mutate: MutateArgs,
    }

    fn names(arguments: &[&str]) -> Result<Vec<String>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/mutations");
        let args = Cli::try_parse_from([&["mutate"], arguments].concat()).expect("arguments").mutate;
        Ok(selected(table::read(&folder)?, &args)?.into_iter().map(|mutation| mutation.name).collect())
    }

    #[test]
    fn mutations_are_chosen_by_name_by_file_and_from_where_a_run_stopped() {
        assert_eq!(names(&["bucket never"]).expect("one"), ["bucket never empty"]);
        let tc = names(&["--file", "lb-ebpf/src/tc"]).expect("some");
        assert!(!tc.is_empty() && tc.len() < names(&[]).expect("all").len());
        let rest = names(&["--file", "lb-ebpf/src/tc", "--from", &tc[3]]).expect("the rest");
        assert_eq!(rest, tc[3..]);
        assert!(names(&["--from", "none of this name"]).is_err(), "a name that is misspelt skips nothing");
        assert!(names(&["no mutation is called so"]).is_err());
    }

    #[test]
    fn a_share_has_some_of_all() {
        let all = table::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/mutations")).expect("the table");
        let few = spread(all).len();
        assert!(few <= MUTATIONS_A_RUN && few + 1 >= MUTATIONS_A_RUN, "{few} in a share");
    }
}
