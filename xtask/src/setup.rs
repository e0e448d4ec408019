//! Installs or builds what is missing on this machine, and says what and why.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use duct::{Expression, cmd};

use crate::process::{run_logged, say};
use crate::toolchain::{DEBIAN_LLVM, DEBIAN_PACKAGES, Facts, Toolchain, choose, clean_cargo_env};
use crate::workspace::{Workspace, is_root, which};

/// Versions of what is built from source here.
const BPF_LINKER_VERSION: &str = "0.13.0";
const CARGO_DENY_VERSION: &str = "0.20.2";

/// Disk, in bytes, that a fresh checkout fills: to build the agent, and to build and run all tests.
const BUILD_ROOM: u64 = 3 << 30;
const TEST_ROOM: u64 = 10 << 30;

/// How much a command needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Compile programs and agent.
    Build,
    /// And run them in network namespaces.
    Run,
    /// And everything that the tests use.
    Test,
    /// And boot other kernels.
    Guests,
}

/// One thing that has to be there.
struct Need {
    name: &'static str,
    why: &'static str,
    level: Level,
    present: fn(&Workspace) -> bool,
    install: Install,
}

/// How a missing thing is had.
enum Install {
    /// A package of Debian; the remedy elsewhere is to install the program by the system's own means.
    Apt(&'static [&'static str]),
    /// The linker for BPF, built against the toolchain's LLVM.
    BpfLinker,
    /// A crate's program.
    Crate(&'static str, &'static str),
    /// A program of the Go tools module: (package, file, linker flags).
    Go(&'static str, &'static str, &'static str),
}

const NEEDS: [Need; 14] = [
    Need {
        name: "C compiler",
        why: "crates with C parts (ring) and the final link",
        level: Level::Build,
        present: |_| which("cc").is_some(),
        install: Install::Apt(&["gcc", "libc6-dev"]),
    },
    Need {
        name: "bpf-linker",
        why: "links the eBPF programs into one object with BTF",
        level: Level::Build,
        present: |w| w.has_tool("bpf-linker"),
        install: Install::BpfLinker,
    },
    Need {
        name: "ip",
        why: "network namespaces and links for the demo and the tests",
        level: Level::Run,
        present: |_| which("ip").is_some(),
        install: Install::Apt(&["iproute2"]),
    },
    Need {
        name: "ethtool",
        why: "checksum offload of test links on and off",
        level: Level::Run,
        present: |_| which("ethtool").is_some(),
        install: Install::Apt(&["ethtool"]),
    },
    Need {
        name: "bpftool",
        why: "the tests read maps with it, as an operator would",
        level: Level::Test,
        present: |_| which("bpftool").is_some(),
        install: Install::Apt(&["bpftool"]),
    },
    Need {
        name: "etcd",
        why: "the store of the tests' API server",
        level: Level::Test,
        present: |w| w.kube_assets().join("etcd").exists(),
        install: Install::Go("go.etcd.io/etcd/server/v3", "etcd", "-s"),
    },
    Need {
        name: "kube-apiserver",
        why: "the tests run the agent against a real one (about 4 minutes, once)",
        level: Level::Test,
        present: |w| w.kube_assets().join("kube-apiserver").exists(),
        install: Install::Go(
            "k8s.io/kubernetes/cmd/kube-apiserver",
            "kube-apiserver",
            "-s -X k8s.io/component-base/version.gitVersion=v1.36.3",
        ),
    },
    Need {
        name: "kube-proxy",
        why: "what Ballast plans is compared with it, and timed beside it (about 2 minutes, once)",
        level: Level::Test,
        present: |w| w.kube_assets().join("kube-proxy").exists(),
        install: Install::Go(
            "k8s.io/kubernetes/cmd/kube-proxy",
            "kube-proxy",
            "-s -X k8s.io/component-base/version.gitVersion=v1.36.3",
        ),
    },
    Need {
        name: "promtool",
        why: "checks names and labels of the metrics (about 3 minutes, once)",
        level: Level::Test,
        present: |w| w.kube_assets().join("promtool").exists(),
        install: Install::Go("github.com/prometheus/prometheus/cmd/promtool", "promtool", "-s"),
    },
    Need {
        name: "nft",
        why: "kube-proxy writes its rules with it, and the tests read them back",
        level: Level::Test,
        present: |_| which("nft").is_some(),
        install: Install::Apt(&["nftables"]),
    },
    Need {
        name: "qemu-system-x86_64",
        why: "boots other kernels: SCTP, and what older ones refuse",
        level: Level::Guests,
        present: |_| which("qemu-system-x86_64").is_some(),
        install: Install::Apt(&["qemu-system-x86"]),
    },
    Need {
        name: "xz",
        why: "reads the modules of these kernels",
        level: Level::Guests,
        present: |_| which("xz").is_some(),
        install: Install::Apt(&["xz-utils"]),
    },
    Need {
        name: "strip",
        why: "makes what these kernels load small",
        level: Level::Guests,
        present: |_| which("strip").is_some(),
        install: Install::Apt(&["binutils"]),
    },
    Need {
        name: "cargo-deny",
        why: "checks licences, sources and duplicates of the crates (about 2 minutes, once)",
        level: Level::Test,
        present: |w| w.has_tool("cargo-deny"),
        install: Install::Crate("cargo-deny", CARGO_DENY_VERSION),
    },
];

