//! Connections: flows of the packet programs, and host sockets translated at connect.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use lb_common::abi::{self, Flow, FlowKey, FlowState, Traffic, flow_state, socket_direction};
use lb_common::decide::pair_key;
use serde::Serialize;

use super::{
    BackendKey, FamilyContents, Inventory, backend_key, half_open, ip, living, low_bits, protocol_name, seconds,
};
use crate::observe::table::place;

/// A connection of a client to a service.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// `half-open`, `open`, `stream`, `closing`, `evicted` or `adopted`; a socket's is `connected`.
    pub state: &'static str,
    /// Seconds since the first packet; null for a socket.
    pub age_seconds: Option<u64>,
    /// Seconds since the last packet; null for a socket.
    pub idle_seconds: Option<u64>,
    /// Seconds without a packet after which it is forgotten; null for a socket.
    pub expires_seconds: Option<u64>,
    /// How often it was moved to another backend; null once it is answered.
    pub moves: Option<u8>,
    /// Backends that left it unanswered or refused it, while nobody has answered.
    pub tried: Vec<String>,
    /// Packets and bytes from the client; null without `--flow-counters on`.
    pub request_packets: Option<u64>,
    pub request_bytes: Option<u64>,
    /// Packets and bytes to the client; null without `--flow-counters on`.
    pub reply_packets: Option<u64>,
    pub reply_bytes: Option<u64>,
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
        let flows = Flows::new(family, self.contents.settings.flow_counters != 0);
        let answered = living(family.flows.iter(), &self.timeouts, self.now);
        let mut views: Vec<_> = answered.map(|(key, flow)| self.flow(&flows, key, flow)).collect();
        for (key, entry) in half_open(family, &self.timeouts, self.now) {
            let tried = entry.tried.iter().filter(|id| **id != 0);
            views.push(ConnectionView {
                moves: (entry.flow.state == flow_state::HALF_OPEN).then_some(entry.moves),
                tried: tried.map(|id| flows.place_of(*id)).collect(),
                ..self.flow(&flows, key, &entry.flow)
            });
        }
        views
    }

    fn flow<const N: usize>(&self, flows: &Flows<'_, N>, key: &FlowKey<N>, flow: &Flow<N>) -> ConnectionView {
        let now_s = seconds(self.now);
        let name = self.name(flows.service_of(flow));
        let idle_s = now_s.saturating_sub(flow.seen_s);
        let left_s = self.timeouts.of_flow(key.protocol, flow).saturating_sub(idle_s);
        let [requests, replies] = flows.traffic_of(key, flow);
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
            age_seconds: Some(now_s.saturating_sub(flow.since_s).into()),
            idle_seconds: Some(idle_s.into()),
            expires_seconds: Some(left_s.into()),
            moves: None,
            tried: Vec::new(),
            request_packets: requests.map(|counted| counted.packets),
            request_bytes: requests.map(|counted| counted.bytes),
            reply_packets: replies.map(|counted| counted.packets),
            reply_bytes: replies.map(|counted| counted.bytes),
            translated_port: (flow.client_port != key.src_port).then_some(flow.client_port),
        }
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
            age_seconds: None,
            idle_seconds: None,
            expires_seconds: None,
            moves: None,
            tried: Vec::new(),
            request_packets: None,
            request_bytes: None,
            reply_packets: None,
            reply_bytes: None,
            translated_port: None,
        }
    }
}

/// What the flows of a family refer to.
struct Flows<'a, const N: usize> {
    services: HashMap<BackendKey, u32>,
    places: HashMap<u32, String>,
    /// `None`: nothing is counted.
    traffic: Option<HashMap<&'a FlowKey<N>, &'a Traffic>>,
}

impl<'a, const N: usize> Flows<'a, N> {
    fn new(family: &'a FamilyContents<N>, is_counted: bool) -> Self {
        let bearers = family.backends.iter();
        let tried: HashSet<u32> = family.half_open.iter().flat_map(|(_, entry)| entry.tried).collect();
        let places = family.backends.iter().filter(|(id, _)| tried.contains(id));
        Self {
            services: bearers
                .map(|(id, backend)| (backend_key::<N>(*id, low_bits(backend.generation)), backend.service))
                .collect(),
            places: places.map(|(id, backend)| (*id, place(ip(backend.address), backend.port))).collect(),
            traffic: is_counted.then(|| family.traffic.iter().map(|(key, traffic)| (key, traffic)).collect()),
        }
    }

    /// Id of the service port; 0: not known any more.
    fn service_of(&self, flow: &Flow<N>) -> u32 {
        self.services.get(&backend_key::<N>(flow.backend, flow.generation)).copied().unwrap_or(0)
    }

    /// Address and port of a backend; its id where that is free.
    fn place_of(&self, backend: u32) -> String {
        self.places.get(&backend).cloned().unwrap_or_else(|| format!("#{backend}"))
    }

    /// What was counted towards the backend and towards the client.
    fn traffic_of(&self, key: &FlowKey<N>, flow: &Flow<N>) -> [Option<Traffic>; 2] {
        let Some(counted) = &self.traffic else { return [None; 2] };
        let of = |key: &FlowKey<N>| {
            let found = counted.get(key).filter(|traffic| traffic.since_s == flow.since_s);
            Some(found.map_or(Traffic { since_s: flow.since_s, pad: 0, packets: 0, bytes: 0 }, |traffic| **traffic))
        };
        [of(key), of(&pair_key(key, flow))]
    }
}

/// Name of a connection's state in tables, JSON and metrics.
pub fn flow_state_name(state: u8) -> &'static str {
    FlowState::from_number(state).map_or("unknown", FlowState::name)
}
