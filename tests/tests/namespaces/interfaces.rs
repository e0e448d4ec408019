//! Interfaces come, go and are renamed a thousand times. Each is attached when its notification comes, and new pods are served at once, also with no
//! agent running. Nothing is left of those that are gone. Lost notifications cost a full listing, nothing else.

use lb_common::map;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lb_tables::Pinned;
use lb_tests::agent::{Agent, Manifest, Protocol, SOON, Service};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::{Stream, eventually};
use lb_tests::topology::{Namespace, NetNs, NodeOptions};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Interfaces of one round; each comes, is renamed and goes.
const LINKS: usize = 28;
/// Rounds with an agent, and without one: `3 * LINKS * (ROUNDS + ORPHANED)` events.
const ROUNDS: usize = 9;
const ORPHANED: usize = 3;
const _: () = assert!(3 * LINKS * (ROUNDS + ORPHANED) >= 1000);
/// How soon most interfaces that come are attached, as the manual says. The agent looks at all interfaces again every 10 s: were notifications
/// missed, half of them would take longer than this.
const ATTACHED: Duration = Duration::from_secs(5);
/// All interfaces of a round are of this group, so that one request deletes them.
const GROUP: u32 = 4242;

/// Interfaces by name: role and attached programs.
fn links(agent: &Agent) -> BTreeMap<String, (String, usize)> {
    let status = agent.json(&["status"]).unwrap();
    let links = status["agent"]["datapath"]["links"].as_array().unwrap();
    let of = |field: &serde_json::Value| field.as_str().unwrap().to_owned();
    links
        .iter()
        .map(|link| (of(&link["name"]), (of(&link["role"]), link["programs"].as_array().unwrap().len())))
        .collect()
}

/// What an agent holds, and what it has pinned: each may leak.
#[derive(Clone, Copy, Debug)]
struct Held {
    descriptors: usize,
    attachments: usize,
    entries: usize,
    maps: usize,
}

impl Held {
    fn by(agent: &Agent) -> Self {
        let count = |path: String| std::fs::read_dir(path).unwrap().count();
        let pins = agent.bpffs().join("ballast");
        Self {
            descriptors: count(format!("/proc/{}/fd", agent.pid().unwrap())),
            attachments: count(pins.join("attachments").display().to_string()),
            entries: Pinned::open(&pins.join("tables")).unwrap().of::<map::Links>().read().unwrap().len(),
            maps: count(pins.join("tables").display().to_string()),
        }
    }

    /// Whether this is no more than what was held before, when some of it may have been about to go.
    fn is_within(self, before: Self) -> bool {
        self.descriptors <= before.descriptors
            && self.attachments <= before.attachments
            && self.entries <= before.entries
            && self.maps <= before.maps
    }
}

/// Interfaces of a node that come and go, with their peers in a namespace of its own.
struct Churn {
    peers: Namespace,
    round: usize,
}

impl Churn {
    fn new(fixture: &Fixture) -> Self {
        Self { peers: Namespace::new(&format!("{}-peers", fixture.topology.name())).unwrap(), round: 0 }
    }

    fn names(&self, prefix: &str) -> Vec<String> {
        (0..LINKS).map(|index| format!("{prefix}{}x{index}", self.round)).collect()
    }

    fn each(&self, fixture: &Fixture, line: impl Fn(usize, &str, &str) -> String) {
        let (new, renamed) = (self.names("new"), self.names("ren"));
        let lines: Vec<String> = (0..LINKS).map(|index| line(index, &new[index], &renamed[index])).collect();
        fixture.node.namespace().ip(&lines.join("\n")).unwrap();
    }

    fn come(&self, fixture: &Fixture) {
        let peers = self.peers.name();
        self.each(fixture, |index, new, _| {
            format!("link add {new} group {GROUP} type veth peer name p{index} netns {peers}\nlink set {new} up")
        });
    }

    fn are_renamed(&self, fixture: &Fixture) {
        self.each(fixture, |_, new, renamed| format!("link set {new} name {renamed}"));
    }

    fn go(&mut self, fixture: &Fixture) {
        fixture.node.namespace().ip(&format!("link delete group {GROUP}")).unwrap();
        self.round += 1;
    }
}

fn served(from: &NetNs, service: &Service) {
    for to in service.frontends(Protocol::Tcp) {
        let mut stream = Stream::connect(from, to).unwrap_or_else(|error| panic!("tcp {to}: {error}"));
        stream.ask("hello").unwrap_or_else(|error| panic!("tcp {to}: {error}"));
    }
}

