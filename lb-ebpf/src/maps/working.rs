//! Maps that belong to one set of programs: scratch records, rates, and the programs that are tail called.

use core::ptr::null_mut;

use aya_ebpf::bindings::bpf_sock_addr;
use aya_ebpf::btf_maps::{Array, LruHashMap, PerCpuArray, ProgramArray, SkStorage};
use aya_ebpf::helpers::generated::bpf_sk_storage_get;
use aya_ebpf::macros::btf_map;
use lb_common::abi::{Bucket, BucketKey};
use lb_common::limits;
use lb_common::stages::{TcStage, XdpStage};

use crate::scratch::{Scratch, SocketScratch};

/// The most bytes of a packet that a refusal quotes: whole words, and all ones in binary but for them, so that a mask bounds a length.
pub const MOST_QUOTED: usize = 508;

/// Half-open flows that this CPU has made in a second: which one, how many.
#[btf_map(name = "syn_counts")]
pub static SYN_COUNTS: PerCpuArray<[u32; 2], 1> = PerCpuArray::new();
#[btf_map(name = "syn_rate")]
pub static SYN_RATE: Array<u64, 1> = Array::new();
/// Until when they are too many, seconds of `CLOCK_MONOTONIC`. Not pinned: new programs count for themselves.
#[btf_map(name = "flood_until")]
pub static FLOOD_UNTIL: Array<u32, 1> = Array::new();

/// Not pinned: new programs begin with full buckets.
#[btf_map(name = "buckets")]
pub static BUCKETS: LruHashMap<BucketKey, Bucket, { limits::BUCKETS as usize }> = LruHashMap::new();

/// When each CPU may write the next event record of an outcome, and, from the index [`limits::OUTCOMES`] on, originate the next answer,
/// nanoseconds of `CLOCK_MONOTONIC`. Not pinned: new programs begin with full buckets.
#[btf_map(name = "cpu_buckets")]
pub static CPU_BUCKETS: PerCpuArray<u64, { 2 * limits::OUTCOMES as usize }> = PerCpuArray::new();

/// Room for a quoted packet.
#[btf_map(name = "quote")]
pub static QUOTE: PerCpuArray<[u8; 512], 1> = PerCpuArray::new();

/// What the programs that handle one packet hand on to each other: tc and XDP programs run to their end before another starts on the same
/// CPU.
#[btf_map(name = "scratch4")]
pub static SCRATCH4: PerCpuArray<Scratch<4>, 1> = PerCpuArray::new();
#[btf_map(name = "scratch6")]
pub static SCRATCH6: PerCpuArray<Scratch<16>, 1> = PerCpuArray::new();

/// The same for a call of a socket: another task's call may interrupt it on its CPU, but none of the same socket, which the kernel has locked.
#[btf_map(name = "socket_scratch")]
pub static SOCKET_SCRATCH: SkStorage<SocketScratch<16>> = SkStorage::new();

/// The programs that tc programs tail call, by [`TcStage::slot`].
#[btf_map(name = "tc_programs")]
pub static TC_PROGRAMS: ProgramArray<{ TcStage::SLOTS }> = ProgramArray::new();
/// The programs that the XDP program tail calls, by [`XdpStage::slot`].
#[btf_map(name = "xdp_programs")]
pub static XDP_PROGRAMS: ProgramArray<{ XdpStage::SLOTS }> = ProgramArray::new();

/// The scratch record of the socket of this call. With the flag `BPF_SK_STORAGE_GET_F_CREATE` it is made if it is missing.
#[inline(always)]
pub fn socket_scratch<const N: usize>(
    context: *mut bpf_sock_addr,
    flags: u32,
) -> Option<&'static mut SocketScratch<N>> {
    // SAFETY: a word of the context, read as a word: the socket, never null in this hook. The record has room for either family, and all
    // zeroes is a valid value of it. The kernel holds the socket's lock: there is one user at a time.
    unsafe {
        let socket = (&raw const (*context).__bindgen_anon_1.sk).read_volatile();
        let map = (&raw const SOCKET_SCRATCH).cast_mut().cast();
        bpf_sk_storage_get(map, socket.cast(), null_mut(), u64::from(flags)).cast::<SocketScratch<N>>().as_mut()
    }
}
