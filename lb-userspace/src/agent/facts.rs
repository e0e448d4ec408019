//! What the node knows of itself beside the API: its addresses, and what no service may take there.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use ipnet::IpNet;
use nix::{net::if_::InterfaceFlags, sys::socket::SockaddrStorage};
use tokio::time::timeout;

use crate::config::Settings;
use crate::model::{Family, Protocol};
use crate::plan::{Marks, NodeFacts};

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

/// The most that a link takes, in bytes, of IPv4 and IPv6.
pub(super) fn mtu() -> [Option<u32>; 2] {
    Family::BOTH.map(widest)
}

/// The networks that the node's links are in; empty if the kernel does not tell.
pub(super) fn networks() -> BTreeSet<IpNet> {
    let Ok(found) = nix::ifaddrs::getifaddrs() else { return BTreeSet::new() };
    let networks = found.filter_map(|interface| {
        let (address, mask) = (ip(interface.address?)?, ip(interface.netmask?)?);
        IpNet::with_netmask(address, mask).ok().map(|network| network.trunc())
    });
    networks.filter(|network| network.prefix_len() < network.max_prefix_len()).collect()
}

/// The most that a link with an address of this family takes, loopback apart; `None`: there is none, or the kernel does not tell.
fn widest(family: Family) -> Option<u32> {
    let found = nix::ifaddrs::getifaddrs().ok()?;
    let of_family = found.filter(|interface| {
        let address = interface.address.and_then(ip);
        !interface.flags.contains(InterfaceFlags::IFF_LOOPBACK) && address.is_some_and(|ip| Family::of(ip) == family)
    });
    let names: BTreeSet<String> = of_family.map(|interface| interface.interface_name).collect();
    names.iter().filter_map(|name| mtu_of(name)).max()
}

fn mtu_of(link: &str) -> Option<u32> {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").or_else(|_| std::net::UdpSocket::bind("[::1]:0")).ok()?;
    // SAFETY: an all-zero ifreq is valid: plain numbers and a union of them.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let [name @ .., _end] = &mut request.ifr_name;
    for (to, from) in name.iter_mut().zip(link.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    // SAFETY: a live socket, and a request that holds a NUL-terminated name; the kernel writes a number into its union.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) } != 0 {
        return None;
    }
    // SAFETY: the kernel has written it.
    u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).ok()
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
fn endpoint(origin: &str) -> Option<(String, u16)> {
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
