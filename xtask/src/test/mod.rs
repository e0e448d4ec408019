//! `cargo xtask test`: every rung of the ladder, cheapest first.

mod tally;

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use duct::{Expression, cmd};

pub use tally::Tally;

use crate::process::{run_shown, run_unseen, run_watched, say};
use crate::setup::{Level, setup};
use crate::toolchain::{Toolchain, clean_cargo_env};
use crate::workspace::{Workspace, is_root};
use crate::{compile, lint, mutate, vm};

/// `cargo xtask test`
#[derive(Debug, Args)]
pub struct TestArgs {
    /// Run only these rungs (repeatable): format, lint, unit, harness, guests, mutations, demo, or a test binary of `tests/`.
    #[arg(long = "rung", value_name = "NAME")]
    rungs: Vec<String>,
    /// List the rungs and exit.
    #[arg(long)]
    list: bool,
}

/// A step of the ladder.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rung {
    Format,
    Lint,
    /// Unit and property tests: no root, no BPF tools, no cluster.
    Unit,
    /// Unit tests of what the integration tests, the demo and the bench are built from.
    Harness,
    /// A test binary of the `tests` package: root, real programs.
    Integration(String),
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
            Self::Unit => "unit",
            Self::Harness => "harness",
            Self::Integration(name) => name,
            Self::Guests => "guests",
            Self::Mutations => "mutations",
            Self::Demo => "demo",
        }
    }

    /// Which of the lanes it runs in, beside the other one.
    fn lane(&self) -> Lane {
        match self {
            Self::Format | Self::Lint | Self::Unit | Self::Harness => Lane::Before,
            Self::Integration(name) if WAITING.contains(&name.as_str()) => Lane::Beside,
            Self::Guests | Self::Mutations => Lane::Beside,
            Self::Integration(_) | Self::Demo => Lane::Networks,
        }
    }
}

/// What runs at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// Compiles, and uses all processors by itself: alone.
    Before,
    /// Makes networks and waits for packets: two at a time.
    Networks,
    /// Makes none. It computes, or waits for silences: it takes a processor that the networks leave idle.
    Beside,
}

/// Integration tests that mostly wait: for a silence to be noticed, for a deadline to strike.
const WAITING: [&str; 3] = ["api_faults", "freshness", "incident_b"];

/// What became of a rung.
struct Outcome {
    rung: String,
    tally: Tally,
    time: Duration,
}

/// Runs the ladder; fails if anything did.
pub fn run(workspace: &Workspace, args: &TestArgs) -> Result<()> {
    let rungs = select(ladder(workspace)?, &args.rungs)?;
    if args.list {
        for rung in &rungs {
            println!("{}", rung.name());
        }
        return Ok(());
    }
    if !is_root() {
        bail!(
            "the whole ladder loads eBPF programs and makes network namespaces: run it as root, as in `sudo -E cargo xtask test`; \
             `cargo test` alone runs the unit and property tests without root"
        );
    }
    let started = Instant::now();
    let level = if rungs.contains(&Rung::Guests) { Level::Guests } else { Level::Test };
    let toolchain = setup(workspace, level)?;
    compile::build(workspace, toolchain, false)?;
    let prepared = started.elapsed();
    let outcomes = climb(workspace, toolchain, &rungs)?;
    summary(prepared, &outcomes)
}

/// Runs the rungs: the cheapest alone, then those with networks, two at a time, beside those without. Networks mostly wait: two leave a
/// processor of two idle yet, and each has names, folders and control groups of its own.
fn climb(workspace: &Workspace, toolchain: Toolchain, rungs: &[Rung]) -> Result<Vec<Outcome>> {
    let of = |lane: Lane| rungs.iter().filter(move |rung| rung.lane() == lane);
    let run = |rung: &Rung, show: Show| run_one(workspace, toolchain, rung, show);
    let mut outcomes: Vec<Outcome> = of(Lane::Before).map(|rung| run(rung, Show::Live)).collect();
    if of(Lane::Networks).next().is_none() || of(Lane::Beside).next().is_none() {
        let alone = of(Lane::Networks).chain(of(Lane::Beside));
        outcomes.extend(alone.map(|rung| run(rung, Show::Live)));
        return Ok(outcomes);
    }
    // Two calls of cargo that both compile would wait for each other.
    build_tests(workspace)?;
    let networks = Mutex::new(of(Lane::Networks));
    let next = || networks.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        let second =
            scope.spawn(|| std::iter::from_fn(&next).map(|rung| run(rung, Show::AtTheEnd)).collect::<Vec<_>>());
        let beside = scope.spawn(|| of(Lane::Beside).map(|rung| run(rung, Show::AtTheEnd)).collect::<Vec<_>>());
        outcomes.extend(std::iter::from_fn(&next).map(|rung| run(rung, Show::Live)));
        for lane in [second, beside] {
            outcomes.extend(lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
    });
    Ok(outcomes)
}

