//! eBPF objects built from an edited copy of the programs, for tests of the tests.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use crate::test_run::workspace;

/// Debian's core library for BPF; without it the programs are built by rustup's nightly.
const DEBIAN_LIBRARY: &str = "/usr/lib/rustlib/bpfel-unknown-none/lib";
/// Code generation for the programs, the same as `cargo xtask build` has.
const RUSTFLAGS: &str = include_str!("../../lb-ebpf/rustflags");
/// What the outer cargo says about itself would steer the inner one to the wrong compiler.
const OUTER: [&str; 6] = ["CARGO", "RUSTUP_TOOLCHAIN", "RUSTC", "RUSTDOC", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"];

/// One build at a time: they share a target folder.
static BUILDING: Mutex<()> = Mutex::new(());

/// A set of edits of the programs, as in `tests/mutations`.
#[derive(Clone, Debug, Deserialize)]
pub struct Mutation {
    pub name: String,
    #[serde(rename = "edit")]
    pub edits: Vec<Edit>,
}

/// One replacement of a text that its file holds exactly once.
#[derive(Clone, Debug, Deserialize)]
pub struct Edit {
    pub file: PathBuf,
    pub find: String,
    pub replace: String,
}

#[derive(Deserialize)]
struct Table {
    mutation: Vec<Mutation>,
}

/// Reads the mutation of this name from a file under `tests/mutations`.
pub fn mutation(file: &str, name: &str) -> Result<Mutation> {
    let path = workspace().join("tests/mutations").join(file);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let table: Table = toml::from_str(&text).with_context(|| path.display().to_string())?;
    table.mutation.into_iter().find(|mutation| mutation.name == name).with_context(|| format!("no {name:?} in {file}"))
}

/// Builds the programs with these edits. The object is kept under `target/edited`, and used again while neither the programs
/// nor the edits change.
pub fn build(mutation: &Mutation) -> Result<PathBuf> {
    let _one_at_a_time = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = workspace().join("target/edited");
    let object = folder.join(format!("{:016x}.o", fingerprint(mutation)?));
    if object.exists() {
        return Ok(object);
    }
    let copy = folder.join("checkout");
    if copy.exists() {
        fs::remove_dir_all(&copy)?;
    }
    for part in ["lb-ebpf", "lb-common"] {
        copy_folder(&workspace().join(part), &copy.join(part))?;
    }
    fs::write(copy.join("Cargo.toml"), workspace_of_one()?)?;
    for edit in &mutation.edits {
        apply(&copy, edit).with_context(|| format!("mutation {:?}", mutation.name))?;
    }
    compile(&copy.join("lb-ebpf"), &folder.join("target")).with_context(|| format!("mutation {:?}", mutation.name))?;
    fs::copy(folder.join("target/bpfel-unknown-none/release/ballast"), &object)?;
    Ok(object)
}

/// The workspace's manifest with lb-common as its one member: what that one inherits is there.
fn workspace_of_one() -> Result<String> {
    let mut manifest: toml::Table = fs::read_to_string(workspace().join("Cargo.toml"))?.parse()?;
    let workspace = manifest.get_mut("workspace").and_then(toml::Value::as_table_mut).context("no [workspace]")?;
    workspace.insert("members".into(), vec!["lb-common"].into());
    workspace.remove("default-members");
    Ok(manifest.to_string())
}

/// A number that changes with every byte that the object is built from.
fn fingerprint(mutation: &Mutation) -> Result<u64> {
    let mut files = BTreeMap::new();
    for part in ["lb-ebpf", "lb-common"] {
        read_folder(&workspace().join(part), &mut files)?;
    }
    let mut hasher = DefaultHasher::new();
    (files, workspace_of_one()?).hash(&mut hasher);
    for edit in &mutation.edits {
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

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        if entry.file_name() == "target" {
            continue;
        }
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

fn apply(copy: &Path, edit: &Edit) -> Result<()> {
    let path = copy.join(&edit.file);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let found = text.matches(&edit.find).count();
    ensure!(found == 1, "{} holds this {found} times, expected once:\n{}", edit.file.display(), edit.find);
    Ok(fs::write(&path, text.replacen(&edit.find, &edit.replace, 1))?)
}

/// Builds the programs of a folder for the kernel, with the same code generation as `cargo xtask build`.
pub fn compile(programs: &Path, target: &Path) -> Result<()> {
    let mut command =
        if Path::new(DEBIAN_LIBRARY).exists() { Command::new("/usr/bin/cargo") } else { Command::new("cargo") };
    for name in OUTER {
        command.env_remove(name);
    }
    if Path::new(DEBIAN_LIBRARY).exists() {
        command.env("RUSTC", "/usr/bin/rustc").env("RUSTC_BOOTSTRAP", "1").arg("build");
    } else {
        command.args(["+nightly", "build", "-Zbuild-std=core"]);
    }
    command.args(["--release", "--locked", "--target", "bpfel-unknown-none"]);
    command.env("RUSTFLAGS", RUSTFLAGS.trim_end()).env("CARGO_TARGET_DIR", target).env("PATH", path_with_tools());
    let output = command.current_dir(programs).output().context("starting cargo")?;
    if !output.status.success() {
        bail!("the programs do not build:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// `PATH` with the folder first where `cargo xtask setup` puts the linker.
fn path_with_tools() -> std::ffi::OsString {
    let mut path = crate::cluster::tools().into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    path
}
