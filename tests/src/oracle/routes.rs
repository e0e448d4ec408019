//! The network of an oracle run: its links, and the link behind which each destination lies.

use std::net::IpAddr;

use anyhow::{Context, Result};

use super::generate::address;
use crate::test_run::{Hook, LOOPBACK, LoadedPrograms};
use crate::topology::Namespace;

/// The MTU of the links: no packet of a run is too big.
const MTU: u32 = 9_000;

/// Where a packet to some address goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// By this link, to a neighbour that is known.
    Known(Link),
    /// By the default route, to a neighbour that is not known.
    Default,
    /// There is no route.
    Nowhere,
}

/// A link with one neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub own_mac: [u8; 6],
    pub neighbour_mac: [u8; 6],
    /// What XDP redirects to it leaves by it.
    pub sends: bool,
}

/// All routes.
#[derive(Clone, Debug)]
pub struct Routes {
    /// By their number, less one.
    links: [Link; 3],
    /// The route to each address; any other one goes by the default route.
    routes: Vec<(IpAddr, Route)>,
}

impl Routes {
    /// Makes the links and routes. The namespace must have a default route and forwarding on.
    pub fn make(namespace: &Namespace) -> Result<Self> {
        let mut commands = Vec::new();
        for number in 1..=3 {
            let (own, neighbour) = (text(mac(number, 1)), text(mac(number, 2)));
            let name = format!("link{number}");
            commands.extend([
                format!("link add {name} address {own} mtu {MTU} type veth peer name {name}end mtu {MTU}"),
                format!("link set {name} up"),
                format!("link set {name}end up"),
                format!("neighbour add 198.18.{number}.2 lladdr {neighbour} dev {name} nud permanent"),
                format!("neighbour add fe80::{number}:2 lladdr {neighbour} dev {name} nud permanent"),
            ]);
        }
        // One link leads to each backend's host; clients are behind links, too.
        let behind = [(2, 1, 1), (2, 2, 2), (1, 1, 3), (5, 1, 1), (5, 2, 2)];
        for (net, host, number) in behind {
            let (v4, v6) = (address(false, net, host), address(true, net, host));
            commands.push(format!("route add {v4}/32 via 198.18.{number}.2 dev link{number} onlink"));
            commands.push(format!("route add {v6}/128 via fe80::{number}:2 dev link{number} onlink"));
        }
        let nowhere = [(2, 3), (1, 3)];
        for (net, host) in nowhere {
            commands.push(format!("route add unreachable {}/32", address(false, net, host)));
            commands.push(format!("route add unreachable {}/128", address(true, net, host)));
        }
        namespace.ip(&commands.join("\n"))?;
        let link = |number: u8| -> Result<Link> {
            let name = format!("link{number}");
            let index = namespace.netns().run(|| nix::net::if_::if_nametoindex(name.as_str())).context("the link")?;
            // What is redirected to the second one is lost, as with a driver that has no XDP.
            Ok(Link { index, own_mac: mac(number, 1), neighbour_mac: mac(number, 2), sends: number != 2 })
        };
        let links = [link(1)?, link(2)?, link(3)?];
        let known = behind.map(|(net, host, number)| (net, host, Route::Known(links[number - 1])));
        let nowhere = nowhere.map(|(net, host)| (net, host, Route::Nowhere));
        let routes = known
            .into_iter()
            .chain(nowhere)
            .flat_map(|(net, host, route)| [false, true].map(|v6| (address(v6, net, host), route)));
        Ok(Self { links, routes: routes.collect() })
    }

    /// Tells the programs of the links. Packets arrive by the first one.
    pub fn tell(&self, programs: &mut LoadedPrograms) -> Result<()> {
        programs.arrive_by(self.arrival());
        self.links.iter().filter(|link| link.sends).try_for_each(|link| programs.set_sends(link.index))
    }

    /// The link that packets arrive by at XDP.
    pub fn arrival(&self) -> u32 {
        self.links[0].index
    }

    /// The link that a packet is seen at by this hook: the pod's is that of the third one.
    pub fn seen_at(&self, hook: Hook) -> u32 {
        if hook == Hook::PodIn { self.links[2].index } else { LOOPBACK }
    }

    /// Whether packets to this client leave by the pod's link.
    pub fn leads_to_pod(&self, client: IpAddr) -> bool {
        matches!(self.to(client), Route::Known(link) if link.index == self.links[2].index)
    }

    /// Indexes of the links.
    pub fn links(&self) -> [u32; 3] {
        self.links.map(|link| link.index)
    }

    /// The route to an address.
    pub fn to(&self, address: IpAddr) -> Route {
        self.routes.iter().find(|(there, _)| *there == address).map_or(Route::Default, |(_, route)| *route)
    }
}

fn mac(link: u8, end: u8) -> [u8; 6] {
    [2, 0, 0, 1, link, end]
}

fn text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
