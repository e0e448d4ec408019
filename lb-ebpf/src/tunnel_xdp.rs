//! Direct server return at XDP (see `tunnel`): before the kernel joins segments, and with no room to be made in a socket buffer.

use aya_ebpf::bindings::xdp_action::{XDP_DROP, XDP_TX};
use aya_ebpf::bindings::xdp_md;
use aya_ebpf::helpers::generated::{bpf_redirect, bpf_xdp_adjust_head};
use lb_common::abi::{hook, network_flags};
use lb_common::decide::{self, Tables};
use lb_common::outcome::Outcome;
use lb_common::words;

use crate::count::{self, Counter};
use crate::forward::{hop_limit_at, way};
use crate::maps::Family;
use crate::parse::{Bytes, ETHERNET, ETHERTYPE, parse};
use crate::rewrite::Refused;
use crate::tables::Kernel;
use crate::tunnel::{self, close, header4, header6, inside, overhead};
use crate::xdp::{bytes, leave_known_to_tc, leave_to_tc, one_hop_less};

/// Sends the packet of the scratch record whole to the node of the backend that its verdict names; gives the verdict at XDP. A *global*
/// function, as the steps are.
#[inline(always)]
pub fn send<const N: usize>(context: *mut xdp_md) -> u32 {
    if N == 4 { xdp_tunnel4(context) } else { xdp_tunnel6(context) }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn xdp_tunnel4(context: *mut xdp_md) -> u32 {
    wrap::<4>(context)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn xdp_tunnel6(context: *mut xdp_md) -> u32 {
    wrap::<16>(context)
}

/// Nothing is written before the way is known.
#[inline(always)]
fn wrap<const N: usize>(context: *mut xdp_md) -> u32
where
    Kernel: Family<N> + Tables<N>,
{
    let Some(work) = <Kernel as Family<N>>::work() else { return leave_to_tc() };
    // SAFETY: reads the context.
    let ifindex = unsafe { (*context).ingress_ifindex };
    let Some(limit) = bytes(context).read::<u8>(ETHERNET + hop_limit_at::<N>()) else { return leave_to_tc() };
    let length = work.packet.length + overhead::<N>() as u32;
    let way = way(context, &[0; N], &work.verdict.address, inside::<N>(), length);
    let Some(way) = way.filter(|_| limit > 1) else { return leave_known_to_tc(work, ifindex) };
    let Some(own) = tunnel::own::<N>() else { return leave_to_tc() };
    count::packet(work, hook::XDP, ifindex, work.packet.length);
    let inner_length = work.packet.length;
    let done = one_hop_less::<N>(bytes(context), ETHERNET, limit).and_then(|()| {
        // SAFETY: a helper on the program's own packet.
        if unsafe { bpf_xdp_adjust_head(context, -(overhead::<N>() as i32)) } != 0 {
            return Err(Refused);
        }
        let frame = bytes(context);
        let ethertype: [u8; 2] = frame.read(overhead::<N>() + ETHERTYPE).ok_or(Refused)?;
        let header = frame.at::<[u8; ETHERNET]>(0).ok_or(Refused)?;
        let mut new = [0u8; ETHERNET];
        new[0..6].copy_from_slice(&way.destination);
        new[6..12].copy_from_slice(&way.source);
        new[12..14].copy_from_slice(&ethertype);
        // SAFETY: within the packet, as `at` has checked.
        unsafe { *header = new };
        outer(frame, inner_length, own.address(0), &work.verdict.address)
    });
    if done.is_err() {
        count::outcome(Outcome::DroppedRewrite, Counter::Packet);
        return XDP_DROP;
    }
    if way.ifindex == ifindex {
        return XDP_TX;
    }
    // SAFETY: a helper that reads its arguments.
    unsafe { bpf_redirect(way.ifindex, 0) as u32 }
}

#[inline(always)]
fn outer<const N: usize>(frame: Bytes, length: u32, src: &[u8; N], dst: &[u8; N]) -> Result<(), Refused> {
    if N == 4 {
        let header = frame.at(ETHERNET).ok_or(Refused)?;
        // SAFETY: within the packet, as `at` has checked.
        unsafe { *header = header4(length, src, dst) };
    } else {
        let header = frame.at(ETHERNET).ok_or(Refused)?;
        // SAFETY: as above.
        unsafe { *header = header6(length, src, dst) };
    }
    Ok(())
}

/// Reads a packet for a backend of this node within its outer header: where its transport header begins; 0: it is none. The scratch
/// record holds what is read. A *global* function, as the steps are.
#[inline(always)]
pub fn look_inside<const N: usize>(context: *mut xdp_md) -> u32 {
    if N == 4 { xdp_inside4(context) } else { xdp_inside6(context) }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn xdp_inside4(context: *mut xdp_md) -> u32 {
    inner::<4>(context)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn xdp_inside6(context: *mut xdp_md) -> u32 {
    inner::<16>(context)
}

#[inline(always)]
fn inner<const N: usize>(context: *mut xdp_md) -> u32
where
    Kernel: Family<N> + Tables<N>,
{
    let Some(work) = <Kernel as Family<N>>::work() else { return 0 };
    let frame = bytes(context);
    let addresses_at = ETHERNET + if N == 4 { 12 } else { 8 };
    let key = &mut work.packet.key;
    let read = is_outer::<N>(frame)
        && frame.words(addresses_at, &mut key.src).is_some()
        && frame.words(addresses_at + N, &mut work.chosen).is_some();
    let mut tables = Kernel::at(context.cast(), 0);
    // Whoever is no peer, tc tells from others' tunnels.
    if !read || <Kernel as Tables<N>>::network(&mut tables, &key.src) & network_flags::PEER == 0 {
        close::<N>();
        return 0;
    }
    match parse(frame, ETHERNET + overhead::<N>(), &mut work.packet) {
        Ok(offsets) if decide::is_tunnelled(&mut tables, work) => offsets.transport as u32,
        _ => {
            words::clear_address(&mut work.chosen);
            0
        }
    }
}

/// Whether this is a whole outer header of ours, without options.
#[inline(always)]
fn is_outer<const N: usize>(frame: Bytes) -> bool {
    if N == 4 {
        let Some(header) = frame.read::<[u8; 10]>(ETHERNET) else { return false };
        header[0] == 0x45 && u16::from_be_bytes([header[6], header[7]]) & 0x3fff == 0 && header[9] == inside::<N>()
    } else {
        let Some(header) = frame.read::<[u8; 7]>(ETHERNET) else { return false };
        header[0] >> 4 == 6 && header[6] == inside::<N>()
    }
}

/// Takes the outer header off.
#[inline(always)]
pub fn unwrap<const N: usize>(context: *mut xdp_md) -> Result<(), Refused> {
    let frame = bytes(context).read::<[u8; ETHERNET]>(0).ok_or(Refused)?;
    // SAFETY: a helper on the program's own packet.
    if unsafe { bpf_xdp_adjust_head(context, overhead::<N>() as i32) } != 0 {
        return Err(Refused);
    }
    let header = bytes(context).at::<[u8; ETHERNET]>(0).ok_or(Refused)?;
    // SAFETY: within the packet, as `at` has checked.
    unsafe { *header = frame };
    Ok(())
}
