//! `cargo xtask test`: the ladder of all tests, in a short form for each change and a long one for what takes hours.

mod binaries;
#[cfg(test)]
mod book_tests;
mod confined;
mod results;
mod rung;
mod stall;
mod tally;
mod work;

use std::collections::{BTreeSet, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use duct::{Expression, cmd};

pub use binaries::{Built, Module, executable, modules, tests_of_module};
pub use tally::Tally;
pub use work::{RungArgs, run as run_rung};

use binaries::BINARIES;
use results::{Outcome, Source, keep, kept};
use rung::{Lane, Rung, ladder, select};
use stall::Running;
use work::Measured;

use crate::compile::Build;
use crate::edited;
use crate::process::{run_unseen, run_watched, say};
use crate::setup::{Level, setup_and_build};
use crate::toolchain::clean_cargo_env;
use crate::workspace::{Workspace, is_root};

/// The variables that tests read: the form, and the seed of random tests.
pub const FORM: &str = "BALLAST_FORM";
pub const SEED: &str = "BALLAST_TEST_SEED";

/// So many rungs with networks run at a time: they mostly wait, or have the kernel verify programs.
const NETWORK_LANES: u32 = 3;

/// `cargo xtask test`
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub struct TestArgs {
    /// Run only these rungs (repeatable); `--list` names them, and `--rung drain` takes the plain agent where the ladder has `confined_drain`.
    #[arg(long = "rung", value_name = "NAME")]
    rungs: Vec<String>,
    /// Run what a change most often breaks: format, unit and, as root, the rungs that are quick. At most two minutes.
    #[arg(long, conflicts_with_all = ["rungs", "long"])]
    quick: bool,
    /// The long form: every case, all mutations, all guests. It takes hours, and goes on where it stopped: a rung that passed is not run
    /// again on the same files.
    #[arg(long)]
    long: bool,
    /// Run again what passed in the long form.
    #[arg(long, requires = "long")]
    again: bool,
    /// List the rungs and exit.
    #[arg(long)]
    list: bool,
    /// Only the tests of these rungs whose name contains this.
    #[arg(last = true, value_name = "FILTER", requires = "rungs")]
    filter: Option<String>,
}

/// The name of a form, as [`FORM`] has it.
fn form(is_long: bool) -> &'static str {
    if is_long { "long" } else { "short" }
}

/// What all rungs share.
struct Run<'a> {
    workspace: &'a Workspace,
    args: &'a TestArgs,
    /// Tells the results of this run from those of others.
    id: String,
    seed: u64,
    source: Source,
    started: Instant,
    /// The rungs of the whole ladder; none if only some of them run.
    expected: BTreeSet<String>,
    running: Running,
    outcomes: Mutex<Vec<Outcome>>,
}

/// Runs the ladder; fails if anything did.
pub fn run(workspace: &Workspace, args: &TestArgs) -> Result<()> {
    let mut rungs = select(ladder(&workspace.root, args.long)?, args)?;
    if args.quick && !is_root() {
        say("not root: the rungs that load programs are left out");
        rungs.retain(|rung| !rung.needs_root());
    }
    if args.list {
        for rung in &rungs {
            println!("{}", rung.name);
        }
        return Ok(());
    }
    if !is_root() && rungs.iter().any(Rung::needs_root) {
        bail!(
            "these rungs load eBPF programs and make network namespaces: run them as root, as in `sudo -E cargo xtask test`; \
             `cargo xtask test --quick` runs what needs no root"
        );
    }
    let seed = match std::env::var(SEED) {
        Ok(seed) => seed.parse().with_context(|| format!("{SEED}={seed} is no number"))?,
        // Tests count up from it, and have room to do so.
        Err(_) => RandomState::new().hash_one(std::process::id()) >> 16,
    };
    let is_whole = args.rungs.is_empty() && !args.quick;
    let run = Run {
        workspace,
        args,
        id: seed.to_string(),
        seed,
        source: Source::of(workspace),
        started: Instant::now(),
        expected: rungs.iter().filter(|_| is_whole).map(|rung| rung.name.clone()).collect(),
        running: Running::default(),
        outcomes: Mutex::default(),
    };
    run.report(&[])?;
    if let Some(level) = rungs.iter().filter_map(Rung::level).max() {
        setup_and_build(workspace, level, &[Build::Programs, Build::Agent])?;
    }
    let is_needed = |binary: &&str| rungs.iter().any(|rung| rung.binaries().contains(binary));
    let binaries: Vec<&str> = BINARIES.into_iter().filter(is_needed).collect();
    keep(workspace, "built", &run.id, &Built::build(workspace, &binaries)?)?;
    let prepared = run.started.elapsed().as_secs_f64();
    let watch = (!args.long).then(|| run.running.watch());
    run.climb(&rungs);
    drop(watch);
    let outcomes = run.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
    let total = results::summary(prepared, &outcomes, seed, args.long);
    if total.failed > 0 {
        bail!("{} of {} tests failed", total.failed, total.passed + total.failed);
    }
    Ok(())
}

