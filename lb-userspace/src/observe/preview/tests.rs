//! A plan as JSON and as a table, with the connections of a small set of tables.

use serde_json::json;

use super::*;
use crate::observe::contents::Contents;
use crate::observe::inventory::tests::{NOW, contents, flow};
use lb_common::abi::{Flow, SocketKey, SocketPeer, TCP, flow_state, socket_direction};

fn state(name: &str, takes_new: bool) -> BackendStatePlan {
    BackendStatePlan { state: name.to_owned(), takes_new, weight: 1, local: false }
}

fn backend(last: u8, change: Change, id: Option<u32>, fate: Fate) -> BackendPlan {
    BackendPlan {
        address: [10, 1, 0, last].into(),
        port: 8080,
        change,
        id,
        generation: id.map(|_| 0x10001),
        before: id.map(|_| state("active", true)),
        after: Some(state(if change == Change::Drain { "draining" } else { "active" }, change != Change::Drain)),
        drain_seconds: (change == Change::Drain).then_some(30),
        deadline_seconds: (change == Change::Drain).then_some(3600),
        fate,
        connections: 0,
        host_sockets: 0,
    }
}

fn frontend(last: u8, change: Change, fate: Fate) -> FrontendPlan {
    FrontendPlan {
        address: [10, 96, 0, last].into(),
        port: 80,
        kind: "ClusterIP".to_owned(),
        change,
        from: (change == Change::Move).then(|| "demo/old:80/TCP".to_owned()),
        settings: Vec::new(),
        fate,
        connections: 0,
    }
}

/// `demo/web` loses its first backend and gets another one.
fn report(frontends: Vec<FrontendPlan>) -> PlanReport {
    let service = ServicePlan {
        namespace: "demo".to_owned(),
        name: "web".to_owned(),
        port: 80,
        protocol: "TCP".to_owned(),
        change: Change::Change,
        taking_before: 2,
        taking_after: 1,
        settings: vec![SettingPlan { name: "scheduler".into(), before: "random".into(), after: "maglev".into() }],
        frontends,
        backends: vec![backend(2, Change::Drain, Some(1), Fate::Drain), backend(9, Change::Add, None, Fate::Stay)],
    };
    PlanReport { revision: 7, differs: true, services: vec![service], ..PlanReport::default() }
}

fn counted(report: PlanReport, contents: &Contents) -> PlanReport {
    let mut report = report;
    report.count(contents, NOW);
    report
}

#[test]
fn connections_count_at_their_backend_and_their_frontend_and_once_in_all() {
    // The first backend has two connections by 10.96.0.1, the second one.
    let frontends = vec![frontend(1, Change::End, Fate::Drain)];
    let report = counted(report(frontends), &contents());
    let service = &report.services[0];
    assert_eq!((service.backends[0].connections, service.backends[1].connections), (2, 0));
    assert_eq!(service.frontends[0].connections, 3, "also that of the backend that stays");
    assert_eq!(report.connections, Concerned { drain: 3, ..Concerned::default() });
}

#[test]
fn what_ends_with_the_backend_does_not_drain_with_the_frontend() {
    let mut report = report(vec![frontend(1, Change::End, Fate::Drain)]);
    report.services[0].backends[0].fate = Fate::End;
    let report = counted(report, &contents());
    assert_eq!(report.connections, Concerned { drain: 1, end: 2, ..Concerned::default() });
}

#[test]
fn connections_that_are_over_and_those_of_an_earlier_bearer_of_the_id_do_not_count() {
    let mut contents = contents();
    for (index, state) in [flow_state::CLOSING, flow_state::EVICTED].into_iter().enumerate() {
        let (key, flow) = contents.v4.flows[index];
        contents.v4.flows[index] = (key, Flow { state, ..flow });
    }
    let (key, earlier) = flow(40_077, 1, 100, 0);
    contents.v4.flows.push((key, Flow { generation: 9, ..earlier }));
    let report = counted(report(Vec::new()), &contents);
    assert_eq!((report.services[0].backends[0].connections, report.connections), (0, Concerned::default()));
}

