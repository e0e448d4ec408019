//! The rungs of the ladder: what there is, what is asked for, and what may run at the same time.

use std::collections::VecDeque;

use anyhow::{Result, bail};

use super::binaries::{Module, modules};
use super::{TestArgs, confined};
use crate::mutate;
use crate::setup::Level;
use crate::workspace::Workspace;

/// A step of the ladder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rung {
    Format,
    Lint,
    /// The rules for crates. Its tool takes minutes to build the first time, so it runs beside the tests.
    Deny,
    /// The book as its readers get it. Its tool is built beside the tests, too.
    Book,
    /// Unit and property tests: no root, no BPF tools, no cluster.
    Unit,
    /// Unit tests of what the integration tests, the demo and the bench are built from.
    Harness,
    /// A module of a test binary of the `tests` package: root, real programs.
    Module(Module),
    /// A module of a test binary with the agent as it is deployed, under this name.
    Confined(&'static str, Module),
    /// Every program, few packets and one agent on each other kernel, in virtual machines.
    Kernels,
    /// All subjects of the guests: takes very long.
    Guests,
    /// The agent and unit tests for arm64, emulated.
    Arm64,
    Mutations,
    /// The tour of `cargo xtask run --once`: each of its steps counts.
    Demo,
}

impl Rung {
    pub fn name(&self) -> &str {
        match self {
            Self::Format => "format",
            Self::Lint => "lint",
            Self::Deny => "deny",
            Self::Book => "book",
            Self::Unit => "unit",
            Self::Harness => "harness",
            Self::Module(module) => &module.name,
            Self::Confined(name, _) => name,
            Self::Kernels => "kernels",
            Self::Guests => "guests",
            Self::Arm64 => "arm64",
            Self::Mutations => "mutations",
            Self::Demo => "demo",
        }
    }

    /// Which of the lanes it runs in, beside the other one.
    pub fn lane(&self) -> Lane {
        match self {
            Self::Format | Self::Lint | Self::Unit | Self::Harness | Self::Kernels | Self::Guests | Self::Arm64 => {
                Lane::Before
            }
            Self::Module(module) if WAITING.contains(&module.name.as_str()) => Lane::Beside,
            Self::Mutations => Lane::Beside,
            Self::Deny | Self::Book => Lane::Background,
            Self::Module(_) | Self::Confined(..) | Self::Demo => Lane::Networks,
        }
    }

    pub fn needs_root(&self) -> bool {
        self.is_on_guests() || !matches!(self.lane(), Lane::Before | Lane::Background)
    }

    /// Whether it boots virtual machines.
    fn is_on_guests(&self) -> bool {
        matches!(self, Self::Kernels | Self::Guests)
    }

    /// The binaries whose tests it runs.
    pub fn binaries(&self) -> &[&'static str] {
        match self {
            Self::Module(module) | Self::Confined(_, module) => std::slice::from_ref(&module.binary),
            // Built before the ladder runs: while cargo links a binary anew, other rungs would not find it.
            Self::Mutations => &mutate::JUDGES,
            _ => &[],
        }
    }

    /// The module of tests that it runs.
    pub fn module(&self) -> Option<&Module> {
        match self {
            Self::Module(module) | Self::Confined(_, module) => Some(module),
            _ => None,
        }
    }
}

/// What runs at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Compiles or emulates, and uses all processors by itself: alone.
    Before,
    /// Makes networks and waits for packets: some at a time.
    Networks,
    /// Makes none. It computes, or waits for silences: it takes a processor that the networks leave idle.
    Beside,
    /// Builds a tool at the lowest priority the first time, which takes minutes: nothing waits for it.
    Background,
}

/// Modules that mostly wait: for a silence to be noticed, for a deadline to strike.
const WAITING: [&str; 3] = ["api_faults", "freshness", "incident_b"];

/// Modules that `--quick` runs: of the binary `core`, which compiles in seconds, those that take seconds.
const QUICK: [&str; 2] = ["cluster_ip", "packet"];

/// Rungs with networks that take more than a minute.
const LONG: [&str; 10] = [
    "table_sets",
    "agent_life",
    "catch_all",
    "cluster_ip",
    "affinity",
    "decisions",
    "audit",
    "collisions",
    "connections",
    "north_south",
];

/// All rungs, in order.
pub fn ladder(workspace: &Workspace) -> Result<Vec<Rung>> {
    let mut rungs = vec![Rung::Format, Rung::Lint, Rung::Unit, Rung::Harness, Rung::Deny, Rung::Book];
    for module in modules(&workspace.root)? {
        rungs.extend(confined::rung(&module).map(|name| Rung::Confined(name, module.clone())));
        rungs.push(Rung::Module(module));
    }
    rungs.extend([Rung::Kernels, Rung::Guests, Rung::Arm64, Rung::Mutations, Rung::Demo]);
    Ok(rungs)
}

