//! Kernels for guests: Debian's packages, downloaded and unpacked, never installed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use duct::cmd;
use object::{Object as _, ObjectSection as _};

use crate::process::{run_logged, say};
use crate::workspace::{Workspace, which};

/// A kernel that the tests run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// What the user calls it.
    pub name: &'static str,
    /// Debian's package that stands for its newest build.
    package: &'static str,
    /// The Debian release that has it; `None`: the package sources of this machine.
    release: Option<&'static str>,
    /// Whether the programs load on it and the agent is known to serve there.
    pub proven: bool,
}

/// Debian 11 has the first one, Debian 12 the others.
pub const KERNELS: [Kernel; 3] = [
    Kernel { name: "5.10", package: "linux-image-cloud-amd64", release: Some("bullseye"), proven: false },
    Kernel { name: "6.1", package: "linux-image-cloud-amd64", release: None, proven: true },
    Kernel { name: "6.12", package: "linux-image-6.12-cloud-amd64", release: None, proven: true },
];

/// Where a release of Debian is; an old one moves from the first to the second.
const ARCHIVES: [&str; 2] = ["http://deb.debian.org/debian", "http://archive.debian.org/debian"];
/// Debian's keys, also those of earlier releases: package `debian-archive-keyring`.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// What the guests' tests need of a kernel beyond what is built in.
const MODULES: [&str; 9] =
    ["veth", "bridge", "dummy", "vxlan", "sch_ingress", "cls_bpf", "sctp", "crc32c_generic", "sctp_diag"];

/// A kernel on this machine.
#[derive(Debug)]
pub struct Unpacked {
    /// What a boot loader takes.
    pub image: PathBuf,
    /// Files of modules, each after those that it needs.
    pub modules: Vec<PathBuf>,
    /// The folder of all modules.
    tree: PathBuf,
}

impl Unpacked {
    /// Files of further modules, each after those that it needs, without those of every guest.
    pub fn further_modules(&self, wanted: &[&str]) -> Result<Vec<PathBuf>> {
        let mut order = load_order(&self.tree, wanted)?;
        order.retain(|file| !self.modules.contains(file));
        Ok(order)
    }
}

impl Kernel {
    /// The kernel of this name.
    pub fn named(name: &str) -> Result<Self> {
        let found = KERNELS.into_iter().find(|kernel| kernel.name == name);
        found.with_context(|| {
            format!("no kernel is called {name:?}: there are {}", KERNELS.map(|kernel| kernel.name).join(", "))
        })
    }

    /// Downloads and unpacks it, if that was not done before. One that is there is kept, though Debian may have a newer one.
    pub fn unpacked(self, workspace: &Workspace) -> Result<Unpacked> {
        let cache = workspace.cache.join("kernels");
        let folder = cache.join(self.name);
        if !folder.exists() {
            let fresh = cache.join(format!("{}.new", self.name));
            if fresh.exists() {
                fs::remove_dir_all(&fresh).with_context(|| format!("cannot remove {}", fresh.display()))?;
            }
            fs::create_dir_all(&fresh).with_context(|| format!("cannot make {}", fresh.display()))?;
            self.download(workspace, &fresh)?;
            // All of it or nothing: a download that broke off is begun anew.
            fs::rename(&fresh, &folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let image = only(&folder.join("boot"), "vmlinuz-")?;
        let tree = only(&folder.join("lib/modules"), "")?;
        Ok(Unpacked { image, modules: load_order(&tree, &MODULES)?, tree })
    }

    fn download(self, workspace: &Workspace, folder: &Path) -> Result<()> {
        if which("apt-get").is_none() || which("dpkg-deb").is_none() {
            bail!(
                "kernel {} comes from Debian's package {}, and there is no apt-get or dpkg-deb here: run this on Debian 12",
                self.name,
                self.package
            );
        }
        say(&format!("kernel {} is missing (the tests boot it in a virtual machine): downloading it", self.name));
        // The package of that name only depends on the newest kernel, whose name tells its version.
        let script = format!(
            "set -e\n\
             image=$(apt-cache depends {package} | sed -n 's/^ *Depends: \\(linux-image-[^ ]*\\)$/\\1/p')\n\
             if test -z \"$image\"; then\n\
               apt-get update\n\
               image=$(apt-cache depends {package} | sed -n 's/^ *Depends: \\(linux-image-[^ ]*\\)$/\\1/p')\n\
             fi\n\
             test -n \"$image\" || {{ echo 'the package sources of this system have no {package}'; exit 1; }}\n\
             apt-get download \"$image\" || {{ apt-get update; apt-get download \"$image\"; }}\n\
             dpkg-deb -x \"$image\"_*.deb .\n\
             rm \"$image\"_*.deb\n",
            package = self.package
        );
        let log = workspace.logs()?.join(format!("kernel-{}.log", self.name));
        let mut command = cmd!("sh", "-c", script).dir(folder);
        let apt = folder.join("apt");
        if let Some(release) = self.release {
            command = command.env("APT_CONFIG", configure_apt(&apt, release)?);
        }
        run_logged(&format!("kernel {}", self.name), &log, &command)?;
        if apt.exists() {
            fs::remove_dir_all(&apt).with_context(|| format!("cannot remove {}", apt.display()))?;
        }
        Ok(())
    }
}

/// An apt that knows this release of Debian only, all of it in `folder`: the machine's own sources stay as they are. Returns its
/// configuration file.
fn configure_apt(folder: &Path, release: &str) -> Result<PathBuf> {
    for part in ["lists/partial", "cache/archives/partial"] {
        let part = folder.join(part);
        fs::create_dir_all(&part).with_context(|| format!("cannot make {}", part.display()))?;
    }
    let (sources, configuration) = (folder.join("sources.list"), folder.join("apt.conf"));
    let write =
        |path: &Path, text: String| fs::write(path, text).with_context(|| format!("cannot write {}", path.display()));
    write(&sources, ARCHIVES.map(|archive| format!("deb [signed-by={KEYS}] {archive} {release} main\n")).concat())?;
    let place = folder.display();
    write(
        &configuration,
        format!(
            "Dir::Etc::SourceList \"{}\";\nDir::Etc::SourceParts \"/dev/null\";\n\
             Dir::State::Lists \"{place}/lists\";\nDir::Cache \"{place}/cache\";\n\
             APT::Sandbox::User \"root\";\n",
            sources.display()
        ),
    )?;
    Ok(configuration)
}

/// The one entry of a folder whose name begins so.
fn only(folder: &Path, prefix: &str) -> Result<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)) {
            found.push(path);
        }
    }
    ensure!(
        found.len() == 1,
        "{} holds {} entries {prefix}*, expected 1: remove its parent folder, it is downloaded again",
        folder.display(),
        found.len()
    );
    Ok(found.remove(0))
}

