//! bpf(2) for links and pins: attach by interface index, replace the program, pin, and ask what a link holds.
//!
//! aya attaches TCX by interface name, which a rename makes another interface's, and shows neither a link's interface nor its
//! cgroup; both are needed to distinguish a live pin from the rest of a vanished interface. Minimum kernel: 5.9 (XDP links).

use std::{
    ffi::CString,
    fs, io,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use aya_obj::generated::{bpf_attach_type, bpf_cmd, bpf_link_type};

/// A bpf link held by its descriptor; dropping it detaches, unless it is pinned.
#[derive(Debug)]
pub(super) struct BpfLink(OwnedFd);

/// What the kernel says about a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkFacts {
    pub program_id: u32,
    pub target: LinkTarget,
}

/// What a link is attached to. An interface or cgroup that vanished leaves 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkTarget {
    Tcx { ifindex: u32 },
    Xdp { ifindex: u32 },
    Cgroup { id: u64 },
    Other,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    /// The kernel reads more fields for some types; all of them are optional and zero.
    rest: [u64; 4],
}

#[repr(C)]
struct LinkUpdate {
    link: u32,
    program: u32,
    flags: u32,
    old_program: u32,
}

#[repr(C)]
struct Detach {
    link: u32,
}

#[repr(C)]
struct Pin {
    path: u64,
    descriptor: u32,
    flags: u32,
}

#[repr(C)]
struct GetInfo {
    descriptor: u32,
    length: u32,
    info: u64,
}

/// The head of `struct bpf_link_info`; the union begins with the interface index (TCX, XDP) or the cgroup id.
#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    pad: u32,
    target: u64,
    rest: [u64; 8],
}

const LINK_INFO_BYTES: u32 = 88;
const _: () = assert!(size_of::<LinkInfo>() == LINK_INFO_BYTES as usize);

#[repr(C)]
struct ProgramQuery {
    target: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    rest: [u64; 6],
}

impl BpfLink {
    /// Attaches a program. `target` is an interface index, or the descriptor of a cgroup.
    pub fn create(program: BorrowedFd<'_>, target: u32, attach_type: bpf_attach_type, flags: u32) -> io::Result<Self> {
        let program = descriptor(program);
        let mut attributes = LinkCreate { program, target, attach_type: attach_type as u32, flags, rest: [0; 4] };
        create(bpf_cmd::BPF_LINK_CREATE, &mut attributes).map(Self)
    }

    /// Opens a pinned link; `None` if nothing is pinned there.
    pub fn open(path: &Path) -> io::Result<Option<Self>> {
        Ok(open_pin(path)?.map(Self))
    }

    /// Keeps the link attached beyond this process.
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        pin(self.0.as_fd(), path)
    }

    /// Replaces the program; no packet passes without one.
    pub fn update(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        let (link, program) = (descriptor(self.0.as_fd()), descriptor(program));
        let mut attributes = LinkUpdate { link, program, flags: 0, old_program: 0 };
        bpf(bpf_cmd::BPF_LINK_UPDATE, &mut attributes).map(drop)
    }

    /// Takes the program off at once. Removing the pin alone does so too, but some time later.
    pub fn detach(&self) -> io::Result<()> {
        let mut attributes = Detach { link: descriptor(self.0.as_fd()) };
        match bpf(bpf_cmd::BPF_LINK_DETACH, &mut attributes) {
            // The interface or cgroup is gone: so is the attachment.
            Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Asks the kernel what the link holds. Fails for a pin that is no link.
    pub fn facts(&self) -> io::Result<LinkFacts> {
        let mut info = LinkInfo::default();
        let mut attributes =
            GetInfo { descriptor: descriptor(self.0.as_fd()), length: LINK_INFO_BYTES, info: &raw mut info as u64 };
        bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attributes)?;
        let [a, b, c, d, ..] = info.target.to_ne_bytes();
        let ifindex = u32::from_ne_bytes([a, b, c, d]);
        let target = match info.kind {
            kind if kind == bpf_link_type::BPF_LINK_TYPE_TCX as u32 => LinkTarget::Tcx { ifindex },
            kind if kind == bpf_link_type::BPF_LINK_TYPE_XDP as u32 => LinkTarget::Xdp { ifindex },
            kind if kind == bpf_link_type::BPF_LINK_TYPE_CGROUP as u32 => LinkTarget::Cgroup { id: info.target },
            _ => LinkTarget::Other,
        };
        Ok(LinkFacts { program_id: info.program, target })
    }
}

