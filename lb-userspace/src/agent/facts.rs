//! What the node knows of itself beside the API: its addresses, and what no service may take there.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::IpNet;
use nix::{net::if_::InterfaceFlags, sys::socket::SockaddrStorage};
use tokio::time::timeout;

use crate::config::Settings;
use lb_model::{Family, Protocol};
use lb_netlink::route::link_mtus;
use lb_plan::plan::{Marks, NodeFacts};

/// The kubelet's own port: through it the API server reaches into pods.
const KUBELET_PORT: u16 = 10_250;
/// How long the name of the API server may take to be resolved at the start.
const RESOLVE_LIMIT: Duration = Duration::from_secs(2);

type Reserved = BTreeSet<(IpAddr, u16, Protocol)>;

/// What is reserved on this node: the API server, the kubelet, and our own servers.
///
/// `origin` is what the source reads: the URL of the API, if it is one. An address that is given by a name is looked up once.
pub(super) async fn reserved(settings: &Settings, origin: &str) -> Reserved {
    let mut reserved = own(settings);
    if let Some((host, port)) = endpoint(origin) {
        match timeout(RESOLVE_LIMIT, tokio::net::lookup_host((host.as_str(), port))).await {
            Ok(Ok(found)) => reserved.extend(found.map(|at| (at.ip(), at.port(), Protocol::Tcp))),
            Ok(Err(_)) | Err(_) => {
                tracing::warn!(host, "the API server's name is not known here: its address is not protected");
            }
        }
    }
    reserved
}

/// The node's facts with these addresses.
pub(super) fn facts(addresses: &BTreeSet<IpAddr>, reserved: &Reserved, marks: Marks) -> NodeFacts {
    let (addresses, reserved) = (addresses.clone(), reserved.clone());
    NodeFacts { addresses, absent: BTreeSet::new(), networks: networks(), reserved, marks, mtu: mtu() }
}

/// The largest MTU of the links with an IPv4 address, and of those with an IPv6 address, in bytes; loopback does not count. `None`:
/// there is no such link, or the kernel does not list it.
pub(super) fn mtu() -> [Option<u32>; 2] {
    let mtus = link_mtus();
    Family::ALL.map(|family| links_with(family).iter().filter_map(|name| mtus.get(name)).copied().max())
}

/// The networks that the node's links are in; empty if the kernel does not list them.
pub(super) fn networks() -> BTreeSet<IpNet> {
    let Ok(found) = nix::ifaddrs::getifaddrs() else { return BTreeSet::new() };
    let networks = found.filter_map(|interface| {
        let (address, mask) = (ip(interface.address?)?, ip(interface.netmask?)?);
        IpNet::with_netmask(address, mask).ok().map(|network| network.trunc())
    });
    networks.filter(|network| network.prefix_len() < network.max_prefix_len()).collect()
}

/// The links with an address of this family, without loopback; none if the kernel does not list them.
fn links_with(family: Family) -> BTreeSet<String> {
    let Ok(found) = nix::ifaddrs::getifaddrs() else { return BTreeSet::new() };
    let of_family = found.filter(|interface| {
        let address = interface.address.and_then(ip);
        !interface.flags.contains(InterfaceFlags::IFF_LOOPBACK) && address.is_some_and(|ip| Family::of(ip) == family)
    });
    // An IPv4 address can have a label: the link's name, a colon, and a text.
    of_family.filter_map(|interface| interface.interface_name.split(':').next().map(str::to_owned)).collect()
}

fn ip(address: SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::from(v6.ip())))
}

fn own(settings: &Settings) -> Reserved {
    let every = [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)];
    let mut reserved: Reserved = every.map(|address| (address, KUBELET_PORT, Protocol::Tcp)).into();
    for bind in [settings.health_bind, settings.metrics_bind].into_iter().filter(|bind| bind.port() != 0) {
        if bind.ip().is_unspecified() {
            reserved.extend(every.map(|address| (address, bind.port(), Protocol::Tcp)));
        } else {
            reserved.insert((bind.ip(), bind.port(), Protocol::Tcp));
        }
    }
    reserved
}

/// Host and port of a URL; `None` for a path.
pub(super) fn endpoint(origin: &str) -> Option<(String, u16)> {
    let url: http::Uri = origin.parse().ok()?;
    let port = url.port_u16().or(match url.scheme_str()? {
        "https" => Some(443),
        "http" => Some(80),
        _ => None,
    })?;
    // Brackets belong to the URL, not to the address.
    Some((url.host()?.trim_matches(['[', ']']).to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Options, Source};

    fn settings() -> Settings {
        Options { source: Some(Source::Kube), ..Options::default() }.settle(Some("n1")).expect("complete")
    }

    #[tokio::test]
    async fn the_api_server_the_kubelet_and_our_own_ports_are_reserved() {
        let reserved = reserved(&settings(), "https://192.0.2.7:6443/").await;
        for (address, port) in
            [("192.0.2.7", 6443), ("0.0.0.0", 10_250), ("::", 10_250), ("0.0.0.0", 10_256), ("127.0.0.1", 10_249)]
        {
            assert!(reserved.contains(&(address.parse().expect("valid"), port, Protocol::Tcp)), "{address}:{port}");
        }
    }

    #[test]
    fn origins_are_urls_or_paths() {
        assert_eq!(endpoint("https://[2001:db8::1]:6443/"), Some(("2001:db8::1".into(), 6443)));
        assert_eq!(endpoint("https://api.example/"), Some(("api.example".into(), 443)));
        assert_eq!(endpoint("/etc/services.yaml"), None);
    }
}
