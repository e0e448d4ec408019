//! Names of pods in a question. The tables hold none: the Kubernetes API knows the addresses, and one of them takes the name's place.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use super::target::{Client, Destination, Target};

/// `pod/NAMESPACE/NAME`, and a port and a protocol behind it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
    /// From the colon or slash on, or empty.
    rest: String,
}

/// Why a name has no address to take its place.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NoAddress {
    #[error("pod {0} has no address: it is not running yet, or has ended")]
    None(String),
    #[error("source and destination have no addresses of the same family")]
    Family,
}

impl PodName {
    /// `None`: the text names no pod.
    pub fn find(text: &str) -> Option<Result<Self, String>> {
        let (namespace, rest) = text.strip_prefix("pod/")?.split_once('/').unwrap_or_default();
        let (name, rest) = rest.split_at(rest.find([':', '/']).unwrap_or(rest.len()));
        if namespace.is_empty() || name.is_empty() {
            return Some(Err("expected pod/NAMESPACE/NAME, with :PORT behind it for a destination".to_owned()));
        }
        Some(Ok(Self { namespace: namespace.to_owned(), name: name.to_owned(), rest: rest.to_owned() }))
    }

    /// The text with an address instead of the name.
    fn at(&self, address: IpAddr) -> String {
        match address {
            IpAddr::V6(address) if self.rest.starts_with(':') => format!("[{address}]{}", self.rest),
            IpAddr::V4(_) | IpAddr::V6(_) => format!("{address}{}", self.rest),
        }
    }
}

/// Refuses what is neither a `T` nor would be one with the address of the pod that it names.
pub fn check<T: FromStr<Err = String>>(text: &str) -> Result<String, String> {
    let with_address = match PodName::find(text) {
        Some(pod) => pod?.at(Ipv4Addr::LOCALHOST.into()),
        None => text.to_owned(),
    };
    with_address.parse::<T>().map(|_| text.to_owned())
}

/// The pods that the arguments name.
pub fn names(arguments: &[String]) -> Result<Vec<PodName>, String> {
    arguments.iter().filter_map(|argument| PodName::find(argument)).collect()
}

/// The arguments with an address for each pod: all of the first family that both ends have.
pub fn replace(arguments: &[String], addresses: &BTreeMap<PodName, Vec<IpAddr>>) -> Result<Vec<String>, NoAddress> {
    let mut families = vec![false, true];
    let mut order = Vec::new();
    for argument in arguments {
        let found = match PodName::find(argument) {
            Some(Ok(pod)) => {
                let found = addresses.get(&pod).filter(|addresses| !addresses.is_empty());
                found.cloned().ok_or_else(|| NoAddress::None(format!("{}/{}", pod.namespace, pod.name)))?
            }
            _ => address(argument).into_iter().collect(),
        };
        if !found.is_empty() {
            families.retain(|is_v6| found.iter().any(|address| address.is_ipv6() == *is_v6));
            order.extend(found.iter().map(IpAddr::is_ipv6));
        }
    }
    let family = order.into_iter().find(|is_v6| families.contains(is_v6)).ok_or(NoAddress::Family)?;
    let one = |argument: &String| {
        let Some(Ok(pod)) = PodName::find(argument) else { return argument.clone() };
        let address = addresses.get(&pod).and_then(|all| all.iter().find(|address| address.is_ipv6() == family));
        address.map_or_else(|| argument.clone(), |address| pod.at(*address))
    };
    Ok(arguments.iter().map(one).collect())
}

/// The address that an argument gives; an option or a service gives none.
fn address(argument: &str) -> Option<IpAddr> {
    if let Ok(client) = argument.parse::<Client>() {
        return Some(client.address);
    }
    match argument.parse::<Destination>().ok()?.target {
        Target::Address(address) => Some(address.ip()),
        Target::Service { .. } => None,
    }
}
