//! Which endpoints this node may check: it connects to what annotations and slices name, so to pods and named networks alone.

use std::{collections::BTreeSet, net::SocketAddr};

use super::{DesiredService, node_context::NodeContext};
use lb_model::{Check, PortKey, Refusal, Service};

/// The check as far as checks are on, and the endpoints that it must not ask.
pub(super) fn admitted<'a>(
    check: Option<Box<Check>>,
    endpoints: impl Iterator<Item = &'a SocketAddr>,
    context: &NodeContext,
) -> (Option<Box<Check>>, BTreeSet<SocketAddr>) {
    match (check, &context.check_networks) {
        (Some(check), Some(networks)) => {
            let is_admitted = |at: &SocketAddr| networks.iter().any(|network| network.contains(&at.ip()));
            (Some(check), endpoints.filter(|at| !is_admitted(at)).copied().collect())
        }
        _ => (None, BTreeSet::new()),
    }
}

/// What is asked for, and not checked.
pub(super) fn refusal(
    service: &Service,
    ports: &[(PortKey, DesiredService)],
    context: &NodeContext,
) -> Option<Refusal> {
    service.options.as_ref()?.check.as_ref()?;
    let object = format!("Service {}", service.name);
    if context.check_networks.is_none() {
        let reason = "its endpoints are not checked: active checks are off";
        return Some(Refusal::new(object, reason, "start the agents with --active-checks=pods, or remove the check"));
    }
    let unchecked: BTreeSet<_> = ports.iter().flat_map(|(_, port)| &port.unchecked).map(SocketAddr::ip).collect();
    let first = unchecked.first()?;
    let reason = format!(
        "endpoints at {} addresses are not checked ({first} is one): they are in no network of pods that this node knows",
        unchecked.len()
    );
    Some(Refusal::new(
        object,
        reason,
        "name the cluster's pods in --cluster-cidr, or other networks in --active-checks",
    ))
}
