//! From the API's objects to the model. What is bad is refused by name; what is good is served.

mod external;
mod node;
mod options;
mod service;
mod service_cidr;
mod slice;

use std::net::{IpAddr, Ipv4Addr};

use super::lean::Metadata;
use ipnet::IpNet;
use lb_model::{ObjectName, Protocol, Refusal, shared};

pub use node::{node, peer};
pub use service::service;
pub use service_cidr::service_cidr;
pub use slice::slice;

/// What came of one object: the object unless all of it is refused, and what is refused of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Converted<T> {
    pub object: Option<T>,
    pub refusals: Vec<Refusal>,
}

/// Namespace and name; the namespace is `default` where none is given, as with kubectl.
pub fn object_name(meta: &Metadata) -> ObjectName {
    ObjectName::new(shared(meta.namespace.as_deref().unwrap_or("default")), meta.name.as_deref().unwrap_or_default())
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

fn number(field: &str, port: i32) -> Result<u16, Problem> {
    u16::try_from(port)
        .ok()
        .filter(|port| *port != 0)
        .ok_or_else(|| Problem::new(format!("{field} {port}: expected 1 to 65535"), "correct the port"))
}

fn protocol(text: Option<&str>) -> Result<Protocol, Problem> {
    match text {
        None | Some("" | "TCP") => Ok(Protocol::Tcp),
        Some("UDP") => Ok(Protocol::Udp),
        Some("SCTP") => Ok(Protocol::Sctp),
        Some(other) => {
            Err(Problem::new(format!("protocol {other:?}: expected TCP, UDP or SCTP"), "correct the protocol"))
        }
    }
}

/// An address that packets may be sent to.
fn address(field: &str, text: &str) -> Result<IpAddr, Problem> {
    let address = parsed(field, text)?;
    match unusable(address) {
        Some(what) => Err(Problem::new(format!("{field} {address} is {what}"), "use another address")),
        None => Ok(address),
    }
}

fn parsed(field: &str, text: &str) -> Result<IpAddr, Problem> {
    text.parse().map_err(|_| {
        let numbers = text.split('.').map(|number| number.trim_start_matches('0'));
        let plain: Vec<&str> = numbers.map(|number| if number.is_empty() { "0" } else { number }).collect();
        if plain.join(".").parse::<Ipv4Addr>().is_ok() {
            let reason = format!("{field} {text:?} has leading zeros, by which some programs read octal numbers");
            return Problem::new(reason, "write each number without leading zeros");
        }
        Problem::new(format!("{field} {text:?}: expected an IPv4 or IPv6 address"), "correct the address")
    })
}

/// A network; bits beyond its prefix are cleared.
fn network(field: &str, text: &str) -> Result<IpNet, Problem> {
    let network: IpNet = text.parse().map_err(|_| {
        Problem::new(format!("{field} {text:?}: expected a network, as 192.0.2.0/24"), "correct the network")
    })?;
    if matches!(network.addr(), IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) {
        return Err(Problem::new(format!("{field} {network} is an IPv4 network written as IPv6"), "write it as IPv4"));
    }
    Ok(network.trunc())
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
