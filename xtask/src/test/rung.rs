//! The rungs of the ladder: what there is, what is asked for, and what may run at the same time.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::TestArgs;
use super::binaries::{Module, modules};
use crate::process::say;
use crate::setup::Level;
use crate::{arm64, mutate};

/// Each rung with its lane and its seconds in the short form and in the long one.
const TABLE: &str = include_str!("ladder.toml");

/// Rungs that are no module of a test binary; see `work`.
const STEPS: [&str; 11] =
    ["format", "lint", "unit", "harness", "kernels", "arm64", "fuzz", "demo", "mutations", "deny", "book"];
/// Steps that only read the checkout.
const READING: [&str; 3] = ["format", "deny", "book"];
/// The steps that need root.
const OF_ROOT: [&str; 3] = ["kernels", "demo", "mutations"];

/// The name of a rung that runs a module with the agent as it is deployed begins so.
const CONFINED: &str = "confined_";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    quick: Vec<String>,
    first: Lines,
    networks: Lines,
    beside: Lines,
    background: Lines,
}

type Lines = BTreeMap<String, [u32; 2]>;

/// What runs at the same time; the table says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    First,
    Networks,
    Beside,
    Background,
}

/// A rung of the ladder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rung {
    pub name: String,
    pub lane: Lane,
    /// Seconds that it may take in the short form and in the long one; 0: it is no part of this form.
    budget: [u32; 2],
    /// The module of tests that it runs.
    pub module: Option<Module>,
    /// Whether it runs with the agent as it is deployed.
    pub is_confined: bool,
    is_quick: bool,
}

impl Rung {
    pub fn budget(&self, is_long: bool) -> u32 {
        self.budget[usize::from(is_long)]
    }

    pub fn needs_root(&self) -> bool {
        self.module.is_some() || OF_ROOT.contains(&&*self.name)
    }

    /// The binaries whose tests it runs.
    pub fn binaries(&self) -> &[&'static str] {
        match &self.module {
            Some(module) => std::slice::from_ref(&module.binary),
            // Built before the ladder runs: while cargo links a binary anew, other rungs would not find it.
            None if self.name == "mutations" => &mutate::JUDGES,
            None => &[],
        }
    }

    /// What must be installed for it, beside the programs and the agent. `None`: it needs neither.
    pub fn level(&self) -> Option<Level> {
        match &self.module {
            Some(module) if module.binary == "cluster" => Some(Level::Test),
            None if self.name == "kernels" => Some(Level::Guests),
            None if self.name == "mutations" => Some(Level::Test),
            None if READING.contains(&&*self.name) => None,
            _ => Some(Level::Run),
        }
    }
}

/// All rungs by lanes. In the first lane the shortest one begins; in the others the longest, as one that begins last is what all wait for.
pub fn ladder(root: &Path, is_long: bool) -> Result<Vec<Rung>> {
    let mut rungs = rungs(TABLE, &modules(root)?)?;
    rungs.sort_by_key(|rung| {
        let budget = i64::from(rung.budget(is_long));
        (rung.lane, if rung.lane == Lane::First { budget } else { -budget })
    });
    Ok(rungs)
}

fn rungs(table: &str, modules: &[Module]) -> Result<Vec<Rung>> {
    let table: Table = toml::from_str(table).context("xtask/src/test/ladder.toml")?;
    let lanes = [
        (Lane::First, table.first),
        (Lane::Networks, table.networks),
        (Lane::Beside, table.beside),
        (Lane::Background, table.background),
    ];
    let module = |name: &str| modules.iter().find(|module| module.name == name).cloned();
    let mut rungs = Vec::new();
    for (lane, lines) in lanes {
        for (name, budget) in lines {
            let plain = name.strip_prefix(CONFINED).and_then(module);
            let rung = |name: String, budget, module| Rung {
                is_quick: table.quick.contains(&name),
                is_confined: name.starts_with(CONFINED),
                name,
                lane,
                budget,
                module,
            };
            // What runs confined runs otherwise only when asked for.
            rungs.extend(plain.clone().map(|plain| rung(plain.name.clone(), [0, 0], Some(plain))));
            let module = module(&name).or(plain);
            ensure!(
                module.is_some() || STEPS.contains(&&*name),
                "xtask/src/test/ladder.toml: {name} is neither a module of tests/tests nor a step of xtask"
            );
            rungs.push(rung(name, budget, module));
        }
    }
    for Module { binary, name } in modules {
        let lines = rungs.iter().filter(|rung| rung.name == *name).count();
        ensure!(
            lines == 1,
            "module {name} of tests/tests/{binary} has {lines} lines in xtask/src/test/ladder.toml: add one with its seconds"
        );
    }
    Ok(rungs)
}

