//! A static build of the agent: musl where its standard library is there, else glibc linked statically.

use std::path::PathBuf;

use anyhow::{Context, Result};
use duct::{Expression, cmd};
use object::elf::{FileHeader64, PT_INTERP};
use object::read::elf::{FileHeader as _, ProgramHeader as _};

use crate::process::{run_shown, say};
use crate::toolchain::{anonymous_paths, clean_cargo_env};
use crate::workspace::{Workspace, which};

/// How a static binary is compiled. Both abort on a panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// As it is shipped.
    Release,
    /// The same code without optimisation, for tests. What compiles and builds it is what the tests have compiled already.
    Confined,
}

impl Profile {
    /// The name of the profile, and its folder.
    fn name(self) -> [&'static str; 2] {
        match self {
            Self::Release => ["release", "release"],
            Self::Confined => ["dev", "debug"],
        }
    }
}

/// Builds the agent without any shared library; returns its path.
pub fn build(workspace: &Workspace, profile: Profile) -> Result<PathBuf> {
    let triple = if let Some(musl) = musl() {
        say(&format!("static binary: {musl}"));
        musl
    } else {
        let arch = std::env::consts::ARCH;
        say("static binary: glibc, linked statically (rustup cannot add the musl target here)");
        format!("{arch}-unknown-linux-gnu")
    };
    let [name, folder] = profile.name();
    let arguments =
        ["build", "--locked", "--profile", name, "-p", "lb-userspace", "--bin", "ballast", "--target", &triple];
    let mut build = cmd("cargo", arguments);
    if profile == Profile::Confined {
        build = build.env("CARGO_PROFILE_DEV_PANIC", "abort").env("CARGO_PROFILE_DEV_DEBUG", "0");
    }
    run_shown("building the static agent", &command(workspace, &triple, &build))?;
    Ok(workspace.target().join(triple).join(folder).join("ballast"))
}

/// Compiles the agent for musl as far as types go: numbers of the C library have other types there. None: no musl target here.
pub fn check(workspace: &Workspace) -> Option<Expression> {
    let triple = musl()?;
    let check =
        cmd!("cargo", "check", "--locked", "--quiet", "-p", "lb-userspace", "--bin", "ballast", "--target", &triple);
    Some(command(workspace, &triple, &check))
}

/// The musl target of this machine's kind, if it is there or rustup can get it.
fn musl() -> Option<String> {
    let triple = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    has_target(&triple).then_some(triple)
}

/// Whether a program runs without a dynamic loader.
pub fn is_static(program: &[u8]) -> Result<bool> {
    let header = FileHeader64::<object::Endianness>::parse(program).context("not a 64-bit ELF file")?;
    let endian = header.endian()?;
    Ok(header.program_headers(endian, program)?.iter().all(|segment| segment.p_type(endian) != PT_INTERP))
}

/// A command of cargo for the agent on this target, with what such a build needs.
fn command(workspace: &Workspace, triple: &str, build: &Expression) -> Expression {
    let build = build.env("BALLAST_EBPF_OBJECT", workspace.object()).dir(&workspace.root);
    let build = build.env("CARGO_ENCODED_RUSTFLAGS", rustc_flags(workspace, triple).join("\u{1f}"));
    // The inner value wins: the flags of this build are not cleaned away.
    let build = clean_cargo_env(build);
    if !triple.ends_with("musl") {
        return build;
    }
    // The few C and assembly files (ring, psm) call nothing of the C library, so the host's compiler does; its checked
    // variants of memcpy and the like do not exist in musl.
    let variable = triple.replace('-', "_");
    let build = build.env(format!("CFLAGS_{variable}"), "-U_FORTIFY_SOURCE");
    let compiler = format!("CC_{variable}");
    if std::env::var_os(&compiler).is_some() || which("musl-gcc").is_some() {
        return build;
    }
    build.env(compiler, "cc")
}

/// Panics name source files: as paths of the build, not of the machine it ran on.
fn rustc_flags(workspace: &Workspace, triple: &str) -> Vec<String> {
    let mut flags = anonymous_paths(&workspace.root);
    if !triple.ends_with("musl") {
        flags.push("-Ctarget-feature=+crt-static".to_owned());
    }
    flags
}

/// Whether the standard library for a target is there, or rustup can get it.
pub fn has_target(triple: &str) -> bool {
    let installed = || {
        cmd!("rustc", "--print", "target-libdir", "--target", triple)
            .stderr_null()
            .read()
            .is_ok_and(|folder| PathBuf::from(folder).exists())
    };
    if installed() {
        return true;
    }
    which("rustup").is_some()
        && cmd!("rustup", "target", "add", triple).stdout_null().stderr_null().run().is_ok()
        && installed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_of_this_machine_gets_into_the_binary() {
        let [root, tools, cache] = ["/somewhere/checkout", "/somewhere/tools", "/cache"].map(PathBuf::from);
        let flags = rustc_flags(&Workspace { root, tools, cache }, "x86_64-unknown-linux-gnu");
        assert!(flags.contains(&"--remap-path-prefix=/somewhere/checkout=/ballast".to_owned()), "{flags:?}");
        assert!(flags.iter().any(|flag| flag.ends_with("=/cargo")), "{flags:?}");
        assert!(flags.contains(&"-Ctarget-feature=+crt-static".to_owned()), "{flags:?}");
    }

    #[test]
    fn a_program_with_a_loader_is_not_static() {
        let shell = std::fs::read("/proc/self/exe").expect("this test");
        // Tests are built for the host: with glibc and its loader, unless the host is a musl system.
        assert_eq!(is_static(&shell).expect("an ELF file"), cfg!(target_feature = "crt-static"));
        assert!(is_static(b"#!/bin/sh\n").is_err());
    }
}
