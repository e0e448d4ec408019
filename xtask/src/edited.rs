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
use crate::mutate::{Checkout, Mutation, read_table, remove};
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

/// Builds the agent of a copy of the checkout, in a target folder that begins with the crates below those of this checkout.
fn build_agent(workspace: &Workspace, source: &Path, target: &Path, object: &Path, agent: &Path) -> Result<()> {
    for part in ["deps", "build", ".fingerprint"] {
        link_built_crates(&workspace.target().join("debug").join(part), &target.join("debug").join(part))?;
    }
    let words = ["build", "--locked", "-p", "lb-userspace", "--bin", "ballast", "-p", "lb-tests"];
    let command = cmd("cargo", words).env("BALLAST_EBPF_OBJECT", object).env("CARGO_TARGET_DIR", target).dir(source);
    run_shown("building the edited agent", &clean_cargo_env(command).stdout_to_stderr())?;
    let built = target.join("debug/ballast");
    fs::copy(&built, agent).with_context(|| format!("cannot copy {}", built.display()))?;
    Ok(())
}

/// Makes `copy` of links to what cargo built, unless it is there. What belongs to packages of the workspace is left out. Cargo gives those of the
/// copied checkout the same names and writes some of their files in place: links would change what this checkout is built from.
fn link_built_crates(built: &Path, copy: &Path) -> Result<()> {
    if copy.exists() || !built.exists() {
        return Ok(());
    }
    let part = copy.with_extension("part");
    fs::create_dir_all(&part).with_context(|| format!("cannot make {}", part.display()))?;
    run_shown("linking to built crates", &cmd!("cp", "-al", "--force", "--no-target-directory", built, &part))?;
    for entry in fs::read_dir(&part)? {
        let entry = entry?;
        if is_of_the_workspace(&entry.file_name().to_string_lossy()) {
            remove(&entry)?;
        }
    }
    fs::rename(&part, copy).with_context(|| format!("cannot make {}", copy.display()))
}

/// Whether a file or folder of cargo's target folder belongs to a package of the workspace.
fn is_of_the_workspace(name: &str) -> bool {
    ["lb-", "lb_", "liblb_", "ballast", "xtask"].iter().any(|start| name.starts_with(start))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edited_agent_is_built_beside_this_checkouts_files_and_never_into_them() {
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let (built, copy) = (scratch.path().join("built"), scratch.path().join("edited/copy"));
        for name in ["lb-userspace-1/output", "serde-1/output"] {
            let file = built.join(name);
            fs::create_dir_all(file.parent().expect("a folder")).expect("made");
            fs::write(file, "this checkout").expect("written");
        }
        for name in ["liblb_common-1.rlib", "ballast-1", "libserde-1.rlib"] {
            fs::write(built.join(name), "this checkout").expect("written");
        }
        link_built_crates(&built, &copy).expect("linked");
        let mut names: Vec<_> = fs::read_dir(&copy).expect("made").map(|e| e.expect("readable").file_name()).collect();
        names.sort();
        assert_eq!(names, ["libserde-1.rlib", "serde-1"]);
        assert_eq!(fs::read_to_string(built.join("lb-userspace-1/output")).expect("there"), "this checkout");
        fs::create_dir(copy.join("lb-userspace-1")).expect("made by the build");
        link_built_crates(&built, &copy).expect("nothing to do");
        assert!(copy.join("lb-userspace-1").exists(), "what is built is kept");
    }

    #[test]
    fn every_package_and_program_of_the_workspace_is_known_as_such() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout");
        let metadata = cmd!("cargo", "metadata", "--no-deps", "--offline", "--format-version=1").dir(root);
        let metadata: serde_json::Value =
            serde_json::from_str(&metadata.read().expect("cargo metadata")).expect("JSON");
        let packages = metadata["packages"].as_array().expect("packages");
        assert!(packages.len() > 3, "{packages:?}");
        for package in packages {
            let targets = package["targets"].as_array().expect("targets").iter();
            let built = targets.filter(|target| ["lib", "bin"].iter().any(|kind| target["kind"][0] == *kind));
            for name in built.map(|target| &target["name"]).chain([&package["name"]]) {
                assert!(is_of_the_workspace(name.as_str().expect("a name")), "{name}");
            }
        }
    }
}
