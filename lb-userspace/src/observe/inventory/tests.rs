//! A small set of tables, and what is seen of it.

use std::time::Duration;

use lb_common::abi::*;

use super::*;
use lb_tables::to_chars;

pub const NOW: Monotonic = Monotonic::from_duration(Duration::from_millis(100_500));

pub fn service(id: u32, slot_count: u32) -> Service {
    Service {
        id,
        generation: 1,
        slot_base: 0,
        slot_count,
        external_base: 0,
        external_count: slot_count,
        seal: 0,
        affinity_timeout_s: 0,
        scheduler: scheduler::RANDOM,
        flags: 0,
        kind: frontend_kind::CLUSTER_IP,
        pad: 0,
        rate: 0,
        burst: 0,
    }
}

pub fn backend<const N: usize>(address: [u8; N], state: u8, service: u32, deadline_ds: u32) -> Backend<N> {
    Backend {
        address,
        port: 8080,
        state,
        flags: 0,
        generation: 0x10001,
        service,
        deadline_ds,
        drain_ds: if state == backend_state::DRAINING { deadline_ds.min(1_100) } else { 0 },
        uid_hash: 0,
        weight: 1,
        pad: 0,
    }
}

pub fn name(namespace: &str, name: &str, port_name: &str) -> ServiceName {
    ServiceName {
        namespace: to_chars(namespace),
        name: to_chars(name),
        port_name: to_chars(port_name),
        port: 80,
        protocol: TCP,
        pad: 0,
    }
}

pub fn flow(client_port: u16, backend: u32, seen_s: u32, flags: u8) -> (FlowKey<4>, Flow<4>) {
    let key = FlowKey {
        src: [10, 1, 0, 9],
        dst: [10, 96, 0, 1],
        src_port: client_port,
        dst_port: 80,
        protocol: TCP,
        pad: [0; 3],
    };
    let flow = Flow {
        tag: 0,
        backend,
        seen_s,
        since_s: 0,
        isn: 0,
        address: [10, 1, 0, 2],
        client: [10, 1, 0, 9],
        port: 8080,
        client_port,
        generation: 1,
        state: flow_state::OPEN,
        flags,
        ..Flow::ZERO
    };
    (key, flow)
}

/// `demo/web` on both families with a backend in each state, and `other/empty` without any.
pub fn contents() -> Contents {
    let mut contents = Contents::default();
    let key4 = |last| ServiceKey { address: [10, 96, 0, last], port: 80, protocol: TCP, pad: 0 };
    let mut v6 = [0; 16];
    (v6[0], v6[15]) = (0xfd, 1);
    contents.v4.services = vec![(key4(2), service(2, 0)), (key4(1), service(1, 1))];
    contents.v6.services = vec![(ServiceKey { address: v6, port: 80, protocol: TCP, pad: 0 }, service(1, 1))];
    contents.v4.backends = vec![
        (1, backend([10, 1, 0, 2], backend_state::ACTIVE, 1, 0)),
        (2, backend([10, 1, 0, 3], backend_state::DRAINING, 1, 1_300)),
        (3, backend([10, 1, 0, 4], backend_state::GONE, 1, 900)),
    ];
    v6[15] = 2;
    contents.v6.backends = vec![(1, backend(v6, backend_state::ACTIVE, 1, 0))];
    contents.v4.flows = vec![
        flow(40_001, 1, 100, 0),
        flow(40_002, 1, 40, 0),
        flow(40_001, 1, 100, flow_flags::REPLY),
        flow(40_003, 2, 100, 0),
        flow(40_004, 0, 100, flow_flags::DIRECT),
    ];
    contents.names = vec![(1, name("demo", "web", "http")), (2, name("other", "empty", ""))];
    contents
}

#[test]
fn json_of_services_is_the_documented_one() {
    let mut contents = contents();
    let key = ConnectKey { id: 2, kind: stat_kind::SERVICE.into() };
    contents.connect_times = vec![(key, crate::observe::connect_time::times(&[(4, 100)]))];
    let json = serde_json::to_value(Items { items: Inventory::new(&contents, NOW).services() }).expect("plain data");
    assert_eq!(
        json,
        serde_json::json!({"items": [
            {
                "namespace": "demo", "name": "web", "port": 80, "protocol": "TCP", "id": 1, "scheduler": "random", "affinitySeconds": 0,
                "frontends": [
                    {"address": "10.96.0.1", "port": 80, "kind": "ClusterIP"},
                    {"address": "fd00::1", "port": 80, "kind": "ClusterIP"},
                ],
                "backends": [
                    {"address": "10.1.0.2", "port": 8080, "state": "active"},
                    {"address": "10.1.0.3", "port": 8080, "state": "draining"},
                    {"address": "fd00::2", "port": 8080, "state": "active"},
                ],
                "connectTime": null,
            },
            {
                "namespace": "other", "name": "empty", "port": 80, "protocol": "TCP", "id": 2, "scheduler": "random", "affinitySeconds": 0,
                "frontends": [{"address": "10.96.0.2", "port": 80, "kind": "ClusterIP"}],
                "backends": [],
                "connectTime": {"answers": 4, "sumMicroseconds": 397, "p50Microseconds": 132, "p99Microseconds": 132},
            },
        ]})
    );
}

