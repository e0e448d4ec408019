//! The Node that the agent runs on. While the API does not have it, or does not say so, its last known facts stay in force.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use lb_model::Node;

/// What depends on the Node, as `status` names it.
const UNKNOWN: &str = "its zone, addresses, pod networks and taints are unknown";

/// The Node's name, its last known facts, and how long a snapshot waits for them.
#[derive(Debug)]
pub struct OwnNode {
    /// `None`: nobody asks for a Node.
    name: Option<String>,
    /// `None`: never seen, nor remembered by an agent before.
    known: Option<Arc<Node>>,
    /// From here on there are snapshots without the Node.
    due: Instant,
    missing: Option<String>,
}

impl OwnNode {
    /// `known`: what an agent before this one knew. `wait`: the longest that a snapshot waits for the Node.
    pub fn new(name: Option<String>, known: Option<Arc<Node>>, wait: Duration) -> Self {
        Self { name, known, due: Instant::now() + wait, missing: None }
    }

    /// Takes what the API holds at the moment. `None`: it is not listed, or there is no such Node.
    pub fn learn(&mut self, held: Option<&Arc<Node>>) {
        if let Some(held) = held {
            self.known = Some(held.clone());
        }
    }

    pub fn known(&self) -> Option<&Arc<Node>> {
        self.known.as_ref()
    }

    /// When a snapshot without the Node is made; `None`: none has to wait.
    pub fn due(&self) -> Option<Instant> {
        (self.name.is_some() && self.known.is_none()).then_some(self.due)
    }

    /// Whether a snapshot may be made now.
    pub fn is_settled(&self, now: Instant) -> bool {
        self.due().is_none_or(|due| due <= now)
    }

    /// What is missing of the Node. Logged when it changes.
    pub fn missing(&mut self, is_listed: bool, is_held: bool) -> Option<String> {
        let missing = self.name.as_deref().filter(|_| !is_held).and_then(|name| match (is_listed, &self.known) {
            (true, Some(_)) => Some(format!("the API has no Node {name}: its last known facts stay in force")),
            (true, None) => Some(format!("the API has no Node {name}, and {UNKNOWN}: check --node-name")),
            (false, None) => Some(format!("Node {name} is not listed yet, and {UNKNOWN}")),
            (false, Some(_)) => None,
        });
        if missing != self.missing {
            if let Some(missing) = &missing {
                tracing::warn!(source = "kube", "{missing}");
            }
            self.missing.clone_from(&missing);
        }
        missing
    }
}
