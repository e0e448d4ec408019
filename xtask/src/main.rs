//! `cargo xtask`: builds, runs, tests and packs Ballast.

// A new variant of an enum of ours must be handled wherever it matters: no wildcard hides it.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

mod arm64;
mod bench;
mod compile;
mod edited;
#[cfg(test)]
mod faults;
mod fuzz;
mod image;
mod lint;
#[cfg(test)]
mod modules;
mod mutate;
mod process;
mod programs;
mod progress;
mod run;
mod setup;
mod soak;
mod test;
#[cfg(test)]
mod text;
mod toolchain;
#[cfg(test)]
mod unused;
mod vm;
mod workspace;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};

use crate::compile::Build;
use crate::process::say;
use crate::setup::Level;
use crate::workspace::Workspace;

/// Builds, runs, tests and packs Ballast.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install or build what is missing on this machine.
    Setup,
    /// Build the eBPF programs and the agent that embeds them.
    Build {
        /// With optimisation.
        #[arg(long)]
        release: bool,
    },
    /// Show what Ballast does on a small network, no cluster needed; or run the agent on a cluster.
    Run(run::RunArgs),
    /// Run every test: format, lints, unit, packets, namespaces, a real API server, mutations, the demo.
    Test(test::TestArgs),
    /// Run one rung of the ladder, as `test` asks for.
    #[command(hide = true)]
    Rung(test::RungArgs),
    /// Check format, lints and the crates' licences and sources.
    Lint {
        /// Look for advisories against the crates, too (needs the network).
        #[arg(long)]
        advisories: bool,
    },
    /// Break the programs on purpose: for each break some test must fail.
    Mutate(mutate::MutateArgs),
    /// Pack the static binary as an OCI image, without a container daemon.
    Image(image::ImageArgs),
    /// Measure what Ballast costs on network namespaces of its own (root).
    Bench(bench::BenchArgs),
    /// Let backends come and go a million times, under load, and see what is left (root).
    Soak(soak::SoakArgs),
    /// What the verifier says about the programs, and the kernel memory of the idle maps (root).
    Programs(programs::ProgramsArgs),
    /// Look for bytes that break a rule of the decision or of the parser (libFuzzer).
    Fuzz(fuzz::FuzzArgs),
    /// Write the reference pages of the book that are generated from code (root)
    Reference,
    /// Build the programs with a set of edits of `tests/mutations`, as tests ask for.
    #[command(hide = true)]
    Edited(edited::EditedArgs),
    /// Run tests on other kernels, in virtual machines (root).
    Vm(vm::VmArgs),
}

fn main() -> ExitCode {
    match dispatch(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(cli: &Cli) -> Result<()> {
    let workspace = Workspace::find()?;
    match &cli.command {
        Command::Setup => {
            setup::setup(&workspace, Level::Test)?;
            setup::crate_rules(&workspace)?;
            setup::book(&workspace)?;
            setup::mutants(&workspace)
        }
        Command::Build { release } => {
            setup::setup_and_build(&workspace, Level::Build, &[Build::Programs, Build::agent(*release)]).map(|_| ())
        }
        Command::Run(args) => run::run(&workspace, args),
        Command::Test(args) => test::run(&workspace, args),
        Command::Rung(args) => test::run_rung(&workspace, args),
        Command::Lint { advisories } => run_lint(&workspace, *advisories),
        Command::Mutate(args) => mutate::run(&workspace, args),
        Command::Image(args) => image::run(&workspace, args),
        Command::Bench(args) => bench::run(&workspace, args),
        Command::Soak(args) => soak::run(&workspace, args),
        Command::Programs(args) => programs::run(&workspace, args),
        Command::Fuzz(args) => fuzz::run(&workspace, args),
        Command::Reference => test::write_pages(&workspace),
        Command::Edited(args) => edited::run(&workspace, args),
        Command::Vm(args) => vm::run(&workspace, args),
    }
}

fn run_lint(workspace: &Workspace, advisories: bool) -> Result<()> {
    let mut checks = lint::format_checks(workspace);
    checks.extend(lint::lint_checks(workspace));
    checks.extend(lint::static_check(workspace));
    if workspace.has_tool("cargo-deny") {
        checks.push(lint::crate_check(workspace));
    } else {
        say("cargo-deny is not installed, its rules are not checked: `cargo xtask setup` builds it");
    }
    if workspace.has_tool("mdbook") {
        checks.push(lint::book_check(workspace));
    } else {
        say("mdbook is not installed, the book is not built: `cargo xtask setup` builds it");
    }
    if advisories {
        checks.push(lint::advisories(workspace));
    }
    let failed = lint::run(&checks)?;
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}
