//! The inputs that once stopped or delayed everything, one after the other and then all together, under an agent that is killed by the rule of the
//! kubelet. Other changes are served within seconds all the time, and the agent is never killed.

use std::fmt::Write as _;
use std::os::unix::fs::symlink;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lb_tests::agent::{Agent, Manifest, Protocol, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Stream, eventually};
use lb_tests::topology::NodeOptions;
use nix::sys::stat::Mode;
use serde_json::{Value, json};

/// How long a change elsewhere is waited for. An agent that is not optimised takes 4 s; a fault that stops it lasts for minutes.
const SERVED: Duration = Duration::from_secs(90);
/// `failureThreshold` of the liveness probe in the manifests.
const FAILURES_MAX: u32 = 6;
/// Its `periodSeconds`, fifty times as fast.
const PERIOD: Duration = Duration::from_millis(200);

/// Room for few endpoints of this node, and for the largest Maglev table in one service; all else by default.
const SIZES: [&str; 2] = ["--map-sizes=endpoints=64", "--slot-shares=service=1/4,namespace=1/1"];

fn service(name: &str, last: usize, ports: usize, annotations: &Value) -> Value {
    let ports: Vec<Value> = (0..ports).map(|port| json!({"name": format!("p{port}"), "port": 80 + port})).collect();
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "tenant", "annotations": annotations},
        "spec": {"clusterIP": format!("10.96.7.{last}"), "ports": ports},
    })
}

fn slice(name: &str, number: usize, ports: usize, endpoints: usize, node: Option<&str>) -> Value {
    let ports: Vec<Value> = (0..ports).map(|port| json!({"name": format!("p{port}"), "port": 8080 + port})).collect();
    let endpoint =
        |nth| json!({"addresses": [format!("10.245.{}.{}", 4 * number + nth / 250, 1 + nth % 250)], "nodeName": node});
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": format!("{name}-{number}"), "namespace": "tenant", "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4", "ports": ports, "endpoints": (0..endpoints).map(endpoint).collect::<Value>(),
    })
}

fn documents(all: &[Value]) -> String {
    all.iter().fold(String::new(), |mut text, one| {
        let _ = write!(text, "---\n{one}\n");
        text
    })
}

/// One weight is a thousand times the others, on each of a hundred ports: 100,000 backends to write and to take out.
fn unequal_weights() -> String {
    let weights = json!({"ballast.dev/scheduler": "maglev", "ballast.dev/maglev-size": "131071", "ballast.dev/weights": "10.245.0.1=1000"});
    documents(&[service("unequal", 1, 100, &weights), slice("unequal", 0, 100, 1_000, None)])
}

/// As much of an annotation as the API takes, and none of it of use.
fn bad_weights() -> String {
    let weights = json!({"ballast.dev/weights": "x=y,".repeat(64 << 10)});
    documents(&[service("bad-weights", 2, 1, &weights), slice("bad-weights", 1, 1, 2, None)])
}

/// The largest tables, for nothing.
fn large_tables() -> String {
    let large = json!({"ballast.dev/scheduler": "maglev", "ballast.dev/maglev-size": "131071"});
    let all = (0..4).flat_map(|nth| {
        let name = format!("large-{nth}");
        [service(&name, 10 + nth, 2, &large), slice(&name, 2, 2, 2, None)]
    });
    documents(&all.collect::<Vec<_>>())
}

/// The largest table, of as many endpoints as need it, a quarter of them with weights that differ.
fn largest_table() -> String {
    let weights: Vec<String> = (1..=250).map(|nth| format!("10.245.20.{nth}={nth}")).collect();
    let largest = json!({
        "ballast.dev/scheduler": "maglev", "ballast.dev/maglev-size": "131071", "ballast.dev/weights": weights.join(","),
    });
    documents(&[service("largest", 50, 1, &largest), slice("largest", 5, 1, 1_000, None)])
}

/// A kind of the same name, a field of another type, a service that is served, and one that never ends.
fn odd_documents() -> String {
    "---\napiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: knative}\nspec: {template: {spec: {containers: []}}}\n\
     ---\napiVersion: v1\nkind: Service\nmetadata: {name: typed, namespace: tenant}\nspec: {ports: {a: b}}\n\
     ---\n{\n"
        .to_owned()
}

/// Nine levels of nine references each: four hundred million words.
fn references() -> String {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let before = format!("*a{}", level - 1);
        let _ = writeln!(text, "a{level}: &a{level} [{}]", vec![before; 9].join(", "));
    }
    text
}

