//! Whether a link's packets carry complete checksums, as on a wire, or partial ones, as between namespaces.

use std::os::fd::AsRawFd as _;

use anyhow::{Context, Result};

use super::Namespace;

/// What a link's transmit side leaves undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// As a packet arrives from a real wire: checksums computed, at most one MTU long. Native XDP needs this.
    Complete,
    /// As veth does by default: the checksum is left to the device that sends the packet out, and packets may be 64 KiB long.
    Partial,
}

/// `ETHTOOL_STXCSUM`
const SET_TX_CHECKSUM: u32 = 0x17;
/// `ETHTOOL_STSO`
const SET_TSO: u32 = 0x1f;
/// `ETHTOOL_SGSO`
const SET_GSO: u32 = 0x24;
/// `ETHTOOL_SGRO`
const SET_GRO: u32 = 0x2c;

/// `struct ethtool_value`
#[repr(C)]
struct EthtoolValue {
    command: u32,
    data: u32,
}

/// Sets the offloads of one end of a veth. GRO is on with complete checksums: so its NAPI runs, and XDP at the other end may
/// transmit into it.
pub fn set_checksums(namespace: &Namespace, link: &str, checksums: Checksums) -> Result<()> {
    let partial = u32::from(checksums == Checksums::Partial);
    namespace.netns().run(|| {
        for (command, data) in
            [(SET_TSO, partial), (SET_GSO, partial), (SET_TX_CHECKSUM, partial), (SET_GRO, 1 - partial)]
        {
            ethtool(link, command, data)
                .with_context(|| format!("ethtool command {command:#x} := {data} on {link} of {}", namespace.name()))?;
        }
        Ok(())
    })
}

fn ethtool(link: &str, command: u32, data: u32) -> Result<()> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").or_else(|_| std::net::UdpSocket::bind("0.0.0.0:0"))?;
    let mut value = EthtoolValue { command, data };
    // SAFETY: an all-zero ifreq is valid: plain numbers and a union of them.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    anyhow::ensure!(link.len() < request.ifr_name.len(), "{link} is too long for a link's name");
    for (to, from) in request.ifr_name.iter_mut().zip(link.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the request holds a NUL-terminated name and a pointer to a value that lives across the call; the command is
    // one of those that read a `struct ethtool_value`.
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    if answer != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(())
}
