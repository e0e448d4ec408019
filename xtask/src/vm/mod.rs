//! `cargo xtask vm`: tests on other kernels than this machine's, in virtual machines.

mod console;
mod cpio;
mod figures;
mod kernel;
mod machine;
mod tree;

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use duct::cmd;

use self::console::Console;
use self::figures::Figures;
use self::kernel::{KERNELS, Kernel};
use self::machine::Machine;
use self::tree::Programs;
use crate::compile;
use crate::process::{run_shown, say};
use crate::setup::{Level, setup};
use crate::test::{Tally, executable};
use crate::toolchain::clean_cargo_env;
use crate::workspace::Workspace;

/// Test binaries with this prefix need what only a guest has: they are none of the host's rungs.
pub const GUEST_PREFIX: &str = "guest_";
/// The rung `kernels`: every program, and one agent that serves.
pub const SHORT: [&str; 2] = [figures::TEST, "guest_kernels"];
/// What a guest may use, its file system and all.
const MEMORY_MIB: u32 = 1024;
/// How long one guest may take. An emulated machine is ten times slower, on a busy one ten times more.
const LIMIT: Duration = Duration::from_mins(15);

/// `cargo xtask vm`
#[derive(Debug, Args)]
pub struct VmArgs {
    /// Only on this kernel (repeatable) [default: those that the programs are known to load on]
    #[arg(long = "kernel", value_name = "NAME")]
    kernels: Vec<String>,
    /// Only this test binary of `tests/tests` (repeatable) [default: all that begin with `guest_`]
    #[arg(long = "test", value_name = "NAME")]
    tests: Vec<String>,
    /// Write what `guest_programs` finds to the table in `docs/src/programs.md`.
    #[arg(long)]
    record: bool,
}

/// Builds all, boots each kernel and runs the tests in it.
pub fn run(workspace: &Workspace, args: &VmArgs) -> Result<()> {
    let kernels = if args.kernels.is_empty() {
        proven()
    } else {
        args.kernels.iter().map(|name| Kernel::named(name)).collect::<Result<_>>()?
    };
    let toolchain = setup(workspace, Level::Guests)?;
    compile::build(workspace, toolchain, false)?;
    let guests = Guests { workspace, kernels, tests: args.tests.clone() };
    let (mut tally, figures) = guests.run(|line| println!("{line}"))?;
    if args.record {
        figures.record(workspace)?;
    } else {
        tally += judged(workspace, &figures)?;
    }
    println!("\n{}", tally.line());
    ensure!(tally.failed == 0, "failed: {}", tally.failures.join(", "));
    Ok(())
}

/// A rung: these test binaries, or all of the guests' own, on every kernel that the programs are known to load on. The agent must have
/// been built.
pub fn run_all(workspace: &Workspace, tests: &[&str], show: impl FnMut(&str)) -> Result<Tally> {
    let tests = tests.iter().map(|&name| name.to_owned()).collect();
    let (mut tally, figures) = Guests { workspace, kernels: proven(), tests }.run(show)?;
    tally += judged(workspace, &figures)?;
    Ok(tally)
}

/// The comparison with the table, as a test of its own.
fn judged(workspace: &Workspace, figures: &Figures) -> Result<Tally> {
    if *figures == Figures::default() {
        return Ok(Tally::default());
    }
    let differences = figures.differences(&Figures::recorded(workspace)?);
    for difference in &differences {
        say(difference);
    }
    Ok(Tally::one("the programs are as docs/src/programs.md says", differences.is_empty()))
}

fn proven() -> Vec<Kernel> {
    KERNELS.into_iter().filter(|kernel| kernel.proven).collect()
}

/// What is to be run where.
struct Guests<'a> {
    workspace: &'a Workspace,
    kernels: Vec<Kernel>,
    /// None: all of the guests' own.
    tests: Vec<String>,
}

impl Guests<'_> {
    fn run(&self, mut show: impl FnMut(&str)) -> Result<(Tally, Figures)> {
        if std::env::consts::ARCH != "x86_64" {
            bail!("guests run on x86_64 only, and this is {}", std::env::consts::ARCH);
        }
        let tests = if self.tests.is_empty() { guest_tests(self.workspace)? } else { self.tests.clone() };
        let folder = self.workspace.target().join("vm");
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let programs = build(self.workspace, &tests)?.collect(&folder)?;
        let (mut total, mut figures) = (Tally::default(), Figures::default());
        for kernel in &self.kernels {
            let started = Instant::now();
            let unpacked = kernel.unpacked(self.workspace)?;
            let files = folder.join(format!("{}.cpio", kernel.name));
            fs::write(&files, tree::archive(&programs, &unpacked)?)
                .with_context(|| format!("cannot write {}", files.display()))?;
            let machine = Machine { image: &unpacked.image, files: &files, memory_mib: MEMORY_MIB, limit: LIMIT };
            let mut console = Console::expecting(tests.iter().map(String::as_str));
            let ended = machine.run(|line| {
                show(&format!("{:>5} | {line}", kernel.name));
                console.read_line(line);
                figures.read_line(kernel.name, line);
            });
            fs::remove_file(&files).ok();
            let mut tally = console.finish();
            tally.failures.iter_mut().for_each(|name| *name = format!("{} on Linux {}", name, kernel.name));
            if let Err(error) = ended {
                tally += Tally::one(&format!("Linux {}: {error:#}", kernel.name), false);
            }
            say(&format!("Linux {}: {} in {:.1} s", kernel.name, tally.line(), started.elapsed().as_secs_f64()));
            total += tally;
        }
        Ok((total, figures))
    }
}

/// Test binaries whose names say that they are for guests.
fn guest_tests(workspace: &Workspace) -> Result<Vec<String>> {
    let folder = workspace.root.join("tests/tests");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let name = entry?.path().file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name.starts_with(GUEST_PREFIX) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Builds the first process and the tests.
fn build(workspace: &Workspace, tests: &[String]) -> Result<Programs> {
    let environment = |command: duct::Expression| {
        clean_cargo_env(command.env("BALLAST_EBPF_OBJECT", workspace.object()).dir(&workspace.root))
    };
    let init = cmd!("cargo", "build", "--locked", "-p", "lb-tests", "--bin", "ballast-guest").stdout_to_stderr();
    run_shown("building the guests' first process", &environment(init))?;
    let mut arguments =
        vec!["test", "--locked", "-p", "lb-tests", "--no-run", "--message-format=json-render-diagnostics"];
    for test in tests {
        arguments.extend(["--test", test]);
    }
    let built = environment(cmd("cargo", arguments)).read().context("building the guests' tests")?;
    let mut programs = Programs {
        init: workspace.target().join("debug/ballast-guest"),
        agent: workspace.agent(false),
        tests: tests.iter().filter_map(|name| Some((name.clone(), executable(&built, name)?))).collect(),
    };
    ensure!(programs.tests.len() == tests.len(), "cargo built {:?} of {tests:?}", programs.tests);
    programs.tests.sort();
    Ok(programs)
}
