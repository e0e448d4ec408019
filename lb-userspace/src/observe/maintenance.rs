//! Orders about maintenance, as the command line gives them to the agent, and its answer.

use serde::{Deserialize, Serialize};

use lb_plan::plan::Target;

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Only say what is in maintenance.
    List,
    /// No new flows from here on; those that there are stay.
    On(Target),
    Off(Target),
}

impl Order {
    /// As it goes over the socket.
    pub(super) fn words(self) -> String {
        match self {
            Self::List => "maintenance".to_owned(),
            Self::On(target) => format!("maintenance on {target}"),
            Self::Off(target) => format!("maintenance off {target}"),
        }
    }

    pub(super) fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["maintenance"] => Some(Self::List),
            ["maintenance", "on", target] => target.parse().ok().map(Self::On),
            ["maintenance", "off", target] => target.parse().ok().map(Self::Off),
            _ => None,
        }
    }
}

/// What the agent made of an order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Answer {
    /// It was otherwise before.
    pub changed: bool,
    /// All that is in maintenance now.
    pub targets: Vec<State>,
    /// Why it could not be done; null: it was written down.
    pub error: Option<String>,
    /// What the tables do not hold of it yet, and why; null: they hold it.
    pub pending: Option<String>,
}

/// Something in maintenance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct State {
    /// An address, or an address and a port.
    pub target: String,
    /// How many endpoints of services it holds at the moment.
    pub endpoints: u64,
}