#[test]
fn json_of_backends_is_the_documented_one() {
    let contents = contents();
    let json = serde_json::to_value(Items { items: Inventory::new(&contents, NOW).backends() }).expect("plain data");
    let backend = |address: &str, state: &str, flows: u64, [drain, deadline]: [Option<u64>; 2]| {
        serde_json::json!({
            "namespace": "demo", "service": "web", "servicePort": 80, "address": address, "port": 8080,
            "state": state, "flows": flows, "halfOpenFlows": 0, "weight": 1, "unhealthy": false,
            "ejectedSeconds": null, "answeredSeconds": null, "drainSeconds": drain, "deadlineSeconds": deadline,
            "connectTime": null,
        })
    };
    assert_eq!(
        json,
        serde_json::json!({"items": [
            backend("10.1.0.2", "active", 2, [None; 2]),
            backend("10.1.0.3", "draining", 1, [Some(10), Some(30)]),
            backend("fd00::2", "active", 0, [None; 2]),
        ]})
    );
}

#[test]
fn json_of_connections_is_the_documented_one() {
    let mut contents = contents();
    contents.v4.flows.truncate(1);
    let json = serde_json::to_value(Items { items: Inventory::new(&contents, NOW).connections() }).expect("plain data");
    assert_eq!(
        json,
        serde_json::json!({"items": [{
            "namespace": "demo", "service": "web", "servicePort": 80, "protocol": "TCP", "via": "packet",
            "clientAddress": "10.1.0.9", "clientPort": 40001, "socketCookie": null,
            "frontendAddress": "10.96.0.1", "frontendPort": 80, "backendAddress": "10.1.0.2", "backendPort": 8080,
            "state": "open", "ageSeconds": 100, "idleSeconds": 0, "expiresSeconds": 86400, "moves": null, "tried": [],
            "requestPackets": null, "requestBytes": null, "replyPackets": null, "replyBytes": null,
        }]})
    );
}

#[test]
fn an_expired_flow_and_one_of_the_ids_former_bearer_are_not_counted() {
    let mut contents = contents();
    let later = Monotonic::from_duration(Duration::from_secs(86_441));
    assert_eq!(Inventory::new(&contents, later).backends()[0].flows, 1, "one was last seen at 40 s, one at 100 s");
    for (_, flow) in &mut contents.v4.flows {
        flow.generation = 7;
    }
    assert_eq!(Inventory::new(&contents, NOW).backends()[0].flows, 0);
}

#[test]
fn a_half_open_connection_shows_how_often_it_was_moved_and_from_whom() {
    let mut contents = contents();
    let (key, flow) = flow(40_009, 1, 99, 0);
    let flow = Flow { state: flow_state::HALF_OPEN, since_s: 97, ..flow };
    let entry = HalfOpen { flow, tried: [2, 77, 0], answers: [0; 2], segments: 1, moves: 2, flags: 0, refused: 0 };
    let second = FlowKey { src_port: 40_001, ..key };
    let reply = HalfOpen { flow: Flow { flags: flow_flags::REPLY, ..flow }, ..entry };
    contents.v4.half_open = vec![
        (key, entry),
        (second, HalfOpen { flags: half_open_flags::SECOND, ..entry }),
        (key.reversed(), HalfOpen { flags: half_open_flags::LOST, ..reply }),
        (FlowKey { pad: [1, 2, 3], ..key }, HalfOpen { flags: half_open_flags::CLAIMED, ..entry }),
    ];
    let inventory = Inventory::new(&contents, NOW);
    let shown: Vec<_> = inventory.connections().into_iter().filter(|view| view.state == "half-open").collect();
    assert_eq!(shown.len(), 1);
    assert_eq!((shown[0].moves, shown[0].client_port, shown[0].age_seconds), (Some(2), Some(40_009), Some(3)));
    assert_eq!(shown[0].tried, ["10.1.0.3:8080", "#77"]);
    assert_eq!(shown[0].expires_seconds, Some(59));
    let backend = &inventory.backends()[0];
    assert_eq!((backend.flows, backend.half_open_flows), (3, 1));
    assert_eq!((inventory.totals().flows, inventory.totals().half_open), (4, 1));
    let later = Monotonic::from_duration(Duration::from_secs(160));
    assert_eq!(Inventory::new(&contents, later).totals().half_open, 0, "forgotten after a minute");
}

#[test]
fn expiry_follows_the_timeouts_that_the_programs_were_loaded_with() {
    let mut contents = contents();
    // Shorter than a day, it holds for a table without room alone.
    for (open_s, expires_s) in [(50, 86_400), (100_000, 100_000)] {
        contents.settings.open_s = open_s;
        assert_eq!(Inventory::new(&contents, NOW).connections()[0].expires_seconds, Some(expires_s));
    }
}

