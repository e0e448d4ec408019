//! The client of a connection: which set of backends serves it, and which address the backend sees.

use std::net::IpAddr;

use super::model::{AddressKind, Backend, Model, Service, Whose};
use super::routes::Route;
use super::rules::Asked;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// A pod or a process of this node.
    Near,
    /// A pod of another node.
    Pod,
    Outside,
    /// A process of another node.
    Peer,
    /// Nobody out there can have this address.
    Martian,
}

/// Who sends a packet, as far as its hook and its source say.
pub fn who(model: &Model, asked: Asked) -> Client {
    if !asked.is_from_outside() {
        return Client::Near;
    }
    let src = asked.src.ip();
    match model.whose(src) {
        Some(Whose::Node) => Client::Martian,
        _ if src.is_loopback() || model.vips.contains_key(&src) => Client::Martian,
        Some(Whose::Pods) => Client::Pod,
        Some(Whose::Peer) => Client::Peer,
        Some(Whose::Services) | None => Client::Outside,
    }
}

impl Service {
    /// The backends that serve this client, and whether he is dropped where there are none.
    pub fn set(&self, client: Client) -> (&[(u32, u32)], bool) {
        if client != Client::Near && self.kind != AddressKind::ClusterIp {
            (&self.members_outside, self.drop_outside_if_empty)
        } else {
            (&self.members, self.drop_if_empty)
        }
    }
}

/// Whom the backend sees asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The client itself.
    Client,
    /// The service's address, since the backend is the client.
    Service,
    /// An address of this node.
    Node(IpAddr),
    /// It would have to be an address of this node, which has none of the family.
    Nobody,
}

/// Whom this backend sees.
pub fn seen(model: &Model, asked: Asked, kind: AddressKind, client: Client, backend: &Backend) -> Seen {
    let address = backend.address.ip();
    let returns = match (client, kind) {
        // What answers a client of this node passes by this node in any case; a pod gets the answers of every backend that it asked by a cluster IP,
        // as the backend's node is one of this cluster, too.
        (Client::Near, _) | (Client::Pod, AddressKind::ClusterIp) => true,
        // kube-proxy masquerades here, whatever the backend. A process of this node cannot be asked by its own node's address.
        (_, AddressKind::ClusterIp) => backend.local && model.whose(address) == Some(Whose::Node),
        (_, AddressKind::NodePort | AddressKind::LoadBalancer | AddressKind::ExternalIp) => backend.local,
    };
    if !returns {
        return own_addresses(model, address).first().copied().map_or(Seen::Nobody, Seen::Node);
    }
    if address == asked.src.ip() { Seen::Service } else { Seen::Client }
}

/// The addresses of this node that packets to `backend` come from, the first one while it has ports: those of the link that leads there,
/// else those of any.
pub fn own_addresses(model: &Model, backend: IpAddr) -> &[IpAddr] {
    let link = match model.routes().to(backend) {
        Route::Known(link) => link.index,
        Route::Default | Route::Nowhere => 0,
    };
    model.own_addresses.get(&link).or_else(|| model.own_addresses.get(&0)).map_or(&[], Vec::as_slice)
}

/// Whether a client behind an address of this node may keep its port. The port is unprivileged, no socket of this node may be given it
/// (`net.ipv4.ip_local_port_range`), and it is no node port.
pub fn keeps_port(port: u16) -> bool {
    matches!(port, 1024..=29_999 | 61_000..)
}
