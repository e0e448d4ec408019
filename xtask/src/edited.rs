//! `cargo xtask edited`: builds the programs with a set of edits, for tests that run on such programs.

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

use crate::compile::build_programs;
use crate::mutate::{Checkout, Mutation, read_table};
use crate::toolchain::{Facts, choose};
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
}

/// Prints the path of the object. It is kept under `target/edited`, and built again when the programs or the edits have changed.
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
    let object = folder.join(format!("{:016x}.o", fingerprint(&source, &set)?));
    if !object.exists() {
        let copy = Checkout::restore_to(&source, folder.join("checkout"))?;
        copy.mutate(&set.edits)?;
        let toolchain = choose(Facts::gather())?;
        build_programs(workspace, toolchain, &copy.root.join("lb-ebpf"), &folder.join("target"), &object)?;
    }
    println!("{}", object.display());
    Ok(())
}

/// A number that changes with every byte that the object is built from.
fn fingerprint(source: &Path, set: &Mutation) -> Result<u64> {
    let mut files = BTreeMap::new();
    for part in ["lb-ebpf", "lb-common"] {
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
