//! Installs or builds what is missing on this machine, and says what and why.

mod cache;
mod debian;
mod install;
mod needs;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use duct::cmd;

use self::cache::Version;
use self::needs::{ARM64, CARGO_DENY, CARGO_MUTANTS, Install, MDBOOK, NEEDS, Need};
use crate::compile::Build;
use crate::process::{run_logged, say};
use crate::progress::{Progress, Step};
use crate::toolchain::{DEBIAN_LLVM, DEBIAN_PACKAGES, Facts, Toolchain, choose};
use crate::workspace::{Workspace, is_root, which};

/// Disk, in bytes, that a fresh checkout fills: to build the agent, and to build and run all tests.
const BUILD_ROOM: u64 = 3 << 30;
const TEST_ROOM: u64 = 10 << 30;
/// About how long Debian's compiler and LLVM take, and rustup's, in seconds.
const DEBIAN_SECONDS: u64 = 30;
const RUSTUP_SECONDS: u64 = 40;

/// How much a command needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Compile programs and agent.
    Build,
    /// And run them in network namespaces.
    Run,
    /// And everything that the tests use, but for cargo-deny, cargo-mutants and mdbook: see [`crate_rules`], [`mutants`] and [`book`].
    Test,
    /// And boot other kernels.
    Guests,
}

/// Makes sure that all of `level` is there; returns the toolchain for the programs.
pub fn setup(workspace: &Workspace, level: Level) -> Result<Toolchain> {
    setup_and_build(workspace, level, &[]).map(|(toolchain, _)| toolchain)
}

/// Makes sure that all of `level` is there, then builds; shows how far it is with both. Crates compile while tools are installed.
pub fn setup_and_build(workspace: &Workspace, level: Level, builds: &[Build]) -> Result<(Toolchain, Progress)> {
    let facts = Facts::gather();
    let toolchain = choose(facts)?;
    say(&format!("eBPF toolchain: {}", toolchain.describe()));
    if let Some(warning) = room_warning(room(&workspace.root)?, level) {
        say(&warning);
    }
    let mut missing = Missing::default();
    missing.toolchain(toolchain, facts);
    for need in NEEDS.iter().filter(|need| need.level <= level) {
        missing.look_at(workspace, toolchain, need)?;
    }
    let mut steps = missing.steps();
    steps.extend(builds.iter().map(|build| build.step(workspace)));
    let mut progress = Progress::new(steps);
    let mut begun = builds.last().map(|build| build.begin(workspace)).transpose()?.flatten();
    missing.install(workspace, toolchain, &mut progress)?;
    for build in builds {
        progress.step(false, || {
            if let Some(begun) = begun.take_if(|_| *build != Build::Programs) {
                begun.wait().context("compiling crates")?;
            }
            build.run(workspace, toolchain)
        })?;
    }
    Ok((toolchain, progress))
}

/// Makes sure that cargo-deny is there. It takes minutes to build and nothing else waits for it: the ladder builds it beside its
/// tests.
pub fn crate_rules(workspace: &Workspace) -> Result<()> {
    all_of(workspace, &[&CARGO_DENY])
}

/// Makes sure that mdbook is there: beside the tests, too.
pub fn book(workspace: &Workspace) -> Result<()> {
    all_of(workspace, &[&MDBOOK])
}

/// Makes sure that cargo-mutants is there: beside the tests, too.
pub fn mutants(workspace: &Workspace) -> Result<()> {
    all_of(workspace, &[&CARGO_MUTANTS])
}

/// Makes sure that what cross-builds for arm64 and runs it is there.
pub fn arm64(workspace: &Workspace) -> Result<()> {
    all_of(workspace, &ARM64.each_ref())
}

