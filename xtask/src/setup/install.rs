//! How each missing thing is installed: what decides its version, and the command that makes it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use duct::{Expression, cmd};
use sha2::{Digest as _, Sha256};

use super::cache::Version;
use super::debian;
use super::needs::{Features, GoProgram, Install, Need};
use crate::process::{run_logged, say};
use crate::toolchain::{DEBIAN_LLVM, Toolchain, clean_cargo_env};
use crate::workspace::{Workspace, which};

/// How crates' programs are built. They run for seconds: what the compiler would take to make them fast is more than that.
fn cargo_profile(level: &str) -> [(&str, &str); 4] {
    [
        ("CARGO_PROFILE_RELEASE_OPT_LEVEL", level),
        ("CARGO_PROFILE_RELEASE_LTO", "off"),
        ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
        ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
    ]
}

/// The version of a tool that this checkout asks for; `None` for what a package manager looks after.
pub fn version(workspace: &Workspace, toolchain: Toolchain, need: &Need) -> Result<Option<Version>> {
    let (version, recipe) = match &need.install {
        Install::Apt(_) => return Ok(None),
        Install::BpfLinker { version } => {
            let (prefix, feature) = llvm(toolchain)?;
            ((*version).to_owned(), format!("{} {feature} {:?}", prefix.display(), cargo_profile("1")))
        }
        Install::Crate { version, features, level } => {
            ((*version).to_owned(), format!("{:?} {features:?}", cargo_profile(level)))
        }
        Install::Go(program) => (go_version(workspace, program)?, go_recipe(workspace, program)?),
        Install::Unpacked { package, oldest, otherwise, .. } => {
            let recipe = format!("{package} {oldest:?} {} {}", debian::can_unpack(), go_recipe(workspace, otherwise)?);
            (debian::release(), recipe)
        }
    };
    let hash = Sha256::digest(recipe.as_bytes());
    let hash = u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]);
    Ok(Some(Version { name: need.name, key: format!("{version}-{hash:08x}") }))
}

/// Makes a tool and puts it into the cache.
pub fn install(workspace: &Workspace, toolchain: Toolchain, need: &Need, version: &Version) -> Result<()> {
    if matches!(need.install, Install::Go(_) | Install::Unpacked { .. }) && workspace.kube_assets() != workspace.tools {
        let (assets, file) = (workspace.kube_assets(), need.name);
        bail!(
            "KUBEBUILDER_ASSETS={}: it holds no {file}; put one there, or unset it to have one installed",
            assets.display()
        );
    }
    let log = workspace.logs()?.join(format!("setup-{}.log", need.name));
    let run = |command: &Expression| run_logged(need.name, &log, command);
    version.install(workspace, |folder| match &need.install {
        Install::Apt(_) => bail!("{} is a package", need.name),
        Install::BpfLinker { version } => {
            let (prefix, feature) = llvm(toolchain)?;
            let more = ["--no-default-features", "--features", feature];
            run(&cargo_install(folder, need.name, version, &more, "1").env("LLVM_PREFIX", prefix))?;
            out_of_bin(folder, need.name)
        }
        Install::Crate { version, features, level } => {
            let more: &[&str] = if *features == Features::None { &["--no-default-features"] } else { &[] };
            run(&cargo_install(folder, need.name, version, more, level))?;
            out_of_bin(folder, need.name)
        }
        Install::Go(program) => run(&go_build(workspace, program, &folder.join(need.name))?),
        Install::Unpacked { package, oldest, otherwise, .. } => {
            if debian::can_unpack() {
                match debian::unpack(package, need.name, *oldest, folder, &log) {
                    Ok(()) => return Ok(()),
                    Err(error) => say(&format!("{} is built, since Debian's does not serve: {error:#}", need.name)),
                }
            }
            run(&go_build(workspace, otherwise, &folder.join(need.name))?)
        }
    })
}

fn cargo_install(root: &Path, name: &str, version: &str, more: &[&str], level: &str) -> Expression {
    let mut arguments: Vec<OsString> = ["cargo", "install", "--locked", name, "--version", version]
        .into_iter()
        .chain(more.iter().copied())
        .map(Into::into)
        .collect();
    arguments.extend(["--no-track".into(), "--root".into(), root.as_os_str().to_owned()]);
    // Outside the checkout, so that its own target folder and configuration have no part in it; `nice`, as tests may run meanwhile.
    let command =
        cargo_profile(level).iter().fold(cmd("nice", arguments), |command, (name, value)| command.env(name, value));
    clean_cargo_env(command.dir("/").env_remove("CARGO_TARGET_DIR"))
}

/// Cargo puts programs into a folder `bin`.
fn out_of_bin(folder: &Path, name: &str) -> Result<()> {
    let built = folder.join("bin").join(name);
    fs::rename(&built, folder.join(name)).with_context(|| format!("cannot move {}", built.display()))?;
    fs::remove_dir_all(folder.join("bin")).with_context(|| format!("cannot empty {}", folder.display()))
}

