//! Each map that the plan writes, too small for a change. The change is refused as a whole and counted, the old state stays, and the change is made
//! as soon as there is room.

use std::net::IpAddr;

use lb_tests::agent::{Agent, Manifest, SOON};
use lb_tests::fixture::{Fixture, Pods, Served};
use lb_tests::peers::eventually;
use lb_tests::topology::NodeOptions;
use serde_json::{Value, json};

/// Room for the service that is served all the time and for little more. Of the slots as many as the largest table takes are kept free.
const SIZES: &str = "services=16,backends=16,endpoints=8,slots=600,names=8,sources=3,vips=6";

/// What a service of one family is made of.
#[derive(Clone, Copy, Default)]
struct ServiceSize {
    ports: usize,
    external: usize,
    ranges: usize,
    endpoints: usize,
    /// Its slots are a table of 251.
    maglev: bool,
    /// Its endpoints are of this node.
    local: bool,
}

const ONE: ServiceSize = ServiceSize { ports: 1, external: 0, ranges: 0, endpoints: 1, maglev: false, local: false };

/// Each map and what does not fit into it, though it fits into all others.
const CASES: [(&str, ServiceSize); 7] = [
    ("services", ServiceSize { ports: 5, external: 3, ..ONE }),
    ("backends", ServiceSize { endpoints: 14, ..ONE }),
    ("endpoints", ServiceSize { endpoints: 8, local: true, ..ONE }),
    ("slots", ServiceSize { ports: 2, maglev: true, ..ONE }),
    ("names", ServiceSize { ports: 7, endpoints: 0, ..ONE }),
    ("sources", ServiceSize { external: 1, ranges: 4, ..ONE }),
    ("vips", ServiceSize { external: 6, ..ONE }),
];

/// The documents of a service of one family; its addresses end in `last` and above.
fn documents(name: &str, node: &str, is_v4: bool, last: usize, shape: ServiceSize) -> String {
    let address = |v4: &str, v6: &str, index: usize| -> IpAddr {
        let text = if is_v4 { format!("{v4}{index}") } else { format!("{v6}{index:x}") };
        text.parse().unwrap()
    };
    let family = if is_v4 { "IPv4" } else { "IPv6" };
    let ports = |field: &str, first: usize| -> Vec<Value> {
        let port = |index| json!({"name": format!("p{index}"), "protocol": "TCP", field: first + index});
        (0..shape.ports).map(port).collect()
    };
    let cluster_ip = address("10.96.1.", "fd00:96::1:", last);
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "test"},
        "spec": {"clusterIP": cluster_ip, "clusterIPs": [cluster_ip], "ipFamilies": [family], "ports": ports("port", 80)},
    });
    let external: Vec<IpAddr> =
        (1..=shape.external).map(|index| address("198.51.100.", "2001:db8:51::", index)).collect();
    if shape.ranges > 0 {
        let range = |index| if is_v4 { format!("203.0.{index}.0/24") } else { format!("2001:db8:{index}::/48") };
        service["spec"]["loadBalancerSourceRanges"] = (0..shape.ranges).map(range).collect();
        service["spec"]["type"] = json!("LoadBalancer");
        service["status"]["loadBalancer"]["ingress"] = external.iter().map(|ip| json!({"ip": ip})).collect();
    } else if shape.external > 0 {
        service["spec"]["externalIPs"] = json!(external);
    }
    if shape.maglev {
        service["metadata"]["annotations"] =
            json!({"ballast.dev/scheduler": "maglev", "ballast.dev/maglev-size": "251"});
    }
    let endpoint = |index| {
        let address = address("10.245.0.", "fd00:245::", last + index);
        json!({"addresses": [address], "conditions": {"ready": true}, "nodeName": shape.local.then_some(node)})
    };
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": format!("{name}-1"), "namespace": "test", "labels": {"kubernetes.io/service-name": name}},
        "addressType": family, "ports": ports("port", 8080), "endpoints": (0..shape.endpoints).map(endpoint).collect::<Value>(),
    });
    format!("---\n{service}\n---\n{slice}\n")
}

struct Scene(Served);

