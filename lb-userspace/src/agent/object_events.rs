//! Gathers what Events say of objects, from the source, the tables and the health-check node ports.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::ejections::Subject;
use lb_model::PortKey;
use lb_model::{Refused, fair_share};
use lb_source::SourceStatus;
use lb_source::announce::{OBJECT_EVENTS_MAX, ObjectEvent};

/// The API is given so long to overcome an error by itself: one that starts answers with some.
const API_ERROR_LASTS: Duration = Duration::from_secs(20);

/// Makes the Event about an endpoint.
type EventMaker = fn(&PortKey, SocketAddr) -> Option<ObjectEvent>;

/// All Events of the moment; none is kept where nothing posts them.
pub(super) struct ObjectEvents {
    to: Option<watch::Sender<BTreeSet<ObjectEvent>>>,
    node: String,
    source: BTreeSet<ObjectEvent>,
    api: BTreeSet<ObjectEvent>,
    tables: BTreeSet<ObjectEvent>,
    health_checks: BTreeSet<ObjectEvent>,
    avoided: BTreeSet<ObjectEvent>,
    endpoints: BTreeSet<ObjectEvent>,
}

impl ObjectEvents {
    /// `to`: who posts it; `None`: nobody.
    pub fn new(node: &str, to: Option<watch::Sender<BTreeSet<ObjectEvent>>>) -> Self {
        let (source, api, tables, health_checks, avoided, endpoints) = Default::default();
        Self { to, node: node.to_owned(), source, api, tables, health_checks, avoided, endpoints }
    }

    /// Objects that the source refused.
    pub fn of_source(&mut self, refusals: &Refused) {
        if self.to.is_some() {
            let new = refusals.iter().filter_map(ObjectEvent::of_refusal).collect();
            let changed = std::mem::replace(&mut self.source, new) != self.source;
            self.publish(changed);
        }
    }

    /// Errors that the API answers with for long.
    pub fn of_api(&mut self, source: &SourceStatus, now: Instant) {
        if self.to.is_some() {
            let failing = source.resources.iter().filter_map(|(name, resource)| Some((name, resource.failing?)));
            let lasting =
                failing.filter(|(_, failing)| now.saturating_duration_since(failing.since) >= API_ERROR_LASTS);
            let node = &self.node;
            let new =
                lasting.filter_map(|(name, failing)| ObjectEvent::of_api_error(node, name, failing.error)).collect();
            let changed = std::mem::replace(&mut self.api, new) != self.api;
            self.publish(changed);
        }
    }

    /// Services that the plan or the tables refused.
    pub fn of_tables(&mut self, refusals: &Refused) {
        if self.to.is_some() {
            let new = refusals.iter().filter_map(ObjectEvent::of_refusal).collect();
            let changed = std::mem::replace(&mut self.tables, new) != self.tables;
            self.publish(changed);
        }
    }

