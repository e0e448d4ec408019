//! Compares one packet's result with the model: verdict, bytes, counters, event record.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Result, ensure};
use lb_common::abi::{Event, StatKey, hook, stat_kind};
use lb_common::outcome::Outcome;

use super::model::{Model, Service};
use super::routes::{Link, Route};
use super::rules::{Asked, Expected, Fate, Hint, Onward, decide};
use super::tables;
use super::wire::{Frame, Protocol};
use crate::test_run::{Hook, Ran};

/// Verdicts: `TCX_NEXT`, `TC_ACT_SHOT`, `TC_ACT_REDIRECT`; `XDP_PASS`, `XDP_DROP`, `XDP_TX`, `XDP_REDIRECT`.
const TC: [i32; 3] = [-1, 2, 7];
const XDP: [i32; 4] = [2, 1, 3, 4];

/// Judges a packet and changes the model as it must change.
pub fn judge(
    model: &mut Model,
    hook: Hook,
    frame: &Frame,
    bytes: &[u8],
    ran: &Ran,
    counted: &[Outcome],
    effects: &SideEffects,
) -> Result<()> {
    let xdp = hook == Hook::Xdp;
    if frame.fragment_offset != 0 {
        // No ports in it: nobody can say whose it is, but an address of services is nobody else's.
        let (verdict, counts): (i32, &[Outcome]) = match (xdp, model.vips.contains_key(&frame.dst.ip())) {
            (true, _) => (XDP[0], &[]),
            (false, true) => (TC[1], &[Outcome::DroppedFragment]),
            (false, false) if model.is_unallocated(frame.dst.ip()) => (TC[1], &[Outcome::DroppedNoService]),
            (false, false) => (TC[0], &[Outcome::Fragment]),
        };
        ensure!(ran.bytes == bytes && ran.verdict == verdict, "a later fragment was touched");
        ensure!(counted == counts, "a later fragment was counted as {counted:?}");
        return Ok(());
    }
    if xdp && frame.more_fragments && frame.src.is_ipv4() {
        // tc remembers it for the later ones.
        ensure!(ran.bytes == bytes && ran.verdict == XDP[0] && counted.is_empty(), "a first fragment is left to tc");
        return Ok(());
    }
    let hint = hint(frame, ran, counted, effects);
    let tcp_flags = if frame.protocol == Protocol::Tcp { frame.tcp_flags } else { 0 };
    let (sequence, acknowledgement) = (frame.sequence, frame.acknowledgement);
    let Frame { protocol, src, dst, hops, .. } = *frame;
    let data = u32::try_from(frame.payload.len())?;
    let asked = Asked { hook, protocol, src, dst, tcp_flags, sequence, acknowledgement, data, hops };
    let expected = decide(model, asked, hint)?;
    let refusal = if expected.fate == Fate::Refuse { frame.refusal() } else { None };
    let unanswerable = expected.fate == Fate::Refuse && refusal.is_none();

    let mut counts = vec![expected.outcome];
    let (verdict, packet) = match expected.fate {
        Fate::Pass => (if xdp { XDP[0] } else { TC[0] }, Some(bytes.to_vec())),
        Fate::Drop => (if xdp { XDP[1] } else { TC[1] }, None),
        Fate::Refuse if unanswerable => (TC[1], None),
        Fate::Refuse => (TC[2], refusal),
        Fate::Rewrite { src, dst, onward } => {
            let rewritten = Frame { src, dst, ..frame.clone() };
            let (verdict, gone) = goes(hook, rewritten, onward, model.routes().to(dst.ip()), model.routes().arrival());
            let packet = match gone {
                Ok(gone) => Some(gone.bytes()),
                Err(Stays::Expired) => {
                    counts.push(Outcome::DroppedHopLimit);
                    Some(frame.expiry())
                }
                Err(Stays::Nowhere) => {
                    counts.push(Outcome::DroppedRewrite);
                    None
                }
            };
            (verdict, packet)
        }
    };
    ensure!(ran.verdict == verdict, "verdict {} instead of {verdict}: expected {expected:?}", ran.verdict);
    if let Some(packet) = packet {
        ensure!(ran.bytes == packet, "expected {expected:?}\n  must be {packet:02x?}\n  but is  {:02x?}", ran.bytes);
    }

    if unanswerable {
        counts.push(Outcome::DroppedRewrite);
    }
    if xdp && expected.outcome == Outcome::Passed {
        counts.clear(); // tc counts it.
    }
    if expected.begins_at_tc {
        counts.push(Outcome::HandedToTc);
    }
    counts.extend(expected.notes.iter().map(|(_, outcome)| *outcome));
    counts.sort_unstable();
    ensure!(counted == counts, "counted {counted:?} instead of {counts:?}");
    compare_stats(&expected, frame.src.ip(), &effects.stats)?;
    compare_events(&expected, asked, &effects.events)
}

