//! `cargo xtask test`: every rung of the ladder, cheapest first.

mod binaries;
#[cfg(test)]
mod book_tests;
mod confined;
mod rung;
mod stall;
mod tally;

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use duct::{Expression, cmd};

pub use binaries::{Built, Module, executable, modules, tests_of_module};
pub use tally::Tally;
use tally::ended_test;

use binaries::BINARIES;
use confined::Confined;
use rung::{Lane, Rung, ladder, level, longest_first, select};
use stall::Running;

use crate::compile::Build;
use crate::image::binary::Profile;
use crate::process::{run_unseen, run_watched, say};
use crate::setup::{self, Level, setup_and_build};
use crate::toolchain::{Toolchain, clean_cargo_env};
use crate::workspace::{Workspace, is_root};
use crate::{arm64, edited, lint, mutate, vm};

/// `cargo xtask test`
#[derive(Debug, Args)]
pub struct TestArgs {
    /// Run only these rungs (repeatable): format, lint, deny, book, unit, harness, kernels, guests, arm64, mutations, demo, or a module of a test binary of `tests/`.
    #[arg(long = "rung", value_name = "NAME")]
    rungs: Vec<String>,
    /// Run what a change most often breaks: format, unit and, as root, the rungs that are quick. At most two minutes.
    #[arg(long, conflicts_with = "rungs")]
    quick: bool,
    /// The confined rungs run the agent as it is released, which takes minutes to compile.
    #[arg(long)]
    released: bool,
    /// List the rungs and exit.
    #[arg(long)]
    list: bool,
    /// Only the tests of these rungs whose name contains this.
    #[arg(last = true, value_name = "FILTER", requires = "rungs")]
    filter: Option<String>,
}

/// So many rungs with networks run at a time.
const NETWORK_LANES: usize = 3;

/// So many of the slowest tests are named at the end: they are where the ladder's time can be saved.
const SLOWEST: usize = 12;

/// What became of a rung.
struct Outcome {
    rung: String,
    tally: Tally,
    time: Duration,
}

/// What all rungs share.
struct Run<'a> {
    workspace: &'a Workspace,
    toolchain: Toolchain,
    built: Built,
    /// Built if one of the rungs needs it.
    confined: Option<Confined>,
    filter: Option<&'a str>,
    running: Running,
}

/// Whether rungs of any length are asked for: the long emulated ones, or the long forms of tests.
fn is_open_ended(rungs: &[Rung]) -> bool {
    std::env::var_os("BALLAST_STEPS").is_some() || rungs.iter().any(|rung| matches!(rung, Rung::Guests | Rung::Arm64))
}

/// Runs the ladder; fails if anything did.
pub fn run(workspace: &Workspace, args: &TestArgs) -> Result<()> {
    let mut rungs = select(ladder(workspace)?, args)?;
    if args.quick && !is_root() {
        say("not root: the rungs that load programs are left out");
        rungs.retain(|rung| !rung.needs_root());
    }
    if args.list {
        for rung in &rungs {
            println!("{}", rung.name());
        }
        return Ok(());
    }
    if !is_root() && rungs.iter().any(Rung::needs_root) {
        bail!(
            "these rungs load eBPF programs and make network namespaces: run them as root, as in `sudo -E cargo xtask test`; \
             `cargo xtask test --quick` runs what needs no root"
        );
    }
    let started = Instant::now();
    let toolchain = setup_and_build(workspace, level(&rungs), &[Build::Agent])?;
    let binaries: Vec<&str> =
        BINARIES.into_iter().filter(|binary| rungs.iter().any(|rung| rung.binaries().contains(binary))).collect();
    let built = Built::build(workspace, &binaries)?;
    let profile = if args.released { Profile::Release } else { Profile::Confined };
    let needs_confined = rungs.iter().any(|rung| matches!(rung, Rung::Confined(..)));
    let confined = needs_confined.then(|| Confined::build(workspace, profile)).transpose()?;
    let prepared = started.elapsed();
    let running = Running::default();
    let _watch = (!is_open_ended(&rungs)).then(|| running.watch());
    let outcomes =
        climb(&Run { workspace, toolchain, built, confined, filter: args.filter.as_deref(), running }, &rungs);
    summary(prepared, &outcomes)
}

