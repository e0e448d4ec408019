//! What the kernel takes, found out with tiny programs and maps that go at once. Release numbers say less: distributions add newer
//! features to older kernels.

use aya_obj::generated::{bpf_attach_type, bpf_cmd, bpf_map_type, bpf_prog_type};

use super::bpf_link::create;

/// An instruction, as a little-endian machine keeps it: code, registers, offset and constant.
const fn instruction(code: u8, to: u8, from: u8, offset: i16, constant: i32) -> u64 {
    code as u64
        | (to as u64 | (from as u64) << 4) << 8
        | (offset.cast_unsigned() as u64) << 16
        | (constant.cast_unsigned() as u64) << 32
}

const fn set(register: u8, constant: i32) -> u64 {
    instruction(0xb7, register, 0, 0, constant)
}

const fn copy(to: u8, from: u8) -> u64 {
    instruction(0xbf, to, from, 0, 0)
}

const fn add(register: u8, constant: i32) -> u64 {
    instruction(0x07, register, 0, 0, constant)
}

const fn call(helper: i32) -> u64 {
    instruction(0x85, 0, 0, 0, helper)
}

/// The register of the frame pointer.
const FRAME: u8 = 10;
/// Writes zero to the eight bytes below the frame pointer.
const CLEAR_STACK: u64 = instruction(0x7a, FRAME, 0, -8, 0);
const EXIT: u64 = instruction(0x95, 0, 0, 0, 0);

/// Numbers of helpers (`enum bpf_func_id`).
const KTIME_GET_COARSE_NS: i32 = 160;
const CHECK_MTU: i32 = 163;
const SET_RETVAL: i32 = 187;

/// `bpf_set_retval` in a program at connect().
pub(super) fn set_retval() -> bool {
    takes(
        bpf_prog_type::BPF_PROG_TYPE_CGROUP_SOCK_ADDR,
        bpf_attach_type::BPF_CGROUP_INET4_CONNECT as u32,
        &[set(1, -libc::EPERM), call(SET_RETVAL), set(0, 1), EXIT],
    )
}

/// `bpf_check_mtu` in a tc program.
pub(super) fn check_mtu() -> bool {
    let length = [CLEAR_STACK, copy(3, FRAME), add(3, -8)];
    takes_tc(&[&length[..], &[set(2, 0), set(4, 0), set(5, 0), call(CHECK_MTU), set(0, 0), EXIT]].concat())
}

/// `bpf_ktime_get_coarse_ns`.
pub(super) fn coarse_clock() -> bool {
    takes_tc(&[call(KTIME_GET_COARSE_NS), set(0, 0), EXIT])
}

/// Whether maps count as locked memory of this process, whose limit is too small for them. The map asked for is counted with 1 GiB, and
/// takes nothing.
pub(super) fn memory_is_limited() -> bool {
    let (kind, flags) = (bpf_map_type::BPF_MAP_TYPE_LPM_TRIE as u32, 1);
    let mut map = MapCreate { kind, key: 8, value: 64, entries: (1 << 30) / 128, flags };
    create(bpf_cmd::BPF_MAP_CREATE, &mut map).is_err_and(|error| error.raw_os_error() == Some(libc::EPERM))
}

fn takes_tc(code: &[u64]) -> bool {
    takes(bpf_prog_type::BPF_PROG_TYPE_SCHED_CLS, 0, code)
}

fn takes(kind: bpf_prog_type, attach_type: u32, code: &[u64]) -> bool {
    let mut load = ProgramLoad {
        kind: kind as u32,
        count: u32::try_from(code.len()).unwrap_or(0),
        code: code.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        attach_type,
        ..ProgramLoad::default()
    };
    create(bpf_cmd::BPF_PROG_LOAD, &mut load).is_ok()
}

/// `union bpf_attr` of `BPF_PROG_LOAD`.
#[repr(C)]
#[derive(Default)]
struct ProgramLoad {
    kind: u32,
    count: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

/// `union bpf_attr` of `BPF_MAP_CREATE`.
#[repr(C)]
struct MapCreate {
    kind: u32,
    key: u32,
    value: u32,
    entries: u32,
    flags: u32,
}
