//! `cargo xtask test`: every rung of the ladder, cheapest first.

mod binaries;
mod confined;
mod tally;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use duct::{Expression, cmd};

pub use binaries::executable;
pub use tally::Tally;
use tally::ended_test;

use binaries::{BINARIES, Built, Module, modules};
use confined::Confined;

use crate::compile::Build;
use crate::image::binary::Profile;
use crate::process::{run_unseen, run_watched, say};
use crate::setup::{self, Level, setup_and_build};
use crate::toolchain::{Toolchain, clean_cargo_env};
use crate::workspace::{Workspace, is_root};
use crate::{lint, mutate, vm};

/// `cargo xtask test`
#[derive(Debug, Args)]
pub struct TestArgs {
    /// Run only these rungs (repeatable): format, lint, deny, unit, harness, guests, mutations, demo, or a module of a test binary of `tests/`.
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

/// A step of the ladder.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rung {
    Format,
    Lint,
    /// The rules for crates. Its tool takes minutes to build the first time, so it runs beside the tests.
    Deny,
    /// Unit and property tests: no root, no BPF tools, no cluster.
    Unit,
    /// Unit tests of what the integration tests, the demo and the bench are built from.
    Harness,
    /// A module of a test binary of the `tests` package: root, real programs.
    Module(Module),
    /// The same with the agent as it is deployed, under this name.
    Confined(&'static str, Module),
    /// Test binaries for other kernels, in virtual machines.
    Guests,
    Mutations,
    /// The tour of `cargo xtask run --once`: each of its steps counts.
    Demo,
}

impl Rung {
    fn name(&self) -> &str {
        match self {
            Self::Format => "format",
            Self::Lint => "lint",
            Self::Deny => "deny",
            Self::Unit => "unit",
            Self::Harness => "harness",
            Self::Module(module) => &module.name,
            Self::Confined(name, _) => name,
            Self::Guests => "guests",
            Self::Mutations => "mutations",
            Self::Demo => "demo",
        }
    }

    /// Which of the lanes it runs in, beside the other one.
    fn lane(&self) -> Lane {
        match self {
            Self::Format | Self::Lint | Self::Unit | Self::Harness => Lane::Before,
            Self::Module(module) if WAITING.contains(&module.name.as_str()) => Lane::Beside,
            Self::Deny | Self::Guests | Self::Mutations => Lane::Beside,
            Self::Module(_) | Self::Confined(..) | Self::Demo => Lane::Networks,
        }
    }

    fn needs_root(&self) -> bool {
        self.lane() != Lane::Before && *self != Self::Deny
    }

    /// The module of tests that it runs.
    fn module(&self) -> Option<&Module> {
        match self {
            Self::Module(module) | Self::Confined(_, module) => Some(module),
            _ => None,
        }
    }
}

/// What runs at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// Compiles, and uses all processors by itself: alone.
    Before,
    /// Makes networks and waits for packets: [`NETWORK_LANES`] at a time.
    Networks,
    /// Makes none. It computes, or waits for silences: it takes a processor that the networks leave idle.
    Beside,
}

/// Modules that mostly wait: for a silence to be noticed, for a deadline to strike.
const WAITING: [&str; 3] = ["api_faults", "freshness", "incident_b"];

/// So many rungs with networks run at a time.
const NETWORK_LANES: usize = 3;

/// Rungs with networks that take more than a minute.
const LONG: [&str; 9] = [
    "agent_life",
    "catch_all",
    "cluster_ip",
    "affinity",
    "decisions",
    "audit",
    "collisions",
    "connections",
    "north_south",
];

/// Modules of `--quick`: the programs packet by packet, and real traffic through the real agent.
const QUICK: [&str; 3] = ["packet", "cluster_ip", "drain"];

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
    let binaries: Vec<&str> = BINARIES
        .into_iter()
        .filter(|binary| rungs.iter().filter_map(Rung::module).any(|module| module.binary == *binary))
        .collect();
    let built = if binaries.is_empty() { Built::default() } else { Built::build(workspace, &binaries)? };
    let profile = if args.released { Profile::Release } else { Profile::Confined };
    let needs_confined = rungs.iter().any(|rung| matches!(rung, Rung::Confined(..)));
    let confined = needs_confined.then(|| Confined::build(workspace, profile)).transpose()?;
    let prepared = started.elapsed();
    let outcomes = climb(&Run { workspace, toolchain, built, confined, filter: args.filter.as_deref() }, &rungs);
    summary(prepared, &outcomes)
}

/// What must be installed for these rungs.
fn level(rungs: &[Rung]) -> Level {
    let needs_cluster = |rung: &Rung| rung.module().is_some_and(|module| module.binary == "cluster");
    if rungs.contains(&Rung::Guests) {
        Level::Guests
    } else if rungs.iter().any(|rung| needs_cluster(rung) || matches!(rung, Rung::Mutations)) {
        Level::Test
    } else {
        Level::Run
    }
}

