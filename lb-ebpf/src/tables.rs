//! The decision's tables over the kernel's maps.

use core::arch::asm;

use aya_ebpf::bindings::{__sk_buff, BPF_ANY, BPF_NOEXIST};
use aya_ebpf::helpers::generated::{bpf_get_prandom_u32, bpf_ktime_get_ns};
use lb_common::abi::{BucketKey, FlowKey, Slot};
use lb_common::decide::{Maps, NotInserted, Pace, Packet, Pick, Tables, Work};
use lb_common::limits;
use lb_common::map::{self, Map, Record};
use lb_common::outcome::Outcome;
use lb_common::state::SourcePorts;
use lb_common::vip_filter;
use lb_common::words;

use crate::connect_times;
use crate::counters::{self, Counter};
use crate::fast_path;
use crate::features;
use crate::fib;
use crate::flood;
use crate::global_functions::{
    changes, direct_connection4, direct_connection6, is_out4, is_out6, leaves_half4, leaves_half6, note_tried4,
    note_tried6, try_slot,
};
use crate::kernel::KernelOf;
use crate::maps;
use crate::rate_limit;
use crate::settings;
use crate::socket_lookup;
use crate::tc::verdict::TRANSLATED;

const EEXIST: i32 = 17;

impl<const IN_SOCKET: bool> Maps for KernelOf<IN_SOCKET> {
    type Element<K: Record, V: Record> = *mut V;

    #[inline(always)]
    fn find<M: Map>(&mut self, key: &M::Key) -> Option<*mut M::Value> {
        maps::find::<M>(key)
    }

    #[inline(always)]
    fn with<M: Map, R>(&mut self, element: *mut M::Value, with: impl FnOnce(&mut M::Value) -> R) -> Option<R> {
        // SAFETY: a map value for the whole run of the program, of plain numbers. At worst it is recycled, which a tag shows; each word is whole.
        Some(with(unsafe { &mut *element }))
    }

    #[inline(always)]
    fn insert<M: Map>(&mut self, key: &M::Key, value: &M::Value, replace: bool) -> Result<(), NotInserted> {
        match maps::insert::<M>(key, value, if replace { BPF_ANY } else { BPF_NOEXIST }) {
            Ok(()) => Ok(()),
            Err(error) if error == -EEXIST => Err(NotInserted::Exists),
            Err(_) => Err(NotInserted::Full),
        }
    }

    #[inline(always)]
    fn remove<M: Map>(&mut self, key: &M::Key) {
        maps::remove::<M>(key);
    }

    #[inline(always)]
    fn add(counter: &mut u32, change: i32) {
        let (counter, change) = (core::ptr::from_mut(counter), i64::from(change));
        // SAFETY: a word of a live map value; the addition is atomic.
        unsafe { asm!("lock *(u32 *)({counter} + 0) += {change}", counter = in(reg) counter, change = in(reg) change) };
    }
}

impl<const N: usize, const IN_SOCKET: bool> Tables<N> for KernelOf<IN_SOCKET> {
    #[inline(always)]
    fn now_ns(&mut self) -> u64 {
        // Without a branch: the verifier would walk what follows once for each of its ways.
        self.now_ns = features::coarse_ns();
        self.now_ns
    }

    #[inline(always)]
    fn random(&mut self) -> u32 {
        // SAFETY: takes no argument.
        unsafe { bpf_get_prandom_u32() }
    }

    #[inline(always)]
    fn slot(&mut self, index: u32) -> Option<Slot> {
        let words: *const [u64; 2] = maps::find::<map::Slots>(&index)?.cast();
        // SAFETY: a live map value, which is aligned to eight bytes and two words long. Each word is read once and whole: the
        // record tells one of an old range from one of a new range, but not half a word.
        let words = unsafe { [(&raw const (*words)[0]).read_volatile(), (&raw const (*words)[1]).read_volatile()] };
        // SAFETY: plain numbers of the same size, every value of which is valid.
        Some(unsafe { core::mem::transmute::<[u64; 2], Slot>(words) })
    }

    #[inline(always)]
    fn is_ruled_out(&mut self, address: &[u8; N]) -> bool {
        let Some(words) = maps::find::<map::VipFilter>(&0) else { return false };
        let (at, mask) = vip_filter::place(vip_filter::bit_by_words::<N>(|i| words::word(address, 4 * i)));
        let words: *const u64 = words.cast();
        // SAFETY: the one element of an array; no place lies beyond its words. The agent may write it at this moment.
        unsafe { words.add(at).read_volatile() & mask != 0 }
    }

    #[inline(always)]
    fn take(&mut self, key: &BucketKey, pace: Pace) -> bool {
        // Flows may be due more often than the clock ticks.
        // SAFETY: takes no argument.
        let now_ns = unsafe { bpf_ktime_get_ns() };
        rate_limit::take(key, pace, now_ns)
    }

    #[inline(always)]
    fn begun(&mut self, now_s: u32) {
        flood::begun(now_s);
    }

    #[inline(always)]
    fn opened(&mut self, now_s: u32) {
        flood::opened(now_s);
    }

