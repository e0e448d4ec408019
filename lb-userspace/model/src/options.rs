//! What a Service asks of this load balancer by its annotations, beyond the API's own fields.

use std::{fmt, net::IpAddr, str::FromStr, time::Duration};

pub use lb_common::abi::{Scheduler, UnknownScheduler};

use super::Protocol;

/// The sizes that a Maglev table can have: primes, each several times the one before, so that few changes of the number of
/// endpoints change the size.
pub const MAGLEV_SIZES: [u32; 4] = [251, 1_021, 16_381, 131_071];
/// The largest weight of an endpoint.
pub const WEIGHT_MAX: u16 = 1_000;

/// How packets of external clients reach backends of other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// From an address of the node that they came by; the answers come back through it.
    #[default]
    Snat,
    /// Whole, to the backend's node, which answers by itself (direct server return).
    Dsr,
    /// TCP as [`Self::Dsr`], all else as [`Self::Snat`].
    Hybrid,
}

impl Mode {
    pub const ALL: [Self; 3] = [Self::Snat, Self::Dsr, Self::Hybrid];

    /// Name in annotations, options and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Snat => "snat",
            Self::Dsr => "dsr",
            Self::Hybrid => "hybrid",
        }
    }

    /// Whether packets of any protocol go whole.
    pub fn is_ever_direct(self) -> bool {
        self != Self::Snat
    }

    /// Whether packets of this protocol go whole.
    pub fn is_direct(self, protocol: Protocol) -> bool {
        self == Self::Dsr || self == Self::Hybrid && protocol == Protocol::Tcp
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no mode of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no mode; there are snat, dsr and hybrid")]
pub struct UnknownMode {
    given: String,
}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        Self::ALL.into_iter().find(|one| one.name() == text).ok_or_else(|| UnknownMode { given: text.into() })
    }
}

/// Whose weight it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Weighed {
    Address(IpAddr),
    /// Endpoints in this zone (`topology.kubernetes.io/zone`), unless their address has a weight of its own.
    Zone(String),
}

/// What an active check asks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CheckMethod {
    /// Whether a TCP connection is accepted.
    Tcp,
    /// Whether GET of this path is answered with a status from 200 to 399.
    Http { path: String },
}

/// Active checks of a service's endpoints, made by this node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Check {
    pub method: CheckMethod,
    /// `None`: the endpoint's own port.
    pub port: Option<u16>,
    pub interval: Duration,
    pub timeout: Duration,
    /// So many failures in a row take a backend out.
    pub failures: u8,
    /// So many successes in a row bring it back.
    pub successes: u8,
}

/// How many new flows each network of external clients may make at a service port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RateLimit {
    /// In a second, on average; 0: any number.
    pub rate: u32,
    /// At once.
    pub burst: u32,
}

/// Everything that annotations of a Service say; `None` and empty: the agent's own setting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceOptions {
    pub scheduler: Option<Scheduler>,
    pub mode: Option<Mode>,
    /// Slots of a Maglev table; `None`: by the number of endpoints.
    pub maglev_size: Option<u32>,
    /// At most one for each address and zone. What has none weighs 1.
    pub weights: Vec<(Weighed, u16)>,
    pub drain_period: Option<Duration>,
    pub drain_max: Option<Duration>,
    /// Whether connections that nobody answers are moved, and refusals suppressed.
    pub retry: Option<bool>,
    pub check: Option<Check>,
    pub rate_limit: Option<RateLimit>,
}

impl ServiceOptions {
    /// The weight of an endpoint: that of its address, else that of its zone, else 1.
    pub fn weight(&self, address: IpAddr, zone: Option<&str>) -> u16 {
        let of = |is_meant: &dyn Fn(&Weighed) -> bool| {
            self.weights.iter().find(|(whose, _)| is_meant(whose)).map(|(_, weight)| *weight)
        };
        let of_address = of(&|whose| matches!(whose, Weighed::Address(one) if *one == address));
        let of_zone = || of(&|whose| matches!(whose, Weighed::Zone(one) if Some(one.as_str()) == zone));
        of_address.or_else(of_zone).unwrap_or(1)
    }
}