fn all_of(workspace: &Workspace, needs: &[&'static Need]) -> Result<()> {
    let toolchain = choose(Facts::gather())?;
    let mut missing = Missing::default();
    for need in needs {
        missing.look_at(workspace, toolchain, need)?;
    }
    let mut progress = Progress::new(missing.steps());
    missing.install(workspace, toolchain, &mut progress)
}

/// What has to be installed.
#[derive(Debug, Default)]
struct Missing {
    /// rustup's nightly compiler.
    nightly: bool,
    packages: Vec<&'static str>,
    package_seconds: u64,
    tools: Vec<(&'static Need, Version)>,
}

impl Missing {
    /// The compiler for the programs, and the LLVM that bpf-linker links.
    fn toolchain(&mut self, toolchain: Toolchain, facts: Facts) {
        match toolchain {
            Toolchain::Debian if facts.debian_installed && Path::new(DEBIAN_LLVM).exists() => {}
            Toolchain::Debian if facts.debian_installed && which("bpf-linker").is_some() => {}
            Toolchain::Debian => {
                say("the compiler for the eBPF programs is missing: installing Debian's");
                self.packages.extend(DEBIAN_PACKAGES);
                self.package_seconds += DEBIAN_SECONDS;
            }
            Toolchain::Nightly => self.nightly = !facts.nightly_installed,
        }
    }

    fn look_at(&mut self, workspace: &Workspace, toolchain: Toolchain, need: &'static Need) -> Result<()> {
        if need.is_given(workspace) {
            return Ok(());
        }
        if let Install::Apt(names) = need.install {
            say(&format!("{} is missing ({}): installing {}", need.name, need.why, names.join(" ")));
            self.packages.extend(names);
            self.package_seconds += need.seconds;
        } else if let Some(version) = install::version(workspace, toolchain, need)?
            && !version.link(workspace)?
        {
            say(&format!("{} {} is missing ({})", need.name, version.key, need.why));
            self.tools.push((need, version));
        }
        Ok(())
    }

    fn steps(&self) -> Vec<Step> {
        let step = |name: &str, seconds| Step { name: name.to_owned(), estimate: Duration::from_secs(seconds) };
        let mut steps = Vec::new();
        steps.extend(self.nightly.then(|| step("rustup's nightly compiler", RUSTUP_SECONDS)));
        steps.extend((!self.packages.is_empty()).then(|| step("Debian packages", self.package_seconds)));
        steps.extend(self.tools.iter().map(|(need, _)| step(need.name, need.estimate())));
        steps
    }

    /// In the order of the steps.
    fn install(&self, workspace: &Workspace, toolchain: Toolchain, progress: &mut Progress) -> Result<()> {
        if self.nightly {
            let command =
                cmd!("rustup", "toolchain", "install", "nightly", "--profile", "minimal", "--component", "rust-src");
            let log = workspace.logs()?.join("setup-rustup.log");
            progress.step(true, || run_logged("rustup", &log, &command))?;
        }
        if !self.packages.is_empty() {
            if !is_root() || which("apt-get").is_none() {
                bail!(
                    "missing: install `{}` with your system's package manager, or run this as root on Debian",
                    self.packages.join(" ")
                );
            }
            let log = workspace.logs()?.join("setup-apt.log");
            progress.step(true, || debian::install(&self.packages, &log))?;
        }
        for (need, version) in &self.tools {
            progress
                .step(true, || install::install(workspace, toolchain, need, version))
                .with_context(|| format!("{} ({})", need.name, need.why))?;
        }
        Ok(())
    }
}

/// Bytes that are free on the checkout's file system.
fn room(checkout: &Path) -> Result<u64> {
    let stat =
        rustix::fs::statvfs(checkout).with_context(|| format!("cannot read the space at {}", checkout.display()))?;
    Ok(stat.f_bavail * stat.f_frsize)
}

/// A linker that runs out of disk dies with a bus error and no word about the disk: said before.
fn room_warning(free: u64, level: Level) -> Option<String> {
    const GIB: u64 = 1 << 30;
    let wanted = if level >= Level::Test { TEST_ROOM } else { BUILD_ROOM };
    (free < wanted).then(|| {
        format!(
            "only {} GiB are free on the disk of this checkout; all that is built from nothing takes up to {} GiB: \
             a linker that ends with a bus error (signal 7) has run out of it",
            free / GIB,
            wanted / GIB
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_too_small_is_named_before_a_linker_dies_of_it() {
        assert_eq!(room_warning(64 << 30, Level::Guests), None);
        assert_eq!(room_warning(4 << 30, Level::Run), None);
        let warning = room_warning(7 << 30, Level::Test).expect("too small for the tests");
        assert!(warning.contains("7 GiB are free") && warning.contains("10 GiB"), "{warning}");
    }
}
