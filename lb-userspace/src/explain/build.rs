//! From a decision and its trace to the explanation.

use std::net::SocketAddr;

use lb_common::abi::{
    Affinity, Backend, FlowKey, Service, ServiceKey, affinity_tag, backend_flags, fast_path, flow_flags, frontend_kind,
    network_flags, scheduler, seal, service_flags, tag,
};
use lb_common::decide::{Action, Now, Packet, Tables as _, is_this_node, is_vip};
use lb_common::map;
use lb_common::outcome::Outcome;

use super::candidates::{self, By, NewConnection, Set};
use super::change;
use super::decision::{self, Decision};
use super::explanation::{AffinityView, ConnectionView, Explanation, FrontendView, PacketView, PolicyView, ResultView};
use super::overlay::Overlay;
use super::question::{Seat, Seen};
use super::reported::Reported;
use super::stored::{DecisionContext, Stored};
use crate::observe::inventory::{flow_state_name, ip, kind_name, protocol_name, scheduler_name, state_name};
use lb_tables::from_chars;

/// A packet at its first hook, which is to be explained.
#[derive(Clone, Debug)]
pub struct PacketAtHook<const N: usize> {
    pub packet: Packet<N>,
    pub port_is_assumed: bool,
    pub seat: Seat,
    pub reported: Reported,
}

/// Explains what becomes of the packet.
pub fn explain<const N: usize, S: Stored>(
    stored: &S,
    settings: DecisionContext,
    asked: PacketAtHook<N>,
) -> Explanation {
    let PacketAtHook { packet, port_is_assumed, seat, reported } = asked;
    let key = packet.key;
    let decision = decision::run(stored, DecisionContext { link: seat.ifindex, ..settings }, seat.program, packet);
    let frontend = frontend_of(stored, &key, &decision);
    let now = Now::from_ns(settings.now_ns);
    let connection = connection(stored, &key, &decision, now);
    let is_of_client = frontend.is_some_and(|(of, _)| of.address == asked_address(&key, seat.program));
    let view = frontend.map(|(of, service)| view_of(stored, &of, &service));
    let problems = view.as_ref().map(|view| reported.problems(view, protocol_name(key.protocol), view.address));
    let mut problems = problems.unwrap_or_default();
    let draining = reported.draining(&problems);
    problems.retain(|problem| !problem.partial);
    let lacks = problems.iter().find_map(|problem| problem.lacks.as_deref());
    let asked = frontend.filter(|_| is_of_client).map(|(_, service)| NewConnection {
        stored,
        key,
        service,
        set: set(&service, client(stored, settings, seat.program, &key, &decision)),
        now,
        is_socket: seat.program == Seen::Socket,
        is_local: seat.program != Seen::NodeIn,
        draining: &draining,
    });
    let by = by(&decision, asked.as_ref().map(|asked| asked.service), connection.is_some(), port_is_assumed);
    let found = asked.as_ref().map(|asked| candidates::list(asked, by, &decision)).unwrap_or_default();
    // Without the set of a service, what chance decides is not known.
    let is_open = found.is_open || (asked.is_none() && decision.trace.is_by_chance::<map::Slots>());
    let (candidates, eligible) = (found.views, found.eligible);
    let name = view.as_ref().filter(|_| decision.action != Action::Pass).map_or_else(
        || SocketAddr::new(ip(key.dst), key.dst_port).to_string(),
        |view| format!("{}/{}", view.namespace, view.name),
    );
    let result = result(&decision, &key, is_open);
    Explanation {
        packet: PacketView {
            source: SocketAddr::new(ip(key.src), key.src_port),
            port_is_assumed,
            destination: SocketAddr::new(ip(key.dst), key.dst_port),
            protocol: protocol_name(key.protocol),
            segment: if connection.as_ref().is_some_and(|found| found.table != "half-open") {
                "later"
            } else {
                "first"
            },
        },
        affinity: asked.as_ref().and_then(|asked| affinity(stored, &asked.service, &decision, by, now)),
        policy: asked
            .as_ref()
            .map(|asked| policy(asked, settings, client(stored, settings, seat.program, &key, &decision), &decision)),
        change: change::sentence(decision.action, decision.outcome, &name, eligible, lacks),
        result: ResultView {
            // The port of one that is reached by encapsulation stands in its own record.
            backend: candidates.iter().find(|one| one.chosen).map(|one| one.address).or(result.backend),
            fast_path_open: seat.program == Seen::PodIn && is_fast_path_open(stored, settings, &decision),
            ..result
        },
        hook: seat,
        frontend: view,
        endpoint_problems: problems,
        connection,
        candidates,
    }
}

/// The address under which a frontend is looked up.
fn asked_address<const N: usize>(key: &FlowKey<N>, seen: Seen) -> [u8; N] {
    if seen == Seen::Socket && is_this_node(&key.dst) { [0; N] } else { key.dst }
}