/// Makes sure that all of `level` is there; returns the toolchain for the programs.
pub fn setup(workspace: &Workspace, level: Level) -> Result<Toolchain> {
    let facts = Facts::gather();
    let toolchain = choose(facts)?;
    say(&format!("eBPF toolchain: {}", toolchain.describe()));
    if let Some(warning) = room_warning(room(&workspace.root)?, level) {
        say(&warning);
    }
    fs::create_dir_all(&workspace.tools).with_context(|| format!("cannot make {}", workspace.tools.display()))?;
    let missing: Vec<&Need> = NEEDS.iter().filter(|n| n.level <= level && !(n.present)(workspace)).collect();
    install_packages(workspace, toolchain, facts, &missing)?;
    for need in missing {
        if let Some(command) = build_command(workspace, toolchain, &need.install)? {
            say(&format!("{} is missing ({}): building it", need.name, need.why));
            run_logged(need.name, &workspace.logs()?.join(format!("setup-{}.log", need.name)), &command)?;
        }
        if !(need.present)(workspace) {
            bail!("{} is still missing after its installation ({})", need.name, need.why);
        }
    }
    Ok(toolchain)
}

/// Bytes that are free on the checkout's file system.
fn room(checkout: &Path) -> Result<u64> {
    let stat =
        rustix::fs::statvfs(checkout).with_context(|| format!("cannot read the space at {}", checkout.display()))?;
    Ok(stat.f_bavail * stat.f_frsize)
}

/// A linker that runs out of disk dies with a bus error and no word about the disk: said before.
fn room_warning(free: u64, level: Level) -> Option<String> {
    const GIB: u64 = 1 << 30;
    let wanted = if level >= Level::Test { TEST_ROOM } else { BUILD_ROOM };
    (free < wanted).then(|| {
        format!(
            "only {} GiB are free on the disk of this checkout; all that is built from nothing takes up to {} GiB: \
             a linker that ends with a bus error (signal 7) has run out of it",
            free / GIB,
            wanted / GIB
        )
    })
}

/// One call of apt-get for the compiler's packages and everything else that Debian has; rustup for the other toolchain.
fn install_packages(workspace: &Workspace, toolchain: Toolchain, facts: Facts, missing: &[&Need]) -> Result<()> {
    let mut packages = Vec::new();
    match toolchain {
        Toolchain::Debian => {
            let linker_missing = missing.iter().any(|n| matches!(n.install, Install::BpfLinker));
            if !facts.debian_installed || (linker_missing && !Path::new(DEBIAN_LLVM).exists()) {
                say("the compiler for the eBPF programs is missing: installing Debian's");
                packages.extend(DEBIAN_PACKAGES);
            }
        }
        Toolchain::Nightly if facts.nightly_installed => {}
        Toolchain::Nightly => {
            say("the compiler for the eBPF programs is missing: installing rustup's nightly with rust-src");
            let command =
                cmd!("rustup", "toolchain", "install", "nightly", "--profile", "minimal", "--component", "rust-src");
            run_logged("rustup", &workspace.logs()?.join("setup-rustup.log"), &command)?;
        }
    }
    for need in missing {
        if let Install::Apt(names) = need.install {
            say(&format!("{} is missing ({}): installing {}", need.name, need.why, names.join(" ")));
            packages.extend(names);
        }
    }
    if packages.is_empty() {
        return Ok(());
    }
    if !is_root() || which("apt-get").is_none() {
        bail!(
            "missing: install `{}` with your system's package manager, or run this as root on Debian",
            packages.join(" ")
        );
    }
    let script = format!(
        "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends {}",
        packages.join(" ")
    );
    run_logged("apt-get", &workspace.logs()?.join("setup-apt.log"), &cmd!("sh", "-c", script))
}

