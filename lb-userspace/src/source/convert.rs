//! From Kubernetes' types to the model. What is bad is refused by name; what is good is served.

use std::net::IpAddr;

use k8s_openapi::{
    api::{core::v1 as core, discovery::v1 as discovery},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use crate::model::{
    Endpoint, Exposure, Family, ObjectName, Protocol, Refusal, Service, ServicePort, Slice, SlicePort, uid_hash,
};

/// Label of a Service that another proxy serves.
pub const PROXY_NAME_LABEL: &str = "service.kubernetes.io/service-proxy-name";
/// Label of a Service or slice that no proxy serves.
pub const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
/// Label of a slice: the Service that it belongs to.
const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
/// Seconds of client affinity if the Service does not say (`DefaultClientIPServiceAffinitySeconds` of Kubernetes).
const AFFINITY_TIMEOUT_S: i32 = 10_800;
/// The longest affinity that Kubernetes allows.
const AFFINITY_TIMEOUT_MAX_S: i32 = 86_400;
/// Longest name or namespace: a DNS label (RFC 1123), and the room in the table of names.
const NAME_LENGTH_MAX: usize = 63;

/// What came of one object: the object unless all of it is refused, and what is refused of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Converted<T> {
    pub object: Option<T>,
    pub refusals: Vec<Refusal>,
}

/// Namespace and name; the namespace is `default` where none is given, as with kubectl.
pub fn object_name(meta: &ObjectMeta) -> ObjectName {
    ObjectName::new(
        meta.namespace.clone().unwrap_or_else(|| "default".to_owned()),
        meta.name.clone().unwrap_or_default(),
    )
}

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

/// A reason and a remedy, before it is known what they are about.
struct Problem {
    reason: String,
    remedy: &'static str,
}

impl Problem {
    fn new(reason: impl Into<String>, remedy: &'static str) -> Self {
        Self { reason: reason.into(), remedy }
    }

    fn refuse(self, object: String) -> Refusal {
        Refusal::new(object, self.reason, self.remedy)
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
        ports.push(ServicePort { name, port, protocol });
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

/// An `EndpointSlice`.
pub fn slice(slice: &discovery::EndpointSlice) -> Converted<Slice> {
    let mut refusals = Vec::new();
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
    for listed in slice.ports.iter().flatten() {
        match slice_port(listed) {
            Ok(Some(port)) => ports.push(port),
            // The Service's own port says that SCTP is not balanced.
            Ok(None) => {}
            Err(problem) => {
                let name = listed.name.as_deref().unwrap_or_default();
                refusals.push(problem.refuse(format!("{object} port {name:?}")));
            }
        }
    }
    let mut endpoints = Vec::new();
    for (index, listed) in slice.endpoints.iter().flatten().enumerate() {
        match endpoint(listed, family) {
            Ok(endpoint) => endpoints.push(endpoint),
            Err(problem) => refusals.push(problem.refuse(format!("{object} endpoint {index}"))),
        }
    }
    Ok(Slice { name, service: service.clone(), family, ports, endpoints })
}

fn slice_port(listed: &discovery::EndpointPort) -> Result<Option<SlicePort>, Problem> {
    let Some(port) = listed.port else {
        return Err(Problem::new("it has no number, which would mean every port", "give the port's number"));
    };
    let port = number(port)?;
    let name = listed.name.clone().unwrap_or_default();
    Ok(protocol(listed.protocol.as_deref())?.map(|protocol| SlicePort { name, port, protocol }))
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
        node: listed.node_name.clone(),
        uid_hash: listed.target_ref.as_ref().and_then(|target| target.uid.as_deref()).map_or(0, uid_hash),
    })
}

fn number(port: i32) -> Result<u16, Problem> {
    u16::try_from(port)
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| Problem::new(format!("port {port}: expected 1 to 65535"), "correct the port"))
}

/// `None` for SCTP, which Kubernetes knows and Ballast does not balance.
fn protocol(text: Option<&str>) -> Result<Option<Protocol>, Problem> {
    match text {
        None | Some("" | "TCP") => Ok(Some(Protocol::Tcp)),
        Some("UDP") => Ok(Some(Protocol::Udp)),
        Some("SCTP") => Ok(None),
        Some(other) => {
            Err(Problem::new(format!("protocol {other:?}: expected TCP, UDP or SCTP"), "correct the protocol"))
        }
    }
}

/// Says what is wrong with an address that no packet may be sent to.
fn unusable(address: IpAddr) -> Option<&'static str> {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let mapped = matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    match () {
        () if address.is_loopback() => Some("a loopback address"),
        () if link_local => Some("a link-local address"),
        () if address.is_multicast() => Some("a multicast address"),
        () if address.is_unspecified() => Some("the unspecified address"),
        () if broadcast => Some("the broadcast address"),
        () if mapped => Some("an IPv4 address written as IPv6"),
        () => None,
    }
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
