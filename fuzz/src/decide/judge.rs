//! What holds after every packet, whatever the script: where packets go, what is counted, and which entries are left.

use std::collections::HashMap;

use lb_common::abi::{
    Flow, FlowKey, HalfOpen, MOST_MOVES, ServiceKey, UDP, backend_flags, flow_flags, flow_state, frontend_kind,
    half_open_flags, is_claim, is_second as is_second_key, network_flags, second, service_flags, tag,
};
use lb_common::decide::{Action, Hook, Packet, Tables as _, Verdict, Work, pair_key};
use lb_common::outcome::Outcome;
use lb_common::state::{self, tcp_flag};

use super::scene::{Scene, address, net};

/// What was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueryKind {
    /// A packet of a flow, or the first one of one.
    Packet,
    /// An ICMP error that refuses a connection.
    Refusal,
    /// An ICMP error about a flow's packet.
    Error,
    /// One about a packet that this node has sent in an outer header.
    Outer,
    /// A fragment, a packet whose headers contradict each other, or one of another protocol.
    Beside,
}

/// A packet, and the flows as they were before it.
pub(super) struct Seen<const N: usize> {
    kind: QueryKind,
    hook: Hook,
    packet: Packet<N>,
    chosen: [u8; N],
    flows: HashMap<FlowKey<N>, Flow<N>>,
    half_open: HashMap<FlowKey<N>, HalfOpen<N>>,
}

impl<const N: usize> Seen<N> {
    pub(super) fn before(scene: &mut Scene<N>, kind: QueryKind, hook: Hook, work: &Work<N>) -> Self {
        scene.tables.notes.clear();
        let (flows, half_open) = (scene.tables.flows.clone(), scene.tables.half_open.clone());
        Self { kind, hook, packet: work.packet, chosen: work.chosen, flows, half_open }
    }
}

/// Panics where a rule is broken.
pub(super) fn judge<const N: usize>(scene: &mut Scene<N>, seen: &Seen<N>, verdict: &Verdict<N>) {
    scene.outcomes.insert(verdict.outcome);
    assert!(is_said(verdict), "{:?}: {verdict:?}", seen.kind);
    match verdict.action {
        Action::ToBackend => to_backend(scene, seen, verdict),
        Action::ToClient => to_client(scene, seen, verdict),
        Action::Refuse => assert!(
            seen.packet.tcp_flags & tcp_flag::RST == 0 || seen.kind == QueryKind::Outer,
            "a RST is never answered: {verdict:?}"
        ),
        Action::Pass | Action::Drop => {}
    }
    if is_new(verdict.outcome) && seen.kind == QueryKind::Packet {
        begins(scene, seen, verdict);
    }
    if matches!(seen.kind, QueryKind::Error | QueryKind::Outer | QueryKind::Beside) {
        let tables = &scene.tables;
        assert!(tables.flows == seen.flows && tables.half_open == seen.half_open, "{:?} changes a flow", seen.kind);
    }
    notes(scene);
    entries(scene);
    connections(scene);
}

/// Whether this outcome comes with this action.
fn is_said<const N: usize>(verdict: &Verdict<N>) -> bool {
    use Outcome as O;
    match verdict.action {
        Action::Pass => {
            matches!(
                verdict.outcome,
                O::Passed | O::AmbiguousUdp | O::Fragment | O::PassedAdoption | O::Adopted | O::PassedHandOver
            )
        }
        Action::ToBackend => {
            is_new(verdict.outcome)
                || matches!(verdict.outcome, O::Forwarded | O::Retried | O::DirectTranslated | O::Tunnelled)
                || matches!(verdict.outcome, O::IcmpTranslated | O::FragmentFollowed)
        }
        Action::ToClient => matches!(verdict.outcome, O::Replied | O::IcmpTranslated | O::FragmentFollowed),
        Action::Refuse => matches!(
            verdict.outcome,
            O::RefusedNoEndpoint
                | O::RefusedNoFlow
                | O::RefusedLate
                | O::RefusedUnserved
                | O::Evicted
                | O::IcmpTranslated
        ),
        Action::Drop => {
            matches!(
                verdict.outcome,
                O::DroppedNoLocalEndpoint
                    | O::DroppedNoPort
                    | O::DroppedTableFull
                    | O::DroppedTorn
                    | O::DroppedMalformed
                    | O::DroppedSourceRange
                    | O::DroppedFragment
                    | O::DroppedNoAddress
                    | O::DroppedMartian
                    | O::DroppedNotHere
                    | O::DroppedRateLimit
                    | O::DroppedNoService
                    | O::HeldForHandOver
            ) || matches!(verdict.outcome, O::SuppressedRefusal | O::RefusedLate | O::Evicted)
                // What would be refused, had it not been a RST.
                || matches!(verdict.outcome, O::RefusedNoEndpoint | O::RefusedNoFlow | O::RefusedUnserved)
        }
    }
}

