//! Tests of the comparison: Ballast gets one setting or field less, and the comparison must find the difference.

use serde_json::{Value, json};

use super::case::Told;

/// A part of the truth that is kept from Ballast.
#[derive(Debug)]
pub struct Distortion {
    pub name: &'static str,
    pub apply: fn(&mut Told),
}

/// One for each thing that decides who serves.
pub const DISTORTIONS: [Distortion; 16] = [
    Distortion { name: "node hints", apply: |told| each_endpoint(told, |endpoint| clear(endpoint, "/hints/forNodes")) },
    Distortion { name: "zone hints", apply: |told| each_endpoint(told, |endpoint| clear(endpoint, "/hints/forZones")) },
    Distortion { name: "ready", apply: |told| each_endpoint(told, |endpoint| clear(endpoint, "/conditions/ready")) },
    Distortion {
        name: "terminating",
        apply: |told| each_endpoint(told, |endpoint| clear(endpoint, "/conditions/terminating")),
    },
    Distortion {
        name: "serving",
        apply: |told| {
            each_endpoint(told, |endpoint| {
                if let Some(serving) = endpoint.pointer_mut("/conditions/serving") {
                    *serving = true.into();
                }
            });
        },
    },
    Distortion { name: "node names", apply: |told| each_endpoint(told, |endpoint| clear(endpoint, "/nodeName")) },
    Distortion { name: "all but the first slice", apply: |told| told.cluster.slices.truncate(1) },
    Distortion {
        name: "port names",
        apply: |told| each(&mut told.cluster.slices, "/ports", |port| port["name"] = "".into()),
    },
    Distortion {
        name: "internal policy",
        apply: |told| each_service(told, |service| clear(service, "/spec/internalTrafficPolicy")),
    },
    Distortion {
        name: "external policy",
        apply: |told| each_service(told, |service| clear(service, "/spec/externalTrafficPolicy")),
    },
    Distortion {
        name: "source ranges",
        apply: |told| each_service(told, |service| clear(service, "/spec/loadBalancerSourceRanges")),
    },
    Distortion {
        name: "affinity",
        apply: |told| each_service(told, |service| clear(service, "/spec/sessionAffinity")),
    },
    Distortion {
        name: "external IPs",
        apply: |told| each_service(told, |service| clear(service, "/spec/externalIPs")),
    },
    Distortion {
        name: "load balancers",
        apply: |told| each_service(told, |service| clear(service, "/status/loadBalancer/ingress")),
    },
    Distortion {
        name: "ipMode",
        apply: |told| {
            each(&mut told.cluster.services, "/status/loadBalancer/ingress", |ingress| clear(ingress, "/ipMode"));
        },
    },
    Distortion {
        name: "the second family",
        apply: |told| {
            each_service(told, |service| {
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

fn each_service(told: &mut Told, change: impl Fn(&mut Value)) {
    told.cluster.services.iter_mut().for_each(change);
}

fn each_endpoint(told: &mut Told, change: impl Fn(&mut Value)) {
    each(&mut told.cluster.slices, "/endpoints", change);
}

/// Every element of the lists at this place.
fn each(objects: &mut [Value], pointer: &str, change: impl Fn(&mut Value)) {
    let lists = objects.iter_mut().filter_map(|object| object.pointer_mut(pointer)?.as_array_mut());
    lists.flatten().for_each(change);
}
