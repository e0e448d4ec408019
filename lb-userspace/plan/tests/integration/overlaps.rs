//! Services that claim one frontend: the owner keeps it, and its entry is not written, while the losers are deleted and made again.

use std::{cell::Cell, collections::BTreeMap};

use lb_common::abi;
use lb_model::{Monotonic, Refusal, Snapshot};
use lb_plan::{
    apply::{MemoryStore, Programmer},
    plan::{Desired, Frontend, NodeFacts, PlanSettings, plan},
};
use proptest::{prelude::*, test_runner::TestRunner};

use crate::plan_model::clusters::{Cluster, events, settings};

/// Plans and writes; returns who owns what, and the entries.
fn sync(
    programmer: &mut Programmer<MemoryStore>,
    snapshot: &Snapshot,
    facts: &NodeFacts,
    settings: &PlanSettings,
) -> (Desired, BTreeMap<Frontend, abi::Service>) {
    let report = programmer.sync(snapshot, facts, Monotonic::default());
    assert_eq!(report.failures, Vec::<String>::new());
    (plan(snapshot, facts, settings), programmer.store().frontends.clone())
}

#[test]
fn a_loser_that_comes_and_goes_leaves_the_owner_as_it_was() {
    let mut runner = TestRunner::new(lb_seed::property(file!(), 200));
    let contested = Cell::new(0);
    let outcome = runner.run(&(settings(), events(10..40)), |(settings, events)| {
        let mut cluster = Cluster::default();
        for event in &events {
            cluster.take(event);
        }
        let Cluster { mut snapshot, facts } = cluster;
        let mut programmer = Programmer::restore(MemoryStore::roomy(), settings.clone(), Monotonic::default())
            .expect("memory can be read");
        let (all, mut entries) = sync(&mut programmer, &snapshot, &facts, &settings);
        for (name, service) in snapshot.services.clone() {
            snapshot.services.remove(&name);
            snapshot.revision += 1;
            let (without, left) = sync(&mut programmer, &snapshot, &facts, &settings);
            snapshot.services.insert(name.clone(), service);
            snapshot.revision += 1;
            let (again, back) = sync(&mut programmer, &snapshot, &facts, &settings);
            prop_assert!(without.owners.values().all(|owner| owner.service != name), "{} is gone", &name);
            prop_assert_eq!(&again.owners, &all.owners, "{} is back", &name);
            for (frontend, owner) in all.owners.iter().filter(|(_, owner)| owner.service != name) {
                prop_assert_eq!(without.owners.get(frontend), Some(owner), "{} after {} is gone", frontend, &name);
                // An owner that took over a frontend meanwhile has a new generation, and so new entries.
                if without.services.get(owner) == all.services.get(owner) {
                    prop_assert_eq!(left.get(frontend), entries.get(frontend), "entry of {}", frontend);
                    prop_assert_eq!(back.get(frontend), entries.get(frontend), "entry of {}", frontend);
                }
            }
            // What the service owns itself was written anew.
            entries = back;
        }
        prop_assert_eq!(all.refusals.more(), 0, "all are named");
        let is_lost = |refusal: &&Refusal| refusal.reason.contains("belongs to");
        contested.set(contested.get() + all.refusals.iter().filter(is_lost).count());
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(contested.get() > 50, "{} claims were lost: too few", contested.get());
}