/// What the first packet of a flow counts as.
const fn is_new(outcome: Outcome) -> bool {
    use Outcome as O;
    matches!(
        outcome,
        O::Selected
            | O::Moved
            | O::PortTranslated
            | O::Probed
            | O::Masqueraded
            | O::Tunnelled
            | O::SelectedByTuple
            | O::Resumed
            | O::SecondHandshake
    )
}

/// The frontend that the packet's tuple names.
fn frontend<const N: usize>(scene: &Scene<N>, key: &FlowKey<N>, is_chosen: bool) -> Option<lb_common::abi::Service> {
    let named = ServiceKey { address: key.dst, port: key.dst_port, protocol: key.protocol, pad: 0 };
    let any = ServiceKey { address: [0; N], ..named };
    let services = &scene.tables.services;
    services.get(&named).or_else(|| services.get(&any).filter(|_| is_chosen)).copied()
}

/// A request goes to a backend of the service that it names, and to nowhere else.
fn to_backend<const N: usize>(scene: &Scene<N>, seen: &Seen<N>, verdict: &Verdict<N>) {
    let key = &seen.packet.key;
    assert!(seen.hook.has(Hook::REQUESTS), "{:?} translates no requests", seen.hook);
    if verdict.backend == 0 {
        // A direct connection: only its source port is another one.
        assert_eq!((verdict.address, verdict.port, verdict.client), (key.dst, key.dst_port, key.src));
        assert!(!verdict.masquerade && seen.hook.has(Hook::FROM_CLIENT), "{verdict:?}");
        return;
    }
    let backend = &scene.tables.backends[&verdict.backend];
    let keeps = if key.protocol == UDP || verdict.port == 0 { state::keeps_flows } else { state::lasts };
    assert!(keeps(backend, scene.tables.now_ds()), "to a backend that is gone: {verdict:?}");
    assert_eq!(verdict.address, backend.address);
    // A flow that came in an outer header goes on without one, so the wildcard is checked as well.
    let service = frontend(scene, key, true).unwrap_or_else(|| panic!("{key:?} is no service's: {verdict:?}"));
    assert_eq!(backend.service, service.id, "to a backend of another service: {verdict:?}");
    if verdict.port == 0 {
        assert!(verdict.route && !verdict.masquerade && verdict.client == key.src, "{verdict:?}");
        return;
    }
    assert_eq!(verdict.port, backend.port);
    if verdict.masquerade {
        // Of this node, also where it has lost the address since.
        let own = [1, 3].map(|host| address(net::NODES, host));
        let is_itself = key.src == backend.address && verdict.client == key.dst;
        assert!(is_itself || own.contains(&verdict.client), "masqueraded: {verdict:?}");
    } else {
        assert_eq!(verdict.client, key.src);
    }
    let ports = scene.tables.ports;
    let is_of_range =
        verdict.client_port.wrapping_sub(ports.first) < ports.count || ports.is_reused(verdict.client_port);
    assert!(verdict.client_port == key.src_port || is_of_range, "a port of nobody's: {verdict:?}");
}

/// An answer comes from its backend, and is shown as its service's.
fn to_client<const N: usize>(scene: &Scene<N>, seen: &Seen<N>, verdict: &Verdict<N>) {
    let key = &seen.packet.key;
    let (hook, early) = (seen.hook, seen.hook.has(Hook::EARLY_REPLIES));
    assert!(hook.has(Hook::REPLIES) || early, "{hook:?} sees no answers");
    if verdict.backend == 0 {
        assert_eq!((verdict.address, verdict.port, verdict.client), (key.src, key.src_port, key.dst));
        return;
    }
    let backend = &scene.tables.backends[&verdict.backend];
    let keeps = if key.protocol == UDP { state::keeps_flows } else { state::lasts };
    assert!(keeps(backend, scene.tables.now_ds()), "an answer of one that is gone: {verdict:?}");
    assert_eq!((key.src, key.src_port), (backend.address, backend.port), "an answer of somebody else: {verdict:?}");
    let asked = FlowKey {
        src: verdict.client,
        dst: verdict.address,
        src_port: verdict.client_port,
        dst_port: verdict.port,
        ..*key
    };
    let service = frontend(scene, &asked, true).unwrap_or_else(|| panic!("{asked:?} is no service's: {verdict:?}"));
    assert_eq!(backend.service, service.id, "an answer in another service's name: {verdict:?}");
    assert!(verdict.masquerade || verdict.client == key.dst, "{verdict:?}");
}

