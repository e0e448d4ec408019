//! What has to be there, why, how it is had, and about how long that takes.

use std::path::Path;

use super::{Level, debian};
use crate::workspace::{Workspace, which};

/// One thing that has to be there.
#[derive(Debug)]
pub struct Need {
    pub name: &'static str,
    pub why: &'static str,
    pub level: Level,
    pub install: Install,
    /// About how long its installation takes on two processors, without anything of it in a cache.
    pub seconds: u64,
}

/// How a missing thing is had.
#[derive(Debug)]
pub enum Install {
    /// Packages of Debian; the remedy elsewhere is to install the program by the system's own means.
    Apt(&'static [&'static str]),
    /// The linker for BPF, built against the toolchain's LLVM. One in `PATH` serves as well.
    BpfLinker { version: &'static str },
    /// A crate's program, compiled with this level of optimisation. One in `PATH` serves as well.
    Crate { version: &'static str, features: Features, level: &'static str },
    /// A program of the Go tools module.
    Go(GoProgram),
    /// A program in a package of Debian, of this version or a later one. It is unpacked and not installed: its daemon
    /// would start with the package. Where there is no such package the program is built.
    Unpacked { package: &'static str, oldest: (u32, u32), seconds: u64, otherwise: GoProgram },
}

/// The features with which a crate's program is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Features {
    Default,
    None,
}

/// A program of a Go module that is pinned below `tests/tools`.
#[derive(Debug)]
pub struct GoProgram {
    pub package: &'static str,
    /// The module whose version it is.
    pub module: &'static str,
    /// A variable that is set to this version.
    pub version_variable: Option<&'static str>,
}

impl GoProgram {
    /// The folder of the Go module that pins it.
    pub fn folder(&self) -> &'static str {
        // Prometheus needs other versions of the Kubernetes modules than Kubernetes itself.
        if self.module == "github.com/prometheus/prometheus" { "tests/tools/prometheus" } else { "tests/tools" }
    }
}

/// What checks the rules for crates: built while the tests run already.
pub const CARGO_DENY: Need = Need {
    name: "cargo-deny",
    why: "checks licences, sources and duplicates of the crates",
    level: Level::Test,
    install: Install::Crate { version: "0.20.2", features: Features::Default, level: "0" },
    seconds: 60,
};

/// What makes mutants of our crates: built while the tests run already.
pub const CARGO_MUTANTS: Need = Need {
    name: "cargo-mutants",
    why: "changes the code in ways that a test must notice",
    level: Level::Test,
    install: Install::Crate { version: "27.1.0", features: Features::Default, level: "1" },
    seconds: 60,
};

/// What builds the book: built while the tests run already. Its server and its search are not needed for that.
pub const MDBOOK: Need = Need {
    name: "mdbook",
    why: "builds the book of docs/",
    level: Level::Test,
    install: Install::Crate { version: "0.5.4", features: Features::None, level: "0" },
    seconds: 60,
};

/// What the rung `arm64` needs, which runs only when asked for.
pub static ARM64: [Need; 2] = [
    Need::apt("qemu-aarch64", "runs unit tests for arm64", Level::Test, &["qemu-user"], 10),
    Need::apt(
        "aarch64-linux-gnu-gcc",
        "compiles the C parts of crates for arm64",
        Level::Test,
        &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"],
        20,
    ),
];

