//! Which endpoints are checked, and where: what the plan wants, less what is a service's own address. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use lb_model::PortKey;
use lb_model::{Check, Protocol};
use lb_plan::plan::{Desired, DesiredService, EndpointState, Frontend};

/// A service port that is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    pub check: Check,
    pub endpoints: BTreeSet<SocketAddr>,
}

/// All that are checked.
pub type Wanted = BTreeMap<PortKey, Checked>;

/// What is to be checked, of the service ports with a check.
pub fn wanted<'a>(checked: impl Iterator<Item = (&'a PortKey, &'a DesiredService)>, desired: &Desired) -> Wanted {
    let services = checked.filter_map(|(key, service)| {
        let check = service.check.as_deref()?;
        // One that is not ready or terminates takes no new flows anyhow, and fails for good reason.
        let ready = service.endpoints.iter().filter(|(_, endpoint)| endpoint.state == EndpointState::Ready);
        let admitted = ready.map(|(address, _)| *address).filter(|address| !service.unchecked.contains(address));
        let asked = admitted.filter(|address| !is_service(target(*address, check), desired));
        Some((key.clone(), Checked { check: check.clone(), endpoints: asked.collect() }))
    });
    services.collect()
}

/// Where an endpoint is asked.
pub fn target(endpoint: SocketAddr, check: &Check) -> SocketAddr {
    SocketAddr::new(endpoint.ip(), check.port.unwrap_or(endpoint.port()))
}

/// A connection there would be a service's, and be answered by whomever that chooses.
fn is_service(target: SocketAddr, desired: &Desired) -> bool {
    let frontend = Frontend { address: target.ip(), port: target.port(), protocol: Protocol::Tcp };
    desired.vips.contains_key(&target.ip()) || desired.owners.contains_key(&frontend)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lb_common::abi::Vip;

    use super::*;
    use lb_model::{CheckMethod, ObjectName, RateLimit, Scheduler};
    use lb_plan::plan::{DesiredEndpoint, Mark, OwnDrainLimits, SortedMap};

    fn endpoint(state: EndpointState) -> DesiredEndpoint {
        DesiredEndpoint {
            state,
            in_cluster_set: true,
            in_local_set: false,
            local: false,
            own_address: false,
            serving: true,
            uid_hash: 0,
            weight: 1,
            mark: Mark::None,
        }
    }

    #[test]
    fn only_ready_endpoints_are_asked_and_never_an_address_of_a_service() {
        let key = |name: &str| PortKey { service: ObjectName::new("demo", name), port: 80, protocol: Protocol::Tcp };
        let check = Check {
            method: CheckMethod::Tcp,
            port: Some(9000),
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(1),
            failures: 3,
            successes: 2,
        };
        let endpoints = [
            ("10.0.0.1:80", EndpointState::Ready),
            ("10.0.0.2:80", EndpointState::NotReady),
            ("10.0.0.3:80", EndpointState::Terminating),
            ("10.96.0.9:80", EndpointState::Ready),
            ("10.0.0.4:80", EndpointState::Ready),
            ("169.254.169.254:80", EndpointState::Ready),
        ];
        let service = DesiredService {
            port_name: String::new(),
            affinity_timeout_s: 0,
            rate_limit: RateLimit::default(),
            scheduler: Scheduler::Random,
            maglev_size: None,
            slots_max: None,
            drain_limits: OwnDrainLimits::default(),
            check: Some(Box::new(check)),
            unchecked: ["169.254.169.254:80".parse().expect("valid")].into(),
            frontends: SortedMap::default(),
            endpoints: endpoints
                .map(|(address, state)| (address.parse().expect("valid"), endpoint(state)))
                .into_iter()
                .collect(),
            sources: BTreeSet::new(),
            problems: Vec::new(),
        };
        let mut desired = Desired::default();
        desired.vips.insert("10.96.0.9".parse().expect("valid"), Vip { flags: 0 });
        let node_port = Frontend { address: "10.0.0.4".parse().expect("valid"), port: 9000, protocol: Protocol::Tcp };
        desired.owners.insert(node_port, key("other"));
        let unchecked = DesiredService { check: None, ..service.clone() };
        let services = [(&key("web"), &service), (&key("plain"), &unchecked)];
        let wanted = wanted(services.into_iter(), &desired);
        let asked: Vec<_> = wanted.values().flat_map(|checked| &checked.endpoints).map(ToString::to_string).collect();
        assert_eq!(asked, ["10.0.0.1:80"]);
        assert_eq!(target("10.0.0.1:80".parse().expect("valid"), &wanted[&key("web")].check).port(), 9000);
    }
}
