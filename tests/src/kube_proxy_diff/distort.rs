//! Tests of the comparison: Ballast gets one setting or field less, and the comparison must find the difference.

use serde_json::{Value, json};

use super::case::Inputs;

/// A part of the truth that is kept from Ballast.
#[derive(Debug)]
pub struct Distortion {
    pub name: &'static str,
    pub apply: fn(&mut Inputs),
}

/// One for each thing that decides who serves.
pub const DISTORTIONS: [Distortion; 16] = [
    Distortion {
        name: "node hints",
        apply: |inputs| each_endpoint(inputs, |endpoint| clear(endpoint, "/hints/forNodes")),
    },
    Distortion {
        name: "zone hints",
        apply: |inputs| each_endpoint(inputs, |endpoint| clear(endpoint, "/hints/forZones")),
    },
    Distortion {
        name: "ready",
        apply: |inputs| each_endpoint(inputs, |endpoint| clear(endpoint, "/conditions/ready")),
    },
    Distortion {
        name: "terminating",
        apply: |inputs| each_endpoint(inputs, |endpoint| clear(endpoint, "/conditions/terminating")),
    },
    Distortion {
        name: "serving",
        apply: |inputs| {
            each_endpoint(inputs, |endpoint| {
                if let Some(serving) = endpoint.pointer_mut("/conditions/serving") {
                    *serving = true.into();
                }
            });
        },
    },
    Distortion { name: "node names", apply: |inputs| each_endpoint(inputs, |endpoint| clear(endpoint, "/nodeName")) },
    Distortion { name: "all but the first slice", apply: |inputs| inputs.cluster.slices.truncate(1) },
    Distortion {
        name: "port names",
        apply: |inputs| each(&mut inputs.cluster.slices, "/ports", |port| port["name"] = "".into()),
    },
    Distortion {
        name: "internal policy",
        apply: |inputs| each_service(inputs, |service| clear(service, "/spec/internalTrafficPolicy")),
    },
    Distortion {
        name: "external policy",
        apply: |inputs| each_service(inputs, |service| clear(service, "/spec/externalTrafficPolicy")),
    },
    Distortion {
        name: "source ranges",
        apply: |inputs| each_service(inputs, |service| clear(service, "/spec/loadBalancerSourceRanges")),
    },
    Distortion {
        name: "affinity",
        apply: |inputs| each_service(inputs, |service| clear(service, "/spec/sessionAffinity")),
    },
    Distortion {
        name: "external IPs",
        apply: |inputs| each_service(inputs, |service| clear(service, "/spec/externalIPs")),
    },
    Distortion {
        name: "load balancers",
        apply: |inputs| each_service(inputs, |service| clear(service, "/status/loadBalancer/ingress")),
    },
    Distortion {
        name: "ipMode",
        apply: |inputs| {
            each(&mut inputs.cluster.services, "/status/loadBalancer/ingress", |ingress| clear(ingress, "/ipMode"));
        },
    },
    Distortion {
        name: "the second family",
        apply: |inputs| {
            each_service(inputs, |service| {
                let first = service.pointer("/spec/clusterIPs/0").cloned();
                if let Some(first) = first {
                    service["spec"]["clusterIPs"] = json!([first]);
                }
            });
        },
    },
];

fn clear(object: &mut Value, pointer: &str) {
    if let Some(field) = object.pointer_mut(pointer) {
        *field = Value::Null;
    }
}

fn each_service(inputs: &mut Inputs, change: impl Fn(&mut Value)) {
    inputs.cluster.services.iter_mut().for_each(change);
}

fn each_endpoint(inputs: &mut Inputs, change: impl Fn(&mut Value)) {
    each(&mut inputs.cluster.slices, "/endpoints", change);
}

/// Every element of the lists at this place.
fn each(objects: &mut [Value], pointer: &str, change: impl Fn(&mut Value)) {
    let lists = objects.iter_mut().filter_map(|object| object.pointer_mut(pointer)?.as_array_mut());
    lists.flatten().for_each(change);
}
