//! What a source knows about itself: how fresh what it holds is, by what proof, and what went wrong on the way.

use std::collections::BTreeMap;

use tokio::time::Instant;

use lb_model::Refused;

/// What the service CIDRs are named.
pub const SERVICE_CIDRS: &str = "servicecidrs";

/// Resources that no new endpoint waits for: they are probed and proven more rarely, and no source is stale for them.
pub const PATIENT: [&str; 2] = ["nodes", SERVICE_CIDRS];

/// How much the source knows, and since when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceStatus {
    /// `file` or `kube`.
    pub kind: &'static str,
    /// What is read: the path, or the URL of the API.
    pub origin: String,
    /// Services and slices have both been listed once.
    pub synced: bool,
    /// Revision of the last snapshot; 0: none yet.
    pub revision: u64,
    /// When each resource was last known to be true (`file`, or `services`, `endpointslices`, `nodes`).
    pub last_proof: BTreeMap<&'static str, Instant>,
    /// What happened to each resource of the API, by the same names; empty for a file.
    pub resources: BTreeMap<&'static str, ResourceStatus>,
    /// Whether the API answers; `None`: a file, or no answer and no error of the API yet.
    pub api: Option<Reach>,
    /// The last error, until it is overcome.
    pub last_error: Option<String>,
    /// What is not known of the own Node, and why; `None`: nothing is missing.
    pub missing_node: Option<String>,
    /// Objects that are not served, and why.
    pub refusals: Refused,
    /// Objects of the manifest that are of no concern here.
    pub notes: Vec<String>,
}

impl SourceStatus {
    /// Since when a watch is known to be wedged while the API answers others: a fault of this node alone.
    pub fn wedged_since(&self) -> Option<Instant> {
        self.resources.values().filter_map(|resource| resource.wedged_since).min()
    }
}

/// Whether requests on new connections are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    pub reachable: bool,
    pub since: Instant,
}

/// How one resource of the API is followed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceStatus {
    /// The last proof that what is held is true.
    pub proof: Option<Proof>,
    /// Every change up to this resource version is known; 0: none, or one that cannot be compared.
    pub version: u64,
    /// Objects held, refused ones among them.
    pub objects: usize,
    /// Watches that were replaced, but for those that ended when their time was up.
    pub watch_restarts: BTreeMap<Restart, u64>,
    /// Complete lists that were asked for, by what made them necessary.
    pub relists: BTreeMap<Relist, u64>,
    /// Probes of a silent watch, by what came of them.
    pub probes: BTreeMap<Probed, u64>,
    /// A probe on a new connection showed that the watch is dead, and there is no working replacement yet.
    pub wedged_since: Option<Instant>,
    /// A list that would delete nearly everything waits for a second one that says the same.
    pub confirming: Option<Confirming>,
    /// Comparisons with a complete list that came to an end.
    pub compares: u64,
    /// What they found and repaired.
    pub differences: BTreeMap<Difference, u64>,
    /// The last error, until a proof overcomes it.
    pub last_error: Option<String>,
    /// Answers that were errors, by code.
    pub errors: BTreeMap<ApiError, u64>,
    /// Such answers since the last proof.
    pub failing: Option<Failing>,
}

/// The API answers, and with errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failing {
    pub error: ApiError,
    /// The first such answer.
    pub since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    pub at: Instant,
    pub kind: ProofKind,
}

/// A list that is not taken yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirming {
    pub since: Instant,
    /// Objects held.
    pub held: usize,
    /// Objects in the list.
    pub listed: usize,
}

/// An enum whose variants have one name each, for labels of metrics and for people.
macro_rules! named {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $name { $($(#[$doc])* $variant),+ }

        impl $name {
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }
    };
}

named! {
    /// What proved that everything up to a moment is known.
    ProofKind {
        /// A change that came by the watch.
        Event = "event",
        /// The server's word on the watch that nothing happened.
        Bookmark = "bookmark",
        /// A complete list.
        List = "list",
        /// A second watch on a new connection.
        Probe = "probe",
        /// A second watch on a new connection brought nothing, not even a bookmark, though the store went on. Complete lists confirm
        /// at growing distances that nothing was missed.
        SilentProbe = "silent-probe",
    }
}

named! {
    /// Why a watch was replaced.
    Restart {
        /// It was cut off, or ended before its time.
        Cut = "cut",
        /// A probe brought changes that it did not bring.
        MissedEvents = "missed-events",
        /// Not even a bookmark came for so long that several are overdue, while probes were answered.
        Overdue = "overdue",
        /// A comparison found what it should have brought.
        Compare = "compare",
        /// It brought an event that names no object.
        Unreadable = "unreadable",
    }
}

named! {
    /// Why everything was listed.
    Relist {
        First = "first",
        /// The server no longer knows the changes since the last version.
        Gone = "gone",
        /// The server's version is lower than the one held.
        RolledBack = "rolled-back",
        /// A short watch ended and brought nothing.
        Unproven = "unproven",
        /// The watch brings what cannot be read, or was lost at once twice from the same version.
        WatchFails = "watch-fails",
        /// The list before failed, or broke off.
        Retry = "retry",
        /// The list before would delete nearly everything.
        Confirm = "confirm",
    }
}

named! {
    /// What came of a probe.
    Probed {
        /// A bookmark: nothing was missed.
        Fresh = "fresh",
        /// Changes that the watch brought as well, a moment later.
        Late = "late",
        /// Changes that the watch did not bring.
        MissedEvents = "missed-events",
        /// It ended without a word.
        Unproven = "unproven",
        /// No answer, or an error.
        Failed = "failed",
    }
}

named! {
    /// What a comparison found of one object.
    Difference {
        /// The list has it, we do not.
        Missing = "missing",
        /// We hold an older state.
        Stale = "stale",
        /// We hold it, the list does not have it.
        Extra = "extra",
    }
}

named! {
    /// An answer of the API that is an error, by its HTTP status.
    ApiError {
        /// It does not know who asks.
        Unauthorized = "401",
        /// Who asks may not have this.
        Forbidden = "403",
        /// It has no such resource, or not in this version.
        NotFound = "404",
        /// It has too much to do.
        Busy = "429",
        /// Any other fault of the question.
        Client = "4xx",
        /// A fault of the server.
        Server = "5xx",
    }
}

impl ApiError {
    /// The agent lacks the rights, or the credentials: it stays so until somebody grants them.
    pub fn is_denied(self) -> bool {
        matches!(self, Self::Unauthorized | Self::Forbidden)
    }

    /// `None`: the status is no error.
    pub fn of(status: u16) -> Option<Self> {
        match status {
            401 => Some(Self::Unauthorized),
            403 => Some(Self::Forbidden),
            404 => Some(Self::NotFound),
            429 => Some(Self::Busy),
            400..=499 => Some(Self::Client),
            500..=599 => Some(Self::Server),
            _ => None,
        }
    }
}
