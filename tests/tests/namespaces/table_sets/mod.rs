//! Tables of other sizes or of another layout follow those that serve, while connections are held and made. None is lost, refused or moved.
//!
//! The long form kills it at every kind of step, and has 1,000 connections held and 2,000 made in a second. `BALLAST_STEPS=2/4` then takes the second
//! quarter of the steps.

mod external;
mod killed;
mod layouts;
mod paused;
mod sizes;
mod traffic;

use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use lb_tests::agent::{Agent, Manifest, SOON};
use lb_tests::fixture::{Fixture, Pods};
use lb_tests::peers::eventually;
use lb_tests::topology::NodeOptions;

use traffic::{Amount, Frontends, Traffic};

/// As many clients as the machine of every test bears, or as many as are asked for.
fn amount() -> Amount {
    lb_seed::short_or_long(Amount { held: 80, new: 100 }, Amount { held: 1_000, new: 2_000 })
}

fn is_long() -> bool {
    lb_seed::short_or_long(false, true)
}

/// Of the long form: which part of how many parts of the steps.
fn part() -> (usize, usize) {
    let Ok(steps) = std::env::var("BALLAST_STEPS") else { return (1, 1) };
    let parts = steps.split_once('/').and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)));
    parts.unwrap_or_else(|| panic!("BALLAST_STEPS={steps}: it is a part, as 2/4"))
}

/// An agent that asks for its own tables.
#[derive(Clone, Debug, Default)]
struct Side {
    flags: &'static [&'static str],
    /// `None`: that of the workspace.
    binary: Option<PathBuf>,
}

/// A node with a service.
struct Scene {
    fixture: Fixture,
    manifest: Manifest,
}

impl Scene {
    fn new(subject: &str) -> Self {
        let fixture = Fixture::new(subject, Pods::Routed, 4, NodeOptions::default());
        let manifest = Manifest::of([fixture.web()]);
        Self { fixture, manifest }
    }

    fn agent(&self, side: &Side) -> Agent {
        let agent = Agent::prepare(&self.fixture.node, side.flags).unwrap();
        agent.write(&self.manifest).unwrap();
        match &side.binary {
            Some(binary) => agent.built_as(binary.clone()),
            None => agent,
        }
    }

    /// An agent whose start is refused: what it finds stays, whatever becomes of it.
    fn agent_kept(&self, side: &Side) -> ManuallyDrop<Agent> {
        ManuallyDrop::new(self.agent(side))
    }

    /// Clients in a pod and on the node itself.
    fn traffic(&self) -> Traffic {
        let places = [self.fixture.client.netns().clone(), self.fixture.node.netns().clone()];
        Traffic::start(&places, &Frontends::of(&self.fixture.web()), amount())
    }

    fn root(&self) -> PathBuf {
        self.fixture.node.bpffs().join("ballast")
    }

    fn settled(&self, at: &str) -> PathBuf {
        settle(&self.root(), at)
    }
}

/// Waits until one set of tables alone is left, and nothing of a switch.
fn settle(root: &Path, at: &str) -> PathBuf {
    eventually(&format!("{at}: one set of tables is left"), SOON, || settled(root))
}

/// The set in force, if nothing else is there.
fn settled(root: &Path) -> Option<PathBuf> {
    let entries =
        std::fs::read_dir(root).ok()?.flatten().map(|entry| entry.file_name().into_string().unwrap_or_default());
    let found: Vec<String> = entries
        .filter(|name| ["tables-", "switch-", "coming", "removed-"].iter().any(|prefix| name.starts_with(prefix)))
        .collect();
    let [set] = &found[..] else { return None };
    let in_force = std::fs::read_link(root.join("tables")).ok()?;
    (in_force == Path::new(set)).then(|| root.join(set))
}
