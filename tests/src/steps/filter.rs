//! The kernel's filter of system calls: those that change something stop for the tracer, all others run at their speed.

use std::io;

/// Calls that may change something beside the process's memory.
const CALLS: &[libc::c_long] = &[
    libc::SYS_openat,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_ftruncate,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_mkdirat,
    libc::SYS_symlinkat,
    libc::SYS_bind,
    libc::SYS_mount,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_symlink,
];

/// Commands of bpf(2) that only read: lookups, iterations, queries, and the description of types.
const READING: &[u32] = &[1, 4, 7, 10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 23, 24, 30, 31];

const NUMBER_AT: u32 = 0;
/// The low half of the first argument.
const FIRST_AT: u32 = 16;
const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// The filter's instructions at most: two for each comparison, and the frame.
const MOST: usize = 96;

/// Puts the filter on the calling thread and all that it starts. Allocates nothing. Needs `CAP_SYS_ADMIN`.
pub fn install() -> io::Result<()> {
    let mut program = Program { code: [statement(RETURN, libc::SECCOMP_RET_ALLOW); MOST], length: 0 };
    program.put(statement(LOAD, NUMBER_AT));
    for call in CALLS {
        program.stop_if(u32::try_from(*call).map_err(io::Error::other)?);
    }
    // Not bpf(2) either: goes on. Else the command decides.
    program.put(jump(u32::try_from(libc::SYS_bpf).map_err(io::Error::other)?, 1, 0));
    program.put(statement(RETURN, libc::SECCOMP_RET_ALLOW));
    program.put(statement(LOAD, FIRST_AT));
    for command in READING {
        program.put(jump(*command, 0, 1));
        program.put(statement(RETURN, libc::SECCOMP_RET_ALLOW));
    }
    program.put(statement(RETURN, libc::SECCOMP_RET_TRACE));
    let filter = libc::sock_fprog { len: program.length, filter: program.code.as_mut_ptr() };
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the program and its record outlive the call, and its length is what was written of it.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, mode, 0, &raw const filter) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

struct Program {
    code: [libc::sock_filter; MOST],
    length: u16,
}

impl Program {
    fn put(&mut self, instruction: libc::sock_filter) {
        self.code[usize::from(self.length)] = instruction;
        self.length += 1;
    }

    fn stop_if(&mut self, number: u32) {
        self.put(jump(number, 0, 1));
        self.put(statement(RETURN, libc::SECCOMP_RET_TRACE));
    }
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: narrow(code), jt: 0, jf: 0, k }
}

/// Skips so many instructions if the loaded value is this one, or is not.
fn jump(value: u32, is: u8, is_not: u8) -> libc::sock_filter {
    libc::sock_filter { code: narrow(EQUAL), jt: is, jf: is_not, k: value }
}

/// Codes of classic BPF have 16 bits.
fn narrow(code: u32) -> u16 {
    u16::try_from(code).expect("a code of classic BPF")
}
