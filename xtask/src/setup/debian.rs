//! Debian's packages: installed by apt as root, or only unpacked, which needs no root and starts no daemon.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use duct::cmd;

use crate::process::run_logged;
use crate::workspace::which;

/// Whether packages can be downloaded and unpacked here.
pub fn can_unpack() -> bool {
    ["apt-get", "dpkg-deb"].iter().all(|tool| which(tool).is_some())
}

/// The distribution's release, whose packages all run with its libraries.
pub fn release() -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim_matches('"'));
    format!("{}{}", field("ID=").unwrap_or("unknown"), field("VERSION_ID=").unwrap_or_default())
}

/// One call of apt-get.
pub fn install(packages: &[&str], log: &Path) -> Result<()> {
    let script = format!(
        "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends {}",
        packages.join(" ")
    );
    run_logged("apt-get", log, &cmd!("sh", "-c", script))
}

/// Puts `/usr/bin/PROGRAM` of a package into `folder`, if it runs and is not older than `oldest`.
pub fn unpack(package: &str, program: &str, oldest: (u32, u32), folder: &Path, log: &Path) -> Result<()> {
    // Lists that are missing or name a version that is gone are fetched, which takes root.
    let script = format!(
        "set -e; apt-get download {package} || {{ apt-get update; apt-get download {package}; }}
         dpkg-deb -x {package}_*.deb unpacked
         mv unpacked/usr/bin/{program} .
         rm -r unpacked {package}_*.deb"
    );
    run_logged(program, log, &cmd!("sh", "-c", script).dir(folder))?;
    let said = cmd!(folder.join(program), "--version").stderr_to_stdout().read();
    let said = said.with_context(|| format!("Debian's {program} does not run"))?;
    let version = version(&said).with_context(|| format!("{program} --version says no version: {said:?}"))?;
    ensure!(version >= oldest, "Debian's {program} is too old: {version:?}, expected {oldest:?} or later");
    Ok(())
}

/// The first `major.minor` in what a program says of itself.
fn version(text: &str) -> Option<(u32, u32)> {
    text.split_ascii_whitespace().find_map(|word| {
        let mut numbers = word.split('.');
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_the_programs_say() {
        assert_eq!(version("etcd Version: 3.4.23\nGit SHA: Not provided"), Some((3, 4)));
        assert_eq!(version("promtool, version 2.42.0+ds (branch: debian/sid)"), Some((2, 42)));
        assert_eq!(version("usage: promtool [<flags>]"), None);
    }
}