/// When the output of a rung is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Show {
    Live,
    /// All at once, since another rung writes meanwhile.
    AtTheEnd,
}

fn run_one(workspace: &Workspace, toolchain: Toolchain, rung: &Rung, show: Show) -> Outcome {
    say(&format!("rung {}", rung.name()));
    let started = Instant::now();
    let mut tally = run_rung(workspace, toolchain, rung, show)
        .unwrap_or_else(|error| Tally::one(&format!("{}: {error:#}", rung.name()), false));
    if tally.passed + tally.failed == 0 {
        tally = Tally::one(&format!("{}: ran no test", rung.name()), false);
    }
    let outcome = Outcome { rung: rung.name().to_owned(), tally, time: started.elapsed() };
    say(&format!("rung {}: {} in {:.1} s", outcome.rung, outcome.tally.line(), outcome.time.as_secs_f64()));
    outcome
}

fn build_tests(workspace: &Workspace) -> Result<()> {
    let command = cmd!("cargo", "test", "--locked", "-p", "lb-tests", "--no-run");
    run_shown("building the tests", &test_command(workspace, &command, &workspace.object()))
}

/// All rungs, in order. The binaries of `tests/` are found, so that a new one is never forgotten.
fn ladder(workspace: &Workspace) -> Result<Vec<Rung>> {
    let mut rungs = vec![Rung::Format, Rung::Lint, Rung::Unit, Rung::Harness];
    let folder = workspace.root.join("tests/tests");
    let mut names = Vec::new();
    if folder.exists() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let path = entry?.path();
            let is_target = path.join("main.rs").exists() || path.extension().is_some_and(|e| e == "rs");
            let name = path.file_stem().filter(|name| !name.to_string_lossy().starts_with(vm::GUEST_PREFIX));
            names.extend(name.filter(|_| is_target).map(|name| name.to_string_lossy().into_owned()));
        }
    }
    names.sort_by_key(|name| (rank(name), name.clone()));
    rungs.extend(names.into_iter().map(Rung::Integration));
    rungs.extend([Rung::Guests, Rung::Mutations, Rung::Demo]);
    Ok(rungs)
}

/// The cheaper tests first; unknown names last, in the order of the alphabet.
fn rank(name: &str) -> usize {
    const ORDER: [&str; 4] = ["packet", "socket", "namespace", "kube"];
    ORDER.iter().position(|known| name.starts_with(known)).unwrap_or(ORDER.len())
}

fn select(all: Vec<Rung>, wanted: &[String]) -> Result<Vec<Rung>> {
    if wanted.is_empty() {
        // They take minutes on a quiet machine, and many on a busy one, and need a distribution's archive the first time.
        return Ok(all.into_iter().filter(|rung| *rung != Rung::Guests).collect());
    }
    for name in wanted {
        if !all.iter().any(|rung| rung.name() == name) {
            let known: Vec<&str> = all.iter().map(Rung::name).collect();
            bail!("no rung is called {name:?}; there are: {}", known.join(", "));
        }
    }
    Ok(all.into_iter().filter(|rung| wanted.iter().any(|name| rung.name() == name)).collect())
}

fn run_rung(workspace: &Workspace, toolchain: Toolchain, rung: &Rung, show: Show) -> Result<Tally> {
    match rung {
        Rung::Format => checks(&lint::format_checks(workspace)),
        Rung::Lint => checks(&lint::lint_checks(workspace)),
        Rung::Unit => cargo_test(workspace, rung.name(), &cmd!("cargo", "test", "--locked", "--no-fail-fast"), show),
        Rung::Harness => cargo_test(
            workspace,
            rung.name(),
            &cmd!("cargo", "test", "--locked", "-p", "lb-tests", "-p", "lb-load", "--lib", "--bins"),
            show,
        ),
        Rung::Integration(name) => cargo_test(workspace, name, &integration(name), show),
        Rung::Guests => guests(workspace, show),
        Rung::Mutations => mutate::run_share(workspace, toolchain),
        Rung::Demo => demo(workspace),
    }
}

