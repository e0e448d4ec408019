//! Rates of services and backends, from two readings of the tables. Pure.
//!
//! Serialized, these are the JSON of `ballast get services --rate` (docs/src/cli.md): field names and meanings are kept stable.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::AddAssign;

use serde::Serialize;

use super::contents::Contents;
use super::inventory::{BackendOfService, ConnectionView, Inventory, ServiceView};
use super::table::{aligned, place};
use lb_model::Monotonic;

/// What a service port or a backend takes in a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Rates {
    /// New connections.
    #[serde(rename = "connectionsPerSecond")]
    pub connections: f64,
    /// From clients; none without `--flow-counters on`.
    #[serde(rename = "inPacketsPerSecond")]
    pub in_packets: Option<f64>,
    /// To clients.
    #[serde(rename = "outPacketsPerSecond")]
    pub out_packets: Option<f64>,
    #[serde(rename = "inBytesPerSecond")]
    pub in_bytes: Option<f64>,
    #[serde(rename = "outBytesPerSecond")]
    pub out_bytes: Option<f64>,
}

/// The rates of a service port.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ServiceRates {
    pub namespace: String,
    pub name: String,
    pub port: u16,
    pub protocol: &'static str,
    #[serde(flatten)]
    pub rates: Rates,
    pub backends: Vec<BackendRates>,
}

/// The rates of a backend, within its service.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BackendRates {
    pub address: IpAddr,
    pub port: u16,
    #[serde(flatten)]
    pub rates: Rates,
}

/// Packets and bytes of both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Carried {
    in_packets: u64,
    out_packets: u64,
    in_bytes: u64,
    out_bytes: u64,
}

