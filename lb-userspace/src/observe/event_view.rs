//! Events as people and scripts see them: names first.
//!
//! Serialized, a view is a line of `ballast monitor -o json` (docs/src/cli.md): field names and meanings are kept stable.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use jiff::Timestamp;
use lb_common::abi::{Backend, backend_state};
use lb_common::map;
use lb_common::outcome::Outcome;
use serde::Serialize;

use super::event_stream::Record;
use super::inventory::{Name, ip, name_of, protocol_name};
use super::table::or_dash;
use lb_tables::{MapError, Pinned};

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// An event with names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct EventView {
    /// RFC 3339, UTC, to the microsecond.
    pub time: String,
    pub outcome: String,
    /// The program that met the packet; none: the event is about a backend.
    pub hook: Option<String>,
    /// Name of the link; none: of a socket, or the link is gone.
    pub interface: Option<String>,
    /// None: the packet is for no service.
    pub namespace: Option<String>,
    pub service: Option<String>,
    pub service_port: Option<u16>,
    /// None: the event is about a backend, or about a socket without an address.
    pub client_address: Option<IpAddr>,
    pub client_port: Option<u16>,
    /// None: no backend was selected, or its id is free again.
    pub backend_address: Option<IpAddr>,
    pub backend_port: Option<u16>,
    /// Of the packet; none: the event is about a backend.
    pub protocol: Option<&'static str>,
    pub source: Option<SocketAddr>,
    pub destination: Option<SocketAddr>,
}

/// What the tables know of an event's ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    pub service: Option<Name>,
    pub backend: Option<SocketAddr>,
    pub interface: Option<String>,
}

impl EventView {
    pub(super) fn new(record: Record, known: Known, time: Timestamp) -> Self {
        let Known { service, backend, interface } = known;
        let is_packet = record.hook != super::events::NO_HOOK;
        // An answer of a backend, which is not the selected one if it is late.
        let answers = [Outcome::RefusedLate, Outcome::SuppressedRefusal].iter().any(|one| one.name() == record.outcome);
        let is_answer = is_packet && (answers || backend == Some(record.source));
        let (client, backend) =
            if is_answer { (record.destination, Some(record.source)) } else { (record.source, backend) };
        let client = Some(client).filter(|client| is_packet && !client.ip().is_unspecified());
        Self {
            time: format!("{time:.6}"),
            outcome: record.outcome.into_owned(),
            hook: is_packet.then(|| record.hook.into_owned()),
            interface,
            namespace: service.as_ref().map(|name| name.namespace.clone()),
            service_port: service.as_ref().map(|name| name.port),
            service: service.map(|name| name.service),
            client_address: client.map(|client| client.ip()),
            client_port: client.map(|client| client.port()),
            backend_address: backend.map(|backend| backend.ip()),
            backend_port: backend.map(|backend| backend.port()),
            protocol: is_packet.then(|| protocol(record.protocol)),
            source: is_packet.then_some(record.source),
            destination: is_packet.then_some(record.destination),
        }
    }

    /// A line of the table.
    pub fn line(&self) -> String {
        let service = self.service.as_ref().map(|service| match (&self.namespace, self.service_port) {
            (Some(namespace), Some(port)) if port != 0 => format!("{namespace}/{service}:{port}"),
            _ => service.clone(),
        });
        let packet = self.source.zip(self.destination).map(|(source, destination)| {
            let protocol = self.protocol.unwrap_or_default();
            format!("{protocol} {source} → {destination}")
        });
        let place = |address: Option<IpAddr>, port: Option<u16>| {
            or_dash(address.zip(port).map(|(address, port)| SocketAddr::new(address, port)))
        };
        columns([
            &self.time,
            &self.outcome,
            self.hook.as_deref().unwrap_or("-"),
            &or_dash(service),
            &place(self.client_address, self.client_port),
            &place(self.backend_address, self.backend_port),
            &or_dash(packet),
        ])
    }
}

/// The first line of the table.
pub fn header() -> String {
    columns(["TIME", "OUTCOME", "HOOK", "SERVICE", "CLIENT", "BACKEND", "PACKET"])
}

/// As wide as most lines need it: what comes later is not known yet.
fn columns([time, outcome, hook, service, client, backend, packet]: [&str; 7]) -> String {
    format!("{time:<27}  {outcome:<25}  {hook:<9}  {service:<24}  {client:<21}  {backend:<21}  {packet}")
}

fn protocol(number: u8) -> &'static str {
    match number {
        ICMP => "ICMP",
        ICMPV6 => "ICMPv6",
        number => protocol_name(number),
    }
}

/// The pinned maps, from which ids get their names.
pub struct EventNames(Pinned);

impl EventNames {
    /// Opens the maps pinned in `dir`, a set of tables.
    pub fn open(dir: &Path) -> Result<Self, MapError> {
        Pinned::open(dir).map(Self)
    }

    /// What the tables hold by now; a name that they no longer hold is `#` and the id. `time`: of the event.
    pub fn view(&self, record: Record, time: Timestamp) -> EventView {
        let backend = (record.backend != 0).then(|| self.backend(&record)).flatten();
        let of_backend = backend.map_or(0, |(_, service)| service);
        let service = if record.service == 0 { of_backend } else { record.service };
        let known = Known {
            service: (service != 0).then(|| self.service(service)),
            backend: backend.map(|(address, _)| address),
            interface: lb_datapath::name_of(record.ifindex),
        };
        EventView::new(record, known, time)
    }