/// Waits until interfaces of these names are attached, as pods' are.
fn attached(agent: &Agent, names: &[String]) {
    eventually("the interfaces are attached", SOON, || {
        let links = links(agent);
        names
            .iter()
            .all(|name| links.get(name).is_some_and(|(role, programs)| role == "pod" && *programs == 2))
            .then_some(())
    });
}

#[test]
fn a_thousand_interfaces_that_come_go_and_are_renamed_are_attached_and_leave_nothing() {
    let fixture = Fixture::new("interfaces", Pods::Routed, 2, NodeOptions::default());
    let service = fixture.web();
    let mut agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    let mut churn = Churn::new(&fixture);
    let standing = links(&agent);
    let rests =
        |agent: &Agent| eventually("nothing else is attached", SOON, || (links(agent) == standing).then_some(()));
    let (mut took, mut begin) = (Vec::new(), None);
    for round in 0..ROUNDS {
        churn.come(&fixture);
        if round % 4 == 0 {
            attached(&agent, &churn.names("new"));
        }
        churn.are_renamed(&fixture);
        if round % 4 == 0 {
            attached(&agent, &churn.names("ren"));
        }
        churn.go(&fixture);
        let pod = fixture.pod(&format!("pod{round}"));
        let born = Instant::now();
        served(pod.netns(), &service);
        attached(&agent, &[pod.link().to_owned()]);
        took.push(born.elapsed());
        drop(pod);
        rests(&agent);
        begin = begin.or_else(|| Some(Held::by(&agent)));
    }
    let begin = begin.unwrap();
    let leaks_nothing = |agent: &Agent| {
        let what = format!("the agent holds no more than after the first round, {begin:?}");
        eventually(&what, SOON, || Held::by(agent).is_within(begin).then_some(()));
    };
    leaks_nothing(&agent);
    took.sort();
    assert!(took[took.len() / 2] <= ATTACHED, "pods were attached after {took:?}");

    agent.kill();
    for _ in 1..ORPHANED {
        churn.come(&fixture);
        churn.are_renamed(&fixture);
        churn.go(&fixture);
    }
    churn.come(&fixture);
    churn.are_renamed(&fixture);
    let orphan = fixture.pod("orphan");
    served(orphan.netns(), &service);
    agent.restart().unwrap();
    attached(&agent, &churn.names("ren"));
    attached(&agent, &[orphan.link().to_owned()]);
    served(orphan.netns(), &service);
    churn.go(&fixture);
    drop(orphan);
    rests(&agent);
    leaks_nothing(&agent);
    served(fixture.client.netns(), &service);
}

/// More notifications than its socket holds come while the agent is stopped. Afterwards it finds what they said: a new pod, a link that
/// is gone, and a default route, which no periodic look would find.
#[test]
fn lost_notifications_are_made_up_for_by_a_full_listing() {
    let fixture = Fixture::new("overrun", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    let pod = fixture.pod("gone");
    attached(&agent, &[pod.link().to_owned()]);
    let gone = pod.link().to_owned();
    let pid = Pid::from_raw(i32::try_from(agent.pid().unwrap()).unwrap());
    kill(pid, Signal::SIGSTOP).unwrap();
    let namespace = fixture.node.namespace();
    // Only of a link that is up the kernel says that its alias changed.
    namespace.ip("link add noise type veth peer name silence\nlink set noise up").unwrap();
    // Each is a notification of a kilobyte and more; the socket holds 2 MiB at most.
    let noise: Vec<String> = (0..4000).map(|number| format!("link set noise alias n{number}")).collect();
    namespace.ip(&noise.join("\n")).unwrap();
    drop(pod);
    let newborn = fixture.pod("new");
    let peers = Namespace::new(&format!("{}-uplink", fixture.topology.name())).unwrap();
    namespace
        .ip(&format!("link add uplink0 type veth peer name up netns {}\nlink set uplink0 up", peers.name()))
        .unwrap();
    namespace.ip("route add default dev uplink0 metric 4000").unwrap();
    served(newborn.netns(), &service);
    kill(pid, Signal::SIGCONT).unwrap();
    eventually("the agent knows all of it", SOON, || {
        let links = links(&agent);
        let role = |name: &str| links.get(name).map(|(role, _)| role.as_str());
        (role("uplink0") == Some("external") && role(newborn.link()) == Some("pod") && role(&gone).is_none())
            .then_some(())
    });
    assert_eq!(agent.log().matches("(ENOBUFS)").count(), 1, "{}", agent.log());
    served(newborn.netns(), &service);
    served(fixture.client.netns(), &service);
}
