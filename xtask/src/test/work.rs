//! `cargo xtask rung`: runs one rung in a process of its own, so that what it takes of the processors can be told from the others.

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use duct::{Expression, cmd};

use super::binaries::Built;
use super::results::{Source, keep, kept};
use super::rung::{Rung, ladder};
use super::tally::{Tally, ended_test};
use super::{FORM, confined, form, test_environment};
use crate::process::run_watched;
use crate::toolchain::{Facts, choose};
use crate::workspace::Workspace;
use crate::{arm64, fuzz, lint, mutate, setup, vm};

/// `USER_HZ`, in which the kernel counts the time of processes: the same on each architecture that we build for.
const TICKS_A_SECOND: f64 = 100.0;
/// How long each target is fuzzed.
const FUZZ_MINUTES: u32 = 5;

/// `cargo xtask rung`
#[derive(Debug, Args)]
pub struct RungArgs {
    rung: String,
    /// The run of the ladder that it is part of.
    #[arg(long)]
    run: String,
    /// Keep nothing of what passed before.
    #[arg(long)]
    again: bool,
    #[arg(last = true)]
    filter: Option<String>,
}

/// What became of the tests, and the seconds that processors worked for it.
pub type Measured = (Tally, f64);

/// Runs the rung, and keeps what became of it for the process that has started this one.
pub fn run(workspace: &Workspace, args: &RungArgs) -> Result<()> {
    let is_long = std::env::var(FORM).as_deref() == Ok(form(true));
    let rung = ladder(&workspace.root, is_long)?.into_iter().find(|rung| rung.name == args.rung);
    let rung = rung.with_context(|| format!("no rung is called {:?}", args.rung))?;
    let built = kept(workspace, "built", &args.run).context("the tests were not built")?;
    let work = Work { workspace, built, is_long, again: args.again, filter: args.filter.as_deref() };
    let mut tally = work.tally(&rung).unwrap_or_else(|error| Tally::one(&format!("{}: {error:#}", rung.name), false));
    if tally.passed + tally.failed == 0 {
        tally = Tally::one(&format!("{}: ran no test", rung.name), false);
    }
    let measured: Measured = (tally, processor_seconds(&fs::read_to_string("/proc/self/stat")?)?);
    keep(workspace, &format!("rung-{}", rung.name), &args.run, &measured)
}

struct Work<'a> {
    workspace: &'a Workspace,
    built: Built,
    is_long: bool,
    again: bool,
    filter: Option<&'a str>,
}

impl Work<'_> {
    fn tally(&self, rung: &Rung) -> Result<Tally> {
        let workspace = self.workspace;
        if let Some(module) = &rung.module {
            let command = self.built.command(workspace, module, self.filter)?;
            let confined = rung.is_confined.then(|| confined::Confined::build(workspace, self.is_long)).transpose()?;
            return self.count(&rung.name, &confined.map_or(command.clone(), |confined| confined.with(&command)));
        }
        match &*rung.name {
            "format" => checks(&lint::format_checks(workspace)),
            "lint" => checks(&lint::lint_checks(workspace)),
            "deny" => setup::crate_rules(workspace).and_then(|()| checks(&[lint::crate_check(workspace)])),
            "book" => setup::book(workspace).and_then(|()| checks(&[lint::book_check(workspace)])),
            "unit" => self.cargo_test("unit", &[]),
            "harness" => {
                self.cargo_test("harness", &["-p", "lb-tests", "-p", "lb-bench", "-p", "lb-load", "--lib", "--bins"])
            }
            "kernels" => {
                let subjects: &[_] = if self.is_long { &vm::LONG } else { &vm::SHORT };
                vm::run_all(workspace, subjects, |line| println!("{line}"))
            }
            "arm64" => arm64::run(workspace, |command| self.count("arm64", command)),
            "fuzz" => fuzz::run_all(workspace, FUZZ_MINUTES).map(|()| Tally::one("fuzz", true)),
            "mutations" => self.mutations(),
            "demo" => demo(),
            name => bail!("nothing is known of the step {name}"),
        }
    }

    fn cargo_test(&self, name: &str, packages: &[&str]) -> Result<Tally> {
        let words = ["test", "--locked", "--no-fail-fast"].iter().chain(packages);
        let filter = self.filter.into_iter().flat_map(|filter| ["--", filter]);
        self.count(name, &cmd("cargo", words.copied().chain(filter)).dir(&self.workspace.root))
    }

    /// Runs a command that prints as libtest does, with the environment that the tests expect, and counts.
    fn count(&self, name: &str, command: &Expression) -> Result<Tally> {
        let command = test_environment(self.workspace, command, &self.workspace.object());
        let mut tally = Tally::default();
        let mut since = Instant::now();
        let succeeded = run_watched(name, &command, |line| {
            tally.read_line(line);
            // What was compiled before is no test's.
            if line.starts_with("running ") {
                since = Instant::now();
            }
            if let Some(test) = ended_test(line) {
                tally.times.push((std::mem::replace(&mut since, Instant::now()).elapsed(), test.to_owned()));
            }
        })?;
        tally.close(name, succeeded);
        Ok(tally)
    }

    /// A share of the mutations; in the long form all, in parts: one that passed is not tried again on the same files.
    fn mutations(&self) -> Result<Tally> {
        let toolchain = choose(Facts::gather())?;
        if !self.is_long {
            return mutate::run_share(self.workspace, toolchain, &self.built);
        }
        let source = Source::of(self.workspace);
        let mut total = Tally::default();
        for part in mutate::Part::all() {
            let name = format!("long-mutations-{part}");
            let before = kept::<Tally>(self.workspace, &name, &source.tree);
            if let Some(tally) = before.filter(|one| one.failed == 0 && !self.again && !source.tree.is_empty()) {
                total += tally;
                continue;
            }
            let tally = mutate::run_part(self.workspace, toolchain, &self.built, part)?;
            if source.is_still_of(self.workspace) {
                keep(self.workspace, &name, &source.tree, &tally)?;
            }
            total += tally;
        }
        Ok(total)
    }
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

/// What this process and all that it has waited for took, from `/proc/self/stat`: `utime`, `stime`, `cutime` and `cstime` (proc(5)).
fn processor_seconds(stat: &str) -> Result<f64> {
    let fields = stat.rsplit_once(") ").context("/proc/self/stat names no process")?.1;
    let ticks: u32 = fields.split(' ').skip(11).take(4).map(|field| field.parse().unwrap_or(0)).sum();
    Ok(f64::from(ticks) / TICKS_A_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_counts_what_its_children_took() {
        let stat = "12 (a) b) S 1 12 12 0 -1 4194304 90 800 0 0 150 50 200 100 20 0 1 0 99";
        assert!((processor_seconds(stat).expect("a process") - 5.0).abs() < 1e-9);
        let now = || processor_seconds(&fs::read_to_string("/proc/self/stat").expect("this process")).expect("fields");
        let before = now();
        cmd!("sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done").run().expect("sh is there");
        assert!(now() > before, "a child that has ended counts");
    }
}
