//! An XDP program that passes everything, for the far end of a veth whose near end sends from XDP.
//!
//! A veth puts a frame of `XDP_TX` into its peer's ring, but wakes the peer only if that has a program, too
//! (`veth_xdp_flush` in drivers/net/veth.c). A real card sends such a frame at once.

use std::ffi::CString;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use anyhow::{Context as _, Result, ensure};

use crate::topology::Namespace;

/// Of include/uapi/linux/bpf.h.
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// `XDP_FLAGS_DRV_MODE`
const NATIVE: u32 = 1 << 2;
/// `r0 = XDP_PASS; exit`
const PROGRAM: [u64; 2] = [0x0000_0002_0000_00b7, 0x95];

#[repr(C)]
struct ProgLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    rest: [u64; 13],
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    ifindex: u32,
    kind: u32,
    flags: u32,
    rest: [u64; 6],
}

/// The program at one link; dropped, it is taken off.
#[derive(Debug)]
pub struct XdpPass {
    _link: OwnedFd,
}

impl XdpPass {
    pub fn attach(namespace: &Namespace, link: &str) -> Result<Self> {
        let program = bpf(
            PROG_LOAD,
            &ProgLoad {
                kind: TYPE_XDP,
                count: 2,
                instructions: PROGRAM.as_ptr() as u64,
                license: c"GPL".as_ptr() as u64,
                rest: [0; 13],
            },
        )
        .context("loading a program that passes everything")?;
        let name = CString::new(link)?;
        let attached = namespace.netns().run(|| -> Result<OwnedFd> {
            // SAFETY: a string that ends with a zero and lives across the call.
            let ifindex = unsafe { libc::if_nametoindex(name.as_ptr()) };
            ensure!(ifindex != 0, "no link {link}");
            let number = u32::try_from(program.as_raw_fd())?;
            bpf(LINK_CREATE, &LinkCreate { program: number, ifindex, kind: ATTACH_XDP, flags: NATIVE, rest: [0; 6] })
        });
        Ok(Self { _link: attached.with_context(|| format!("attaching it to {link} of {}", namespace.name()))? })
    }
}

fn bpf<T>(command: libc::c_long, attributes: &T) -> Result<OwnedFd> {
    let at: *const T = attributes;
    // SAFETY: the attributes are those of the command, as long as is said, and what they point to lives across the call.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, at, size_of::<T>()) };
    if answer < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: both commands give a new file descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(RawFd::try_from(answer)?) })
}
