//! `ballast-confined PROGRAM ARGUMENTS...`: runs the agent with just the rights that the DaemonSet gives it.
//!
//! Rights as in `deploy/kustomize/base/daemonset.yaml`: four capabilities, `no_new_privs`, a seccomp filter, and a mount
//! namespace in which only `--bpffs` and `--run-dir` can be written. The process stays the same one: a test signals the agent.

mod seccomp;

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use caps::{CapSet, Capability, CapsHashSet};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_no_new_privs;

/// What the container adds after it dropped all.
const CAPABILITIES: [Capability; 4] =
    [Capability::CAP_NET_ADMIN, Capability::CAP_NET_RAW, Capability::CAP_BPF, Capability::CAP_PERFMON];
/// The flags whose folders the DaemonSet mounts read-write.
const WRITABLE: [&str; 2] = ["--bpffs", "--run-dir"];

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let Some(program) = arguments.next() else {
        eprintln!("usage: ballast-confined PROGRAM ARGUMENTS...");
        return ExitCode::FAILURE;
    };
    let arguments: Vec<OsString> = arguments.collect();
    let error = match confine(&writable(&arguments)) {
        Ok(()) => {
            anyhow::Error::from(Command::new(&program).args(&arguments).exec()).context(program.display().to_string())
        }
        Err(error) => error,
    };
    eprintln!("ballast-confined: {error:#}");
    ExitCode::FAILURE
}

/// The folders that the flags name and that exist.
fn writable(arguments: &[OsString]) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for (index, argument) in arguments.iter().enumerate() {
        let argument = argument.to_string_lossy();
        for flag in WRITABLE {
            match argument.strip_prefix(flag) {
                Some("") => folders.extend(arguments.get(index + 1).map(PathBuf::from)),
                Some(value) => folders.extend(value.strip_prefix('=').map(PathBuf::from)),
                None => {}
            }
        }
    }
    folders.retain(|folder| folder.is_dir());
    folders
}

/// Gives up every other right. Mounts first: they need the capability that goes next.
fn confine(writable: &[PathBuf]) -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("a mount namespace of its own needs root")?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .context("keeping our mounts to ourselves")?;
    set_read_only(Path::new("/"), true).context("making everything read-only")?;
    for folder in writable {
        mount(Some(folder), folder, None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .and_then(|()| set_read_only(folder, false))
            .with_context(|| format!("making {} writable", folder.display()))?;
    }
    keep_capabilities().context("giving capabilities up")?;
    set_no_new_privs().context("no_new_privs")?;
    seccomp::install().context("the seccomp filter")
}

/// The mount at `path`; with `read_only` also all below it.
fn set_read_only(path: &Path, read_only: bool) -> nix::Result<()> {
    use nix::NixPath as _;
    let (attr_set, attr_clr) = if read_only { (libc::MOUNT_ATTR_RDONLY, 0) } else { (0, libc::MOUNT_ATTR_RDONLY) };
    let attributes = libc::mount_attr { attr_set, attr_clr, propagation: 0, userns_fd: 0 };
    let flags = if read_only { libc::AT_RECURSIVE } else { 0 };
    let done = path.with_nix_path(|path| {
        // SAFETY: path and attributes live until the call returns, and the size is that of the attributes.
        unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                libc::AT_FDCWD,
                path.as_ptr(),
                flags,
                &raw const attributes,
                size_of::<libc::mount_attr>(),
            )
        }
    })?;
    nix::errno::Errno::result(done).map(drop)
}

/// Root has after an exec what the bounding set leaves: that first, then what the process has now.
fn keep_capabilities() -> Result<(), caps::errors::CapsError> {
    let kept = CapsHashSet::from(CAPABILITIES);
    for capability in caps::runtime::thread_all_supported().difference(&kept) {
        caps::drop(None, CapSet::Bounding, *capability)?;
    }
    caps::clear(None, CapSet::Ambient)?;
    caps::set(None, CapSet::Inheritable, &CapsHashSet::new())?;
    caps::set(None, CapSet::Effective, &kept)?;
    caps::set(None, CapSet::Permitted, &kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_found_in_both_forms_of_a_flag() {
        let arguments = ["agent", "--bpffs=/sys", "--run-dir", "/tmp", "--run-directory=/", "--bpffs=/not/there"];
        let folders = writable(&arguments.map(OsString::from));
        assert_eq!(folders, [PathBuf::from("/sys"), PathBuf::from("/tmp")]);
    }
}
