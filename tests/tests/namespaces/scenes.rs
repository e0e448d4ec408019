//! What must hold on nodes as people have them: the same checks on every scene, with each reverse path filter and both kinds of clusters.

mod checks;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use lb_tests::scene::Scene;
use lb_tests::topology::{Families, NodeOptions, Uplink};

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
    uplink: Uplink,
}

impl Case {
    /// All of a scene. The reverse path filter is one of IPv4.
    fn all(scene: Scene) -> [Self; 4] {
        let both = |rp_filter| Self { scene, rp_filter, families: Families::Both, uplink: Uplink::Plain };
        [both(0), both(1), both(2), Self { families: Families::Ipv6, ..both(0) }]
    }

    /// A bare node, and one with masquerade and pods on another bridge.
    fn bridge_uplinks() -> [Self; 2] {
        [(Scene::Bare, 2), (Scene::Flannel, 1)].map(|(scene, rp_filter)| Self {
            scene,
            rp_filter,
            families: Families::Both,
            uplink: Uplink::Bridge,
        })
    }

    /// The name of its networks.
    fn subject(self, check: &str) -> String {
        let Self { scene, rp_filter, families, uplink } = self;
        let families = if families == Families::Both { "" } else { "v6" };
        let uplink = if uplink == Uplink::Plain { "" } else { "br" };
        format!("{}-{rp_filter}{families}{uplink}-{check}", scene.name())
    }

    fn options(self) -> NodeOptions {
        let Self { scene, rp_filter, families, uplink } = self;
        NodeOptions {
            scene,
            rp_filter,
            families,
            uplink,
            sysctls: SYSCTLS[usize::from(rp_filter)],
            ..NodeOptions::default()
        }
    }

    fn is_chosen(self, check: &Check) -> bool {
        check.is_possible(self) && lb_seed::short_or_long(self.is_short(check), true)
    }

    /// The short form: one kind of node for each scene. A few checks share an agent on those that differ most, and some others run on one of these.
    fn is_short(self, check: &Check) -> bool {
        const SHARED: &[&str] = &["status", "cluster_ip", "node_ports", "way_out"];
        let (rp_filter, families, checks): (u8, Families, [&[&str]; 2]) = match self.scene {
            Scene::Bare if self.uplink == Uplink::Bridge => (2, Families::Both, [SHARED, &["north_south"]]),
            Scene::Flannel if self.uplink == Uplink::Bridge => (1, Families::Both, [SHARED, &["drain"]]),
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

/// Runs the chosen checks on these nodes.
fn holds(name: &str, cases: impl IntoIterator<Item = Case>) {
    let mut wrong = Vec::new();
    for case in cases {
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
    assert!(wrong.is_empty(), "{} of {name}:\n{}", wrong.len(), wrong.join("\n"));
}

fn scene(scene: Scene) {
    holds(scene.name(), Case::all(scene));
}

fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?")
}

#[test]
fn bare() {
    scene(Scene::Bare);
}

#[test]
fn kubelet() {
    scene(Scene::Kubelet);
}

#[test]
fn flannel() {
    scene(Scene::Flannel);
}

#[test]
fn aws() {
    scene(Scene::Aws);
}

#[test]
fn calico() {
    scene(Scene::Calico);
}

#[test]
fn netpol() {
    scene(Scene::Netpol);
}

#[test]
fn docker() {
    scene(Scene::Docker);
}

#[test]
fn firewalld() {
    scene(Scene::Firewalld);
}

#[test]
fn cloud() {
    scene(Scene::Cloud);
}

#[test]
fn nodelocaldns() {
    scene(Scene::NodeLocalDns);
}

#[test]
fn an_uplink_that_is_a_bridge() {
    holds("bridges", Case::bridge_uplinks());
}