/// Writes the pages of the book that are generated from code: the tests that compare them do it.
pub fn write_pages(workspace: &Workspace) -> Result<()> {
    if !is_root() {
        bail!("a page lists what a running agent exposes: run `sudo -E cargo xtask reference`");
    }
    setup_and_build(workspace, Level::Run, &[Build::Agent])?;
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

/// Runs the rungs: the cheapest alone, then those with networks, some at a time, beside those without. Networks mostly wait, or have the
/// kernel verify programs; each has names, folders and control groups of its own.
fn climb(run: &Run<'_>, rungs: &[Rung]) -> Vec<Outcome> {
    let of = |lane: Lane| rungs.iter().filter(move |rung| rung.lane() == lane);
    let mut outcomes: Vec<Outcome> = of(Lane::Before).map(|rung| run.one(rung, Show::Live)).collect();
    let side_by_side = rungs.iter().filter(|rung| rung.lane() != Lane::Before);
    if side_by_side.clone().count() < 2 {
        outcomes.extend(side_by_side.map(|rung| run.one(rung, Show::Live)));
        return outcomes;
    }
    let networks = Mutex::new(longest_first(of(Lane::Networks)));
    let next = || networks.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let in_turn = || std::iter::from_fn(next).map(|rung| run.one(rung, Show::AtTheEnd)).collect::<Vec<_>>();
    let all_of = |lane| of(lane).map(|rung| run.one(rung, Show::AtTheEnd)).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        let mut lanes: Vec<_> = (0..NETWORK_LANES).map(|_| scope.spawn(in_turn)).collect();
        lanes.extend([Lane::Beside, Lane::Background].map(|lane| scope.spawn(move || all_of(lane))));
        for lane in lanes {
            outcomes.extend(lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
    });
    outcomes
}

/// When the output of a rung is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Show {
    Live,
    /// All at once, since another rung writes meanwhile.
    AtTheEnd,
}

impl Run<'_> {
    fn one(&self, rung: &Rung, show: Show) -> Outcome {
        say(&format!("rung {}", rung.name()));
        self.running.begin(rung.name());
        let started = Instant::now();
        let mut tally =
            self.tally(rung, show).unwrap_or_else(|error| Tally::one(&format!("{}: {error:#}", rung.name()), false));
        if tally.passed + tally.failed == 0 {
            tally = Tally::one(&format!("{}: ran no test", rung.name()), false);
        }
        self.running.end(rung.name());
        let outcome = Outcome { rung: rung.name().to_owned(), tally, time: started.elapsed() };
        say(&format!("rung {}: {} in {:.1} s", outcome.rung, outcome.tally.line(), outcome.time.as_secs_f64()));
        outcome
    }

    fn tally(&self, rung: &Rung, show: Show) -> Result<Tally> {
        let workspace = self.workspace;
        let cargo = |command: &Expression| count_tests(workspace, rung.name(), command, show, &self.running);
        match rung {
            Rung::Format => checks(&lint::format_checks(workspace)),
            Rung::Lint => checks(&lint::lint_checks(workspace)),
            Rung::Deny => setup::crate_rules(workspace).and_then(|()| checks(&[lint::crate_check(workspace)])),
            Rung::Book => setup::book(workspace).and_then(|()| checks(&[lint::book_check(workspace)])),
            Rung::Unit => cargo(&cmd!("cargo", "test", "--locked", "--no-fail-fast").dir(&workspace.root)),
            Rung::Harness => cargo(
                &cmd!(
                    "cargo", "test", "--locked", "-p", "lb-tests", "-p", "lb-bench", "-p", "lb-load", "--lib", "--bins"
                )
                .dir(&workspace.root),
            ),
            Rung::Module(module) => cargo(&self.built.command(workspace, module, self.filter)?),
            Rung::Confined(name, module) => {
                let confined = self.confined.as_ref().with_context(|| format!("{name} was not prepared"))?;
                cargo(&confined.with(&self.built.command(workspace, module, self.filter)?))
            }
            Rung::Kernels => guests(workspace, &vm::SHORT, show),
            Rung::Guests => guests(workspace, &vm::LONG, show),
            Rung::Arm64 => arm64::run(workspace, cargo),
            Rung::Mutations => mutate::run_share(workspace, self.toolchain, &self.built),
            Rung::Demo => demo(),
        }
    }
}

