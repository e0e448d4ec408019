//! The manual's section "Remove Ballast from a cluster", as it is written: its commands leave clean nodes, and none is cleaned under a running
//! agent.

use std::sync::atomic::{AtomicBool, Ordering};

use lb_tests::guide::{Crossing, DaemonSets, Guide, commands};
use lb_tests::topology::Node;

const PAGE: &str = include_str!("../../../docs/src/operations.md");

fn is_clean(guide: &Guide<'_>, node: &Node) -> bool {
    let status = guide.run("ballast status", node).unwrap();
    let attached = status.lines().find(|line| line.starts_with("Attached:")).unwrap_or_else(|| panic!("{status}"));
    let is_clean = attached.ends_with("nothing");
    assert_eq!(is_clean, !node.bpffs().join("ballast").exists(), "{status}");
    is_clean
}

#[test]
fn the_commands_of_the_manual_leave_clean_nodes() {
    let crossing = Crossing::new("leave").unwrap();
    let (cluster, [first, second]) = (&crossing.cluster, &crossing.nodes);
    let mut sets = DaemonSets::new(cluster, &[first, second], &[]).unwrap();
    let guide = Guide::new(cluster, crossing.api.netns()).unwrap();
    let over = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ended = Ended(over);
        let kubelets = scope.spawn(|| sets.run(crossing.api.netns(), over).map(|()| sets.printed.clone()));
        guide.run("kubectl apply -k deploy/kustomize/example", first).unwrap();
        guide.run("kubectl -n kube-system rollout status daemonset/ballast --timeout=5m", first).unwrap();
        drop(crossing.connect(1).unwrap());
        let all = commands(PAGE, "### Remove Ballast from a cluster");
        let [delete, apply, wait, end] = &all[..] else { panic!("{all:?}") };
        // The wrong order: what cleans up waits for the agents.
        guide.run(apply, first).unwrap();
        let impatient = wait.replace("--timeout=5m", "--timeout=2s");
        guide.run(&impatient, first).expect_err("agents run");
        assert!([first, second].iter().all(|node| !is_clean(&guide, node)));
        drop(crossing.connect(1).unwrap());
        for command in [delete, apply, wait] {
            println!("{command}\n{}", guide.run(command, first).unwrap());
        }
        assert!([first, second].iter().all(|node| is_clean(&guide, node)));
        guide.run(end, first).unwrap();
        over.store(true, Ordering::Relaxed);
        let printed = kubelets.join().unwrap().unwrap();
        assert!(printed.iter().any(|text| text.contains("stop it first")), "{printed:#?}");
        assert_eq!(printed.iter().filter(|text| text.contains("removed folder")).count(), 2, "{printed:#?}");
    });
}

/// Ends the thread if the test fails.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
