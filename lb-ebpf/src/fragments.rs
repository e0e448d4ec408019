//! Later fragments follow the first: it alone says the ports.

use aya_ebpf::bindings::__sk_buff;
use lb_common::abi::{FlowKey, Fragment, FragmentKey, fragment_tag};
use lb_common::decide::{self, Action, Now, Tables, Work};
use lb_common::limits::FRAGMENT_TIMEOUT_S;

use crate::aside::{Spot, settled};
use crate::count;
use crate::forward::{self, NEXT};
use crate::headers::Headers;
use crate::maps::{Family, Fragments};
use crate::masquerade;
use crate::tables::Kernel;

#[inline(always)]
fn key_of<const N: usize>(key: &FlowKey<N>, headers: &Headers) -> FragmentKey<N> {
    FragmentKey { src: key.src, dst: key.dst, id: headers.id, protocol: headers.protocol, pad: [0; 3] }
}

/// Notes the ports of a first fragment, if it is a flow's or a service's. A full table forgets what was not used for longest.
#[inline(always)]
pub fn remember<const N: usize>(tables: &mut Kernel, work: &mut Work<N>, headers: &Headers)
where
    Kernel: Family<N> + Tables<N> + Fragments<N>,
{
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
    let fragment_key = key_of(key, headers);
    let now = Now::from_ns(<Kernel as Tables<N>>::now_ns(tables));
    let fragment =
        Fragment { tag: fragment_tag(&fragment_key), src_port: key.src_port, dst_port: key.dst_port, seen_s: now.s };
    <Kernel as Fragments<N>>::insert(&fragment_key, &fragment);
}

/// Puts the ports of the first fragment into the key; `false`: it is not known.
#[inline(always)]
pub fn recall<const N: usize>(tables: &mut Kernel, key: &mut FlowKey<N>, headers: &Headers) -> bool
where
    Kernel: Family<N> + Tables<N> + Fragments<N>,
{
    let fragment_key = key_of(key, headers);
    let Some(fragment) = <Kernel as Fragments<N>>::get(&fragment_key) else { return false };
    let now = Now::from_ns(<Kernel as Tables<N>>::now_ns(tables));
    if fragment.tag != fragment_tag(&fragment_key) || now.s.wrapping_sub(fragment.seen_s) > FRAGMENT_TIMEOUT_S {
        return false;
    }
    key.src_port = fragment.src_port;
    key.dst_port = fragment.dst_port;
    true
}

/// No verdict at tc: the fragment goes whole to the backend's node.
pub const WHOLE: i32 = -106;

/// Does as the verdict over a later fragment says: addresses alone, no port and no checksum of the transport is in it.
#[inline(always)]
pub fn act<const N: usize>(skb: *mut __sk_buff, work: &mut Work<N>, spot: Spot) -> i32
where
    Kernel: Family<N> + Tables<N>,
{
    // SAFETY: reads the context.
    let ifindex = unsafe { (*skb).ifindex };
    let action = work.verdict.action;
    if action != Action::ToBackend && action != Action::ToClient {
        return settled(work, spot, ifindex);
    }
    count::packet(work, spot.id, ifindex, work.packet.length);
    if action == Action::ToBackend && work.verdict.port == 0 {
        return WHOLE;
    }
    let way = if work.verdict.route { masquerade::way(skb, work, work.packet.length, spot) } else { 0 };
    if way < 0 {
        // Nobody is told of a later fragment (RFC 1812, section 4.3.2.7).
        return forward::dropped(way);
    }
    if masquerade::addresses(skb, spot.network, work, None).is_err() {
        return forward::lost();
    }
    if work.verdict.route { masquerade::go(skb, spot, work, way) } else { NEXT }
}
