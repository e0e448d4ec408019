//! Random EndpointSlices.

use serde_json::{Value, json};

use super::{HEADLESS, Pool, weighted};
use crate::kube_proxy_diff::node::{self, ADDRESSES, ZONES};
use crate::random::Random;

/// Addresses that no packet may be sent to.
const UNUSABLE: [[&str; 2]; 3] = [["127.0.0.1", "::1"], ["169.254.1.1", "fe80::1"], ["224.0.0.1", "ff02::1"]];

/// Which hints the endpoints of a service carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hints {
    None,
    Zones,
    Nodes,
    Both,
    /// Each endpoint any of these.
    Some,
}

/// What holds for all endpoints of a service.
struct Mood {
    hints: Hints,
    states: &'static [(usize, State)],
    /// One in so many is on this node.
    local: usize,
}

/// Conditions of an endpoint.
#[derive(Clone, Copy, Debug)]
enum State {
    Ready,
    NotReady,
    Terminating,
    Draining,
    Any,
}

const MOODS: [(usize, &[(usize, State)]); 3] = [(4, HEALTHY), (3, LEAVING), (3, MIXED)];
const HEALTHY: &[(usize, State)] = &[(8, State::Ready), (1, State::NotReady), (1, State::Draining), (1, State::Any)];
const LEAVING: &[(usize, State)] =
    &[(4, State::Draining), (2, State::Terminating), (2, State::NotReady), (1, State::Any)];
const MIXED: &[(usize, State)] =
    &[(3, State::Ready), (2, State::NotReady), (2, State::Draining), (1, State::Terminating), (2, State::Any)];

/// The slices of a service, of the right and of the wrong families.
pub fn slices(random: &mut Random, pool: &Pool, service: &str, object: &Value) -> Vec<Value> {
    let hints = [(5, Hints::None), (3, Hints::Zones), (2, Hints::Nodes), (2, Hints::Both), (2, Hints::Some)];
    let mood =
        Mood { hints: weighted(random, &hints), states: weighted(random, &MOODS), local: *random.of(&[2, 3, 6, 1000]) };
    let ports = object["spec"]["ports"].as_array().cloned().unwrap_or_default();
    // The slice controller copies the labels of the Service, but for the headless one; others may copy that, too.
    let mut labels = object["metadata"]["labels"].clone();
    if !labels[HEADLESS].is_null() && random.one_in(2) {
        labels.as_object_mut().map(|labels| labels.remove(HEADLESS));
    }
    labels["kubernetes.io/service-name"] = service.into();
    let mut slices = Vec::new();
    for v4 in [true, false] {
        let mut known: Vec<Value> = Vec::new();
        for number in 0..weighted(random, &[(1, 0), (5, 1), (3, 2), (1, 3)]) {
            let count = weighted(random, &[(1, 0), (3, 1), (4, 2), (3, 3)]);
            let endpoints: Vec<Value> = (0..count)
                .map(|index| match known.len() {
                    // One that is in several slices: mostly the same, sometimes as it was before.
                    held if held > 0 && random.one_in(10) => known[random.below(held)].clone(),
                    _ => endpoint(random, pool, &mood, v4, number * 4 + index),
                })
                .collect();
            known.extend(endpoints.iter().cloned());
            let family = if v4 { "IPv4" } else { "IPv6" };
            let name = format!("{service}-{}-{number}", family.to_lowercase());
            slices.push(json!({
                "metadata": {
                    "namespace": pool.namespace,
                    "name": name,
                    "uid": format!("{}-{name}", pool.namespace),
                    "labels": labels,
                },
                "addressType": family,
                "ports": slice_ports(random, &ports),
                "endpoints": endpoints,
            }));
        }
    }
    if random.one_in(30) {
        slices.push(json!({
            "metadata": {
                "namespace": pool.namespace,
                "name": format!("{service}-names"),
                "labels": labels,
            },
            "addressType": "FQDN",
            "ports": [{"name": "", "port": 80, "protocol": "TCP"}],
            "endpoints": [{"addresses": ["elsewhere.example"]}],
        }));
    }
    slices
}

