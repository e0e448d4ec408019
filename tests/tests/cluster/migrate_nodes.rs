//! The guide "Node by node" of the manual, as it is written: two nodes go from the real kube-proxy to Ballast, and no connection is lost.

use std::sync::atomic::{AtomicBool, Ordering};

use lb_tests::agent::SOON;
use lb_tests::guide::{Crossing, DaemonSets, Guide, commands, create_kube_proxy};
use lb_tests::peers::eventually;

const PAGE: &str = include_str!("../../../docs/src/migrating.md");
/// Connections on each of 12 ways: 240 of TCP, and 8 flows of UDP.
const EACH: usize = 20;

#[test]
fn two_nodes_go_to_ballast_and_lose_no_connection() {
    let crossing = Crossing::new("migrate").unwrap();
    let (cluster, [first, second]) = (&crossing.cluster, &crossing.nodes);
    create_kube_proxy(cluster).unwrap();
    let mut sets = DaemonSets::new(cluster, &[first, second], &[]).unwrap();
    let guide = Guide::new(cluster, crossing.api.netns()).unwrap();
    let run = |heading: &str, node| {
        let commands = commands(PAGE, heading);
        assert!(!commands.is_empty(), "{heading}");
        for command in &commands {
            println!("{command}\n{}", guide.run(command, node).unwrap());
        }
    };
    let (over, stop) = (&AtomicBool::new(false), &AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _ended = Ended(&[over, stop]);
        let kubelets = scope.spawn(|| sets.run(crossing.api.netns(), over));
        let mut connections = eventually("kube-proxy serves", SOON, || crossing.connect(EACH).ok());
        let count = connections.count();
        let asking = scope.spawn(move || connections.ask_until(stop));
        run("### Prepare", first);
        for node in [first, second] {
            run("### For each node", node);
            drop(crossing.connect(1).unwrap());
        }
        run("### When all nodes have Ballast", first);
        stop.store(true, Ordering::Relaxed);
        let (lost, longest) = asking.join().unwrap();
        println!("{} of {count} connections lost; the longest answer took {longest:?}", lost.len());
        assert!(lost.is_empty(), "{} of {count}: {lost:#?}", lost.len());
        over.store(true, Ordering::Relaxed);
        kubelets.join().unwrap().unwrap();
    });
}

/// Ends the threads if the test fails.
struct Ended<'a>(&'a [&'a AtomicBool]);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|flag| flag.store(true, Ordering::Relaxed));
    }
}
