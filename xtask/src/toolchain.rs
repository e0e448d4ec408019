//! The compiler for the eBPF programs: Debian's packages, or rustup's nightly with its sources.

use std::path::{Path, PathBuf};

use duct::{Expression, cmd};

use crate::workspace::{Workspace, is_root, which};

/// Debian's packages for the programs: a Rust whose core library is built for BPF, the LLVM that bpf-linker links, bpftool.
pub const DEBIAN_PACKAGES: [&str; 7] =
    ["rustc-web", "cargo-web", "libstd-rust-web-dev-bpf", "rust-web-src", "llvm-22-dev", "clang-22", "bpftool"];

/// Debian's LLVM, which bpf-linker is built against; the same major version as the one in Debian's rustc.
pub const DEBIAN_LLVM: &str = "/usr/lib/llvm-22";

/// Code generation for the programs: line numbers and types (BTF) in the object, and 32-bit jumps and atomics (`v3`).
const RUSTFLAGS: &str = include_str!("../../lb-ebpf/rustflags");

/// A compiler for the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toolchain {
    /// `/usr/bin/rustc` of Debian with a prebuilt core library for BPF.
    Debian,
    /// `cargo +nightly -Z build-std=core`.
    Nightly,
}

/// What this machine has and allows: the facts that the choice depends on.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "four independent facts, each named")]
pub struct Facts {
    /// Debian's compiler with its BPF library is installed.
    pub debian_installed: bool,
    /// rustup's nightly with rust-src is installed.
    pub nightly_installed: bool,
    /// apt-get is there and we are root.
    pub can_apt: bool,
    /// rustup is there.
    pub can_rustup: bool,
}

impl Facts {
    /// Looks at this machine.
    pub fn gather() -> Self {
        Self {
            debian_installed: Path::new("/usr/bin/rustc").exists()
                && Path::new("/usr/bin/cargo").exists()
                && Path::new("/usr/lib/rustlib/bpfel-unknown-none/lib").exists(),
            nightly_installed: nightly_has_sources(),
            can_apt: is_root() && which("apt-get").is_some(),
            can_rustup: which("rustup").is_some(),
        }
    }
}

/// The choice: what is installed first, then what can be installed; Debian's packages first in both.
pub fn choose(facts: Facts) -> Result<Toolchain, NoToolchain> {
    match facts {
        Facts { debian_installed: true, .. } => Ok(Toolchain::Debian),
        Facts { nightly_installed: true, .. } => Ok(Toolchain::Nightly),
        Facts { can_apt: true, .. } => Ok(Toolchain::Debian),
        Facts { can_rustup: true, .. } => Ok(Toolchain::Nightly),
        _ => Err(NoToolchain),
    }
}

/// No compiler for the programs is there, and none can be installed.
#[derive(Debug, PartialEq, Eq)]
pub struct NoToolchain;

impl std::fmt::Display for NoToolchain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "no compiler for the eBPF programs: run `cargo xtask setup` as root on Debian 12 or later, or install rustup and run \
             `rustup toolchain install nightly --component rust-src`",
        )
    }
}

impl std::error::Error for NoToolchain {}

impl Toolchain {
    /// One line for the user: which one, and where it comes from.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Debian => "Debian packages (/usr/bin/rustc with a core library for BPF)",
            Self::Nightly => "rustup nightly with rust-src (-Z build-std=core)",
        }
    }

    /// The command that builds the programs of `source` (a copy of `lb-ebpf`) into `target`.
    pub fn build(self, workspace: &Workspace, source: &Path, target: &Path) -> Expression {
        let expression = match self {
            Self::Debian => cmd!("/usr/bin/cargo", "build", "--release", "--locked", "--target", "bpfel-unknown-none")
                .env("RUSTC", "/usr/bin/rustc")
                // Debian's stable compiler runs the few unstable features that BPF code needs.
                .env("RUSTC_BOOTSTRAP", "1"),
            Self::Nightly => cmd!(
                "cargo",
                "+nightly",
                "build",
                "-Zbuild-std=core",
                "--release",
                "--locked",
                "--target",
                "bpfel-unknown-none"
            ),
        };
        let expression = expression
            .env("CARGO_ENCODED_RUSTFLAGS", rustc_flags(workspace).join("\u{1f}"))
            .env("PATH", workspace.path())
            .env("CARGO_TARGET_DIR", target)
            // An incremental build has other instructions, and the recorded figures of the verifier would not fit.
            .env_remove("CARGO_INCREMENTAL")
            .dir(source);
        clean_cargo_env(expression)
    }
}