/// Writes the pages of the book that are generated from code: the tests that compare them do it.
pub fn write_pages(workspace: &Workspace) -> Result<()> {
    if !is_root() {
        bail!("a page lists what a running agent exposes: run `sudo -E cargo xtask reference`");
    }
    setup_and_build(workspace, Level::Run, &[Build::Programs, Build::Agent])?;
    let built = Built::build(workspace, &["namespaces"])?;
    let running = Module { binary: "namespaces", name: "reference".to_owned() };
    let commands = [
        cmd!("cargo", "test", "--locked", "--package", "lb-userspace", "the_reference_has").dir(&workspace.root),
        built.command(workspace, &running, None)?,
    ];
    for command in commands {
        let command = test_environment(workspace, &command, &workspace.object()).env("BALLAST_WRITE_PAGES", "1");
        if !run_watched("reference", &command, |_| {})? {
            bail!("the pages could not be written");
        }
    }
    Ok(())
}

impl Run<'_> {
    /// Runs the rungs: some with networks at a time beside those without. Each has names, folders and control groups of its own.
    fn climb(&self, rungs: &[Rung]) {
        let of = |lane| Mutex::new(rungs.iter().filter(|rung| rung.lane == lane).collect::<VecDeque<_>>());
        let (first, side_by_side): (Vec<_>, Vec<_>) = rungs.iter().partition(|rung| rung.lane == Lane::First);
        for rung in first {
            self.one(rung, true);
        }
        let is_shown = side_by_side.len() < 2;
        let [networks, beside, background] = [Lane::Networks, Lane::Beside, Lane::Background].map(of);
        let in_turn = |lane: &Mutex<VecDeque<&Rung>>| {
            let next = || lane.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            std::iter::from_fn(next).for_each(|rung| self.one(rung, is_shown));
        };
        std::thread::scope(|scope| {
            let lanes = (0..NETWORK_LANES).map(|_| &networks).chain([&beside, &background]);
            lanes.for_each(|lane| _ = scope.spawn(move || in_turn(lane)));
        });
    }

    /// Runs a rung in a process of its own. `is_shown`: line by line; else at its end, since another rung writes meanwhile.
    fn one(&self, rung: &Rung, is_shown: bool) {
        let outcome = self.passed_before(rung).unwrap_or_else(|| {
            say(&format!("rung {}", rung.name));
            self.running.begin(&rung.name);
            let started = Instant::now();
            let measured = self.measured(rung, is_shown);
            self.running.end(&rung.name);
            let (tally, processors) =
                measured.unwrap_or_else(|error| (Tally::one(&format!("{}: {error:#}", rung.name), false), 0.0));
            let seconds = started.elapsed().as_secs_f64();
            let (name, budget) = (rung.name.clone(), rung.budget(self.args.long));
            let outcome = Outcome { name, budget, seconds, cpu: processors / seconds, tally };
            say(&format!("rung {}: {} in {seconds:.1} s", rung.name, outcome.tally.line()));
            if !outcome.passed() {
                say(&format!("again: {}", outcome.repeat(self.seed, self.args.long)));
            }
            outcome
        });
        let mut outcomes = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        outcomes.push(outcome);
        if let Err(error) = self.report(&outcomes) {
            say(&format!("{error:#}"));
        }
    }

    fn passed_before(&self, rung: &Rung) -> Option<Outcome> {
        let TestArgs { long: true, again: false, filter: None, .. } = self.args else { return None };
        let outcome: Outcome = kept(self.workspace, &format!("long-{}", rung.name), &self.source.tree)?;
        say(&format!("rung {} passed before, on the same files; `--again` runs it again", rung.name));
        Some(outcome)
    }

    fn measured(&self, rung: &Rung, is_shown: bool) -> Result<Measured> {
        let xtask = std::env::current_exe().context("the path of xtask itself")?;
        let again = self.args.again.then_some("--again");
        let filter = self.args.filter.iter().flat_map(|filter| ["--", filter]);
        let words = ["rung", &rung.name, "--run", &self.id].into_iter().chain(again).chain(filter);
        let command = cmd(xtask, words).env(FORM, form(self.args.long)).env(SEED, self.seed.to_string());
        let ended = if is_shown {
            run_watched(&rung.name, &command, |line| self.running.line(&rung.name, line))?
        } else {
            let mut lines = Vec::new();
            let ended = run_unseen(&rung.name, &command, |line| {
                self.running.line(&rung.name, line);
                lines.push(line.to_owned());
            })?;
            println!("{}", lines.join("\n"));
            ended
        };
        // A run of the same seed may have left a result.
        ensure!(ended, "it did not end");
        kept(self.workspace, &format!("rung-{}", rung.name), &self.id).context("it did not end")
    }

    /// Writes `target/ladder.json`, and keeps what passed in the long form.
    fn report(&self, outcomes: &[Outcome]) -> Result<()> {
        if let Some(last) = outcomes.last()
            && self.args.long
            && self.args.filter.is_none()
            && last.passed()
            && self.source.is_still_of(self.workspace)
        {
            keep(self.workspace, &format!("long-{}", last.name), &self.source.tree, last)?;
        }
        if self.expected.is_empty() {
            return Ok(());
        }
        let seconds = self.started.elapsed().as_secs_f64();
        results::report(self.workspace, &self.source, self.args.long, seconds, &self.expected, outcomes)
    }
}

