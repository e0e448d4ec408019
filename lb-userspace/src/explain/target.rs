//! Source and destination as they are given on the command line.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use lb_common::abi::{SCTP, TCP, UDP, frontend_kind};
use lb_common::map;

use super::stored::Stored;
use lb_tables::from_chars;

/// Who sends the packet: an address, with a port or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Client {
    pub address: IpAddr,
    pub port: Option<u16>,
}

impl FromStr for Client {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let exact = text.parse::<SocketAddr>().map(|place| Self { address: place.ip(), port: Some(place.port()) });
        let address = || text.trim_matches(['[', ']']).parse().map(|address| Self { address, port: None });
        exact.or_else(|_| address()).map_err(|_| {
            "expected an address as 10.1.0.2, 10.1.0.2:40000 or [fd00::1]:40000, or pod/NAMESPACE/NAME[:PORT]".into()
        })
    }
}

/// What the packet is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    pub target: Target,
    /// `None`: TCP, or that of the service's port.
    pub protocol: Option<u8>,
}

/// An address, or the name of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Address(SocketAddr),
    Service { namespace: String, name: String, port: Option<String> },
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(rest) = text.strip_prefix("svc/") {
            return service(rest);
        }
        let (place, protocol) = match text.rsplit_once('/') {
            Some((place, name)) => (place, Some(protocol(name)?)),
            None => (text, None),
        };
        let place = place.parse().map_err(
            |_| {
                "expected an address with a port as 10.96.0.10:80, [fd00::1]:53/udp, svc/NAMESPACE/NAME[:PORT], or pod/NAMESPACE/NAME:PORT"
            },
        )?;
        Ok(Self { target: Target::Address(place), protocol })
    }
}

fn protocol(name: &str) -> Result<u8, String> {
    match name.to_ascii_lowercase().as_str() {
        "tcp" => Ok(TCP),
        "udp" => Ok(UDP),
        "sctp" => Ok(SCTP),
        _ => Err(format!("{name:?} is no protocol: tcp, udp or sctp")),
    }
}

fn service(text: &str) -> Result<Destination, String> {
    let mut parts = text.split('/');
    let (Some(namespace), Some(name)) = (parts.next().filter(|part| !part.is_empty()), parts.next()) else {
        return Err("expected svc/NAMESPACE/NAME[:PORT][/PROTOCOL]".into());
    };
    let protocol = parts.next().map(protocol).transpose()?;
    let (name, port) = name.split_once(':').map_or((name, None), |(name, port)| (name, Some(port.to_owned())));
    if name.is_empty() || parts.next().is_some() {
        return Err("expected svc/NAMESPACE/NAME[:PORT][/PROTOCOL]".into());
    }
    let target = Target::Service { namespace: namespace.to_owned(), name: name.to_owned(), port };
    Ok(Destination { target, protocol })
}

/// Why a service's name leads to no frontend.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NotResolved {
    #[error("no service {0} has a frontend of this family in the tables; `ballast get services -A` lists them")]
    Unknown(String),
    #[error("{service} has several ports: name one of {choices} behind a colon")]
    Ambiguous { service: String, choices: String },
}

/// The address, port and protocol of a service's frontend: its cluster IP, if it has one in this family.
pub fn resolve<const N: usize, S: Stored>(
    stored: &S,
    (namespace, name, port): (&str, &str, Option<&str>),
    protocol: Option<u8>,
) -> Result<([u8; N], u16, u8), NotResolved> {
    let mut found: Vec<_> = stored
        .all::<map::Services<N>>()
        .into_iter()
        .filter(|(key, service)| {
            service.kind != frontend_kind::HOST_SOCKET && protocol.is_none_or(|wanted| wanted == key.protocol)
        })
        .filter_map(|(key, service)| {
            let of = stored.get::<map::Names>(&service.id)?;
            let label = from_chars(&of.port_name);
            let is_port = port.is_none_or(|port| of.port.to_string() == port || (!label.is_empty() && label == port));
            let is_it = from_chars(&of.namespace) == namespace && from_chars(&of.name) == name && is_port;
            is_it.then_some((service.kind, key, of.port))
        })
        .collect();
    found.sort_unstable_by_key(|(kind, key, _)| (*kind, *key));
    let service = format!("{namespace}/{name}{}", port.map(|port| format!(":{port}")).unwrap_or_default());
    let Some((_, key, first)) = found.first().copied() else { return Err(NotResolved::Unknown(service)) };
    let mut choices: Vec<String> = found
        .iter()
        .map(|(_, key, port)| {
            format!("{port}/{}", crate::observe::inventory::protocol_name(key.protocol).to_lowercase())
        })
        .collect();
    choices.sort();
    choices.dedup();
    if found.iter().any(|(_, other, port)| (*port, other.protocol) != (first, key.protocol)) {
        return Err(NotResolved::Ambiguous { service, choices: choices.join(", ") });
    }
    Ok((key.address, key.port, key.protocol))
}
