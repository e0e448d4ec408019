//! The socket programs, attached to a cgroup of the test.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use anyhow::{Context, Result};
use aya::EbpfLoader;
use aya::programs::{CgroupAttachMode, CgroupSockAddr};

use super::LoadedPrograms;
use crate::topology::NetNs;

/// Whose sockets are translated, by the numbers of the programs' `SOCKET_LB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    Host = 1,
    All = 2,
}

impl LoadedPrograms {
    /// Loads the programs and attaches those that translate destinations to this cgroup, until dropped. Host processes are those
    /// in the namespace of `host`.
    pub fn on_sockets(host: &NetNs, cgroup: &Path, whose: Whose) -> Result<Self> {
        let cookie = host.run(namespace_cookie).context("SO_NETNS_COOKIE")?;
        let mut loader = EbpfLoader::new();
        let whose = whose as u8;
        loader.override_global("SOCKET_LB", &whose, true).override_global("HOST_NETNS", &cookie, true);
        let mut programs = Self::load_by(&mut loader, &super::object()?)?;
        let cgroup = File::open(cgroup).with_context(|| cgroup.display().to_string())?;
        for name in ["connect4", "connect6", "sendmsg4", "sendmsg6"] {
            let program: &mut CgroupSockAddr =
                programs.ebpf.program_mut(name).with_context(|| format!("no program {name}"))?.try_into()?;
            program.load().with_context(|| format!("loading {name}"))?;
            program.attach(&cgroup, CgroupAttachMode::Single).with_context(|| format!("attaching {name}"))?;
        }
        Ok(programs)
    }
}

/// The calling thread's network namespace, as the programs get it.
fn namespace_cookie() -> Result<u64> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    let (mut cookie, mut length) = (0_u64, 8);
    // SAFETY: a live socket, a place for as many bytes as `length` says.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(cookie)
}
