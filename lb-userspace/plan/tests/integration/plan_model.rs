//! The planner against a small model of the same rules, and against itself: planned change by change or from scratch, it must
//! come to the same.

use std::collections::{BTreeMap, BTreeSet};

use lb_common::abi::{service_flags, vip_flags};
use lb_model::Family;
use lb_plan::plan::{Desired, DesiredService, Planner, Set, Use, plan};
use proptest::{prelude::*, test_runner::TestRunner};

pub mod clusters;
mod model;

use clusters::{Cluster, events, settings};
use model::{Guarded, PlanInput, Served, Shown, View};

/// What a client would meet by this plan.
fn view(desired: &Desired) -> View {
    let mut view = View::default();
    for (key, service) in &desired.services {
        for (frontend, uses) in &service.frontends {
            assert_eq!(desired.owners.get(frontend), Some(key), "{frontend} leads to its owner");
            let family = Family::of(frontend.address);
            let has = |flag| uses.flags & flag != 0;
            let networks = service.sources.iter().filter(|network| Family::of(network.addr()) == family);
            let guarded = Guarded { networks: networks.copied().collect(), node: has(service_flags::NODE_ALLOWED) };
            let shown = Shown {
                owner: key.clone(),
                kind: uses.kind,
                inside: served(service, family, uses.inside, has(service_flags::DROP_IF_EMPTY)),
                outside: served(service, family, uses.outside, has(service_flags::DROP_OUTSIDE_IF_EMPTY)),
                keeps_client: has(service_flags::OUTSIDE_LOCAL),
                guarded: has(service_flags::SOURCE_RANGES).then_some(guarded),
                affinity_timeout_s: service.affinity_timeout_s,
                scheduler: service.scheduler,
                retries: !has(service_flags::NO_RETRY),
            };
            view.frontends.insert(*frontend, shown);
        }
        check_needs(service);
    }
    assert_eq!(desired.owners.len(), view.frontends.len(), "every owner has its frontend");
    for (address, vip) in &desired.vips {
        assert!(vip.flags & vip_flags::ECHO != 0);
        view.vips.insert(*address, vip.flags & vip_flags::REFUSE_UNSERVED != 0);
    }
    let checks = desired.health_checks.iter();
    view.health = checks.map(|(port, check)| (*port, (check.service.clone(), check.local_ready))).collect();
    view
}

fn served(service: &DesiredService, family: Family, set: Set, drops: bool) -> Served {
    let of_family = service.endpoints.iter().filter(|(address, _)| Family::of(address.ip()) == family);
    let targets: BTreeMap<_, _> =
        of_family.filter(|(_, e)| e.is_in(set)).map(|(address, endpoint)| (*address, endpoint.weight)).collect();
    match (targets.is_empty(), drops) {
        (false, false) => Served::By(targets),
        (true, true) => Served::Dropped,
        (true, false) => Served::Refused,
        (false, true) => panic!("{targets:?} are there, and yet packets are to be dropped"),
    }
}

/// No endpoint is in a set that nobody uses, and none of a family is there that nobody is reached by.
fn check_needs(service: &DesiredService) {
    for (address, endpoint) in &service.endpoints {
        let own = |(frontend, _): &(_, &Use)| {
            let frontend: &&lb_plan::plan::Frontend = frontend;
            Family::of(frontend.address) == Family::of(address.ip())
        };
        let uses: Vec<&Use> = service.frontends.iter().filter(own).map(|(_, uses)| uses).collect();
        assert!(!uses.is_empty(), "{address} is of a family without a frontend");
        for set in [Set::Cluster, Set::Local] {
            let is_used = uses.iter().any(|uses| uses.inside == set || uses.outside == set);
            assert!(is_used || !endpoint.is_in(set), "{address} is in a set that nobody uses");
        }
    }
}

#[test]
fn the_plan_is_what_the_rules_say_however_it_came_about() {
    let mut runner = TestRunner::new(lb_seed::property(file!(), 500));
    let clusters = (settings(), events(6..40), prop::collection::vec(1usize..6, 1..8));
    let outcome = runner.run(&clusters, |(settings, events, splits)| {
        let mut cluster = Cluster::default();
        let mut planner = Planner::new(settings.clone());
        let mut splits = splits.iter().cycle();
        let mut left = events.as_slice();
        while !left.is_empty() {
            let (now, later) = left.split_at((*splits.next().expect("a cycle has no end")).min(left.len()));
            left = later;
            for event in now {
                cluster.take(event);
            }
            let before = planner.desired().clone();
            let changes = planner.update(&cluster.snapshot, &cluster.facts);
            let after = planner.desired();
            prop_assert_eq!(after, &plan(&cluster.snapshot, &cluster.facts, &settings), "change by change");
            let keys = before.services.keys().chain(after.services.keys());
            let differing = keys.filter(|key| before.services.get(key) != after.services.get(key)).cloned();
            prop_assert_eq!(&changes.services, &differing.collect::<BTreeSet<_>>(), "what is said to have changed");
            let addresses = before.vips.keys().chain(after.vips.keys());
            let differing = addresses.filter(|ip| before.vips.get(ip) != after.vips.get(ip)).copied();
            prop_assert_eq!(&changes.vips, &differing.collect::<BTreeSet<_>>());
            prop_assert!(changes.health_checks || before.health_checks == after.health_checks);
            prop_assert!(changes.refusals || before.refusals == after.refusals);
            let lacking = after.services.iter().filter(|(_, port)| !port.problems.is_empty()).map(|(key, _)| key);
            prop_assert!(planner.troubled().map(|(key, _)| key).eq(lacking));
            let input = PlanInput { snapshot: &cluster.snapshot, facts: &cluster.facts, settings: &settings };
            prop_assert_eq!(view(after), input.view());
        }
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
}