/// Opens what is pinned there, a program, map or link; `None` if nothing is.
pub(super) fn open_pin(path: &Path) -> io::Result<Option<OwnedFd>> {
    let path = c_path(path)?;
    let mut attributes = Pin { path: path.as_ptr() as u64, descriptor: 0, flags: 0 };
    match bpf(bpf_cmd::BPF_OBJ_GET, &mut attributes) {
        Ok(returned) => Ok(Some(owned(returned))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Keeps a program or link beyond this process.
pub(super) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let mut attributes = Pin { path: path.as_ptr() as u64, descriptor: descriptor(object), flags: 0 };
    bpf(bpf_cmd::BPF_OBJ_PIN, &mut attributes).map(drop)
}

#[repr(C)]
struct Element {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Id of the program in a slot of a program array; `None`: the slot is empty.
pub(super) fn array_get(array: BorrowedFd<'_>, slot: u32) -> io::Result<Option<u32>> {
    let mut id = 0_u32;
    let (key, value) = ((&raw const slot) as u64, (&raw mut id) as u64);
    let mut attributes = Element { map: descriptor(array), pad: 0, key, value, flags: 0 };
    match bpf(bpf_cmd::BPF_MAP_LOOKUP_ELEM, &mut attributes) {
        Ok(_) => Ok(Some(id)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Puts a program into a slot of a program array.
pub(super) fn array_put(array: BorrowedFd<'_>, slot: u32, program: BorrowedFd<'_>) -> io::Result<()> {
    let program = descriptor(program);
    let (key, value) = ((&raw const slot) as u64, (&raw const program) as u64);
    bpf(bpf_cmd::BPF_MAP_UPDATE_ELEM, &mut Element { map: descriptor(array), pad: 0, key, value, flags: 0 }).map(drop)
}

fn owned(returned: i32) -> OwnedFd {
    // SAFETY: the kernel just returned this descriptor to us, and nobody else owns it.
    unsafe { OwnedFd::from_raw_fd(returned) }
}

/// Detaches a pinned link and removes the pin; nothing, if it is not there. What is no link is only removed.
pub(super) fn unpin(path: &Path) -> io::Result<()> {
    if let Ok(None) = BpfLink::open(path).inspect(|link| {
        if let Some(Err(error)) = link.as_ref().map(BpfLink::detach) {
            tracing::debug!(path = %path.display(), %error, "detaches when its pin is gone");
        }
    }) {
        return Ok(());
    }
    fs::remove_file(path)
}

/// Whether interfaces take TCX links: the loopback interface, index 1 in every namespace, is asked for its programs.
pub(super) fn has_tcx() -> bool {
    let attach_type = bpf_attach_type::BPF_TCX_INGRESS as u32;
    let mut attributes = ProgramQuery { target: 1, attach_type, query_flags: 0, attach_flags: 0, rest: [0; 6] };
    bpf(bpf_cmd::BPF_PROG_QUERY, &mut attributes).is_ok()
}

/// Ids of the programs that hang on an interface by TCX, at most this many. None: the kernel has no TCX, or the interface is gone.
pub(super) fn tcx_programs<const MOST: usize>(ifindex: u32, attach_type: bpf_attach_type) -> io::Result<Vec<u32>> {
    let mut ids = [0_u32; MOST];
    let mut rest = [0; 6];
    // The addresses of the ids, and how many there is room for.
    (rest[0], rest[1]) = (ids.as_mut_ptr() as u64, MOST as u64);
    let mut attributes =
        ProgramQuery { target: ifindex, attach_type: attach_type as u32, query_flags: 0, attach_flags: 0, rest };
    match bpf(bpf_cmd::BPF_PROG_QUERY, &mut attributes) {
        Ok(_) => {}
        // More than there is room for: those that fit are written.
        Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {}
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOENT | libc::EINVAL)) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(error),
    }
    Ok(ids.into_iter().take_while(|id| *id != 0).collect())
}

/// Runs a command that makes a program or map. `attributes` begins like `union bpf_attr` for it.
pub(super) fn create<T>(command: bpf_cmd, attributes: &mut T) -> io::Result<OwnedFd> {
    bpf(command, attributes).map(owned)
}

fn bpf<T>(command: bpf_cmd, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: the attributes are a live repr(C) record that begins like `union bpf_attr` for this command, their size goes with
    // them, and every pointer in them outlives the call.
    let returned =
        unsafe { libc::syscall(libc::SYS_bpf, command as libc::c_long, &raw mut *attributes, size_of::<T>()) };
    if returned < 0 { Err(io::Error::last_os_error()) } else { i32::try_from(returned).map_err(io::Error::other) }
}

/// A descriptor as bpf(2) takes it; an open one is never negative.
pub(super) fn descriptor(open: BorrowedFd<'_>) -> u32 {
    open.as_raw_fd().unsigned_abs()
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}
