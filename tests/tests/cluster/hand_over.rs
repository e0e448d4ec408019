//! The way back: the manual's page "Back to kube-proxy in five minutes" as it is written, from Ballast to the real kube-proxy, and what `ballast
//! cleanup --hand-over` refuses.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use lb_tests::agent::{Agent, Manifest, Protocol, SOON, START};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::guide::{Connections, Crossing, DaemonSets, Guide, commands, create_kube_proxy};
use lb_tests::peers::{Stream, eventually};
use lb_tests::topology::NodeOptions;

const MIGRATION: &str = include_str!("../../../docs/src/migrating.md");
const PAGE: &str = include_str!("../../../docs/src/back-to-kube-proxy.md");
/// Connections on each of 12 ways: 360 of TCP, and 8 flows of UDP.
const EACH: usize = 30;

#[test]
fn the_page_gives_all_connections_of_both_nodes_to_kube_proxy() {
    let crossing = Crossing::new("handover").unwrap();
    let (cluster, [first, second]) = (&crossing.cluster, &crossing.nodes);
    create_kube_proxy(cluster).unwrap();
    let mut sets = DaemonSets::new(cluster, &[first, second], &[]).unwrap();
    let guide = Guide::new(cluster, crossing.api.netns()).unwrap();
    let (over, stop) = (&AtomicBool::new(false), &AtomicBool::new(false));
    let printed = std::thread::scope(|scope| {
        let _ended = Ended([over, stop]);
        let kubelets = scope.spawn(|| sets.run(crossing.api.netns(), over).map(|()| &sets.printed));
        // Both nodes have Ballast from the beginning.
        for node in [first, second] {
            guide.run("kubectl label node \"$NODE\" ballast.dev/proxy=ballast", node).unwrap();
        }
        for command in commands(MIGRATION, "### Prepare") {
            guide.run(&command, first).unwrap();
        }
        guide.run("kubectl -n kube-system rollout status daemonset/ballast --timeout=5m", first).unwrap();
        let mut connections: Connections = crossing.connect(EACH).unwrap();
        let count = connections.count();
        let asking = scope.spawn(move || connections.ask_until(stop));
        let page = commands(PAGE, "## One node of a cluster");
        let (finish, each) = page.split_last().expect("commands");
        assert!(finish.contains("kubectl delete"), "{finish}");
        for node in [first, second] {
            for command in each {
                println!("{command}\n{}", guide.run(command, node).unwrap());
            }
            drop(crossing.connect(1).unwrap());
            let status = guide.run("ballast status", node).unwrap();
            assert!(status.lines().any(|line| line.starts_with("Attached:") && line.ends_with("nothing")), "{status}");
        }
        guide.run(finish, first).unwrap();
        stop.store(true, Ordering::Relaxed);
        let (lost, longest) = asking.join().unwrap();
        println!("{} of {count} connections lost; the longest answer took {longest:?}", lost.len());
        assert!(lost.is_empty(), "{} of {count}: {lost:#?}", lost.len());
        over.store(true, Ordering::Relaxed);
        kubelets.join().unwrap().unwrap().clone()
    });
    let given: Vec<&String> = printed.iter().filter(|text| text.contains("connections to netfilter")).collect();
    assert_eq!(given.len(), 2, "{printed:#?}");
    for text in &given {
        println!("{}", text.lines().next().unwrap_or_default());
    }
    assert!(given.iter().all(|text| !text.contains("connections end")), "{given:#?}");
}

#[test]
fn nothing_is_given_while_an_agent_runs_or_kube_proxy_has_no_rules() {
    let fixture = Fixture::new("refuses", Pods::Routed, 1, NodeOptions::default());
    let service = fixture.web();
    let mut agent: Agent = fixture.agent(&Manifest::of([service.clone()]), &[]);
    let to = service.frontends(Protocol::Tcp)[0];
    let mut stream = Stream::connect(fixture.client.netns(), to).unwrap();
    let refused = |agent: &Agent, why: &str| {
        let output = agent.cli(&["cleanup", "--hand-over"]).unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains(why), "{said}");
    };
    refused(&agent, "stop it first");
    agent.stop().unwrap();
    refused(&agent, "kube-proxy has no rules on this node");
    assert_eq!(stream.ask("still Ballast's").unwrap().server, "b0");
    assert!(Stream::connect(fixture.client.netns(), to).is_ok(), "new ones, too");
    agent.restart().unwrap();
    eventually("the agent goes on", SOON, || agent.is_ready().then_some(()));
    assert_eq!(stream.ask("still").unwrap().server, "b0");
}

#[test]
fn connections_are_given_in_the_middle_of_a_switch_to_other_tables() {
    let fixture = Fixture::new("givenhalf", Pods::Routed, 2, NodeOptions::default());
    let service = fixture.web();
    let manifest = Manifest::of([service.clone()]);
    let mut first = fixture.agent(&manifest, &["--map-sizes=flows4=65536,flows6=65536"]);
    let mut streams = Vec::new();
    for to in service.frontends(Protocol::Tcp) {
        for _ in 0..4 {
            let mut stream = Stream::connect(fixture.client.netns(), to).unwrap();
            let server = stream.ask("first").unwrap().server;
            streams.push((stream, server));
        }
    }
    first.kill();
    std::mem::forget(first); // The next one cleans up.
    let mut agent = Agent::prepare(&fixture.node, &["--map-sizes=flows4=16384,flows6=16384"]).unwrap();
    agent.write(&manifest).unwrap();
    let stepped = agent.launch_stepped(Some("take from flows4#3".parse().unwrap())).unwrap();
    eventually("killed", START, || (!stepped.is_alive()).then_some(()));
    assert!(stepped.end().unwrap(), "killed while it moves connections");
    // What the command looks for is a chain of a service in each family. As long as a chain is of type NAT, the kernel translates.
    let rules = ["ip", "ip6"].map(|family| {
        format!(
            "add table {family} kube-proxy; add chain {family} kube-proxy service-A; \
             add chain {family} kube-proxy nat-output {{ type nat hook output priority -100; }}; \
             add rule {family} kube-proxy nat-output ct state new jump service-A"
        )
    });
    let rules = rules.join("; ");
    let written = fixture.node.netns().run(|| Command::new("nft").arg(rules).status()).unwrap();
    assert!(written.success());
    let given = agent.cli(&["cleanup", "--hand-over"]).unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&given.stdout), String::from_utf8_lossy(&given.stderr));
    assert!(given.status.success() && said.contains(&format!("gave {} connections", streams.len())), "{said}");
    for (stream, server) in &mut streams {
        assert_eq!(&stream.ask("given").unwrap().server, server);
    }
}

/// Ends the threads if the test fails.
struct Ended<'a>([&'a AtomicBool; 2]);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|flag| flag.store(true, Ordering::Relaxed));
    }
}