/// The ports of a slice: those of the service, but for one that is missing, has no number, or another name or protocol.
fn slice_ports(random: &mut Random, ports: &[Value]) -> Vec<Value> {
    let mut listed = Vec::new();
    for (number, port) in ports.iter().enumerate() {
        let mut target = json!({"port": 8000 + number + 10 * random.below(2)});
        for field in ["name", "protocol"] {
            if !port[field].is_null() {
                target[field] = port[field].clone();
            }
        }
        match random.below(30) {
            0 => continue,
            1 => target["port"] = Value::Null,
            2 => target["name"] = "unknown".into(),
            3 => target["protocol"] = "SCTP".into(),
            _ => {}
        }
        if target["name"].is_null() && random.one_in(2) {
            target["name"] = "".into();
        }
        listed.push(target);
        if random.one_in(30) {
            listed.push(json!({"name": "metrics", "port": 9000, "protocol": "TCP"}));
        }
    }
    listed
}

fn endpoint(random: &mut Random, pool: &Pool, mood: &Mood, v4: bool, number: usize) -> Value {
    let place = pool.place;
    let address = match random.below(60) {
        0 => UNUSABLE[random.below(UNUSABLE.len())][usize::from(!v4)].to_owned(),
        // A pod of the host's network.
        1 | 2 => ADDRESSES[0][usize::from(!v4)].to_owned(),
        // Another endpoint's address, with conditions of its own.
        3 | 4 if v4 => format!("10.244.{place}.1"),
        _ if v4 => format!("10.244.{place}.{}", number + 1),
        _ => format!("fd00:244:0:{place:x}::{:x}", number + 1),
    };
    let mut endpoint = json!({"addresses": [address]});
    let state = weighted(random, mood.states);
    let conditions = conditions(random, state);
    if !conditions.is_null() {
        endpoint["conditions"] = conditions;
    }
    if random.one_in(mood.local) {
        endpoint["nodeName"] = node::NAME.into();
    } else if !random.one_in(6) {
        endpoint["nodeName"] = (*random.of(&["node-b", "node-c"])).into();
    }
    let hints = match mood.hints {
        Hints::Some => *random.of(&[Hints::None, Hints::Zones, Hints::Nodes, Hints::Both]),
        same => same,
    };
    if matches!(hints, Hints::Zones | Hints::Both) {
        let zone = |random: &mut Random| json!({"name": *random.of(&[ZONES[0], ZONES[1], ZONES[2], "zone-9"])});
        let zones: Vec<Value> = (0..=random.below(2)).map(|_| zone(random)).collect();
        endpoint["hints"]["forZones"] = zones.into();
    }
    if matches!(hints, Hints::Nodes | Hints::Both) {
        let name = *random.of(&[node::NAME, "node-b", "node-c"]);
        endpoint["hints"]["forNodes"] = json!([{"name": name}]);
    }
    if random.one_in(2) {
        let uid = format!("pod-{}-{number}", pool.namespace);
        endpoint["targetRef"] = json!({"kind": "Pod", "name": uid, "uid": uid});
    }
    endpoint
}

fn conditions(random: &mut Random, state: State) -> Value {
    match state {
        State::Ready if random.one_in(4) => Value::Null,
        State::Ready if random.one_in(4) => json!({"ready": true}),
        State::Ready => json!({"ready": true, "serving": true, "terminating": false}),
        State::NotReady if random.one_in(3) => json!({"ready": false}),
        State::NotReady => json!({"ready": false, "serving": random.one_in(4), "terminating": false}),
        State::Terminating => json!({"ready": false, "serving": false, "terminating": true}),
        State::Draining => json!({"ready": false, "serving": true, "terminating": true}),
        State::Any => {
            let mut conditions = json!({});
            for condition in ["ready", "serving", "terminating"] {
                if let Some(value) = random.of(&[None, Some(false), Some(true)]) {
                    conditions[condition] = (*value).into();
                }
            }
            conditions
        }
    }
}