/// Runs a command that prints as libtest does, with the environment that the tests expect, and counts.
fn count_tests(
    workspace: &Workspace,
    name: &str,
    command: &Expression,
    show: Show,
    running: &Running,
) -> Result<Tally> {
    let command = test_environment(workspace, command, &workspace.object());
    let mut tally = Tally::default();
    let mut since = Instant::now();
    let mut read = |line: &str| {
        tally.read_line(line);
        running.line(name, line);
        if let Some(test) = ended_test(line) {
            tally.times.push((std::mem::replace(&mut since, Instant::now()).elapsed(), test.to_owned()));
        }
    };
    let succeeded = match show {
        Show::Live => run_watched(name, &command, read)?,
        Show::AtTheEnd => {
            let mut lines = Vec::new();
            let succeeded = run_unseen(name, &command, |line| {
                read(line);
                lines.push(line.to_owned());
            })?;
            println!("{}", lines.join("\n"));
            succeeded
        }
    };
    tally.close(name, succeeded);
    Ok(tally)
}

fn guests(workspace: &Workspace, subjects: &[vm::Subject<'_>], show: Show) -> Result<Tally> {
    let mut lines = Vec::new();
    let tally = vm::run_all(workspace, subjects, |line| match show {
        Show::Live => println!("{line}"),
        Show::AtTheEnd => lines.push(line.to_owned()),
    });
    println!("{}", lines.join("\n"));
    tally
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

fn checks(checks: &[lint::Check]) -> Result<Tally> {
    let failed = lint::run(checks)?;
    let mut tally = Tally::default();
    for check in checks {
        tally += Tally::one(check.name, !failed.contains(&check.name));
    }
    Ok(tally)
}

/// The tour in a process of its own: it must clean up after itself whatever happens here.
fn demo() -> Result<Tally> {
    let xtask = std::env::current_exe().context("the path of xtask itself")?;
    let mut tally = Tally::default();
    let succeeded = run_watched("demo", &cmd!(xtask, "run", "--once"), |line| {
        if let Some(step) = line.strip_prefix("ok   ") {
            tally += Tally::one(step, true);
        } else if let Some(step) = line.strip_prefix("FAIL ") {
            tally += Tally::one(step, false);
        }
    })?;
    tally.close("demo", succeeded);
    Ok(tally)
}

fn summary(prepared: Duration, outcomes: &[Outcome]) -> Result<()> {
    println!("\n{:<16} {:>8} {:>7} {:>9}", "rung", "passed", "failed", "seconds");
    println!("{:<16} {:>8} {:>7} {:>9.1}", "setup and build", "", "", prepared.as_secs_f64());
    let mut total = Tally::default();
    for Outcome { rung, tally, time } in outcomes {
        println!("{rung:<16} {:>8} {:>7} {:>9.1}", tally.passed, tally.failed, time.as_secs_f64());
        total += tally.clone();
    }
    if total.failed > 0 {
        println!("\nfailed:");
        for name in &total.failures {
            println!("  {name}");
        }
    }
    total.times.sort_unstable_by(|one, other| other.cmp(one));
    println!("\nslowest tests:");
    for (time, name) in total.times.iter().take(SLOWEST) {
        println!("{:>9.1}  {name}", time.as_secs_f64());
    }
    println!("\n{}", total.line());
    if total.failed > 0 {
        bail!("{} of {} tests failed", total.failed, total.passed + total.failed);
    }
    Ok(())
}
