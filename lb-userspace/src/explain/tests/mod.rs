//! Each refusal and each reason, over tables in memory.

mod memory;
mod names;
mod slices;

use lb_common::abi::{
    Affinity, AffinityKey, Bucket, BucketKey, Flow, FlowKey, HalfOpen, Health, TCP, affinity_tag, backend_flags,
    backend_state, client_tag, fast_path, flow_state, frontend_kind, network_flags, scheduler, service_flags, tag,
    vip_flags,
};
use lb_common::decide::{Packet, pair_key};
use lb_common::limits::HAND_OVER;
use lb_common::state::tcp_flag::ACK;

use super::explanation::{CandidateView, Explanation};
use super::question::packet;
use super::{PacketAtHook, Reported, Seat, Seen, explain};
use memory::{CLIENT, Memory, NOW_S, SERVICE, VIP, key};

/// What is said of the packet at this hook.
fn at(memory: &Memory, seen: Seen, packet: Packet<4>) -> Explanation {
    at_beside(memory, seen, packet, Reported::default())
}

/// [`at`] beside an agent that reports so much.
fn at_beside(memory: &Memory, seen: Seen, packet: Packet<4>, reported: Reported) -> Explanation {
    let seat = Seat { program: seen, ifindex: 0, reason: String::new() };
    explain(memory, Memory::settings(), PacketAtHook { packet, port_is_assumed: false, seat, reported })
}

/// What is said of the next packet of the client pod.
fn said(memory: &Memory) -> Explanation {
    at(memory, Seen::PodIn, packet(memory, key()))
}

fn outcome(explanation: &Explanation) -> (&'static str, &'static str, bool) {
    (explanation.result.action, explanation.result.outcome, explanation.result.served)
}

fn candidate(explanation: &Explanation, id: u32) -> &CandidateView {
    explanation.candidates.iter().find(|one| one.id == id).expect("a backend of the service")
}

#[test]
fn a_new_connection_meets_one_of_the_candidates_by_chance() {
    let explained = said(&Memory::serving(2));
    assert_eq!(outcome(&explained), ("to-backend", "selected", true));
    assert_eq!((explained.result.backend, explained.result.deterministic), (None, false));
    assert!(explained.candidates.iter().all(|one| one.eligible && !one.chosen && one.chance == Some(0.5)));
    let one = said(&Memory::serving(1));
    assert_eq!(one.result.backend, Some("10.1.0.1:8080".parse().unwrap()));
    assert!(one.result.deterministic && one.candidates[0].chosen);
    assert_eq!(one.change, "a second ready endpoint of demo/web");
}

#[test]
fn nothing_is_written() {
    let memory = Memory::serving(2);
    let before = format!("{memory:?}");
    said(&memory);
    assert_eq!(format!("{memory:?}"), before);
}

#[test]
fn each_state_is_a_reason() {
    let mut memory = Memory::serving(1);
    for (id, state, flags, reason) in [
        (2, backend_state::UNREADY, 0, "unready"),
        (3, backend_state::TERMINATING, 0, "terminating"),
        (4, backend_state::DRAINING, 0, "draining: no endpoint of the service port any more"),
        (5, backend_state::MAINTENANCE, 0, "in maintenance, by hand"),
        (6, backend_state::ACTIVE, backend_flags::UNHEALTHY, "unhealthy: its active checks fail"),
        (
            7,
            backend_state::ACTIVE,
            backend_flags::IN_CLUSTER_SET,
            "not in the set that serves this client: topology hints name other zones, or the tables are behind",
        ),
    ] {
        memory.put_backend(id, state, flags);
        let explained = said(&memory);
        let one = candidate(&explained, id);
        assert_eq!((one.reason.as_str(), one.eligible, one.chosen), (reason, false, false));
        assert!(candidate(&explained, 1).chosen);
    }
    // A backend that is gone is none.
    memory.put_backend(8, backend_state::GONE, 0);
    assert!(said(&memory).candidates.iter().all(|one| one.id != 8));
}

#[test]
fn a_local_policy_leaves_out_other_nodes() {
    let mut memory = Memory::serving(1);
    memory.change_service(|service| service.flags |= service_flags::INSIDE_LOCAL);
    memory.put_backend(2, backend_state::ACTIVE, backend_flags::IN_CLUSTER_SET);
    let explained = said(&memory);
    assert_eq!(candidate(&explained, 2).reason, "not on this node, and the traffic policy is Local");
    assert_eq!(explained.policy.expect("a frontend").traffic_policy, "Local");
}

