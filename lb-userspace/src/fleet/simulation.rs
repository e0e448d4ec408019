//! Many agents in one process: each has a listener with TLS on an address of its own, and reviews by one API server. Agents with the same objects
//! share the tables that these were programmed into.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::agents;
use super::answer::{NodeStatus, Versions};
use super::command::Commands;
use super::digest::Digest;
use super::listener::tests::TestCertificate;
use super::listener::{Answers, View, serve};
use super::report::FleetReport;
use super::review::Reviewer;
use super::survey::Survey;
use super::test_api::TestApi;
use super::{SERVER_NAME, tls};
use crate::observe::fleet_metrics::FleetMetrics;
use lb_model::{Accepted, Mark, Monotonic, ObjectName, Snapshot};
use lb_objects::manifest::snapshot;
use lb_plan::apply::{MemoryStore, Programmer};
use lb_plan::plan::{Capacities, NodeFacts, PlanSettings};

/// Agents of a run of the ladder, and of one of every step.
const AGENTS: usize = 300;
const AGENTS_OF_ALL: usize = 5_000;
const SERVICES: usize = 20;
/// A change that most agents have.
const VERSION: u64 = 100;

/// How an agent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Same,
    /// It missed the deletion of a service, and the last change of another one.
    Differs,
    /// Its watch has not brought the last change.
    Behind,
    Stale,
    /// It takes connections, and answers none.
    Silent,
}

/// Services and slices, each with a version; `last`: that of the first service.
fn cluster(services: impl Iterator<Item = usize>, last: &str) -> Snapshot {
    let (mut text, mut marks) = (String::new(), Accepted::default());
    for number in services {
        let name = ObjectName::new("demo", format!("s{number}"));
        let version = if number == 0 { last } else { "1" };
        marks.services.add(&name, Mark::of("Service", &name, "u", version));
        marks.slices.add(&name, Mark::of("EndpointSlice", &name, "u", "1"));
        let ip = number + 1;
        write!(
            text,
            "apiVersion: v1\nkind: Service\nmetadata: {{name: s{number}, namespace: demo}}\nspec: {{clusterIP: 10.96.0.{ip}, ports: [{{port: 80}}]}}\n---\n\
             apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: s{number}-1, namespace: demo, labels: {{kubernetes.io/service-name: s{number}}}}}\n\
             addressType: IPv4\nports: [{{port: 8080}}]\nendpoints: [{{addresses: [10.0.0.{ip}]}}]\n---\n"
        )
        .expect("a text");
    }
    Snapshot { accepted: marks, ..snapshot(&text) }
}

/// What an agent has in its tables after it programmed this snapshot.
fn programmed(snapshot: &Snapshot) -> Accepted {
    let store = MemoryStore::new(Capacities::all(4096));
    let mut programmer = Programmer::restore(store, PlanSettings::default(), Monotonic::default()).expect("empty");
    let facts = NodeFacts::default();
    let mut now = Monotonic::default();
    let mut report = programmer.sync(snapshot, &facts, now);
    while report.waiting > 0 {
        now = now + Duration::from_millis(20);
        report = programmer.tick(now);
    }
    assert_eq!((report.failing, report.services), (0, snapshot.services.len()));
    snapshot.accepted.except(&programmer.unprogrammed(), &Accepted::default())
}

fn view(node: &str, kind: Kind, accepted: Accepted) -> View {
    let at = |version| Versions { services: version, endpoint_slices: version };
    let digest = Digest::of(&accepted);
    let status = NodeStatus {
        node_name: node.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        synced: true,
        stale: (kind == Kind::Stale).then(|| "the API does not answer for 40 s".to_owned()),
        digest: digest.text(),
        buckets: digest.buckets(),
        programmed: at(if kind == Kind::Behind { VERSION - 10 } else { VERSION }),
        known: at(if kind == Kind::Behind { VERSION - 10 } else { VERSION + 5 }),
        ..NodeStatus::default()
    };
    View { status, accepted }
}

struct Fleet {
    api: TestApi,
    port: u16,
    _tasks: Vec<AbortOnDropHandle<()>>,
    _silent: Vec<TcpListener>,
}

