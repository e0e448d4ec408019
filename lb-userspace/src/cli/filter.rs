//! Which items of a list are wanted: by namespace, service, client, backend and state. Pure.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use ipnet::IpNet;

use crate::observe::inventory::{BackendView, ConnectionView, ServiceView};

/// What is wanted; without a condition everything is.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct Filter {
    /// Only this namespace [default: all of them]
    #[arg(short, long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,

    /// Services of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,

    /// Only this service, or this port of it
    #[arg(long, value_name = "[NAMESPACE/]NAME[:PORT]")]
    pub service: Option<ServiceName>,

    /// Connections only: those of this client
    #[arg(long, value_name = "ADDRESS|NETWORK|ADDRESS:PORT")]
    pub client: Option<AddressFilter>,

    /// Backends, drains and connections: those of this backend
    #[arg(long, value_name = "ADDRESS|NETWORK|ADDRESS:PORT")]
    pub backend: Option<AddressFilter>,

    /// Backends, drains and connections: those in one of these states
    #[arg(long = "state", value_enum, value_delimiter = ',', value_name = "STATE,…")]
    pub states: Vec<State>,
}

/// A state of connections, of backends, or a mark that lies over a backend's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum State {
    HalfOpen,
    Open,
    Stream,
    Closing,
    Evicted,
    /// Of another proxy, from before the first start
    Adopted,
    /// Of a host socket
    Connected,
    Active,
    #[value(alias = "resting")]
    Unready,
    Terminating,
    Draining,
    Maintenance,
    Ejected,
    #[value(alias = "quarantined")]
    Unhealthy,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::HalfOpen => "half-open",
            Self::Open => "open",
            Self::Stream => "stream",
            Self::Closing => "closing",
            Self::Evicted => "evicted",
            Self::Adopted => "adopted",
            Self::Connected => "connected",
            Self::Active => "active",
            Self::Unready => "unready",
            Self::Terminating => "terminating",
            Self::Draining => "draining",
            Self::Maintenance => "maintenance",
            Self::Ejected => "ejected",
            Self::Unhealthy => "unhealthy",
        }
    }

    const fn is_of_connections(self) -> bool {
        matches!(
            self,
            Self::HalfOpen
                | Self::Open
                | Self::Stream
                | Self::Closing
                | Self::Evicted
                | Self::Adopted
                | Self::Connected
        )
    }
}

/// A condition that the list does not have.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{condition} does not apply to {list}: leave it out, or ask for {remedy}")]
pub(super) struct NotOfList {
    condition: String,
    list: &'static str,
    remedy: &'static str,
}

impl Filter {
    /// Refuses conditions that no connection can meet.
    pub fn check_connections(&self) -> Result<(), NotOfList> {
        let of_backends = self.states.iter().find(|state| !state.is_of_connections());
        of_backends.map_or(Ok(()), |state| Err(NotOfList::state(*state, "connections", "backends")))
    }

    /// Refuses conditions that no backend can meet.
    pub fn check_backends(&self, list: &'static str) -> Result<(), NotOfList> {
        if self.client.is_some() {
            return Err(NotOfList { condition: "--client".into(), list, remedy: "connections" });
        }
        let of_connections = self.states.iter().find(|state| state.is_of_connections());
        of_connections.map_or(Ok(()), |state| Err(NotOfList::state(*state, list, "connections")))
    }

    /// Refuses conditions that no service can meet.
    pub fn check_services(&self) -> Result<(), NotOfList> {
        let given = [
            ("--client", self.client.is_some(), "connections"),
            ("--backend", self.backend.is_some(), "backends"),
            ("--state", !self.states.is_empty(), "backends"),
        ];
        let found = given.into_iter().find(|(_, is_given, _)| *is_given);
        found.map_or(Ok(()), |(condition, _, remedy)| {
            Err(NotOfList { condition: condition.into(), list: "services", remedy })
        })
    }

    pub fn service(&self, view: &ServiceView) -> bool {
        self.names(&view.namespace, &view.name, view.port)
    }

    pub fn backend(&self, view: &BackendView) -> bool {
        self.names(&view.namespace, &view.service, view.service_port)
            && self.backend.as_ref().is_none_or(|place| place.holds(view.address, view.port))
            && self.in_state(|name| view.state == name || view.marks().any(|mark| mark == name))
    }

    pub fn connection(&self, view: &ConnectionView) -> bool {
        let is_client = |place: &AddressFilter| {
            let known = view.client_address.zip(view.client_port);
            known.is_some_and(|(address, port)| place.holds(address, port))
        };
        self.names(&view.namespace, &view.service, view.service_port)
            && self.client.as_ref().is_none_or(is_client)
            && self.backend.as_ref().is_none_or(|place| place.holds(view.backend_address, view.backend_port))
            && self.in_state(|name| view.state == name)
    }

    fn names(&self, namespace: &str, name: &str, port: u16) -> bool {
        self.namespace.as_deref().is_none_or(|wanted| wanted == namespace)
            && self.service.as_ref().is_none_or(|wanted| wanted.is(namespace, name, port))
    }

