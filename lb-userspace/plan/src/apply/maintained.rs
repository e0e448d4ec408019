//! Whether the tables hold what a hand ordered of endpoints: an order is done once they do.

use std::{collections::BTreeSet, net::SocketAddr};

use lb_common::abi::{backend_flags, backend_state};

use super::{Programmer, Store};
use crate::plan::{BackendRecord, Target};
use lb_model::PortKey;

/// Nothing is written before the first snapshot.
const NO_SNAPSHOT: &str =
    "the agent has not read Services and EndpointSlices since it started (`ballast status` says why)";

impl<S: Store> Programmer<S> {
    /// Why the tables do not hold yet that the endpoints at `target` are in maintenance, or are not; `None`: they do. `maintenance`: what is in it.
    pub fn unwritten_at(&self, target: Target, maintenance: &BTreeSet<Target>) -> Option<String> {
        let key = if maintenance.contains(&target) {
            // Programs give new flows to none that is in no set, whatever slots lead to it.
            self.port_with(target, |_, record| record.flags & IN_SETS != 0)
        } else if self.revision.is_some() {
            self.unwritten_port_with(target)
        } else {
            let is_kept = |address: SocketAddr| maintenance.iter().any(|other| other.holds(address));
            self.port_with(target, |address, record| record.state == backend_state::MAINTENANCE && !is_kept(address))
        }?;
        let trouble = || self.pending.trouble_of(key).unwrap_or_else(|| format!("Service {key} waits to be written"));
        Some(if self.revision.is_none() { NO_SNAPSHOT.to_owned() } else { trouble() })
    }

    /// A service port whose tables have such a record of an endpoint at `target`.
    fn port_with(&self, target: Target, is_such: impl Fn(SocketAddr, &BackendRecord) -> bool) -> Option<&PortKey> {
        let programmed = self.programmed();
        let has = |address: &SocketAddr, id| {
            target.holds(*address) && programmed.backends().get(id).is_some_and(|record| is_such(*address, record))
        };
        let mut services = programmed.services().iter().map(|(_, service)| service);
        services.find(|service| service.current.iter().any(|(address, id)| has(address, *id))).map(|found| &found.key)
    }

    /// A service port with an endpoint at `target` that is not as it is wanted.
    fn unwritten_port_with(&self, target: Target) -> Option<&PortKey> {
        let wanted = |key: &PortKey| self.desired().services.get(key);
        let has = |key| wanted(key).is_some_and(|wanted| wanted.endpoints.keys().any(|address| target.holds(*address)));
        self.pending.services().chain(self.backlog.services()).find(|key| has(key))
    }
}

const IN_SETS: u8 = backend_flags::IN_CLUSTER_SET | backend_flags::IN_LOCAL_SET;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        apply::MemoryStore,
        plan::{NodeFacts, PlanSettings},
    };
    use lb_model::{Monotonic, Snapshot};
    use lb_objects::manifest::snapshot;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_duration(Duration::from_secs(seconds))
    }

    /// A service with two endpoints.
    fn web() -> Snapshot {
        snapshot(
            "
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 80}]
endpoints: [{addresses: [10.0.0.1]}, {addresses: [10.0.0.2]}]
",
        )
    }

    /// Tables with the service, which no write has failed for.
    fn tables() -> MemoryStore {
        let mut programmer = Programmer::restore(MemoryStore::roomy(), PlanSettings::default(), at(10)).unwrap();
        programmer.sync(&web(), &NodeFacts::default(), at(10));
        programmer.into_store()
    }

    fn maintaining(targets: &[Target]) -> NodeFacts {
        let mut facts = NodeFacts::default();
        facts.marks.maintenance.extend(targets);
        facts
    }

    #[test]
    fn an_order_is_done_when_it_is_written() {
        let target: Target = "10.0.0.1".parse().unwrap();
        let mut programmer = Programmer::restore(tables(), PlanSettings::default(), at(20)).unwrap();
        for (targets, seconds) in [([target].as_slice(), 20), (&[], 40)] {
            let facts = maintaining(targets);
            programmer.store_mut().failures = vec![0; 3];
            programmer.sync(&web(), &facts, at(seconds));
            let unwritten = programmer.unwritten_at(target, &facts.marks.maintenance);
            assert!(unwritten.is_some_and(|why| why.contains("default/web:80/TCP: write")), "{targets:?}");
            programmer.store_mut().failures.clear();
            programmer.tick(at(seconds + 1));
            assert_eq!(programmer.unwritten_at(target, &facts.marks.maintenance), None, "{targets:?}");
        }
        let nowhere = maintaining(&["10.0.0.9".parse().unwrap()]).marks.maintenance;
        assert_eq!(programmer.unwritten_at("10.0.0.9".parse().unwrap(), &nowhere), None, "no endpoint is there");
    }

    #[test]
    fn before_the_first_snapshot_only_what_the_tables_hold_already_is_done() {
        let [one, two]: [Target; 2] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        let mut programmer = Programmer::restore(tables(), PlanSettings::default(), at(20)).unwrap();
        programmer.sync(&web(), &maintaining(&[one]), at(20));
        let restarted = Programmer::restore(programmer.into_store(), PlanSettings::default(), at(30)).unwrap();
        let is_done = |target, maintenance: &[Target]| {
            restarted.unwritten_at(target, &maintenance.iter().copied().collect()).is_none()
        };
        assert!(is_done(one, &[one]) && is_done(two, &[one]));
        assert!(!is_done(two, &[one, two]) && !is_done(one, &[two]));
        let port: Target = "10.0.0.1:80".parse().unwrap();
        assert!(is_done(port, &[one]), "the address stays in maintenance as a whole");
        let why = restarted.unwritten_at(one, &BTreeSet::new()).unwrap();
        assert!(why.contains("has not read Services"), "{why}");
    }
}