    #[inline(always)]
    fn is_flood(&mut self) -> bool {
        flood::is_high()
    }

    #[inline(always)]
    fn is_after_flood(&mut self) -> bool {
        flood::was_high()
    }

    #[inline(always)]
    fn flow_room(&mut self) -> u32 {
        settings::flow_room::<N>()
    }

    #[inline(always)]
    fn client_key(&mut self) -> u32 {
        settings::client_key()
    }

    #[inline(always)]
    fn try_slot(&mut self, _: &FlowKey<N>, pick: &mut Pick<N>, how: u32, now_ds: u32) -> bool {
        try_slot(self.context, IN_SOCKET, pick, how, now_ds)
    }

    #[inline(always)]
    fn leaves_half(&mut self, base: u32, count: u32, id: u32) -> bool {
        // No hook sees what a process's peer answers: a connect ejects nobody.
        !IN_SOCKET && (if N == 4 { leaves_half4(base, count, id) } else { leaves_half6(base, count, id) }) != 0
    }

    #[inline(always)]
    fn note_tried(&mut self, work: &mut Work<N>, now_ds: u32) {
        changes(work);
        // No process's connection is retried.
        if !IN_SOCKET {
            if N == 4 {
                note_tried4(now_ds)
            } else {
                note_tried6(now_ds)
            };
        }
    }

    #[inline(always)]
    fn is_out(&mut self, index: u32, id: u32) -> bool {
        (if N == 4 { is_out4(index, id) } else { is_out6(index, id) }) != 0
    }

    #[inline(always)]
    fn turn(&mut self, service: u32) -> u32 {
        let Some(turn) = maps::find::<map::RoundRobin>(&(service & (limits::ROUND_ROBIN - 1))) else { return 0 };
        // An addition that gives what was there needs Linux 5.12.
        // SAFETY: an element of an array, aligned to words.
        unsafe {
            let given = turn.read_volatile();
            asm!("lock *(u64 *)({turn} + 0) += {one}", turn = in(reg) turn, one = in(reg) 1_u64);
            given as u32
        }
    }

    #[inline(always)]
    fn source_ports(&mut self) -> SourcePorts {
        settings::source_ports()
    }

    #[inline(always)]
    fn link(&mut self) -> u32 {
        self.ifindex
    }

    #[inline(always)]
    fn link_to(&mut self, address: &[u8; N]) -> u32 {
        fib::link_to(self.context, self.ifindex, address)
    }

    #[inline(always)]
    fn comes_by_its_link(&mut self, packet: &Packet<N>) -> bool {
        fib::leads_by(self.context, self.ifindex, &packet.key.dst, &packet.key.src, self.ifindex)
    }

    #[inline(always)]
    fn leads_by(&mut self, from: &[u8; N], to: &[u8; N], link: u32) -> bool {
        fib::leads_by(self.context, self.ifindex, from, to, link)
    }

    #[inline(always)]
    fn fast_link(&mut self, client: &[u8; N], backend: &[u8; N]) -> u32 {
        fast_path::link(self.context, self.ifindex, client, backend, self.clock_ns())
    }

    #[inline(always)]
    fn is_fast(&mut self, link: u32, protocol: u8) -> bool {
        self.peer = fast_path::takes::<N>(self.context.cast(), link, protocol, self.clock_ns());
        self.peer.is_some()
    }

    #[inline(always)]
    fn timeout_s(&mut self, protocol: u8, state: u8) -> u32 {
        settings::timeouts().with_room().of(protocol, state)
    }

    #[inline(always)]
    fn connect_clock(&mut self) -> u32 {
        connect_times::clock()
    }

    #[inline(always)]
    fn count_connect_time(&mut self, backend: u32, ticks: u32) {
        connect_times::count::<N>(backend, ticks);
    }

    #[inline(always)]
    fn note(&mut self, backend: u32, outcome: Outcome) {
        let by = if IN_SOCKET { Counter::Socket } else { Counter::Packet };
        counters::note::<N>(backend, outcome, self.ifindex, by);
    }

    #[inline(always)]
    fn direct_connection(&mut self, work: &mut Work<N>) -> bool {
        changes(work);
        let (packet, link) = (self.context.cast(), self.ifindex);
        (if N == 4 { direct_connection4(packet, link) } else { direct_connection6(packet, link) }) != 0
    }

    #[inline(always)]
    fn node_socket(&mut self, work: &mut Work<N>) -> bool {
        socket_lookup::node_has(self.context, work.reply_key())
    }

    #[inline(always)]
    fn is_from_node(&mut self) -> bool {
        let skb: *const __sk_buff = self.context.cast();
        // SAFETY: reads the context. Only hooks where packets leave ask, which are tc's.
        unsafe { (*skb).ingress_ifindex == 0 }
    }

    #[inline(always)]
    fn is_translated(&mut self) -> bool {
        let skb: *const __sk_buff = self.context.cast();
        // SAFETY: as above.
        unsafe { (*skb).tc_index == TRANSLATED }
    }
}