/// Integration tests that make no network of their own and mostly wait: each has servers to itself on loopback.
const SIDE_BY_SIDE: [&str; 1] = ["api_faults"];

/// The command of one integration binary. Its tests share one kernel's network namespaces and time: one at a time.
pub fn integration(name: &str) -> Expression {
    let threads = if SIDE_BY_SIDE.contains(&name) { "--test-threads=3" } else { "--test-threads=1" };
    cmd!("cargo", "test", "--locked", "-p", "lb-tests", "--test", name, "--", threads)
}

/// Runs a `cargo test` command with the environment that the tests expect, and counts.
fn cargo_test(workspace: &Workspace, name: &str, command: &Expression, show: Show) -> Result<Tally> {
    let command = test_command(workspace, command, &workspace.object());
    let mut tally = Tally::default();
    let succeeded = match show {
        Show::Live => run_watched(name, &command, |line| tally.read_line(line))?,
        Show::AtTheEnd => {
            let mut lines = Vec::new();
            let succeeded = run_unseen(name, &command, |line| {
                tally.read_line(line);
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

/// The same on other programs than the workspace's own, with nothing shown: what fails there shall fail.
pub fn cargo_test_object(workspace: &Workspace, name: &str, command: &Expression, object: &Path) -> Result<Tally> {
    let mut tally = Tally::default();
    let succeeded = run_unseen(name, &test_command(workspace, command, object), |line| tally.read_line(line))?;
    tally.close(name, succeeded);
    Ok(tally)
}

fn test_command(workspace: &Workspace, command: &Expression, object: &Path) -> Expression {
    let command = command
        // What is compiled is the same for every rung, whatever programs its tests load: else those at the same time compile anew by turns.
        .env("BALLAST_EBPF_OBJECT", workspace.object())
        .env("BALLAST_TEST_OBJECT", object)
        .env("BALLAST_BIN", workspace.agent(false))
        .env("KUBEBUILDER_ASSETS", workspace.kube_assets())
        .env("PATH", workspace.path())
        .env("CARGO_TERM_COLOR", "never")
        // Where a test stands says its name; a page of frames each hides it.
        .env("RUST_BACKTRACE", "0")
        .dir(&workspace.root);
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
fn demo(_workspace: &Workspace) -> Result<Tally> {
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
    println!("\n{}", total.line());
    if total.failed > 0 {
        bail!("{} of {} tests failed", total.failed, total.passed + total.failed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ladder_goes_from_cheap_to_dear() {
        let mut names = vec!["kube", "restart", "packets", "namespaces"];
        names.sort_by_key(|name| (rank(name), (*name).to_owned()));
        assert_eq!(names, ["packets", "namespaces", "kube", "restart"]);
    }

    #[test]
    fn what_makes_networks_has_its_lane_to_itself() {
        assert_eq!(Rung::Integration("two_nodes".into()).lane(), Lane::Networks);
        for rung in [Rung::Mutations, Rung::Integration("freshness".into())] {
            assert_eq!(rung.lane(), Lane::Beside, "{}", rung.name());
        }
    }

    #[test]
    fn guests_are_asked_for_by_name() {
        let all = vec![Rung::Format, Rung::Guests];
        assert_eq!(select(all.clone(), &[]).expect("nothing asked"), [Rung::Format]);
        assert_eq!(select(all, &["guests".into()]).expect("is there"), [Rung::Guests]);
    }

    #[test]
    fn an_unknown_rung_is_refused_with_the_known_ones() {
        let all = vec![Rung::Format, Rung::Integration("packet".into())];
        let error = select(all.clone(), &["packets".into()]).expect_err("no such rung").to_string();
        assert!(error.contains("\"packets\"") && error.contains("format, packet"), "{error}");
        assert_eq!(select(all, &["packet".into()]).expect("is there"), [Rung::Integration("packet".into())]);
    }
}
