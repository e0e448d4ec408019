//! `cargo xtask vm`: tests on other kernels than this machine's, in virtual machines.

mod console;
mod cpio;
mod figures;
mod kernel;
mod machine;
mod subject;
mod tree;

use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use duct::cmd;

use self::console::Console;
use self::figures::Figures;
use self::kernel::{KERNELS, Kernel};
use self::machine::Machine;
use self::subject::{Located, Tests, binaries, locate};
use self::tree::Programs;
use crate::compile;
use crate::process::{run_shown, say};
use crate::setup::{Level, setup};
use crate::test::{Tally, executable};
use crate::toolchain::clean_cargo_env;
use crate::workspace::Workspace;

pub use self::subject::{LONG, SHORT, Subject};

/// What a guest may use, its file system and all.
const MEMORY_MIB: u32 = 1024;
/// How long a guest may take for each subject. An emulated machine is ten times slower, on a busy one ten times more.
const LIMIT: Duration = Duration::from_mins(30);

/// `cargo xtask vm`
#[derive(Debug, Args)]
pub struct VmArgs {
    /// Only on this kernel (repeatable) [default: those that the programs are known to load on]
    #[arg(long = "kernel", value_name = "NAME")]
    kernels: Vec<String>,
    /// Only this test binary `guest_…`, or this module of another one (repeatable) [default: all of the rung `kernels` in its long form]
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
    let subjects: Vec<Subject<'_>> =
        if args.tests.is_empty() { LONG.to_vec() } else { args.tests.iter().map(|name| chosen(name)).collect() };
    let (mut tally, figures) = Guests::of(workspace, kernels, &subjects)?.run(|line| println!("{line}"))?;
    if args.record {
        figures.record(workspace)?;
    } else {
        tally += judged(workspace, &figures)?;
    }
    println!("\n{}", tally.line());
    ensure!(tally.failed == 0, "failed: {}", tally.failures.join(", "));
    Ok(())
}

/// A rung: these subjects on every kernel that the programs are known to load on. The agent must have been built.
pub fn run_all(workspace: &Workspace, subjects: &[Subject<'_>], show: impl FnMut(&str) + Send) -> Result<Tally> {
    let (mut tally, figures) = Guests::of(workspace, proven(), subjects)?.run(show)?;
    tally += judged(workspace, &figures)?;
    Ok(tally)
}

/// As the long form of the rung `kernels` runs it.
fn chosen(name: &str) -> Subject<'_> {
    LONG.into_iter().find(|subject| subject.name == name).unwrap_or(Subject::all(name))
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
    subjects: Vec<Located<'a>>,
}

