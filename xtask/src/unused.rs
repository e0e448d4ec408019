//! Dependencies that a package declares and names nowhere in its sources: they cost compile time, and each must be trusted.
//!
//! A plain search: a name in a comment or in text counts as a use. What is used by its features alone would be named here as well.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The packages of this repository, by folder.
const PACKAGES: [&str; 18] = [
    "lb-common",
    "lb-ebpf",
    "lb-userspace",
    "lb-userspace/datapath",
    "lb-userspace/model",
    "lb-userspace/netlink",
    "lb-userspace/objects",
    "lb-userspace/plan",
    "lb-userspace/source",
    "lb-userspace/tables",
    "lb-userspace/takeover",
    "tests",
    "tests/bench",
    "tests/load",
    "tests/pages",
    "tests/seed",
    "fuzz",
    "xtask",
];

/// `PACKAGE: DEPENDENCY` of each that nothing uses.
fn unused(root: &Path) -> Result<Vec<String>> {
    let mut unused = Vec::new();
    for package in PACKAGES {
        let folder = root.join(package);
        let manifest = folder.join("Cargo.toml");
        let text = fs::read_to_string(&manifest).with_context(|| format!("reading {}", manifest.display()))?;
        let manifest: toml::Table = text.parse().with_context(|| format!("reading {}", manifest.display()))?;
        let mut sources = String::new();
        read_sources(&folder, &mut sources)?;
        for dependency in dependencies(&manifest) {
            if !is_used(&sources, &dependency.replace('-', "_")) {
                unused.push(format!("{package}: {dependency}"));
            }
        }
    }
    Ok(unused)
}

fn dependencies(manifest: &toml::Table) -> Vec<String> {
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let tables = targets.into_iter().flat_map(toml::Table::values).filter_map(toml::Value::as_table).chain([manifest]);
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    let declared = tables.flat_map(|table| kinds.iter().filter_map(|kind| table.get(*kind)?.as_table()));
    declared.flat_map(toml::Table::keys).cloned().collect()
}

/// Whether `name` is a path's first part, or is imported.
fn is_used(sources: &str, name: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    sources.match_indices(name).any(|(at, _)| {
        let begins = at == 0 || !is_word(sources.as_bytes()[at - 1]);
        let rest = &sources[at + name.len()..];
        begins && ["::", ";", " as "].iter().any(|next| rest.starts_with(next))
    })
}

/// All Rust files of a package, without those of packages below it.
fn read_sources(folder: &Path, sources: &mut String) -> Result<()> {
    let entries: std::io::Result<Vec<PathBuf>> = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect();
    for path in entries? {
        if path.extension().is_some_and(|end| end == "rs") {
            sources.push_str(&fs::read_to_string(&path)?);
        } else if path.is_dir() && !path.join("Cargo.toml").exists() && !path.ends_with("target") {
            read_sources(&path, sources)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dependency_is_used() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        assert_eq!(unused(&root).expect("readable"), Vec::<String>::new(), "remove it from the package's Cargo.toml");
    }

    #[test]
    fn a_use_is_told_from_a_longer_name() {
        assert!(is_used("use tokio::time;", "tokio") && is_used("extern crate log;", "log"));
        assert!(!is_used("use tokio_util::sync; my_tokio::x()", "tokio"));
    }
}
