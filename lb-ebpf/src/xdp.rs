//! One packet at XDP, from outside. Towards a backend of this node it goes up the stack, rewritten; towards another node, or back from
//! one to a client outside, it leaves from here. What cannot be finished here is left to tc, unmodified.

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_PASS, XDP_TX};
use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::bpf_redirect;
use lb_common::abi::hook;
use lb_common::checksum;
use lb_common::decide::{Action, Hook, Step, Tables, Work, begin};
use lb_common::outcome::Outcome;

use crate::count::{self, Counter};
use crate::forward::{Way, hop_limit_at, way};
use crate::maps::Family;
use crate::masquerade::ends;
use crate::parse::{Bytes, ETHERNET, ETHERTYPE, IPV4, IPV4_HEADER, IPV6, IPV6_HEADER, Offsets, parse};
use crate::rewrite::{self, End, Refused};
use crate::steps;
use crate::tables::Kernel;
use crate::{tunnel, tunnel_xdp};

#[inline(always)]
pub fn handle(context: *mut xdp_md) -> u32 {
    match bytes(context).read::<[u8; 2]>(ETHERTYPE).map(u16::from_be_bytes) {
        Some(IPV4) => family::<4>(context),
        Some(IPV6) => family::<16>(context),
        _ => XDP_PASS,
    }
}

#[inline(always)]
pub fn bytes(context: *mut xdp_md) -> Bytes {
    // SAFETY: reads the context.
    let (start, end) = unsafe { ((*context).data as usize, (*context).data_end as usize) };
    Bytes { start, end, length: end.wrapping_sub(start) as u32 }
}

#[inline(never)]
fn family<const N: usize>(context: *mut xdp_md) -> u32
where
    Kernel: Family<N> + Tables<N>,
{
    // What cannot be read here, tc can: it may pull the rest in. It counts, too.
    let Some(work) = <Kernel as Family<N>>::work() else { return XDP_PASS };
    if let Ok(Offsets { transport, .. }) = parse(bytes(context), ETHERNET, &mut work.packet) {
        return serve::<N, false>(context, transport);
    }
    let transport = tunnel_xdp::look_inside::<N>(context) as usize & TRANSPORT_MASK;
    if transport == 0 {
        return XDP_PASS;
    }
    let verdict = serve::<N, true>(context, transport);
    tunnel::close::<N>();
    verdict
}

/// `INSIDE`: the packet of the scratch record is in an outer header.
#[inline(always)]
fn serve<const N: usize, const INSIDE: bool>(context: *mut xdp_md, transport: usize) -> u32
where
    Kernel: Family<N> + Tables<N>,
{
    let Some(work) = <Kernel as Family<N>>::work() else { return XDP_PASS };
    // SAFETY: reads the context.
    let ifindex = unsafe { (*context).ingress_ifindex };
    let mut tables = Kernel::at(context.cast(), ifindex);
    let mut step = begin::<N, Kernel>(&mut tables, work, Hook::XDP);
    // tc counts what passes; a packet is counted once.
    if step == Step::Passed {
        return XDP_PASS;
    }
    if step != Step::Decided {
        step = steps::xdp::<N>(context, step);
    }
    // Anew: the steps work in the same record.
    let Some(work) = <Kernel as Family<N>>::work() else { return XDP_PASS };
    match work.verdict.action {
        // No client's link is an external one: what is left to do, tc does.
        _ if step != Step::Decided => leave_to_tc(),
        Action::Pass if work.verdict.outcome == Outcome::Passed => XDP_PASS,
        // Only tc can turn a packet into its answer.
        Action::Pass | Action::Refuse => leave_to_tc(),
        Action::Drop => {
            count::packet(work, hook::XDP, ifindex, work.packet.length);
            XDP_DROP
        }
        // What came in an outer header is for a backend of this node.
        Action::ToBackend | Action::ToClient if INSIDE && work.verdict.route => leave_known_to_tc(work, ifindex),
        Action::ToBackend if work.verdict.port == 0 => tunnel_xdp::send::<N>(context),
        // Only tc can swap a packet's ends.
        Action::ToBackend | Action::ToClient if work.verdict.turns_back(&work.packet.key) => {
            leave_known_to_tc(work, ifindex)
        }
        Action::ToBackend | Action::ToClient if work.verdict.route => send::<N>(context, transport as u32),
        Action::ToBackend | Action::ToClient => {
            count::packet(work, hook::XDP, ifindex, work.packet.length);
            let end = if work.verdict.action == Action::ToBackend { End::Destination } else { End::Source };
            let mut offsets = Offsets { network: ETHERNET, transport };
            if INSIDE {
                if tunnel_xdp::unwrap::<N>(context).is_err() {
                    return written(Err(Refused));
                }
                offsets.transport = transport.wrapping_sub(tunnel::overhead::<N>()) & TRANSPORT_MASK;
            }
            written(rewrite::xdp(bytes(context), offsets, work, end))
        }
    }
}

