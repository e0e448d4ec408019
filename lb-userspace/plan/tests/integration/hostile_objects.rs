//! An invalid object degrades its own service only. Whatever a Service and its slice say, the other services are planned and written as if it were
//! not there, and every refusal names the invalid object.

use std::{collections::BTreeMap, sync::Arc};

use lb_model::{Monotonic, PortKey, Refusal, Snapshot};
use lb_objects::{
    convert,
    lean::{EndpointSlice, Service},
};
use lb_plan::{
    apply::{MemoryStore, Programmer},
    plan::{Desired, DesiredService, NodeFacts, PlanSettings, plan},
};
use proptest::{collection::vec, option, prelude::*, sample::select};
use serde_json::{Value, json};

/// A refusal is one line of `status` and of the log, whatever the object says.
const REFUSAL_LENGTH_MAX: usize = 2000;
/// Endpoints of a huge slice: Kubernetes allows 1,000.
const HUGE: usize = 2000;

fn text() -> impl Strategy<Value = String> {
    let addresses = "10.96.0 10.96.0.300 10.96.0.1/24 127.0.0.1 0.0.0.0 169.254.1.1 224.0.0.1 255.255.255.255 :: ::1 \
        ::ffff:10.0.0.1 fe80::1%eth0 fd00::zz -1 1e9 99999999999999999999";
    // The cluster IP and the backend of the other service, and ones of its own.
    let usable = "10.96.0.10 10.0.0.1 10.96.0.99 fd00::99 10.0.0.99 192.0.2.99 fd01::99";
    let others = ["", " ", "10.96.0.1\u{200b}", "a\0b", "\"},\n\t<script>", "é日本", "../../etc/passwd", "%s%n"];
    let known: Vec<&str> = addresses.split_whitespace().chain(usable.split(' ')).chain(others).collect();
    prop_oneof![
        8 => select(known).prop_map(str::to_owned),
        1 => any::<String>(),
        1 => select(vec!["1".repeat(70_000), "é".repeat(40_000)]),
    ]
}

fn number() -> impl Strategy<Value = i32> {
    prop_oneof![
        3 => select(vec![i32::MIN, -1, 0, 65_536, i32::MAX]),
        3 => select(vec![1, 80, 30_080, 65_535]),
        1 => any::<i32>(),
    ]
}

/// One of these words, or no word at all.
fn word(known: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop_oneof![4 => select(known.to_vec()).prop_map(str::to_owned), 1 => text()]
}

fn protocol() -> impl Strategy<Value = String> {
    word(&["TCP", "UDP", "SCTP", "tcp"])
}

fn service() -> impl Strategy<Value = Value> {
    let port = (word(&["a", "b"]), number(), protocol(), option::of(number())).prop_map(
        |(name, port, protocol, node)| json!({"name": name, "port": port, "protocol": protocol, "nodePort": node}),
    );
    let option = select(vec![
        "scheduler",
        "weights",
        "drain-period",
        "drain-max",
        "retry",
        "mode",
        "check",
        "check-path",
        "rate",
    ]);
    let annotations = vec((option, text()), 0..4).prop_map(|all| {
        all.into_iter().map(|(name, value)| (format!("ballast.dev/{name}"), value)).collect::<BTreeMap<_, _>>()
    });
    let kind = word(&["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"]);
    let policies = (word(&["Cluster", "Local"]), word(&["Cluster", "Local"]), word(&["None", "ClientIP"]), number());
    let addresses = (option::of(text()), vec(text(), 0..4), vec(text(), 0..3), vec(text(), 0..3));
    (kind, addresses, vec(port, 0..5), policies, vec(text(), 0..3), (option::of(number()), annotations)).prop_map(
        |(kind, (single, ips, external, balanced), ports, policies, ranges, (health, annotations))| {
            let ingress: Vec<Value> = balanced.iter().map(|ip| json!({"ip": ip})).collect();
            json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"namespace": "default", "name": "invalid", "annotations": annotations,
                    "creationTimestamp": "2026-02-02T00:00:00Z"},
                "spec": {
                    "type": kind, "clusterIP": single, "clusterIPs": ips, "externalIPs": external, "ports": ports,
                    "internalTrafficPolicy": policies.0, "externalTrafficPolicy": policies.1,
                    "sessionAffinity": policies.2, "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": policies.3}},
                    "loadBalancerSourceRanges": ranges, "healthCheckNodePort": health,
                },
                "status": {"loadBalancer": {"ingress": ingress}},
            })
        },
    )
}

