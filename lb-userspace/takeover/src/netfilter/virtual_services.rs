//! What kube-proxy leaves of its IPVS mode beside rules and sets: virtual services, and the link with their addresses.
//!
//! Connections of IPVS that NAT took over need both for as long as they last:
//!
//! * Conntrack forgets a connection when IPVS forgets it. IPVS forgets one whose replies it does not see, and sees none without virtual
//!   services of the family (kernel change "ipvs: register hooks only with services"). With `net.ipv4.vs.expire_nodest_conn`, which kube-proxy sets, it ends one with its
//!   service at once. So services with connections stay.
//! * Connections of the host's own processes have an address of the link as their source. The link stays for them.

use std::{io, net::IpAddr};

use super::{
    ipvs::{Ipvs, VirtualService},
    kube_proxy::IPVS_LINK,
    leftovers::{Done, LeftoverOutcome, NetfilterError, failed},
};
use crate::conntrack::Entry;
use lb_netlink::route::delete_link;

/// Node ports, as API servers give them out by default.
const NODE_PORTS: std::ops::RangeInclusive<u16> = 30_000..=32_767;

/// What the operator does about a thing that is needed.
const AGAIN: &str = "run this again when they ended";

/// The virtual services, and the link.
#[derive(Debug, Default)]
pub(super) struct VirtualServices {
    pub services: Vec<VirtualService>,
    pub link: Option<u32>,
}

impl VirtualServices {
    pub fn find() -> io::Result<Self> {
        let link = nix::net::if_::if_nametoindex(IPVS_LINK).ok();
        let services = match link {
            Some(_) => Ipvs::open()?.map_or(Ok(Vec::new()), |mut ipvs| ipvs.services())?,
            None => Vec::new(),
        };
        Ok(Self { services, link })
    }

    /// Removes them, but for what the translated connections need.
    pub fn remove(&self, translated: &[Entry], dry_run: bool, done: &mut Vec<Done>) -> Result<(), NetfilterError> {
        let Some(link) = self.link else { return Ok(()) };
        let addresses = addresses_of(IPVS_LINK);
        let mut ipvs = Ipvs::open().map_err(failed("open IPVS"))?;
        for service in &self.services {
            if !is_of_kube_proxy(service, &addresses) {
                let what = format!("IPVS service {}: its address is not on {IPVS_LINK}", service.text());
                done.push(Done { outcome: LeftoverOutcome::Kept, what });
                continue;
            }
            let count = translated.iter().filter(|entry| is_at(entry, service)).count();
            if count > 0 {
                let what = format!("IPVS service {}: {count} connections need it; {AGAIN}", service.text());
                done.push(Done { outcome: LeftoverOutcome::Kept, what });
                continue;
            }
            if let Some(ipvs) = ipvs.as_mut().filter(|_| !dry_run) {
                ipvs.delete(service).map_err(failed(format!("delete the IPVS service {}", service.text())))?;
            }
            done.push(Done::removed(format!("IPVS service {}", service.text())));
        }
        let of_the_host = |entry: &&Entry| !entry.is_over() && addresses.contains(&entry.original.src.ip());
        let of_the_host = translated.iter().filter(of_the_host).count();
        if of_the_host > 0 {
            let what = format!("link {IPVS_LINK}: {of_the_host} connections of this host have its addresses; {AGAIN}");
            done.push(Done { outcome: LeftoverOutcome::Kept, what });
            return Ok(());
        }
        if !dry_run {
            delete_link(link).map_err(failed(format!("delete the link {IPVS_LINK}")))?;
        }
        done.push(Done::removed(format!("link {IPVS_LINK}")));
        Ok(())
    }
}

/// Whether this is a connection to the service that has not ended.
fn is_at(entry: &Entry, service: &VirtualService) -> bool {
    !entry.is_over() && (entry.original.dst, u16::from(entry.original.protocol)) == (service.address, service.protocol)
}

/// kube-proxy has all its addresses on its link, but for the node's own, at which it serves node ports.
fn is_of_kube_proxy(service: &VirtualService, addresses: &[IpAddr]) -> bool {
    addresses.contains(&service.address.ip()) || NODE_PORTS.contains(&service.address.port())
}

fn addresses_of(link: &str) -> Vec<IpAddr> {
    let all = nix::ifaddrs::getifaddrs().into_iter().flatten().filter(|found| found.interface_name == link);
    let address = |found: nix::ifaddrs::InterfaceAddress| {
        let address = found.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    };
    all.filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipvs_services_of_others_are_not_kube_proxys() {
        let service = |address: &str| VirtualService { address: address.parse().expect("an address"), protocol: 6 };
        let link = ["10.96.0.1".parse().expect("an address")];
        assert!(is_of_kube_proxy(&service("10.96.0.1:443"), &link));
        assert!(is_of_kube_proxy(&service("192.0.2.1:30080"), &link), "a node port");
        assert!(!is_of_kube_proxy(&service("192.0.2.1:6443"), &link), "a load balancer of the API server");
    }
}