#[inline(always)]
pub fn leave_to_tc() -> u32 {
    count::outcome(Outcome::HandedToTc, Counter::Packet);
    XDP_PASS
}

/// Leaves a packet with a verdict of its own to tc, where its flow is a known one. What the flow began as is counted here.
#[inline(always)]
pub fn leave_known_to_tc<const N: usize>(work: &Work<N>, ifindex: u32) -> u32 {
    count::beginning(work, hook::XDP, ifindex);
    leave_to_tc()
}

#[inline(always)]
fn written(done: Result<(), Refused>) -> u32 {
    if done.is_ok() {
        return XDP_PASS;
    }
    count::outcome(Outcome::DroppedRewrite, Counter::Packet);
    XDP_DROP
}

/// Sends the packet of the scratch record out from here, if its way is known. A *global* function, as the steps are.
#[inline(always)]
fn send<const N: usize>(context: *mut xdp_md, transport: u32) -> u32 {
    if N == 4 { xdp_send4(context, transport) } else { xdp_send6(context, transport) }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn xdp_send4(context: *mut xdp_md, transport: u32) -> u32 {
    send_on::<4>(context, transport as usize & TRANSPORT_MASK)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn xdp_send6(context: *mut xdp_md, transport: u32) -> u32 {
    send_on::<16>(context, transport as usize & TRANSPORT_MASK)
}

/// No header that is read here begins beyond: the verifier knows nothing of an argument.
const TRANSPORT_MASK: usize = 0x7f;
const _: () = assert!(ETHERNET + IPV4_HEADER + 60 <= TRANSPORT_MASK && ETHERNET + 2 * IPV6_HEADER <= TRANSPORT_MASK);

/// Nothing is written before the way is known.
#[inline(always)]
fn send_on<const N: usize>(context: *mut xdp_md, transport: usize) -> u32
where
    Kernel: Family<N>,
{
    let Some(work) = <Kernel as Family<N>>::work() else { return XDP_PASS };
    let offsets = Offsets { network: ETHERNET, transport };
    // SAFETY: reads the context.
    let ifindex = unsafe { (*context).ingress_ifindex };
    let (src, dst) = ends(&work.verdict);
    let Some(limit) = bytes(context).read::<u8>(offsets.network + hop_limit_at::<N>()) else { return leave_to_tc() };
    let way = way(context, src, dst, work.packet.key.protocol, work.packet.length);
    let Some(way) = way.filter(|_| limit > 1) else { return leave_known_to_tc(work, ifindex) };
    count::packet(work, hook::XDP, ifindex, work.packet.length);
    let end = if work.verdict.action == Action::ToBackend { End::Destination } else { End::Source };
    let done = rewrite::xdp_both(bytes(context), offsets, work, end)
        .and_then(|()| link_layer::<N>(bytes(context), offsets.network, limit, &way));
    if done.is_err() {
        return written(done);
    }
    if way.ifindex == ifindex {
        return XDP_TX;
    }
    // SAFETY: a helper that reads its arguments.
    unsafe { bpf_redirect(way.ifindex, 0) as u32 }
}

/// Writes the frame's new link-layer addresses, and takes a hop off its limit.
#[inline(always)]
fn link_layer<const N: usize>(bytes: Bytes, network: usize, limit: u8, way: &Way) -> Result<(), Refused> {
    let frame = bytes.at::<[[u8; 6]; 2]>(0).ok_or(Refused)?;
    // SAFETY: within the packet, as `at` has checked.
    unsafe {
        (*frame)[0] = way.destination;
        (*frame)[1] = way.source;
    }
    one_hop_less::<N>(bytes, network, limit)
}

/// Takes a hop off the packet's limit, which is not the last one.
#[inline(always)]
pub fn one_hop_less<const N: usize>(bytes: Bytes, network: usize, limit: u8) -> Result<(), Refused> {
    let hops = bytes.at::<u8>(network + hop_limit_at::<N>()).ok_or(Refused)?;
    let sum = if N == 4 { Some(bytes.at::<[u8; 2]>(network + 10).ok_or(Refused)?) } else { None };
    // SAFETY: all within the packet, as `at` has checked.
    unsafe {
        hops.write(limit - 1);
        if let Some(sum) = sum {
            // The limit is the upper half of its word.
            let (old, new) = (u32::from(limit) << 8, u32::from(limit - 1) << 8);
            sum.write(checksum::replace(u16::from_be_bytes(sum.read()), old, new).to_be_bytes());
        }
    }
    Ok(())
}