fn go_build(workspace: &Workspace, program: &GoProgram, output: &Path) -> Result<Expression> {
    if which("go").is_none() {
        bail!(
            "{} is built from its Go module, and Go is missing: install Go 1.26 or later, or set KUBEBUILDER_ASSETS",
            program.package
        );
    }
    let flags = linker_flags(workspace, program)?;
    Ok(cmd!("go", "build", "-trimpath", "-ldflags", flags, "-o", output, program.package)
        .env("CGO_ENABLED", "0")
        .dir(workspace.root.join(program.folder())))
}

fn linker_flags(workspace: &Workspace, program: &GoProgram) -> Result<String> {
    Ok(match program.version_variable {
        Some(variable) => format!("-s -X {variable}={}", go_version(workspace, program)?),
        None => "-s".to_owned(),
    })
}

/// Everything that decides what Go builds, but its own version.
fn go_recipe(workspace: &Workspace, program: &GoProgram) -> Result<String> {
    let sums = read(&workspace.root.join(program.folder()).join("go.sum"))?;
    Ok(format!("{} {} {} {sums}", program.package, go_version(workspace, program)?, linker_flags(workspace, program)?))
}

/// The version that `go.mod` pins.
fn go_version(workspace: &Workspace, program: &GoProgram) -> Result<String> {
    let file = workspace.root.join(program.folder()).join("go.mod");
    let version = pinned(&read(&file)?, program.module).map(str::to_owned);
    version.with_context(|| format!("{} pins no {}", file.display(), program.module))
}

fn pinned<'a>(text: &'a str, module: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let mut words = line.trim().trim_start_matches("require ").split_ascii_whitespace();
        (words.next() == Some(module)).then(|| words.next()).flatten()
    })
}

fn read(file: &Path) -> Result<String> {
    fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// The LLVM that bpf-linker is built against, and bpf-linker's feature for it.
fn llvm(toolchain: Toolchain) -> Result<(PathBuf, &'static str)> {
    if toolchain == Toolchain::Debian {
        return Ok((DEBIAN_LLVM.into(), "llvm-22"));
    }
    let installed = [(DEBIAN_LLVM, "llvm-22"), ("/usr/lib/llvm-23", "llvm-23")];
    let found = installed.into_iter().find(|(prefix, _)| Path::new(prefix).join("include/llvm-c").exists());
    let Some((prefix, feature)) = found else {
        bail!(
            "bpf-linker needs LLVM's development files to be built: install llvm-22-dev, or put a bpf-linker into PATH"
        );
    };
    Ok((prefix.into(), feature))
}

#[cfg(test)]
mod tests {
    use super::super::needs::{CARGO_DENY, CARGO_MUTANTS, NEEDS};
    use super::*;

    fn checkout(modules: &str) -> (tempfile::TempDir, Workspace) {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().to_owned();
        let tools = root.join("tests/tools/prometheus");
        fs::create_dir_all(&tools).expect("folders");
        for folder in [tools.as_path(), tools.parent().expect("it has one")] {
            fs::write(folder.join("go.mod"), modules).expect("a file");
            fs::write(folder.join("go.sum"), "").expect("a file");
        }
        (folder, Workspace { tools: root.join("target/tools"), cache: root.join("cache"), root })
    }

    fn keys(modules: &str) -> Vec<(&'static str, String)> {
        let (_folder, workspace) = checkout(modules);
        let of = |need: &Need| version(&workspace, Toolchain::Debian, need).expect("all is pinned");
        NEEDS
            .iter()
            .chain([&CARGO_DENY, &CARGO_MUTANTS])
            .filter_map(of)
            .map(|version| (version.name, version.key))
            .collect()
    }

    const MODULES: &str = "require (\n\tgo.etcd.io/etcd/server/v3 v3.6.8\n\tk8s.io/kubernetes v1.36.3\n)\n\
                           require github.com/prometheus/prometheus v0.315.0\n";

    #[test]
    fn a_newer_pin_is_another_version_of_its_tools_only() {
        let (old, new) = (keys(MODULES), keys(&MODULES.replace("v1.36.3", "v1.36.4")));
        assert_eq!(old.len(), 8, "{old:?}");
        let changed = old.iter().zip(&new).filter(|(old, new)| old != new).map(|(old, _)| old.0);
        assert_eq!(changed.collect::<Vec<_>>(), ["kube-apiserver", "kube-proxy", "kubectl"]);
        assert!(new.iter().any(|(name, key)| *name == "kube-proxy" && key.starts_with("v1.36.4-")), "{new:?}");
    }

    #[test]
    fn a_pin_is_read_in_a_block_and_on_a_line_of_its_own() {
        assert_eq!(pinned(MODULES, "k8s.io/kubernetes"), Some("v1.36.3"));
        assert_eq!(pinned(MODULES, "github.com/prometheus/prometheus"), Some("v0.315.0"));
        assert_eq!(pinned(MODULES, "k8s.io/kube"), None);
    }
}
