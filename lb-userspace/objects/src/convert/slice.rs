//! An `EndpointSlice`, read and checked.

use std::collections::BTreeSet;

use super::{Converted, Problem, number, object_name, parsed, protocol, unusable};
use crate::lean::{self, CHANGE_ANNOTATION, HEADLESS_LABEL, SERVICE_NAME_LABEL};
use lb_model::{
    Endpoint, Family, Hints, ObjectName, Protocol, Refusals, RefusedEndpoints, Slice, SlicePort, shared, uid_hash,
};

/// An `EndpointSlice`; nothing, if it is of a headless service.
pub fn slice(slice: &lean::EndpointSlice) -> Converted<Slice> {
    if slice.metadata.labels.contains_key(HEADLESS_LABEL) {
        return Converted { object: None, refusals: Vec::new() };
    }
    let mut refusals = Refusals::default();
    let name = object_name(&slice.metadata);
    let object = format!("EndpointSlice {name}");
    match read_slice(slice, name, &object, &mut refusals) {
        Ok(slice) => Converted { object: Some(slice), refusals: refusals.all(&object) },
        Err(problem) => {
            refusals.push(problem.refuse(object.clone()));
            Converted { object: None, refusals: refusals.all(&object) }
        }
    }
}

fn read_slice(
    slice: &lean::EndpointSlice,
    name: ObjectName,
    object: &str,
    refusals: &mut Refusals,
) -> Result<Slice, Problem> {
    let service =
        slice.metadata.labels.get(SERVICE_NAME_LABEL).filter(|name| !name.is_empty()).ok_or_else(|| {
            Problem::new("it has no label kubernetes.io/service-name", "name its Service in that label")
        })?;
    let family = match slice.address_type.as_deref().unwrap_or_default() {
        "IPv4" => Family::V4,
        "IPv6" => Family::V6,
        other => {
            let reason = format!("addressType {other:?}: expected IPv4 or IPv6");
            return Err(Problem::new(reason, "give a slice with addresses"));
        }
    };
    let mut ports = Vec::new();
    let mut names = BTreeSet::new();
    for listed in slice.ports.iter().flatten() {
        match slice_port(listed).and_then(|port| not_listed_before(port, &mut names)) {
            Ok(port) => ports.push(port),
            Err(problem) => {
                let name = listed.name.as_deref().unwrap_or_default();
                refusals.push(problem.refuse(format!("{object} port {name:?}")));
            }
        }
    }
    let mut endpoints: Vec<Endpoint> = Vec::new();
    let mut refused: Option<Box<RefusedEndpoints>> = None;
    for (index, listed) in slice.endpoints.iter().flatten().enumerate() {
        match endpoint(listed, family) {
            Ok(endpoint) => endpoints.push(endpoint),
            Err(problem) => {
                let refusal = problem.refuse(format!("{object} endpoint {index}"));
                let first = || Box::new(RefusedEndpoints { count: 0, reason: refusal.reason.clone() });
                refused.get_or_insert_with(first).count += 1;
                refusals.push(refusal);
            }
        }
    }
    // Tens of thousands are held for as long as they are there.
    ports.shrink_to_fit();
    endpoints.shrink_to_fit();
    let changed_at = slice.metadata.annotations.get(CHANGE_ANNOTATION).and_then(|time| time.parse().ok());
    let created_s = slice.metadata.creation_timestamp.as_ref().map(|time| time.as_second());
    let service = service.as_str().into();
    Ok(Slice { name, service, family, ports, endpoints, changed_at, created_s, refused })
}

fn slice_port(listed: &lean::EndpointPort) -> Result<SlicePort, Problem> {
    let Some(port) = listed.port else {
        return Err(Problem::new("it has no number, which would mean every port", "give the port's number"));
    };
    let port = number("port", port)?;
    let name = listed.name.clone().unwrap_or_default();
    Ok(SlicePort { name, port, protocol: protocol(listed.protocol.as_deref())? })
}

/// A name is given once for each protocol: every port of a slice is a port of all its endpoints.
fn not_listed_before(port: SlicePort, names: &mut BTreeSet<(String, Protocol)>) -> Result<SlicePort, Problem> {
    if names.insert((port.name.clone(), port.protocol)) {
        Ok(port)
    } else {
        Err(Problem::new(format!("two {} ports have this name", port.protocol), "give each port a name of its own"))
    }
}

fn hints(listed: &lean::Hints) -> Option<Box<Hints>> {
    let zones = listed.for_zones.iter().flatten().filter_map(|zone| zone.name.clone());
    let nodes = listed.for_nodes.iter().flatten().filter_map(|node| node.name.clone());
    Hints::of(zones.collect(), nodes.collect())
}

fn endpoint(listed: &lean::Endpoint, family: Family) -> Result<Endpoint, Problem> {
    // Addresses beyond the first have no meaning (Kubernetes API reference, Endpoint.addresses).
    let text =
        listed.addresses.iter().flatten().next().ok_or_else(|| Problem::new("it has no address", "give it one"))?;
    let address = parsed("address", text)?;
    if Family::of(address) != family {
        return Err(Problem::new(format!("address {address} is not of the slice's addressType"), "use one family"));
    }
    if let Some(what) = unusable(address) {
        return Err(Problem::new(format!("address {address} is {what}"), "use the address of a pod or of a node"));
    }
    let conditions = listed.conditions.clone().unwrap_or_default();
    let ready = conditions.ready.unwrap_or(true);
    Ok(Endpoint {
        address,
        ready,
        serving: conditions.serving.unwrap_or(ready),
        terminating: conditions.terminating.unwrap_or(false),
        node: listed.node_name.as_deref().map(shared),
        zone: listed.zone.as_deref().map(shared),
        hints: listed.hints.as_ref().and_then(hints),
        uid_hash: listed.target_ref.as_ref().and_then(|target| target.uid.as_deref()).map_or(0, uid_hash),
    })
}
