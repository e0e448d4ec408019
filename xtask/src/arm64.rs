//! The rung `arm64`: the agent is cross-built, and unit tests run in user-mode emulation. The programs are the same object on both.

use anyhow::{Result, ensure};
use duct::{Expression, cmd};

use crate::image::binary::has_target;
use crate::mutate::USERSPACE;
use crate::process::run_shown;
use crate::setup;
use crate::test::Tally;
use crate::toolchain::clean_cargo_env;
use crate::workspace::Workspace;

const TARGET: &str = "aarch64-unknown-linux-musl";
/// Tests of the agent that need what user-mode emulation has not: `NETLINK_SOCK_DIAG`.
const LEFT_OUT: &str = "sockets::holders::tests::listeners_and_unconnected_sockets_are_found_and_no_others";

/// Whether the standard library for it is there, or can be had.
pub fn is_possible() -> bool {
    has_target(TARGET)
}

/// Builds the agent with the workspace's programs, runs it, and hands the commands of the tests to `count`.
pub fn run(workspace: &Workspace, mut count: impl FnMut(&Expression) -> Result<Tally>) -> Result<Tally> {
    setup::arm64(workspace)?;
    ensure!(has_target(TARGET), "the standard library for {TARGET} is missing, and rustup cannot add it here");
    let build = cmd!("cargo", "build", "--locked", "-p", "lb-userspace", "--bin", "ballast", "--target", TARGET);
    run_shown("building the agent for arm64", &environment(workspace, &build.stdout_to_stderr()))?;
    let agent = workspace.target().join(TARGET).join("debug/ballast");
    let said = cmd!("qemu-aarch64", agent, "--version").read().unwrap_or_else(|error| error.to_string());
    let mut tally = Tally::one(&format!("the agent starts on arm64: {said}"), said.starts_with("ballast "));
    let packages = USERSPACE.iter().flat_map(|package| ["-p", package]);
    let arguments = ["test", "--locked", "--no-fail-fast", "--lib", "--bins", "--target", TARGET].into_iter();
    let arguments = arguments.chain(packages).chain(["--", "--skip", LEFT_OUT]);
    for tests in [
        cmd!("cargo", "test", "--locked", "--no-fail-fast", "-p", "lb-common", "--target", TARGET),
        // The others are properties, which take an hour in emulation.
        cmd("cargo", arguments),
    ] {
        tally += count(&environment(workspace, &tests))?;
    }
    Ok(tally)
}

/// Rust links by its own linker against its own musl; the few C files need headers, and nothing else, of Debian's C library.
fn environment(workspace: &Workspace, command: &Expression) -> Expression {
    let command = command
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER", "rust-lld")
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER", "qemu-aarch64")
        .env("CC_aarch64_unknown_linux_musl", "aarch64-linux-gnu-gcc")
        .env("CFLAGS_aarch64_unknown_linux_musl", "-U_FORTIFY_SOURCE")
        .env("BALLAST_EBPF_OBJECT", workspace.object())
        .dir(&workspace.root);
    clean_cargo_env(command)
}