/// Runs the rungs: the cheapest alone, then those with networks, some at a time, beside those without. Networks mostly wait, or have the
/// kernel verify programs; each has names, folders and control groups of its own.
fn climb(run: &Run<'_>, rungs: &[Rung]) -> Vec<Outcome> {
    let of = |lane: Lane| rungs.iter().filter(move |rung| rung.lane() == lane);
    let mut outcomes: Vec<Outcome> = of(Lane::Before).map(|rung| run.one(rung, Show::Live)).collect();
    if of(Lane::Networks).chain(of(Lane::Beside)).count() < 2 {
        outcomes.extend(of(Lane::Networks).chain(of(Lane::Beside)).map(|rung| run.one(rung, Show::Live)));
        return outcomes;
    }
    let networks = Mutex::new(longest_first(of(Lane::Networks)));
    let next = || networks.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let in_turn = || std::iter::from_fn(next).map(|rung| run.one(rung, Show::AtTheEnd)).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        let mut lanes: Vec<_> = (0..NETWORK_LANES).map(|_| scope.spawn(in_turn)).collect();
        lanes.push(scope.spawn(|| of(Lane::Beside).map(|rung| run.one(rung, Show::AtTheEnd)).collect::<Vec<_>>()));
        for lane in lanes {
            outcomes.extend(lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
    });
    outcomes
}

/// A long rung that begins last is what everybody waits for.
fn longest_first<'a>(rungs: impl Iterator<Item = &'a Rung>) -> VecDeque<&'a Rung> {
    let is_long = |module: &Module| LONG.contains(&module.name.as_str());
    let (long, short): (Vec<_>, Vec<_>) = rungs.partition(|rung| rung.module().is_some_and(is_long));
    long.into_iter().chain(short).collect()
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
        let started = Instant::now();
        let mut tally =
            self.tally(rung, show).unwrap_or_else(|error| Tally::one(&format!("{}: {error:#}", rung.name()), false));
        if tally.passed + tally.failed == 0 {
            tally = Tally::one(&format!("{}: ran no test", rung.name()), false);
        }
        let outcome = Outcome { rung: rung.name().to_owned(), tally, time: started.elapsed() };
        say(&format!("rung {}: {} in {:.1} s", outcome.rung, outcome.tally.line(), outcome.time.as_secs_f64()));
        outcome
    }

    fn tally(&self, rung: &Rung, show: Show) -> Result<Tally> {
        let workspace = self.workspace;
        let cargo = |command: &Expression| count_tests(workspace, rung.name(), command, show);
        match rung {
            Rung::Format => checks(&lint::format_checks(workspace)),
            Rung::Lint => checks(&lint::lint_checks(workspace)),
            Rung::Deny => setup::crate_rules(workspace).and_then(|()| checks(&[lint::crate_check(workspace)])),
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
            Rung::Guests => guests(workspace, show),
            Rung::Mutations => mutate::run_share(workspace, self.toolchain),
            Rung::Demo => demo(),
        }
    }
}

/// All rungs, in order.
fn ladder(workspace: &Workspace) -> Result<Vec<Rung>> {
    let mut rungs = vec![Rung::Format, Rung::Lint, Rung::Unit, Rung::Harness, Rung::Deny];
    for module in modules(&workspace.root)? {
        rungs.extend(confined::rung(&module).map(|name| Rung::Confined(name, module.clone())));
        rungs.push(Rung::Module(module));
    }
    rungs.extend([Rung::Guests, Rung::Mutations, Rung::Demo]);
    Ok(rungs)
}

fn select(all: Vec<Rung>, args: &TestArgs) -> Result<Vec<Rung>> {
    if args.quick {
        let quick = |rung: &Rung| match rung {
            Rung::Module(module) => QUICK.contains(&module.name.as_str()),
            other => matches!(other, Rung::Format | Rung::Unit),
        };
        return Ok(all.into_iter().filter(quick).collect());
    }
    let wanted = &args.rungs;
    if wanted.is_empty() {
        // They take minutes on a quiet machine, and many on a busy one, and need a distribution's archive the first time.
        // What runs confined, as it is deployed, does not run again otherwise.
        let in_the_ladder = |rung: &Rung| match rung {
            Rung::Module(module) => confined::rung(module).is_none(),
            other => *other != Rung::Guests,
        };
        return Ok(all.into_iter().filter(in_the_ladder).collect());
    }
    for name in wanted {
        if !all.iter().any(|rung| rung.name() == name) {
            let known: Vec<&str> = all.iter().map(Rung::name).collect();
            bail!("no rung is called {name:?}; there are: {}", known.join(", "));
        }
    }
    Ok(all.into_iter().filter(|rung| wanted.iter().any(|name| rung.name() == name)).collect())
}

