//! Format, lints and crate rules: what a change must pass before its tests count.

use anyhow::Result;
use duct::{Expression, cmd};

use crate::image;
use crate::process::{run_watched, say};
use crate::toolchain::clean_cargo_env;
use crate::workspace::Workspace;

/// One check: its name and its command.
pub struct Check {
    pub name: &'static str,
    pub command: Expression,
}

/// `cargo fmt --check` for the workspace and for the programs, which are a workspace of their own.
pub fn format_checks(workspace: &Workspace) -> Vec<Check> {
    let programs = workspace.root.join("lb-ebpf/Cargo.toml");
    let yardstick = workspace.root.join("tests/yardstick/Cargo.toml");
    vec![
        check(workspace, "format", &cmd!("cargo", "fmt", "--all", "--check")),
        check(workspace, "format of the programs", &cmd!("cargo", "fmt", "--manifest-path", programs, "--check")),
        check(workspace, "format of the yardstick", &cmd!("cargo", "fmt", "--manifest-path", yardstick, "--check")),
    ]
}

/// clippy with warnings as errors, dependencies that nothing uses, and the rules of the text.
///
/// The programs' target comes with no clippy: they are checked as if they were built for this machine.
pub fn lint_checks(workspace: &Workspace) -> Vec<Check> {
    let clippy = cmd!("cargo", "clippy", "--locked", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings")
        .env("BALLAST_EBPF_OBJECT", workspace.object());
    let programs = cmd!(
        "cargo",
        "clippy",
        "--locked",
        "--release",
        "--quiet",
        "--manifest-path",
        workspace.root.join("lb-ebpf/Cargo.toml"),
        "--",
        "-D",
        "warnings"
    )
    .env("RUSTC_BOOTSTRAP", "1")
    .env("CARGO_TARGET_DIR", workspace.target().join("ebpf-clippy"));
    let unused = cmd!("cargo", "test", "--locked", "--quiet", "-p", "xtask", "unused::");
    let text = cmd!("cargo", "test", "--locked", "--quiet", "-p", "xtask", "text::");
    vec![
        check(workspace, "clippy", &clippy),
        check(workspace, "clippy of the programs", &programs),
        check(workspace, "unused dependencies", &unused),
        check(workspace, "text", &text),
    ]
}

/// The agent's types on musl; nothing where there is no musl target. The ladder builds the static agent instead.
pub fn static_check(workspace: &Workspace) -> Option<Check> {
    let musl = image::binary::check(workspace);
    if musl.is_none() {
        say("no musl target here: that the agent compiles for it is not checked");
    }
    Some(check(workspace, "static agent", &musl?))
}

/// cargo-deny's rules that need no network. cargo-deny must be there: see `setup::crate_rules`.
pub fn crate_check(workspace: &Workspace) -> Check {
    let deny = cmd!("cargo", "deny", "--log-level", "error", "check", "bans", "licenses", "sources");
    check(workspace, "deny", &deny)
}

/// The book as its readers get it. mdbook must be there.
pub fn book_check(workspace: &Workspace) -> Check {
    let book = cmd!("mdbook", "build", "docs", "--dest-dir", workspace.target().join("book"));
    check(workspace, "book", &book)
}

/// Advisories need the advisory database, and so the network: apart from the rest.
pub fn advisories(workspace: &Workspace) -> Check {
    check(workspace, "advisories", &cmd!("cargo", "deny", "check", "advisories"))
}

fn check(workspace: &Workspace, name: &'static str, command: &Expression) -> Check {
    let command = clean_cargo_env(command.env("PATH", workspace.path()).dir(&workspace.root));
    Check { name, command }
}

/// Runs checks one after the other; returns the names of those that failed.
pub fn run(checks: &[Check]) -> Result<Vec<&'static str>> {
    let mut failed = Vec::new();
    for check in checks {
        let good = run_watched(check.name, &check.command, |_| ())?;
        println!("{}: {}", check.name, if good { "ok" } else { "FAILED" });
        if !good {
            failed.push(check.name);
        }
    }
    Ok(failed)
}

/// The source files of the programs, in all their folders.
#[cfg(test)]
pub fn files_of_the_programs(root: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut folders = vec![root.join("lb-ebpf/src")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the programs are in the checkout") {
            let path = entry.expect("readable").path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Elsewhere the compiler may take a setting for any other constant of the same value, which then changes with it.
    #[test]
    fn what_is_set_at_load_has_a_section_of_its_own() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout");
        let mut settings = 0;
        for file in super::files_of_the_programs(root) {
            let text = std::fs::read_to_string(&file).expect("source");
            let lines: Vec<&str> = text.lines().collect();
            for at in
                (1..lines.len()).filter(|at| lines[*at].starts_with("pub static") && lines[*at].contains("Global<"))
            {
                settings += 1;
                let section = "#[unsafe(link_section = \".rodata.set\")]";
                assert_eq!(lines[at - 1], section, "{}: {}", file.display(), lines[at]);
            }
        }
        assert!(settings > 10, "{settings}");
    }
}