/// The frontend that the packet is for, or that it answers for.
fn frontend_of<const N: usize, S: Stored>(
    stored: &S,
    key: &FlowKey<N>,
    decision: &Decision<N>,
) -> Option<(ServiceKey<N>, Service)> {
    let protocol = key.protocol;
    let (address, port) =
        if decision.action == Action::ToClient { (decision.address, decision.port) } else { (key.dst, key.dst_port) };
    let exact = ServiceKey { address, port, protocol, pad: 0 };
    let any = ServiceKey { address: [0; N], ..exact };
    [exact, any]
        .into_iter()
        .filter(|key| *key == exact || is_this_node(&address))
        .find_map(|key| Some((key, stored.get::<map::Services<N>>(&key)?)))
        .filter(|(key, service)| service.seal == seal(key, service))
}

/// Who asks, as the decision takes it.
fn client<const N: usize, S: Stored>(
    stored: &S,
    settings: DecisionContext,
    seen: Seen,
    key: &FlowKey<N>,
    decision: &Decision<N>,
) -> &'static str {
    // A SYN that is retried is served as its connection began, wherever it comes now.
    if decision.outcome == Outcome::Retried {
        let mut found = decision.trace.found::<map::HalfOpen<N>>();
        let is_external = found.any(|(of, entry)| of == *key && entry.flow.flags & flow_flags::EXTERNAL != 0);
        return if is_external { "external" } else { "local" };
    }
    if seen != Seen::NodeIn {
        return "local";
    }
    let flags = stored.network(&key.src);
    let is_service = is_vip(&mut Overlay::new(stored, settings), &key.src);
    match flags {
        _ if flags & network_flags::NODE != 0 || is_service => "martian",
        _ if flags & network_flags::PODS != 0 => "pod",
        _ if flags & network_flags::PEER != 0 => "node",
        _ => "external",
    }
}

/// The set of the service that serves the client.
fn set(service: &Service, client: &str) -> Set {
    let is_internal = client == "local" || service.kind == frontend_kind::CLUSTER_IP;
    let (base, count, flag) = if is_internal {
        (service.slot_base, service.slot_count, service_flags::INSIDE_LOCAL)
    } else {
        (service.external_base, service.external_count, service_flags::OUTSIDE_LOCAL)
    };
    Set { base, count, is_local: service.flags & flag != 0 }
}

fn policy<const N: usize, S: Stored>(
    asked: &NewConnection<'_, N, S>,
    settings: DecisionContext,
    client: &'static str,
    decision: &Decision<N>,
) -> PolicyView {
    let service = &asked.service;
    let has_ranges = service.flags & service_flags::SOURCE_RANGES != 0;
    let is_internal = client == "local" || service.kind == frontend_kind::CLUSTER_IP;
    let admits = if asked.is_socket {
        service.flags & service_flags::NODE_ALLOWED != 0
    } else {
        Overlay::new(asked.stored, settings).admitted(service.id, &asked.key.src)
    };
    let is_empty = service_flags::DROP_IF_EMPTY | service_flags::DROP_OUTSIDE_IF_EMPTY;
    let is_local =
        asked.set.is_local || (decision.outcome == Outcome::DroppedNoLocalEndpoint && service.flags & is_empty != 0);
    PolicyView {
        client,
        applies: if is_internal { "internal" } else { "external" },
        traffic_policy: if is_local { "Local" } else { "Cluster" },
        source_ranges_admit: has_ranges.then_some(admits),
        rate_limit: (service.rate != 0).then_some(service.rate),
    }
}

/// What the client's affinity says, if the decision asked for it.
fn remembered<const N: usize>(decision: &Decision<N>) -> Option<Affinity> {
    let mut found = decision.trace.found::<map::Affinity<N>>();
    found.find(|(key, affinity)| affinity.tag == affinity_tag(key)).map(|(_, affinity)| affinity)
}

/// How a backend comes to be chosen.
fn by<const N: usize>(decision: &Decision<N>, service: Option<Service>, is_known: bool, port_is_assumed: bool) -> By {
    let Some(service) = service else { return By::Nothing };
    let slots = decision.trace.reads::<map::Slots>();
    let names = |backend: u32| decision.backend == backend && backend != 0;
    let remembered = remembered(decision).is_some_and(|affinity| names(affinity.backend));
    if decision.backend == 0 {
        By::Nothing
    } else if slots == 0 && remembered {
        By::Affinity
    } else if slots == 0 && is_known {
        By::Connection
    } else if decision.trace.is_by_chance::<map::Slots>() && service.scheduler == scheduler::LEAST_CONNECTIONS {
        By::Load
    } else if !decision.trace.is_by_chance::<map::Slots>()
        && service.affinity_timeout_s != 0
        && service.flags & service_flags::DSR == 0
    {
        By::Client
    } else if decision.trace.is_by_chance::<map::Slots>() || (port_is_assumed && service.scheduler == scheduler::MAGLEV)
    {
        By::Chance
    } else {
        By::Scheduler
    }
}