/// The wanted modules and all that they depend on, each after what it depends on. What the kernel has built in has no file and is
/// left out.
fn load_order(tree: &Path, wanted: &[&str]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    list_files(tree, &mut files)?;
    let mut order = Vec::new();
    let mut seen = BTreeSet::new();
    for name in wanted {
        visit(name, &files, &mut seen, &mut order)?;
    }
    Ok(order)
}

fn visit(name: &str, files: &[PathBuf], seen: &mut BTreeSet<String>, order: &mut Vec<PathBuf>) -> Result<()> {
    if !seen.insert(name.to_owned()) {
        return Ok(());
    }
    let Some(file) = files.iter().find(|file| module_name(file).as_deref() == Some(name)) else {
        return Ok(());
    };
    for needed in dependencies(file)? {
        visit(&needed, files, seen, order)?;
    }
    order.push(file.clone());
    Ok(())
}

/// The name of the module in a file: up to the first dot, and a dash is an underscore.
fn module_name(file: &Path) -> Option<String> {
    let (name, kind) = file.file_name()?.to_str()?.split_once('.')?;
    kind.starts_with("ko").then(|| name.replace('-', "_"))
}

fn list_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            list_files(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// Names of the modules that a module needs, as it says itself.
fn dependencies(file: &Path) -> Result<Vec<String>> {
    let read = || -> Result<Vec<u8>> {
        if file.extension().is_some_and(|kind| kind == "xz") {
            return Ok(cmd!("xz", "--decompress", "--stdout", file).stdout_capture().run()?.stdout);
        }
        Ok(fs::read(file)?)
    };
    let bytes = read().with_context(|| format!("cannot read {}", file.display()))?;
    let elf = object::File::parse(&*bytes).with_context(|| format!("{} is no module", file.display()))?;
    let section =
        elf.section_by_name(".modinfo").with_context(|| format!("{} says nothing of itself", file.display()))?;
    Ok(needed_of(section.data()?))
}

/// The entry `depends` of a module's section `.modinfo`.
fn needed_of(modinfo: &[u8]) -> Vec<String> {
    let entry = modinfo.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"depends="));
    let names = String::from_utf8_lossy(entry.unwrap_or_default()).into_owned();
    names.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_says_what_it_needs() {
        let modinfo = b"license=GPL\0depends=udp_tunnel,libcrc32c,ip6-udp-tunnel\0retpoline=Y\0";
        assert_eq!(needed_of(modinfo), ["udp_tunnel", "libcrc32c", "ip6_udp_tunnel"]);
        assert_eq!(needed_of(b"license=GPL\0depends=\0"), Vec::<String>::new());
    }

    #[test]
    fn a_modules_name_is_that_of_its_file() {
        assert_eq!(module_name(Path::new("/x/ip6-tunnel.ko.xz")).as_deref(), Some("ip6_tunnel"));
        assert_eq!(module_name(Path::new("/x/sctp.ko")).as_deref(), Some("sctp"));
        assert_eq!(module_name(Path::new("/x/modules.order")), None);
    }

    #[test]
    fn a_kernel_is_known_by_its_name() {
        assert_eq!(Kernel::named("6.1").expect("is there"), KERNELS[1]);
        let error = Kernel::named("2.4").expect_err("is not").to_string();
        assert!(error.contains("\"2.4\"") && error.contains("5.10, 6.1, 6.12"), "{error}");
    }
}