/// The module that a rung of this name runs.
pub fn module_of(root: &Path, name: &str) -> Result<Module> {
    let module = modules(root)?.into_iter().find(|module| module.name == name);
    module.with_context(|| format!("no rung is called {name:?}"))
}

/// The rung, and the part of test names that `rung` or `rung::part` asks for.
pub fn rung_and_filter(tests: &str) -> (&str, Option<&str>) {
    tests.split_once("::").map_or((tests, None), |(rung, filter)| (rung, Some(filter)))
}

/// Runs a rung, or those of its tests that are asked for, on other programs than the workspace's own, with nothing shown: what fails there
/// shall fail. Tests that edit programs edit those of the checkout `source`. `variable` is added to their environment.
pub fn run_on_object(
    workspace: &Workspace,
    built: &Built,
    tests: &str,
    object: &Path,
    source: &Path,
    variable: (&str, &str),
    each: impl FnMut(&str),
) -> Result<bool> {
    let (name, filter) = rung_and_filter(tests);
    let module = module_of(&workspace.root, name)?;
    let command = built.command(workspace, &module, filter)?;
    let command = test_environment(workspace, &command, object).env(edited::SOURCE, source).env(variable.0, variable.1);
    run_unseen(name, &command, each)
}

/// The environment of every test. Where it is compiled is the caller's to say.
fn test_environment(workspace: &Workspace, command: &Expression, object: &Path) -> Expression {
    let command = command
        // What is compiled is the same for every rung, whatever programs its tests load: else those at the same time compile anew by turns.
        .env("BALLAST_EBPF_OBJECT", workspace.object())
        .env("BALLAST_TEST_OBJECT", object)
        .env("BALLAST_BIN", workspace.agent(false))
        .env("KUBEBUILDER_ASSETS", workspace.kube_assets())
        .env("PATH", workspace.path())
        .env("CARGO_TERM_COLOR", "never")
        // Where a test stands says its name; a page of frames each hides it.
        .env("RUST_BACKTRACE", "0");
    clean_cargo_env(command)
}

#[cfg(test)]
impl TestArgs {
    /// As the command line has them.
    fn of(arguments: &[&str]) -> Self {
        use clap::Parser as _;
        let words = ["xtask", "test"].into_iter().chain(arguments.iter().copied());
        let crate::Command::Test(args) = crate::Cli::parse_from(words).command else { panic!("another command") };
        args
    }
}
