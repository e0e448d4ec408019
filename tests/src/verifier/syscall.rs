//! `bpf(2)` as the verifier's log is had: program and BTF loaded with a buffer of our own.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use anyhow::{Context, Result};
use aya_obj::Function;
use aya_obj::generated::{bpf_attach_type, bpf_attr, bpf_cmd, bpf_func_info, bpf_insn, bpf_prog_info, bpf_prog_type};

/// Log level of the figures alone (`BPF_LOG_STATS`).
pub const STATISTICS: u32 = 4;
/// Log level of the path that is refused (`BPF_LOG_LEVEL1`).
pub const TRACE: u32 = 1;
/// The longest log that every kernel takes, in bytes (`UINT_MAX >> 8` before 5.16).
const LOG_BYTES: usize = (1 << 24) - 1;

/// One program for the kernel.
pub struct ProgramLoad<'a> {
    pub name: &'a str,
    pub kind: bpf_prog_type,
    pub attach: Option<bpf_attach_type>,
    pub license: &'a CStr,
    pub function: &'a Function,
    pub btf: Option<BorrowedFd<'a>>,
}

impl ProgramLoad<'_> {
    /// Loads it. Also returns the verifier's log.
    pub fn run(&self, log_level: u32) -> (io::Result<OwnedFd>, String) {
        let (functions, lines) = (self.function.func_info.func_info_bytes(), self.function.line_info.line_info_bytes());
        let mut log = vec![0_u8; LOG_BYTES];
        // SAFETY: zeros are a valid `bpf_attr`.
        let mut attr = unsafe { std::mem::zeroed::<bpf_attr>() };
        // SAFETY: this is the part of the union that BPF_PROG_LOAD reads, and all of it is plain numbers.
        let wanted = unsafe { &mut attr.__bindgen_anon_3 };
        for (to, from) in wanted.prog_name.iter_mut().take(15).zip(self.name.bytes()) {
            *to = std::ffi::c_char::from_ne_bytes([from]);
        }
        wanted.prog_type = self.kind as u32;
        wanted.expected_attach_type = self.attach.map_or(0, |attach| attach as u32);
        wanted.insns = self.function.instructions.as_ptr() as u64;
        wanted.insn_cnt = count(self.function.instructions.len());
        wanted.license = self.license.as_ptr() as u64;
        if let Some(btf) = self.btf {
            wanted.prog_btf_fd = btf.as_raw_fd().cast_unsigned();
            wanted.func_info = functions.as_ptr() as u64;
            wanted.func_info_cnt = count(self.function.func_info.len());
            wanted.func_info_rec_size = count(self.function.func_info_rec_size);
            wanted.line_info = lines.as_ptr() as u64;
            wanted.line_info_cnt = count(self.function.line_info.len());
            wanted.line_info_rec_size = count(self.function.line_info_rec_size);
        }
        wanted.log_level = log_level;
        wanted.log_buf = log.as_mut_ptr() as u64;
        wanted.log_size = count(log.len());
        let loaded = load(bpf_cmd::BPF_PROG_LOAD, &mut attr);
        let length = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
        (loaded, String::from_utf8_lossy(&log[..length]).into_owned())
    }
}

/// Describes the programs' types to the kernel.
pub fn load_btf(btf: &[u8]) -> Result<OwnedFd> {
    let mut log = vec![0_u8; LOG_BYTES];
    // SAFETY: zeros are a valid `bpf_attr`.
    let mut attr = unsafe { std::mem::zeroed::<bpf_attr>() };
    // SAFETY: this is the part of the union that BPF_BTF_LOAD reads, and all of it is plain numbers.
    let wanted = unsafe { &mut attr.__bindgen_anon_7 };
    wanted.btf = btf.as_ptr() as u64;
    wanted.btf_size = count(btf.len());
    wanted.btf_log_level = 1;
    wanted.btf_log_buf = log.as_mut_ptr() as u64;
    wanted.btf_log_size = count(log.len());
    load(bpf_cmd::BPF_BTF_LOAD, &mut attr).with_context(|| {
        let text = String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned();
        let last = text.lines().rev().take(5).collect::<Vec<_>>().join("; ");
        format!("the kernel refuses the programs' BTF: {last}")
    })
}

/// Kernels before 5.11 count maps and programs as locked memory. Newer ones need no limit lifted, so that a process without the right
/// to do so loses nothing there.
pub fn lift_memory_limit() {
    let limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: reads one live record.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) };
}

/// A program as it is in the kernel, without the code that is never reached: its instructions, and where each function begins.
pub fn translated(program: BorrowedFd<'_>) -> Result<(Vec<bpf_insn>, Vec<u32>)> {
    // SAFETY: zeros are a valid `bpf_prog_info`: no room for anything, which asks for the lengths.
    let mut info = unsafe { std::mem::zeroed::<bpf_prog_info>() };
    program_info(program, &mut info)?;
    // SAFETY: zeros are valid instructions and records.
    let insn = unsafe { std::mem::zeroed::<bpf_insn>() };
    let mut code = vec![insn; info.xlated_prog_len as usize / size_of::<bpf_insn>()];
    let mut functions = vec![bpf_func_info { insn_off: 0, type_id: 0 }; info.nr_func_info as usize];
    // SAFETY: as above.
    let mut wanted = unsafe { std::mem::zeroed::<bpf_prog_info>() };
    wanted.xlated_prog_len = info.xlated_prog_len;
    wanted.xlated_prog_insns = code.as_mut_ptr() as u64;
    wanted.nr_func_info = info.nr_func_info;
    wanted.func_info_rec_size = count(size_of::<bpf_func_info>());
    wanted.func_info = functions.as_mut_ptr() as u64;
    program_info(program, &mut wanted)?;
    Ok((code, functions.iter().map(|function| function.insn_off).collect()))
}

/// The buffers that `info` points to must be as long as it says.
fn program_info(program: BorrowedFd<'_>, info: &mut bpf_prog_info) -> Result<()> {
    // SAFETY: zeros are a valid `bpf_attr`.
    let mut attr = unsafe { std::mem::zeroed::<bpf_attr>() };
    attr.info.bpf_fd = program.as_raw_fd().cast_unsigned();
    attr.info.info_len = count(size_of::<bpf_prog_info>());
    attr.info.info = std::ptr::from_mut(info) as u64;
    call(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr).map(drop).context("asking the kernel for a program")
}

/// A new descriptor.
fn load(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    let descriptor = call(command, attr)?;
    // SAFETY: commands that load return a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

fn call(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<i32> {
    // SAFETY: the caller filled the part of the union that this command reads, with pointers to memory that outlives the call.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attr, size_of::<bpf_attr>()) };
    i32::try_from(answer).ok().filter(|answer| *answer >= 0).ok_or_else(io::Error::last_os_error)
}

fn count(length: usize) -> u32 {
    u32::try_from(length).expect("objects are smaller than 4 GiB")
}