#[test]
fn host_sockets_are_counted_apart() {
    let mut contents = Contents::default();
    let key = |direction| SocketKey {
        cookie_low: 5,
        cookie_high: 1,
        address: [10, 1, 0, 2],
        port: 8080,
        protocol: TCP,
        direction,
    };
    let peer =
        SocketPeer { address: [10, 96, 0, 1], port: 80, pad: 0, backend: 1, backend_generation: 0x10001, service: 1 };
    contents.v4.sockets = vec![(key(socket_direction::REPLY), peer), (key(socket_direction::FORWARD), peer)];
    let report = counted(report(vec![frontend(1, Change::End, Fate::Drain)]), &contents);
    assert_eq!(report.services[0].backends[0].host_sockets, 1);
    assert_eq!(report.services[0].frontends[0].connections, 0, "they stay connected");
    assert_eq!(report.connections, Concerned { host_sockets: 1, ..Concerned::default() });
}

#[test]
fn the_table_has_a_row_for_each_thing_that_differs() {
    let frontends = vec![frontend(1, Change::Move, Fate::Stay), frontend(7, Change::Add, Fate::Stay)];
    let text = table(&counted(report(frontends), &contents()), false);
    let expected = "\
SERVICE          WHAT                   CHANGE  DETAIL                                                        CONNECTIONS
demo/web:80/TCP  service                change  backends for new connections 2 -> 1; scheduler random -> maglev  -
demo/web:80/TCP  frontend 10.96.0.1:80  move    ClusterIP; from demo/old:80/TCP                               3 stay
demo/web:80/TCP  frontend 10.96.0.7:80  add     ClusterIP                                                     -
demo/web:80/TCP  backend 10.1.0.2:8080  drain   active -> draining; at most 3600 s                            2 drain
demo/web:80/TCP  backend 10.1.0.9:8080  add     active; takes new connections                                 -

Frontends: 1 added, 1 moved, 0 ended. Backends: 1 added, 1 drained, 0 ended. Connections: 2 drain, 0 move, 0 end. Planned over revision 7. Nothing was applied.
";
    let words =
        |text: &str| text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>();
    assert_eq!(words(&text), words(expected));
    assert!(table(&report(Vec::new()), true).contains("HOST SOCKETS  ID  GENERATION"));
}

#[test]
fn without_a_difference_a_sentence_is_enough() {
    let report = PlanReport {
        revision: 7,
        refusals: vec!["Service demo/web: its externalIP is bad".to_owned()],
        ignored: vec!["Node n1".to_owned()],
        stale: Some("the API does not answer for 3 s".to_owned()),
        ..PlanReport::default()
    };
    assert_eq!(
        table(&report, false),
        "refused: Service demo/web: its externalIP is bad\n\
         Node n1 is ignored: only Services and EndpointSlices are planned\n\
         The agent's source is stale, and so is this plan: the API does not answer for 3 s\n\
         No difference to revision 7. Nothing was applied.\n"
    );
}

#[test]
fn the_json_is_the_documented_one_and_comes_back_as_it_went() {
    let report = counted(report(vec![frontend(1, Change::Move, Fate::Stay)]), &contents());
    let json = serde_json::to_value(&report).expect("plain data");
    let after = json!({"state": "draining", "takesNew": false, "weight": 1, "local": false});
    let before = json!({"state": "active", "takesNew": true, "weight": 1, "local": false});
    assert_eq!(
        json["services"][0]["backends"][0],
        json!({
            "address": "10.1.0.2", "port": 8080, "change": "drain", "id": 1, "generation": 65537,
            "before": before, "after": after, "drainSeconds": 30, "deadlineSeconds": 3600,
            "fate": "drain", "connections": 2, "hostSockets": 0,
        })
    );
    assert_eq!(
        json["services"][0]["frontends"][0],
        json!({
            "address": "10.96.0.1", "port": 80, "kind": "ClusterIP", "change": "move", "from": "demo/old:80/TCP",
            "settings": [], "fate": "stay", "connections": 3,
        })
    );
    assert_eq!(json["connections"], json!({"drain": 2, "move": 0, "end": 0, "hostSockets": 0}));
    assert_eq!((json.get("error"), &json["stale"]), (None, &json!(null)));
    assert_eq!(serde_json::from_value::<PlanReport>(json).expect("the same"), report);
}