#[test]
fn traffic_is_that_of_this_flow_and_of_both_directions() {
    let mut contents = contents();
    contents.settings.flow_counters = 1;
    let (key, flow) = contents.v4.flows[0];
    let reply = lb_common::decide::pair_key(&key, &flow);
    let earlier = contents.v4.flows[1].0;
    let traffic = |since_s, packets, bytes| Traffic { since_s, pad: 0, packets, bytes };
    contents.v4.traffic = vec![(key, traffic(0, 3, 300)), (reply, traffic(0, 2, 4000)), (earlier, traffic(9, 8, 8))];
    let shown = Inventory::new(&contents, NOW).connections();
    assert_eq!((shown[0].request_packets, shown[0].request_bytes), (Some(3), Some(300)));
    assert_eq!((shown[0].reply_packets, shown[0].reply_bytes), (Some(2), Some(4000)));
    assert_eq!(shown[1].request_packets, Some(0), "what was counted was an earlier flow's");
    contents.settings.flow_counters = 0;
    assert_eq!(Inventory::new(&contents, NOW).connections()[0].request_packets, None);
}

#[test]
fn marks_lie_over_the_state_and_are_those_of_this_bearer_of_the_id() {
    let mut contents = contents();
    let seen = Health { generation: 0x10001, answered_s: 80, ejected_s: 98, ..Health::default() };
    contents.v4.health = vec![Health::default(), seen, Health { generation: 7, ..seen }];
    contents.v4.backends[1].1.flags |= backend_flags::UNHEALTHY;
    let inventory = Inventory::new(&contents, NOW);
    let backends = inventory.backends();
    assert_eq!((backends[0].ejected_seconds, backends[0].answered_seconds), (Some(2), Some(20)));
    assert_eq!(backends[0].marks().collect::<Vec<_>>(), ["ejected"]);
    assert_eq!((backends[1].ejected_seconds, backends[1].answered_seconds), (None, None));
    assert_eq!(backends[1].marks().collect::<Vec<_>>(), ["unhealthy"]);
    let totals = inventory.totals();
    assert_eq!((totals.ejections, totals.unhealthy), (1, 1));
}

#[test]
fn drains_come_in_the_order_of_their_deadlines() {
    let mut contents = contents();
    contents.v4.backends.push((4, backend([10, 1, 0, 5], backend_state::TERMINATING, 1, 1_100)));
    contents.v4.backends.push((5, backend([10, 1, 0, 6], backend_state::TERMINATING, 1, 0)));
    let drains = Inventory::new(&contents, NOW).drains();
    let shown: Vec<_> = drains.iter().map(|view| (view.address.to_string(), view.deadline_seconds)).collect();
    assert_eq!(shown, [("10.1.0.5".into(), Some(10)), ("10.1.0.3".into(), Some(30))]);
}

#[test]
fn a_passed_deadline_is_zero_and_counted_as_overdue() {
    let contents = contents();
    let later = Monotonic::from_duration(Duration::from_secs(131));
    let inventory = Inventory::new(&contents, later);
    assert_eq!(inventory.backends()[1].deadline_seconds, Some(0));
    let totals = inventory.totals();
    assert_eq!((totals.overdue, totals.backends.draining, totals.backends.gone), (1, 1, 1));
    assert_eq!((totals.services, totals.frontends, totals.flows), (2, 3, 3));
}

#[test]
fn a_backend_whose_service_name_is_gone_is_shown_by_id() {
    let mut contents = contents();
    contents.names.clear();
    assert_eq!(Inventory::new(&contents, NOW).backends()[0].service, "#1");
}

#[test]
fn sockets_are_shown_by_their_cookie() {
    let mut contents = Contents { names: vec![(1, name("demo", "web", ""))], ..Contents::default() };
    let (service, backend) = ([10, 96, 0, 1], [10, 1, 0, 2]);
    let key =
        |address, port, direction| SocketKey { cookie_low: 5, cookie_high: 1, address, port, protocol: TCP, direction };
    let peer = |address, port| SocketPeer { address, port, pad: 0, backend: 1, backend_generation: 1, service: 1 };
    contents.v4.sockets = vec![
        (key(service, 80, socket_direction::FORWARD), peer(backend, 8080)),
        (key(backend, 8080, socket_direction::REPLY), peer(service, 80)),
    ];
    let connections = Inventory::new(&contents, NOW).connections();
    assert_eq!(connections.len(), 1, "both directions are one connection");
    assert_eq!(connections[0].socket_cookie, Some((1 << 32) + 5));
    assert_eq!(connections[0].service, "web");
    assert_eq!((connections[0].frontend_address, connections[0].frontend_port), (ip(service), 80));
    assert_eq!((connections[0].backend_address, connections[0].backend_port), (ip(backend), 8080));
}
