//! `cargo xtask edited`: builds the programs with a set of edits, or the agent too, for tests that run on such ones.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use duct::cmd;

use crate::compile::build_programs;
use crate::mutate::{Checkout, Mutation, read_table};
use crate::process::run_shown;
use crate::toolchain::{Facts, choose, clean_cargo_env};
use crate::workspace::Workspace;

/// Variable that names the checkout whose programs are edited, in place of this one: a mutated copy.
pub const SOURCE: &str = "BALLAST_EDIT_SOURCE";

/// `cargo xtask edited`
#[derive(Debug, Args)]
pub struct EditedArgs {
    /// Folder below `tests/mutations`.
    folder: String,
    /// Name of the set of edits.
    name: String,
    /// Builds the agent, too, and prints its path.
    #[arg(long)]
    agent: bool,
}

/// Prints the path of the object, or of the agent. It is kept under `target/edited`, and built again when the programs or the edits have changed.
pub fn run(workspace: &Workspace, args: &EditedArgs) -> Result<()> {
    let sets = read_table(&workspace.root.join("tests/mutations").join(&args.folder))?;
    let set = sets.into_iter().find(|set| set.name == args.name);
    let set = set.with_context(|| format!("no set {:?} in tests/mutations/{}", args.name, args.folder))?;
    let source = env::var_os(SOURCE).map_or_else(|| workspace.root.clone(), PathBuf::from);
    let folder = workspace.target().join("edited");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // Rungs run side by side and share the folder.
    let lock = File::create(folder.join("lock"))?;
    lock.lock().context("cannot lock target/edited")?;
    let object = folder.join(format!("{:016x}.o", fingerprint(&source, &set, &["lb-ebpf", "lb-common"])?));
    if !object.exists() {
        let copy = Checkout::restore_to(&source, folder.join("checkout"))?;
        copy.mutate(&set.edits)?;
        let toolchain = choose(Facts::gather())?;
        build_programs(workspace, toolchain, &copy.root.join("lb-ebpf"), &folder.join("target"), &object)?;
    }
    if !args.agent {
        println!("{}", object.display());
        return Ok(());
    }
    let print = fingerprint(&source, &set, &["lb-ebpf", "lb-common", "lb-userspace"])?;
    let agent = folder.join(format!("{print:016x}-ballast"));
    if !agent.exists() {
        let copy = Checkout::restore_whole_to(&source, folder.join("whole"))?;
        copy.mutate(&set.edits)?;
        build_agent(workspace, &copy.root, &folder.join("agent"), &object, &agent)?;
    }
    println!("{}", agent.display());
    Ok(())
}

/// Builds the agent of a copy of the checkout, in a target folder that begins with the crates that this checkout's own is built from.
fn build_agent(workspace: &Workspace, source: &Path, target: &Path, object: &Path, agent: &Path) -> Result<()> {
    for part in ["deps", "build", ".fingerprint"] {
        let (built, copy) = (workspace.target().join("debug").join(part), target.join("debug").join(part));
        if built.exists() && !copy.exists() {
            fs::create_dir_all(target.join("debug")).with_context(|| format!("cannot make {}", target.display()))?;
            run_shown("linking to built crates", &cmd!("cp", "-al", "--no-target-directory", &built, &copy))?;
        }
    }
    let words = ["build", "--locked", "-p", "lb-userspace", "--bin", "ballast", "-p", "lb-tests"];
    let command = cmd("cargo", words).env("BALLAST_EBPF_OBJECT", object).env("CARGO_TARGET_DIR", target).dir(source);
    run_shown("building the edited agent", &clean_cargo_env(command).stdout_to_stderr())?;
    let built = target.join("debug/ballast");
    fs::copy(&built, agent).with_context(|| format!("cannot copy {}", built.display()))?;
    Ok(())
}

/// A number that changes with every byte that the edits and these folders hold.
fn fingerprint(source: &Path, set: &Mutation, parts: &[&str]) -> Result<u64> {
    let mut files = BTreeMap::new();
    for part in parts {
        read_folder(&source.join(part), &mut files)?;
    }
    let mut hasher = DefaultHasher::new();
    (files, fs::read(source.join("Cargo.toml"))?).hash(&mut hasher);
    for edit in &set.edits {
        (&edit.file, &edit.find, &edit.replace).hash(&mut hasher);
    }
    Ok(hasher.finish())
}

fn read_folder(folder: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            if entry.file_name() != "target" {
                read_folder(&entry.path(), files)?;
            }
        } else {
            files.insert(entry.path(), fs::read(entry.path())?);
        }
    }
    Ok(())
}
