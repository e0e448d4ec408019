//! Why a service port has no endpoint, by the same slices and endpoints that it was planned by.

use std::net::SocketAddr;

use lb_model::{Family, Service, ServicePort, Slice, TrafficPolicy};

use super::{DesiredEndpoint, EndpointState, Filled, Listed, Needs, port_names};
use crate::plan::{Cause, EndpointProblem, Mark, SortedMap, node_context::NodeContext};

impl Listed<'_> {
    /// What is the matter with `endpoints`, which are those of the port, in the families whose sets are in need. `sets`: of each family, the sets that
    /// are, and what they came to.
    pub fn problems(
        &self,
        port: &ServicePort,
        service: &Service,
        sets: [(Needs, Filled); 2],
        endpoints: &SortedMap<SocketAddr, DesiredEndpoint>,
        context: &NodeContext,
    ) -> Vec<EndpointProblem> {
        let mut problems = Vec::new();
        for (family, (needs, filled)) in Family::ALL.into_iter().zip(sets).filter(|(_, (needs, _))| needs.any()) {
            let mut add = |cause, found: String, lacks: Option<String>, is_partial| {
                let is_said_here = self.is_first_here(context);
                problems.push(EndpointProblem { family, cause, found, lacks, is_partial, is_said_here });
            };
            let mismatch = self.mismatch(port, &service.ports, family);
            let has_port = mismatch.as_ref().is_none_or(|mismatch| mismatch.matching > 0);
            if !has_port && let Some(mismatch) = &mismatch {
                add(Cause::OtherPort, mismatch.found(port), Some(mismatch.wanted(port)), false);
            } else if !filled.usable {
                let (cause, found) = self.unusable(endpoints, family);
                add(cause, found, None, false);
            } else if needs.local && !filled.local {
                add(Cause::NotLocal, policies(service), None, false);
            }
            if let Some(mismatch) = mismatch.filter(|_| has_port) {
                add(Cause::OtherPort, mismatch.found(port), Some(mismatch.wanted(port)), true);
            }
        }
        problems
    }

    /// Why none of the endpoints may serve.
    fn unusable(&self, endpoints: &SortedMap<SocketAddr, DesiredEndpoint>, family: Family) -> (Cause, String) {
        let of_family = |one: &(&SocketAddr, &DesiredEndpoint)| Family::of(one.0.ip()) == family;
        let all = || endpoints.iter().filter(of_family).map(|(_, endpoint)| endpoint);
        let count = all().count();
        let words = || if count == 1 { "1 endpoint".to_owned() } else { format!("{count} endpoints") };
        if count == 0 {
            return self.without_endpoints(family);
        }
        let could_serve = |endpoint: &DesiredEndpoint| {
            DesiredEndpoint { mark: Mark::None, ..*endpoint }.rank().is_some() && endpoint.mark == Mark::Maintenance
        };
        if all().any(could_serve) {
            return (Cause::Maintenance, words());
        }
        if all().all(|endpoint| endpoint.state == EndpointState::Terminating) {
            return (Cause::Terminating, words());
        }
        (Cause::NotReady, words())
    }

    /// Why there is no endpoint of the family in any slice, or none but refused ones.
    fn without_endpoints(&self, family: Family) -> (Cause, String) {
        let own = || self.slices.iter().filter(|slice| slice.family == family);
        let first = own().find_map(|slice| Some((slice, slice.refused.as_ref()?)));
        if let Some((slice, refused)) = first {
            let count: usize = own().filter_map(|slice| slice.refused.as_ref()).map(|refused| refused.count).sum();
            let found = match count {
                1 => format!("EndpointSlice {}: {}", slice.name, refused.reason),
                _ => format!("{count} of them; EndpointSlice {}: {}", slice.name, refused.reason),
            };
            return (Cause::Refused, found);
        }
        let others = self.slices.iter().filter(|slice| slice.family != family);
        let others: usize = others.map(|slice| slice.endpoints.len()).sum();
        match (others, self.slices.is_empty()) {
            (_, true) => (Cause::NoSlice, String::new()),
            (0, false) => (Cause::NoAddress, String::new()),
            (1, false) => (Cause::OtherFamily, "1 endpoint".to_owned()),
            (count, false) => (Cause::OtherFamily, format!("{count} endpoints")),
        }
    }

    /// Endpoints that lack the port. `ports`: all of the Service.
    fn mismatch(&self, port: &ServicePort, ports: &[ServicePort], family: Family) -> Option<port_names::PortMismatch> {
        // Where every slice has the port, nobody counts addresses.
        let census =
            self.has_slices_without(port, family).then_some(&self.census[usize::from(family == Family::V6)])?;
        census.get_or_init(|| port_names::Census::of(&self.slices, family, ports)).mismatch(port)
    }

    /// Whether slices of the family have endpoints, and not this port.
    fn has_slices_without(&self, port: &ServicePort, family: Family) -> bool {
        let has_endpoints = |slice: &&&Slice| slice.family == family && !slice.endpoints.is_empty();
        let at = self.by_port.get(&(port.name.as_str(), port.protocol)).into_iter().flatten();
        let with = at.map(|(index, _)| &self.slices[*index]).filter(has_endpoints).count();
        with < self.slices.iter().filter(has_endpoints).count()
    }

    fn is_first_here(&self, context: &NodeContext) -> bool {
        *self.is_first_here.get_or_init(|| {
            let all = self.slices.iter().flat_map(|slice| &slice.endpoints).filter(|endpoint| endpoint.node.is_some());
            let first = all.min_by_key(|endpoint| (endpoint.address, endpoint.uid_hash, &endpoint.node));
            first.is_some_and(|endpoint| context.is_here(endpoint))
        })
    }
}

/// The traffic policies that are Local.
fn policies(service: &Service) -> String {
    let all = [("internal", service.internal_policy), ("external", service.external_policy)];
    let local = all.into_iter().filter(|(_, policy)| *policy == TrafficPolicy::Local);
    local.map(|(which, _)| format!("{which}TrafficPolicy")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
#[path = "problems_tests.rs"]
mod tests;
