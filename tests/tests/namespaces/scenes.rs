//! What must hold on nodes as people have them: the same checks on every scene, with each reverse path filter and both kinds of clusters.

mod checks;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use lb_tests::scene::Scene;
use lb_tests::topology::{Families, NodeOptions};

use checks::{CHECKS, Check, Ground, Run};

/// What the nodes with each reverse path filter have set besides.
const SYSCTLS: [&[(&str, &str)]; 3] = [
    &[("net/netfilter/nf_conntrack_tcp_loose", "0")],
    &[],
    &[("net/netfilter/nf_conntrack_tcp_be_liberal", "1"), ("net/ipv4/ip_local_port_range", "1024 65535")],
];

/// A node, and what was set on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    scene: Scene,
    rp_filter: u8,
    families: Families,
}

impl Case {
    /// All of a scene. The reverse path filter is one of IPv4.
    fn all(scene: Scene) -> [Self; 4] {
        let both = |rp_filter| Self { scene, rp_filter, families: Families::Both };
        [both(0), both(1), both(2), Self { scene, rp_filter: 0, families: Families::Ipv6 }]
    }

    /// The name of its networks.
    fn subject(self, check: &str) -> String {
        let Self { scene, rp_filter, families } = self;
        format!("{}-{rp_filter}{}-{check}", scene.name(), if families == Families::Both { "" } else { "v6" })
    }

    fn options(self) -> NodeOptions {
        let Self { scene, rp_filter, families } = self;
        NodeOptions { scene, rp_filter, families, sysctls: SYSCTLS[usize::from(rp_filter)], ..NodeOptions::default() }
    }

    fn is_chosen(self, check: &Check) -> bool {
        check.is_possible(self) && lb_seed::short_or_long(self.is_short(check), true)
    }

    /// The short form: one kind of node for each scene. A few checks share an agent on those that differ most, and some others run on one of these.
    fn is_short(self, check: &Check) -> bool {
        const SHARED: &[&str] = &["status", "cluster_ip", "node_ports", "way_out"];
        let (rp_filter, families, checks): (u8, Families, [&[&str]; 2]) = match self.scene {
            Scene::Flannel => (1, Families::Both, [SHARED, &["north_south"]]),
            Scene::Aws => (2, Families::Both, [SHARED, &["icmp"]]),
            Scene::Calico => (1, Families::Both, [SHARED, &["attacker"]]),
            Scene::Netpol => (0, Families::Ipv6, [SHARED, &[]]),
            Scene::Firewalld => (1, Families::Both, [SHARED, &["udp_moves"]]),
            Scene::Cloud => (1, Families::Both, [&["without_agent"], &["egress_ports"]]),
            _ => (1, Families::Both, [&["without_agent"], &[]]),
        };
        (self.rp_filter, self.families) == (rp_filter, families) && checks.concat().contains(&check.name)
    }
}

/// Runs the chosen checks of a scene.
fn holds(scene: Scene) {
    let mut wrong = Vec::new();
    for case in Case::all(scene) {
        let mut ground = None;
        for check in CHECKS.iter().filter(|check| case.is_chosen(check)) {
            let start = Instant::now();
            let held = catch_unwind(AssertUnwindSafe(|| match check.run {
                Run::Shared(run) => run(ground.get_or_insert_with(|| Ground::new(case))),
                Run::Own(run) => run(case),
            }));
            let (name, took) = (check.name, start.elapsed());
            println!("{case:?}, {name}: {} in {took:.1?}", if held.is_ok() { "holds" } else { "fails" });
            if let Err(panic) = held {
                wrong.push(format!("{case:?}, {name}: {}", said(&*panic)));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of scene {}:\n{}", wrong.len(), scene.name(), wrong.join("\n"));
}

fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?")
}

#[test]
fn bare() {
    holds(Scene::Bare);
}

#[test]
fn kubelet() {
    holds(Scene::Kubelet);
}

#[test]
fn flannel() {
    holds(Scene::Flannel);
}

#[test]
fn aws() {
    holds(Scene::Aws);
}

#[test]
fn calico() {
    holds(Scene::Calico);
}

#[test]
fn netpol() {
    holds(Scene::Netpol);
}

#[test]
fn docker() {
    holds(Scene::Docker);
}

#[test]
fn firewalld() {
    holds(Scene::Firewalld);
}

#[test]
fn cloud() {
    holds(Scene::Cloud);
}

#[test]
fn nodelocaldns() {
    holds(Scene::NodeLocalDns);
}