    fn in_state(&self, has: impl Fn(&str) -> bool) -> bool {
        self.states.is_empty() || self.states.iter().any(|state| has(state.name()))
    }
}

impl NotOfList {
    fn state(state: State, list: &'static str, remedy: &'static str) -> Self {
        Self { condition: format!("--state {}", state.name()), list, remedy }
    }
}

/// A service as it is given: `web`, `demo/web`, `web:80`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServiceName {
    namespace: Option<String>,
    name: String,
    port: Option<u16>,
}

impl ServiceName {
    pub fn is(&self, namespace: &str, name: &str, port: u16) -> bool {
        self.name == name
            && self.namespace.as_deref().is_none_or(|wanted| wanted == namespace)
            && self.port.is_none_or(|wanted| wanted == port)
    }
}

impl FromStr for ServiceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (namespace, rest) =
            text.split_once('/').map_or((None, text), |(space, rest)| (Some(space.to_owned()), rest));
        let (name, port) = rest.split_once(':').map_or((rest, None), |(name, port)| (name, Some(port)));
        let port =
            port.map(str::parse).transpose().map_err(|_| format!("{rest:?} has no port number behind the colon"))?;
        if name.is_empty() || namespace.as_deref() == Some("") {
            return Err("expected a service as web, demo/web or demo/web:80".into());
        }
        Ok(Self { namespace, name: name.to_owned(), port })
    }
}

/// Where a client or backend is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AddressFilter {
    Network(IpNet),
    Exact(SocketAddr),
}

impl AddressFilter {
    pub fn holds(&self, address: IpAddr, port: u16) -> bool {
        match self {
            Self::Network(network) => network.contains(&address),
            Self::Exact(place) => *place == SocketAddr::new(address, port),
        }
    }
}

impl FromStr for AddressFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let address = text.parse::<IpAddr>().map(|address| Self::Network(address.into()));
        let network = || text.parse().map(Self::Network);
        let exact = || text.parse().map(Self::Exact);
        address.or_else(|_| network()).or_else(|_| exact()).map_err(|_: std::net::AddrParseError| {
            "expected an address, a network as 10.1.0.0/16, or an address with a port as 10.1.0.2:8080 or [fd00::1]:80".into()
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::observe::inventory::Inventory;
    use crate::observe::inventory::tests::{NOW, contents};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        filter: Filter,
    }

    fn filter(line: &str) -> Filter {
        Line::try_parse_from(std::iter::once("get").chain(line.split_whitespace())).expect("valid").filter
    }

    fn backends(line: &str) -> Vec<String> {
        let (contents, filter) = (contents(), filter(line));
        let views = Inventory::new(&contents, NOW).backends();
        views.iter().filter(|view| filter.backend(view)).map(|view| view.address.to_string()).collect()
    }

    fn connections(line: &str) -> usize {
        let (contents, filter) = (contents(), filter(line));
        Inventory::new(&contents, NOW).connections().iter().filter(|view| filter.connection(view)).count()
    }

    #[test]
    fn each_condition_narrows_the_list() {
        assert_eq!(backends("").len(), 3);
        assert_eq!(backends("--state draining"), ["10.1.0.3"]);
        assert_eq!(backends("--state draining,active --backend 10.1.0.0/16"), ["10.1.0.2", "10.1.0.3"]);
        assert_eq!(backends("--backend [fd00::2]:8080"), ["fd00::2"]);
        assert!(backends("--backend 10.1.0.2:80").is_empty());
        assert!(backends("-n other").is_empty());
        assert_eq!(backends("--service demo/web:80").len(), 3);
        assert!(backends("--service web:81").is_empty());
        assert_eq!(connections(""), 3);
        assert_eq!(connections("--client 10.1.0.9:40001"), 1);
        assert_eq!(connections("--client 10.1.0.9 --state open"), 3);
        assert_eq!(connections("--state half-open"), 0);
        assert_eq!(connections("--client 10.1.0.8"), 0);
    }

    #[test]
    fn a_condition_that_nothing_could_meet_is_refused() {
        let said = |error: NotOfList| error.to_string();
        let error = said(filter("--state draining").check_connections().expect_err("of backends"));
        assert!(error.contains("--state draining") && error.contains("ask for backends"), "{error}");
        let error = said(filter("--client 10.0.0.1").check_backends("drains").expect_err("of connections"));
        assert!(error.contains("drains"), "{error}");
        assert!(filter("--state ejected").check_backends("backends").is_ok());
        assert!(filter("--state open").check_backends("backends").is_err());
        assert!(filter("--backend 10.0.0.1").check_services().is_err());
        assert!(filter("--service web").check_services().is_ok());
    }

    #[test]
    fn what_is_not_understood_is_told_with_what_would_be() {
        for (line, expected) in [
            ("--client nobody", "an address, a network"),
            ("--service demo/", "demo/web:80"),
            ("--service web:http", "no port number"),
            ("--state dead", "half-open"),
        ] {
            let line = std::iter::once("get").chain(line.split_whitespace());
            let Err(error) = Line::try_parse_from(line) else { panic!("understood") };
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