pub const NEEDS: [Need; 18] = [
    Need::apt(
        "cc",
        "a C compiler for crates with C parts (ring) and the final link",
        Level::Build,
        &["gcc", "libc6-dev"],
        10,
    ),
    Need {
        name: "bpf-linker",
        why: "links the eBPF programs into one object with BTF",
        level: Level::Build,
        install: Install::BpfLinker { version: "0.13.0" },
        seconds: 40,
    },
    Need::apt("ip", "network namespaces and links for the demo and the tests", Level::Run, &["iproute2"], 5),
    Need::apt("ethtool", "checksum offload of test links on and off", Level::Run, &["ethtool"], 5),
    Need::apt("bpftool", "the tests read maps with it, as an operator would", Level::Test, &["bpftool"], 5),
    Need {
        name: "etcd",
        why: "the store of the tests' API server",
        level: Level::Test,
        // Not Debian's: over etcd 3.4.23 (Debian 12) kube-apiserver 1.36 lists from etcd and not from its cache, and refuses lists by
        // watch ("RequestWatchProgress feature is not supported"). The tests need a server as clusters have it.
        install: Install::Go(GoProgram {
            package: "go.etcd.io/etcd/server/v3",
            module: "go.etcd.io/etcd/server/v3",
            version_variable: None,
        }),
        seconds: 45,
    },
    Need::kubernetes(
        "kube-apiserver",
        "the tests run the agent against a real one",
        "k8s.io/kubernetes/cmd/kube-apiserver",
        200,
    ),
    Need::kubernetes(
        "kube-proxy",
        "what Ballast plans is compared with it, and timed beside it",
        "k8s.io/kubernetes/cmd/kube-proxy",
        20,
    ),
    Need::kubernetes("kubectl", "runs the commands of the manual", "k8s.io/kubernetes/cmd/kubectl", 40),
    Need {
        name: "promtool",
        why: "checks names and labels of the metrics, and the alerts",
        level: Level::Test,
        install: Install::Unpacked {
            package: "prometheus",
            oldest: (2, 42),
            seconds: 10,
            otherwise: GoProgram {
                package: "github.com/prometheus/prometheus/cmd/promtool",
                module: "github.com/prometheus/prometheus",
                version_variable: None,
            },
        },
        seconds: 290,
    },
    Need::apt(
        "nft",
        "kube-proxy writes its rules with it, and the tests read them back",
        Level::Test,
        &["nftables"],
        5,
    ),
    Need::apt("iptables", "kube-proxy writes its rules with it in another mode", Level::Test, &["iptables"], 5),
    Need::apt("ipset", "makes sets as kube-proxy leaves them in its IPVS mode", Level::Test, &["ipset"], 5),
    Need::apt("openssl", "makes the client certificates that the tests rotate", Level::Test, &["openssl"], 5),
    Need::apt(
        "qemu-system-x86_64",
        "boots other kernels: SCTP, and what older ones refuse",
        Level::Guests,
        &["qemu-system-x86"],
        30,
    ),
    Need::apt("ipvsadm", "makes virtual services of IPVS in the virtual machines", Level::Guests, &["ipvsadm"], 5),
    Need::apt("xz", "reads the modules of these kernels", Level::Guests, &["xz-utils"], 5),
    Need::apt("strip", "makes what these kernels load small", Level::Guests, &["binutils"], 5),
];

impl Need {
    const fn apt(
        name: &'static str,
        why: &'static str,
        level: Level,
        packages: &'static [&'static str],
        seconds: u64,
    ) -> Self {
        Self { name, why, level, install: Install::Apt(packages), seconds }
    }

    /// A program of Kubernetes, which reports its version from a variable.
    const fn kubernetes(name: &'static str, why: &'static str, package: &'static str, seconds: u64) -> Self {
        let version_variable = Some("k8s.io/component-base/version.gitVersion");
        let program = GoProgram { package, module: "k8s.io/kubernetes", version_variable };
        Self { name, why, level: Level::Test, install: Install::Go(program), seconds }
    }

    /// About how long its installation takes here.
    pub fn estimate(&self) -> u64 {
        match self.install {
            Install::Unpacked { seconds, .. } if debian::can_unpack() => seconds,
            Install::Apt(_)
            | Install::BpfLinker { .. }
            | Install::Crate { .. }
            | Install::Go(_)
            | Install::Unpacked { .. } => self.seconds,
        }
    }

    /// Whether it is there by other means than our cache.
    pub fn is_given(&self, workspace: &Workspace) -> bool {
        match self.install {
            Install::Apt(_) | Install::BpfLinker { .. } | Install::Crate { .. } => which(self.name).is_some(),
            Install::Go(_) | Install::Unpacked { .. } => {
                let assets = workspace.kube_assets();
                assets != workspace.tools && Path::new(&assets).join(self.name).exists()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_need_says_why_and_belongs_to_a_level() {
        for need in NEEDS.iter().chain(&ARM64).chain([&CARGO_DENY, &CARGO_MUTANTS]) {
            assert!(!need.why.is_empty() && !need.name.contains(' ') && need.seconds > 0, "{need:?}");
        }
        let count = |level| NEEDS.iter().filter(|need| need.level <= level).count();
        assert!(count(Level::Build) < count(Level::Test) && count(Level::Test) < count(Level::Guests));
        assert_eq!(count(Level::Guests), NEEDS.len());
    }

    #[test]
    fn go_programs_come_from_the_pinned_module() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout");
        for need in &NEEDS {
            let (Install::Go(program) | Install::Unpacked { otherwise: program, .. }) = &need.install else { continue };
            let file = root.join(program.folder()).join("tools.go");
            let pinned = fs::read_to_string(&file).expect("the tools module is in the checkout");
            assert!(pinned.contains(program.package), "{} is not in {}", program.package, file.display());
        }
    }
}
