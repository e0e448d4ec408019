//! Pinned maps, opened as they are: for writing, too, or for reading alone.

use std::ffi::CString;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use aya::maps::MapData;
use aya_obj::generated::{BPF_F_RDONLY, bpf_cmd};
use lb_common::abi::map_name;

use crate::MapError;

/// Opens the map that is pinned in this folder.
#[allow(clippy::wildcard_enum_match_arm, reason = "errors of the library")]
pub(crate) fn data(dir: &Path, map: &'static str) -> Result<MapData, MapError> {
    let path = dir.join(map);
    MapData::from_pin(&path).map_err(|error| match error {
        aya::maps::MapError::SyscallError(error) if error.io_error.kind() == io::ErrorKind::NotFound => {
            missing(map, path)
        }
        aya::maps::MapError::SyscallError(error) => MapError::Open { map, path, source: error.io_error },
        error => MapError::Open { map, path, source: io::Error::other(error) },
    })
}

fn missing(map: &'static str, path: PathBuf) -> MapError {
    // Every version has pinned this one.
    let is_among_others = path.with_file_name(map_name::CONFIG).exists();
    MapError::Missing { map, path, is_among_others }
}

/// `union bpf_attr` of `BPF_OBJ_GET`.
#[repr(C)]
struct Object {
    path: u64,
    descriptor: u32,
    flags: u32,
}

/// Opens the map that is pinned at this path for reading alone: the kernel refuses every write by such a descriptor.
pub(crate) fn read_only(path: &Path, map: &'static str) -> Result<MapData, MapError> {
    let failed = |source: io::Error| {
        let path = path.to_owned();
        if source.kind() == io::ErrorKind::NotFound { missing(map, path) } else { MapError::Open { map, path, source } }
    };
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| failed(io::Error::other(error)))?;
    let mut object = Object { path: name.as_ptr() as u64, descriptor: 0, flags: BPF_F_RDONLY };
    let command = bpf_cmd::BPF_OBJ_GET as libc::c_long;
    // SAFETY: the record begins like `union bpf_attr` for this command, and its size goes with it. The path outlives the call.
    let opened = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut object, size_of::<Object>()) };
    let descriptor = i32::try_from(opened).ok().filter(|descriptor| *descriptor >= 0);
    let descriptor = descriptor.ok_or_else(|| failed(io::Error::last_os_error()))?;
    // SAFETY: the kernel has just given this descriptor to us, and nobody else has it.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    MapData::from_fd(descriptor).map_err(|error| failed(io::Error::other(error)))
}
