//! Connections: flows of the packet programs, and host sockets translated at connect.

use std::collections::HashMap;
use std::net::IpAddr;

use lb_common::abi::{self, flow_state, socket_direction};
use lb_common::state::{self, Timeouts};
use serde::Serialize;

use super::{FamilyContents, Inventory, backend_key, ip, is_forward, low_bits, protocol_name, seconds};

/// A connection of a client to a service.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionView {
    pub namespace: String,
    pub service: String,
    pub service_port: u16,
    pub protocol: &'static str,
    /// `packet`: a flow of the packet programs; `socket`: a host socket translated at connect.
    pub via: &'static str,
    /// null for a socket: the kernel knows it by its cookie.
    pub client_address: Option<IpAddr>,
    pub client_port: Option<u16>,
    pub socket_cookie: Option<u64>,
    /// The service's address, as the client knows it.
    pub frontend_address: IpAddr,
    pub frontend_port: u16,
    pub backend_address: IpAddr,
    pub backend_port: u16,
    /// `half-open`, `open`, `closing` or `evicted`; a socket's is `connected`.
    pub state: &'static str,
    /// Seconds since the last packet; null for a socket.
    pub idle_seconds: Option<u64>,
    /// Seconds without a packet after which it is forgotten; null for a socket.
    pub expires_seconds: Option<u64>,
    /// The client's port as the backend sees it, where it had to be translated.
    #[serde(skip)]
    pub translated_port: Option<u16>,
}

impl Inventory<'_> {
    /// Every connection that has not expired, by service, then client.
    pub fn connections(&self) -> Vec<ConnectionView> {
        let mut views = self.flows(&self.contents.v4);
        views.extend(self.flows(&self.contents.v6));
        views.extend(self.sockets(&self.contents.v4));
        views.extend(self.sockets(&self.contents.v6));
        views.sort_by(|a, b| {
            (&a.namespace, &a.service, a.service_port, a.protocol)
                .cmp(&(&b.namespace, &b.service, b.service_port, b.protocol))
                .then_with(|| {
                    let client = |view: &ConnectionView| (view.client_address, view.client_port, view.socket_cookie);
                    client(a).cmp(&client(b))
                })
        });
        views
    }

    fn flows<const N: usize>(&self, family: &FamilyContents<N>) -> Vec<ConnectionView> {
        let bearers = family.backends.iter();
        let services: HashMap<_, _> = bearers
            .map(|(id, backend)| (backend_key::<N>(*id, low_bits(backend.generation)), backend.service))
            .collect();
        let now_s = seconds(self.now);
        let living = family.flows.iter();
        let living = living.filter(|(key, flow)| {
            is_forward(flow) && !state::expired(flow, Timeouts::DEFAULT.of(key.protocol, flow.state), now_s)
        });
        living
            .map(|(key, flow)| {
                let service = services.get(&backend_key::<N>(flow.backend, flow.generation));
                let name = self.name(service.copied().unwrap_or(0));
                let idle_s = now_s.saturating_sub(flow.seen_s);
                let left_s = Timeouts::DEFAULT.of(key.protocol, flow.state).saturating_sub(idle_s);
                ConnectionView {
                    namespace: name.namespace,
                    service: name.service,
                    service_port: name.port,
                    protocol: protocol_name(key.protocol),
                    via: "packet",
                    client_address: Some(ip(key.src)),
                    client_port: Some(key.src_port),
                    socket_cookie: None,
                    frontend_address: ip(key.dst),
                    frontend_port: key.dst_port,
                    backend_address: ip(flow.address),
                    backend_port: flow.port,
                    state: flow_state_name(flow.state),
                    idle_seconds: Some(idle_s.into()),
                    expires_seconds: Some(left_s.into()),
                    translated_port: (flow.client_port != key.src_port).then_some(flow.client_port),
                }
            })
            .collect()
    }

    fn sockets<const N: usize>(&self, family: &FamilyContents<N>) -> Vec<ConnectionView> {
        // Every translated socket has an entry for its answers; only those without a connection have one for the way there.
        let replies = family.sockets.iter().filter(|(key, _)| key.direction == socket_direction::REPLY);
        replies.map(|(key, peer)| self.socket(key, peer)).collect()
    }

    fn socket<const N: usize>(&self, key: &abi::SocketKey<N>, peer: &abi::SocketPeer<N>) -> ConnectionView {
        let name = self.name(peer.service);
        ConnectionView {
            namespace: name.namespace,
            service: name.service,
            service_port: name.port,
            protocol: protocol_name(key.protocol),
            via: "socket",
            client_address: None,
            client_port: None,
            socket_cookie: Some(u64::from(key.cookie_high) << 32 | u64::from(key.cookie_low)),
            frontend_address: ip(peer.address),
            frontend_port: peer.port,
            backend_address: ip(key.address),
            backend_port: key.port,
            state: "connected",
            idle_seconds: None,
            expires_seconds: None,
            translated_port: None,
        }
    }
}

fn flow_state_name(state: u8) -> &'static str {
    match state {
        flow_state::HALF_OPEN => "half-open",
        flow_state::OPEN => "open",
        flow_state::CLOSING => "closing",
        flow_state::EVICTED => "evicted",
        _ => "unknown",
    }
}