#[test]
fn slots_that_are_behind_take_nothing() {
    let mut memory = Memory::serving(2);
    memory.backends.get_mut(&2).expect("there").flags &= !backend_flags::IN_CLUSTER_SET;
    let explained = said(&memory);
    assert_eq!(
        candidate(&explained, 2).reason,
        "takes no new connections any more; its slots are not written anew yet"
    );
    // A search may meet none but those: no backend is promised.
    let other = candidate(&explained, 1);
    assert!(other.eligible && other.chance == Some(1.0) && !other.chosen, "{other:?}");
}

#[test]
fn ejection_and_evidence_keep_new_connections_away() {
    let mut memory = Memory::serving(2);
    memory.health.insert(2, Health { generation: 1, ejected_s: NOW_S - 3, ..Health::default() });
    assert_eq!(candidate(&said(&memory), 2).reason, "ejected 3 s ago: the next connection probes it in 7 s");
    let client = client_tag(&CLIENT, SERVICE, 0);
    memory
        .health
        .insert(2, Health { generation: 1, evidence_client: client, evidence_s: NOW_S - 1, ..Health::default() });
    let explained = said(&memory);
    assert_eq!(candidate(&explained, 2).reason, "left a connection of this client unanswered, or refused it, lately");
    let other = candidate(&explained, 1);
    assert!(other.eligible && other.chance == Some(1.0), "{other:?}");
    // Another client's evidence alone says nothing, but to a process: nobody moves its connect.
    memory
        .health
        .insert(2, Health { generation: 1, evidence_client: client ^ 1, evidence_s: NOW_S, ..Health::default() });
    assert!(candidate(&said(&memory), 2).eligible);
    let explained = at(&memory, Seen::Socket, packet(&memory, key()));
    assert_eq!(candidate(&explained, 2).reason, "left a connection unanswered, or refused it, lately");
    // Where all are avoided, they serve rather than none.
    for id in [1, 2] {
        memory.health.insert(id, Health { generation: 1, ejected_s: NOW_S, ..Health::default() });
    }
    let explained = said(&memory);
    assert!(explained.candidates.iter().all(|one| one.eligible && one.chance == Some(0.5)), "{explained:#?}");
    assert!(explained.result.served);
}

#[test]
fn schedulers_name_the_next_backend_where_no_chance_decides() {
    let reasons = [
        (scheduler::ROUND_ROBIN, "the next slot in turn", "not its turn"),
        (scheduler::MAGLEV, "the tuple's slot in the Maglev table", "not in the tuple's slot of the Maglev table"),
        (scheduler::SOURCE_HASH, "the slot of the client's address", "not in the slot of the client's address"),
    ];
    for (scheduler, chosen, other) in reasons {
        let mut memory = Memory::serving(2);
        memory.change_service(|service| service.scheduler = scheduler);
        let explained = said(&memory);
        assert!(explained.result.deterministic && explained.result.backend.is_some());
        let [a, b] = [candidate(&explained, 1), candidate(&explained, 2)];
        let (one, rest) = if a.chosen { (a, b) } else { (b, a) };
        assert_eq!((one.chosen, one.reason.as_str(), rest.reason.as_str()), (true, chosen, other));
    }
    let mut memory = Memory::serving(2);
    memory.round_robin = 1;
    memory.change_service(|service| service.scheduler = scheduler::LEAST_CONNECTIONS);
    let explained = said(&memory);
    assert!(explained.candidates.iter().all(|one| one.reason == "may be chosen" && one.chance.is_none()));
    // Any port is no port: another one has another slot.
    memory.change_service(|service| service.scheduler = scheduler::MAGLEV);
    let seat = Seat { program: Seen::PodIn, ifindex: 0, reason: String::new() };
    let question =
        PacketAtHook { packet: packet(&memory, key()), port_is_assumed: true, seat, reported: Reported::default() };
    assert!(!explain(&memory, Memory::settings(), question).result.deterministic);
}

#[test]
fn affinity_names_the_backend_while_it_lasts() {
    let mut memory = Memory::serving(2);
    memory.change_service(|service| service.affinity_timeout_s = 60);
    let explained = said(&memory);
    let [a, b] = [candidate(&explained, 1), candidate(&explained, 2)];
    let (named, other) = if a.chosen { (a, b) } else { (b, a) };
    assert!(named.chosen && explained.result.deterministic, "{explained:#?}");
    assert_eq!(named.reason, "the client's hash names it in this period of the affinity's timeout");
    assert_eq!(other.reason, "the client's hash names another one in this period of the affinity's timeout");
    let new = explained.affinity.expect("the service has it");
    assert_eq!((new.backend, new.used), (None, false));
    let key = AffinityKey { client: CLIENT, service: SERVICE, netns: 0 };
    let stored = Affinity { tag: affinity_tag(&key), backend: 2, generation: 1, seen_ds: 10 * NOW_S - 50 };
    memory.affinity.insert(key, stored);
    let explained = said(&memory);
    assert_eq!(candidate(&explained, 2).reason, "the client's affinity names it");
    assert_eq!(candidate(&explained, 1).reason, "the client's affinity names another one");
    let used = explained.affinity.expect("stored");
    assert_eq!((used.age_seconds, used.used), (Some(5), true));
    memory.affinity.insert(key, Affinity { seen_ds: 10 * (NOW_S - 61), ..stored });
    assert!(!said(&memory).affinity.expect("stored").used, "its time is over");
}

