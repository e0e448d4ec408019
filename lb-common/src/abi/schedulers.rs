//! How new flows are spread over a service's backends.

use crate::numbered::numbered;

numbered! {
    /// How new flows are spread over a service's backends: [`super::Service::scheduler`]. The names are those of annotations and options, too.
    Scheduler: u8, scheduler {
        /// Any slot, with equal chance.
        Random, RANDOM = 0, "random";
        /// One slot after the other (`round_robin`).
        RoundRobin, ROUND_ROBIN = 1, "round-robin";
        /// As round robin, over slots that name each backend as often as its weight asks.
        Weighted, WEIGHTED = 2, "weighted";
        /// Of two slots drawn, the one whose backend has fewer connections for its weight (power of two choices).
        LeastConnections, LEAST_CONNECTIONS = 3, "least-connections";
        /// By the client's address.
        SourceHash, SOURCE_HASH = 4, "source-hash";
        /// By the tuple, over a table that moves few flows when the backends change.
        Maglev, MAGLEV = 5, "maglev";
    }
}

impl Scheduler {
    /// Whether weights of endpoints count.
    #[must_use]
    pub const fn is_weighed(self) -> bool {
        match self {
            Self::Weighted | Self::LeastConnections | Self::Maglev => true,
            Self::Random | Self::RoundRobin | Self::SourceHash => false,
        }
    }
}

#[expect(clippy::derivable_impls, reason = "an attribute of a variant would be one of the constant, too")]
impl Default for Scheduler {
    fn default() -> Self {
        Self::Random
    }
}

/// There is no scheduler of this name.
#[cfg(feature = "user")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownScheduler {
    given: String,
}

#[cfg(feature = "user")]
impl std::fmt::Display for UnknownScheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [others @ .., last] = Scheduler::ALL.map(Scheduler::name);
        write!(f, "{:?} is no scheduler; there are {} and {last}", self.given, others.join(", "))
    }
}

#[cfg(feature = "user")]
impl std::error::Error for UnknownScheduler {}

#[cfg(feature = "user")]
impl std::str::FromStr for Scheduler {
    type Err = UnknownScheduler;

    fn from_str(text: &str) -> Result<Self, UnknownScheduler> {
        Self::ALL.into_iter().find(|one| one.name() == text).ok_or_else(|| UnknownScheduler { given: text.into() })
    }
}