/// The rungs that the arguments ask for.
pub fn select(mut all: Vec<Rung>, args: &TestArgs) -> Result<Vec<Rung>> {
    for name in &args.rungs {
        if !all.iter().any(|rung| rung.name == *name) {
            let known: Vec<&str> = all.iter().map(|rung| &*rung.name).collect();
            bail!("no rung is called {name:?}; there are: {}", known.join(", "));
        }
    }
    if args.long && args.rungs.is_empty() && !arm64::is_possible() {
        say("arm64 is left out: the standard library for it cannot be had here");
    }
    all.retain(|rung| match &*args.rungs {
        [] if args.quick => rung.is_quick,
        [] => rung.budget(args.long) > 0 && (rung.name != "arm64" || arm64::is_possible()),
        names => names.contains(&rung.name),
    });
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(is_long: bool) -> Vec<Rung> {
        ladder(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")), is_long).expect("each module has its line")
    }

    fn names(arguments: &[&str]) -> Result<Vec<String>> {
        let args = TestArgs::of(arguments);
        Ok(select(all(args.long), &args)?.into_iter().map(|rung| rung.name).collect())
    }

    #[test]
    fn the_budgets_of_the_short_form_are_twenty_minutes_together() {
        let sum = |lane| all(false).iter().filter(|rung| rung.lane == lane).map(|rung| rung.budget(false)).sum::<u32>();
        let seconds = sum(Lane::First) + (sum(Lane::Networks) / super::super::NETWORK_LANES).max(sum(Lane::Beside));
        assert!(seconds <= 20 * 60, "{seconds} s; take them from other rungs, or make the rung shorter");
        let longest = all(false).into_iter().find(|rung| rung.lane == Lane::Networks).expect("some");
        assert!(longest.budget(false) >= 30, "the longest one begins: {longest:?}");
    }

    #[test]
    fn a_module_without_a_line_and_a_line_without_a_module_are_named() {
        let module = |name: &str| Module { binary: "core", name: name.to_owned() };
        let table =
            "quick = []\n[first]\nformat = [1, 1]\n[networks]\nconfined_drain = [1, 2]\n[beside]\n[background]\n";
        let found = rungs(table, &[module("drain")]).expect("all fits");
        assert_eq!(found.iter().map(|rung| &*rung.name).collect::<Vec<_>>(), ["format", "drain", "confined_drain"]);
        assert!(found[2].is_confined && found[2].module == found[1].module && found[1].budget(true) == 0);
        let error = |modules: &[Module]| rungs(table, modules).expect_err("does not fit").to_string();
        assert!(error(&[module("drain"), module("packet")]).contains("module packet of tests/tests/core has 0 lines"));
        assert!(error(&[]).contains("confined_drain is neither a module"));
    }

    #[test]
    fn each_form_has_its_rungs_and_others_are_asked_for_by_name() {
        let (short, long) = (names(&[]).expect("short"), names(&["--long"]).expect("long"));
        assert!(short.contains(&"confined_drain".to_owned()) && !short.contains(&"drain".to_owned()));
        assert!(long.contains(&"fuzz".to_owned()) && !short.contains(&"fuzz".to_owned()));
        assert!(short.iter().all(|name| long.contains(name)), "the long form holds the short one");
        assert_eq!(names(&["--rung", "drain"]).expect("is there"), ["drain"]);
        let error = names(&["--rung", "packets"]).expect_err("no such rung").to_string();
        assert!(error.contains("\"packets\"") && error.contains("format, "), "{error}");
        assert_eq!(names(&["--quick"]).expect("is there"), ["format", "unit", "packet", "cluster_ip"]);
    }
}
