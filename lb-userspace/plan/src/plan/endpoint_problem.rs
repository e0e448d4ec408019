//! Why a service port has no endpoint, or two where there is one: the table of causes, which commands, Events and the book show.

use std::fmt;

use lb_model::Family;

/// What is the matter with the endpoints of a service port in one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    NoSlice,
    OtherFamily,
    NoAddress,
    Refused,
    OtherPort,
    NotReady,
    Terminating,
    Maintenance,
    NotLocal,
    TwoEntries,
}

impl Cause {
    pub const ALL: [Self; 10] = [
        Self::NoSlice,
        Self::OtherFamily,
        Self::NoAddress,
        Self::Refused,
        Self::OtherPort,
        Self::NotReady,
        Self::Terminating,
        Self::Maintenance,
        Self::NotLocal,
        Self::TwoEntries,
    ];

    /// Name in JSON.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// What is the matter, in words. Details follow after a colon.
    pub const fn phrase(self) -> &'static str {
        self.row().1
    }

    pub const fn remedy(self) -> &'static str {
        self.row().2
    }

    /// Name, phrase and remedy.
    const fn row(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::NoSlice => (
                "no-slice",
                "no slice names the Service",
                "give the Service a selector that pods match, or a slice the label kubernetes.io/service-name; a slice that \
                 `ballast status` shows as refused does not count",
            ),
            Self::OtherFamily => (
                "other-family",
                "its slices have endpoints of the other family only",
                "give the pods addresses of both families, or take the family out of the Service's ipFamilies",
            ),
            Self::NoAddress => (
                "no-address",
                "its slices list no endpoint",
                "compare the Service's selector with the labels of its pods, or scale them up",
            ),
            Self::Refused => {
                ("refused", "its endpoints are refused", "correct their addresses; `ballast status` names each")
            }
            Self::OtherPort => (
                "other-port",
                "no endpoint has the port",
                "give the Service's port and the slices' port one name and one protocol",
            ),
            Self::NotReady => {
                ("not-ready", "no endpoint is ready", "look at the readiness of its pods: `kubectl describe pod`")
            }
            Self::Terminating => (
                "terminating",
                "all endpoints are terminating, and none serves any more",
                "start other pods: these end",
            ),
            Self::Maintenance => (
                "maintenance",
                "all endpoints that could serve are in maintenance",
                "end it for one of them: `ballast maintenance ADDRESS off`",
            ),
            Self::NotLocal => (
                "not-local",
                "no endpoint of this node can serve, and the traffic policy is Local",
                "where this is not wanted, run a pod on this node, or set the policy to Cluster",
            ),
            Self::TwoEntries => (
                "two-entries",
                "two entries have one address",
                "delete the one whose pod is gone. The ready one serves, then that of the newer slice, then that of this node",
            ),
        }
    }

    /// The usual state of a node, and no fault: pods of such a Service run on other nodes.
    pub const fn is_usual(self) -> bool {
        matches!(self, Self::NotLocal)
    }

    /// Whether an Event says so. An Event needs one node that posts it: that of an endpoint. Maintenance is an order on this node.
    pub const fn has_event(self) -> bool {
        match self {
            Self::OtherFamily | Self::OtherPort | Self::NotReady | Self::Terminating | Self::TwoEntries => true,
            // No endpoint, so no such node; a refused one has an Event of its slice.
            Self::NoSlice | Self::NoAddress | Self::Refused | Self::Maintenance | Self::NotLocal => false,
        }
    }
}

/// What is the matter with the endpoints of a service port. It changes no table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointProblem {
    pub family: Family,
    pub cause: Cause,
    /// What was found, in words; may be empty.
    pub found: String,
    /// The port that endpoints lack, in words; `None`: they have it.
    pub lacks: Option<String>,
    /// Other endpoints have the port.
    pub is_partial: bool,
    /// This node has the first of the endpoints that it is about: it speaks for the cluster.
    pub is_said_here: bool,
}

/// The phrase, and what was found.
impl fmt::Display for EndpointProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phrase = self.cause.phrase();
        if self.found.is_empty() { f.write_str(phrase) } else { write!(f, "{phrase}: {}", self.found) }
    }
}