    /// Events that the programs did not write, ever.
    pub fn unwritten(&self) -> Result<u64, MapError> {
        let cpus = self.0.outcomes.get(&(Outcome::EventLost as u32), 0);
        cpus.map(|cpus| cpus.iter().sum()).map_err(super::contents::reading(lb_common::abi::map_name::OUTCOMES))
    }

    fn service(&self, id: u32) -> Name {
        // A map that cannot be read keeps no event from being shown.
        self.0.of::<map::Names>().get(&id).ok().flatten().map_or_else(|| Name::unknown(id), |name| name_of(&name))
    }

    /// Address and service port id.
    fn backend(&self, record: &Record) -> Option<(SocketAddr, u32)> {
        if record.source.is_ipv4() {
            self.0.of::<map::Backends<4>>().get(&record.backend).ok().flatten().and_then(|backend| place(&backend))
        } else {
            self.0.of::<map::Backends<16>>().get(&record.backend).ok().flatten().and_then(|backend| place(&backend))
        }
    }
}

fn place<const N: usize>(backend: &Backend<N>) -> Option<(SocketAddr, u32)> {
    let is_used = backend.state != backend_state::FREE;
    is_used.then(|| (SocketAddr::new(ip(backend.address), backend.port), backend.service))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(outcome: &'static str, source: &str, destination: &str) -> Record {
        Record {
            time_ns: 0,
            outcome: outcome.into(),
            service: 1,
            backend: 2,
            source: source.parse().expect("valid"),
            destination: destination.parse().expect("valid"),
            protocol: lb_common::abi::TCP,
            hook: "pod_in".into(),
            ifindex: 12,
        }
    }

    fn view(record: Record, backend: Option<&str>) -> EventView {
        let service =
            Name { namespace: "demo".into(), service: "web".into(), port: 80, protocol: "TCP", label: "http".into() };
        let backend = backend.map(|address| address.parse().expect("valid"));
        let known = Known { service: Some(service), backend, interface: Some("veth1".into()) };
        EventView::new(record, known, "2026-11-26T13:40:01.5Z".parse().expect("valid"))
    }

    fn ends(view: &EventView) -> [Option<String>; 2] {
        let client = view.client_address.map(|address| address.to_string());
        [client, view.backend_address.map(|address| address.to_string())]
    }

    #[test]
    fn json_has_names_and_both_ends() {
        let view = view(record("retried", "10.1.0.9:40001", "10.96.0.1:80"), Some("10.1.0.3:8080"));
        assert_eq!(
            serde_json::to_value(&view).expect("plain data"),
            serde_json::json!({
                "time": "2026-11-26T13:40:01.500000Z", "outcome": "retried", "hook": "pod_in", "interface": "veth1",
                "namespace": "demo", "service": "web", "servicePort": 80,
                "clientAddress": "10.1.0.9", "clientPort": 40001, "backendAddress": "10.1.0.3", "backendPort": 8080,
                "protocol": "TCP", "source": "10.1.0.9:40001", "destination": "10.96.0.1:80",
            })
        );
    }

    #[test]
    fn the_client_of_an_answer_is_its_destination() {
        let some = |text: &str| Some(text.to_owned());
        let answer = record("evicted", "10.1.0.3:8080", "10.1.0.9:40001");
        assert_eq!(ends(&view(answer, Some("10.1.0.3:8080"))), [some("10.1.0.9"), some("10.1.0.3")]);
        let late = record("refused_late", "10.1.0.4:8080", "10.1.0.9:40001");
        assert_eq!(ends(&view(late, Some("10.1.0.3:8080"))), [some("10.1.0.9"), some("10.1.0.4")]);
        let request = record("refused_no_endpoint", "10.1.0.9:40001", "10.96.0.1:80");
        assert_eq!(ends(&view(request, None)), [some("10.1.0.9"), None]);
    }

    #[test]
    fn an_event_about_a_backend_or_a_socket_without_address_has_no_client() {
        let mut about_backend = record("ejected", "0.0.0.0:0", "0.0.0.0:0");
        about_backend.hook = "-".into();
        let view = self::view(about_backend, Some("10.1.0.3:8080"));
        assert_eq!(ends(&view), [None, Some("10.1.0.3".to_owned())]);
        assert_eq!((view.hook, view.source, view.protocol), (None, None, None));
        let mut of_socket = record("refused_bind", "[::]:0", "[::]:30080");
        of_socket.hook = "socket".into();
        assert_eq!(ends(&self::view(of_socket, None)), [None, None]);
    }

    #[test]
    fn a_line_stands_below_its_header() {
        let view = view(record("refused_no_endpoint", "10.1.0.9:40001", "10.96.0.1:80"), None);
        let (header, line) = (header(), view.line());
        for (title, value) in [
            ("OUTCOME", "refused_no_endpoint"),
            ("SERVICE", "demo/web:80"),
            ("CLIENT", "10.1.0.9:40001"),
            ("BACKEND", "-"),
        ] {
            let at = header.find(title).expect(title);
            assert!(line[at..].starts_with(value), "{title}:\n{header}\n{line}");
        }
        assert!(line.ends_with("TCP 10.1.0.9:40001 → 10.96.0.1:80"), "{line}");
    }
}