impl<'a> Guests<'a> {
    fn of(workspace: &'a Workspace, kernels: Vec<Kernel>, subjects: &[Subject<'a>]) -> Result<Self> {
        let subjects = subjects.iter().map(|subject| locate(workspace, *subject)).collect::<Result<_>>()?;
        Ok(Self { workspace, kernels, subjects })
    }

    /// Boots the kernels, as many at a time as there are processors for.
    fn run(&self, show: impl FnMut(&str) + Send) -> Result<(Tally, Figures)> {
        if std::env::consts::ARCH != "x86_64" {
            bail!("guests run on x86_64 only, and this is {}", std::env::consts::ARCH);
        }
        let folder = self.workspace.target().join("vm");
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let programs = build(self.workspace, &self.subjects)?;
        let files = Files { folder: &folder, common: programs.collect(&folder)?, tests: &programs.tests };
        let (next, show) = (Mutex::new(self.kernels.iter()), Mutex::new(show));
        let in_turn = || {
            let kernels = std::iter::from_fn(|| next.lock().unwrap_or_else(PoisonError::into_inner).next());
            kernels.map(|kernel| self.boot(*kernel, &files, &show)).collect::<Result<Vec<_>>>()
        };
        let (mut total, mut figures) = (Tally::default(), Figures::default());
        let lanes = std::thread::available_parallelism().map_or(1, usize::from);
        let ended = std::thread::scope(|scope| {
            let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(in_turn)).collect();
            let join = |lane: std::thread::ScopedJoinHandle<'_, _>| {
                lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            lanes.into_iter().map(join).collect::<Result<Vec<_>>>()
        })?;
        for (tally, of_kernel) in ended.into_iter().flatten() {
            total += tally;
            figures.extend(of_kernel);
        }
        Ok((total, figures))
    }

    fn boot(&self, kernel: Kernel, files: &Files<'_>, show: &Mutex<impl FnMut(&str)>) -> Result<(Tally, Figures)> {
        let started = Instant::now();
        let unpacked = kernel.unpacked(self.workspace)?;
        let (mut list, mut further) = (Vec::new(), Vec::new());
        let subjects = || self.subjects.iter().filter(|subject| subject.runs_on(kernel.name));
        for subject in subjects() {
            let modules = unpacked.further_modules(subject.modules())?;
            let names = modules.iter().filter_map(|file| Some(file.file_name()?.to_string_lossy().into_owned()));
            list.push(subject.line(files.tests, kernel.name, &names.collect::<Vec<_>>())?);
            further.extend(modules);
        }
        let first = files.folder.join(format!("{}.cpio", kernel.name));
        fs::write(&first, tree::archive(&files.common, &unpacked, &further, &list.join("\n"))?)
            .with_context(|| format!("cannot write {}", first.display()))?;
        let limit = LIMIT * u32::try_from(list.len())?;
        let machine = Machine { image: &unpacked.image, files: &first, memory_mib: MEMORY_MIB, limit };
        let mut console = Console::expecting(subjects().map(Located::name));
        let mut figures = Figures::default();
        let ended = machine.run(|line| {
            show.lock().unwrap_or_else(PoisonError::into_inner)(&format!("{:>5} | {line}", kernel.name));
            console.read_line(line);
            figures.read_line(kernel.name, line);
        });
        fs::remove_file(&first).ok();
        let mut tally = console.finish();
        let names = tally.times.iter_mut().map(|(_, name)| name).chain(&mut tally.failures);
        names.for_each(|name| *name = format!("{name} on Linux {}", kernel.name));
        if let Err(error) = ended {
            tally += Tally::one(&format!("Linux {}: {error:#}", kernel.name), false);
        }
        say(&format!("Linux {}: {} in {:.1} s", kernel.name, tally.line(), started.elapsed().as_secs_f64()));
        Ok((tally, figures))
    }
}

/// What the first file systems are made from.
struct Files<'a> {
    folder: &'a Path,
    /// What is in each of them.
    common: Vec<(String, Vec<u8>)>,
    tests: &'a Tests,
}

/// Builds the first process and the tests.
fn build(workspace: &Workspace, subjects: &[Located<'_>]) -> Result<Programs> {
    let object = workspace.object();
    let environment =
        |command: duct::Expression| clean_cargo_env(command.env("BALLAST_EBPF_OBJECT", &object).dir(&workspace.root));
    let init = cmd!("cargo", "build", "--locked", "-p", "lb-tests", "--bin", "ballast-guest").stdout_to_stderr();
    run_shown("building the guests' first process", &environment(init))?;
    let mut arguments =
        vec!["test", "--locked", "-p", "lb-tests", "--no-run", "--message-format=json-render-diagnostics"];
    let wanted = binaries(subjects);
    for test in &wanted {
        arguments.extend(["--test", test]);
    }
    let built = environment(cmd("cargo", arguments)).read().context("building the guests' tests")?;
    let tests: Vec<_> = wanted.iter().filter_map(|&name| Some((name.to_owned(), executable(&built, name)?))).collect();
    ensure!(tests.len() == wanted.len(), "cargo built {tests:?} of {wanted:?}");
    let init = workspace.target().join("debug/ballast-guest");
    Ok(Programs { init, agent: workspace.agent(false), tests: Tests(tests), object })
}