/// Namespace, name, port and protocol of a service port.
type ServiceKey = (String, String, u16, &'static str);

/// What rates need of the tables at one moment.
#[derive(Debug)]
pub struct Reading {
    pub at: Monotonic,
    /// Their counters need [`super::contents::Wanted::stats`].
    pub services: Vec<ServiceView>,
    /// With packets and bytes; `None`: these are not counted, or not wanted.
    connections: Option<Vec<ConnectionView>>,
}

impl Reading {
    /// `at` is the moment at which `contents` was read. `traffic`: packets and bytes are wanted, if the programs count them.
    pub fn new(contents: &Contents, at: Monotonic, traffic: bool) -> Self {
        let inventory = Inventory::new(contents, at);
        let connections = (traffic && inventory.counts_traffic()).then(|| inventory.connections());
        Self { at, services: inventory.services(), connections }
    }

    /// The services of this reading by their ids.
    pub fn by_id(&self) -> HashMap<u32, &ServiceView> {
        self.services.iter().map(|service| (service.id, service)).collect()
    }

    /// Seconds from `earlier` to this reading; never 0, so that they divide.
    pub fn seconds_since(&self, earlier: &Self) -> f64 {
        self.at.since(earlier.at).as_secs_f64().max(0.001)
    }
}

/// The rates of the services of `after`, in their order, over the time since `before`.
pub fn rates(before: &Reading, after: &Reading) -> Vec<ServiceRates> {
    let seconds = after.seconds_since(before);
    let known = before.by_id();
    let connections = after.connections.as_deref();
    let carried = connections.map(|after| carried(before.connections.as_deref().unwrap_or_default(), after));
    let per_second = |began: u64, carried: Option<Carried>| {
        #[expect(clippy::cast_precision_loss, reason = "no rate has 53 bits")]
        let rate = |count: u64| count as f64 / seconds;
        Rates {
            connections: rate(began),
            in_packets: carried.map(|carried| rate(carried.in_packets)),
            out_packets: carried.map(|carried| rate(carried.out_packets)),
            in_bytes: carried.map(|carried| rate(carried.in_bytes)),
            out_bytes: carried.map(|carried| rate(carried.out_bytes)),
        }
    };
    let of_service = |service: &ServiceView| {
        let (key, earlier) = (service_key(service), known.get(&service.id));
        let carried = carried.as_ref().map(|carried| carried.get(&key));
        let mut all = Carried::default();
        for more in carried.flatten().into_iter().flat_map(HashMap::values) {
            all += *more;
        }
        let of_backend = |backend: &BackendOfService| {
            let is_same = |known: &&BackendOfService| (known.address, known.port) == (backend.address, backend.port);
            let began =
                earlier.and_then(|service| service.backends.iter().find(is_same)).map_or(0, |known| known.began);
            let at = SocketAddr::new(backend.address, backend.port);
            let carried = carried.map(|carried| carried.and_then(|all| all.get(&at)).copied().unwrap_or_default());
            let rates = per_second(backend.began.saturating_sub(began), carried);
            BackendRates { address: backend.address, port: backend.port, rates }
        };
        let began = service.began.saturating_sub(earlier.map_or(0, |known| known.began));
        let (namespace, name, port, protocol) = key.clone();
        let rates = per_second(began, carried.map(|_| all));
        ServiceRates {
            namespace,
            name,
            port,
            protocol,
            rates,
            backends: service.backends.iter().map(of_backend).collect(),
        }
    };
    after.services.iter().map(of_service).collect()
}

/// What connections carried between two readings, by service port and backend. Those that were forgotten meanwhile are missing.
fn carried(before: &[ConnectionView], after: &[ConnectionView]) -> HashMap<ServiceKey, HashMap<SocketAddr, Carried>> {
    // While it is read, a connection may pass from one table to the other, and be seen in both.
    let mut latest: HashMap<_, &ConnectionView> = HashMap::new();
    for view in after {
        let known = latest.entry(tuple(view)).or_insert(view);
        if view.request_packets > known.request_packets {
            *known = view;
        }
    }
    let mut earlier: HashMap<_, Carried> = HashMap::new();
    for view in before {
        let known = earlier.entry(tuple(view)).or_default();
        if counted(view).in_packets >= known.in_packets {
            *known = counted(view);
        }
    }
    let mut all: HashMap<ServiceKey, HashMap<SocketAddr, Carried>> = HashMap::new();
    for (tuple, view) in latest {
        let (now, before) = (counted(view), earlier.get(&tuple).copied().unwrap_or_default());
        // A number that is smaller than before is that of a new connection under the same tuple.
        let more = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        let more = Carried {
            in_packets: more(now.in_packets, before.in_packets),
            out_packets: more(now.out_packets, before.out_packets),
            in_bytes: more(now.in_bytes, before.in_bytes),
            out_bytes: more(now.out_bytes, before.out_bytes),
        };
        let service = (view.namespace.clone(), view.service.clone(), view.service_port, view.protocol);
        let backend = SocketAddr::new(view.backend_address, view.backend_port);
        *all.entry(service).or_default().entry(backend).or_default() += more;
    }
    all
}

type Tuple = (&'static str, Option<IpAddr>, Option<u16>, Option<u64>, IpAddr, u16);

fn tuple(view: &ConnectionView) -> Tuple {
    let client = (view.client_address, view.client_port, view.socket_cookie);
    (view.protocol, client.0, client.1, client.2, view.frontend_address, view.frontend_port)
}

fn counted(view: &ConnectionView) -> Carried {
    Carried {
        in_packets: view.request_packets.unwrap_or_default(),
        out_packets: view.reply_packets.unwrap_or_default(),
        in_bytes: view.request_bytes.unwrap_or_default(),
        out_bytes: view.reply_bytes.unwrap_or_default(),
    }
}

impl AddAssign for Carried {
    fn add_assign(&mut self, more: Self) {
        self.in_packets += more.in_packets;
        self.out_packets += more.out_packets;
        self.in_bytes += more.in_bytes;
        self.out_bytes += more.out_bytes;
    }
}

fn service_key(service: &ServiceView) -> ServiceKey {
    (service.namespace.clone(), service.name.clone(), service.port, service.protocol)
}

/// The rates with the columns of `ipvsadm --rate`; those that nothing was counted for are left out.
pub fn table(services: &[ServiceRates], is_counted: bool) -> String {
    let mut header = vec!["NAMESPACE", "SERVICE", "PORT", "BACKEND", "CPS"];
    if is_counted {
        header.extend(["InPPS", "OutPPS", "InBPS", "OutBPS"]);
    }
    let mut rows = Vec::new();
    for service in services {
        let port = format!("{}/{}", service.port, service.protocol);
        let names = vec![service.namespace.clone(), service.name.clone(), port, String::new()];
        rows.push(row(names, service.rates));
        for backend in &service.backends {
            let names =
                [String::new(), String::new(), String::new(), format!("-> {}", place(backend.address, backend.port))];
            rows.push(row(names.into(), backend.rates));
        }
    }
    aligned(&header, rows)
}

fn row(mut names: Vec<String>, rates: Rates) -> Vec<String> {
    let counted = [rates.in_packets, rates.out_packets, rates.in_bytes, rates.out_bytes].into_iter().flatten();
    names.extend(std::iter::once(rates.connections).chain(counted).map(|rate| format!("{rate:.0}")));
    names
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lb_common::abi::{StatKey, Traffic, stat_kind};
    use lb_common::decide::pair_key;
    use lb_common::outcome::Outcome;

    use super::*;
    use crate::observe::inventory::tests::{NOW, contents};

    fn stat(kind: u8, id: u32, outcome: Outcome, count: u64) -> (StatKey, u64) {
        (StatKey { id, kind, outcome: outcome as u8, pad: 0 }, count)
    }

    fn of(before: &Contents, after: &Contents, seconds: u64) -> Vec<ServiceRates> {
        let later = NOW + Duration::from_secs(seconds);
        rates(&Reading::new(before, NOW, true), &Reading::new(after, later, true))
    }

    /// Packets and bytes to and fro of the first connection.
    fn with_traffic(mut contents: Contents, requests: (u64, u64), replies: (u64, u64)) -> Contents {
        contents.settings.flow_counters = 1;
        let (key, flow) = contents.v4.flows[0];
        let traffic = |(packets, bytes)| Traffic { since_s: 0, pad: 0, packets, bytes };
        contents.v4.traffic = vec![(key, traffic(requests)), (pair_key(&key, &flow), traffic(replies))];
        contents
    }

    #[test]
    fn new_connections_are_those_of_the_time_between_whatever_they_count_as() {
        let (mut before, mut after) = (contents(), contents());
        let (service, backend) = (stat_kind::SERVICE, stat_kind::BACKEND4);
        before.stats = vec![stat(service, 1, Outcome::Selected, 100), stat(backend, 1, Outcome::Selected, 90)];
        after.stats = vec![
            stat(service, 1, Outcome::Selected, 120),
            stat(service, 1, Outcome::Masqueraded, 6),
            stat(service, 1, Outcome::SocketConnected, 4),
            stat(service, 1, Outcome::RefusedNoEndpoint, 1000),
            stat(backend, 1, Outcome::Selected, 100),
            stat(backend, 1, Outcome::Forwarded, 1000),
        ];
        let found = of(&before, &after, 2);
        let shown = |rates: &Rates| rates.connections.to_string();
        assert_eq!((found[0].name.as_str(), shown(&found[0].rates)), ("web", "15".to_owned()));
        let backends: Vec<String> = found[0].backends.iter().map(|backend| shown(&backend.rates)).collect();
        assert_eq!(backends, ["5", "0", "0"]);
        assert_eq!(shown(&found[1].rates), "0");
        assert_eq!(found[0].rates.in_packets, None, "no program counts them");
    }

    #[test]
    fn packets_and_bytes_are_those_of_connections_between_the_readings() {
        let before = with_traffic(contents(), (10, 1_000), (8, 8_000));
        let after = with_traffic(contents(), (14, 1_400), (12, 20_000));
        let found = of(&before, &after, 2);
        let expected = Rates {
            connections: 0.0,
            in_packets: Some(2.0),
            out_packets: Some(2.0),
            in_bytes: Some(200.0),
            out_bytes: Some(6_000.0),
        };
        assert_eq!((found[0].rates, found[0].backends[0].rates), (expected, expected));
        assert_eq!(found[0].backends[1].rates.in_bytes, Some(0.0));
        assert_eq!(found[1].rates.in_bytes, Some(0.0), "a service without connections");
        // Another connection on the tuple.
        let anew = with_traffic(contents(), (4, 400), (2, 200));
        assert_eq!(of(&after, &anew, 1)[0].rates.in_packets, Some(4.0));
    }

    #[test]
    fn a_connection_that_is_seen_in_two_tables_counts_once() {
        let before = with_traffic(contents(), (10, 1_000), (8, 8_000));
        let mut after = with_traffic(contents(), (14, 1_400), (12, 20_000));
        let twice = after.v4.flows[0];
        after.v4.flows.push(twice);
        assert_eq!(of(&before, &after, 1)[0].rates.in_packets, Some(4.0));
    }

    #[test]
    fn columns_that_nothing_counts_are_left_out() {
        let found = of(&contents(), &contents(), 1);
        let shown = table(&found, false);
        assert!(shown.starts_with("NAMESPACE  SERVICE  PORT    BACKEND            CPS\n"), "{shown}");
        let counted = with_traffic(contents(), (10, 1_000), (8, 8_000));
        let shown = table(&of(&contents(), &counted, 1), true);
        let backend = shown.lines().find(|line| line.contains("10.1.0.2:8080")).expect("a row");
        let cells: Vec<&str> = backend.split_whitespace().collect();
        assert_eq!(cells, ["->", "10.1.0.2:8080", "0", "10", "8", "1000", "8000"]);
        assert!(shown.lines().next().expect("a header").ends_with("CPS  InPPS  OutPPS  InBPS  OutBPS"), "{shown}");
    }
}