/// A new flow is one that its service lets begin.
fn begins<const N: usize>(scene: &mut Scene<N>, seen: &Seen<N>, verdict: &Verdict<N>) {
    let key = &seen.packet.key;
    let is_chosen = seen.chosen != [0; N];
    let service = frontend(scene, key, is_chosen).expect("a service");
    let backend = scene.tables.backends[&verdict.backend];
    if service.flags & service_flags::SOURCE_RANGES != 0 {
        assert!(scene.tables.admitted(service.id, &key.src), "from outside the source ranges: {verdict:?}");
    }
    if seen.hook.has(Hook::FROM_OUTSIDE) {
        let source = scene.tables.network(&key.src);
        assert!(source & network_flags::NODE == 0, "from the wire in this node's name: {verdict:?}");
    }
    if is_chosen {
        assert_eq!(backend.address, seen.chosen, "another backend than the first node chose: {verdict:?}");
        assert!(verdict.masquerade || backend.flags & backend_flags::LOCAL != 0);
    }
    let is_whole = verdict.outcome == Outcome::Tunnelled;
    assert_eq!(is_whole, verdict.port == 0, "{verdict:?}");
    if is_whole {
        assert!(service.flags & service_flags::DSR != 0 && service.kind != frontend_kind::CLUSTER_IP);
        assert!(seen.hook.has(Hook::FROM_OUTSIDE) && backend.flags & backend_flags::LOCAL == 0, "{verdict:?}");
    }
}

/// Each noted outcome agrees with the record of the backend's health.
fn notes<const N: usize>(scene: &Scene<N>) {
    for (backend, outcome) in &scene.tables.notes {
        let is_ejected = scene.tables.health.get(backend).is_some_and(|health| health.ejected_s != 0);
        match outcome {
            Outcome::Ejected => assert!(is_ejected, "backend {backend} is counted as ejected, and is not"),
            Outcome::Cleared => assert!(!is_ejected, "backend {backend} is counted as cleared, and is ejected"),
            other => panic!("{other:?} is nothing that is learnt of a backend"),
        }
    }
}

/// A backend has at most as many connections as flows in the table are counted for it. Fewer are healed by the sweep's count, too.
fn connections<const N: usize>(scene: &Scene<N>) {
    let tables = &scene.tables;
    for (id, health) in &tables.health {
        let Some(backend) = tables.backends.get(id).filter(|backend| backend.generation == health.generation) else {
            continue;
        };
        let counted = scene.counted(*id, backend.generation);
        assert!(health.connections <= counted, "backend {id} has {counted} connections: {health:?}");
    }
}

/// Every entry makes sense, and two that lead to each other are one flow's.
fn entries<const N: usize>(scene: &Scene<N>) {
    let tables = &scene.tables;
    for (key, flow) in &tables.flows {
        assert_eq!(flow.tag, tag(key));
        assert!((flow_state::HALF_OPEN..=flow_state::HELD).contains(&flow.state), "{flow:?}");
        assert!(flow.second & !second::BESIDE == 0, "a second handshake among the established ones: {flow:?}");
        let other_key = pair_key(key, flow);
        let other = tables.flows.get(&other_key).filter(|other| pair_key(&other_key, other) == *key);
        if let Some(other) = other {
            pair(flow, other);
        }
    }
    for (key, entry) in &tables.half_open {
        assert_eq!(entry.flow.tag, tag(key));
        let is_original = entry.flow.flags & flow_flags::REPLY == 0;
        let is_second = entry.flow.second & second::OWN != 0;
        assert_eq!(is_second && is_original, is_second_key(key), "a second handshake's: {key:?} {entry:?}");
        assert!(usize::from(entry.moves) <= MOST_MOVES, "{entry:?}");
        let has = |flag| entry.flags & flag != 0;
        let is_reply = entry.flow.flags & flow_flags::REPLY != 0;
        assert!(!has(half_open_flags::LOST) || is_reply, "only a backend loses: {entry:?}");
        assert!(!is_claim(key) || has(half_open_flags::CLAIMED), "a claim's entry: {key:?} {entry:?}");
        assert!(!has(half_open_flags::SECOND) || !is_reply, "only a client asks twice: {entry:?}");
    }
}

fn pair<const N: usize>(flow: &Flow<N>, other: &Flow<N>) {
    const SAME: u8 = flow_flags::DIRECT | flow_flags::MASQUERADED;
    assert_eq!((flow.flags ^ other.flags) & flow_flags::REPLY, flow_flags::REPLY, "{flow:?} and {other:?}");
    assert_eq!(flow.flags & SAME, other.flags & SAME, "{flow:?} and {other:?}");
    assert_eq!((flow.backend, flow.generation), (other.backend, other.generation), "{flow:?} and {other:?}");
    assert_eq!((flow.isn, flow.since_s), (other.isn, other.since_s), "{flow:?} and {other:?}");
}
