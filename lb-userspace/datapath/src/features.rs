//! What this kernel and this process can do: asked before anything is touched.

use std::{fmt, fs, os::fd::AsRawFd as _, path::Path};

use caps::{CapSet, Capability};

use super::{DatapathError, bpf_link, probe, settings::TcAttach};

/// Where the kernel shows its own BTF.
const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";
/// Where kernels with the patches for PREEMPT_RT say so. Linux itself, which has it since 6.12, has no such file.
const REALTIME: &str = "/sys/kernel/realtime";
/// How tc programs are attached here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    check_preemption()?;
    check_memory_limit()?;
    check_btf()
}

/// What the programs or the agent use where the kernel has it, and do without where not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    SetRetval,
    CheckMtu,
    CoarseClock,
    NetnsCookie,
}

impl Feature {
    pub(super) const ALL: [Self; 4] = [Self::SetRetval, Self::CheckMtu, Self::CoarseClock, Self::NetnsCookie];

    /// A word that scripts may rely on.
    fn name(self) -> &'static str {
        match self {
            Self::SetRetval => "set-retval",
            Self::CheckMtu => "check-mtu",
            Self::CoarseClock => "coarse-clock",
            Self::NetnsCookie => "netns-cookie",
        }
    }

    /// The first release of Linux that has it. Distributions add it to older ones, so nothing is decided by that.
    pub(super) fn since(self) -> &'static str {
        match self {
            Self::SetRetval => "5.18",
            Self::CheckMtu => "5.12",
            Self::CoarseClock => "5.11",
            Self::NetnsCookie => "5.14",
        }
    }

    /// What a user loses without it.
    fn loss(self) -> &'static str {
        match self {
            Self::SetRetval => "a refused connect() fails with EPERM instead of ECONNREFUSED",
            Self::CheckMtu => "no fast path: all packets of pods go through the host's network stack",
            Self::CoarseClock => "each packet reads the precise clock, which takes longer",
            Self::NetnsCookie => {
                "the agent must run in the initial network namespace, as on every node: host sockets are those of it"
            }
        }
    }

    /// The constant of the programs that says whether the kernel has it.
    pub(super) fn constant(self) -> Option<&'static str> {
        match self {
            Self::SetRetval => Some("HAS_SET_RETVAL"),
            Self::CheckMtu => Some("HAS_CHECK_MTU"),
            Self::CoarseClock => Some("HAS_COARSE_CLOCK"),
            Self::NetnsCookie => None,
        }
    }

    /// Asks the kernel. Needs the privileges to load programs.
    pub(super) fn is_there(self) -> bool {
        match self {
            Self::SetRetval => probe::set_retval(),
            Self::CheckMtu => probe::check_mtu(),
            Self::CoarseClock => probe::coarse_clock(),
            Self::NetnsCookie => namespace_cookie().is_some(),
        }
    }

    /// Those that this kernel lacks.
    pub(super) fn missing() -> Vec<Self> {
        Self::ALL.into_iter().filter(|feature| !feature.is_there()).collect()
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no {} (Linux {}): {}", self.name(), self.since(), self.loss())
    }
}

const COOKIE_BYTES: libc::socklen_t = 8;

/// The kernel's cookie of this process's network namespace; `None`: it has none.
pub(super) fn namespace_cookie() -> Option<u64> {
    let socket = std::os::unix::net::UnixDatagram::unbound().ok()?;
    let (mut cookie, mut length) = (0_u64, COOKIE_BYTES);
    // SAFETY: the kernel writes at most `length` bytes to `cookie`, and both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    (result == 0).then_some(cookie)
}

/// Kernels before 5.11 count maps and programs as locked memory: the limit is lifted, if this process may, else refused by name.
pub(super) fn check_memory_limit() -> Result<(), DatapathError> {
    let unlimited = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: reads one live record. Without the right to it the limit stays.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const unlimited) };
    if probe::memory_is_limited() { Err(DatapathError::LockedMemory) } else { Ok(()) }
}

/// Refuses a kernel under which a program of packets may preempt another one on its CPU: both would write the same scratch record. Under
/// PREEMPT_RT a lock of each CPU kept them apart until Linux 6.18 (commit 3253cb49cbad), and in stable kernels until 6.12.57. Nothing shows
/// whether this kernel was built with it (`CONFIG_PREEMPT_RT_NEEDS_BH_LOCK`).
pub(super) fn check_preemption() -> Result<(), DatapathError> {
    let version = rustix::system::uname().version().to_string_lossy().into_owned();
    if is_realtime(&version, &fs::read_to_string(REALTIME).unwrap_or_default()) {
        return Err(DatapathError::Realtime { version });
    }
    Ok(())
}

/// By what `uname -v` prints (the kernel's `init/Makefile`), or the file [`REALTIME`] says.
fn is_realtime(version: &str, realtime: &str) -> bool {
    version.split_whitespace().any(|word| word == "PREEMPT_RT") || realtime.trim() == "1"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_whose_packets_preempt_each_other_are_known() {
        // Debian's linux-image-6.12-rt-amd64, and a kernel of the patches before.
        assert!(is_realtime("#1 SMP PREEMPT_RT Debian 6.12.57-1 (2025-11-05)", ""));
        assert!(is_realtime("#1 SMP PREEMPT RT Debian 4.19.316-1 (2024-06-25)", "1\n"));
        for version in ["#1 SMP PREEMPT_DYNAMIC Debian 6.12.57-1", "#1 SMP PREEMPT @0", "#1 SMP", "#1-PREEMPT_RTX SMP"]
        {
            assert!(!is_realtime(version, ""), "{version}");
            assert!(!is_realtime(version, "0\n"), "{version}");
        }
        let error = DatapathError::Realtime { version: "#1 SMP PREEMPT_RT".to_owned() }.to_string();
        assert!(error.contains("PREEMPT_RT") && error.contains("; boot "), "named, with the remedy: {error}");
    }

    #[test]
    fn each_feature_says_what_is_lost_without_it() {
        for feature in Feature::ALL {
            let text = feature.to_string();
            assert!(text.starts_with("no ") && text.contains(" (Linux 5.") && text.contains("): "), "{text}");
        }
    }
}
