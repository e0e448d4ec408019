//! The decision's tables over the kernel's maps.

use core::arch::asm;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::generated::{bpf_get_prandom_u32, bpf_ktime_get_ns};
use lb_common::abi::{
    Affinity, AffinityKey, Backend, BucketKey, Endpoint, EndpointKey, Flow, FlowKey, HalfOpen, Health, Service,
    ServiceKey, Slot, SourceKey, Vip, VipKey, affinity_tag, tag,
};
use lb_common::decide::{Connection, Pace, Pick, Tables, Work};
use lb_common::limits;
use lb_common::outcome::Outcome;
use lb_common::service_cidrs;
use lb_common::state::{self, SourcePorts};
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
use crate::maps::{ADOPTION, CLIENT_SHARES, Family, Maps, ROUND_ROBIN, SERVICE_CIDRS, SLOTS, VIP_FILTER};
use crate::rate_limit;
use crate::settings;
use crate::socket_lookup;

impl<const N: usize, const IN_SOCKET: bool> Tables<N> for KernelOf<IN_SOCKET>
where
    Maps: Family<N>,
{
    type FlowRef = *mut Flow<N>;

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
    fn service(&mut self, key: &ServiceKey<N>, into: &mut Service) -> bool {
        let Some(service) = <Maps as Family<N>>::service(key) else { return false };
        words::copy(service, into);
        true
    }

    #[inline(always)]
    fn slot(&mut self, index: u32) -> Option<Slot> {
        let words: *const [u64; 2] = core::ptr::from_ref(SLOTS.get(index)?).cast();
        // SAFETY: a live map value, which is aligned to eight bytes and two words long. Each word is read once and whole: the
        // record tells one of an old range from one of a new range, but not half a word.
        let words = unsafe { [(&raw const (*words)[0]).read_volatile(), (&raw const (*words)[1]).read_volatile()] };
        // SAFETY: plain numbers of the same size, every value of which is valid.
        Some(unsafe { core::mem::transmute::<[u64; 2], Slot>(words) })
    }

    #[inline(always)]
    fn backend(&mut self, id: u32) -> Option<Backend<N>> {
        <Maps as Family<N>>::backend(id).copied()
    }

    #[inline(always)]
    fn copy_backend(&mut self, id: u32, into: &mut Backend<N>) -> bool {
        <Maps as Family<N>>::backend(id).map(|backend| words::copy(backend, into)).is_some()
    }

    #[inline(always)]
    fn connection(&mut self, key: &FlowKey<N>, into: &mut Connection<N>) -> Option<Self::FlowRef> {
        let entry = <Maps as Family<N>>::flow(key)?;
        // SAFETY: as below.
        into.read(key, unsafe { &*entry }).then_some(entry)
    }

    #[inline(always)]
    fn flow(&mut self, key: &FlowKey<N>, into: &mut Flow<N>) -> Option<Self::FlowRef> {
        let entry = <Maps as Family<N>>::flow(key)?;
        // SAFETY: the verifier knows the pointer as a map value, and the tag tells whether it is the key's.
        words::copy_tagged(unsafe { &*entry }, into, || tag(key)).then_some(entry)
    }

    #[inline(always)]
    fn admitted(&mut self, service: u32, address: &[u8; N]) -> bool {
        <Maps as Family<N>>::admitted(&SourceKey { service, address: *address })
    }

    #[inline(always)]
    fn is_ruled_out(&mut self, address: &[u8; N]) -> bool {
        let Some(words) = VIP_FILTER.get_ptr(0) else { return false };
        let (at, mask) = vip_filter::place(vip_filter::bit_by_words::<N>(|i| words::word(address, 4 * i)));
        let words: *const u64 = words.cast();
        // SAFETY: the one element of an array; no place lies beyond its words. The agent may write it at this moment.
        unsafe { words.add(at).read_volatile() & mask != 0 }
    }

    #[inline(always)]
    fn may_be_in_service_cidr(&mut self, address: &[u8; N]) -> bool {
        SERVICE_CIDRS.get(service_cidrs::index::<N>()).is_some_and(|cover| cover.may_hold(address))
    }

    #[inline(always)]
    fn may_be_half_open(&mut self, key: &FlowKey<N>) -> bool {
        <Maps as Family<N>>::half_open(key).is_some()
    }

    #[inline(always)]
    fn is_retained(&mut self, key: &FlowKey<N>) -> bool {
        let Some(entry) = <Maps as Family<N>>::half_open(key) else { return false };
        // SAFETY: a map value for the whole run of the program; the step that handles it checks the tag.
        unsafe { state::is_retained(&(*entry).flow) }
    }

    #[inline(always)]
    fn half_open(&mut self, key: &FlowKey<N>, into: &mut HalfOpen<N>) -> bool {
        let Some(entry) = <Maps as Family<N>>::half_open(key) else { return false };
        // SAFETY: as above.
        words::copy_tagged(unsafe { &*entry }, into, || tag(key))
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
    fn adopts(&mut self, now_s: u32) -> bool {
        // An element of an array, one whole word, which the agent writes before the programs are attached.
        ADOPTION.get(0).is_some_and(|until_s| now_s < *until_s)
    }

    #[inline(always)]
    fn hands_over(&mut self) -> bool {
        ADOPTION.get(0).is_some_and(|word| *word == limits::HAND_OVER)
    }

    #[inline(always)]
    fn health(&mut self, backend: u32, generation: u32) -> Option<Health> {
        let entry = <Maps as Family<N>>::health(backend)?;
        // SAFETY: an element of an array, never recycled; each word is whole, and none decides over another.
        let health = unsafe { *entry };
        if health.generation == generation { Some(health) } else { Some(Health { generation, ..Health::default() }) }
    }

    #[inline(always)]
    fn set_health(&mut self, backend: u32, health: &Health) {
        let Some(entry) = <Maps as Family<N>>::health(backend) else { return };
        // SAFETY: an element of an array; other CPUs may write it at the same time, and the last word stands.
        unsafe {
            if (*entry).generation != health.generation {
                (*entry).connections = 0;
                (*entry).generation = health.generation;
            }
            (*entry).answered_s = health.answered_s;
            (*entry).ejected_s = health.ejected_s;
            (*entry).probe_s = health.probe_s;
            (*entry).unanswered = health.unanswered;
            (*entry).evidence_client = health.evidence_client;
            (*entry).evidence_s = health.evidence_s;
        }
    }

    #[inline(always)]
    fn count_connection(&mut self, backend: u32, generation: u32, change: i32) {
        let Some(entry) = <Maps as Family<N>>::health(backend) else { return };
        // SAFETY: an element of an array, aligned to words; the addition is atomic.
        unsafe {
            if (*entry).generation != generation {
                *entry = Health { generation, ..Health::default() };
            }
            if change >= 0 || (*entry).connections != 0 {
                let counter = &raw mut (*entry).connections;
                asm!("lock *(u32 *)({counter} + 0) += {change}", counter = in(reg) counter, change = in(reg) i64::from(change));
            }
        }
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
    fn client_share(&mut self, counter: u32) -> u32 {
        let Some(counter) = CLIENT_SHARES.get_ptr_mut(counter) else { return 0 };
        // SAFETY: an element of an array, one whole word. Two CPUs that take the same connection off leave less than nothing.
        let count = unsafe { counter.read_volatile() } as i32;
        if count < 0 { 0 } else { count as u32 }
    }

    #[inline(always)]
    fn count_client_share(&mut self, counter: u32, change: i32) {
        let Some(counter) = CLIENT_SHARES.get_ptr_mut(counter) else { return };
        let change = i64::from(change);
        // SAFETY: an element of an array, aligned to words; the addition is atomic.
        unsafe { asm!("lock *(u32 *)({counter} + 0) += {change}", counter = in(reg) counter, change = in(reg) change) };
    }

    #[inline(always)]
    fn affinity(&mut self, key: &AffinityKey<N>) -> Option<Affinity> {
        let entry = <Maps as Family<N>>::affinity(key)?;
        let mut affinity = Affinity { tag: 0, backend: 0, generation: 0, seen_ds: 0 };
        // SAFETY: as for flows.
        words::copy_tagged(unsafe { &*entry }, &mut affinity, || affinity_tag(key)).then_some(affinity)
    }

    #[inline(always)]
    fn set_affinity(&mut self, key: &AffinityKey<N>, affinity: &Affinity) {
        <Maps as Family<N>>::insert_affinity(key, affinity);
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
        let Some(turn) = ROUND_ROBIN.get_ptr_mut(service & (limits::ROUND_ROBIN - 1)) else { return 0 };
        // An addition that gives what was there needs Linux 5.12.
        // SAFETY: an element of an array, aligned to words.
        unsafe {
            let given = turn.read_volatile();
            asm!("lock *(u64 *)({turn} + 0) += {one}", turn = in(reg) turn, one = in(reg) 1_u64);
            given as u32
        }
    }

    #[inline(always)]
    fn vip(&mut self, key: &VipKey<N>) -> Option<Vip> {
        <Maps as Family<N>>::vip(key)
    }

    #[inline(always)]
    fn network(&mut self, address: &[u8; N]) -> u32 {
        <Maps as Family<N>>::network(address)
    }

    #[inline(always)]
    fn masquerade(&mut self, backend: &[u8; N], turn: u32, into: &mut [u8; N]) -> bool {
        let link = fib::link_to(self.context, self.ifindex, backend);
        let found = <Maps as Family<N>>::masquerade(link).or_else(|| <Maps as Family<N>>::masquerade(0));
        found.map(|own| words::address(own.address(turn), into)).is_some()
    }

    #[inline(always)]
    fn endpoint(&mut self, key: &EndpointKey<N>) -> Option<Endpoint> {
        <Maps as Family<N>>::endpoint(key)
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
        settings::timeouts().of(protocol, state)
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
}
