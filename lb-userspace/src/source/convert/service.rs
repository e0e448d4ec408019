//! A Service, read and checked.

use std::net::IpAddr;

use k8s_openapi::api::core::v1 as core;

use super::{Converted, HEADLESS_LABEL, PROXY_NAME_LABEL, Problem, number, object_name, protocol, unusable};
use crate::model::{Exposure, Family, ObjectName, Refusal, Service, ServicePort, TrafficPolicy};

/// Seconds of client affinity if the Service does not say (`DefaultClientIPServiceAffinitySeconds` of Kubernetes).
const AFFINITY_TIMEOUT_S: i32 = 10_800;
/// The longest affinity that Kubernetes allows.
const AFFINITY_TIMEOUT_MAX_S: i32 = 86_400;
/// Longest name or namespace: a DNS label (RFC 1123), and the room in the table of names.
const NAME_LENGTH_MAX: usize = 63;

/// A Service.
pub fn service(service: &core::Service) -> Converted<Service> {
    let mut refusals = Vec::new();
    let name = object_name(&service.metadata);
    let object = format!("Service {name}");
    match read_service(service, &name, &object, &mut refusals) {
        Ok(service) => Converted { object: Some(service), refusals },
        Err(problem) => {
            refusals.push(problem.refuse(object));
            Converted { object: None, refusals }
        }
    }
}

fn read_service(
    service: &core::Service,
    name: &ObjectName,
    object: &str,
    refusals: &mut Vec<Refusal>,
) -> Result<Service, Problem> {
    check_name("metadata.name", &name.name)?;
    check_name("metadata.namespace", &name.namespace)?;
    let spec = service.spec.clone().unwrap_or_default();
    let label = |key: &str| service.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    let exposure = if spec.type_.as_deref() == Some("ExternalName") {
        Exposure::ExternalName
    } else if spec.cluster_ip.as_deref() == Some("None") || label(HEADLESS_LABEL).is_some() {
        Exposure::Headless
    } else {
        Exposure::Addresses
    };
    let mut read = Service {
        name: name.clone(),
        exposure,
        proxy_name: label(PROXY_NAME_LABEL).cloned(),
        cluster_ips: Vec::new(),
        ports: Vec::new(),
        external_ips: Vec::new(),
        load_balancer_ips: Vec::new(),
        internal_policy: TrafficPolicy::Cluster,
        external_policy: TrafficPolicy::Cluster,
        source_ranges: None,
        health_check_node_port: None,
        affinity_timeout_s: 0,
        created_s: service.metadata.creation_timestamp.as_ref().map(|time| time.0.as_second()),
    };
    if exposure == Exposure::Addresses {
        read.cluster_ips = cluster_ips(&spec)?;
        read.ports = service_ports(&spec, object, refusals)?;
        read.affinity_timeout_s = affinity_timeout_s(&spec)?;
    }
    Ok(read)
}

fn check_name(field: &str, name: &str) -> Result<(), Problem> {
    if name.is_empty() {
        return Err(Problem::new(format!("{field} is empty"), "give the object a name"));
    }
    if name.len() > NAME_LENGTH_MAX {
        let reason = format!("{field} has {} characters, expected at most {NAME_LENGTH_MAX}", name.len());
        return Err(Problem::new(reason, "use a shorter name"));
    }
    Ok(())
}

fn cluster_ips(spec: &core::ServiceSpec) -> Result<Vec<IpAddr>, Problem> {
    let listed = spec.cluster_ips.iter().flatten();
    let single = spec.cluster_ip.iter();
    let texts: Vec<&String> = if spec.cluster_ips.as_ref().is_some_and(|ips| !ips.is_empty()) {
        listed.collect()
    } else {
        single.filter(|ip| !ip.is_empty()).collect()
    };
    if texts.is_empty() {
        return Err(Problem::new(
            "it has no clusterIP",
            "set spec.clusterIP or spec.clusterIPs: only an API server allocates them",
        ));
    }
    let mut ips: Vec<IpAddr> = Vec::new();
    for text in texts {
        let ip: IpAddr = text.parse().map_err(|_| {
            Problem::new(format!("clusterIP {text:?}: expected an IPv4 or IPv6 address"), "correct the address")
        })?;
        if let Some(what) = unusable(ip) {
            return Err(Problem::new(format!("clusterIP {ip} is {what}"), "use an address of your service network"));
        }
        if ips.iter().any(|other| Family::of(*other) == Family::of(ip)) {
            return Err(Problem::new("clusterIPs has two addresses of one family", "keep at most one of each family"));
        }
        ips.push(ip);
    }
    Ok(ips)
}

fn service_ports(
    spec: &core::ServiceSpec,
    object: &str,
    refusals: &mut Vec<Refusal>,
) -> Result<Vec<ServicePort>, Problem> {
    let mut ports: Vec<ServicePort> = Vec::new();
    for listed in spec.ports.iter().flatten() {
        let port = number(listed.port)?;
        let name = listed.name.clone().unwrap_or_default();
        let Some(protocol) = protocol(listed.protocol.as_deref())? else {
            refusals.push(Refusal::new(
                format!("{object} port {port}/SCTP"),
                "SCTP is not balanced",
                "use TCP or UDP; the other ports of the service are served",
            ));
            continue;
        };
        if ports.iter().any(|other| other.port == port && other.protocol == protocol) {
            return Err(Problem::new(format!("port {port}/{protocol} is listed twice"), "remove one of them"));
        }
        if ports.iter().any(|other| other.name == name) {
            return Err(Problem::new(format!("two ports are named {name:?}"), "give each port a name of its own"));
        }
        ports.push(ServicePort { name, port, protocol, node_port: None });
    }
    if spec.ports.as_ref().is_none_or(Vec::is_empty) {
        return Err(Problem::new("it has no ports", "list at least one under spec.ports"));
    }
    Ok(ports)
}

fn affinity_timeout_s(spec: &core::ServiceSpec) -> Result<u32, Problem> {
    match spec.session_affinity.as_deref() {
        None | Some("" | "None") => Ok(0),
        Some("ClientIP") => {
            let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
            let seconds = config.and_then(|client| client.timeout_seconds).unwrap_or(AFFINITY_TIMEOUT_S);
            u32::try_from(seconds).ok().filter(|s| (1..=AFFINITY_TIMEOUT_MAX_S.cast_unsigned()).contains(s)).ok_or_else(
                || {
                    Problem::new(
                        format!("affinity timeoutSeconds is {seconds}, expected 1 to {AFFINITY_TIMEOUT_MAX_S}"),
                        "correct spec.sessionAffinityConfig.clientIP.timeoutSeconds",
                    )
                },
            )
        }
        Some(other) => Err(Problem::new(
            format!("sessionAffinity {other:?}: expected None or ClientIP"),
            "correct sessionAffinity",
        )),
    }
}
