//! A Service, read and checked.

use std::{collections::BTreeSet, net::IpAddr};

use super::{Converted, Problem, address, external, number, object_name, options, protocol};
use crate::lean::{self, PROXY_NAME_LABEL};
use lb_model::{Exposure, Family, ObjectName, Refusals, Service, ServicePort, TrafficPolicy};

/// Seconds of client affinity if the Service does not say (`DefaultClientIPServiceAffinitySeconds` of Kubernetes).
const AFFINITY_TIMEOUT_S: i32 = 10_800;
/// The longest affinity that Kubernetes allows.
const AFFINITY_TIMEOUT_MAX_S: i32 = 86_400;
/// Longest name or namespace: a DNS label (RFC 1123), and the room in the table of names.
const NAME_LENGTH_MAX: usize = 63;

/// A Service.
pub fn service(service: &lean::Service) -> Converted<Service> {
    let mut refusals = Refusals::default();
    let name = object_name(&service.metadata);
    let object = format!("Service {name}");
    match read_service(service, &name, &object, &mut refusals) {
        Ok(service) => Converted { object: Some(service), refusals: refusals.all(&object) },
        Err(problem) => {
            refusals.push(problem.refuse(object.clone()));
            Converted { object: None, refusals: refusals.all(&object) }
        }
    }
}

fn read_service(
    service: &lean::Service,
    name: &ObjectName,
    object: &str,
    refusals: &mut Refusals,
) -> Result<Service, Problem> {
    check_name("metadata.name", &name.name)?;
    check_name("metadata.namespace", &name.namespace)?;
    let spec = &service.spec;
    let label = |key: &str| service.metadata.labels.get(key);
    let exposure = if spec.type_.as_deref() == Some("ExternalName") {
        Exposure::ExternalName
    } else if spec.cluster_ip.as_deref() == Some("None") {
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
        options: None,
        created_s: service.metadata.creation_timestamp.as_ref().map(|time| time.as_second()),
    };
    if exposure == Exposure::Addresses {
        let mut refuse = |problem: Problem| refusals.push(problem.refuse(object.to_owned()));
        read.cluster_ips = cluster_ips(spec, &mut refuse)?;
        read.ports = service_ports(spec, &mut refuse)?;
        // A service that cannot remember its clients still serves them.
        read.affinity_timeout_s = affinity_timeout_s(spec).map_err(&mut refuse).unwrap_or_default();
        read.options = options::read(&service.metadata.annotations, &mut refuse);
        external::read(service, object, &mut read, refusals);
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

/// One that is bad is refused, the other one is served; if none is good, the service is refused.
fn cluster_ips(spec: &lean::ServiceSpec, refuse: &mut impl FnMut(Problem)) -> Result<Vec<IpAddr>, Problem> {
    let listed = spec.cluster_ips.as_deref().filter(|ips| !ips.is_empty());
    let single = || spec.cluster_ip.as_ref().filter(|ip| !ip.is_empty());
    let texts: Vec<&String> = listed.map_or_else(|| single().into_iter().collect(), |ips| ips.iter().collect());
    let mut ips: Vec<IpAddr> = Vec::new();
    let mut bad = None;
    for text in texts {
        let ip = address("clusterIP", text).and_then(|ip| {
            if ips.iter().any(|other| Family::of(*other) == Family::of(ip)) {
                let reason = format!("clusterIP {ip} is the second one of its family");
                return Err(Problem::new(reason, "keep at most one of each family"));
            }
            Ok(ip)
        });
        match ip {
            Ok(ip) => ips.push(ip),
            Err(problem) => bad.replace(problem).into_iter().for_each(&mut *refuse),
        }
    }
    if !ips.is_empty() {
        bad.into_iter().for_each(refuse);
        ips.shrink_to_fit();
        return Ok(ips);
    }
    Err(bad.unwrap_or_else(|| {
        Problem::new("it has no clusterIP", "set spec.clusterIP or spec.clusterIPs: only an API server allocates them")
    }))
}

/// Ports that are bad are refused, the others are served; if none is good, the service is refused.
fn service_ports(spec: &lean::ServiceSpec, refuse: &mut impl FnMut(Problem)) -> Result<Vec<ServicePort>, Problem> {
    let listed = spec.ports.as_deref().unwrap_or_default();
    let has_node_ports = matches!(spec.type_.as_deref(), Some("NodePort" | "LoadBalancer"));
    let mut ports: Vec<ServicePort> = Vec::new();
    let mut keys = BTreeSet::new();
    let mut names = BTreeSet::new();
    let mut bad = None;
    for listed in listed {
        let read = service_port(listed, has_node_ports, refuse).and_then(|read| {
            let (port, protocol) = (read.port, read.protocol);
            if keys.contains(&(port, protocol)) {
                return Err(Problem::new(format!("port {port}/{protocol} is listed twice"), "remove one of them"));
            }
            if names.contains(&read.name) {
                let reason = format!("two ports are named {:?}", read.name);
                return Err(Problem::new(reason, "give each port a name of its own"));
            }
            Ok(read)
        });
        match read {
            Ok(read) => {
                keys.insert((read.port, read.protocol));
                names.insert(read.name.clone());
                ports.push(read);
            }
            Err(problem) => bad.replace(problem).into_iter().for_each(&mut *refuse),
        }
    }
    if !ports.is_empty() {
        bad.into_iter().for_each(refuse);
        ports.shrink_to_fit();
        return Ok(ports);
    }
    Err(bad.unwrap_or_else(|| Problem::new("it has no ports", "list at least one under spec.ports")))
}

fn service_port(
    listed: &lean::ServicePort,
    has_node_port: bool,
    refuse: &mut impl FnMut(Problem),
) -> Result<ServicePort, Problem> {
    let node_port = match listed.node_port.filter(|port| *port != 0) {
        Some(port) if !has_node_port => {
            let remedy = "set the type to NodePort or LoadBalancer; the other addresses are served";
            refuse(Problem::new(format!("nodePort {port} of a service of another type"), remedy));
            None
        }
        Some(port) => number("nodePort", port).map_err(refuse).ok(),
        None => None,
    };
    Ok(ServicePort {
        name: listed.name.clone().unwrap_or_default(),
        port: number("port", listed.port.unwrap_or_default())?,
        protocol: protocol(listed.protocol.as_deref())?,
        node_port,
    })
}

fn affinity_timeout_s(spec: &lean::ServiceSpec) -> Result<u32, Problem> {
    match spec.session_affinity.as_deref() {
        None | Some("" | "None") => Ok(0),
        Some("ClientIP") => {
            let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
            let seconds = config.and_then(|client| client.timeout_seconds).unwrap_or(AFFINITY_TIMEOUT_S);
            u32::try_from(seconds).ok().filter(|s| (1..=AFFINITY_TIMEOUT_MAX_S.cast_unsigned()).contains(s)).ok_or_else(
                || {
                    Problem::new(
                        format!("affinity timeoutSeconds is {seconds}: expected 1 to {AFFINITY_TIMEOUT_MAX_S}"),
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