/// Both entries of a connection with this backend.
fn connect(memory: &mut Memory, backend: u32) -> FlowKey<4> {
    let of = memory.backends[&backend];
    let own = Flow {
        tag: tag(&key()),
        backend,
        seen_s: NOW_S - 2,
        since_s: NOW_S - 9,
        address: of.address,
        client: CLIENT,
        port: of.port,
        client_port: key().src_port,
        generation: 1,
        state: flow_state::OPEN,
        ..Flow::ZERO
    };
    let reply = pair_key(&key(), &own);
    memory.flows.insert(key(), own);
    let flags = lb_common::abi::flow_flags::REPLY;
    let flow = Flow { tag: tag(&reply), address: VIP, port: 80, client_port: key().src_port, flags, ..own };
    memory.flows.insert(reply, flow);
    reply
}

#[test]
fn a_connection_keeps_a_backend_that_drains() {
    let mut memory = Memory::serving(2);
    memory.put_backend(2, backend_state::DRAINING, 0);
    let reply = connect(&mut memory, 2);
    let explained = said(&memory);
    assert_eq!(outcome(&explained), ("to-backend", "forwarded", true));
    let connection = explained.connection.as_ref().expect("known");
    assert_eq!((connection.table, connection.state, connection.direction), ("established", "open", "original"));
    assert_eq!((connection.backend_state, connection.age_seconds, connection.idle_seconds), (Some("draining"), 9, 2));
    assert!(candidate(&explained, 2).chosen);
    assert_eq!(candidate(&explained, 1).reason, "takes new connections; this one keeps its backend");
    // The backend's answer gets the service's address.
    let answer = at(&memory, Seen::PodOut, Packet::new(reply, ACK));
    assert_eq!(outcome(&answer), ("to-client", "replied", true));
    assert_eq!(answer.result.source_after, Some("10.96.0.1:80".parse().unwrap()));
    assert_eq!(answer.frontend.expect("the one that was asked").name, "web");
    // A backend that is gone ends it.
    memory.backends.get_mut(&2).expect("there").state = backend_state::GONE;
    assert_eq!(outcome(&said(&memory)), ("refuse", "evicted", false));
}

#[test]
fn adopted_connections_and_handshakes_are_told_from_others() {
    let mut memory = Memory::serving(1);
    connect(&mut memory, 1);
    memory.flows.get_mut(&key()).expect("there").state = flow_state::ADOPTED;
    assert_eq!(outcome(&said(&memory)), ("pass", "adopted", true));
    memory.flows.get_mut(&key()).expect("there").state = flow_state::HELD;
    assert_eq!(outcome(&said(&memory)).1, "held_for_hand_over");
    let flow = memory.flows.remove(&key()).expect("there");
    let flow = Flow { state: flow_state::HALF_OPEN, isn: 7, ..flow };
    // SAFETY: plain numbers.
    let zero: HalfOpen<4> = unsafe { std::mem::zeroed() };
    memory.half_open.insert(key(), HalfOpen { flow, ..zero });
    let explained = said(&memory);
    assert_eq!(explained.connection.as_ref().expect("a handshake").table, "half-open");
    assert!(explained.result.served, "{explained:#?}");
}