    /// Namespace and name of Services whose health-check node port could not be opened, and why.
    pub fn of_health_checks<'a>(&mut self, problems: impl Iterator<Item = (&'a str, &'a str)>) {
        if self.to.is_some() {
            let node = &self.node;
            let new = problems
                .filter_map(|(service, problem)| ObjectEvent::of_health_check(service, node, problem))
                .collect();
            let changed = std::mem::replace(&mut self.health_checks, new) != self.health_checks;
            self.publish(changed);
        }
    }

    /// Backends that new flows avoid: ejected ones, and those whose checks fail. Beyond [`NOTICES_MAX`] each namespace has its share.
    pub fn of_avoided<'a>(&mut self, ejections: impl Iterator<Item = &'a Subject>, unhealthy: &BTreeSet<Subject>) {
        if self.to.is_some() {
            let ejections = ejections.map(|subject| (subject, ObjectEvent::of_ejected as EventMaker));
            let failing = unhealthy.iter().map(|subject| (subject, ObjectEvent::of_unhealthy as EventMaker));
            let all: Vec<(&Subject, EventMaker)> = ejections.chain(failing).collect();
            let named = fair_share(&all, OBJECT_EVENTS_MAX, |((service, _), _)| &service.service.namespace);
            let new = named.filter_map(|((service, endpoint), event)| event(service, *endpoint)).collect();
            let changed = std::mem::replace(&mut self.avoided, new) != self.avoided;
            self.publish(changed);
        }
    }

    /// What has been the matter with endpoints for a while.
    pub fn of_endpoints(&mut self, lasting: BTreeSet<ObjectEvent>) {
        if self.to.is_some() {
            let changed = std::mem::replace(&mut self.endpoints, lasting) != self.endpoints;
            self.publish(changed);
        }
    }

    fn publish(&self, changed: bool) {
        if let (true, Some(to)) = (changed, &self.to) {
            let all = [&self.source, &self.api, &self.tables, &self.health_checks, &self.avoided, &self.endpoints];
            to.send_replace(all.into_iter().flatten().cloned().collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lb_model::{ObjectName, Protocol, Refusal};
    use lb_source::{ApiError, Failing, ResourceStatus};

    #[test]
    fn what_is_over_is_no_longer_told() {
        let (to, received) = watch::channel(BTreeSet::new());
        let mut object_events = ObjectEvents::new("n1", Some(to));
        object_events.of_source(&Refused::of(&[Refusal::new("Service demo/web", "bad", "mend it")]));
        object_events.of_health_checks([("demo/api", "in use")].into_iter());
        let names = || received.borrow().iter().map(|event| event.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(), ["api", "web"]);
        object_events.of_source(&Refused::default());
        assert_eq!(names(), ["api"]);
        let key = PortKey { service: ObjectName::new("demo", "slow"), port: 80, protocol: Protocol::Tcp };
        let subject = (key, "10.0.0.1:8080".parse().expect("valid"));
        object_events.of_avoided([&subject].into_iter(), &BTreeSet::from([subject.clone()]));
        assert_eq!(names(), ["api", "slow", "slow"], "it is ejected, and its checks fail");
        object_events.of_avoided([].into_iter(), &BTreeSet::new());
        assert_eq!(names(), ["api"]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_of_the_api_is_told_when_it_lasts_and_until_a_proof() {
        let (to, received) = watch::channel(BTreeSet::new());
        let mut object_events = ObjectEvents::new("n1", Some(to));
        let since = Instant::now();
        let failing = Some(Failing { error: ApiError::Forbidden, since });
        let services = ResourceStatus { failing, ..ResourceStatus::default() };
        let status = SourceStatus { resources: [("services", services)].into(), ..SourceStatus::default() };
        object_events.of_api(&status, since + API_ERROR_LASTS / 2);
        assert!(received.borrow().is_empty());
        object_events.of_api(&status, since + API_ERROR_LASTS);
        let reasons = || received.borrow().iter().map(|event| (event.name.clone(), event.reason)).collect::<Vec<_>>();
        assert_eq!(reasons(), [("n1".to_owned(), "ApiAccessDenied")]);
        object_events.of_api(&SourceStatus::default(), since + API_ERROR_LASTS);
        assert_eq!(reasons(), []);
    }

    #[test]
    fn a_namespace_with_thousands_of_refusals_leaves_the_others_theirs() {
        let (to, received) = watch::channel(BTreeSet::new());
        let mut object_events = ObjectEvents::new("n1", Some(to));
        let greedy = (0..5_000).map(|number| Refusal::new(format!("Service a-greedy/web-{number}"), "bad", "mend it"));
        let small = Refusal::new("Service small/web", "bad", "mend it");
        let all: Vec<Refusal> = greedy.chain([small]).collect();
        for update in [ObjectEvents::of_source, ObjectEvents::of_tables] {
            update(&mut object_events, &Refused::of(&all));
            assert!(received.borrow().iter().any(|event| event.namespace == "small"));
            update(&mut object_events, &Refused::default());
            assert!(received.borrow().is_empty());
        }
    }

    #[test]
    fn a_namespace_with_thousands_of_ejecteds_leaves_the_others_theirs() {
        let (to, received) = watch::channel(BTreeSet::new());
        let mut object_events = ObjectEvents::new("n1", Some(to));
        let subject = |namespace: &str, number: u16| {
            let key = PortKey { service: ObjectName::new(namespace, "web"), port: number, protocol: Protocol::Tcp };
            (key, SocketAddr::from(([10, 0, 0, 1], number)))
        };
        let mut all: Vec<Subject> = (0..5_000).map(|number| subject("a-greedy", number)).collect();
        all.push(subject("small", 80));
        object_events.of_avoided(all.iter(), &BTreeSet::new());
        assert!(received.borrow().iter().any(|event| event.namespace == "small"));
        assert!(received.borrow().len() <= OBJECT_EVENTS_MAX);
    }
}
