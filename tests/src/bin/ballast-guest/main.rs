//! `ballast-guest`, the first process of the virtual machines of `cargo xtask vm`: runs the tests that `/tests/list` names.
//!
//! The kernel starts it as `/init` from the initial file system, and shows its output on the serial console, where xtask reads it.
//! It is never run on a machine that lives: it ends by switching off.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};

/// The first line of what it says: xtask waits for it.
const BEGUN: &str = "guest: begun";
/// The last line, if every test binary was run to its end; xtask judges each by its result and its exit status.
const DONE: &str = "guest: done";
/// Set for the test binaries: they may do to this machine what no other machine should suffer.
const GUEST: &str = "BALLAST_GUEST";
/// The file that a test binary may write to, line by line, what xtask shall know.
const REPORT: (&str, &str) = ("BALLAST_GUEST_REPORT", "/run/report");
/// The eBPF object, for tests that load the programs themselves; its path in a guest.
const OBJECT: (&str, &str) = ("BALLAST_EBPF_OBJECT", "/lib/ballast.o");
/// What to run, one a line: see [`Run`].
const LIST: &str = "/tests/list";
/// Modules in the order in which they are loaded, one file name a line.
const MODULES: &str = "/modules/order";
/// The variable of a line of the list that names further modules for it, in their order.
const FURTHER: &str = "BALLAST_GUEST_MODULES";
/// `MODULE_INIT_COMPRESSED_FILE` of `finit_module`: since 5.17.
const COMPRESSED: libc::c_uint = 4;

fn main() -> ExitCode {
    if std::process::id() != 1 {
        eprintln!("error: this is the first process of a virtual machine: run `cargo xtask vm`");
        return ExitCode::FAILURE;
    }
    println!("{BEGUN}");
    match prepare().and_then(|()| run_tests()) {
        Ok(()) => println!("{DONE}"),
        Err(error) => println!("error: {error:#}"),
    }
    // A first process that ends is a panic of the kernel: also an end, and a message nobody needs.
    let Err(error) = reboot(RebootMode::RB_AUTOBOOT);
    println!("error: the machine cannot be switched off: {error}");
    ExitCode::FAILURE
}

/// What a booted system has.
fn prepare() -> Result<()> {
    for (kind, path) in [
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("devtmpfs", "/dev"),
        ("tmpfs", "/run"),
        ("tmpfs", "/tmp"),
        ("bpf", "/sys/fs/bpf"),
        ("cgroup2", "/sys/fs/cgroup"),
    ] {
        fs::create_dir_all(path).with_context(|| format!("cannot make {path}"))?;
        mount(Some(kind), path, Some(kind), MsFlags::empty(), None::<&str>)
            .with_context(|| format!("cannot mount {kind} at {path}"))?;
    }
    let order = fs::read_to_string(MODULES).with_context(|| format!("cannot read {MODULES}"))?;
    for name in order.lines() {
        load_module(&Path::new(MODULES).with_file_name(name))?;
    }
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").context("cannot read the kernel's version")?;
    println!("guest: Linux {}", kernel.trim());
    Ok(())
}

fn load_module(path: &Path) -> Result<()> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let flags = if path.extension().is_some_and(|kind| kind == "ko") { 0 } else { COMPRESSED };
    let options = CString::default();
    // SAFETY: the descriptor is open and the options are a string that ends in NUL; both live across the call.
    let answer = unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), options.as_ptr(), flags) };
    if answer != 0 {
        let error = std::io::Error::last_os_error();
        // It may be part of the kernel, or have come with another one.
        ensure!(error.raw_os_error() == Some(libc::EEXIST), "the kernel refuses module {}: {error}", path.display());
    }
    Ok(())
}

/// A line of the list: a name, variables of the environment, a program and its arguments, separated by spaces.
#[derive(Debug, PartialEq, Eq)]
struct Run<'a> {
    name: &'a str,
    variables: Vec<(&'a str, &'a str)>,
    program: &'a str,
    arguments: Vec<&'a str>,
}

impl<'a> Run<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split(' ').peekable();
        let name = words.next()?;
        let variables = std::iter::from_fn(|| words.next_if(|word| word.contains('='))?.split_once('=')).collect();
        Some(Self { name, variables, program: words.next()?, arguments: words.collect() })
    }
}

/// Runs the list, each line to its end.
fn run_tests() -> Result<()> {
    let list = fs::read_to_string(LIST).with_context(|| format!("cannot read {LIST}"))?;
    let runs: Vec<Run<'_>> = list.lines().map(Run::parse).collect::<Option<_>>().context("a line names no program")?;
    ensure!(!runs.is_empty(), "{LIST} is empty");
    for Run { name, variables, program, arguments } in runs {
        println!("guest: running {name}");
        let further = variables.iter().filter(|(variable, _)| *variable == FURTHER);
        for module in further.flat_map(|(_, modules)| modules.split(',')) {
            load_module(&Path::new(MODULES).with_file_name(module))?;
        }
        let status = Command::new(program)
            .args(arguments)
            .env("PATH", "/bin")
            .env("BALLAST_BIN", "/bin/ballast")
            .env(GUEST, "1")
            .env(REPORT.0, REPORT.1)
            .env(OBJECT.0, OBJECT.1)
            .envs(variables)
            .status()
            .with_context(|| format!("cannot run {program}"))?;
        println!("guest: {name} ended with {status}");
        // Most write none.
        for line in fs::read_to_string(REPORT.1).unwrap_or_default().lines() {
            println!("guest: report {line}");
        }
        fs::remove_file(REPORT.1).ok();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_run_and_how() {
        let run = Run::parse("packet CASES=3 SEED=1 /tests/core --exact packet::a=b").expect("a program");
        assert_eq!((run.name, run.program), ("packet", "/tests/core"));
        assert_eq!(run.variables, [("CASES", "3"), ("SEED", "1")]);
        assert_eq!(run.arguments, ["--exact", "packet::a=b"]);
        assert_eq!(Run::parse("guest_a /tests/guest_a").expect("a program").arguments, [""; 0]);
        assert_eq!(Run::parse("packet CASES=3"), None);
    }
}