/// A broken packet has no clear meaning. But it goes unchanged, is dropped, is answered to its sender, or goes to a backend of the service that it
/// asked for; and it is counted.
pub fn judge_broken(model: &Model, hook: Hook, frame: &Frame, bytes: &[u8], ran: &Ran, counts: u64) -> Result<()> {
    let xdp = hook == Hook::Xdp;
    ensure!(if xdp { XDP.contains(&ran.verdict) } else { TC.contains(&ran.verdict) }, "verdict {}", ran.verdict);
    let is_ip = matches!(bytes.get(12..14), Some([0x08, 0x00] | [0x86, 0xdd]));
    ensure!(counts > 0 || xdp || !is_ip, "counted nowhere");
    let dropped = ran.verdict == if xdp { XDP[1] } else { TC[1] };
    if dropped || ran.bytes == bytes {
        return Ok(());
    }
    if ran.verdict == TC[2] && ran.bytes[..6] == bytes[6..12] && ran.bytes[6..12] == bytes[..6] {
        return Ok(()); // Answered to its sender.
    }
    ensure!(ran.bytes.len() == bytes.len(), "another length");
    let (_, asked) = ends(frame, bytes);
    let (_, got) = ends(frame, &ran.bytes);
    let right = model.services.iter().any(|(key, service)| {
        key.0 == asked && members(service).any(|(backend, _)| model.backends[backend].address == got)
    });
    // A flipped header length moves the ports; then the address alone tells.
    let near = model.services.iter().any(|(key, service)| {
        key.0.ip() == asked.ip()
            && members(service).any(|(backend, _)| model.backends[backend].address.ip() == got.ip())
    });
    ensure!(right || near || asked == got, "asked {asked}, sent to {got}");
    Ok(())
}

/// The backends that serve clients inside or outside.
fn members(service: &Service) -> impl Iterator<Item = &(u32, u32)> {
    service.members.iter().chain(&service.members_outside)
}

/// What a packet left behind.
pub struct SideEffects {
    pub stats: Vec<(StatKey, u64)>,
    pub events: Vec<Event>,
    /// Source and destination that the half-open entry of its tuple gives it, where there is one.
    pub sent: Option<(SocketAddr, SocketAddr)>,
}

/// What was seen of the random choices.
fn hint(frame: &Frame, ran: &Ran, counted: &[Outcome], effects: &SideEffects) -> Hint {
    // Its bytes do not tell where it was to go.
    let stayed = [Outcome::HandedToTc, Outcome::DroppedHopLimit, Outcome::DroppedRewrite];
    let stayed = stayed.iter().any(|outcome| counted.contains(outcome));
    let (src, dst) = effects.sent.filter(|_| stayed).unwrap_or_else(|| ends(frame, &ran.bytes));
    let about = |outcome: Outcome, kind: Option<u8>| {
        let is = |key: &StatKey| key.outcome == outcome as u8 && kind.is_none_or(|kind| key.kind == kind);
        effects.stats.iter().find(|(key, _)| is(key)).map(|(key, _)| key.id)
    };
    let backend = if frame.src.is_ipv4() { stat_kind::BACKEND4 } else { stat_kind::BACKEND6 };
    let no_port = counted.contains(&Outcome::DroppedNoPort);
    Hint {
        src,
        dst,
        suppressed: counted.contains(&Outcome::SuppressedRefusal),
        torn: counted.contains(&Outcome::DroppedTorn),
        no_address: counted.contains(&Outcome::DroppedNoAddress),
        no_port: no_port.then(|| about(Outcome::DroppedNoPort, Some(backend)).unwrap_or_default()),
        ejected: about(Outcome::Ejected, None),
    }
}

/// Why a packet that is to be sent on is not.
enum Stays {
    /// It was the last hop.
    Expired,
    /// There is no route.
    Nowhere,
}

/// How a rewritten packet leaves the hook: the verdict, and the frame.
fn goes(hook: Hook, frame: Frame, onward: Onward, route: Route, arrival: u32) -> (i32, Result<Frame, Stays>) {
    let (source, destination) = frame.macs;
    let ingress = hook != Hook::NodeOut && hook != Hook::PodOut;
    let back = Frame { macs: (destination, source), ..frame.clone() };
    let hop_less = Frame { hops: frame.hops.saturating_sub(1), ..frame.clone() };
    match (onward, route) {
        (Onward::Stack, _) => (if hook == Hook::Xdp { XDP[0] } else { TC[0] }, Ok(frame)),
        (Onward::Sent, Route::Nowhere) => (TC[1], Err(Stays::Nowhere)),
        // The stack routes towards nowhere as it sees fit; at egress that would be out by this link.
        (Onward::Routed, Route::Nowhere) if ingress => (TC[0], Ok(frame)),
        (Onward::Back, _) | (Onward::Routed, Route::Nowhere) => (TC[2], Ok(back)),
        // The stack has counted the hop.
        (Onward::Routed | Onward::Sent, _) if !ingress => (TC[2], Ok(frame)),
        // The sender gets an answer.
        (Onward::Routed | Onward::Sent, _) if frame.hops <= 1 => (TC[2], Err(Stays::Expired)),
        (Onward::Routed | Onward::Sent, Route::Known(Link { index, own_mac, neighbour_mac, .. }))
            if hook == Hook::Xdp =>
        {
            let verdict = if index == arrival { XDP[2] } else { XDP[3] };
            (verdict, Ok(Frame { macs: (own_mac, neighbour_mac), ..hop_less }))
        }
        (Onward::Routed | Onward::Sent, _) => (TC[2], Ok(hop_less)),
    }
}