/// More source ranges than there is room for.
fn many_ranges() -> String {
    let mut wide = service("ranges", 20, 1, &json!({}));
    let range = |nth: usize| format!("100.{}.{}.0/24", nth / 256, nth % 256);
    wide["spec"]["type"] = json!("LoadBalancer");
    wide["spec"]["loadBalancerSourceRanges"] = (0..20_000).map(range).collect();
    wide["status"]["loadBalancer"]["ingress"] = json!([{"ip": "198.51.100.7"}]);
    documents(&[wide, slice("ranges", 3, 1, 1, None)])
}

/// Puts the inputs into the agent's folder.
struct Tenant {
    folder: PathBuf,
    node: String,
}

type Input = (&'static str, fn(&Tenant, &Path));

const INPUTS: [Input; 11] = [
    ("unequal-weights", |_, path| write(path, &unequal_weights())),
    ("bad-weights", |_, path| write(path, &bad_weights())),
    ("large-tables", |_, path| write(path, &large_tables())),
    ("largest-table", |_, path| write(path, &largest_table())),
    ("more-endpoints-than-room", |tenant, path| {
        let local = slice("local", 4, 1, 200, Some(&tenant.node));
        write(path, &documents(&[service("local", 30, 1, &json!({})), local]));
    }),
    ("more-ranges-than-room", |_, path| write(path, &many_ranges())),
    ("odd-documents", |_, path| write(path, &odd_documents())),
    ("references", |_, path| write(path, &references())),
    ("dangling-link", |_, path| symlink("/nowhere", path).unwrap()),
    ("pipe", |_, path| nix::unistd::mkfifo(path, Mode::S_IRWXU).unwrap()),
    ("endless-file", |_, path| symlink("/dev/zero", path).unwrap()),
];

fn write(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

impl Tenant {
    fn put(&self, (name, put): &Input) {
        put(self, &self.folder.join(format!("{name}.yaml")));
    }

    fn remove(&self, (name, _): &Input) {
        std::fs::remove_file(self.folder.join(format!("{name}.yaml"))).unwrap();
    }
}

/// Gives a service of somebody else a backend or takes it away, until a client notices.
fn change_elsewhere(agent: &Agent, fixture: &Fixture, has_backend: bool) {
    let endpoints = if has_backend { fixture.endpoints() } else { Vec::new() };
    let elsewhere = Service::standard("elsewhere", 40, endpoints);
    let to = elsewhere.frontends(Protocol::Tcp);
    agent.write(&Manifest::of([fixture.web(), elsewhere])).unwrap();
    eventually("the change is served", SERVED, || {
        let served = to.iter().filter(|to| Stream::connect(fixture.client.netns(), **to).is_ok()).count();
        (served == if has_backend { to.len() } else { 0 }).then_some(())
    });
}

/// Asks `/livez` as the kubelet does, until `body` ends; returns what that returned, and the most failures in a row.
fn under_liveness<T>(agent: &Agent, body: impl FnOnce() -> T) -> (T, u32) {
    let (over, most) = (AtomicBool::new(false), AtomicU32::new(0));
    let returned = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut failures = 0;
            while !over.load(Ordering::Relaxed) {
                let asked = Instant::now();
                let is_live =
                    matches!(agent.health("/livez"), Ok((200, _))) && asked.elapsed() < Duration::from_secs(1);
                failures = if is_live { 0 } else { failures + 1 };
                most.fetch_max(failures, Ordering::Relaxed);
                std::thread::sleep(PERIOD);
            }
        });
        let returned = catch_unwind(AssertUnwindSafe(body));
        over.store(true, Ordering::Relaxed);
        returned
    });
    (returned.unwrap_or_else(|panic| resume_unwind(panic)), most.into_inner())
}

#[test]
fn the_worst_inputs_delay_nobody_elses_changes_and_kill_no_agent() {
    let fixture = Fixture::new("worst", Pods::Routed, 1, NodeOptions::default());
    let mut agent = fixture.agent(&Manifest::of([fixture.web()]), &SIZES);
    let tenant = Tenant { folder: fixture.node.run_dir().join("manifest"), node: fixture.node.node_name() };
    let changes = |agent: &Agent, what: &str| {
        let ((), most) = under_liveness(agent, || {
            // One change while the input is read, one after it.
            for has_backend in [true, false] {
                change_elsewhere(agent, &fixture, has_backend);
            }
        });
        assert!(most < FAILURES_MAX, "{what}: /livez failed {most} times in a row");
    };
    for input in &INPUTS {
        tenant.put(input);
        changes(&agent, input.0);
        tenant.remove(input);
    }
    for input in &INPUTS {
        tenant.put(input);
    }
    changes(&agent, "all of them");
    // Not ready for good, as some files cannot be read.
    agent.launch().unwrap();
    eventually("the agent lives", SOON, || matches!(agent.health("/livez"), Ok((200, _))).then_some(()));
    changes(&agent, "all of them, after a restart");
}
