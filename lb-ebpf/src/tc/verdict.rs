//! Does what a verdict says.

use aya_ebpf::bindings::__sk_buff;
use aya_log_ebpf::debug;
use lb_common::abi::flow_link;
use lb_common::decide::{Action, Hook, Work};
use lb_common::stages::TcStage;

use crate::counters;
use crate::fast_path::{self, FAST_PATH_ON};
use crate::kernel::Kernel;
use crate::maps;
use crate::nat::End;
use crate::scratch::{AttachPoint, Scratch};
use crate::tail_call;
use crate::tc::forward::{self, DROP, NEXT};
use crate::tc::nat;
use lb_common::parse::Offsets;

/// `tc_index` of a packet whose source was translated at this node. It stays with the packet until that leaves.
pub const TRANSLATED: u32 = 0xba11;

/// [`TcStage::Verdict`].
#[inline(always)]
pub fn run<const N: usize>(skb: *mut __sk_buff) -> i32 {
    let Some(scratch) = maps::scratch::<N>() else { return DROP };
    if scratch.work.packet.is_error {
        return tail_call::tc::<N>(skb, TcStage::IcmpVerdict, DROP);
    }
    count(skb, &scratch.work, scratch.point);
    let (point, offsets) = (scratch.point, scratch.offsets());
    // SAFETY: reads the context.
    act(skb, scratch, point, offsets, &mut Kernel::at(skb.cast(), unsafe { (*skb).ifindex }))
}

/// Counts a verdict, and writes it to the programs' log.
#[inline(always)]
pub fn count<const N: usize>(skb: *mut __sk_buff, work: &Work<N>, point: AttachPoint) {
    let verdict = &work.verdict;
    // SAFETY: reads the context.
    counters::packet(work, point.id, unsafe { (*skb).ifindex }, work.packet.length);
    debug!(
        skb,
        "hook {} outcome {} service {} backend {}", point.id, verdict.outcome as u8, verdict.service, verdict.backend
    );
}

/// Does as the verdict of the scratch record says: what most packets need is here, the rest in programs of its own. `tables`: those of
/// the decision, which may have asked where the packet is handed over.
#[inline(always)]
pub fn act<const N: usize>(
    skb: *mut __sk_buff,
    scratch: &mut Scratch<N>,
    point: AttachPoint,
    offsets: Offsets,
    tables: &mut Kernel,
) -> i32 {
    let (work, hook) = (&scratch.work, point.hook());
    let link = work.verdict.link_from(tables.ifindex);
    let (action, protocol) = (work.verdict.action, work.packet.key.protocol);
    if action == Action::ToClient {
        // SAFETY: writes the context.
        unsafe { (*skb).tc_index = TRANSLATED };
    }
    let further = match action {
        Action::Pass => return NEXT,
        Action::Drop => return DROP,
        Action::Refuse => Some(TcStage::Refuse),
        Action::ToBackend if work.verdict.port == 0 => {
            if !hook.has(Hook::FROM_OUTSIDE) {
                // A client pod uses the address of an external client whose connection goes by DSR.
                return forward::lost();
            }
            Some(TcStage::Encapsulate)
        }
        _ if work.verdict.route => Some(TcStage::Route),
        _ if !nat::is_usual::<N>(offsets, protocol) => Some(TcStage::SlowNat),
        Action::ToBackend if hook.has(Hook::FROM_CLIENT) && FAST_PATH_ON.load() != 0 && flow_link::way(link) != 0 => {
            Some(TcStage::NodeFastPath)
        }
        Action::ToBackend | Action::ToClient => None,
    };
    if let Some(stage) = further {
        scratch.enter(point, offsets.transport);
        return tail_call::tc::<N>(skb, stage, DROP);
    }
    let end = End::of(work);
    let is_reply = end == End::Source;
    if hook.has(Hook::FAST_PATH) && FAST_PATH_ON.load() != 0 && link != 0 && (is_reply || hook.has(Hook::FROM_CLIENT)) {
        let peer = match () {
            () if tables.peer.is_some() => tables.peer,
            () if is_reply => fast_path::peer(link),
            () => fast_path::takes::<N>(skb, link, protocol, tables.clock_ns()),
        };
        if peer.is_some() {
            return match nat::one_end(skb, offsets.network, work, end, 1) {
                Ok(()) => fast_path::send(skb, link, peer),
                Err(_) => forward::lost(),
            };
        }
        // A reply that is rewritten here may go no other way.
        if is_reply {
            return forward::lost();
        }
    }
    match nat::one_end(skb, offsets.network, work, end, 0) {
        Ok(()) => NEXT,
        Err(_) => forward::lost(),
    }
}
