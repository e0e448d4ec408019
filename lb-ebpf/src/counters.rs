//! Counters by outcome, by service and by backend, and the event ring.

use core::arch::asm;

use aya_ebpf::Global;
use aya_ebpf::bindings::{BPF_ANY, BPF_NOEXIST};
use lb_common::abi::{Event, FlowKey, StatKey, Traffic, hook, stat_kind};
use lb_common::decide::{Action, Work};
use lb_common::map;
use lb_common::outcome::Outcome;

use crate::cpu_bucket;
use crate::maps::{self, EVENTS, OUTCOMES, STATS};

/// Whether event records are written: set at load.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
pub static EVENTS_ON: Global<u8> = Global::new(1);

/// Whether packets and bytes of each flow are counted: set at load.
#[unsafe(no_mangle)]
#[unsafe(link_section = ".rodata.set")]
pub static FLOW_COUNTERS: Global<u8> = Global::new(0);

/// Who counts: programs that nothing on their CPU interrupts, or socket hooks, which another task's may.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    /// tc and XDP: bottom halves are off, a plain addition to this CPU's own counter is whole.
    Packet,
    /// cgroup hooks: a task may be preempted by another one's program during an addition.
    Socket,
}

/// Counts one outcome.
#[inline(always)]
pub fn outcome(outcome: Outcome, by: Counter) {
    if let Some(counter) = OUTCOMES.get_ptr_mut(outcome as u32) {
        add(counter, by);
    }
}

/// Counts what happens once or seldom in a flow's life for its service and its backend.
#[inline(always)]
pub fn about<const N: usize>(service: u32, backend: u32, outcome: Outcome, by: Counter) {
    if service != 0 {
        stat(service, stat_kind::SERVICE, outcome, by);
    }
    if backend != 0 {
        stat(backend, if N == 4 { stat_kind::BACKEND4 } else { stat_kind::BACKEND6 }, outcome, by);
    }
}

#[inline(always)]
fn stat(id: u32, kind: u8, outcome: Outcome, by: Counter) {
    let key = StatKey { id, kind, outcome: outcome as u8, pad: 0 };
    if let Some(counter) = STATS.get_ptr_mut(key) {
        return add(counter, by);
    }
    // Another CPU may have been first: then its insert left a zero here to add to. A full map loses the detail, not the total.
    if STATS.insert(key, 1, u64::from(BPF_NOEXIST)).is_err()
        && let Some(counter) = STATS.get_ptr_mut(key)
    {
        add(counter, by);
    }
}

#[inline(always)]
fn add(counter: *mut u64, by: Counter) {
    match by {
        // SAFETY: an aligned, live map value of this CPU.
        Counter::Packet => unsafe { *counter = (*counter).wrapping_add(1) },
        // SAFETY: as above; libcore has no atomics for this target, the instruction set has (`BPF_ATOMIC | BPF_ADD`).
        Counter::Socket => unsafe {
            asm!("lock *(u64 *)({counter} + 0) += {one}", counter = in(reg) counter, one = in(reg) 1_u64);
        },
    }
}

/// Counts a verdict: its outcome, and what it says of service and backend. The packets of a known flow are counted by flow and by backend with
/// `--flow-counters` only. Between other work of the kernel, one more look-up for each takes as long as half the rest. `bytes`: of the network header
/// and what follows it.
#[inline(always)]
pub fn packet<const N: usize>(work: &Work<N>, hook: u8, ifindex: u32, bytes: u32) {
    let verdict = &work.verdict;
    if FLOW_COUNTERS.load() != 0 && matches!(verdict.action, Action::ToBackend | Action::ToClient) {
        traffic(work, bytes);
    }
    outcome(verdict.outcome, Counter::Packet);
    if !matches!(verdict.outcome, Outcome::Passed | Outcome::Forwarded | Outcome::Replied) {
        self::verdict(work, hook, ifindex);
    }
}

/// Counts what a flow begins as whose first packet another program sends, as one of a known flow.
#[inline(always)]
pub fn beginning<const N: usize>(work: &Work<N>, hook: u8, ifindex: u32) {
    if !matches!(work.verdict.outcome, Outcome::Forwarded | Outcome::Replied) {
        outcome(work.verdict.outcome, Counter::Packet);
        self::verdict(work, hook, ifindex);
    }
}