/// Starts agents, all on one port, each on an address of its own.
async fn start(kinds: &[Kind]) -> Fleet {
    let (api, certificate) = (TestApi::default(), TestCertificate::new(SERVER_NAME));
    let states = [cluster(0..SERVICES, "2"), cluster(0..=SERVICES, "1"), cluster(0..SERVICES, "1")];
    let states = states.map(|state| programmed(&state));
    let first = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = first.local_addr().expect("bound").port();
    let (mut pods, mut tasks, mut silent) = (Vec::new(), Vec::new(), Vec::new());
    for (number, kind) in kinds.iter().enumerate() {
        let node = format!("n{number:04}");
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 7, 0, 1)) + u32::try_from(number).expect("few"));
        let listener = TcpListener::bind((address, port)).await.expect("an address of the loopback device");
        pods.push((node.clone(), IpAddr::from(address)));
        let state = match kind {
            Kind::Differs => &states[1],
            Kind::Behind => &states[2],
            _ => &states[0],
        };
        if *kind == Kind::Silent {
            silent.push(listener);
            continue;
        }
        let view = view(&node, *kind, state.clone());
        let commands = Commands::new("/bin/false".into(), Vec::new(), Vec::new());
        let answers =
            Answers::new(move || view.clone(), Reviewer::new(api.client()), commands, FleetMetrics::default());
        tasks.push(AbortOnDropHandle::new(tokio::spawn(serve(listener, answers, certificate.server()))));
    }
    api.run(pods, vec!["bare".to_owned()], certificate.ca.clone());
    Fleet { api, port, _tasks: tasks, _silent: silent }
}

/// What `kubectl ballast status` does.
async fn ask(fleet: &Fleet, limit: Duration) -> FleetReport {
    let client = fleet.api.client();
    let agents = agents::find(&client, "kube-system", "app.kubernetes.io/name=ballast").await.expect("pods");
    let ca = agents::ca(&client, "kube-system", "ballast-fleet").await.expect("a CA");
    let token = agents::token(&client, "kube-system", "ballast-fleet").await.expect("a token");
    let name = tokio_rustls::rustls::pki_types::ServerName::try_from(SERVER_NAME).expect("a name");
    let asker = super::client::Asker::new(tls::client(ca.as_bytes()).expect("a CA"), name, &token);
    Survey { asker, port: fleet.port, concurrency: 64, limit, pause: Duration::from_millis(100) }
        .report(&agents, |_| {})
        .await
}

/// One listener, and one connection of each end for each question under way.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Where the hard limit is too low, the test says so by itself.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_question_names_every_node_that_is_not_in_sync() {
    raise_file_limit();
    let count = lb_seed::short_or_long(AGENTS, AGENTS_OF_ALL);
    let mut kinds = vec![Kind::Same; count];
    for (at, kind) in
        [(7, Kind::Differs), (8, Kind::Differs), (20, Kind::Behind), (30, Kind::Stale), (40, Kind::Silent)]
    {
        kinds[at] = kind;
    }
    let fleet = start(&kinds).await;
    let report = ask(&fleet, Duration::from_secs(5)).await;
    let problems: Vec<_> =
        report.nodes.iter().filter(|node| node.state != "same").map(|node| (node.node.as_str(), node.state)).collect();
    assert_eq!(
        problems,
        [
            ("bare", "no answer"),
            ("n0007", "differs"),
            ("n0008", "differs"),
            ("n0020", "behind"),
            ("n0030", "stale"),
            ("n0040", "no answer")
        ]
    );
    for node in report.nodes.iter().filter(|node| node.state == "differs") {
        assert_eq!(node.services, ["demo/s0", &format!("demo/s{SERVICES}")]);
    }
    assert_eq!(report.totals.same, count - 5);
    let answering = count - 1;
    // Nodes that are asked again after a minute are reviewed again, on a busy machine.
    let (most, again) = if report.seconds < 50.0 { (answering, 0) } else { (answering + 16, 16) };
    let (tokens, accesses) = (fleet.api.token_reviews(), fleet.api.access_reviews());
    assert!(
        tokens == accesses && (answering..=most).contains(&tokens),
        "once for each agent, not {tokens} and {accesses}"
    );
    let lists = 2 * (count / 500 + 1);
    assert!(fleet.api.requests() <= 2 * (answering + again) + lists + 2, "{}", fleet.api.requests());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_in_sync_is_asked_once() {
    let fleet = start(&[Kind::Same; 20]).await;
    let report = ask(&fleet, Duration::from_secs(5)).await;
    assert_eq!((report.totals.same, report.nodes.len()), (20, 21), "one node has no agent");
    assert!(report.seconds < 5.0, "{}", report.seconds);
}
