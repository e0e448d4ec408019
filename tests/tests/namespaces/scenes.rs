//! What must hold on nodes as people have them: the same checks on every scene, with each reverse path filter and both kinds of clusters.

mod checks;
mod gaps;

use std::panic::{AssertUnwindSafe, catch_unwind};

use lb_tests::scene::Scene;
use lb_tests::topology::{Families, NodeOptions};

use checks::{CHECKS, Check, Ground, Run};
use gaps::GAPS;

/// A node, and what was set on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    scene: Scene,
    rp_filter: u8,
    families: Families,
}

impl Case {
    /// All of a scene.
    fn all(scene: Scene) -> impl Iterator<Item = Self> {
        let of = move |families| [0, 1, 2].map(|rp_filter| Self { scene, rp_filter, families });
        Families::ALL.into_iter().flat_map(of)
    }

    /// The name of its networks.
    fn subject(self, check: &str) -> String {
        let Self { scene, rp_filter, families } = self;
        format!("{}-{rp_filter}{}-{check}", scene.name(), if families == Families::Both { "" } else { "v6" })
    }

    fn options(self) -> NodeOptions {
        let Self { scene, rp_filter, families } = self;
        NodeOptions { scene, rp_filter, families, ..NodeOptions::default() }
    }

    /// The short form has one kind of node for each scene, and on each those checks that are named here.
    fn is_chosen(self, check: &Check) -> bool {
        lb_seed::short_or_long(self.is_short(check), true)
    }

    fn is_short(self, check: &Check) -> bool {
        use Families::{Both, Ipv6};
        let (rp_filter, families, more): (u8, Families, &[&str]) = match self.scene {
            Scene::Flannel => (1, Both, &[]),
            Scene::Aws => (2, Both, &[]),
            Scene::Calico => (1, Both, &[]),
            _ => return false,
        };
        let is_shared = matches!(check.run, Run::Shared(_));
        (self.rp_filter, self.families) == (rp_filter, families) && (is_shared || more.contains(&check.name))
    }
}

/// Runs the chosen checks of a scene. What is a known gap must fail, and all else must not.
fn holds(scene: Scene) {
    let mut wrong = Vec::new();
    for case in Case::all(scene) {
        let mut ground = None;
        for check in CHECKS.iter().filter(|check| case.is_chosen(check)) {
            let gap = GAPS.iter().find(|gap| gap.covers(case, check.name));
            let held = catch_unwind(AssertUnwindSafe(|| match check.run {
                Run::Shared(run) => run(ground.get_or_insert_with(|| Ground::new(case))),
                Run::Own(run) => run(case),
            }));
            println!("{case:?}, {}: {}, gap: {gap:?}", check.name, if held.is_ok() { "holds" } else { "fails" });
            match (held, gap) {
                (Ok(()), Some(gap)) => wrong.push(format!("{case:?}, {}: no gap any more: {}", check.name, gap.why)),
                (Err(panic), None) => wrong.push(format!("{case:?}, {}: {}", check.name, said(&*panic))),
                _ => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{} of scene {}:\n{}", wrong.len(), scene.name(), wrong.join("\n"));
}

fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?")
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