fn slice() -> impl Strategy<Value = Value> {
    let port = (word(&["a", "b"]), option::of(number()), protocol())
        .prop_map(|(name, port, protocol)| json!({"name": name, "port": port, "protocol": protocol}));
    let conditions = (option::of(any::<bool>()), option::of(any::<bool>()), option::of(any::<bool>()));
    let endpoint = (vec(text(), 0..3), conditions, text(), text()).prop_map(|(addresses, conditions, node, uid)| {
        json!({
            "addresses": addresses, "nodeName": node, "zone": node, "hints": {"forZones": [{"name": uid}]},
            "conditions": {"ready": conditions.0, "serving": conditions.1, "terminating": conditions.2},
            "targetRef": {"uid": uid},
        })
    });
    let endpoint = endpoint.boxed();
    let endpoints = prop_oneof![
        9 => vec(endpoint.clone(), 0..6),
        // One endpoint many times: the list is huge, the case is not.
        1 => endpoint.prop_map(|endpoint| vec![endpoint; HUGE]),
    ];
    (word(&["IPv4", "IPv6", "FQDN"]), vec(port, 0..4), endpoints).prop_map(|(family, ports, endpoints)| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"namespace": "default", "name": "invalid-1",
                "labels": {"kubernetes.io/service-name": "invalid"}},
            "addressType": family, "ports": ports, "endpoints": endpoints,
        })
    })
}

/// The service that must not notice: it is older than the invalid one, so it owns what both claim.
fn valid() -> [Value; 2] {
    [
        json!({
            "metadata": {"namespace": "default", "name": "valid", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"type": "NodePort", "clusterIP": "10.96.0.10", "ports": [{"name": "a", "port": 80, "nodePort": 30_080}]},
        }),
        json!({
            "addressType": "IPv4", "ports": [{"name": "a", "port": 8080}],
            "metadata": {"namespace": "default", "name": "valid-1", "labels": {"kubernetes.io/service-name": "valid"}},
            "endpoints": [{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"]}],
        }),
    ]
}

/// Converts a Service and its slice into the snapshot, and returns the refusals.
fn put(snapshot: &mut Snapshot, [service, slice]: [Value; 2]) -> Vec<Refusal> {
    let service: Service = serde_json::from_value(service).expect("the API's type");
    let slice: EndpointSlice = serde_json::from_value(slice).expect("the API's type");
    let (service, slice) = (convert::service(&service), convert::slice(&slice));
    assert!(service.object.is_some() || !service.refusals.is_empty(), "a Service was dropped without a word");
    assert!(slice.object.is_some() || !slice.refusals.is_empty(), "a slice was dropped without a word");
    snapshot.revision += 1;
    snapshot.services.extend(service.object.map(|object| (object.name.clone(), Arc::new(object))));
    snapshot.slices.extend(slice.object.map(|object| (object.key(), Arc::new(object))));
    [service.refusals, slice.refusals].concat()
}

fn of_valid(desired: &Desired) -> Vec<(PortKey, DesiredService)> {
    let own = desired.services.iter().filter(|(key, _)| &*key.service.name == "valid");
    own.map(|(key, service)| (key.clone(), service.clone())).collect()
}

proptest! {
    #![proptest_config(lb_seed::property(file!(), 200))]

    #[test]
    fn an_invalid_object_degrades_its_own_service_only(service in service(), slice in slice()) {
        let settings = PlanSettings { external_ips: true, ..PlanSettings::without_drain_max() };
        let mut facts = NodeFacts::default();
        facts.addresses.insert([192, 0, 2, 1].into());
        let mut snapshot = Snapshot::default();
        prop_assert_eq!(put(&mut snapshot, valid()), []);
        let alone = plan(&snapshot, &facts, &settings);
        let now = Monotonic::default();
        let mut programmer = Programmer::restore(MemoryStore::roomy(), settings.clone(), now).expect("memory can be read");
        programmer.store_mut().check_each_write = true;
        programmer.sync(&snapshot, &facts, now);

        let before = snapshot.clone();
        let mut refusals = put(&mut snapshot, [service, slice]);
        let desired = plan(&snapshot, &facts, &settings);
        prop_assert_eq!(of_valid(&desired), of_valid(&alone));
        let report = programmer.sync(&snapshot, &facts, now);
        prop_assert_eq!(report.failures, Vec::<String>::new());
        refusals.extend(report.refusals.iter().cloned());
        for refusal in refusals {
            let text = refusal.to_string();
            let names_it = ["Service default/invalid", "EndpointSlice default/invalid-1"].iter().any(|name| text.starts_with(name));
            prop_assert!(names_it, "{}", text);
            prop_assert!(text.len() <= REFUSAL_LENGTH_MAX, "{} bytes: {:.300}", text.len(), text);
        }

        // It is taken away: nothing is left of it.
        let report = programmer.sync(&Snapshot { revision: snapshot.revision + 1, ..before }, &facts, now);
        prop_assert_eq!((report.failures, report.refusals.total()), (Vec::new(), 0));
        let frontends: Vec<_> = programmer.store().frontends.keys().copied().collect();
        prop_assert_eq!(frontends, alone.owners.keys().copied().collect::<Vec<_>>());
    }
}