pub fn select(all: Vec<Rung>, args: &TestArgs) -> Result<Vec<Rung>> {
    if args.quick {
        let quick = |rung: &Rung| match rung {
            Rung::Module(module) => QUICK.contains(&module.name.as_str()),
            other => matches!(other, Rung::Format | Rung::Unit),
        };
        return Ok(all.into_iter().filter(quick).collect());
    }
    let wanted = &args.rungs;
    if wanted.is_empty() {
        // What runs confined, as it is deployed, does not run again otherwise. The long emulated rungs take very long.
        let in_the_ladder = |rung: &Rung| match rung {
            Rung::Module(module) => confined::rung(module).is_none(),
            other => !matches!(other, Rung::Guests | Rung::Arm64),
        };
        return Ok(all.into_iter().filter(in_the_ladder).collect());
    }
    for name in wanted {
        if !all.iter().any(|rung| rung.name() == name) {
            let known: Vec<&str> = all.iter().map(Rung::name).collect();
            bail!("no rung is called {name:?}; there are: {}", known.join(", "));
        }
    }
    Ok(all.into_iter().filter(|rung| wanted.iter().any(|name| rung.name() == name)).collect())
}

/// What must be installed for these rungs.
pub fn level(rungs: &[Rung]) -> Level {
    let needs_cluster = |rung: &Rung| rung.module().is_some_and(|module| module.binary == "cluster");
    if rungs.iter().any(Rung::is_on_guests) {
        Level::Guests
    } else if rungs.iter().any(|rung| needs_cluster(rung) || matches!(rung, Rung::Mutations)) {
        Level::Test
    } else {
        Level::Run
    }
}

/// A long rung that begins last is what everybody waits for.
pub fn longest_first<'a>(rungs: impl Iterator<Item = &'a Rung>) -> VecDeque<&'a Rung> {
    let is_long = |module: &Module| LONG.contains(&module.name.as_str());
    let (long, short): (Vec<_>, Vec<_>) = rungs.partition(|rung| rung.module().is_some_and(is_long));
    long.into_iter().chain(short).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn module(name: &str) -> Rung {
        Rung::Module(Module { binary: "packets", name: name.to_owned() })
    }

    fn wanted(rungs: &[&str]) -> TestArgs {
        TestArgs {
            rungs: rungs.iter().map(|&name| name.to_owned()).collect(),
            quick: false,
            released: false,
            list: false,
            filter: None,
        }
    }

    #[test]
    fn what_makes_networks_has_its_lane_to_itself() {
        assert_eq!(module("two_nodes").lane(), Lane::Networks);
        for rung in [Rung::Mutations, module("freshness")] {
            assert_eq!(rung.lane(), Lane::Beside, "{}", rung.name());
        }
    }

    #[test]
    fn the_longest_rungs_begin_first_and_all_are_there() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout");
        let all: Vec<Rung> = modules(root).expect("the modules").into_iter().map(Rung::Module).collect();
        let ordered = longest_first(all.iter());
        assert_eq!(ordered.len(), all.len());
        let begins: Vec<&str> = ordered.iter().take(LONG.len()).map(|rung| rung.name()).collect();
        assert!(LONG.iter().all(|long| begins.contains(long)), "{begins:?}");
    }

    #[test]
    fn the_long_emulated_rungs_are_asked_for_by_name() {
        let all = vec![Rung::Format, Rung::Kernels, Rung::Guests, Rung::Arm64];
        assert_eq!(select(all.clone(), &wanted(&[])).expect("nothing asked"), [Rung::Format, Rung::Kernels]);
        assert!(Rung::Kernels.needs_root() && !Rung::Unit.needs_root());
        assert_eq!(select(all, &wanted(&["guests"])).expect("is there"), [Rung::Guests]);
    }

    #[test]
    fn an_unknown_rung_is_refused_with_the_known_ones() {
        let all = vec![Rung::Format, module("packet")];
        let error = select(all.clone(), &wanted(&["packets"])).expect_err("no such rung").to_string();
        assert!(error.contains("\"packets\"") && error.contains("format, packet"), "{error}");
        assert_eq!(select(all, &wanted(&["packet"])).expect("is there"), [module("packet")]);
    }

    #[test]
    fn the_quick_rungs_are_there_and_most_need_no_cluster() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the checkout");
        let workspace = Workspace { root: root.to_owned(), tools: root.to_owned(), cache: root.to_owned() };
        let quick = TestArgs { quick: true, ..wanted(&[]) };
        let rungs = select(ladder(&workspace).expect("the ladder"), &quick).expect("chosen");
        let names: Vec<&str> = rungs.iter().map(Rung::name).collect();
        assert_eq!(names, ["format", "unit", "cluster_ip", "packet"]);
        assert_eq!(level(&rungs), Level::Run);
    }

    #[test]
    fn what_runs_confined_runs_otherwise_when_asked_for() {
        let drain = Module { binary: "namespaces", name: "drain".into() };
        let confined = Rung::Confined(confined::rung(&drain).expect("it does"), drain.clone());
        let all = vec![confined.clone(), Rung::Module(drain.clone())];
        assert_eq!(select(all.clone(), &wanted(&[])).expect("nothing asked"), [confined]);
        assert_eq!(select(all, &wanted(&["drain"])).expect("is there"), [Rung::Module(drain)]);
    }
}