/// Counts a packet of a flow in its own direction, and for its backend, which belongs to one service. A function of its own: most agents are loaded without it.
#[inline(never)]
fn traffic<const N: usize>(work: &Work<N>, bytes: u32) {
    let (key, since_s) = (&work.packet.key, work.since_s());
    if matches!(work.verdict.outcome, Outcome::Forwarded | Outcome::Replied) {
        about::<N>(0, work.verdict.backend, work.verdict.outcome, Counter::Packet);
    }
    if let Some(entry) = maps::find::<map::Traffic<N>>(key) {
        // SAFETY: a live map value, aligned to eight bytes; other CPUs add at the same time.
        unsafe {
            if (*entry).since_s == since_s {
                let (packets, total) = (&raw mut (*entry).packets, &raw mut (*entry).bytes);
                asm!("lock *(u64 *)({packets} + 0) += {one}", packets = in(reg) packets, one = in(reg) 1_u64);
                asm!("lock *(u64 *)({total} + 0) += {bytes}", total = in(reg) total, bytes = in(reg) u64::from(bytes));
                return;
            }
        }
    }
    let traffic = Traffic { since_s, pad: 0, packets: 1, bytes: u64::from(bytes) };
    // A full LRU map makes room by itself.
    let _ = maps::insert::<map::Traffic<N>>(key, &traffic, BPF_ANY);
}

/// Whether an answer of our own may be sent for this outcome. One that may not is counted.
#[inline(always)]
pub fn may_answer(what: Outcome) -> bool {
    let may = cpu_bucket::take_answer(what);
    if !may {
        outcome(Outcome::AnswerLimited, Counter::Packet);
    }
    may
}

/// Counts a verdict in full. A function of its own: off the known flow's path, and out of its stack.
#[inline(never)]
fn verdict<const N: usize>(work: &Work<N>, hook: u8, ifindex: u32) {
    let (key, verdict) = (&work.packet.key, &work.verdict);
    about::<N>(verdict.service, verdict.backend, verdict.outcome, Counter::Packet);
    if EVENTS_ON.load() != 0 && verdict.outcome.is_event() {
        event(key, verdict.service, verdict.backend, verdict.outcome, hook, ifindex, Counter::Packet);
    }
}

/// Counts and tells what was learnt of a backend beside a packet's own verdict.
#[inline(never)]
pub fn note<const N: usize>(backend: u32, what: Outcome, ifindex: u32, by: Counter) {
    outcome(what, by);
    about::<N>(0, backend, what, by);
    if EVENTS_ON.load() != 0 {
        let nobody = FlowKey { src: [0; N], dst: [0; N], src_port: 0, dst_port: 0, protocol: 0, pad: [0; 3] };
        event(&nobody, 0, backend, what, hook::NOT_TOLD, ifindex, by);
    }
}

/// Writes an event record, if this CPU may write one of this outcome and the ring has room.
#[inline(always)]
pub fn event<const N: usize>(
    key: &FlowKey<N>,
    service: u32,
    backend: u32,
    what: Outcome,
    hook: u8,
    ifindex: u32,
    by: Counter,
) {
    if !cpu_bucket::take_event(what) {
        return outcome(Outcome::EventLost, by);
    }
    let Some(mut record) = EVENTS.reserve(0) else { return outcome(Outcome::EventLost, by) };
    let slot: *mut Event = record.as_mut_ptr();
    // SAFETY: the ring reserved a whole record; every field is written, so nothing of an older one leaks.
    unsafe {
        (*slot).time_ns = aya_ebpf::helpers::generated::bpf_ktime_get_ns();
        (*slot).service = service;
        (*slot).backend = backend;
        (*slot).src = [0; 16];
        (*slot).dst = [0; 16];
        let mut i = 0;
        while i < N {
            (*slot).src[i] = key.src[i];
            (*slot).dst[i] = key.dst[i];
            i += 1;
        }
        (*slot).src_port = key.src_port;
        (*slot).dst_port = key.dst_port;
        (*slot).protocol = key.protocol;
        (*slot).outcome = what as u8;
        (*slot).hook = hook;
        (*slot).family = if N == 4 { 4 } else { 6 };
        (*slot).ifindex = ifindex;
        (*slot).pad = 0;
    }
    record.submit(0);
}