fn rustc_flags(workspace: &Workspace) -> Vec<String> {
    RUSTFLAGS.split_ascii_whitespace().map(str::to_owned).chain(anonymous_paths(&workspace.root)).collect()
}

/// Compiler flags that keep this machine's paths out of what is shipped: they are renamed.
pub fn anonymous_paths(root: &Path) -> Vec<String> {
    let home = |variable: &str, folder: &str| {
        let given = std::env::var_os(variable).map(PathBuf::from);
        given.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(folder)))
    };
    let renamed = [
        (home("CARGO_HOME", ".cargo"), "/cargo"),
        (home("RUSTUP_HOME", ".rustup"), "/rustup"),
        (Some(root.into()), "/ballast"),
    ];
    let renamed = renamed.into_iter().filter_map(|(from, to)| Some((from?, to)));
    renamed.map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display())).collect()
}

/// What steers an inner cargo to another compiler, or to other code.
const STEERING: [&str; 6] = ["CARGO", "CARGO_ENCODED_RUSTFLAGS", "RUSTC", "RUSTDOC", "RUSTFLAGS", "RUSTUP_TOOLCHAIN"];

/// Takes away what the cargo that runs xtask says about itself, and what is [`STEERING`] in the shell's environment.
/// What `expression` sets itself stays: duct lets the inner setting win.
pub fn clean_cargo_env(expression: Expression) -> Expression {
    let ours = std::env::vars_os().map(|(name, _)| name).filter(|name| {
        let name = name.to_string_lossy();
        STEERING.contains(&&*name) || name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    });
    ours.fold(expression, |expression, name| expression.env_remove(name))
}

fn nightly_has_sources() -> bool {
    cmd!("rustup", "component", "list", "--installed", "--toolchain", "nightly")
        .stderr_null()
        .unchecked()
        .read()
        .is_ok_and(|list| list.lines().any(|line| line.trim() == "rust-src"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Facts =
        Facts { debian_installed: false, nightly_installed: false, can_apt: false, can_rustup: false };

    #[test]
    fn what_is_installed_wins_over_what_could_be() {
        let facts = Facts { nightly_installed: true, can_apt: true, can_rustup: true, ..NOTHING };
        assert_eq!(choose(facts), Ok(Toolchain::Nightly));
        assert_eq!(choose(Facts { debian_installed: true, ..facts }), Ok(Toolchain::Debian));
    }

    #[test]
    fn debian_comes_first_where_apt_can_install() {
        assert_eq!(choose(Facts { can_apt: true, can_rustup: true, ..NOTHING }), Ok(Toolchain::Debian));
        assert_eq!(choose(Facts { can_rustup: true, ..NOTHING }), Ok(Toolchain::Nightly));
    }

    #[test]
    fn an_inner_cargo_keeps_what_it_was_given_and_loses_what_we_inherited() {
        let shown = clean_cargo_env(cmd!("sh", "-c", "echo $RUSTC,$CARGO_MANIFEST_DIR").env("RUSTC", "mine"));
        assert_eq!(shown.read().expect("sh is there"), "mine,", "cargo test sets CARGO_MANIFEST_DIR for us");
    }

    #[test]
    fn without_any_the_remedy_is_one_line() {
        let text = choose(NOTHING).expect_err("nothing is there").to_string();
        assert!(text.contains("cargo xtask setup") && text.contains("rustup toolchain install nightly"));
        assert_eq!(text.lines().count(), 1);
    }
}