/// The command that builds a thing from source, if that is how it is had.
fn build_command(workspace: &Workspace, toolchain: Toolchain, install: &Install) -> Result<Option<Expression>> {
    let root = workspace.tools.parent().context("the tools folder has a parent")?.to_path_buf();
    Ok(match install {
        Install::Apt(_) => None,
        Install::BpfLinker => {
            let (prefix, feature) = llvm(toolchain)?;
            Some(
                cargo_install(
                    &root,
                    "bpf-linker",
                    BPF_LINKER_VERSION,
                    &["--no-default-features", "--features", feature],
                )
                .env("LLVM_PREFIX", prefix),
            )
        }
        Install::Crate(name, version) => Some(cargo_install(&root, name, version, &[])),
        Install::Go(package, file, ldflags) => {
            if workspace.kube_assets() != workspace.tools {
                let assets = workspace.kube_assets();
                bail!(
                    "KUBEBUILDER_ASSETS={}: it holds no {file}; put one there, or unset it to have one built",
                    assets.display()
                );
            }
            if which("go").is_none() {
                bail!(
                    "{file} is built from its Go module, and Go is missing: install Go 1.26 or later, or set KUBEBUILDER_ASSETS"
                );
            }
            let output = workspace.tools.join(file);
            Some(
                cmd!("go", "build", "-trimpath", "-ldflags", ldflags, "-o", output, package)
                    .env("CGO_ENABLED", "0")
                    .dir(workspace.root.join(go_module(package))),
            )
        }
    })
}

/// The folder of the Go module that pins a package.
fn go_module(package: &str) -> &'static str {
    // Prometheus needs other versions of the Kubernetes modules than Kubernetes itself.
    if package.starts_with("github.com/prometheus/prometheus/") { "tests/tools/prometheus" } else { "tests/tools" }
}

fn cargo_install(root: &Path, name: &str, version: &str, more: &[&str]) -> Expression {
    let mut arguments = vec!["install", "--locked", name, "--version", version];
    arguments.extend(more);
    let mut arguments: Vec<std::ffi::OsString> = arguments.into_iter().map(Into::into).collect();
    arguments.extend(["--root".into(), root.as_os_str().to_owned()]);
    // Outside the checkout, so that its own target folder and configuration have no part in it.
    clean_cargo_env(cmd("cargo", arguments).dir("/").env_remove("CARGO_TARGET_DIR"))
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
    use super::*;

    #[test]
    fn a_disk_too_small_is_named_before_a_linker_dies_of_it() {
        assert_eq!(room_warning(64 << 30, Level::Guests), None);
        assert_eq!(room_warning(4 << 30, Level::Run), None);
        let warning = room_warning(7 << 30, Level::Test).expect("too small for the tests");
        assert!(warning.contains("7 GiB are free") && warning.contains("10 GiB"), "{warning}");
    }

    #[test]
    fn every_need_says_why_and_belongs_to_a_level() {
        for need in &NEEDS {
            assert!(!need.why.is_empty() && !need.name.contains(' ') | matches!(need.install, Install::Apt(_)));
        }
        let build = NEEDS.iter().filter(|n| n.level <= Level::Build).count();
        let test = NEEDS.iter().filter(|n| n.level <= Level::Test).count();
        let guests = NEEDS.iter().filter(|n| n.level <= Level::Guests).count();
        assert!(build < test && test < guests && guests == NEEDS.len());
    }

    #[test]
    fn go_programs_come_from_the_pinned_module() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout");
        for need in &NEEDS {
            if let Install::Go(package, ..) = need.install {
                let file = root.join(go_module(package)).join("tools.go");
                let pinned = fs::read_to_string(&file).expect("the tools module is in the checkout");
                assert!(pinned.contains(package), "{package} is not in {}", file.display());
            }
        }
    }
}