#[test]
fn each_refusal_has_its_name_and_what_would_change_it() {
    let check = |memory: &Memory, seen, name: &str, change: &str| {
        let explained = at(memory, seen, packet(memory, key()));
        assert_eq!((explained.result.outcome, explained.result.served), (name, false), "{explained:#?}");
        assert_eq!(explained.change, change);
    };
    let mut memory = Memory::serving(0);
    check(&memory, Seen::PodIn, "refused_no_endpoint", "a ready endpoint of demo/web");
    check(&memory, Seen::Socket, "socket_refused", "a ready endpoint of demo/web");
    memory.change_service(|service| service.flags = service_flags::DROP_IF_EMPTY);
    let change = "a ready endpoint of demo/web on this node, or the traffic policy Cluster";
    check(&memory, Seen::PodIn, "dropped_no_local_endpoint", change);
    check(&memory, Seen::Socket, "dropped_no_local_endpoint", change);

    let mut memory = Memory::serving(1);
    memory.change_service(|service| {
        service.flags = service_flags::SOURCE_RANGES;
        service.kind = frontend_kind::LOAD_BALANCER;
    });
    let change = "a client inside loadBalancerSourceRanges of demo/web";
    check(&memory, Seen::PodIn, "dropped_source_range", change);
    check(&memory, Seen::Socket, "dropped_source_range", change);
    assert_eq!(said(&memory).policy.expect("a frontend").source_ranges_admit, Some(false));
    memory.admits = true;
    assert!(said(&memory).result.served);

    let mut memory = Memory::serving(1);
    memory.change_service(|service| {
        (service.rate, service.burst, service.kind) = (1, 1, frontend_kind::LOAD_BALANCER);
    });
    let network = [10, 1, 9, 0, 0, 0, 0, 0];
    let due_ns = u64::from(NOW_S + 1) * 1_000_000_000;
    for bytes in 3..=4 {
        let mut network = network;
        network[3] = if bytes == 4 { CLIENT[3] } else { 0 };
        memory.buckets.insert(BucketKey { service: SERVICE, family: 4, network }, Bucket { due_ns });
    }
    let change = "fewer new connections from the client's network, or a higher rate limit of demo/web";
    check(&memory, Seen::NodeIn, "dropped_rate_limit", change);

    let mut memory = Memory::serving(1);
    memory.services.values_mut().for_each(|service| service.seal ^= 1);
    check(&memory, Seen::PodIn, "dropped_torn", "the next packet: the agent was writing this service");

    let mut memory = Memory::serving(1);
    memory.networks.insert(CLIENT, network_flags::NODE);
    let change = "a source that is no address of this node, of loopback or of a service";
    check(&memory, Seen::NodeIn, "dropped_martian", change);
    memory.networks.clear();
    let change = "an address of this node to masquerade with, in the client's family";
    check(&memory, Seen::NodeIn, "dropped_no_address", change);
    memory.masquerade = Some([10, 0, 0, 1]);
    let explained = at(&memory, Seen::NodeIn, packet(&memory, key()));
    assert_eq!(outcome(&explained), ("to-backend", "masqueraded", true));
    assert!(explained.result.masquerade);
    assert_eq!(explained.result.source_after.map(|place| place.ip()), Some("10.0.0.1".parse().unwrap()));
}

#[test]
fn what_asks_for_no_service_passes_or_meets_its_rule() {
    let mut memory = Memory::serving(1);
    memory.services.clear();
    assert_eq!(outcome(&said(&memory)), ("pass", "passed", true));
    assert_eq!(said(&memory).change, "a service with the frontend 10.96.0.1:80");
    memory.vips.insert(VIP, vip_flags::REFUSE_UNSERVED);
    assert_eq!(outcome(&said(&memory)), ("refuse", "refused_unserved", false));
    assert_eq!(outcome(&at(&memory, Seen::Socket, packet(&memory, key()))), ("refuse", "refused_unserved", false));
    memory.vips.clear();
    memory.networks.insert(VIP, network_flags::SERVICES);
    assert_eq!(outcome(&said(&memory)), ("drop", "dropped_no_service", false));
    // A segment of no connection.
    let memory = Memory::serving(1);
    let explained = at(&memory, Seen::PodIn, Packet::new(key(), ACK));
    assert_eq!(outcome(&explained), ("refuse", "refused_no_flow", false));
    assert!(explained.change.starts_with("a SYN"));
    assert_eq!(key().protocol, TCP);
}

#[test]
fn connections_that_are_given_away_pass() {
    let mut memory = Memory::serving(1);
    memory.adoption = HAND_OVER;
    assert_eq!(outcome(&said(&memory)), ("pass", "passed_hand_over", true));
    memory.adoption = NOW_S + 5;
    let explained = at(&memory, Seen::PodIn, Packet::new(key(), ACK));
    assert_eq!(outcome(&explained), ("pass", "passed_adoption", true));
}

#[test]
fn direct_return_and_the_fast_path_are_named() {
    let mut memory = Memory::serving(1);
    memory.change_service(|service| {
        (service.flags, service.kind) = (service_flags::DSR, frontend_kind::LOAD_BALANCER);
        service.scheduler = scheduler::MAGLEV;
    });
    memory.backends.get_mut(&1).expect("there").flags &= !backend_flags::LOCAL;
    let explained = at(&memory, Seen::NodeIn, packet(&memory, key()));
    assert_eq!((explained.result.outcome, explained.result.route), ("tunnelled", "encapsulated"));
    assert_eq!(explained.result.backend, Some("10.1.0.1:8080".parse().unwrap()));
    assert_eq!((explained.result.source_after, explained.result.destination_after), (None, None));
    let mut memory = Memory::serving(1);
    assert!(!said(&memory).result.fast_path_open);
    memory.fast_path = fast_path::until(fast_path::PODS, NOW_S + 10);
    assert!(said(&memory).result.fast_path_open);
}