impl Scene {
    /// The documents of a service of `shape`, with endpoints of this node if it asks for it.
    fn documents(&self, name: &str, is_v4: bool, last: usize, shape: ServiceSize) -> String {
        documents(name, &self.0.fixture.node.node_name(), is_v4, last, shape)
    }

    fn write(&self, documents: &str) {
        self.0.agent.write_text(&(Manifest::of([self.0.service.clone()]).yaml() + documents)).unwrap();
    }

    fn refusals(&self) -> Vec<String> {
        let status = self.0.agent.json(&["status"]).unwrap();
        let all = status["agent"]["tables"]["refusals"].as_array();
        all.unwrap_or_else(|| panic!("no refusals in {status}"))
            .iter()
            .map(|one| one.as_str().unwrap().to_owned())
            .collect()
    }

    /// The refusals of this map, as soon as there are some.
    fn refused(&self, map: &str) -> Vec<String> {
        let full = format!("map {map} is full");
        eventually(&full, SOON, || {
            let found: Vec<String> = self.refusals().into_iter().filter(|refusal| refusal.contains(&full)).collect();
            (!found.is_empty()).then_some(found)
        })
    }

    /// The service that is served all the time is served, and its backends are all that it should have.
    fn check(&mut self) {
        self.0.check();
        let mut shown = self.0.agent.states().unwrap();
        shown.retain(|(service, ..)| service == self.0.service.name);
        assert_eq!(shown, Manifest::of([self.0.service.clone()]).states());
    }

    /// Backends of another service that are shown.
    fn backends_of(&self, name: &str) -> usize {
        self.0.agent.states().unwrap().iter().filter(|(service, _, state)| service == name && state == "active").count()
    }
}

#[test]
fn a_change_that_finds_no_room_is_refused_as_a_whole_and_made_when_there_is() {
    let fixture = Fixture::new("fullmaps", Pods::Routed, 1, NodeOptions::default());
    // Ids of backends are given out again soon after their drain.
    let flags = ["--external-ips=on", "--drain-period=1s", "--drain-max=0s", &format!("--map-sizes={SIZES}")];
    let agent = Agent::prepare(&fixture.node, &flags).unwrap();
    let mut scene = Scene(Served::start(fixture, agent));
    for (is_v4, family) in [(true, '4'), (false, '6')] {
        for (map, shape) in CASES {
            let map = if matches!(map, "slots" | "names") { map.to_owned() } else { format!("{map}{family}") };
            scene.write(&scene.documents("big", is_v4, 10, shape));
            let refused = scene.refused(&map);
            assert!(
                refused.iter().all(|refusal| refusal.contains("big") || refusal.contains("address")),
                "{refused:?}"
            );
            eventually(&format!("{map}: what is refused is counted, and nothing else is"), SOON, || {
                let metrics = scene.0.agent.metrics().unwrap();
                let counted = metrics.lines().find_map(|line| line.strip_prefix("ballast_refused_objects "))?;
                (counted == format!("{}.0", scene.refused(&map).len())).then_some(())
            });
            if map.starts_with("backends") {
                assert_eq!(scene.backends_of("big"), 0, "half a change was made");
            }
            scene.check();
            // Less of the same finds room.
            scene.write(&scene.documents("big", is_v4, 10, ONE));
            eventually(&format!("{map}: nothing is refused"), SOON, || scene.refusals().is_empty().then_some(()));
            eventually("its backend is there", SOON, || (scene.backends_of("big") == 1).then_some(()));
            scene.write("");
            eventually("it is gone", SOON, || (scene.backends_of("big") == 0).then_some(()));
        }
    }
    // A change that waits for room is made without being asked for again: here slots rest before others use them.
    let table = ServiceSize { maglev: true, ..ONE };
    scene.write(&scene.documents("first", true, 20, table));
    eventually("the first is there", SOON, || (scene.backends_of("first") == 1).then_some(()));
    scene.write(&scene.documents("second", true, 30, table));
    scene.refused("slots");
    eventually("the second is there", SOON, || (scene.backends_of("second") == 1).then_some(()));
    eventually("nothing is refused", SOON, || scene.refusals().is_empty().then_some(()));
    scene.check();
    let audit = scene.0.agent.cli(&["audit", "--dry-run"]).unwrap();
    assert!(audit.status.success(), "{}", String::from_utf8_lossy(&audit.stdout));
}
