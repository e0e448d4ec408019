//! Later fragments follow the first: it alone says the ports.

use aya_ebpf::bindings::{__sk_buff, BPF_ANY};
use lb_common::abi::{FlowKey, Fragment, FragmentKey, fragment_tag};
use lb_common::decide::{self, Action, Now, Tables, Work};
use lb_common::limits::FRAGMENT_TIMEOUT_S;
use lb_common::map;
use lb_common::stages::TcStage;

use crate::kernel::Kernel;
use crate::maps;
use crate::tail_call;
use crate::tc::forward::{self, DROP, NEXT};
use crate::tc::headers::Headers;
use crate::tc::{nat, route, verdict};

#[inline(always)]
fn key_of<const N: usize>(key: &FlowKey<N>, id: u32) -> FragmentKey<N> {
    FragmentKey { src: key.src, dst: key.dst, id, protocol: key.protocol, pad: [0; 3] }
}

/// Notes the ports of a first fragment, if it is a flow's or a service's. A full table forgets what was not used for longest.
#[inline(always)]
pub fn remember<const N: usize>(tables: &mut Kernel, work: &mut Work<N>, headers: &Headers) {
    // The later ones name the first of those headers, not the transport.
    if headers.more_headers {
        return;
    }
    // What came in an outer header may be for a node port, which is a service's at another address here.
    let is_ours = decide::concerns(tables, work) || (work.is_chosen() && decide::is_tunnelled(tables, work));
    if !is_ours {
        return;
    }
    let key = &work.packet.key;
    let fragment_key = key_of(key, headers.id);
    let now = Now::from_ns(<Kernel as Tables<N>>::now_ns(tables));
    let fragment =
        Fragment { tag: fragment_tag(&fragment_key), src_port: key.src_port, dst_port: key.dst_port, seen_s: now.s };
    let _ = maps::insert::<map::Fragments<N>>(&fragment_key, &fragment, BPF_ANY);
}

/// Puts the ports of the first fragment into the key; `false`: it is not known.
#[inline(always)]
pub fn recall<const N: usize>(tables: &mut Kernel, key: &mut FlowKey<N>, id: u32) -> bool {
    let fragment_key = key_of(key, id);
    let Some(fragment) = maps::get::<map::Fragments<N>>(&fragment_key) else { return false };
    let now = Now::from_ns(<Kernel as Tables<N>>::now_ns(tables));
    if fragment.tag != fragment_tag(&fragment_key) || now.s.wrapping_sub(fragment.seen_s) > FRAGMENT_TIMEOUT_S {
        return false;
    }
    key.src_port = fragment.src_port;
    key.dst_port = fragment.dst_port;
    true
}

/// [`TcStage::Fragment`]: a later fragment goes where its first one went. Addresses alone are written: no port and no checksum of the
/// transport is in it.
#[inline(always)]
pub fn run<const N: usize>(skb: *mut __sk_buff) -> i32 {
    let Some(scratch) = maps::scratch::<N>() else { return DROP };
    // SAFETY: reads the context.
    let mut tables = Kernel::at(skb.cast(), unsafe { (*skb).ifindex });
    let (point, work) = (scratch.point, &mut scratch.work);
    if recall(&mut tables, &mut work.packet.key, scratch.fragment_id) {
        decide::later_fragment(&mut tables, work, point.hook());
    } else {
        decide::stray_fragment(&mut tables, work);
    }
    if !matches!(work.verdict.action, Action::ToBackend | Action::ToClient) {
        return tail_call::tc::<N>(skb, TcStage::Verdict, NEXT);
    }
    verdict::count(skb, work, point);
    if work.verdict.action == Action::ToBackend && work.verdict.port == 0 {
        // A later fragment that cannot go on causes no error.
        scratch.transport = 0;
        return tail_call::tc::<N>(skb, TcStage::Encapsulate, DROP);
    }
    if !work.verdict.route {
        return if nat::addresses(skb, point.network(), work, None).is_ok() { NEXT } else { forward::lost() };
    }
    match route::onward(skb, work, work.packet.length, point) {
        Ok(onward) if nat::addresses(skb, point.network(), work, None).is_ok() => route::send::<N>(skb, point, onward),
        Ok(_) => forward::lost(),
        // A later fragment causes no error (RFC 1812, section 4.3.2.7).
        Err(unsent) => forward::dropped(unsent),
    }
}
