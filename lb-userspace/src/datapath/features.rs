//! What this kernel and this process can do: asked before anything is touched.

use std::path::Path;

use caps::{CapSet, Capability};

use super::{DatapathError, bpf_link, settings::TcAttach};

/// Where the kernel shows its own BTF.
const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";
/// The newest thing that every program set needs: `bpf_set_retval` for ECONNREFUSED at connect.
const OLDEST_KERNEL: (u32, u32) = (5, 18);
const OLDEST_FEATURE: &str = "bpf_set_retval (to refuse a connect with ECONNREFUSED)";

/// How tc programs are attached here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TcMechanism {
    /// bpf links on the interface (Linux 6.6).
    Tcx,
    /// Filters of the clsact qdisc.
    Clsact,
}

/// Refuses, by name, what is missing for good.
pub(super) fn check() -> Result<(), DatapathError> {
    check_privileges()?;
    check_kernel(&kernel_release())?;
    check_btf()
}

/// Refuses a kernel that does not describe its own types.
pub(super) fn check_btf() -> Result<(), DatapathError> {
    let path = Path::new(KERNEL_BTF);
    if path.exists() { Ok(()) } else { Err(DatapathError::NoKernelBtf { path: path.into() }) }
}

/// The mechanism for `--tc-attach`.
pub(super) fn tc_mechanism(asked: TcAttach) -> Result<TcMechanism, DatapathError> {
    match (asked, bpf_link::has_tcx()) {
        (TcAttach::Clsact, _) | (TcAttach::Auto, false) => Ok(TcMechanism::Clsact),
        (_, true) => Ok(TcMechanism::Tcx),
        (TcAttach::Tcx, false) => Err(DatapathError::NoTcx),
    }
}

/// Release of the running kernel, as `uname -r` prints it.
pub fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Whether the process holds a capability. Errors mean no.
pub(super) fn has(capability: Capability) -> bool {
    caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false)
}

/// Refuses a process that may not load and attach.
pub(super) fn check_privileges() -> Result<(), DatapathError> {
    let admin = has(Capability::CAP_SYS_ADMIN);
    let needed = [(Capability::CAP_BPF, admin), (Capability::CAP_NET_ADMIN, false), (Capability::CAP_PERFMON, admin)];
    let missing: Vec<String> = needed
        .into_iter()
        .filter(|(capability, implied)| !implied && !has(*capability))
        .map(|(capability, _)| capability.to_string())
        .collect();
    if missing.is_empty() { Ok(()) } else { Err(DatapathError::NotPrivileged { missing: missing.join(", ") }) }
}

/// Refuses a kernel without the helpers.
pub(super) fn check_kernel(release: &str) -> Result<(), DatapathError> {
    // A release that does not parse is no reason to refuse: loading tells.
    if version(release).is_none_or(|found| found >= OLDEST_KERNEL) {
        return Ok(());
    }
    let (major, minor) = OLDEST_KERNEL;
    Err(DatapathError::KernelTooOld {
        found: release.to_owned(),
        needed: format!("{major}.{minor}"),
        feature: OLDEST_FEATURE,
    })
}

/// The first two numbers of a release.
pub(super) fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_kernels_are_refused_by_name() {
        for (release, fits) in [
            ("5.15.0-91-generic", false),
            ("5.17.9", false),
            ("5.18.0", true),
            ("6.1.0-18-amd64", true),
            ("6.18.44-fc", true),
            ("4.19.0+", false),
            ("custom", true),
        ] {
            assert_eq!(check_kernel(release).is_ok(), fits, "{release}");
        }
        let error = check_kernel("5.10.0-28-amd64").expect_err("too old").to_string();
        assert!(
            error.contains("5.10.0-28-amd64") && error.contains("bpf_set_retval") && error.contains("5.18"),
            "{error}"
        );
    }
}
