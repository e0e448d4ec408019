//! A guest's first file system: the agent, the tests, `ip`, their shared libraries, and the kernel's modules.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use duct::cmd;

use super::cpio::Archive;
use super::kernel::Unpacked;
use super::subject::Tests;
use crate::workspace::which;

/// The agent's client of the API reads them at its start, whatever it connects to.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Where tests find the programs: see `ballast-guest`.
const OBJECT: &str = "lib/ballast.o";

/// Programs of this machine that the tests run, each with Debian's package.
const TOOLS: [(&str, &str); 3] = [("ip", "iproute2"), ("nft", "nftables"), ("ipvsadm", "ipvsadm")];

/// What goes into it.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The first process.
    pub init: PathBuf,
    pub agent: PathBuf,
    /// The eBPF object.
    pub object: PathBuf,
    /// Test binaries, by name.
    pub tests: Tests,
}

impl Programs {
    /// The files of each guest, whatever its kernel: programs by their paths there, without debug information.
    ///
    /// They are linked dynamically: the libraries of this machine go with them.
    pub fn collect(&self, scratch: &Path) -> Result<Vec<(String, Vec<u8>)>> {
        let mut programs = vec![("init".to_owned(), self.init.clone()), ("bin/ballast".to_owned(), self.agent.clone())];
        for (tool, package) in TOOLS {
            let path = which(tool).with_context(|| format!("{tool} is missing: install {package}"))?;
            programs.push((format!("bin/{tool}"), path));
        }
        programs.extend(self.tests.0.iter().map(|(name, path)| (format!("tests/{name}"), path.clone())));
        let mut libraries = BTreeSet::new();
        let mut files = Vec::new();
        for (place, path) in programs {
            libraries.extend(libraries_of(&path)?);
            files.push((place, stripped(&path, scratch)?));
        }
        let as_here = libraries.into_iter().chain([PathBuf::from(CERTIFICATES)]);
        let as_here = as_here.map(|path| (path.to_string_lossy().trim_start_matches('/').to_owned(), path));
        for (place, path) in as_here.chain([(OBJECT.to_owned(), self.object.clone())]) {
            let contents = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            files.push((place, contents));
        }
        Ok(files)
    }
}

/// The archive for one kernel. `further`: modules that are loaded later. `list`: what is run there.
pub fn archive(programs: &[(String, Vec<u8>)], kernel: &Unpacked, further: &[PathBuf], list: &str) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    archive.device("dev/console", (5, 1));
    for folder in ["proc", "sys", "run", "tmp"] {
        archive.folder(folder);
    }
    for (path, contents) in programs {
        archive.file(path, contents);
    }
    let name =
        |module: &Path| anyhow::Ok(module.file_name().context("a module has a name")?.to_string_lossy().into_owned());
    for module in kernel.modules.iter().chain(further.iter().collect::<BTreeSet<_>>()) {
        let contents = fs::read(module).with_context(|| format!("cannot read {}", module.display()))?;
        archive.file(&format!("modules/{}", name(module)?), &contents);
    }
    let order = kernel.modules.iter().map(|module| name(module)).collect::<Result<Vec<_>>>()?;
    archive.file("tests/list", list.as_bytes());
    archive.file("modules/order", order.join("\n").as_bytes());
    Ok(archive.finish())
}

/// Four fifths of a test binary are line tables, and all of it goes through an emulated machine's memory.
fn stripped(path: &Path, scratch: &Path) -> Result<Vec<u8>> {
    let to = scratch.join("stripped");
    cmd!("strip", "--strip-debug", "-o", &to, path)
        .run()
        .with_context(|| format!("cannot strip {}: install binutils", path.display()))?;
    let bytes = fs::read(&to).with_context(|| format!("cannot read {}", to.display()))?;
    fs::remove_file(&to).ok();
    Ok(bytes)
}

/// The loader and the libraries that a program runs with, at the paths where the loader looks for them.
fn libraries_of(program: &Path) -> Result<Vec<PathBuf>> {
    let output = cmd!("ldd", program)
        .stderr_to_stdout()
        .unchecked()
        .read()
        .with_context(|| format!("cannot ask for the libraries of {}: ldd is missing", program.display()))?;
    read_libraries(&output).with_context(|| format!("libraries of {}", program.display()))
}

/// Lines as `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)` and `/lib64/ld-linux-x86-64.so.2 (0x…)`.
fn read_libraries(output: &str) -> Result<Vec<PathBuf>> {
    let mut libraries = Vec::new();
    for line in output.lines() {
        if line.contains("not found") {
            bail!("the loader does not find one: {}", line.trim());
        }
        libraries.extend(line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from));
    }
    Ok(libraries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_what_the_loader_says() {
        let output = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let libraries = read_libraries(output).expect("found");
        assert_eq!(libraries, ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from));
        assert!(read_libraries("\tstatically linked\n").expect("none").is_empty());
        assert!(read_libraries("\tlibbpf.so.1 => not found\n").is_err());
    }
}