/// Runs a command that prints as libtest does, with the environment that the tests expect, and counts.
fn count_tests(workspace: &Workspace, name: &str, command: &Expression, show: Show) -> Result<Tally> {
    let command = test_environment(workspace, command, &workspace.object());
    let mut tally = Tally::default();
    let mut since = Instant::now();
    let mut read = |line: &str| {
        tally.read_line(line);
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

fn guests(workspace: &Workspace, show: Show) -> Result<Tally> {
    let mut lines = Vec::new();
    let tally = vm::run_all(workspace, |line| match show {
        Show::Live => println!("{line}"),
        Show::AtTheEnd => lines.push(line.to_owned()),
    });
    println!("{}", lines.join("\n"));
    tally
}

/// Whether a rung of this name runs tests on the programs.
#[cfg(test)]
pub fn is_module(root: &Path, name: &str) -> Result<bool> {
    Ok(modules(root)?.iter().any(|module| module.name == name))
}

/// Runs the rung of this name on other programs than the workspace's own, with nothing shown: what fails there shall fail.
pub fn run_on_object(workspace: &Workspace, name: &str, object: &Path, each: impl FnMut(&str)) -> Result<bool> {
    let module = modules(&workspace.root)?.into_iter().find(|module| module.name == name);
    let module = module.with_context(|| format!("no rung is called {name:?}"))?;
    let command = Built::build(workspace, &[module.binary])?.command(workspace, &module, None)?;
    run_unseen(name, &test_environment(workspace, &command, object), each)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn module(name: &str) -> Rung {
        Rung::Module(Module { binary: "packets", name: name.to_owned() })
    }

    fn wanted(rungs: &[&str]) -> TestArgs {
        TestArgs {
            rungs: rungs.iter().map(|&name| name.to_owned()).collect(),
            quick: false,
            released: false,
            list: false,
            filter: None,
        }
    }

    #[test]
    fn what_makes_networks_has_its_lane_to_itself() {
        assert_eq!(module("two_nodes").lane(), Lane::Networks);
        for rung in [Rung::Mutations, module("freshness")] {
            assert_eq!(rung.lane(), Lane::Beside, "{}", rung.name());
        }
    }

    #[test]
    fn the_longest_rungs_begin_first_and_all_are_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout");
        let all: Vec<Rung> = modules(root).expect("the modules").into_iter().map(Rung::Module).collect();
        let ordered = longest_first(all.iter());
        assert_eq!(ordered.len(), all.len());
        let begins: Vec<&str> = ordered.iter().take(LONG.len()).map(|rung| rung.name()).collect();
        assert!(LONG.iter().all(|long| begins.contains(long)), "{begins:?}");
    }

    #[test]
    fn guests_are_asked_for_by_name() {
        let all = vec![Rung::Format, Rung::Guests];
        assert_eq!(select(all.clone(), &wanted(&[])).expect("nothing asked"), [Rung::Format]);
        assert_eq!(select(all, &wanted(&["guests"])).expect("is there"), [Rung::Guests]);
    }

    #[test]
    fn an_unknown_rung_is_refused_with_the_known_ones() {
        let all = vec![Rung::Format, module("packet")];
        let error = select(all.clone(), &wanted(&["packets"])).expect_err("no such rung").to_string();
        assert!(error.contains("\"packets\"") && error.contains("format, packet"), "{error}");
        assert_eq!(select(all, &wanted(&["packet"])).expect("is there"), [module("packet")]);
    }

    #[test]
    fn the_quick_rungs_are_there_and_most_need_no_cluster() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout");
        let workspace = Workspace { root: root.to_owned(), tools: root.to_owned(), cache: root.to_owned() };
        let quick = TestArgs { quick: true, ..wanted(&[]) };
        let rungs = select(ladder(&workspace).expect("the ladder"), &quick).expect("chosen");
        assert_eq!(rungs.len(), 2 + QUICK.len());
        assert_eq!(level(&rungs), Level::Run);
    }

    #[test]
    fn what_runs_confined_runs_otherwise_when_asked_for() {
        let drain = Module { binary: "namespaces", name: "drain".into() };
        let confined = Rung::Confined(confined::rung(&drain).expect("it does"), drain.clone());
        let all = vec![confined.clone(), Rung::Module(drain.clone())];
        assert_eq!(select(all.clone(), &wanted(&[])).expect("nothing asked"), [confined]);
        assert_eq!(select(all, &wanted(&["drain"])).expect("is there"), [Rung::Module(drain)]);
    }
}