/// The entry that the tables hold of the packet's tuple.
fn connection<const N: usize, S: Stored>(
    stored: &S,
    key: &FlowKey<N>,
    decision: &Decision<N>,
    now: Now,
) -> Option<ConnectionView> {
    let trace = &decision.trace;
    let established = trace.found::<map::Flows<N>>().map(|(of, flow)| ("established", of, flow));
    let udp = trace.found::<map::UdpFlows<N>>().map(|(of, flow)| ("udp", of, flow));
    let half_open = trace.found::<map::HalfOpen<N>>().map(|(of, entry)| ("half-open", of, entry.flow));
    let half_open = half_open.filter(|(_, of, flow)| flow.tag == tag(of));
    let (table, _, flow) = established.chain(udp).chain(half_open).find(|(_, of, _)| of == key)?;
    #[expect(clippy::cast_possible_truncation, reason = "entries keep the low 16 bits")]
    let backend =
        stored.get::<map::Backends<N>>(&flow.backend).filter(|backend| backend.generation as u16 == flow.generation);
    Some(ConnectionView {
        table,
        state: flow_state_name(flow.state),
        direction: if flow.flags & flow_flags::REPLY == 0 { "original" } else { "reply" },
        backend: backend.map(|backend| SocketAddr::new(ip(backend.address), backend.port)),
        backend_state: backend.map(|backend| state_name(backend.state)),
        age_seconds: now.s.saturating_sub(flow.since_s),
        idle_seconds: now.s.saturating_sub(flow.seen_s),
    })
}

fn affinity<const N: usize, S: Stored>(
    stored: &S,
    service: &Service,
    decision: &Decision<N>,
    by: By,
    now: Now,
) -> Option<AffinityView> {
    if service.affinity_timeout_s == 0 {
        return None;
    }
    let found = remembered(decision);
    let backend = found.and_then(|affinity| stored.get::<map::Backends<N>>(&affinity.backend));
    Some(AffinityView {
        timeout_seconds: service.affinity_timeout_s,
        backend: backend.map(|backend| SocketAddr::new(ip(backend.address), backend.port)),
        age_seconds: found.map(|affinity| now.ds.saturating_sub(affinity.seen_ds) / 10),
        used: by == By::Affinity,
    })
}

fn view_of<const N: usize, S: Stored>(stored: &S, key: &ServiceKey<N>, service: &Service) -> FrontendView {
    let name = stored.get::<map::Names>(&service.id);
    let text = |chars: Option<&[i8]>| chars.map(from_chars).unwrap_or_default();
    FrontendView {
        namespace: text(name.as_ref().map(|name| &name.namespace[..])),
        name: name.as_ref().map_or_else(|| format!("#{}", service.id), |name| from_chars(&name.name)),
        port: name.as_ref().map_or(key.port, |name| name.port),
        port_name: text(name.as_ref().map(|name| &name.port_name[..])),
        id: service.id,
        address: SocketAddr::new(ip(key.address), key.port),
        kind: kind_name(service.kind),
        scheduler: scheduler_name(service.scheduler),
    }
}

fn result<const N: usize>(decision: &Decision<N>, key: &FlowKey<N>, is_open: bool) -> ResultView {
    let to_backend = decision.action == Action::ToBackend;
    let is_sent = to_backend || decision.action == Action::ToClient;
    let (from, to) = if to_backend {
        ((decision.client, decision.client_port), (decision.address, decision.port))
    } else {
        ((decision.address, decision.port), (decision.client, decision.client_port))
    };
    let is_whole = to_backend && decision.port == 0;
    let place = |(address, port): ([u8; N], u16)| SocketAddr::new(ip(address), port);
    // A SNAT port other than the client's is drawn by chance.
    let port_changes = to_backend && decision.client_port != key.src_port;
    let changed = |after, before| (is_sent && !is_whole && after != before).then(|| place(after));
    ResultView {
        action: match decision.action {
            Action::Pass => "pass",
            Action::ToBackend => "to-backend",
            Action::ToClient => "to-client",
            Action::Refuse => "refuse",
            Action::Drop => "drop",
        },
        outcome: decision.outcome.name(),
        served: is_sent || decision.action == Action::Pass,
        deterministic: !is_open && !port_changes,
        backend: (to_backend && !is_open && !is_whole).then(|| place(to)),
        source_after: changed(from, (key.src, key.src_port)),
        destination_after: changed(to, (key.dst, key.dst_port)).filter(|_| !is_open),
        masquerade: decision.masquerade,
        route: match (is_whole, is_sent) {
            (true, _) => "encapsulated",
            (false, true) if decision.link != 0 => "fast-path",
            (false, true) => "stack",
            (false, false) => "none",
        },
        fast_path_open: false,
    }
}

/// Whether new connections of pods to the backend get the fast path, as far as the tables show.
fn is_fast_path_open<const N: usize, S: Stored>(stored: &S, settings: DecisionContext, decision: &Decision<N>) -> bool {
    let backend = stored.get::<map::Backends<N>>(&decision.backend).filter(|_| decision.action == Action::ToBackend);
    let kind = |backend: Backend<N>| {
        if backend.flags & backend_flags::LOCAL == 0 { fast_path::NODES } else { fast_path::PODS }
    };
    let open = fast_path::at(stored.get::<map::FastPath>(&0).unwrap_or_default(), settings.now_ns);
    !decision.masquerade && backend.is_some_and(|backend| open & kind(backend) != 0)
}
