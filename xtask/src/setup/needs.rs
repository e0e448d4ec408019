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

/// Kubernetes reports its version from a variable.
const KUBERNETES: &str = "k8s.io/kubernetes";
const KUBERNETES_VERSION: Option<&str> = Some("k8s.io/component-base/version.gitVersion");

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
    Need {
        name: "qemu-aarch64",
        why: "runs unit tests for arm64",
        level: Level::Test,
        install: Install::Apt(&["qemu-user"]),
        seconds: 10,
    },
    Need {
        name: "aarch64-linux-gnu-gcc",
        why: "compiles the C parts of crates for arm64",
        level: Level::Test,
        install: Install::Apt(&["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"]),
        seconds: 20,
    },
];

pub const NEEDS: [Need; 18] = [
    Need {
        name: "cc",
        why: "a C compiler for crates with C parts (ring) and the final link",
        level: Level::Build,
        install: Install::Apt(&["gcc", "libc6-dev"]),
        seconds: 10,
    },
    Need {
        name: "bpf-linker",
        why: "links the eBPF programs into one object with BTF",
        level: Level::Build,
        install: Install::BpfLinker { version: "0.13.0" },
        seconds: 40,
    },
    Need {
        name: "ip",
        why: "network namespaces and links for the demo and the tests",
        level: Level::Run,
        install: Install::Apt(&["iproute2"]),
        seconds: 5,
    },
    Need {
        name: "ethtool",
        why: "checksum offload of test links on and off",
        level: Level::Run,
        install: Install::Apt(&["ethtool"]),
        seconds: 5,
    },
    Need {
        name: "bpftool",
        why: "the tests read maps with it, as an operator would",
        level: Level::Test,
        install: Install::Apt(&["bpftool"]),
        seconds: 5,
    },
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
    Need {
        name: "kube-apiserver",
        why: "the tests run the agent against a real one",
        level: Level::Test,
        install: Install::Go(GoProgram {
            package: "k8s.io/kubernetes/cmd/kube-apiserver",
            module: KUBERNETES,
            version_variable: KUBERNETES_VERSION,
        }),
        seconds: 200,
    },
    Need {
        name: "kube-proxy",
        why: "what Ballast plans is compared with it, and timed beside it",
        level: Level::Test,
        install: Install::Go(GoProgram {
            package: "k8s.io/kubernetes/cmd/kube-proxy",
            module: KUBERNETES,
            version_variable: KUBERNETES_VERSION,
        }),
        seconds: 20,
    },
    Need {
        name: "kubectl",
        why: "runs the commands of the manual",
        level: Level::Test,
        install: Install::Go(GoProgram {
            package: "k8s.io/kubernetes/cmd/kubectl",
            module: KUBERNETES,
            version_variable: KUBERNETES_VERSION,
        }),
        seconds: 40,
    },
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
    Need {
        name: "nft",
        why: "kube-proxy writes its rules with it, and the tests read them back",
        level: Level::Test,
        install: Install::Apt(&["nftables"]),
        seconds: 5,
    },
    Need {
        name: "iptables",
        why: "kube-proxy writes its rules with it in another mode",
        level: Level::Test,
        install: Install::Apt(&["iptables"]),
        seconds: 5,
    },
    Need {
        name: "ipset",
        why: "makes sets as kube-proxy leaves them in its IPVS mode",
        level: Level::Test,
        install: Install::Apt(&["ipset"]),
        seconds: 5,
    },
    Need {
        name: "openssl",
        why: "makes the client certificates that the tests rotate",
        level: Level::Test,
        install: Install::Apt(&["openssl"]),
        seconds: 5,
    },
    Need {
        name: "qemu-system-x86_64",
        why: "boots other kernels: SCTP, and what older ones refuse",
        level: Level::Guests,
        install: Install::Apt(&["qemu-system-x86"]),
        seconds: 30,
    },
    Need {
        name: "ipvsadm",
        why: "makes virtual services of IPVS in the virtual machines",
        level: Level::Guests,
        install: Install::Apt(&["ipvsadm"]),
        seconds: 5,
    },
    Need {
        name: "xz",
        why: "reads the modules of these kernels",
        level: Level::Guests,
        install: Install::Apt(&["xz-utils"]),
        seconds: 5,
    },
    Need {
        name: "strip",
        why: "makes what these kernels load small",
        level: Level::Guests,
        install: Install::Apt(&["binutils"]),
        seconds: 5,
    },
];

impl Need {
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
