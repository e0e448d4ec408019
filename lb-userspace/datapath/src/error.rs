//! What can go wrong between the agent and the kernel, each with what was expected, what was found, and the remedy.

use std::{
    future::Future,
    io,
    path::{Path, PathBuf},
};

use aya::{EbpfError, programs::ProgramError};

use super::layout::LayoutError;
use lb_netlink::route;

/// Why the programs or their maps could not be put in place. Nothing half-attached is left behind by any of these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatapathError {
    #[error(
        "missing {missing}: loading and attaching eBPF programs needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON; run as root, or grant them to the container"
    )]
    NotPrivileged { missing: String },
    #[error(
        "this kernel counts eBPF maps as locked memory (Linux before 5.11), and the limit of this process is too low for them; raise it: LimitMEMLOCK=infinity in the service of the container runtime, or `ulimit -l unlimited`"
    )]
    LockedMemory,
    #[error(
        "this kernel is built with PREEMPT_RT ({version}): packets on one CPU may interrupt each other there, and the programs would mix up their records; boot a kernel without PREEMPT_RT"
    )]
    Realtime { version: String },
    #[error(
        "the kernel offers no BTF: {path} is missing; boot a kernel built with CONFIG_DEBUG_INFO_BTF=y (every current distribution's is), and mount /sys"
    )]
    NoKernelBtf { path: PathBuf },
    #[error("this kernel has no TCX (6.6 or newer): use --tc-attach auto or clsact")]
    NoTcx,
    #[error("{dir} is not a bpf file system: {reason}; {remedy}", dir = dir.display())]
    NoBpffs { dir: PathBuf, reason: String, remedy: String },
    #[error("no cgroup v2 hierarchy: {reason}; {remedy}")]
    NoCgroup2 { reason: String, remedy: String },
    #[error(
        "--{flag} names the interface {name}, which is not there; check `ip link`, or give a glob ({name}*) if it comes later"
    )]
    NoInterface { flag: &'static str, name: String },
    #[error("another agent{holder} already holds {what}; stop it first: one agent per node")]
    Locked { what: String, holder: String },
    #[error(
        "{program} hangs on {place} by a link that is not pinned in {pins}, and another program beside it would translate packets twice; if a file system is mounted over these pins, run `umount {dir}`; if the agent before had another --bpffs, give the same one", pins = pins.display(), dir = parent(pins).display()
    )]
    Beside { program: String, place: String, pins: PathBuf },
    #[error(
        "the pins in {pins} are hidden or removed, so nothing is attached anew; if a file system is mounted over them, run `umount {dir}`, else restart the agent", pins = pins.display(), dir = parent(pins).display()
    )]
    PinsHidden { pins: PathBuf },
    #[error("this ballast was built without the eBPF programs; build it by `cargo xtask build`")]
    NoPrograms,
    #[error("the eBPF object in this binary is not usable: {reason}; rebuild it by `cargo xtask build`")]
    BadObject { reason: String },
    #[error(
        "--programs {path} is not usable: {reason}; name an eBPF object that `cargo xtask build` made, or leave the option out", path = path.display()
    )]
    BadPrograms { path: PathBuf, reason: String },
    #[error(
        "pinned map {map} at {path} does not fit: {field} is {found}, expected {expected}; start with the sizes and version that made it, or remove the old state by `ballast cleanup`", path = path.display()
    )]
    MapMismatch { map: String, path: PathBuf, field: &'static str, expected: String, found: String },
    #[error("{path} is not a pinned map: {source}; remove it, or choose another --bpffs", path = path.display())]
    ForeignPin { path: PathBuf, source: Box<dyn std::error::Error + Send + Sync> },
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(
        "the programs at work are not pinned, so no other tables can follow theirs: {what}; start the agent once with the version and --map-sizes before and without --program-log-level, or remove the old state by `ballast cleanup`, which ends the node's connections"
    )]
    UnpinnedPrograms { what: String },
    #[error(
        "map {map} of the tables in {set} is not pinned any more, so no other tables can follow them; start the version and --map-sizes before, which makes it anew, or remove the old state by `ballast cleanup`, which ends the node's connections", set = set.display()
    )]
    MissingPin { map: String, set: PathBuf },
    #[error(
        "{folder} says that tables were switched, but not from which to which; remove the old state by `ballast cleanup`, which ends the node's connections", folder = folder.display()
    )]
    Unfinished { folder: PathBuf },
    #[error("loading the maps and programs: {0}")]
    Load(#[from] EbpfError),
    #[error("the kernel refused program {name}: {source}")]
    Program { name: String, source: ProgramError },
    #[error("{action}: {source}{hint}", hint = hint(source))]
    Kernel { action: String, source: io::Error },
    #[error("{action} {path}: {source}", path = path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{action} over netlink: {reason}")]
    Netlink { action: String, reason: String },
}

/// The bpf file system of our folder.
fn parent(pins: &Path) -> &Path {
    pins.parent().unwrap_or(pins)
}

/// What usually stands behind an error number of an attachment.
fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => {
            "; rights are missing, or a program of others allows none beside it (`bpftool cgroup tree` shows it)"
        }
        Some(libc::EBUSY | libc::EEXIST) => {
            "; another program is attached there (`ip -d link` and `bpftool net` show it)"
        }
        Some(libc::EOPNOTSUPP) => "; the driver cannot do it",
        _ => "",
    }
}

/// Runs netlink requests from code that may or may not be async, in a thread of this network namespace.
pub(super) fn netlink_thread<T, F>(requests: impl FnOnce(rtnetlink::Handle) -> F + Send) -> Result<T, DatapathError>
where
    T: Send,
    F: Future<Output = Result<T, DatapathError>>,
{
    route::in_thread(requests).map_err(DatapathError::kernel("open a netlink socket"))?
}

impl DatapathError {
    /// Adapter for `map_err` on file operations.
    pub(super) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { action, path, source }
    }

    /// Adapter for `map_err` on system calls.
    pub(super) fn kernel(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::Kernel { action, source }
    }

    /// Adapter for `map_err` on netlink requests.
    pub(super) fn netlink(action: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> Self {
        let action = action.into();
        move |error| Self::Netlink { action, reason: error.to_string() }
    }

    /// Whether another program is attached there.
    pub(super) fn is_taken(&self) -> bool {
        matches!(self, Self::Kernel { source, .. } if matches!(source.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)))
    }

    /// Whether the interface went away while we worked on it: no fault, its removal is announced too.
    pub(super) fn is_gone(&self) -> bool {
        let by_errno = |source: &io::Error| source.raw_os_error() == Some(libc::ENODEV);
        matches!(self, Self::Kernel { source, .. } if by_errno(source))
            || matches!(self, Self::Netlink { reason, .. } if reason.contains("(os error 19)"))
    }
}
