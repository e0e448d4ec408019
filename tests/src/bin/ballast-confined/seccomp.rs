//! A seccomp filter that refuses what the default profiles of container runtimes refuse to a container with these rights.
//!
//! Those profiles list what they allow. This filter lists the calls that are missing there: in containerd v2.4.2,
//! `contrib/seccomp/seccomp_default.go`, for a kernel from 4.8 on and the agent's capabilities. Two things are stricter here: `personality`
//! is refused whatever it asks for, and calls of 32-bit programs end the process.

use std::io::Error;

use libc::{c_long, sock_filter, sock_fprog};

/// What the profiles allow only with capabilities that the agent does not have, or never.
const REFUSED: [c_long; 51] = [
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_chroot,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_get_mempolicy,
    libc::SYS_lookup_dcookie,
    libc::SYS_mbind,
    libc::SYS_migrate_pages,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_move_pages,
    libc::SYS_nfsservctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_personality,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_madvise,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_set_mempolicy,
    libc::SYS_set_mempolicy_home_node,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
];
/// Refused calls that only this architecture has.
#[cfg(target_arch = "x86_64")]
const REFUSED_OF_ARCHITECTURE: [c_long; 5] =
    [libc::SYS_ioperm, libc::SYS_iopl, libc::SYS_sysfs, libc::SYS_uselib, libc::SYS_ustat];
#[cfg(target_arch = "aarch64")]
const REFUSED_OF_ARCHITECTURE: [c_long; 0] = [];
/// The first call (`open_tree_attr`, Linux 6.15) that is newer than any of the profile: runc says that the kernel lacks it.
const FIRST_UNKNOWN: c_long = 467;
/// Namespaces, which `clone` may not make.
const NAMESPACES: c_long = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as c_long;

/// Offsets in `struct seccomp_data`: number of the call, architecture, lower half of the first argument.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;

#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;

/// Puts the filter on this process and what it executes. It needs `no_new_privs`.
pub fn install() -> Result<(), Error> {
    let mut filter = filter();
    let length = u16::try_from(filter.len()).expect("some hundred instructions");
    let program = sock_fprog { len: length, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which lives until the call returns.
    let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if done == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

fn filter() -> Vec<sock_filter> {
    let refuse = |errno: i32| returns(libc::SECCOMP_RET_ERRNO | errno.unsigned_abs());
    let mut filter = vec![
        load(ARCHITECTURE),
        jump(libc::BPF_JEQ, NATIVE.into(), 1, 0),
        returns(libc::SECCOMP_RET_KILL_PROCESS),
        load(NUMBER),
    ];
    for number in REFUSED.into_iter().chain(REFUSED_OF_ARCHITECTURE) {
        filter.extend([jump(libc::BPF_JEQ, number, 0, 1), refuse(libc::EPERM)]);
    }
    filter.extend([jump(libc::BPF_JGE, FIRST_UNKNOWN, 0, 1), refuse(libc::ENOSYS)]);
    // The profile lists all domains but these two.
    filter.extend([
        jump(libc::BPF_JEQ, libc::SYS_socket, 0, 5),
        load(FIRST_ARGUMENT),
        jump(libc::BPF_JEQ, libc::AF_ALG.into(), 1, 0),
        jump(libc::BPF_JEQ, libc::AF_VSOCK.into(), 0, 1),
        refuse(libc::EPERM),
        returns(libc::SECCOMP_RET_ALLOW),
    ]);
    // Its flags lie behind a pointer. A C library that finds it missing uses `clone`.
    filter.extend([jump(libc::BPF_JEQ, libc::SYS_clone3, 0, 1), refuse(libc::ENOSYS)]);
    filter.extend([
        jump(libc::BPF_JEQ, libc::SYS_clone, 0, 3),
        load(FIRST_ARGUMENT),
        jump(libc::BPF_JSET, NAMESPACES, 0, 1),
        refuse(libc::EPERM),
        returns(libc::SECCOMP_RET_ALLOW),
    ]);
    filter
}

fn load(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
}

fn jump(test: u32, value: c_long, if_true: u8, if_false: u8) -> sock_filter {
    let value = u32::try_from(value).expect("numbers of calls and flags of clone have 32 bits");
    instruction(libc::BPF_JMP | test | libc::BPF_K, value, if_true, if_false)
}

fn returns(action: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, action, 0, 0)
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: u16::try_from(code).expect("the codes have 16 bits"), jt, jf, k }
}
