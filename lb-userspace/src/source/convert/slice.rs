//! An `EndpointSlice`, read and checked.

use std::{collections::BTreeSet, net::IpAddr};

use k8s_openapi::api::discovery::v1 as discovery;

use super::{Converted, HEADLESS_LABEL, Problem, number, object_name, protocol, unusable};
use crate::model::{Endpoint, Family, Hints, ObjectName, Protocol, Refusal, Slice, SlicePort, shared, uid_hash};

/// Label of a slice: the Service that it belongs to.
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// Annotation of a slice: when the pod or Service changed that it was written for.
const CHANGE_ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// An `EndpointSlice`; nothing, if it is of a headless service.
pub fn slice(slice: &discovery::EndpointSlice) -> Converted<Slice> {
    let mut refusals = Vec::new();
    if slice.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(HEADLESS_LABEL)) {
        return Converted { object: None, refusals };
    }
    let name = object_name(&slice.metadata);
    let object = format!("EndpointSlice {name}");
    match read_slice(slice, name, &object, &mut refusals) {
        Ok(slice) => Converted { object: Some(slice), refusals },
        Err(problem) => {
            refusals.push(problem.refuse(object));
            Converted { object: None, refusals }
        }
    }
}

fn read_slice(
    slice: &discovery::EndpointSlice,
    name: ObjectName,
    object: &str,
    refusals: &mut Vec<Refusal>,
) -> Result<Slice, Problem> {
    let labels = slice.metadata.labels.as_ref();
    let service = labels
        .and_then(|labels| labels.get(SERVICE_NAME_LABEL))
        .filter(|name| !name.is_empty())
        .ok_or_else(|| Problem::new("it has no label kubernetes.io/service-name", "name its Service in that label"))?;
    let family = match slice.address_type.as_str() {
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
    for (index, listed) in slice.endpoints.iter().flatten().enumerate() {
        match endpoint(listed, family) {
            Ok(endpoint) => endpoints.push(endpoint),
            Err(problem) => refusals.push(problem.refuse(format!("{object} endpoint {index}"))),
        }
    }
    // Tens of thousands are held for as long as they are there.
    ports.shrink_to_fit();
    endpoints.shrink_to_fit();
    let annotations = slice.metadata.annotations.as_ref();
    let changed_at = annotations.and_then(|all| all.get(CHANGE_ANNOTATION)).and_then(|time| time.parse().ok());
    Ok(Slice { name, service: service.as_str().into(), family, ports, endpoints, changed_at })
}

fn slice_port(listed: &discovery::EndpointPort) -> Result<SlicePort, Problem> {
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

fn hints(listed: &discovery::EndpointHints) -> Option<Box<Hints>> {
    let zones = listed.for_zones.iter().flatten().map(|zone| zone.name.clone());
    let nodes = listed.for_nodes.iter().flatten().map(|node| node.name.clone());
    Hints::of(zones.collect(), nodes.collect())
}

fn endpoint(listed: &discovery::Endpoint, family: Family) -> Result<Endpoint, Problem> {
    // Addresses beyond the first have no meaning (Kubernetes API reference, Endpoint.addresses).
    let text = listed.addresses.first().ok_or_else(|| Problem::new("it has no address", "give it one"))?;
    let address: IpAddr = text
        .parse()
        .map_err(|_| Problem::new(format!("address {text:?}: expected an IP address"), "correct the address"))?;
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