/// A record in the ring for what a user would ask about, and for nothing that every packet does.
fn compare_events(expected: &Expected, asked: Asked, events: &[Event]) -> Result<()> {
    let everyday = matches!(
        expected.outcome,
        Outcome::Passed
            | Outcome::Selected
            | Outcome::Forwarded
            | Outcome::Replied
            | Outcome::DirectTranslated
            | Outcome::HandedToTc
            | Outcome::PassedAdoption
            | Outcome::Adopted
            | Outcome::HeldForHandOver
            | Outcome::PassedHandOver
    );
    // What the packet showed about backends is in events of its own.
    let is_note = |event: &&Event| event.outcome == Outcome::Ejected as u8 || event.outcome == Outcome::Cleared as u8;
    let told = events.iter().filter(is_note).count();
    ensure!(events.len() - told == usize::from(!everyday), "{} events for {:?}", events.len(), expected.outcome);
    let Some(event) = events.iter().find(|event| !is_note(event)) else { return Ok(()) };
    let hook = match asked.hook {
        Hook::PodIn => hook::POD_IN,
        Hook::PodOut => hook::POD_OUT,
        Hook::BridgeIn => hook::BRIDGE_IN,
        Hook::NodeIn => hook::NODE_IN,
        Hook::NodeOut => hook::NODE_OUT,
        Hook::Xdp => hook::XDP,
    };
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => [address.octets().as_slice(), &[0; 12]].concat(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let Asked { src, dst, protocol, .. } = asked;
    ensure!(
        event.src[..] == octets(src.ip())
            && event.dst[..] == octets(dst.ip())
            && (event.src_port, event.dst_port) == (src.port(), dst.port())
            && (event.protocol, event.family) == (tables::number(protocol), if src.is_ipv4() { 4 } else { 6 })
            && (event.outcome, event.hook) == (expected.outcome as u8, hook)
            && (event.service, event.backend) == (expected.service, expected.backend),
        "for {expected:?} the event {event:?}"
    );
    Ok(())
}

/// Counted for service and backend; the packets of a known flow for neither, as the programs are loaded here (`--flow-counters off`).
fn compare_stats(expected: &Expected, family: IpAddr, stats: &[(StatKey, u64)]) -> Result<()> {
    let mut demanded = Vec::new();
    let uncounted = [Outcome::Passed, Outcome::HandedToTc, Outcome::Forwarded, Outcome::Replied];
    if !uncounted.contains(&expected.outcome) {
        let outcome = expected.outcome as u8;
        let backend_kind = if family.is_ipv4() { stat_kind::BACKEND4 } else { stat_kind::BACKEND6 };
        for (id, kind) in [(expected.service, stat_kind::SERVICE), (expected.backend, backend_kind)] {
            if id != 0 {
                demanded.push((StatKey { id, kind, outcome, pad: 0 }, 1));
            }
        }
    }
    for &(id, outcome) in &expected.notes {
        let kind = if family.is_ipv4() { stat_kind::BACKEND4 } else { stat_kind::BACKEND6 };
        demanded.push((StatKey { id, kind, outcome: outcome as u8, pad: 0 }, 1));
    }
    let mut stats = stats.to_vec();
    stats.sort_unstable();
    demanded.sort_unstable();
    ensure!(stats == demanded, "counted {stats:?} instead of {demanded:?}");
    Ok(())
}

/// Source and destination as they stand in the bytes.
fn ends(frame: &Frame, bytes: &[u8]) -> (SocketAddr, SocketAddr) {
    let at = |from: usize| -> Option<u16> { Some(u16::from_be_bytes(bytes.get(from..from + 2)?.try_into().ok()?)) };
    let v4 = |from: usize| -> Option<IpAddr> { Some(<[u8; 4]>::try_from(bytes.get(from..from + 4)?).ok()?.into()) };
    let v6 = |from: usize| -> Option<IpAddr> { Some(<[u8; 16]>::try_from(bytes.get(from..from + 16)?).ok()?.into()) };
    let read = || {
        let ports = 14 + if frame.src.is_ipv4() { 20 + frame.ip_options.len() } else { 40 };
        let (src, dst) = if frame.src.is_ipv4() { (v4(26)?, v4(30)?) } else { (v6(22)?, v6(38)?) };
        Some((SocketAddr::new(src, at(ports)?), SocketAddr::new(dst, at(ports + 2)?)))
    };
    // A packet too short for that is no rewritten one.
    read().unwrap_or((frame.src, frame.dst))
}
